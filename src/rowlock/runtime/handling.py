"""What transactional attempts of one database share: connections, and where only one can write a place (L8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from rowlock.store.place import Place

if TYPE_CHECKING:
    from rowlock.runtime.outage import Guard
    from rowlock.runtime.roster import Roster
    from rowlock.store.database import Database
    from rowlock.store.dialects.base import Source
    from rowlock.store.handlers import Handlers

# Whoever waits for the write lock looks again after 0.1 s at the latest: so long the file is left alone between two
# handlers that kept it, so that renewals and settlements of every process get their turn.
LONGEST_GAP_S = 0.11
SHORTEST_GAP_S = 0.002


class Handling:
    """One for each database of a worker."""

    def __init__(self, db: Database, guard: Guard, size: int) -> None:
        self.guard = guard
        guard.rests()
        self.handlers: Handlers = db.handlers(size)
        path = db.dialect.place_of_handlers(db)
        self._place = None if path is None else Place(path)

    def writes_wait(self) -> bool:
        """Whether a handler, of whatever process, keeps the file to itself at this moment."""
        return self._place is not None and self._place.is_taken()

    def alone(self, roster: Roster, queue: str) -> Alone | None:
        """What a claimer of `queue` needs where handlers that write run one at a time; else None."""
        if self._place is None or not roster.transactional:
            return None
        return Alone(self._place, *roster.sources_apart(queue))

    async def aclose(self) -> None:
        """Gives the connections and the place back; a handler that still runs keeps its own."""
        if self._place is not None:
            self._place.give_back()
        await self.handlers.aclose()


class Alone:
    """A queue's part in the one place of its file: `source` is claimed only while it is held, `others` whenever."""

    def __init__(self, place: Place, source: Source, others: Source) -> None:
        self.source = source
        self.others = others
        self.token: str | None = None
        """Of the record that runs in the place."""
        self._place = place
        self._since = 0.0
        self._wake: Callable[[], None] = lambda: None

    def take(self, wake: Callable[[], None]) -> bool:
        """Takes the place if it is free; `wake` is called when it is free again. Never waits."""
        if not self._place.take():
            return False
        self._since = monotonic()
        self._wake = wake
        return True

    def give_back(self) -> None:
        """Nothing was claimed."""
        self._place.give_back()

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """The handler has ended: after a gap, in which others write, the place is free."""
        self.token = None
        gap = min(max(monotonic() - self._since, SHORTEST_GAP_S), LONGEST_GAP_S)
        loop.call_later(gap, self._free)

    def _free(self) -> None:
        self._place.give_back()
        self._wake()
