"""Rowlock's own tables, as the store's statements see them. The DDL is in `migrations`.

Private and versioned (S1); reading them with plain SQL is supported, and columns may be added.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text

from rowlock.store.dialects.instant import Instant

metadata = MetaData()

job = Table(
    "rowlock_job",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("job", String(1024), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("payload", Text, nullable=False),
    Column("key", String(1024)),
    Column("queue", String(128), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("run_at", Instant, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("timeout_ms", Integer, nullable=False),
    Column("headers", Text),
    Column("token", String(64)),
    Column("lease", Instant),
    Column("claimed_by", String(255)),
    Column("error_category", String(32)),
    Column("error_class", String(255)),
    Column("error_summary", String(500)),
    Column("created_at", Instant, nullable=False),
    Column("claimed_at", Instant),
    Column("finished_at", Instant),
    Column("handed_back", Integer, nullable=False),
)

meta = Table(
    "rowlock_meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", String(255), nullable=False),
)

program = Table(
    "rowlock_program",
    metadata,
    Column("pair", String(64), primary_key=True),
    Column("job", String(1024), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("announced_at", Instant, nullable=False),
)

cancel = Table(
    "rowlock_cancel",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("asked_at", Instant, nullable=False),
    Column("asked_by", String(255)),
)
"""Records that somebody asked to cancel while they were in work; a row goes when that is carried out (O4)."""

cursor = Table(
    "rowlock_cursor",
    metadata,
    Column("name", String(1024), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("last_minute", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("last_run_at", Instant),
    Column("last_id", BigInteger),
)

audit = Table(
    "rowlock_audit",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("action", String(32), nullable=False),
    Column("detail", Text, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("by", String(255)),
)

pause = Table(
    "rowlock_pause",
    metadata,
    Column("queue", String(128), primary_key=True),
    Column("paused_at", Instant, nullable=False),
)

sweep = Table(
    "rowlock_sweep",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("token", String(64)),
    Column("lease", Instant),
    Column("next_at", Instant),
    Column("position", Text),
)
