"""A case's view of its application: what a drain runs instead of the application itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rowlock.hooks import Hooks
from rowlock.model.context import Context
from rowlock.model.job import Job
from rowlock.model.settings import Settings
from rowlock.queues import Queues
from rowlock.runtime.metrics import Meter
from rowlock.store.database import Database
from rowlock.store.lifecycles import Lifecycles
from rowlock.testing import routing
from rowlock.testing.work import AtWork

if TYPE_CHECKING:
    from rowlock.testing.case import TestApp


class CaseProgram:
    """The application's jobs, queues and hooks; the case's databases and settings."""

    def __init__(self, case: TestApp, at_work: AtWork) -> None:
        self._case = case
        self._at_work = at_work

    @property
    def jobs(self) -> Mapping[str, Job[Any, Any]]:
        """By name and by alias."""
        return self._case.app.jobs

    @property
    def queues(self) -> Queues:
        """Those that `app.queue(…)` named."""
        return self._case.app.queues

    @property
    def databases(self) -> Mapping[str, Database]:
        """The case's own, whichever other cases are open."""
        return self._case.databases

    @property
    def settings(self) -> Settings:
        """Not those of production."""
        return routing.settings_of(self._case.app)

    @property
    def meter(self) -> Meter:
        """The application's, which is a fresh one within the case."""
        return self._case.app.meter

    @property
    def hooks(self) -> Hooks:
        """The application's, and around them the case's own."""
        hooks = self._case.app.hooks
        return Hooks(
            before_attempt=[self._begin, *hooks.before_attempt],
            after_attempt=[*hooks.after_attempt, self._at_work.end],
            on_failure=hooks.on_failure,
            events=hooks.events,
        )

    @property
    def lifecycles(self) -> Lifecycles:
        """The application's."""
        return self._case.app.lifecycles

    def validate(self) -> None:
        """What the application says."""
        self._case.app.validate()

    def _begin(self, context: Context) -> None:
        # On the handler's own thread or task: what it enqueues belongs to this case.
        routing.mean(self._case)
        self._at_work.begin(context)
