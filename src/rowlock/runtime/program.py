"""What the runtime asks of an application: its jobs, settings, databases, queues and hooks, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rowlock.model.job import Job
    from rowlock.model.settings import Settings
    from rowlock.runtime.events import Hooks
    from rowlock.runtime.metrics import Meter
    from rowlock.store.database import Database
    from rowlock.store.lifecycles import Lifecycles


class DeclaredQueue(Protocol):
    """What `app.queue(…)` said of a queue."""

    @property
    def workers(self) -> int | None:
        """The number of its slots, None if the settings say."""
        ...


class Program(Protocol):
    """An application, as far as it is served (the floors forbid to import it)."""

    @property
    def jobs(self) -> Mapping[str, Job[Any, Any]]:
        """By name and by alias."""
        ...

    @property
    def settings(self) -> Settings:
        """The settings, complete with defaults (M2)."""
        ...

    @property
    def databases(self) -> Mapping[str, Database]:
        """Every configured database, by name."""
        ...

    @property
    def queues(self) -> Mapping[str, DeclaredQueue]:
        """Queues that `app.queue(…)` named."""
        ...

    @property
    def meter(self) -> Meter:
        """Where its enqueues and attempts are counted (H2)."""
        ...

    @property
    def hooks(self) -> Hooks:
        """What listens to attempts and events (H2)."""
        ...

    @property
    def lifecycles(self) -> Lifecycles:
        """Whose rows go when (N)."""
        ...

    def validate(self) -> None:
        """Everything that needs no table (J5, M5). Raises."""
        ...
