"""What a handler says, and what becomes of its record, on every database (R1, R2, R6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import Ack, App, Backoff, Context, Dead, Drop, Jobs, Retry, SafeError, Snooze
from rowlock.runtime.events import Event
from rowlock.store.records import Record
from rowlock.testing import TestApp
from support.jobtable import NOON

OUTCOME_ERROR = "rowlock.model.answer.OutcomeError"
OUTCOME_TYPE_ERROR = "rowlock.model.answer.OutcomeTypeError"


@dataclass(frozen=True)
class Said:
    name: str


class LaterOn(Retry):
    """A program's own word for it."""

    def __init__(self) -> None:
        super().__init__(after=30)


class Half(Retry):
    def __init__(self) -> None:
        """Forgets its base."""


class Boom(Exception):
    pass


def no_number() -> Any:
    return 5


def an_absurd_delay() -> Any:
    return Snooze(timedelta(days=4_000))


def a_negative_delay() -> Any:
    return Retry(after=-1)


def a_naive_instant() -> Any:
    return Retry(at=datetime(2030, 1, 1))  # noqa: DTZ001 - the point


def boom() -> Any:
    raise Boom("S3CR3T")


def safe() -> Any:
    raise SafeError("card\0 declined")


@dataclass(frozen=True)
class Expected:
    state: str
    attempt: int
    wait: float | None = None
    """Seconds from now; None for a record that has ended."""
    category: str | None = None
    error_class: str | None = None
    summary: str | None = None


def failed(error_class: str, summary: str | None = None) -> Expected:
    return Expected("pending", 1, 1, "failed", error_class, summary)


BOOM = f"{Boom.__module__}.Boom"
FIRST: dict[str, tuple[Callable[[], Any], Expected]] = {
    "nothing": (lambda: None, Expected("succeeded", 1)),
    "ack": (Ack, Expected("succeeded", 1)),
    "drop": (Drop, Expected("succeeded", 1)),
    "retry after": (lambda: Retry(after=60), Expected("pending", 1, 60)),
    "retry after a timedelta": (lambda: Retry(timedelta(minutes=2)), Expected("pending", 1, 120)),
    "retry at": (lambda: Retry(at=NOON + timedelta(days=1)), Expected("pending", 1, 86_400)),
    "own retry": (LaterOn, Expected("pending", 1, 30)),
    "snooze": (lambda: Snooze(45), Expected("pending", 0, 45)),
    "dead": (lambda: Dead("card refused"), Expected("dead", 1, None, "rejected", None, "card refused")),
    "dead without a word": (lambda: Dead(""), Expected("dead", 1, None, "rejected")),
    "a number": (no_number, failed(OUTCOME_TYPE_ERROR)),
    "an absurd delay": (an_absurd_delay, failed(OUTCOME_ERROR)),
    "a negative delay": (a_negative_delay, failed(OUTCOME_ERROR)),
    "a naive instant": (a_naive_instant, failed(OUTCOME_ERROR)),
    "an exception": (boom, failed(BOOM)),
    "a safe exception": (safe, failed("rowlock.errors.SafeError", "card\\x00 declined")),
}
LAST: dict[str, Expected] = {
    "nothing": Expected("succeeded", 1),
    "ack": Expected("succeeded", 1),
    "drop": Expected("succeeded", 1),
    "retry after": Expected("dead", 1, None, "attempts_exhausted"),
    "retry after a timedelta": Expected("dead", 1, None, "attempts_exhausted"),
    "retry at": Expected("dead", 1, None, "attempts_exhausted"),
    "own retry": Expected("dead", 1, None, "attempts_exhausted"),
    "snooze": Expected("pending", 0, 45),
    "dead": FIRST["dead"][1],
    "dead without a word": FIRST["dead without a word"][1],
    "a number": Expected("dead", 1, None, "failed", OUTCOME_TYPE_ERROR),
    "an absurd delay": Expected("dead", 1, None, "failed", OUTCOME_ERROR),
    "a negative delay": Expected("dead", 1, None, "failed", OUTCOME_ERROR),
    "a naive instant": Expected("dead", 1, None, "failed", OUTCOME_ERROR),
    "an exception": Expected("dead", 1, None, "failed", BOOM),
    "a safe exception": Expected("dead", 1, None, "failed", "rowlock.errors.SafeError", "card\\x00 declined"),
}


class Program:
    """An application with one job for each way in which a handler can answer."""

    def __init__(self, max_attempts: int) -> None:
        self.jobs = Jobs()
        self.app = App("sqlite:////nowhere/at/all.db", include=[self.jobs])
        self.settled: list[Event] = []
        self.app.on("settled")(self.settled.append)

        def declare(handler: Any, name: str) -> Any:
            return self.jobs.job(max_attempts=max_attempts, timeout=30, name=name)(handler)

        def returns(input: Said):
            return FIRST[input.name][0]()

        def raises(input: Said) -> None:
            answer = FIRST[input.name][0]()
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def areturns(input: Said):
            return returns(input)

        async def araises(input: Said) -> None:
            return raises(input)

        self.ways = [
            declare(handler, name)
            for handler, name in (
                (returns, "returns"), (raises, "raises"), (areturns, "returns async"), (araises, "raises async")
            )
        ]  # fmt: skip


def judge(record: Record, expected: Expected, what: str) -> None:
    seen = Expected(
        record.state.value, record.attempt,
        None if record.finished_at else (record.run_at - NOON).total_seconds(),
        record.error_category, record.error_class, record.error_summary,
    )  # fmt: skip
    assert seen == expected, what
    assert record.finished_at in (None, NOON)
    assert record.lease is None


