"""Events with their fields, told in each place where they happen, and what is counted of them (H2, H3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock import App, Context, Dead, Drop, Event, Retry, Snooze
from rowlock.hooks import EVENTS
from rowlock.runtime import metrics
from rowlock.runtime.metrics import Meter, Tally
from rowlock.store import schema
from support.databases import Database
from support.live import Live
from support.races import Blocker
from support.story import mostly_slow
from support.waiting import wait_until_async, work_for


@pytest.fixture
def make(app_factory: Callable[..., App], database: Database) -> Callable[..., Live]:
    return lambda **job: Live(app_factory, database, **job)


@dataclass(frozen=True)
class Number:
    value: int


def enqueued(id: int, queue: str = "default") -> Event:
    return Event("enqueued", id, "job", queue, state="pending", database="default")


async def test_enqueued_is_told_by_every_door_of_it(
    make: Callable[..., Live], engine: sa.Engine, async_engine: Callable[..., Any]
) -> None:
    # contract: H2
    """Of what was written: a duplicate tells nothing. In a transaction before its end, whatever that will be."""
    live = make()

    @live.jobs.job(max_attempts=1, timeout=30, name="job")
    def job() -> None: ...

    def told() -> list[Event]:
        events, live.events[:] = list(live.events), []
        return events

    one = job.enqueue(key="k")
    assert told() == [enqueued(one.id)]
    assert not job.enqueue(key="k").created
    assert told() == []
    many = job.enqueue_many([(None, {"key": "k"}), (None, {"queue": "mail"}), None])
    assert told() == [enqueued(many[1].id, "mail"), enqueued(many[2].id)]
    other = await job.aenqueue(queue="mail")
    assert told() == [enqueued(other.id, "mail")]
    assert not (await job.aenqueue(key="k")).created
    others = await job.aenqueue_many([None, (None, {"key": "k"})])
    assert told() == [enqueued(others[0].id)]
    with engine.connect() as connection:
        joined = job.enqueue(connection=connection)
        assert told() == [enqueued(joined.id)]
        with live.app.bind(connection):
            assert [enqueued(each.id) for each in job.enqueue_many([None, None])] == told()
        connection.rollback()
    engine_: AsyncEngine
    async with async_engine() as engine_, engine_.connect() as connection:
        joined = await job.aenqueue(connection=connection)
        assert told() == [enqueued(joined.id)]
        await connection.rollback()
    counted = live.app.metrics()
    assert counted["rowlock_enqueued"].value(job="job", queue="default") == 7
    assert counted["rowlock_enqueued"].value(queue="mail") == 2
    assert counted["rowlock_duplicates"].value(job="job") == 4
    await live.app.aclose()


ENDS: dict[str, tuple[Any, str]] = {
    "ack": (None, "succeeded"),
    "drop": (Drop(), "succeeded"),
    "retry": (Retry(after=3_000), "pending"),
    "snooze": (Snooze(3_000), "pending"),
    "dead": (Dead("no"), "dead"),
    "failed": (ValueError(), "pending"),
}


async def test_each_end_of_an_attempt_is_told_once_with_what_became_of_its_record(make: Callable[..., Live]) -> None:
    # contract: H2
    live = make(retry_base_ms=3_600_000, retry_max_ms=3_600_000)

    @live.jobs.job(max_attempts=2, timeout=30, name="job")
    async def job(ctx: Context) -> Drop | Retry | Snooze | Dead | None:
        answer = ENDS[ctx.headers["end"]][0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @live.jobs.job(max_attempts=1, timeout=0.05, name="late")
    async def late() -> None:
        await asyncio.Event().wait()

    @live.jobs.job(max_attempts=1, timeout=30, name="last")
    def last() -> None:
        raise ValueError

    @live.jobs.job(max_attempts=1, timeout=30, name="corrupt")
    def corrupt(input: Number) -> None: ...

    made = {end: job.enqueue(headers={"end": end}).id for end in ENDS}
    made |= {"timed_out": late.enqueue().id, "last": last.enqueue().id, "blocked": corrupt.enqueue(Number(1)).id}
    live.change(made["blocked"], payload='{"value":"S3CR3T"}')
    async with live.worker():
        await wait_until_async(lambda: len(live.told("settled")) == len(made))
    wanted = {end: (made[end], "job", end, state) for end, (_, state) in ENDS.items()}
    wanted |= {
        "timed_out": (made["timed_out"], "late", "timed_out", "dead"),
        "last": (made["last"], "last", "failed", "dead"),
        "blocked": (made["blocked"], "corrupt", "blocked", "blocked"),
    }
    settled = {event.id: event for event in live.told("settled")}
    for id_, name, outcome, state in wanted.values():
        event = settled[id_]
        assert (event.job, event.queue, event.attempt, event.outcome) == (name, "default", 1, outcome)
        assert (event.state, event.database) == (state, "default")
        assert live.row(id_).state == state
        assert (event.seconds is None) is (outcome == "blocked")  # whose handler never started
    claimed = {event.id: event for event in live.told("claimed")}
    assert claimed.keys() == settled.keys()
    assert {(event.attempt, event.state, event.outcome) for event in claimed.values()} == {(1, "running", None)}
    assert all(0 <= event.seconds < 20 for event in claimed.values())
    [blocked] = live.told("blocked")
    assert (blocked.id, blocked.outcome, blocked.state) == (made["blocked"], "corrupt_payload", "blocked")
    assert "S3CR3T" not in repr(live.events)

    counted = live.app.metrics()
    by_outcome = Counter({sample.labels["outcome"]: 0 for sample in counted["rowlock_settled"].samples})
    for sample in counted["rowlock_settled"].samples:
        by_outcome[sample.labels["outcome"]] += int(sample.value)
    assert by_outcome == Counter(event.outcome for event in live.told("settled"))
    assert counted["rowlock_claimed"].value() == len(made)
    assert counted["rowlock_blocked"].value(job="corrupt", category="corrupt_payload") == 1
    assert counted["rowlock_handler_seconds"].value() == len(made) - 1
    assert counted["rowlock_handler_seconds"].value(job="late") == 1
    assert live.app.health()["counters"] == {"claimed": len(made), "lost": 0, "settled": by_outcome}


async def test_what_ends_without_its_handler_is_told_as_well(make: Callable[..., Live]) -> None:
    # contract: H2, L7, C5, S4
    """Dead workers' records, those without attempts left, and those out of bounds or that nobody knows."""
    live = make(unknown_ms=0)

    @live.jobs.job(max_attempts=3, timeout=30, name="job")
    def job() -> None: ...

    back, gone, worn, absurd, unknown = (each.id for each in job.enqueue_many([None] * 5))
    past = datetime.now(UTC) - timedelta(hours=1)
    held = {"state": "running", "token": "t" * 32, "lease": past, "claimed_at": past - timedelta(hours=1)}
    live.change(back, **held, attempt=1)
    live.change(gone, **held, attempt=3)
    live.change(worn, attempt=3)
    live.change(absurd, attempt=500, max_attempts=500)
    live.change(unknown, job="never heard of")
    async with live.worker():
        await wait_until_async(lambda: len(live.told("rescued")) == 2 and len(live.told("blocked")) == 2)
        await wait_until_async(lambda: live.row(worn).state == "dead" and live.row(back).state == "succeeded")

    def told(name: str) -> set[tuple[Any, ...]]:
        return {(event.id, event.attempt, event.outcome, event.state, event.database) for event in live.told(name)}

    assert told("rescued") == {(back, 1, None, "pending", "default"), (gone, 3, None, "dead", "default")}
    assert told("settled") == {
        (back, 2, "ack", "succeeded", "default"),
        (gone, 3, "exhausted", "dead", "default"),
        (worn, 3, "exhausted", "dead", "default"),
    }
    assert told("blocked") == {
        (absurd, 500, "invalid_policy", "blocked", "default"),
        (unknown, 0, "unknown_job", "blocked", "default"),
    }
    counted = live.app.metrics()
    assert counted["rowlock_rescued"].value(job="job") == 2
    assert counted["rowlock_settled"].value(outcome="exhausted") == 2
    assert counted["rowlock_blocked"].value() == 2


