"""Events and hooks: told to whoever listens, at no cost when nobody does, and never able to fail a record (H2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rowlock.model.context import Context
from rowlock.model.outcome import State
from rowlock.model.texts import error_class
from rowlock.runtime.describe import frames, log
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
    """Something that happened: enqueued, claimed, settled, lost, blocked, swept, outage. Fields where they apply."""

    name: str
    id: int | None = None
    job: str | None = None
    queue: str | None = None
    attempt: int | None = None
    outcome: str | None = None
    seconds: float | None = None
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

    def tell_blocked(self, records: Sequence[Rescued]) -> None:
        """Says which records were set aside without an attempt (S4, C5)."""
        if self.wanted("blocked"):
            for record in records:
                if record.state is State.BLOCKED:
                    self.tell(Event("blocked", record.id, record.job, record.queue, record.attempt, record.category))

    def tell_cancelled(self, records: Sequence[Rescued]) -> None:
        """Says which records became cancelled while nobody held them (O4)."""
        if self.wanted("settled"):
            for record in records:
                self.tell(Event("settled", record.id, record.job, record.queue, record.attempt, record.state))

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
