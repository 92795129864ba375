"""What a user may write with the test kit: pyright in strict mode has nothing to say (C92). Not run, only read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import assert_type

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock import App, Context, Record, State, StopReason
from rowlock.testing import EnqueuedRecord, TestApp, context, fault

app = App("sqlite:///news.db")


@dataclass(frozen=True)
class Publish:
    article: int


@app.job(max_attempts=5, timeout=30)
def publish(input: Publish, ctx: Context) -> None: ...


@app.job(max_attempts=5, timeout=30)
def cleanup() -> None: ...


def test_publishes(rowlock_test: TestApp) -> None:
    publish.enqueue(Publish(1), delay=timedelta(hours=2))
    assert_type(rowlock_test.drain(), int)
    rowlock_test.advance(hours=2)
    rowlock_test.advance(timedelta(hours=2))
    assert_type(rowlock_test.advance(60), datetime)
    rowlock_test.drain(limit=10)
    found = rowlock_test.assert_enqueued(publish, where={"article": 1}, count=1, key="k", queue="q", state="dead")
    assert_type(found, list[EnqueuedRecord[Publish]])
    assert_type(rowlock_test.enqueued(publish)[0].input, Publish)
    rowlock_test.refute_enqueued(cleanup, state=State.DEAD)
    for record, exception in rowlock_test.failures:
        assert_type(record, Record)
        assert_type(exception, BaseException)
    assert_type(rowlock_test.now, datetime)
    assert_type(rowlock_test.engine(), Engine)
    rowlock_test.records.list(state="dead")


@pytest.mark.rowlock("postgresql")
async def test_on_a_server(rowlock_test: TestApp) -> None:
    assert_type(await rowlock_test.adrain(), int)


async def test_cases(engine: Engine, aengine: AsyncEngine, connection: Connection) -> None:
    with TestApp(app, now=datetime(2027, 1, 1, tzinfo=UTC), leases="declared") as t:
        assert_type(t, TestApp)
    with TestApp(app, engine=engine), TestApp(app, connection=connection), TestApp(app, engine={"reports": engine}):
        pass
    async with TestApp(app, engine=aengine) as t:
        await t.adrain(10)


def test_the_handler_alone() -> None:
    publish.handler(Publish(1), context(attempt=2))
    publish.handler(Publish(1), context(publish, stop_reason=StopReason.DEADLINE))
    with fault("claimed", RuntimeError()):
        pass