async def test_a_lost_hold_is_told_and_counted_once(make: Callable[..., Live]) -> None:
    # contract: H2, L3
    live, stop = make(lease_ms=600), asyncio.Event()

    @live.jobs.job(max_attempts=3, timeout=20, name="job")
    async def job(ctx: Context) -> None:
        if ctx.attempt == 1:
            await stop.wait()

    done = job.enqueue()
    async with live.worker():
        await wait_until_async(lambda: live.told("claimed"))
        live.change(done, state="pending", token=None, lease=None, attempt=1)
        await wait_until_async(lambda: live.told("lost"))
        await live.ended(done)
    [lost] = live.told("lost")
    assert (lost.id, lost.job, lost.queue, lost.attempt, lost.outcome, lost.state) == (
        done.id, "job", "default", 1, None, None,
    )  # fmt: skip
    assert lost.seconds > 0
    assert live.app.metrics()["rowlock_lost"].value(job="job", queue="default") == 1
    ends = [
        event for event in live.told("settled") if event.outcome != "returned"
    ]  # the earlier one may run a moment yet
    assert [(event.attempt, event.outcome) for event in ends] == [(2, "ack")]


def test_every_event_is_one_that_can_be_listened_to() -> None:
    # contract: H2
    assert EVENTS == ("enqueued", "claimed", "settled", "lost", "blocked", "rescued", "swept", "outage")


