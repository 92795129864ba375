"""What programs know: each pair of job and fingerprint, and when a serving process last announced it (S7)."""

from __future__ import annotations

from rowlock.store.migrations.step import Step, instant

STEP = Step(
    number=2,
    oldest=1,
    postgresql={
        "rowlock_program": """
CREATE TABLE rowlock_program (
  pair text COLLATE "C" NOT NULL PRIMARY KEY,
  job text COLLATE "C" NOT NULL,
  fingerprint text COLLATE "C" NOT NULL,
  announced_at timestamptz NOT NULL
)"""
    },
    mysql={
        "rowlock_program": """
CREATE TABLE rowlock_program (
  pair char(64) {text} NOT NULL PRIMARY KEY,
  job varchar(1024) {text} NOT NULL,
  fingerprint varchar(64) {text} NOT NULL,
  announced_at datetime(6) NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"""
    },
    sqlite={
        "rowlock_program": f"""
CREATE TABLE rowlock_program (
  pair text NOT NULL PRIMARY KEY,
  job text NOT NULL,
  fingerprint text NOT NULL,
  announced_at text NOT NULL CHECK {instant("announced_at")}
)"""
    },
)
