"""MySQL's and MariaDB's half of enqueueing: keys are looked up on a connection of Rowlock's own (E4)."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from rowlock.errors import EnqueueBusy
from rowlock.store.dialects import mysql_server as server
from rowlock.store.dialects import mysql_sql as sql
from rowlock.store.dialects.base import Dialect, Inserted, Row

if TYPE_CHECKING:
    from rowlock.store.database import Database


class EnqueueHooks(Dialect):
    """The hooks that `store/enqueue.py` calls."""

    looks_outside: ClassVar[bool] = True
    returning: ClassVar[str] = ""
    """What makes an INSERT answer its rows' nonces and ids, where the server can."""

    def insert(self, conn: Connection, db: Database, rows: Sequence[Row]) -> list[Inserted]:
        now = "UTC_TIMESTAMP(6)" if db.clock.bound is None else "%(rl_now)s"
        statement, params = sql.insert(rows, now, self.to_db)
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

    def find_active(self, conn: Connection, jobs: Sequence[str], keys: Sequence[str]) -> list[tuple[str, int, str]]:
        found: list[tuple[str, int, str]] = []
        for start in range(0, len(keys), 500):
            active = [server.active_key(job, key) for job in jobs for key in keys[start : start + 500]]
            marks = ",".join(["%s"] * len(active))
            rows = conn.exec_driver_sql(
                f"SELECT `key`, id, state FROM rowlock_job WHERE active_key IN ({marks})", tuple(active)
            )
            found += [(row[0], row[1], row[2]) for row in rows]
        return found

    def look_outside(
        self, conn: Connection, db: Database, jobs: Sequence[str], keys: Sequence[str]
    ) -> list[tuple[str, int, str]]:
        deadline = time.monotonic() + db.wait_ms / 1000
        while True:
            found = self.find_active(conn, jobs, keys)
            missing = sorted(set(keys) - {key for key, _, _ in found})
            if not missing or not self._enqueued_elsewhere(conn, [server.active_key(jobs[0], key) for key in missing]):
                return found
            if time.monotonic() >= deadline:
                raise EnqueueBusy(
                    f"job {jobs[0]!r}: another transaction has enqueued the same key and did not end within "
                    f"{db.wait_ms} ms (E4, job.enqueue_wait_ms); nothing was written, try again, or end that "
                    f"transaction sooner"
                )
            # On the server, so that a coroutine's loop is not blocked.
            conn.exec_driver_sql(f"DO SLEEP({0.01 + random.random() * 0.03:.3f})")  # noqa: S311 - a pause

    @staticmethod
    def _enqueued_elsewhere(conn: Connection, active: Sequence[bytes]) -> bool:
        marks = ",".join(["%s"] * len(active))
        try:
            conn.exec_driver_sql(
                f"SELECT id FROM rowlock_job WHERE active_key IN ({marks}) LOCK IN SHARE MODE NOWAIT",
                tuple(active),
            )
        except DBAPIError as error:
            if server.code(error) in server.LOCK_TIMEOUTS:
                return True
            raise
        return False