# --- how long records wait --------------------------------------------------------------------------------------------


def latency(app: App) -> Any:
    [sample] = app.metrics()["rowlock_queue_latency_seconds"].samples
    return sample


async def test_latency_is_from_due_to_claim_by_the_databases_clock(make: Callable[..., Live]) -> None:
    # contract: H2
    """As nobody looked before, nobody can say that it was not there."""
    live = make()

    @live.jobs.job(max_attempts=1, timeout=30, name="job")
    def job() -> None: ...

    late = job.enqueue()
    live.change(late, run_at=datetime.now(UTC) - timedelta(hours=2))
    async with live.worker():
        await live.ended(late)
    [claimed] = live.told("claimed")
    assert 7_200 <= claimed.seconds < 7_260
    sample = latency(live.app)
    assert (sample.value, sample.labels) == (1, {"queue": "default", "job": "job"})
    assert 7_200 <= sample.sum < 7_260
    assert sample.buckets[-2:] == ((3_600.0, 0), (float("inf"), 1))


async def test_latency_is_not_counted_from_before_the_record_could_be_seen(
    make: Callable[..., Live], database: Database, engine: sa.Engine
) -> None:
    # contract: H2; case: C74
    """Enqueued in a transaction that stays open: it is visible, and late, only from its commit on."""
    live = make()

    @live.jobs.job(max_attempts=1, timeout=30, name="job")
    def job() -> None: ...

    async with live.worker():
        first = job.enqueue()
        await live.ended(first)
        with Blocker(database) as caller:
            caller.begin()
            done = job.enqueue(connection=caller._connection)
            before = datetime.now(UTC) - timedelta(seconds=50)  # so long ago it began, which a test does not wait for
            caller._connection.execute(schema.job.update().where(schema.job.c.id == done.id).values(run_at=before))
            for _ in range(3):  # rounds of the claimer, of which the first may be a claim without a look
                beat = live.app.health()["loops"]["claim:default"]["beat"] or ""
                await wait_until_async(
                    lambda beat=beat: (live.app.health()["loops"]["claim:default"]["beat"] or "") > beat
                )
            caller.commit()
        await live.ended(done)
    [_, claimed] = live.told("claimed")
    assert claimed.seconds < 10


async def test_a_record_that_waits_for_a_slot_waits(make: Callable[..., Live]) -> None:
    # contract: H2
    live = make(workers=1)

    @live.jobs.job(max_attempts=1, timeout=30, name="job")
    async def job() -> None:
        await work_for(0.3)

    async with live.worker():
        await live.ended(job.enqueue())
        job.enqueue_many([None, None])
        await wait_until_async(lambda: len(live.told("settled")) == 3)
    assert live.told("claimed")[2].seconds >= 0.25


# --- what is read -----------------------------------------------------------------------------------------------------