@pytest.mark.parametrize("which", ["an early attempt", "the last attempt"])
def test_every_outcome_returned_or_raised_by_either_kind_of_handler(engine: sa.Engine, which: str) -> None:
    # contract: R6
    program = Program(3 if which == "an early attempt" else 1)
    with TestApp(program.app, engine=engine, now=NOON) as t:
        enqueued = {
            (job.name, name): job.enqueue(Said(name)).id for job in program.ways for name in FIRST
        }  # fmt: skip
        assert t.drain() == len(enqueued)
        for (job, name), id_ in enqueued.items():
            expected = FIRST[name][1] if which == "an early attempt" else LAST[name]
            judge(t.records.get(id_), expected, f"{job}: {name}")
    told = {(event.job, event.id): event.outcome for event in program.settled}
    words = {"ack": "ack", "nothing": "ack", "drop": "drop", "snooze": "snooze", "dead": "dead", "own retry": "retry"}
    for (job, name), id_ in enqueued.items():
        word = words.get(name, {"retry": "retry", "dead": "dead"}.get(name.split()[0], "failed"))
        assert told[job, id_] == word, name
    assert all(event.queue == "default" and event.attempt == 1 for event in program.settled)
    assert all(event.seconds is not None and event.seconds >= 0 for event in program.settled)


def test_retry_without_a_time_comes_back_at_once_until_its_attempts_are_used_up(engine: sa.Engine) -> None:
    # contract: R6
    jobs, attempts = Jobs(), list[int]()
    app = App("sqlite:////nowhere/at/all.db", include=[jobs])

    @jobs.job(max_attempts=4, timeout=30, name="again")
    async def again(ctx: Context) -> Retry:
        attempts.append(ctx.attempt)
        raise Retry

    with TestApp(app, engine=engine, now=NOON) as t:
        id_ = again.enqueue().id
        assert t.drain() == 4
        judge(t.records.get(id_), Expected("dead", 4, None, "attempts_exhausted"), "retry")
    assert attempts == [1, 2, 3, 4]


def test_an_outcome_that_its_subclass_left_unfinished_is_a_failed_attempt_or_what_it_says(engine: sa.Engine) -> None:
    # contract: R6
    jobs, settled = Jobs(), list[Event]()
    app = App("sqlite:////nowhere/at/all.db", include=[jobs])
    app.on("settled")(settled.append)

    class Silent(Snooze):
        def __init__(self) -> None:
            """Forgets its base, and so its delay."""

    @jobs.job(max_attempts=1, timeout=30, name="half")
    def half() -> Retry:
        return Half()

    @jobs.job(max_attempts=1, timeout=30, name="silent")
    def silent() -> Snooze:
        return Silent()

    with TestApp(app, engine=engine, now=NOON) as t:
        ids = [half.enqueue().id, silent.enqueue().id]
        assert t.drain() == 2
        assert [t.records.get(id_).error_category for id_ in ids] == ["attempts_exhausted", "failed"]
    assert Counter(event.outcome for event in settled) == {"retry": 1, "failed": 1}


# --- R1: backing off --------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(engine: sa.Engine) -> Iterator[Any]:
    """`failing(**options)`: an open case with one record of a job that always fails, and its id."""
    cases: list[TestApp] = []

    def make(**options: Any) -> tuple[TestApp, int, list[datetime]]:
        jobs, runs = Jobs(), list[datetime]()
        app = App("sqlite:////nowhere/at/all.db", include=[jobs])

        @jobs.job(timeout=30, name="failing", **options)
        def fail() -> None:
            runs.append(case.now)
            raise Boom

        case = TestApp(app, engine=engine, now=NOON).__enter__()
        cases.append(case)
        return case, fail.enqueue().id, runs

    yield make
    for case in cases:
        case.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({}, [1, 2, 4, 8, 16]),
        ({"backoff": Backoff(base=2, cap=10)}, [2, 4, 8, 10, 10]),
        ({"backoff": Backoff(base=0.001, cap=0.001)}, [0.001] * 5),
        ({"backoff": Backoff(base=86_400, cap=86_400)}, [86_400] * 5),
    ],
)
def test_a_failure_waits_twice_as_long_each_time_up_to_the_cap(
    failing: Any, options: dict[str, Any], waits: list[float]
) -> None:
    # contract: R1
    case, id_, runs = failing(max_attempts=6, **options)
    expected = [NOON]
    for wait in waits:
        assert case.drain() == 1
        record = case.records.get(id_)
        assert (record.state, record.error_category, record.finished_at) == ("pending", "failed", None)
        assert record.run_at == case.now + timedelta(seconds=wait)
        case.advance(timedelta(seconds=wait) - timedelta(microseconds=1))
        assert case.drain() == 0
        case.advance(timedelta(microseconds=1))
        expected.append(case.now)
    assert case.drain() == 1
    record = case.records.get(id_)
    assert (record.state, record.attempt, record.error_category) == ("dead", 6, "failed")
    assert record.finished_at == case.now
    case.advance(days=30)
    assert case.drain() == 0
    assert runs == expected
    assert len(case.failures) == 6


def test_the_cap_holds_at_the_highest_attempt_there_is(failing: Any, engine: sa.Engine) -> None:
    # contract: R1
    case, id_, _ = failing(max_attempts=100)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE rowlock_job SET attempt = 98"))
    assert case.drain() == 1
    assert case.records.get(id_).run_at == NOON + timedelta(seconds=300)
    case.advance(seconds=300)
    assert case.drain() == 1
    assert case.records.get(id_).state == "dead"
