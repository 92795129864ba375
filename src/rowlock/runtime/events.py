"""Events and hooks: told to whoever listens, at no cost when nobody does, and never able to fail a record (H2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rowlock.model.context import Context
from rowlock.model.outcome import State
from rowlock.model.request import Enqueued, EnqueueRequest
from rowlock.model.texts import error_class
from rowlock.runtime.describe import frames, log
from rowlock.runtime.metrics import Meter, Tally
from rowlock.store.claim import Rescued

Listener = Callable[[Any], object]


class Hooks(Protocol):
    """What an application collected with `before_attempt`, `after_attempt`, `on_failure` and `on`."""

    @property
    def before_attempt(self) -> Sequence[Callable[[Context], object]]:
        """Called before a handler, on its thread or task."""
        ...

    @property
    def after_attempt(self) -> Sequence[Callable[[Context], object]]:
        """Called after it, however it ended."""
        ...

    @property
    def on_failure(self) -> Sequence[Callable[[BaseException, Context], object]]:
        """Called with the live exception."""
        ...

    @property
    def events(self) -> Mapping[str, Sequence[Listener]]:
        """Listeners by the event's name."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, by its `name`; fields are None where they do not apply (H2)."""

    name: str
    """One of `rowlock.hooks.EVENTS`."""
    id: int | None = None
    """The record's id."""
    job: str | None = None
    """The name that is stored with the record."""
    queue: str | None = None
    attempt: int | None = None
    """The number of the attempt, 1 for the first."""
    outcome: str | None = None
    """settled: how the attempt ended; blocked: the category; outage: begun or over."""
    seconds: float | None = None
    """settled, lost: how long the handler ran; claimed: how long the record was due, or visible if that is less."""
    state: str | None = None
    """What the record is now: pending, running, succeeded, dead, blocked, cancelled."""
    database: str | None = None
    """The name of the database."""
    count: int | None = None
    """Of `swept`: how many rows; `outcome` is then the table."""


class Events:
    """Tells listeners; one that fails is logged once, and goes on being told."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self._complained: set[int] = set()

    def wanted(self, name: str) -> bool:
        """Whether anybody listens: asked before an event is made."""
        return bool(self.hooks.events.get(name))

    def tell(self, event: Event) -> None:
        """Calls each listener of the event, in the order in which they were declared."""
        for listener in tuple(self.hooks.events.get(event.name, ())):
            try:
                listener(event)
            except BaseException as error:  # noqa: BLE001 - a failing hook never fails the record (H2, R4)
                self.complain(listener, error, f"listener of {event.name!r}")

    def tell_moved(self, records: Sequence[Rescued], database: str, tally: Tally, *, rescued: bool = False) -> None:
        """Says which records were moved on without their handler: a dead worker's, used up, blocked, cancelled ones.

        One that ended so is told like one whose handler ended it: `settled`, with the outcome `exhausted` for attempts
        that are used up (C5, L7, S4).
        """
        for record in records:
            series = tally.series(record.queue, record.job)

            def tell(name: str, outcome: str | None, record: Rescued = record) -> None:
                if self.wanted(name):
                    about = (record.id, record.job, record.queue, record.attempt)
                    self.tell(Event(name, *about, outcome, state=record.state, database=database))

            if rescued:
                series.rescued += 1
                tell("rescued", None)
            if record.state is State.BLOCKED:
                series.blocked[str(record.category)] += 1
                tell("blocked", record.category)
            elif record.state is not State.PENDING:
                outcome = "exhausted" if record.state is State.DEAD else str(record.state)
                series.settled[outcome] += 1
                tell("settled", outcome)

    def enqueued(
        self, meter: Meter, job: str, database: str, requests: Sequence[EnqueueRequest], answers: list[Enqueued]
    ) -> list[Enqueued]:
        """Counts what was written, and tells who listens; gives the answers on."""
        created = Counter(request.queue for request, each in zip(requests, answers, strict=True) if each.created)
        for queue, number in Counter(request.queue for request in requests).items():
            meter.enqueued(queue, job, created[queue], number - created[queue])
        if self.wanted("enqueued"):
            for request, each in zip(requests, answers, strict=True):
                if each.created:
                    self.tell(Event("enqueued", each.id, job, request.queue, state=each.state, database=database))
        return answers

    def complain(self, hook: Callable[..., object], error: BaseException, what: str) -> None:
        """Logs the failure of a hook, once for each hook: one that always fails must not write a line a record."""
        if id(hook) in self._complained:
            return
        self._complained.add(id(hook))
        name = getattr(hook, "__qualname__", type(hook).__name__)
        log.error(
            "the %s %s failed with %s (%s); the record is not touched by it, and it is not said again",
            what, name, error_class(error), " <- ".join(reversed(frames(error))),
        )  # fmt: skip