async def test_metrics_are_typed_whole_and_outlive_a_worker(make: Callable[..., Live]) -> None:
    # contract: H2
    live, go = make(workers=3, queues={"mail": 2}), asyncio.Event()

    @live.jobs.job(max_attempts=1, timeout=30, name="job", queue="mail")
    async def job() -> None:
        await go.wait()

    job.enqueue_many([None] * 2)
    for _ in range(2):
        async with live.worker():
            await wait_until_async(lambda: live.app.metrics()["rowlock_running"].value(queue="mail") == 2)
            found = live.app.metrics()
            assert found["rowlock_slots"].value(queue="mail") == 2
            assert found["rowlock_settling"].value(database="default") == 0
            assert {each.labels["loop"] for each in found["rowlock_loop_failures"].samples} >= {"claim:mail", "keeper"}
            assert {each.value for each in found["rowlock_loop_failures"].samples} == {0}
            silent = {each.labels["loop"]: each.value for each in found["rowlock_loop_silent_seconds"].samples}
            assert 0 <= silent["claim:mail"] < 60
            go.set()
            await wait_until_async(lambda: live.app.metrics()["rowlock_running"].value() == 0)
        go.clear()
        job.enqueue_many([None] * 2)
    found = live.app.metrics()
    assert found["rowlock_claimed"].value(queue="mail") == found["rowlock_settled"].value(outcome="ack") == 4
    for name, metric in found.items():
        assert metric.name == name
        assert metric.kind in {"counter", "gauge", "histogram"}
        assert metric.help
        for sample in metric.samples:
            assert tuple(sample.labels) == metric.labels
            assert bool(sample.buckets) is (metric.kind == "histogram")
            if sample.buckets:
                assert sample.value == sample.buckets[-1].total
                assert list(sample.buckets) == sorted(sample.buckets)


def test_what_is_counted_is_bounded_by_jobs_and_queues() -> None:
    # contract: H3
    """Names that nobody can foresee, of another program's records or of queues that a caller makes up, are bounded."""
    tally, meter = Tally(), Meter()
    for n in range(metrics.MOST_SERIES + 500):
        tally.series("default", f"job {n}").claimed += 1
        meter.enqueued(f"queue {n}", "job", 1, 0)
    assert len(tally.every()) == metrics.MOST_SERIES + 1
    assert tally.series("default", "one more").claimed == 500
    enqueued = meter.read()["rowlock_enqueued"]
    assert len(enqueued.samples) == metrics.MOST_SERIES + 1
    assert enqueued.value() == metrics.MOST_SERIES + 500
    histogram = tally.series("default", "job 1").latency
    for n in range(10_000):
        histogram.observe(n - 10)
    assert len(histogram.counts) == len(metrics.BOUNDS_S) + 1
    for _ in range(50):  # workers that come and go leave one tally behind
        meter.end(meter.begin())
    assert len(meter._live) == 0


@mostly_slow("mariadb")
async def test_nothing_of_a_worker_grows_with_what_it_did(make: Callable[..., Live]) -> None:
    # contract: H3
    """Collections of every part of it, before and after a thousand records of each kind of end."""
    live = make(workers=20)
    live.app.hooks.events.clear()

    @live.jobs.job(max_attempts=2, timeout=30, name="job")
    async def job(input: Number) -> Retry | Drop | None:
        if input.value % 3 == 1:
            raise ValueError
        return Retry() if input.value % 3 == 2 else None

    async def run(number: int) -> None:
        before = live.app.metrics()["rowlock_settled"].value()
        job.enqueue_many([Number(n) for n in range(number)])
        await wait_until_async(lambda: live.app.metrics()["rowlock_settled"].value() - before >= number * 5 // 3)
        await wait_until_async(lambda: live.app.metrics()["rowlock_settling"].value() == 0)

    async with live.worker():
        await run(60)
        small = sizes_of(live)
        await run(1_200)
        large = sizes_of(live)
    assert large.keys() == small.keys()
    grown = {where: (small[where], size) for where, size in large.items() if size > small[where] + 40}
    assert not grown


def sizes_of(live: Live) -> dict[str, int]:
    """The sizes of all collections that the application, and its worker's parts, can reach by their attributes."""
    from rowlock.runtime import serve

    found: dict[str, int] = {}
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [
        ("app", live.app),
        *((f"w{n}", each) for n, each in enumerate(serve.workers(live.app))),
    ]
    while todo:
        where, one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "__len__") and not isinstance(one, str | bytes):
            found[where] = len(one)
        if isinstance(one, dict):
            todo += [
                (f"{where}[{key!r}]", value) for key, value in list(one.items())[:50] if isinstance(key, str | tuple)
            ]
        elif isinstance(one, list | tuple):
            todo += [(f"{where}[{n}]", value) for n, value in enumerate(one[:50])]
        elif type(one).__module__.startswith("rowlock."):
            names = [*getattr(one, "__dict__", {}), *getattr(type(one), "__slots__", ())]
            todo += [(f"{where}.{name}", getattr(one, name, None)) for name in names if isinstance(name, str)]
    return found
