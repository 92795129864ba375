"""Records that somebody asked to cancel while they were in work: written beside the record, never into its row (O4)."""

from __future__ import annotations

from rowlock.store.migrations.step import Step, instant

STEP = Step(
    number=3,
    oldest=1,
    postgresql={
        "rowlock_cancel": """
CREATE TABLE rowlock_cancel (
  id bigint NOT NULL PRIMARY KEY,
  asked_at timestamptz NOT NULL,
  asked_by text
)"""
    },
    mysql={
        "rowlock_cancel": """
CREATE TABLE rowlock_cancel (
  id bigint NOT NULL PRIMARY KEY,
  asked_at datetime(6) NOT NULL,
  asked_by varchar(255) {text}
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"""
    },
    sqlite={
        "rowlock_cancel": f"""
CREATE TABLE rowlock_cancel (
  id integer NOT NULL PRIMARY KEY,
  asked_at text NOT NULL CHECK {instant("asked_at")},
  asked_by text
)"""
    },
)
