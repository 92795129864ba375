"""MySQL 8.0.1 and newer, and what MariaDB shares with it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import ColumnElement, literal, literal_column
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DBAPIError

from rowlock.errors import DatabaseUnavailable, MissingDriver, UnsupportedDatabase
from rowlock.model.table import QueueShape
from rowlock.store.dialects import mysql_server as server
from rowlock.store.dialects import mysql_sql as sql
from rowlock.store.dialects import scan
from rowlock.store.dialects.aging import Aging, MySQLAging
from rowlock.store.dialects.base import one_of
from rowlock.store.dialects.mysql_claim import ClaimHooks, run
from rowlock.store.dialects.mysql_enqueue import EnqueueHooks
from rowlock.store.dialects.values import Looking

if TYPE_CHECKING:
    from rowlock.store.database import Database
    from rowlock.store.migrations.step import Step


class MySQL(ClaimHooks, EnqueueHooks):
    """MySQL 8.0.1 and newer."""

    name: ClassVar[str] = "mysql"
    label: ClassVar[str] = "MySQL"
    renew_program: ClassVar[str] = "ON DUPLICATE KEY UPDATE announced_at = VALUES(announced_at)"
    name_hash: ClassVar[str | None] = "name_hash"
    due_hint: ClassVar[str] = "FORCE INDEX (rowlock_job_due)"
    looking: ClassVar[Looking] = Looking(
        by_state={
            "pending": due_hint,
            "running": "FORCE INDEX (rowlock_job_expired)",
            **dict.fromkeys(("succeeded", "dead", "blocked", "cancelled"), "FORCE INDEX (rowlock_job_ended)"),
        },
        by_id=sql.ID_HINT,
        partial=False,
    )
    max_batch: ClassVar[int] = 200
    aging: ClassVar[Aging] = MySQLAging()
    transactional_ddl: ClassVar[bool] = False

    # --- connecting ---------------------------------------------------------------------------------------

    def urls(self, url: URL) -> tuple[URL, URL]:
        missing = [name for name in ("pymysql", "asyncmy") if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingDriver(
                f"{self.label} needs a driver that is not installed: {', '.join(missing)}; pip install 'rowlock[mysql]'"
            )
        return url.set(drivername=f"{self.name}+pymysql"), url.set(drivername=f"{self.name}+asyncmy")

    def connect_args(self, *, is_async: bool, wait_ms: int) -> dict[str, Any]:
        return {"connect_timeout": 10, "charset": "utf8mb4"}

    def on_connect(self, cursor: Any, *, wait_ms: int) -> None:
        self._refuse_charset(cursor)
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(
            "SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', "
            f"innodb_lock_wait_timeout = {max(1, -(-wait_ms // 1000))}"
        )

    def on_handler_connect(self, cursor: Any, *, wait_ms: int) -> None:
        self._refuse_charset(cursor)
        cursor.execute("SET SESSION time_zone = '+00:00'")

    @staticmethod
    def _refuse_charset(cursor: Any) -> None:
        cursor.execute("SELECT @@character_set_client")
        if (charset := cursor.fetchone()[0]) != "utf8mb4":
            raise UnsupportedDatabase(
                f"the connections of this engine speak {charset}, which replaces the characters of payloads that it "
                f"does not have; make the engine with ?charset=utf8mb4"
            )

    def check_server(self, conn: Connection) -> None:
        version = conn.exec_driver_sql("SELECT version()").scalar_one()
        server.check_version(str(version))

    # --- time ---------------------------------------------------------------------------------------------

    def now(self, db: Database) -> str:
        return "SYSDATE(6)" if db.clock.bound is None else ":rl_now"

    def scan_now(self, db: Database) -> str:
        return "NOW(6)" if db.clock.bound is None else ":rl_now"

    def callers_now(self, db: Database) -> str:
        return "UTC_TIMESTAMP(6)" if db.clock.bound is None else ":rl_now"

    def plus_ms(self, instant: str, milliseconds: str) -> str:
        return f"{instant} + INTERVAL ({milliseconds}) * 1000 MICROSECOND"

    def to_db(self, moment: datetime) -> Any:
        return moment.astimezone(UTC).replace(tzinfo=None)

    def from_db(self, value: Any) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)

    # --- records ------------------------------------------------------------------------------------------

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
        wanted = {record["id"]: record["token"] for record in records}
        with db.transaction(conn):
            rows = run(conn, sql.hold_running(shape, self.in_ids(list(wanted)), wait=wait), {})
            held = {row[0] for row in rows if wanted[row[0]] == row[1]}
            if not held:
                return held
            # The clock is read by a statement that begins after the locks are held (L2).
            ids = self.in_ids(sorted(held))
            params: dict[str, Any] = dict(db.now_params())
            own = [record for record in records if record["id"] in held]
            statement = sql.fenced_update(shape, assignments, own, ids, self.now(db), params)
            if run(conn, statement, params).rowcount == len(held):
                return held
            expired = run(conn, sql.expired_among(shape, ids, self.now(db)), db.now_params())
            return held - {row[0] for row in expired}

    def quoted(self, name: str) -> str:
        return sql.quoted(name)

    def exhausted(self, shape: QueueShape) -> str:
        return "exhausted = 1"

    def as_text(self, value: str) -> ColumnElement[str]:
        # In hexadecimal digits: no session's character set can lose one, and none ends the literal.
        return literal(value) if value.isascii() else literal_column(f"_utf8mb4 X'{value.encode().hex()}'")

    def is_still(self, shape: QueueShape, *states: str) -> str:
        return f"CONCAT({sql.quoted(shape.column('state'))}, '') {one_of(states)}"

    def in_ids(self, ids: Sequence[int]) -> str:
        return f"IN ({','.join(map(str, ids))})"

    def skip_locked(self) -> str:
        return "FOR UPDATE SKIP LOCKED"

    def note_cancels(self, conn: Connection, db: Database, ids: Sequence[int], by: str | None) -> None:
        # To set what is there already changes nothing; IGNORE would hide other faults.
        rows = ", ".join(f"({id_}, {self.callers_now(db)}, :by)" for id_ in ids)
        statement = f"INSERT INTO rowlock_cancel (id, asked_at, asked_by) VALUES {rows} ON DUPLICATE KEY UPDATE id = id"
        conn.exec_driver_sql(*sql.as_bytes(*sql.bound(statement, {"by": by} | db.now_params())))

    # --- programs -----------------------------------------------------------------------------------------

    def pending_pairs(self, conn: Connection) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []
        for queue, pair in scan.skip(conn, ("queue", "pair"), hint=self.due_hint):
            row = conn.exec_driver_sql(
                f"SELECT job, fingerprint FROM rowlock_job {self.due_hint} WHERE state = 'pending' AND queue = %s"
                " AND pair = %s LIMIT 1",
                (queue, pair),
            ).first()
            if row is not None:
                found.append((queue, row[0], row[1]))
        return found

    def in_pair(self, queue: str, job: str, fingerprint: str) -> tuple[str, dict[str, Any]]:
        # The generated column is what the index has.
        condition = (
            "state = 'pending' AND queue = :queue AND job = :job AND fingerprint = :fingerprint AND pair = :pair"
        )
        pair = server.pair_of(job, fingerprint)
        return condition, {"queue": queue, "job": job, "fingerprint": fingerprint, "pair": pair}

    def insert_new(self, conn: Connection, statement: str, params: Mapping[str, Any]) -> bool:
        try:
            # As bytes: the session may be one of a caller's, of another character set.
            conn.exec_driver_sql(*sql.as_bytes(*sql.bound(statement, params)))
        except DBAPIError as error:  # IGNORE would hide other faults; of a duplicate the server takes back itself
            if server.code(error) == server.DUPLICATE:
                return False
            raise
        return True

    # --- schema -------------------------------------------------------------------------------------------

    def ddl(self, conn: Connection, step: Step) -> Mapping[str, str]:
        # Binary and without padding, so that 'a' and 'a ' are two names. MySQL has such a collation since 8.0.17.
        version = str(conn.exec_driver_sql("SELECT version()").scalar_one())
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
        collation = "utf8mb4_0900_bin" if numbers >= (8, 0, 17) else "utf8mb4_bin"
        if "mariadb" in version.lower():
            collation = "utf8mb4_nopad_bin"
        kind = f"CHARACTER SET utf8mb4 COLLATE {collation}"
        # Older ones read a CHECK and forget it, so that it would be missing at each start.
        checks = "mariadb" in version.lower() or numbers >= (8, 0, 16)
        return {
            name: statement.replace("{text}", kind)
            for name, statement in step.mysql.items()
            if checks or " ADD CONSTRAINT " not in statement
        }

    def has_table(self, conn: Connection, table: str) -> bool:
        row = conn.exec_driver_sql(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s", (table,)
        ).first()
        return row is not None

    def lock_migration(self, conn: Connection) -> None:
        got = conn.exec_driver_sql("SELECT GET_LOCK(CONCAT('rowlock.migrate.', MD5(DATABASE())), 60)").scalar_one()
        if got != 1:
            raise DatabaseUnavailable(
                "another process migrates this database and did not end within 60 s (S1); look what it waits for"
            )

    def unlock_migration(self, conn: Connection) -> None:
        conn.exec_driver_sql("DO RELEASE_LOCK(CONCAT('rowlock.migrate.', MD5(DATABASE())))")

    # --- errors -------------------------------------------------------------------------------------------

    def is_missing_table(self, error: BaseException) -> bool:
        return server.code(error) == server.MISSING_TABLE

    def is_conflict(self, error: BaseException) -> bool:
        return server.code(error) in server.CONFLICTS

    def is_lock_timeout(self, error: BaseException) -> bool:
        return server.code(error) in server.LOCK_TIMEOUTS

    def is_statement_fault(self, error: BaseException) -> bool:
        code = server.code(error)
        return code is not None and code not in server.OUTAGES and code not in server.CLIENT_FAULTS
