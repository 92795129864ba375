"""PostgreSQL: one statement for each claim, renewal and settlement, in autocommit."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import text
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import OperationalError

from rowlock.errors import MissingDriver, UnsupportedDatabase
from rowlock.model.table import QueueShape
from rowlock.store.dialects import postgresql_sql as sql
from rowlock.store.dialects import scan
from rowlock.store.dialects.base import (
    Claimed,
    Dialect,
    Inserted,
    Level,
    Row,
    Source,
    driver_error,
    fetch,
    lease_of,
)

if TYPE_CHECKING:
    from rowlock.store.database import Database
    from rowlock.store.migrations.step import Step

UNDEFINED_TABLE = "42P01"
FAILED_TRANSACTION = "25P02"
CONFLICTS = frozenset({"40001", "40P01"})
LOCK_TIMEOUTS = frozenset({"55P03"})
OUTAGE_CLASSES = ("08", "53", "57", "58")
READ_ONLY = "25006"
REFUSALS = re.compile(
    r"""authentication failed | no\ password\ supplied | no\ pg_hba\.conf\ entry | is\ not\ permitted\ to\ log\ in
    | (role|database)\ .*\ does\ not\ exist | permission\ denied\ for\ database""",
    re.VERBOSE,
)
FURTHEST = 8_192
"""So many candidates at least are read before a claim gives up on due rows that others hold."""


@lru_cache(maxsize=512)
def _statement(sql_text: str) -> Any:
    return text(sql_text)


def _settings(wait_ms: int, *, local: bool) -> str:
    # force_generic_plan: each statement has one shape and one index; planning it anew at each call costs
    # more than running it. No bitmaps: they read all that an index has, where its first rows are asked for. No
    # sequential scans: of a table that grew since its statistics were taken they compare each row with each id.
    values = {
        "default_transaction_isolation": "read committed", "timezone": "UTC", "plan_cache_mode": "force_generic_plan",
        "enable_bitmapscan": "off", "enable_seqscan": "off", "jit": "off", "lock_timeout": f"{wait_ms}ms",
    }  # fmt: skip
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', {local})" for name, value in values.items())


_OF_BOTH = frozenset({"host", "port"})
"""Query parameters of a URL that both drivers take."""


class PostgreSQL(Dialect):
    """PostgreSQL 13 and newer."""

    name: ClassVar[str] = "postgresql"
    label: ClassVar[str] = "PostgreSQL"
    max_batch: ClassVar[int] = 500
    transactional_ddl: ClassVar[bool] = True

    # --- connecting ---------------------------------------------------------------------------------------

    def urls(self, url: URL) -> tuple[URL, URL]:
        psycopg = importlib.util.find_spec("psycopg") is not None
        # Other words of a URL (sslmode, options, application_name…) are libpq's, which asyncpg's `connect` refuses.
        asyncpg = importlib.util.find_spec("asyncpg") is not None and not set(url.query) - _OF_BOTH
        if not psycopg:
            raise MissingDriver(
                "PostgreSQL needs a driver that is not installed: psycopg; pip install 'rowlock[postgres]'"
            )
        return (
            url.set(drivername="postgresql+psycopg"),
            url.set(drivername="postgresql+asyncpg" if asyncpg else "postgresql+psycopg"),
        )

    def connect_args(self, *, is_async: bool, wait_ms: int) -> dict[str, Any]:
        if is_async:
            return {"timeout": 10}
        return {"connect_timeout": 10}

    def on_connect(self, cursor: Any, *, wait_ms: int) -> None:
        cursor.execute(_settings(wait_ms, local=False))

    def on_handler_connect(self, cursor: Any, *, wait_ms: int) -> None:
        cursor.execute("SELECT set_config('timezone', 'UTC', false)")

    has_transaction_poolers: ClassVar[bool] = True
    handler_session: ClassVar[str | None] = "SELECT set_config('timezone', 'UTC', true)"

    def begin_pooled(self, wait_ms: int) -> str:
        return f"BEGIN ISOLATION LEVEL READ COMMITTED; {_settings(wait_ms, local=True)}"

    def through_pooler(self, dbapi_connection: Any) -> None:
        # A statement that is prepared lives in one session; the next transaction may be in another (C25).
        getattr(dbapi_connection, "driver_connection", dbapi_connection).prepare_threshold = None

    def check_server(self, conn: Connection) -> None:
        version = int(conn.exec_driver_sql("SHOW server_version_num").scalar_one())
        if version < 130_000:
            raise UnsupportedDatabase(
                f"this PostgreSQL is {version // 10_000}; Rowlock needs 13 or newer: upgrade the server"
            )

    # --- time ---------------------------------------------------------------------------------------------

    def now(self, db: Database) -> str:
        return "clock_timestamp()" if db.clock.bound is None else "CAST(:rl_now AS timestamptz)"

    def scan_now(self, db: Database) -> str:
        return "(SELECT clock_timestamp())" if db.clock.bound is None else "CAST(:rl_now AS timestamptz)"

    def plus_ms(self, instant: str, milliseconds: str) -> str:
        return f"{instant} + {milliseconds} * interval '1 millisecond'"

    # --- records ------------------------------------------------------------------------------------------

    def levels(self, conn: Connection, db: Database, source: Source) -> list[Level]:
        statement = _statement(sql.levels(source.table, self.scan_now(db)))
        rows = fetch(conn, statement, self._branches(source) | db.now_params())
        return [Level(row[0] - 1, row[1], float(row[2])) for row in rows]

    def claim(self, conn: Connection, db: Database, source: Source, limit: int) -> list[Claimed]:
        # What others hold at this moment is passed over, so a little more is read than is asked for; and far more when
        # that was not enough, so that held rows in front hide nothing (C2).
        wanted = limit + min(limit, 32)
        # Rounded up: each number written out is a statement of its own to prepare.
        over = 1 << (wanted - 1).bit_length() if wanted <= 32 else -(-wanted // 32) * 32
        claimed = self._claim(conn, db, source, limit, over)
        while not claimed and over < FURTHEST and any(level.wait <= 0 for level in self.levels(conn, db, source)):
            over *= 8
            claimed = self._claim(conn, db, source, limit, over)
        return claimed

    def _claim(self, conn: Connection, db: Database, source: Source, limit: int, over: int) -> list[Claimed]:
        statement = _statement(sql.claim(source.table, over, self.scan_now(db), self.now(db)))
        leases = lease_of(source)
        rows = fetch(
            conn,
            statement,
            self._branches(source)
            | {
                "leases": [branch.lease_ms for branch in source.branches],
                "limit": limit,
                "claimed_by": source.claimed_by,
            }
            | db.now_params(),
        )
        claimed = [Claimed._make((*row[:13], leases[row[1]], *row[13:])) for row in rows]
        claimed.sort(key=_claim_order)  # RETURNING has no order
        return claimed

    @staticmethod
    def _branches(source: Source) -> dict[str, Any]:
        return {
            "queue": source.queue,
            "jobs": [branch.job for branch in source.branches],
            "fingerprints": [branch.fingerprint for branch in source.branches],
        }

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
        params: dict[str, Any] = {
            "ids": [record["id"] for record in records],
            "tokens": [record["token"] for record in records],
        } | db.now_params()
        varying: list[str] = []
        for name in sql.parameters_of(assignments):
            values = [record[name] for record in records]
            same = all(value == values[0] for value in values)
            params[name] = values[0] if same else values
            if not same:
                varying.append(name)
        statement = _statement(sql.fenced_update(shape, assignments, self.now(db), tuple(varying), wait))
        return {row[0] for row in fetch(conn, statement, params)}

    def quoted(self, name: str) -> str:
        return sql.quoted(name)

    def is_still(self, shape: QueueShape, *states: str) -> str:
        return sql.is_still(shape, *states)

    def in_ids(self, ids: Sequence[int]) -> str:
        return f"= ANY(CAST('{{{','.join(map(str, ids))}}}' AS bigint[]))"

    def skip_locked(self) -> str:
        return "FOR UPDATE SKIP LOCKED"

    # --- enqueueing ---------------------------------------------------------------------------------------

    def insert(self, conn: Connection, db: Database, rows: Sequence[Row]) -> list[Inserted]:
        # One instant for all columns and rows, of this statement: not of a caller's transaction, which may be old.
        now = "statement_timestamp()" if db.clock.bound is None else self.now(db)
        if len(rows) == 1:
            made = fetch(conn, _statement(sql.insert_one(now, rows[0].exact)), rows[0]._asdict() | db.now_params())
        else:
            arrays = sql.arrays_of(rows)
            params = rows[0]._asdict() | arrays | db.now_params()
            made = fetch(conn, _statement(sql.insert_many(now, tuple(arrays), rows[0].exact)), params)
        return [Inserted(row[0], row[1]) for row in made]

    def find_active(self, conn: Connection, jobs: Sequence[str], keys: Sequence[str]) -> list[tuple[str, int, str]]:
        rows = fetch(conn, _statement(sql.FIND_ACTIVE), {"jobs": list(jobs), "keys": list(keys)})
        return [(row[0], row[1], row[2]) for row in rows]

    def find_recent(
        self, conn: Connection, db: Database, jobs: Sequence[str], keys: Sequence[str], window_ms: int
    ) -> list[tuple[str, int, str]]:
        params = {"jobs": list(jobs), "keys": list(keys), "window_ms": window_ms} | db.now_params()
        rows = fetch(conn, _statement(sql.find_recent(self.now(db))), params)
        return [(row[0], row[1], row[2]) for row in rows]

    def is_blind(self, conn: Connection) -> bool:
        return conn.get_isolation_level() in {"REPEATABLE READ", "SERIALIZABLE"}

    def reserve_keys(self, conn: Connection, db: Database, job: str, keys: Sequence[str]) -> None:
        if not db.in_transaction(conn):  # Rowlock's own: its waits end at a bound, and nothing of a caller's with them
            sql.reserve_keys(conn, job, keys, db.wait_ms)

    def place(self, conn: Connection) -> object:
        # The table's own number: a search path can be changed.
        return conn.exec_driver_sql("SELECT CAST(CAST(to_regclass('rowlock_meta') AS oid) AS bigint)").scalar_one()

    # --- programs -----------------------------------------------------------------------------------------

    def pending_pairs(self, conn: Connection) -> list[tuple[str, str, str]]:
        return [(row[0], row[1], row[2]) for row in scan.skip(conn, ("queue", "job", "fingerprint"))]

    def in_pair(self, queue: str, job: str, fingerprint: str) -> tuple[str, dict[str, Any]]:
        condition = "state = 'pending' AND queue = :queue AND job = :job AND fingerprint = :fingerprint"
        return condition, {"queue": queue, "job": job, "fingerprint": fingerprint}

    # --- schema -------------------------------------------------------------------------------------------

    def ddl(self, conn: Connection, step: Step) -> Mapping[str, str]:
        return step.postgresql

    def has_table(self, conn: Connection, table: str) -> bool:
        # to_regclass answers NULL where a SELECT would fail, and with it the caller's transaction.
        return conn.execute(_statement("SELECT to_regclass(:name) IS NOT NULL"), {"name": table}).scalar_one()

    def lock_migration(self, conn: Connection) -> None:
        conn.exec_driver_sql("SET LOCAL lock_timeout = '60s'")
        conn.exec_driver_sql("SELECT pg_advisory_xact_lock(7822103461193)")

    # --- errors -------------------------------------------------------------------------------------------

    def is_missing_table(self, error: BaseException) -> bool:
        return _state(error) == UNDEFINED_TABLE

    def refusal(self, db: Database, error: BaseException) -> str | None:
        # psycopg has no SQLSTATE of a connection that fails, only the server's words, in the server's language.
        original = driver_error(error)
        if _state(error) is None and isinstance(error, OperationalError) and REFUSALS.search(str(original)):
            return "the user, the password and the database's name in its URL"
        return None

    def is_conflict(self, error: BaseException) -> bool:
        return _state(error) in CONFLICTS

    def is_failed_transaction(self, error: BaseException) -> bool:
        return _state(error) == FAILED_TRANSACTION

    def is_lock_timeout(self, error: BaseException) -> bool:
        return _state(error) in LOCK_TIMEOUTS

    def is_statement_fault(self, error: BaseException) -> bool:
        state = _state(error)
        return state is not None and state != READ_ONLY and not state.startswith(OUTAGE_CLASSES)


def _state(error: BaseException) -> str | None:
    original = driver_error(error)
    return getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)


def _claim_order(record: Claimed) -> tuple[int, Any, int]:
    return record.priority, record.run_at, record.id
