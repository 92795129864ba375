"""MySQL's and MariaDB's half of enqueueing: keys are looked up on a connection of Rowlock's own (E4)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from rowlock.errors import EnqueueBusy, EnqueueValueError
from rowlock.store.dialects import mysql_server as server
from rowlock.store.dialects import mysql_sql as sql
from rowlock.store.dialects.base import Dialect, Inserted, Row
from rowlock.store.dialects.mysql_claim import run

if TYPE_CHECKING:
    from rowlock.store.database import Database


MOST_VALUES = 500
"""In one list: MariaDB makes a longer one a table to join with, and then may read, and lock, the whole table."""
MOST_PROBES = 50
"""Of the last record of a key, in one statement."""


class EnqueueHooks(Dialect):
    """The hooks that `store/enqueue.py` calls."""

    looks_outside: ClassVar[bool] = True
    returning: ClassVar[str] = ""
    """What makes an INSERT answer its rows' nonces and ids, where the server can."""

    for_share: ClassVar[str] = "FOR SHARE NOWAIT"
    """How this server asks for a shared lock that it can have at once."""

    def insert(self, conn: Connection, db: Database, rows: Sequence[Row]) -> list[Inserted]:
        statement, params = self._insert(conn, db, rows)
        count = len(rows)
        if sql.may_be_long(params, count) and sql.size_of(statement, params, count) > server.longest_statement(conn):
            for row in rows:  # all of them first: nothing is written if one can not be
                self._refuse_long(conn, db, row)
            if count > 1:
                half = count // 2
                return self.insert(conn, db, rows[:half]) + self.insert(conn, db, rows[half:])
        try:
            result = conn.exec_driver_sql(statement + self.returning, params | db.now_params())
        except DBAPIError as error:
            # A plain INSERT: IGNORE would hide other faults, ON DUPLICATE KEY would lock the record that it meets.
            if server.code(error) == server.DUPLICATE:
                return []
            raise
        if self.returning:
            return [Inserted(row[0], row[1]) for row in result]
        if len(rows) == 1:
            return [Inserted(rows[0].nonce, result.lastrowid)]
        made = conn.exec_driver_sql(
            "SELECT token, id FROM rowlock_job WHERE id >= %s AND token >= %s AND token <= %s ORDER BY id LIMIT %s",
            (result.lastrowid, min(row.nonce for row in rows), max(row.nonce for row in rows), len(rows)),
        )
        return [Inserted(row[0], row[1]) for row in made]

    def _insert(self, conn: Connection, db: Database, rows: Sequence[Row]) -> tuple[str, dict[str, Any]]:
        statement, params = sql.insert(rows, "UTC_TIMESTAMP(6)" if db.clock.bound is None else "%(rl_now)s", self.to_db)
        if not sql.is_ascii(params) and not server.speaks_utf8(conn):
            return sql.as_bytes(statement, params)
        return statement, params

    def _refuse_long(self, conn: Connection, db: Database, row: Row) -> None:
        size, longest = sql.size_of(*self._insert(conn, db, [row]), 1), server.longest_statement(conn)
        if size > longest:
            raise EnqueueValueError(
                f"job {row.job!r}: the record takes a statement of {size:,} bytes, and this server takes at most "
                f"{longest:,} (W3); nothing was written: raise the server's max_allowed_packet"
            )

    def find_active(self, conn: Connection, jobs: Sequence[str], keys: Sequence[str]) -> list[tuple[str, int, str]]:
        return self._active(conn, jobs, keys)

    def find_own(self, conn: Connection, jobs: Sequence[str], keys: Sequence[str]) -> list[tuple[str, int, str]]:
        if conn.get_isolation_level() != "SERIALIZABLE":
            return self._active(conn, jobs, keys)
        # There each read is a locking one, that would wait for others in the caller's session.
        own: list[tuple[str, int, str]] = []
        for key in keys:
            try:
                own += self._active(conn, jobs, [key], self.for_share)
            except DBAPIError as error:
                if server.code(error) not in server.LOCK_TIMEOUTS:
                    raise
        return own

    @staticmethod
    def _active(
        conn: Connection, jobs: Sequence[str], keys: Sequence[str], locking: str = ""
    ) -> list[tuple[str, int, str]]:
        found: list[tuple[str, int, str]] = []
        at_once = max(1, MOST_VALUES // len(jobs))
        for start in range(0, len(keys), at_once):
            active = [server.active_key(job, key) for job in jobs for key in keys[start : start + at_once]]
            marks = ",".join(["%s"] * len(active))
            rows = conn.exec_driver_sql(
                f"SELECT active_key, id, state FROM rowlock_job WHERE active_key IN ({marks}) {locking}",
                tuple(active),
            )
            # Not the text of the key: a session of an older character set answers question marks.
            found += [(server.key_of(row[0]), row[1], row[2]) for row in rows]
        return found

    def find_recent(
        self, conn: Connection, db: Database, jobs: Sequence[str], keys: Sequence[str], window_ms: int
    ) -> list[tuple[str, int, str]]:
        wanted = [server.active_key(job, key) for job in jobs for key in keys]
        found: list[tuple[str, int, str]] = []
        for start in range(0, len(wanted), MOST_PROBES):
            part = wanted[start : start + MOST_PROBES]
            params = {f"key{n}": value for n, value in enumerate(part)} | {"window_ms": window_ms}
            rows = run(conn, sql.find_recent(len(part), self.now(db)), params | db.now_params())
            found += [(server.key_of(row[0]), row[1], row[2]) for row in rows]
        return found

    def look_outside(
        self, conn: Connection, db: Database, jobs: Sequence[str], keys: Sequence[str]
    ) -> list[tuple[str, int, str]]:
        deadline = time.monotonic() + db.wait_ms / 1000
        while True:
            found = self.look_once(conn, jobs, keys)
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                raise EnqueueBusy(
                    f"job {jobs[0]!r}: another transaction has enqueued the same key and did not end within "
                    f"{db.wait_ms} ms (E4, job.enqueue_wait_ms); nothing was written, try again, or end that "
                    f"transaction sooner"
                )
            # On the server, so that a coroutine's loop is not blocked.
            conn.exec_driver_sql(f"DO SLEEP({0.01 + random.random() * 0.03:.3f})")  # noqa: S311 - a pause

    def look_once(
        self, conn: Connection, jobs: Sequence[str], keys: Sequence[str]
    ) -> list[tuple[str, int, str]] | None:
        found = self.find_active(conn, jobs, keys)
        missing = sorted(set(keys) - {key for key, _, _ in found})
        active = [server.active_key(jobs[0], key) for key in missing]
        for start in range(0, len(active), MOST_VALUES):
            if self._enqueued_elsewhere(conn, active[start : start + MOST_VALUES]):
                return None
        return found

    def _enqueued_elsewhere(self, conn: Connection, active: Sequence[bytes]) -> bool:
        marks = ",".join(["%s"] * len(active))
        try:
            conn.exec_driver_sql(
                f"SELECT id FROM rowlock_job WHERE active_key IN ({marks}) {self.for_share}", tuple(active)
            )
        except DBAPIError as error:
            if server.code(error) in server.LOCK_TIMEOUTS:
                return True
            raise
        return False

    @contextmanager
    def keys_in_turn(self, conn: Connection, db: Database, job: str, keys: Sequence[str]) -> Generator[None]:
        # Without it, of two that find a key free the second one's INSERT waits in the caller's session, and with that
        # session's bound, for the first one's transaction.
        names = [f"CONCAT('rowlock.key.{n}.', MD5(DATABASE()))" for n in server.turns_of(job, keys)]
        wait = -(-db.wait_ms // 1000)
        got = conn.exec_driver_sql("SELECT " + ", ".join(f"GET_LOCK({name}, {wait})" for name in names)).one()
        release = "DO " + ", ".join(f"RELEASE_LOCK({name})" for name in names)
        if not all(got):
            conn.exec_driver_sql(release)
            raise EnqueueBusy(
                f"job {job!r}: other enqueues of the same key did not end within {db.wait_ms} ms (E4, "
                f"job.enqueue_wait_ms); nothing was written, try again"
            )
        try:
            yield
        except asyncio.CancelledError:
            raise  # the connection is closed, and with it its locks are free
        except BaseException:
            if not conn.invalidated:
                conn.exec_driver_sql(release)
            raise
        conn.exec_driver_sql(release)

    def place(self, conn: Connection) -> object:
        return conn.exec_driver_sql("SELECT DATABASE()").scalar_one()
