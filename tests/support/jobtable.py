"""The job table of a test's database, and the store's functions on it, with a clock that the test moves.

with JobTable(database) as jobs:
    first, second = jobs.add(2, priority=5)
    [record] = jobs.claim(1)
    jobs.clock.move(seconds=61)
    assert jobs.row(first).state == "running"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import sqlalchemy as sa

from rowlock.model.table import JOBS
from rowlock.store import schema
from rowlock.store.claim import Branch, Claimed, Source, bury, claim, look, rescue
from rowlock.store.clock import SYSTEM, Clock
from rowlock.store.database import Database as Store
from rowlock.store.migrations import migrate
from rowlock.store.renew import Hold
from support.databases import Database

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
FINGERPRINT = "f" * 64
LEASE_MS = 60_000


class MovedClock:
    """Stands still; only the test moves it."""

    def __init__(self) -> None:
        self.time = NOON

    def now(self) -> datetime:
        return self.time

    def move(self, **parts: float) -> datetime:
        self.time += timedelta(**parts)
        return self.time


class JobTable:
    """`real_time` takes the database's own clock in place of one that the test moves."""

    def __init__(self, database: Database, *, real_time: bool = False, wait_ms: int = 10_000) -> None:
        self.clock = MovedClock()
        self.database = database
        self._clock = SYSTEM if real_time else Clock(self.clock.now)
        self.wait_ms = wait_ms
        self._others: list[Store] = []
        self.db = self.another()
        self.db.run(migrate)

    def another(self) -> Store:
        """One more process, as far as the database can tell: connections of its own."""
        made = Store("default", self.database.url, clock=self._clock, wait_ms=self.wait_ms)
        self._others.append(made)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for db in self._others:
            db.close()

    # --- rows ----------------------------------------------------------------------------------------------------

    def add(self, number: int = 1, **columns: Any) -> list[int]:
        """Insert rows as another program or an operator might; answers their ids, in order."""
        now = self.now()
        row = {
            "job": "a", "fingerprint": FINGERPRINT, "payload": "null", "queue": "default", "priority": 100,
            "state": "pending", "run_at": now - timedelta(minutes=1), "attempt": 0, "max_attempts": 5,
            "timeout_ms": 1_000, "created_at": now - timedelta(minutes=1), "handed_back": 0,
        }  # fmt: skip
        return self.add_rows([{**row, **columns}] * number)

    def add_rows(self, rows: Sequence[dict[str, Any]]) -> list[int]:
        with self.db.engine().connect() as connection, self.db.transaction(connection):
            last = connection.execute(sa.select(sa.func.coalesce(sa.func.max(schema.job.c.id), 0))).scalar_one()
            for start in range(0, len(rows), 500):
                connection.execute(schema.job.insert(), list(rows[start : start + 500]))
            ids = connection.execute(sa.select(schema.job.c.id).where(schema.job.c.id > last).order_by(schema.job.c.id))
            return list(ids.scalars())

    def dead(self, number: int = 1, **columns: Any) -> list[int]:
        """Rows of what was given up just now."""
        return self.add(number, **{"state": "dead", "error_category": "failed", "finished_at": self.now(), **columns})

    def running(self, number: int = 1, *, lease: timedelta = timedelta(minutes=1), **columns: Any) -> list[Hold]:
        """Rows that somebody holds; `lease` from now."""
        now = self.now()
        ids = self.add(number, state="running", attempt=1, lease=now + lease, claimed_at=now, **columns)
        if "token" in columns:
            return [Hold(id_, columns["token"], LEASE_MS) for id_ in ids]
        for id_ in ids:
            self.change(id_, token=f"token-{id_}")
        return [Hold(id_, f"token-{id_}", LEASE_MS) for id_ in ids]

    def change(self, id_: int, **columns: Any) -> None:
        with self.db.engine().connect() as connection:
            connection.execute(schema.job.update().where(schema.job.c.id == id_).values(**columns))

    def row(self, id_: int) -> sa.Row[Any]:
        return self.rows([id_])[0]

    def rows(self, ids: Iterable[int] | None = None) -> list[sa.Row[Any]]:
        query = sa.select(schema.job).order_by(schema.job.c.id)
        if ids is not None:
            query = query.where(schema.job.c.id.in_(list(ids)))
        with self.db.engine().connect() as connection:
            return list(connection.execute(query))

    def states(self, ids: Iterable[int] | None = None) -> list[str]:
        """Of these records in this order, or of all."""
        found = {row.id: row.state for row in self.rows()}
        return [found[id_] for id_ in (found if ids is None else ids)]

    def cancels(self) -> dict[int, str | None]:
        """The records in work that somebody asked to cancel, and who."""
        with self.db.engine().connect() as connection:
            c = schema.cancel.c
            return {row.id: row.asked_by for row in connection.execute(sa.select(c.id, c.asked_by).order_by(c.id))}

    def now(self) -> datetime:
        """The clock of the statements: the test's, or the database's."""
        if self._clock.bound is not None:
            return self.clock.now()

        def ask(conn: sa.Connection, db: Store) -> datetime | None:
            value = conn.execute(sa.text(f"SELECT {db.dialect.now(db)}"), db.now_params()).scalar_one()
            return db.dialect.from_db(value)

        answer = self.db.run(ask)
        assert answer is not None
        return answer

    # --- the store's functions -----------------------------------------------------------------------------------

    def source(
        self, queue: str = "default", *, jobs: Sequence[str] = ("a",), lease_ms: int = LEASE_MS,
        fingerprints: Sequence[str] = (FINGERPRINT,),
    ) -> Source:  # fmt: skip
        branches = tuple(Branch(job, fingerprint, lease_ms) for job in jobs for fingerprint in fingerprints)
        return Source(JOBS, queue, branches, "tester:1")

    def claim(self, limit: int = 1, *, db: Store | None = None, **source: Any) -> list[Claimed]:
        return (db or self.db).run(claim, self.source(**source), limit)

    def look(self, **source: Any) -> Any:
        return self.db.run(look, self.source(**source))

    def rescue(self, limit: int = 200) -> list[Any]:
        return self.db.run(rescue, JOBS, limit)

    def bury(self, limit: int = 200) -> list[Any]:
        return self.db.run(bury, JOBS, limit)


@contextmanager
def statements(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements that this engine sends within the block, transaction control by `exec_driver_sql` included."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement.strip())

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


@contextmanager
def failing(
    engines: Any, wanted: Callable[[str], bool], make: Callable[[], BaseException], times: int
) -> Iterator[list[str]]:
    """The driver raises in place of the next `times` statements that are `wanted`; answers those that failed.

    `engines` is an Engine, or the class for every engine of this process.
    """
    failed: list[str] = []

    def fail(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if len(failed) < times and wanted(statement):
            failed.append(statement)
            raise make()

    sa.event.listen(engines, "before_cursor_execute", fail)
    try:
        yield failed
    finally:
        sa.event.remove(engines, "before_cursor_execute", fail)
