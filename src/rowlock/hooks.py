"""What listens to an application's attempts and events (H2): collected here, called by the runtime."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rowlock.errors import DeclarationError, DeclarationTypeError
from rowlock.model.context import Context
from rowlock.model.limits import shown

EVENTS = ("enqueued", "claimed", "settled", "lost", "blocked", "rescued", "swept", "outage")
"""What `app.on` takes (H2)."""

F = TypeVar("F", bound=Callable[..., object])


@dataclass(slots=True)
class Hooks:
    """The declared hooks, in order."""

    before_attempt: list[Callable[[Context], object]] = field(default_factory=list[Callable[[Context], object]])
    after_attempt: list[Callable[[Context], object]] = field(default_factory=list[Callable[[Context], object]])
    on_failure: list[Callable[[BaseException, Context], object]] = field(
        default_factory=list[Callable[[BaseException, Context], object]]
    )
    events: dict[str, list[Callable[[Any], object]]] = field(default_factory=dict[str, list[Callable[[Any], object]]])


class HookDecorators:
    """The decorators of `App` that declare hooks and listeners. A hook that fails never fails the record (H2)."""

    def __init__(self) -> None:
        self.hooks = Hooks()

    def on(self, event: str) -> Callable[[F], F]:
        """Listen to an event: enqueued, claimed, settled, lost, blocked, rescued, swept or outage (H2).

        The listener gets an `Event`: `name, id, job, queue, attempt, outcome, seconds, state, database`, None where
        one does not apply. It is a sync function, called where the event happens, and must be short: a listener of a
        worker's events runs on its loop. `enqueued` is told when the record is written: a caller's transaction may
        still be rolled back. DeclarationError: no such event.
        """
        if event not in EVENTS:
            raise DeclarationError(f"app.on({shown(event)}): no such event (H2); the events are {', '.join(EVENTS)}")

        def listen(listener: F) -> F:
            self.hooks.events.setdefault(event, []).append(_sync(listener, f"app.on({event!r})"))
            return listener

        return listen

    def before_attempt(self, hook: F) -> F:
        """Call `hook(ctx)` before each handler, on the handler's own thread or task (H2)."""
        self.hooks.before_attempt.append(_sync(hook, "app.before_attempt"))
        return hook

    def after_attempt(self, hook: F) -> F:
        """Call `hook(ctx)` after each handler, however it ended, on the handler's own thread or task (H2)."""
        self.hooks.after_attempt.append(_sync(hook, "app.after_attempt"))
        return hook

    def on_failure(self, hook: F) -> F:
        """Call `hook(exc, ctx)` with the live exception of a failed attempt, for an error tracker (S6)."""
        self.hooks.on_failure.append(_sync(hook, "app.on_failure"))
        return hook


def _sync(hook: F, where: str) -> F:
    if not callable(hook):
        raise DeclarationTypeError(f"{where}: {shown(hook)} is no function (H2); give a sync function")
    if inspect.iscoroutinefunction(hook):
        raise DeclarationTypeError(f"{where}: an async function is no hook, nobody would await it (H2); make it sync")
    return hook
