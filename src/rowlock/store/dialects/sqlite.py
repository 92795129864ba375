"""SQLite: one writer, Python's clock after BEGIN IMMEDIATE, times as sortable text."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sqlalchemy.engine import URL, Connection

from rowlock.errors import UnsupportedDatabase
from rowlock.model.table import QueueShape
from rowlock.store.dialects import scan, sqlite_file
from rowlock.store.dialects import sqlite_sql as sql
from rowlock.store.dialects import sqlite_texts as texts
from rowlock.store.dialects.aging import Aging, SQLiteAging
from rowlock.store.dialects.base import PARAMETERS, Claimed, Level, Source, driver_error
from rowlock.store.dialects.sqlite_enqueue import EnqueueHooks
from rowlock.store.dialects.values import Looking

if TYPE_CHECKING:
    from rowlock.store.database import Database
    from rowlock.store.migrations.step import Step

MANY = 8
"""From so many records on, an update that finds all of them held is cheaper than to ask first which ones are."""


class SQLite(EnqueueHooks):
    """SQLite 3.35 and newer, in files."""

    name: ClassVar[str] = "sqlite"
    label: ClassVar[str] = "SQLite"
    max_batch: ClassVar[int] = 500
    transactional_ddl: ClassVar[bool] = True
    one_writer: ClassVar[bool] = True
    begin: ClassVar[str] = "BEGIN IMMEDIATE"
    aging: ClassVar[Aging] = SQLiteAging()
    looking: ClassVar[Looking] = Looking(by_id="NOT INDEXED")

    # --- connecting ---------------------------------------------------------------------------------------

    def urls(self, url: URL) -> tuple[URL, URL]:
        if not sqlite_file.path_of(url):
            raise UnsupportedDatabase(
                "an in-memory SQLite database lives in one connection and dies with it; Rowlock needs a file: "
                "write sqlite:///file.db"
            )
        sync = url.set(drivername="sqlite+pysqlite")
        return sync, sync  # Rowlock's own async work runs on one thread (`WriterThread`)

    def connect_args(self, *, is_async: bool, wait_ms: int) -> dict[str, Any]:
        return {"timeout": wait_ms / 1000, "check_same_thread": False}

    def on_connect(self, cursor: Any, *, wait_ms: int) -> None:
        cursor.execute(f"PRAGMA busy_timeout = {wait_ms}")
        if cursor.execute("PRAGMA page_count").fetchone()[0] == 0:
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")  # a new file; later it takes a VACUUM (N10)
        mode = cursor.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if str(mode).lower() != "wal":
            path = cursor.execute("PRAGMA database_list").fetchone()[2]
            raise UnsupportedDatabase(
                f"the SQLite file {path!r} can not use write-ahead logging (its journal mode stays {mode!r}): "
                f"network and some shared file systems lock wrongly; put the file on a local disk"
            )
        cursor.execute("PRAGMA synchronous = FULL")
        # As the other databases do, whatever the program's own connections say: no sweep leaves orphans (N3).
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.connection.text_factory = texts.shown
        self.add_functions(cursor)

    handler_isolation: ClassVar[Literal["READ COMMITTED", "AUTOCOMMIT"]] = "AUTOCOMMIT"  # the `begin` event begins

    def handler_url(self, url: URL) -> URL:
        return self.urls(url)[0].set(drivername="sqlite+aiosqlite")

    def on_handler_connect(self, cursor: Any, *, wait_ms: int) -> None:
        # What is read is the user's: texts come as they always do.
        cursor.execute(f"PRAGMA busy_timeout = {wait_ms}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")

    def place_of_handlers(self, db: Database) -> Path | None:
        return Path(f"{os.path.realpath(str(db.url.database))}-rowlock-place")

    def add_functions(self, cursor: Any) -> None:
        cursor.connection.create_function("rowlock_plus_ms", 2, sql.plus_ms, deterministic=True)

    def check_server(self, conn: Connection) -> None:
        if sqlite3.sqlite_version_info < (3, 35):
            raise UnsupportedDatabase(
                f"this Python has SQLite {sqlite3.sqlite_version}; Rowlock needs 3.35 or newer: use a newer Python"
            )

    # --- time ---------------------------------------------------------------------------------------------

    def now(self, db: Database) -> str:
        return ":rl_now"

    def scan_now(self, db: Database) -> str:
        return ":rl_now"

    def plus_ms(self, instant: str, milliseconds: str) -> str:
        return f"rowlock_plus_ms({instant}, {milliseconds})"

    def to_db(self, moment: datetime) -> Any:
        return sql.to_text(moment)

    def from_db(self, value: Any) -> datetime | None:
        return None if value is None else sql.from_text(value)

    # --- records ------------------------------------------------------------------------------------------

    def levels(self, conn: Connection, db: Database, source: Source) -> list[Level]:
        shape = source.table
        params: dict[str, Any] = {"queue": source.queue}
        for n, branch in enumerate(source.branches):
            params |= {f"job{n}": branch.job, f"fingerprint{n}": branch.fingerprint}
        now = db.clock.host_now()
        rows = conn.exec_driver_sql(sql.levels(shape, len(source.branches)), params).all()
        return [Level(n, p, (sql.from_text(head) - now).total_seconds()) for n, p, head in rows if head is not None]

    def claim(self, conn: Connection, db: Database, source: Source, limit: int) -> list[Claimed]:
        # Looked first: with nothing due it neither takes the write lock nor waits for who has it (C7).
        if not db.in_transaction(conn) and not scan.due_levels(self.levels(conn, db, source)):
            return []
        with db.transaction(conn):
            now, nonce = db.clock.host_now(), secrets.token_hex(12)
            claimed: list[Claimed] = []
            for priority, branches in scan.due_levels(self.levels(conn, db, source)):
                claimed += self._best(conn, source, priority, branches, now, limit - len(claimed), nonce)
                if len(claimed) >= limit:
                    break
            self._take(conn, source, claimed, now, nonce)
            return claimed

    @staticmethod
    def _best(
        conn: Connection, source: Source, priority: int, branches: list[int], now: datetime, limit: int, nonce: str
    ) -> list[Claimed]:
        """The first due records of a priority, as they will be when they are taken."""
        statement, due = sql.candidates(source.table), sql.to_text(now)
        per_branch = scan.slice_of(limit, len(branches))
        slices: list[list[Claimed]] = []
        for n in branches:
            job, fingerprint, lease_ms = (branch := source.branches[n]).job, branch.fingerprint, branch.lease_ms
            rows = conn.exec_driver_sql(statement, (source.queue, job, fingerprint, priority, due, per_branch))
            slices.append([
                Claimed(
                    id_, job, fingerprint, payload, None if key is None else key.decode("utf-8", "replace"),
                    source.queue, priority, run_at, attempt + 1, most, timeout_ms, headers, f"{nonce}{id_:x}", lease_ms,
                    cancelled, (now - sql.from_text(run_at)).total_seconds(),
                )
                for id_, run_at, payload, key, attempt, most, timeout_ms, headers, cancelled in rows
            ])  # fmt: skip
        if len(slices) == 1:
            return slices[0]
        found = {record.id: record for records in slices for record in records}
        in_order = [[scan.Candidate(record.run_at, record.id) for record in records] for records in slices]
        return [found[candidate.id] for candidate in scan.merge(in_order, per_branch, limit)]

    @staticmethod
    def _take(conn: Connection, source: Source, claimed: list[Claimed], now: datetime, nonce: str) -> None:
        by_lease: dict[int, list[int]] = {}
        for record in claimed:
            by_lease.setdefault(record.lease_ms, []).append(record.id)
        for lease_ms, ids in by_lease.items():
            # One statement, its tokens computed there: each row that goes through Python costs a turn of the GIL.
            statement, params = sql.take(source.table, ids)
            lease = sql.to_text(now + timedelta(milliseconds=lease_ms))
            conn.exec_driver_sql(statement, (nonce, lease, source.claimed_by, sql.to_text(now), *params))

    def fenced_update(
        self,
        conn: Connection,
        db: Database,
        shape: QueueShape,
        assignments: str,
        records: Sequence[Mapping[str, Any]],
        *,
        wait: bool = False,
    ) -> set[int]:
        with db.transaction(conn):
            now = db.now_params()["rl_now"]
            names = [name for name in PARAMETERS if f"{{{name}}}" in assignments]
            first = records[0]
            same = all(record[name] == first[name] for record in records[1:] for name in names)
            if same and len(records) >= MANY and self._all_at_once(conn, shape, assignments, records, now):
                return {record["id"] for record in records}
            return self._those_held(conn, shape, assignments, records, now, same=same)

    @staticmethod
    def _all_at_once(
        conn: Connection, shape: QueueShape, assignments: str, records: Sequence[Mapping[str, Any]], now: str
    ) -> bool:
        """The update without asking first who is held; False if somebody is not, and then nothing was changed."""
        conn.exec_driver_sql("SAVEPOINT rowlock_all")
        all_held = conn.exec_driver_sql(*sql.fenced(shape, assignments, records, now)).rowcount == len(records)
        if not all_held:
            conn.exec_driver_sql("ROLLBACK TO rowlock_all")
        conn.exec_driver_sql("RELEASE rowlock_all")
        return all_held

    @staticmethod
    def _those_held(
        conn: Connection, shape: QueueShape, assignments: str, records: Sequence[Mapping[str, Any]], now: str, *,
        same: bool,
    ) -> set[int]:  # fmt: skip
        ids = conn.exec_driver_sql(*sql.holding(shape, records, now)).scalar_one()
        held = set[int]() if ids is None else set(map(int, ids.split(",")))
        own = [record for record in records if record["id"] in held]
        if not own:
            return held
        if same:
            conn.exec_driver_sql(*sql.fenced(shape, assignments, own, now))
        else:
            conn.exec_driver_sql(
                sql.fenced_each(shape, assignments), [dict(record) | {"rl_now": now} for record in own]
            )
        return held

    def quoted(self, name: str) -> str:
        return sql.quoted(name)

    def raw(self, column: str) -> str:
        return f"CAST({sql.quoted(column)} AS BLOB)"

    def in_ids(self, ids: Sequence[int]) -> str:
        return f"IN ({','.join(map(str, ids))})"

    def skip_locked(self) -> str:
        return ""

    # --- programs -----------------------------------------------------------------------------------------

    def pending_pairs(self, conn: Connection) -> list[tuple[str, str, str]]:
        return texts.pending_pairs(conn)

    def in_pair(self, queue: str, job: str, fingerprint: str) -> tuple[str, dict[str, Any]]:
        return texts.equal({"queue": queue, "job": job, "fingerprint": fingerprint})

    # --- schema -------------------------------------------------------------------------------------------

    def ddl(self, conn: Connection, step: Step) -> Mapping[str, str]:
        return step.sqlite

    def has_table(self, conn: Connection, table: str) -> bool:
        row = conn.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).first()
        return row is not None

    def lock_migration(self, conn: Connection) -> None:
        """BEGIN IMMEDIATE was it."""

    # --- errors -------------------------------------------------------------------------------------------

    def is_missing_table(self, error: BaseException) -> bool:
        return "no such table: rowlock_" in str(driver_error(error))

    def refusal(self, db: Database, error: BaseException) -> str | None:
        name = getattr(driver_error(error), "sqlite_errorname", "")
        known = name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_NOTADB"))
        return sqlite_file.unusable(db.url, name) if known else None

    def remedy(self, db: Database) -> str:
        return sqlite_file.not_there(db.url)

    def is_conflict(self, error: BaseException) -> bool:
        return getattr(driver_error(error), "sqlite_errorname", "") == "SQLITE_BUSY_SNAPSHOT"

    def is_lock_timeout(self, error: BaseException) -> bool:
        return getattr(driver_error(error), "sqlite_errorname", "") in {"SQLITE_BUSY", "SQLITE_LOCKED"}

    def is_statement_fault(self, error: BaseException) -> bool:
        name = getattr(driver_error(error), "sqlite_errorname", "")
        return name in {"SQLITE_ERROR", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_RANGE"}
