"""Sees which records in work somebody asked to cancel, and tells their attempts (O4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rowlock.runtime.bounds import bounded
from rowlock.runtime.held import snapshot
from rowlock.runtime.outage import DATABASE_FAILURES, Guard
from rowlock.store.asked import asked

if TYPE_CHECKING:
    from rowlock.runtime.attempt import Attempt
    from rowlock.store.database import Database


class Canceller:
    """One for each database of a worker: a small read each poll, and none while nothing is in work (K3)."""

    def __init__(self, db: Database, guard: Guard, held: dict[str, Attempt], *, poll_s: float) -> None:
        self._db = db
        self._guard = guard
        self._held = held
        self._poll_s = poll_s

    async def run(self) -> None:
        """Looks for ever, also during a drain: what is in work then can be cancelled still."""
        while True:
            try:
                looked = await self.run_once()
            except DATABASE_FAILURES as error:
                await asyncio.sleep(self._guard.failed(error))
                continue
            (self._guard.worked if looked else self._guard.rests)(self._poll_s)
            await asyncio.sleep(self._poll_s)

    async def run_once(self) -> bool:
        """One look for all that is in work; False if there was nothing to ask."""
        # Attempts, not ids: by the time of the answer a record can be in work again, in another life that nobody asked
        # to cancel.
        attempts = {
            attempt.id: attempt
            for attempt in snapshot(self._held)
            if not (attempt.cancelled or attempt.closed) and attempt.ended is None
        }
        ids = list(attempts)
        for start in range(0, len(ids), self._db.dialect.max_batch):
            part = ids[start : start + self._db.dialect.max_batch]
            for id_ in await bounded(self._db, self._db.aread(asked, part), self._guard.patience_s):
                attempts[id_].cancel()
        return bool(ids)

    def stop(self) -> None:
        """The loop has been ended."""
        self._guard.ended()
