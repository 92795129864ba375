"""The sweeper's row: who sweeps now, when the next sweep is due, and where an unfinished one goes on (N3)."""

from __future__ import annotations

from rowlock.store.migrations.step import Step, instant

STEP = Step(
    number=5,
    oldest=1,
    postgresql={
        "rowlock_sweep": """
CREATE TABLE rowlock_sweep (
  name text COLLATE "C" NOT NULL PRIMARY KEY,
  token text COLLATE "C",
  lease timestamptz,
  next_at timestamptz,
  position text
)"""
    },
    mysql={
        "rowlock_sweep": """
CREATE TABLE rowlock_sweep (
  name varchar(64) {text} NOT NULL PRIMARY KEY,
  token varchar(64) {text},
  lease datetime(6),
  next_at datetime(6),
  position longtext {text}
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"""
    },
    sqlite={
        "rowlock_sweep": f"""
CREATE TABLE rowlock_sweep (
  name text NOT NULL PRIMARY KEY,
  token text,
  lease text CHECK {instant("lease")},
  next_at text CHECK {instant("next_at")},
  position text
)"""
    },
)
