"""`"pooler": "transaction"`: Rowlock through a pooler that gives each transaction another session."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, Context, EnqueueBusy, Jobs
from rowlock.errors import SettingsError
from support.databases import Database
from support.pooler import SESSIONS, found, pooled
from support.urls import sync_url
from support.waiting import wait_until_async

POSTGRESQL = pytest.mark.databases("postgresql", reason="C25: transaction poolers are PostgreSQL's")


@dataclass(frozen=True)
class Number:
    n: int


@pytest.fixture
def url(database: Database) -> Iterator[str]:
    """The test's database, through PgBouncer in transaction mode."""
    if found() is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "C25 NOT TESTED: no pgbouncer on the PATH; apt-get install pgbouncer"
        )
    with pooled(database) as through:
        yield through


@pytest.fixture
def pooled_app(url: str) -> Iterator[Callable[..., App]]:
    made: list[App] = []

    def make(jobs: Jobs, **job: Any) -> App:
        settings = {
            "database": {"default": {"url": url, "pooler": "transaction"}},
            "job": {"poll_ms": 10, "retry_base_ms": 1, "retry_max_ms": 1, "workers": 20, **job},
        }
        made.append(App(settings=settings, include=[jobs]))
        made[-1].migrate()
        return made[-1]

    yield make
    for app in made:
        app.close()


async def all_ended(engine: sa.Engine) -> dict[str, int]:
    """Past the pooler: a look through it from here would wait for sessions that this very loop has to give back."""

    def states() -> dict[str, int]:
        with engine.connect() as conn:
            return dict(conn.exec_driver_sql("SELECT state, count(*) FROM rowlock_job GROUP BY state").all())

    await wait_until_async(lambda: not states().keys() & {"pending", "running"}, 30, lambda: f"records: {states()}")
    return states()


@POSTGRESQL
async def test_jobs_run_through_a_transaction_pooler(pooled_app: Callable[..., App], engine: sa.Engine) -> None:
    # contract: C1, L4, R1, L8
    # case: C25
    jobs, ran = Jobs(), list[int]()

    @jobs.job(max_attempts=2, timeout=30, name="async")
    async def one(input: Number) -> None:
        ran.append(input.n)

    @jobs.job(max_attempts=2, timeout=30, name="sync")
    def other(input: Number, ctx: Context) -> None:
        if input.n % 5 == 0 and ctx.attempt == 1:
            raise ValueError
        ran.append(input.n)

    @jobs.job(max_attempts=2, timeout=30, name="both", transactional=True)
    def both(input: Number, ctx: Context) -> None:
        ctx.connection.execute(sa.text("INSERT INTO effect VALUES (:n)"), {"n": input.n})

    @jobs.job(max_attempts=2, timeout=30, name="abroad", transactional=True)
    async def abroad(input: Number, ctx: Context) -> None:
        zone = await ctx.aconnection.scalar(sa.text("SHOW timezone"))
        assert zone == "UTC"
        await ctx.aconnection.execute(sa.text("INSERT INTO effect VALUES (:n)"), {"n": input.n})

    app = pooled_app(jobs, workers=3)  # transactions of handlers have a session each
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE effect (n integer)")
    for n in range(12):  # more often than a driver runs a statement before it prepares it
        one.enqueue(Number(n))
        await other.aenqueue(Number(n), key=f"k{n}")
        assert not other.enqueue(Number(n), key=f"k{n}").created
        both.enqueue(Number(n))
        abroad.enqueue(Number(n))
    one.enqueue_many([Number(n) for n in range(300)])
    other.enqueue_many([(Number(n), {"key": f"m{n}"}) for n in range(300)])
    async with app.worker():
        assert await all_ended(engine) == {"succeeded": 648}
        assert app.health()["status"] == "ok"
        assert app.health()["counters"]["lost"] == 0
    assert sorted(ran) == sorted([*range(12), *range(12), *range(300), *range(300)])
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT count(*), count(DISTINCT n) FROM effect").one() == (24, 12)
    await app.aclose()


