"""Writes how attempts ended: one statement under way at a time, each taking what has collected (L6).

A settlement is never dropped in silence: it is written, or the hold is lost, and that is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from rowlock.model.outcome import Settlement, State
from rowlock.model.table import JOBS
from rowlock.runtime import faults
from rowlock.runtime.bounds import bounded
from rowlock.runtime.health import REST_S
from rowlock.runtime.outage import DATABASE_FAILURES, Guard, Pauses
from rowlock.runtime.verdict import event, say_lost
from rowlock.store.settle import Verdict, settle, settle_one

if TYPE_CHECKING:
    from rowlock.runtime.attempt import Attempt
    from rowlock.runtime.floor import Floor
    from rowlock.store.database import Database

MOST = 500
SINGLES = 2
# A row that somebody else has locked, beyond those that are waited for, is tried again with the others.
AGAIN_S = 0.2
TAKEN = frozenset({Verdict.SETTLED, Verdict.CANCELLED})
CANCELLED = State.CANCELLED.value


class Entry(NamedTuple):
    """A settlement, and whose it is."""

    attempt: Attempt
    settlement: Settlement


class Settler:
    """One for each database of a worker. `add` from the loop; `run` is its loop; `flush` waits until all is written."""

    def __init__(self, floor: Floor, db: Database, guard: Guard, held: dict[str, Attempt], *, most: int = MOST) -> None:
        self._floor = floor
        self._db = db
        self._guard = guard
        self._held = held
        self._most = min(most, db.dialect.max_batch)
        self._size = self._most
        # Those who wait for a lock must leave connections for the claim and the settlement of the others (L4).
        self._most_singles = SINGLES if db.pool is None else max(0, min(SINGLES, db.pool - 2))
        self._waiting: deque[Entry] = deque()
        self._under_way: list[Entry] = []
        self._unsure: set[str] = set()
        """Tokens of settlements whose statement failed: it may have taken effect all the same."""
        self._singles: dict[str, asyncio.Task[None]] = {}
        self._stopped = False
        self._work = asyncio.Event()
        self._empty: asyncio.Future[None] | None = None
        self.on_room: Callable[[], None] = lambda: None

    @property
    def backlog(self) -> int:
        """Settlements that are not written yet: the claimers stop when there are too many (H3)."""
        return len(self._waiting) + len(self._under_way) + len(self._singles)

    def add(self, attempt: Attempt, settlement: Settlement) -> None:
        """Takes a settlement; its verdict is told later."""
        self._waiting.append(Entry(attempt, settlement))
        self._work.set()

    def doubt(self, token: str) -> None:
        """A commit with this token's settlement in it was not answered: the next one recognises its effect (L1)."""
        self._unsure.add(token)

    def told(self, attempt: Attempt, settlement: Settlement) -> None:
        """The settlement was committed with the handler's own transaction (L8)."""
        self._settled(Entry(attempt, settlement), Verdict.SETTLED)

    def forget(self, attempt: Attempt) -> None:
        """The attempt's hold is gone: what waits for it is dropped, and told.

        One under way, or whose statement failed, gets its own verdict: it may have been written in time.
        """
        token = attempt.token
        if single := self._singles.get(token):
            single.cancel()
            return
        if token in self._unsure:
            return
        for entry in self._waiting:
            if entry.attempt is attempt:
                self._waiting.remove(entry)
                self._lost(entry)
                self._look_empty()
                return

    async def flush(self) -> None:
        """Waits until every settlement so far has its verdict."""
        if self.backlog:
            if self._empty is None:
                self._empty = self._floor.loop.create_future()
            await asyncio.shield(self._empty)

    async def run(self) -> None:
        """Settles for ever; a failing database makes it pause and try again."""
        while True:
            if not self._waiting:
                self._guard.rests()
                await self._rest()
                continue
            try:
                await self._settle_batch()
            except DATABASE_FAILURES as error:
                await asyncio.sleep(self._guard.failed(error))
            else:
                self._guard.worked()
                self.on_room()

    async def _rest(self) -> None:
        """Waits for work; looks up now and then, so that a beat tells it from a loop that hangs (H1)."""
        self._work.clear()
        timer = self._floor.loop.call_later(REST_S, self._work.set)
        try:
            await self._work.wait()
        finally:
            timer.cancel()

    def stop(self) -> list[asyncio.Task[None]]:
        """Ends those that wait for a locked row, whose records keep their leases; answers them, to be waited for."""
        self._stopped = True
        singles = list(self._singles.values())
        for task in singles:
            task.cancel()
        self._guard.ended()
        return singles

    # --- one statement ------------------------------------------------------------------------------------

    async def _settle_batch(self) -> None:
        waiting = self._waiting
        batch = self._under_way = self._take()
        repeated = bool(self._unsure) and any(entry.settlement.token in self._unsure for entry in batch)
        try:
            faults.hit("settling")
            settlements = [entry.settlement for entry in batch]
            statement = self._db.arun(settle, JOBS, settlements, repeated=repeated)
            verdicts = await bounded(self._db, statement, self._guard.patience_s)
        except BaseException:
            # Whatever it was, the answer is unknown: the next try recognises its own effect (L1). Behind the others,
            # in smaller batches: if one of them is the cause, the rest get past it.
            self._under_way = []
            self._unsure.update(entry.settlement.token for entry in batch)
            self._size = max(1, len(batch) // 2)
            waiting.extend(batch)
            raise
        self._under_way = []
        if self._size < self._most:
            self._size = min(self._most, self._size * 2)
        for entry, verdict in zip(batch, verdicts, strict=True):
            if verdict in TAKEN:
                self._settled(entry, verdict)
            elif verdict is Verdict.LOST:
                self._lost(entry)
            else:
                self._busy(entry)
        self._look_empty()

    def _take(self) -> list[Entry]:
        """The next batch. A record comes once in it: its verdict is told by its id."""
        waiting = self._waiting
        batch: list[Entry] = []
        ids: set[int] = set()
        for _ in range(min(self._size, len(waiting))):
            entry = waiting.popleft()
            if entry.settlement.id in ids:
                waiting.append(entry)
                continue
            ids.add(entry.settlement.id)
            batch.append(entry)
        return batch

    def _busy(self, entry: Entry) -> None:
        """Somebody else has the row locked: it delays itself only (L4, L6)."""
        if entry.attempt.lost and entry.settlement.token not in self._unsure:
            self._lost(entry)
        elif len(self._singles) < self._most_singles:
            self._wait_singly(entry, self._single(entry))
        else:
            self._wait_singly(entry, self._later(entry))

    def _wait_singly(self, entry: Entry, coro: Any) -> None:
        token = entry.settlement.token
        task = self._singles[token] = asyncio.Task(coro, loop=self._floor.loop, name="rowlock settle one")

        def done(task: asyncio.Task[None]) -> None:
            self._singles.pop(token, None)
            if task.cancelled() and not self._stopped:
                self._lost(entry)
            self._look_empty()
            self.on_room()

        task.add_done_callback(done)

    async def _later(self, entry: Entry) -> None:
        await asyncio.sleep(AGAIN_S)
        self.add(*entry)

    async def _single(self, entry: Entry) -> None:
        """Waits for the row's lock on a connection of its own."""
        token = entry.settlement.token
        pauses = Pauses()
        while True:
            try:
                verdict = await self._db.arun(settle_one, JOBS, entry.settlement, repeated=token in self._unsure)
            except Exception as error:  # noqa: BLE001 - whatever it is, this settlement must not vanish
                self._unsure.add(token)
                self._guard.failed(error)
                await asyncio.sleep(pauses.next())
                continue
            if verdict in TAKEN:
                self._settled(entry, verdict)
                return
            if verdict is Verdict.LOST:
                self._lost(entry)
                return
            await asyncio.sleep(AGAIN_S)  # the wait for the lock ended at its bound

    # --- verdicts -----------------------------------------------------------------------------------------

    def _settled(self, entry: Entry, verdict: Verdict) -> None:
        settlement, attempt, floor = entry.settlement, entry.attempt, self._floor
        outcome, state = settlement.outcome, settlement.state
        if verdict is Verdict.CANCELLED:
            outcome, state = CANCELLED, State.CANCELLED
        self._release(settlement.token)
        attempt.series.settled[outcome] += 1
        if floor.tell_settled:
            floor.events.tell(event(attempt, "settled", outcome, state=state))
        if state is State.BLOCKED:
            attempt.series.blocked[str(settlement.category)] += 1
            if floor.events.wanted("blocked"):
                floor.events.tell(event(attempt, "blocked", settlement.category, state=state))

    def _lost(self, entry: Entry) -> None:
        self._release(entry.settlement.token)
        entry.attempt.lost = True
        say_lost(entry.attempt)

    def _release(self, token: str) -> None:
        self._held.pop(token, None)
        if self._unsure:
            self._unsure.discard(token)

    def _look_empty(self) -> None:
        if self._empty is not None and not self.backlog:
            if not self._empty.done():
                self._empty.set_result(None)
            self._empty = None
