"""Cancelling in the test kit: a step of the clock stands for the polls that fall into it (X1, O4)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, Context, StopReason
from rowlock.testing import TestApp

Opened = Callable[[App], AbstractContextManager[TestApp]]


@pytest.fixture(params=["file", "engine", "connection"])
def opened(request: pytest.FixtureRequest, engine: sa.Engine, database_url: str) -> Opened:
    """A case on a file of its own, with the test's engine, or in one connection of it."""

    @contextlib.contextmanager
    def in_connection(app: App) -> Iterator[TestApp]:
        own = App(database_url)
        own.migrate()  # where DDL commits, the tables have to be there
        own.close()
        with engine.connect() as connection, TestApp(app, connection=connection) as t:
            yield t

    ways: dict[str, Any] = {"file": TestApp, "engine": lambda app: TestApp(app, engine=engine)}
    return ways.get(request.param, in_connection)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("gives_in", [False, True])
def test_a_record_that_is_cancelled_while_it_runs(opened: Opened, is_async: bool, gives_in: bool) -> None:
    # contract: X1, O4
    app = App("sqlite:////nowhere/at/all.db")
    seen: list[tuple[bool, StopReason | None]] = []

    async def task(ctx: Context) -> None:
        t.records.cancel(ctx.id)
        t.advance(seconds=1)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            seen.append((ctx.stopping, ctx.stop_reason))
            if gives_in:
                raise

    def thread(ctx: Context) -> None:
        t.records.cancel(ctx.id)
        assert not ctx.stopping
        t.advance(seconds=1)
        seen.append((ctx.stopping, ctx.stop_reason))
        if gives_in:
            raise ValueError

    job: Any = app.job(max_attempts=3, timeout=60, name="job")(task if is_async else thread)
    with opened(app) as t:
        done = job.enqueue(key="k")
        assert t.drain() == 1
        record = t.records.get(done.id)
        assert t.failures == []
        other = job.enqueue(key="k", delay=60)
        assert t.records.cancel(other.id) == "cancelled"
        t.advance(minutes=2)
        assert t.drain() == 0
    assert seen == [(True, StopReason.CANCELLED)]
    assert record.state == ("cancelled" if gives_in else "succeeded")


def test_a_handler_that_cancels_its_own_record_and_fails_is_not_tried_again(opened: Opened) -> None:
    # contract: X1, O4
    app = App("sqlite:////nowhere/at/all.db")

    @app.job(max_attempts=3, timeout=60, name="job")
    def job(ctx: Context) -> None:
        t.records.cancel(ctx.id)
        raise ValueError

    with opened(app) as t:
        done = job.enqueue()
        assert t.drain() == 1
        assert t.records.get(done.id).state == "cancelled"
        t.advance(hours=1)
        assert t.drain() == 0
