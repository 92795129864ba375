"""Which case an application's enqueues go to, when several are open at once (X5).

While a case is open the application's databases are this mapping. It leads to the case of the current context (set
where a case is entered, in its drains and in the handlers that it runs), else to the one that was entered last.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rowlock.app import App
from rowlock.model.settings import JobSettings, Settings
from rowlock.store.database import Database

if TYPE_CHECKING:
    from rowlock.testing.case import TestApp

_entered: ContextVar[tuple[TestApp, ...]] = ContextVar("rowlock_cases", default=())
_lock = threading.Lock()
_routers: weakref.WeakKeyDictionary[App, Router] = weakref.WeakKeyDictionary()


class Router(Mapping[str, Database]):
    """The databases of the case that is meant. Made for an application's first open case, gone with its last."""

    def __init__(self, app: App) -> None:
        self._names = names_of(app)
        self.open: list[TestApp] = []
        self._swap: AbstractContextManager[Any] = app._swap(self, settings_of(app))  # noqa: SLF001 - made for the kit  # pyright: ignore[reportPrivateUsage]
        self._swap.__enter__()

    def end(self) -> None:
        """Gives the application its own databases back."""
        self._swap.__exit__(None, None, None)

    def case(self) -> TestApp:
        """The case that is meant here."""
        for case in reversed(_entered.get()):
            if case in self.open:
                return case
        return self.open[-1]

    def __getitem__(self, name: str) -> Database:
        return self.case().databases[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def names_of(app: App) -> tuple[str, ...]:
    """The names of the configured databases; no secret that a URL refers to is looked up for them."""
    return app._database_names  # noqa: SLF001 - made for the kit  # pyright: ignore[reportPrivateUsage]


def settings_of(app: App) -> Settings:
    """The defaults, and of the application's own settings only the names of queues, which say what is served."""
    queues = dict.fromkeys(app.settings.job.queues, 1)
    return Settings(job=JobSettings(queues=queues, unknown_ms=0))


def enter(case: TestApp) -> None:
    """The case is open from here on."""
    with _lock:
        router = _routers.get(case.app)
        if router is None:
            router = _routers[case.app] = Router(case.app)
        router.open.append(case)
    mean(case)


def leave(case: TestApp) -> None:
    """The case is not open any more."""
    # By value: a fixture's end may run in another context than its beginning.
    _entered.set(tuple(other for other in _entered.get() if other is not case))
    with _lock:
        router = _routers[case.app]
        router.open.remove(case)
        if not router.open:
            del _routers[case.app]
            router.end()


def mean(case: TestApp) -> None:
    """In this context it is this case that is meant."""
    _entered.set((*(other for other in _entered.get() if other is not case), case))
