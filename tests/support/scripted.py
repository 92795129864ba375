"""A database whose answers a test scripts, for pieces of the runtime that need none.

It stores nothing and knows no SQL: each statement's function is answered by a callable of the test's, by its name.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from rowlock import App, Jobs
from rowlock.model.job import Job
from rowlock.model.outcome import Settlement
from rowlock.runtime.claimer import Claimer
from rowlock.runtime.events import Events
from rowlock.runtime.floor import Floor
from rowlock.runtime.health import Health
from rowlock.runtime.outage import Guard, Outage
from rowlock.runtime.pool import Threads
from rowlock.runtime.roster import Roster
from rowlock.store.dialects.base import Claimed
from rowlock.store.settle import Verdict

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


class ScriptedDatabase:
    """`answers[name]` is called with a statement's arguments; a coroutine function may wait. `calls` has them all."""

    name = "default"
    pool = None

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.answers = answers
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.dialect = SimpleNamespace(
            one_writer=False,
            max_batch=500,
            from_db=lambda value: value,
            is_conflict=lambda _error: False,
            is_lock_timeout=lambda _error: False,
        )
        self.clock = SimpleNamespace(host_now=lambda: NOW)

    async def arun(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        self.calls.append((function.__name__, args))
        answer = self.answers[function.__name__](*args, **kwargs)
        return await answer if inspect.isawaitable(answer) else answer

    aread = arun

    def twin(self) -> ScriptedDatabase:
        return self

    async def aclose(self) -> None:
        return

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args in self.calls if called == name]


class Settled:
    """In the settler's place: keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[Settlement] = []
        self.forgotten: list[Any] = []
        self.backlog = 0

    def add(self, _attempt: Any, settlement: Settlement) -> None:
        self.given.append(settlement)

    def forget(self, attempt: Any) -> None:
        self.forgotten.append(attempt)

    def outcomes(self) -> list[str]:
        return [settlement.outcome for settlement in self.given]


class Lane:
    """A claimer on the running loop with everything around it, and records to hand over to it."""

    def __init__(self, *groups: Jobs, db: Any = None, settler: Any = None, slots: int = 4, **settings: Any) -> None:
        self.app = App("sqlite:///unused.db", include=groups, settings={"job": settings})
        self.db = db or ScriptedDatabase()
        self.health = Health()
        self.events = Events(self.app.hooks)
        self.loop = asyncio.get_running_loop()
        self.floor = Floor(self.loop, Threads(self.loop, slots), self.events, self.health, jitter=lambda: 0.0)
        self.roster = Roster(self.app, self.db)
        self.outage = Outage(self.db, self.events)
        self.settler = settler or Settled()
        self.held: dict[str, Any] = {}
        self.stuck: list[str] = []
        self.handling: Any = SimpleNamespace(
            handlers=None, guard=self.guard("handlers"), alone=lambda _roster, _queue: None
        )
        self.claimer = Claimer(
            self.floor, self.roster, self.settler, self.guard("claim:default"), self.held, self.handling,
            queue="default", slots=slots, poll_s=0.01, on_stuck=self.stuck.append,
        )  # fmt: skip
        self.job: Any = None  # the one that a test is about, if it is about one
        self._ids = iter(range(1, 1_000_000))

    @property
    def outcomes(self) -> Counter[str]:
        """What was settled, by outcome."""
        return sum((series.settled for series in self.floor.tally.every()), Counter[str]())

    @property
    def lost(self) -> int:
        return sum(series.lost for series in self.floor.tally.every())

    def guard(self, service: str) -> Guard:
        return Guard(service, self.outage, self.health.beat(service))

    def record(self, job: Job[Any, Any], payload: str = "null", /, **changes: Any) -> Claimed:
        id_ = next(self._ids)
        record = Claimed(
            id=id_, job=job.name, fingerprint=job.wire.fingerprint, payload=payload.encode(), key=None, queue="default",
            priority=100, run_at=NOW, attempt=1, max_attempts=job.max_attempts,
            timeout_ms=round(job.timeout.total_seconds() * 1000), headers=None, token=f"token-{id_}", lease_ms=60_000,
            cancelled=False,
        )  # fmt: skip
        return record._replace(**changes)

    def start(self, *records: Claimed) -> list[Any]:
        """Hands the records over; answers their attempts."""
        self.claimer.hand_over(records, self.loop.time())
        return [self.held[record.token] for record in records]

    async def ended(self) -> None:
        """Waits until no handler runs any more, and every outcome is fixed."""
        async with asyncio.timeout(20):
            await self.claimer.until(lambda: not self.claimer.running and self.claimer.open <= 0)

    async def run(self, job: Job[Any, Any], payload: str = "null", /, **changes: Any) -> Settlement:
        """Runs one record to its end, and answers its settlement."""
        before = len(self.settler.given)
        self.start(self.record(job, payload, **changes))
        await self.ended()
        [settlement] = self.settler.given[before:]
        return settlement

    def close(self) -> None:
        assert self.floor.threads.close(5.0), "a handler's thread did not end"


def all_of(verdict: Verdict) -> Callable[..., list[Verdict]]:
    """An answer for `settle`: the same verdict for each."""

    def answer(_shape: Any, settlements: Sequence[Settlement], **_: Any) -> list[Verdict]:
        return [verdict] * len(settlements)

    return answer
