"""A live worker in the test's own loop, on the test's database, quick about everything.

live = Live(app_factory, database, workers=2)

@live.jobs.job(max_attempts=1, timeout=5)
async def job() -> None: ...

async with live.worker():
    record = await live.ended(job.enqueue())
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy as sa

from rowlock import App, Enqueued, Jobs
from rowlock.runtime.events import Event
from rowlock.store import schema
from rowlock.store.records import Record
from support.databases import Database
from support.waiting import BOUND, wait_until_async

ENDED = frozenset({"succeeded", "dead", "blocked", "cancelled"})
EVENTS = ("enqueued", "claimed", "settled", "lost", "blocked", "rescued", "outage")


class Live:
    """`job` are settings of that section; `runtime` others; `url` sends it through a proxy."""

    def __init__(
        self, app_factory: Callable[..., App], database: Database, *, runtime: dict[str, Any] | None = None,
        url: str | None = None, **job: Any,
    ) -> None:  # fmt: skip
        self.database = database
        self.jobs = Jobs()
        self.app = app_factory(
            self.jobs,
            settings={
                "database": {"default": {"url": url or database.url}},
                "runtime": {"shutdown_ms": 5_000, **(runtime or {})},
                "job": {"poll_ms": 10, "retry_base_ms": 1, "retry_max_ms": 1, **job},
            },
        )
        self.events: list[Event] = []
        for name in EVENTS:
            self.app.on(name)(self.events.append)

    @property
    def store(self) -> Any:
        return self.app.databases["default"]

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[None]:
        try:
            async with self.app.worker(**options):
                yield
        finally:
            await self.app.aclose()

    def told(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def rows(self) -> list[Any]:
        with self.store.engine().connect() as connection:
            return list(connection.execute(sa.select(schema.job).order_by(schema.job.c.id)))

    def row(self, which: Enqueued | int) -> Any:
        id_ = which if isinstance(which, int) else which.id
        return next(row for row in self.rows() if row.id == id_)

    def change(self, which: Enqueued | int, **columns: Any) -> None:
        id_ = which if isinstance(which, int) else which.id
        with self.store.engine().connect() as connection:
            connection.execute(schema.job.update().where(schema.job.c.id == id_).values(**columns))

    async def until(self, which: Enqueued | int, fact: Callable[[Record], object], timeout: float = BOUND) -> Record:
        """The record, once `fact` holds of it."""
        id_ = which if isinstance(which, int) else which.id
        seen: list[Record] = []

        async def look() -> bool:
            seen.append(await self.app.records.aget(id_))
            return bool(fact(seen[-1]))

        await wait_until_async(look, timeout, lambda: f"record {id_}: {seen[-1] if seen else 'never seen'}")
        return seen[-1]

    async def ended(self, which: Enqueued | int, timeout: float = BOUND) -> Record:
        """The record, once it has ended in whichever way."""
        return await self.until(which, lambda record: record.state in ENDED, timeout)
