"""The queues of an application: `app.queues` (O5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """What `app.queue(…)` said of a queue; `workers` is None if the settings say."""

    workers: int | None


class Queues(Mapping[str, DeclaredQueue]):
    """The queues that `app.queue(…)` declared, by name."""

    def __init__(self) -> None:
        self._declared: dict[str, DeclaredQueue] = {}

    def __getitem__(self, name: str) -> DeclaredQueue:
        return self._declared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def declare(self, name: str, queue: DeclaredQueue) -> None:
        """Add one, or say something else of one."""
        self._declared[name] = queue