@POSTGRESQL
async def test_leases_are_kept_through_a_transaction_pooler(pooled_app: Callable[..., App], engine: sa.Engine) -> None:
    # contract: L4
    # case: C25
    jobs = Jobs()

    enough = asyncio.Event()

    @jobs.job(max_attempts=1, timeout=30)
    async def long() -> None:
        await enough.wait()

    app = pooled_app(jobs, lease_ms=1_000)
    record = long.enqueue_many([None] * 10)[-1]
    leases = set[Any]()

    def renewed() -> bool:
        with engine.connect() as conn:
            leases.add(conn.exec_driver_sql("SELECT lease FROM rowlock_job WHERE id = %s", (record.id,)).scalar_one())
        return len(leases - {None}) > 5

    async with app.worker():
        await wait_until_async(renewed, 30, lambda: f"leases: {leases}")
        enough.set()
        assert await all_ended(engine) == {"succeeded": 10}
        assert app.health()["counters"]["lost"] == 0
    await app.aclose()


@POSTGRESQL
async def test_nothing_of_rowlock_stays_in_the_sessions_of_a_pooler(
    pooled_app: Callable[..., App], url: str, engine: sa.Engine
) -> None:
    # contract: C7
    # case: C25
    jobs = Jobs()

    @jobs.job(max_attempts=1, timeout=30)
    async def works(input: Number) -> None: ...

    app = pooled_app(jobs)
    works.enqueue_many([Number(n) for n in range(50)])
    async with app.worker():
        assert await all_ended(engine) == {"succeeded": 50}
    app.records.counts()
    await app.aclose()
    through = sa.create_engine(
        sync_url(url), isolation_level="AUTOCOMMIT", connect_args={"prepare_threshold": None}, poolclass=sa.StaticPool
    )
    sessions: dict[int, Any] = {}
    with through.connect() as conn:
        for _ in range(10 * SESSIONS):
            row = conn.exec_driver_sql(
                "SELECT pg_backend_pid(), (SELECT count(*) FROM pg_prepared_statements),"
                " (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name IN ('enable_seqscan',"
                " 'enable_bitmapscan', 'jit', 'plan_cache_mode', 'lock_timeout', 'default_transaction_isolation'))"
            ).one()
            sessions[row[0]] = row[1:]
    through.dispose()
    assert len(sessions) > 1, "the pooler gave one session to all"
    assert set(sessions.values()) == {(0, 0)}


@POSTGRESQL
async def test_an_enqueue_waits_for_another_of_its_key_no_longer_than_its_bound(
    pooled_app: Callable[..., App], engine: sa.Engine
) -> None:
    # contract: E4
    # case: C25
    jobs = Jobs()

    @jobs.job(max_attempts=1, timeout=30)
    async def works() -> None: ...

    app = pooled_app(jobs, enqueue_wait_ms=200)
    with engine.begin() as conn:
        works.enqueue(key="k", connection=conn)
        with pytest.raises(EnqueueBusy):
            works.enqueue(key="k")
        with pytest.raises(EnqueueBusy):
            await works.aenqueue(key="k")
    done = works.enqueue(key="k")
    assert not done.created
    assert app.records.get(done.id).state == "pending"
    await app.aclose()


@POSTGRESQL
async def test_an_engine_whose_driver_needs_a_session_is_refused(
    async_engine: Callable[..., Any], engine: sa.Engine
) -> None:
    # contract: J1, M1
    # case: C25
    settings = {"database": {"default": {"pooler": "transaction"}}}
    async with async_engine() as asyncpg:
        with pytest.raises(SettingsError, match=r"database\.default\.pooler .* 'asyncpg'.* an engine with psycopg"):
            App(asyncpg, settings=settings).migrate()
    app = App(engine, settings=settings)
    app.migrate()
    app.close()


@pytest.mark.databases("sqlite", "mariadb", reason="J1: what PostgreSQL takes is refused elsewhere")
def test_a_pooler_is_refused_where_there_is_none(database_url: str) -> None:
    # contract: J1, M1
    # case: C25
    app = App(settings={"database": {"default": {"url": database_url, "pooler": "transaction"}}})
    with pytest.raises(SettingsError, match=r"database\.default\.pooler .* leave it out"):
        app.migrate()
