"""The schedules' cursors: how far each job's minutes have been made (T3).

A job's name is too long for an index of MySQL's, so that its hash is the key there. `last_id` and `last_run_at` are the
occurrence that was made last. `overlap="skip"` looks at it by the primary key: an occurrence needs no key of its own,
and so none that could collide with a caller's (T5).
"""

from __future__ import annotations

from rowlock.store.migrations.step import Step, instant

STEP = Step(
    number=4,
    oldest=1,
    postgresql={
        "rowlock_cursor": """
CREATE TABLE rowlock_cursor (
  name text COLLATE "C" NOT NULL PRIMARY KEY,
  fingerprint text COLLATE "C" NOT NULL,
  last_minute timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  last_run_at timestamptz,
  last_id bigint
)"""
    },
    mysql={
        "rowlock_cursor": """
CREATE TABLE rowlock_cursor (
  id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name varchar(1024) {text} NOT NULL,
  fingerprint varchar(64) {text} NOT NULL,
  last_minute datetime(6) NOT NULL,
  updated_at datetime(6) NOT NULL,
  last_run_at datetime(6),
  last_id bigint,
  name_hash binary(32) GENERATED ALWAYS AS (unhex(sha2(cast(name AS binary), 256))) STORED
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC""",
        "rowlock_cursor_name": "CREATE UNIQUE INDEX rowlock_cursor_name ON rowlock_cursor (name_hash)",
    },
    sqlite={
        "rowlock_cursor": f"""
CREATE TABLE rowlock_cursor (
  name text NOT NULL PRIMARY KEY,
  fingerprint text NOT NULL,
  last_minute text NOT NULL CHECK {instant("last_minute")},
  updated_at text NOT NULL CHECK {instant("updated_at")},
  last_run_at text CHECK {instant("last_run_at")},
  last_id integer
)"""
    },
)
