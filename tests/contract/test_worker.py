"""A live worker on every database: slots, failures, idle cost, health, secrets (K, C3, C7, C8, H1, S6)."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from rowlock import App, Context, Dead, Jobs, LeaseLost, Retry, SafeError, Snooze, StopReason
from rowlock.errors import StartRefused
from rowlock.testing import fault
from support.databases import Database
from support.failures import CODES, database_error
from support.jobtable import failing
from support.live import Live
from support.races import Blocker
from support.waiting import Signals, wait_until, wait_until_async

SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="L4: SQLite has no row locks")
S = r"[`\"]?"
CLAIM = rf"SET {S}state{S} = 'running'"
SETTLE = rf"SET {S}state{S} = 'succeeded'"
RENEW = rf"SET {S}lease{S} ="
RESCUE = rf"{S}lease{S} <= .*ORDER BY {S}lease"
ANNOUNCE = r"INSERT INTO rowlock_program"


@pytest.fixture
def make(app_factory: Callable[..., App], database: Database) -> Callable[..., Live]:
    return lambda **job: Live(app_factory, database, **job)


@dataclass(frozen=True)
class Number:
    value: int


# --- K1, C3: slots ----------------------------------------------------------------------------------------------------


async def test_one_worker_runs_async_and_sync_handlers_of_many_queues_at_once(make: Callable[..., Live]) -> None:
    # contract: K1
    live, all_there = make(workers=3, queues={"mail": 2}), threading.Event()
    inside = Counter[str]()
    lock = threading.Lock()

    def enter(kind: str) -> None:
        with lock:
            inside[kind] += 1
            if inside == {"task": 2, "thread": 1, "mail task": 1, "mail thread": 1}:
                all_there.set()

    for queue in ("default", "mail"):
        prefix = "mail " if queue == "mail" else ""

        async def task(prefix: str = prefix) -> None:
            enter(f"{prefix}task")
            await wait_until_async(all_there.is_set)

        def thread(prefix: str = prefix) -> None:
            enter(f"{prefix}thread")
            assert all_there.wait(20)

        def without_default(function: Any, prefix: str) -> Any:
            if asyncio.iscoroutinefunction(function):

                async def bound() -> None:
                    await function(prefix)
            else:

                def bound() -> None:
                    function(prefix)

            return bound

        for kind, function, number in (("task", task, 1 if prefix else 2), ("thread", thread, 1)):
            job = live.jobs.job(max_attempts=1, timeout=30, name=f"{prefix}{kind}", queue=queue)(
                without_default(function, prefix)
            )
            job.enqueue_many([None] * number)
    async with live.worker():
        await wait_until_async(lambda: len(live.told("settled")) == 5)
    assert {row.state for row in live.rows()} == {"succeeded"}


async def test_only_as_much_is_claimed_as_there_are_free_slots(make: Callable[..., Live]) -> None:
    # contract: C3
    live, signals = make(workers=3), Signals()
    inside, most = set[int](), list[int]()

    @live.jobs.job(max_attempts=1, timeout=30, name="wait")
    async def wait(ctx: Context) -> None:
        inside.add(ctx.id)
        most.append(len(inside))
        await signals["go"].wait_async()
        inside.discard(ctx.id)

    @live.jobs.job(max_attempts=1, timeout=30, name="beside", queue="beside")
    async def beside() -> None:
        pass

    wait.enqueue_many([None] * 12)
    async with live.worker():
        await wait_until_async(lambda: len(most) == 3)
        for _ in range(3):  # some rounds later
            await live.ended(beside.enqueue())
        assert len(inside) == 3
        assert Counter(row.state for row in live.rows() if row.queue == "default") == {"running": 3, "pending": 9}
        signals["go"].set()
        await wait_until_async(lambda: len(live.told("settled")) == 15)
    assert max(most) <= 3
    assert {(row.state, row.attempt) for row in live.rows() if row.queue == "default"} == {("succeeded", 1)}


async def test_a_claim_whose_hand_over_fails_goes_back_at_once_and_unspent(
    make: Callable[..., Live], caplog: pytest.LogCaptureFixture
) -> None:
    # contract: C3
    live, seen = make(workers=4), list[int]()

    @live.jobs.job(max_attempts=1, timeout=30, name="once")
    async def once(ctx: Context) -> None:
        seen.append(ctx.attempt)

    once.enqueue_many([None] * 4)
    with fault("claimed", ValueError("S3CR3T")), caplog.at_level(logging.DEBUG):
        async with live.worker():
            await wait_until_async(lambda: len(live.told("settled")) == 8)
    assert Counter(event.outcome for event in live.told("settled")) == {"returned": 4, "ack": 4}
    assert seen == [1, 1, 1, 1]
    assert {(row.state, row.attempt, row.handed_back) for row in live.rows()} == {("succeeded", 1, 0)}
    assert "S3CR3T" not in caplog.text


async def test_two_workers_share_a_queue_without_running_anything_twice(
    make: Callable[..., Live], app_factory: Callable[..., App], caplog: pytest.LogCaptureFixture
) -> None:
    # contract: C4, K2
    live, runs = make(workers=16), Counter[int]()
    live_too = make(workers=5)

    async def count(input: Number) -> None:
        runs[input.value] += 1

    for each in (live, live_too):
        job = each.jobs.job(max_attempts=1, timeout=30, name="count")(count)
    job.enqueue_many([Number(n) for n in range(600)])
    with caplog.at_level(logging.INFO, "rowlock"):
        async with live.worker(), live_too.worker():
            await wait_until_async(lambda: len(live.told("settled")) + len(live_too.told("settled")) >= 600)
    assert runs == dict.fromkeys(range(600), 1)
    assert {(row.state, row.attempt) for row in live.rows()} == {("succeeded", 1)}
    assert not caplog.records
    for each in (live, live_too):
        assert not each.told("lost")
        assert len(each.told("claimed")) == len(each.told("settled"))


# --- K2: the database fails -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", CODES)
async def test_failing_statements_are_tried_again_and_an_outage_is_said_once(
    make: Callable[..., Live], what: str, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: K2; case: C33
    live, runs = make(workers=5, lease_ms=1_200), Counter[int]()
    failed: dict[str, list[str]] = {}

    @live.jobs.job(max_attempts=1, timeout=20, name="count")
    async def count(input: Number) -> None:
        runs[input.value] += 1
        if input.value == 0 and dialect != "sqlite":  # in work until its renewals failed; there a lease is long (L5)
            await wait_until_async(lambda: len(failed[RENEW]) == 2)

    count.enqueue_many([Number(n) for n in range(30)])
    with caplog.at_level(logging.INFO, "rowlock"), ExitStack() as failures:
        for statement in (CLAIM, SETTLE, RENEW, RESCUE, ANNOUNCE):
            failed[statement] = failures.enter_context(
                failing(sa.Engine, re.compile(statement, re.DOTALL).search, lambda: database_error(what), times=2)
            )
        async with live.worker():
            await wait_until_async(lambda: len(live.told("settled")) == 30)
            await wait_until_async(lambda: live.app.health()["status"] == "ok")
    assert runs == dict.fromkeys(range(30), 1)
    assert {(row.state, row.attempt) for row in live.rows()} == {("succeeded", 1)}
    assert not live.told("lost")
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    begun = [line for line in lines if " fails (" in line]
    over = [line for line in lines if "works again" in line]
    assert len(begun) == len(over)
    assert [event.outcome for event in live.told("outage")] == ["begun", "over"] * len(begun)
    if what in ("deadlock", "lock wait"):
        assert not lines  # passing: nothing to talk about
    else:
        assert 1 <= len(begun) <= 3  # the five loops share one outage, or one more if it was over in between
        assert len(lines) == 2 * len(begun)
    assert "S3CR3T" not in caplog.text


@contextmanager
def answers_lost(database: Database, times: int) -> Iterator[list[str]]:
    """The next settlements are written, and their answers never arrive."""
    lost: list[str] = []
    settled = threading.local()

    def after(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if re.search(SETTLE, statement):
            settled.here = True
        elif statement != "COMMIT":
            return
        committed = statement == "COMMIT" if database.dialect == "sqlite" else re.search(SETTLE, statement)
        if committed and getattr(settled, "here", False) and len(lost) < times:
            settled.here = False
            lost.append(statement)
            raise sa.exc.OperationalError("…", {}, ConnectionResetError("gone"), connection_invalidated=True)

    sa.event.listen(sa.Engine, "after_cursor_execute", after)
    try:
        yield lost
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", after)


async def test_a_settlement_whose_answer_was_lost_recognises_its_own_effect(
    make: Callable[..., Live], database: Database
) -> None:
    # contract: L1
    live, runs, all_there = make(workers=20), Counter[int](), asyncio.Event()

    @live.jobs.job(max_attempts=3, timeout=20, name="count")
    async def count(input: Number) -> None:
        runs[input.value] += 1
        if len(runs) == 20:  # nothing is claimed in a transaction whose answer is lost
            all_there.set()
        await all_there.wait()

    count.enqueue_many([Number(n) for n in range(20)])
    with answers_lost(database, 3) as lost:
        async with live.worker():
            await wait_until_async(lambda: len(live.told("settled")) == 20)
        assert lost
    assert runs == dict.fromkeys(range(20), 1)
    assert {(row.state, row.attempt) for row in live.rows()} == {("succeeded", 1)}
    assert Counter(event.outcome for event in live.told("settled")) == {"ack": 20}
    assert not live.told("lost")


# --- K3, C7: an idle worker -------------------------------------------------------------------------------------------


@contextmanager
def all_statements(database: Database) -> Iterator[list[str]]:
    sent: list[str] = []

    def note(connection: sa.Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if connection.engine.url.database == database.parsed.database:
            sent.append(statement.strip())

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


async def test_an_idle_poll_is_one_read_and_nothing_else(make: Callable[..., Live], database: Database) -> None:
    # contract: K3, C7
    live = make(poll_ms=15)

    @live.jobs.job(max_attempts=1, timeout=30, name="later")
    async def later() -> None:
        pass

    @live.jobs.job(max_attempts=1, timeout=30, name="other", queue="other")
    async def other() -> None:
        pass

    for priority in (1, 2, 3):
        later.enqueue_many([(None, {"delay": timedelta(days=1), "priority": priority})] * 50)
    async with live.worker():
        with all_statements(database) as sent:
            await wait_until_async(lambda: len(sent) > 20)
            sent.clear()
            begun = asyncio.get_running_loop().time()
            await wait_until_async(lambda: len(sent) >= 40)
            polls = (asyncio.get_running_loop().time() - begun) / 0.015
    kinds = Counter(sent)
    looks = sum(number for _, number in kinds.most_common(2))
    # Two queues, one read each a poll; of the rescuer and the announcer at most a round (every 5 s, every minute).
    assert looks >= len(sent) - 8
    assert len(sent) <= 2 * polls + 10
    assert not any(re.match(r"BEGIN|UPDATE|INSERT|DELETE", statement) for statement in sent)


@pytest.mark.databases("sqlite", reason="C7: servers have no lock of the whole database")
async def test_an_idle_worker_does_not_mind_who_holds_the_write_lock(
    make: Callable[..., Live], database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: C7
    live = make()

    @live.jobs.job(max_attempts=1, timeout=30, name="job")
    async def job() -> None:
        pass

    with caplog.at_level(logging.INFO, "rowlock"):
        async with live.worker():
            await live.ended(job.enqueue())
            with Blocker(database) as writer, all_statements(database) as sent:
                writer.begin()
                await wait_until_async(lambda: len(sent) > 30)
                assert not [statement for statement in sent if statement.startswith("BEGIN IMMEDIATE")][1:]
                assert live.app.health()["status"] == "ok"
                writer.rollback()
            assert (await live.ended(job.enqueue())).state == "succeeded"
    assert not caplog.records


# --- C8: connections --------------------------------------------------------------------------------------------------


async def test_a_pool_that_is_too_small_refuses_to_start_with_the_arithmetic(
    app_factory: Callable[..., App], database_url: str
) -> None:
    # contract: C8
    jobs = Jobs()

    @jobs.job(max_attempts=1, timeout=30, name="job")
    async def job() -> None:
        pass

    settings = {"database": {"default": {"url": database_url, "pool": 1}}}
    app = app_factory(jobs, settings=settings)
    with pytest.raises(StartRefused, match=r"pool.*1.*2 connections.*C8|C8.*pool|C8") as refusal:
        async with app.worker():
            raise AssertionError("it started")
    assert re.search(r"\b0\b.*\+ ?2\b.*= 2", str(refusal.value))


async def test_the_smallest_pool_is_enough(app_factory: Callable[..., App], database: Database) -> None:
    # contract: C8; case: C11
    """Claims, settlements, rescues and renewals of twenty slots, on two connections each of worker and keeper."""
    live, go = Live(app_factory, database), asyncio.Event()
    settings = {
        "database": {"default": {"url": database.url, "pool": 2}},
        "job": {"workers": 20, "poll_ms": 10, "lease_ms": 2_000},
    }
    small, done = Jobs(), list[int]()
    app = app_factory(small, settings=settings)

    @small.job(max_attempts=1, timeout=30, name="job")
    async def job(ctx: Context) -> None:
        await go.wait()
        done.append(ctx.id)

    job.enqueue_many([None] * 40)
    async with app.worker():
        await wait_until_async(lambda: [row.state for row in live.rows()].count("running") == 20)
        first = {row.id: row.lease for row in live.rows() if row.lease}
        if database.dialect != "sqlite":  # there a lease covers the timeout, and is renewed too seldom to be waited for
            await wait_until_async(lambda: all(row.lease > first[row.id] for row in live.rows() if row.id in first))
        go.set()
        await wait_until_async(lambda: len(done) == 40)
    await app.aclose()
    assert {(row.state, row.attempt) for row in live.rows()} == {("succeeded", 1)}


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_the_applications_traffic_can_not_starve_the_worker(
    app_factory: Callable[..., App], database: Database, kind: str
) -> None:
    # contract: C8; case: C11
    jobs, done = Jobs(), list[int]()

    @jobs.job(max_attempts=1, timeout=5, name="job")
    async def job(ctx: Context) -> None:
        done.append(ctx.id)

    if kind == "sync":
        engine: Any = sa.create_engine(database.sync_url, pool_size=1, max_overflow=0, pool_timeout=0.1)
        target = engine
    else:
        target = create_async_engine(database.async_url, pool_size=1, max_overflow=0, pool_timeout=0.1)
        engine = target.sync_engine
    app = app_factory(jobs, url=target)
    job.enqueue_many([None] * 5)
    try:
        if kind == "sync":
            with engine.connect(), pytest.raises(sa.exc.TimeoutError):
                engine.connect()
            with engine.connect():
                async with app.worker():
                    await wait_until_async(lambda: len(done) == 5)
        else:
            async with target.connect(), app.worker():
                await wait_until_async(lambda: len(done) == 5)
    finally:
        await app.aclose()
        await target.dispose() if kind == "async" else engine.dispose()


# --- L3, L4, L6 on a live worker --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_who_lost_its_hold_is_told_and_changes_nothing_any_more(make: Callable[..., Live], kind: str) -> None:
    # contract: L3
    live, signals = make(lease_ms=600), Signals()

    async def task(ctx: Context) -> None:
        signals["runs"].set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            signals["told"].set(ctx.stop_reason)
            raise

    def thread(ctx: Context) -> None:
        signals["runs"].set()
        try:
            while True:
                ctx.raise_if_lost()
                signals["never"]._event.wait(0.005)
        except LeaseLost:
            signals["told"].set(ctx.stop_reason)

    job: Any = live.jobs.job(max_attempts=3, timeout=60, name="job")(task if kind == "async" else thread)
    async with live.worker():
        done = job.enqueue()
        await signals["runs"].wait_async()
        live.change(done, token="another's", lease=live.store.clock.host_now() + timedelta(hours=1))
        stolen, row = datetime.now(), live.row(done)  # noqa: DTZ005 - a span
        assert await signals["told"].wait_async() is StopReason.LOST
        # Half the lease, 2 s at most (on SQLite the lease is longer); the rest is for a busy machine.
        assert datetime.now() - stolen < timedelta(seconds=3)  # noqa: DTZ005
        await wait_until_async(lambda: len(live.told("lost")) == 1)
    assert live.row(done) == row
    assert not live.told("settled")
    assert [(event.id, event.attempt) for event in live.told("lost")] == [(done.id, 1)]


async def test_leases_are_renewed_for_as_long_as_handlers_run(make: Callable[..., Live]) -> None:
    # contract: L4
    live, signals = make(lease_ms=400, workers=3), Signals()

    @live.jobs.job(max_attempts=1, timeout=60, name="long")
    async def long() -> None:
        await signals["go"].wait_async()

    async with live.worker():
        long.enqueue_many([None] * 3)
        await wait_until_async(lambda: [row.state for row in live.rows()] == ["running"] * 3)
        first = [row.lease for row in live.rows()]
        lease = max(timedelta(milliseconds=400), first[0] - live.rows()[0].claimed_at)
        if lease < timedelta(seconds=1):  # on SQLite it covers the timeout, and is renewed too seldom to be waited for
            await wait_until_async(
                lambda: all(row.lease > old + 2 * lease for row, old in zip(live.rows(), first, strict=True))
            )
        signals["go"].set()
        await wait_until_async(lambda: len(live.told("settled")) == 3)
    assert not live.told("lost")
    assert {(row.state, row.attempt) for row in live.rows()} == {("succeeded", 1)}


@SERVERS
async def test_an_operators_lock_delays_only_the_renewal_of_its_own_row(
    make: Callable[..., Live], database: Database
) -> None:
    # contract: L4
    live, signals = make(lease_ms=2_500, workers=4), Signals()

    @live.jobs.job(max_attempts=1, timeout=60, name="long")
    async def long() -> None:
        await signals["go"].wait_async()

    async with live.worker():
        long.enqueue_many([None] * 4)
        await wait_until_async(lambda: [row.state for row in live.rows()] == ["running"] * 4)
        with Blocker(database) as operator:
            held = await asyncio.to_thread(operator.lock_row, "rowlock_job", id=live.rows()[0].id)
            first = {row.id: row.lease for row in live.rows()}
            free = [id_ for id_ in first if id_ != held.id]
            await wait_until_async(lambda: all(live.row(id_).lease > first[id_] + timedelta(seconds=1) for id_ in free))
            await wait_until_async(lambda: [event.id for event in live.told("lost")] == [held.id])
            operator.rollback()
        signals["go"].set()
        await wait_until_async(lambda: len(live.told("settled")) == 3)
        assert {event.id for event in live.told("settled")} == set(free)
        # The lost one is moved on like any other.
        assert (await live.ended(held.id)).error_category == "attempts_exhausted"


@SERVERS
async def test_an_operators_lock_delays_only_the_settlement_of_its_own_row(
    make: Callable[..., Live], database: Database
) -> None:
    # contract: L6
    live, signals = make(workers=8), Signals()

    @live.jobs.job(max_attempts=1, timeout=60, name="job")
    async def job() -> None:
        await signals["go"].wait_async()

    async with live.worker():
        job.enqueue_many([None] * 8)
        await wait_until_async(lambda: [row.state for row in live.rows()] == ["running"] * 8)
        with Blocker(database) as operator:
            # More of them than are waited for singly.
            held = [
                (await asyncio.to_thread(operator.lock_row, "rowlock_job", id=row.id)).id for row in live.rows()[:4]
            ]
            signals["go"].set()
            await wait_until_async(lambda: len(live.told("settled")) == 4)
            extra = job.enqueue()
            assert (await live.ended(extra)).state == "succeeded"
            assert {row.state for row in live.rows() if row.id in held} == {"running"}
            operator.rollback()
        await wait_until_async(lambda: len(live.told("settled")) == 9)
    assert {(row.state, row.attempt) for row in live.rows()} == {("succeeded", 1)}
    assert not live.told("lost")


@SERVERS
async def test_a_worker_ends_though_an_operator_holds_a_row_that_it_would_settle(
    make: Callable[..., Live], database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: M6
    monkeypatch.setattr("rowlock.runtime.worker.FLUSH_S", 0.2)
    live, signals = make(lease_ms=600), Signals()

    @live.jobs.job(max_attempts=1, timeout=60, name="job")
    async def job() -> None:
        signals["runs"].set()
        await signals["go"].wait_async()

    with Blocker(database) as operator:
        async with live.worker():
            done = job.enqueue()
            await signals["runs"].wait_async()
            await asyncio.to_thread(operator.lock_row, "rowlock_job", id=done.id)
            lease = live.row(done).lease
            await wait_until_async(lambda: live.store.clock.host_now() > lease - timedelta(milliseconds=350))
            signals["go"].set()
        assert "1 settlements not written" in caplog.text
    assert live.row(done).state == "running"


# --- M6: at the end ---------------------------------------------------------------------------------------------------


async def test_what_does_not_end_in_time_is_handed_back_with_its_attempt(make: Callable[..., Live]) -> None:
    # contract: M6
    live, signals, seen = make(runtime={"shutdown_ms": 150}, workers=2), Signals(), list[Any]()

    @live.jobs.job(max_attempts=1, timeout=60, name="task")
    async def task(ctx: Context) -> None:
        signals["task"].set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append((ctx.stopping, ctx.stop_reason))

    @live.jobs.job(max_attempts=1, timeout=60, name="thread")
    def thread(ctx: Context) -> None:
        signals["thread"].set()
        while ctx.stop_reason is None:
            signals["never"]._event.wait(0.005)
        raise RuntimeError("stopped half way")

    ids = [task.enqueue().id, thread.enqueue().id]
    before = [live.row(id_).run_at for id_ in ids]
    async with live.worker():
        await signals["task"].wait_async()
        await signals["thread"].wait_async()
    assert seen == [(True, StopReason.SHUTDOWN)]
    for id_, run_at in zip(ids, before, strict=True):
        row = live.row(id_)
        assert (row.state, row.attempt, row.handed_back) == ("pending", 0, 1)
        assert (row.run_at, row.lease, row.error_category) == (run_at, None, None)


# --- S6: nothing secret -----------------------------------------------------------------------------------------------

SECRET = "S3CR3T"


@dataclass(frozen=True)
class Login:
    how: str
    token: str = SECRET


def _chained() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        error.add_note(SECRET)
        raise ValueError(SECRET) from error


def _grouped() -> None:
    raise ExceptionGroup(SECRET, [ValueError(SECRET), KeyError(SECRET)])


def act(how: str, input: Login) -> Any:
    """What a handler can do with a secret in its hands."""
    token = input.token  # a local, which no traceback may show
    match how:
        case "raise":
            raise ValueError(token)
        case "chain":
            return _chained()
        case "group":
            return _grouped()
        case "safe":
            raise SafeError("declined") from ValueError(token)
        case "exit":
            raise SystemExit(token)
        case "wrong":
            return token
        case "dead":
            return Dead("refused")
        case "snooze":
            return Snooze(1_000)
        case "retry":
            return Retry()
        case "class":
            raise type("Login", (Exception,), {})(token)
        case _:
            return None


WAYS = ("ok", "raise", "chain", "group", "safe", "exit", "wrong", "dead", "snooze", "retry", "class")


def secrets_in(records: list[logging.LogRecord]) -> list[str]:
    formatter = logging.Formatter("%(message)s")
    found = []
    for record in records:
        texts = [formatter.format(record), repr(record.args), str(record.exc_text), repr(record.__dict__)]
        if record.exc_info:
            texts.append(formatter.formatException(record.exc_info))
        if any(SECRET in text for text in texts):
            found.append(f"{record.name} {record.levelname}: {texts[0][:200]}")
    return found


async def test_nothing_secret_is_stored_or_logged_at_any_level(
    make: Callable[..., Live], database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: S6; case: C64
    live, live_errors = make(workers=4), list[BaseException]()
    caplog.set_level(logging.DEBUG)  # the root: of every library too
    caplog.set_level(logging.DEBUG, "sqlalchemy.engine")  # which the library keeps quiet unless it is asked

    @live.app.on_failure
    def track(exc: BaseException, ctx: Context) -> None:
        live_errors.append(exc)
        raise ValueError(SECRET)

    @live.app.after_attempt
    def hook(ctx: Context) -> None:
        raise KeyError(SECRET)

    @live.jobs.job(max_attempts=2, timeout=30, name="task")
    async def task(input: Login):
        return act(input.how, input)

    @live.jobs.job(max_attempts=2, timeout=30, name="thread")
    def thread(input: Login):
        return act(input.how, input)

    @live.jobs.job(max_attempts=1, timeout=0.05, overrun=0.05, name="late")
    async def late(input: Login) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError(input.token)

    done = [await job.aenqueue(Login(how), headers={"trace": "1"}) for job in (task, thread) for how in WAYS]
    done += task.enqueue_many([Login("raise"), Login("ok")])
    done.append(late.enqueue(Login("late")))
    corrupt = task.enqueue(Login("corrupt"))
    live.change(corrupt, payload=f'{{"how": 5, "token": "{SECRET}"}}')
    snoozed = {done[WAYS.index("snooze")].id, done[len(WAYS) + WAYS.index("snooze")].id}
    # A settlement that the driver refuses with the statement's values in its message.
    with failing(sa.Engine, re.compile(SETTLE).search, lambda: database_error("disk full"), times=2):
        async with live.worker():
            for record in [*done, corrupt]:
                if record.id not in snoozed:
                    await live.ended(record)
    await live.app.aclose()
    assert len(live_errors) > len(WAYS)
    assert any(SECRET in str(error) for error in live_errors)
    for row in live.rows():
        stored = {name: value for name, value in row._asdict().items() if name != "payload"}
        assert SECRET not in repr(stored)
    assert {row.error_summary for row in live.rows()} == {None, "declined", "refused"}
    assert secrets_in(caplog.records) == []
    assert SECRET not in repr([live.jobs.jobs, live.events, live.app, live.app.health()])
    errors = [record for record in caplog.records if record.name == "rowlock" and record.levelno >= logging.ERROR]
    assert any(
        "ValueError <- " in record.getMessage() and "test_worker.py:" in record.getMessage() for record in errors
    )


def test_an_enqueue_that_fails_shows_no_payload(make: Callable[..., Live], caplog: pytest.LogCaptureFixture) -> None:
    # contract: S6; case: C64
    live = make()
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "sqlalchemy.engine")

    @live.jobs.job(max_attempts=2, timeout=30, name="task")
    async def task(input: Login) -> None:
        pass

    with live.store.engine().connect() as connection:
        connection.exec_driver_sql("ALTER TABLE rowlock_job RENAME COLUMN payload TO gone")
    with pytest.raises(Exception) as failure:
        task.enqueue(Login("x"))
    seen: BaseException | None = failure.value
    while seen is not None:
        assert SECRET not in f"{seen} {seen!r}"
        seen = seen.__cause__ or seen.__context__
    assert secrets_in(caplog.records) == []


def test_a_worker_on_a_thread_drains_when_its_block_ends(make: Callable[..., Live]) -> None:
    # contract: K1
    live, done = make(), list[int]()

    @live.jobs.job(max_attempts=1, timeout=30, name="thread")
    def thread(ctx: Context) -> None:
        done.append(ctx.id)

    with live.app.worker_thread():
        thread.enqueue_many([None] * 5)
        wait_until(lambda: len(done) == 5)
    assert {row.state for row in live.rows()} == {"succeeded"}
