"""Takes due records of one queue, as many as it has free slots, and sets their attempts going (C2, C3, K3, K5)."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from rowlock.model.context import StopReason
from rowlock.model.outcome import Blocked, Cancelled, End, GivenBack, Returned, Settlement, decide, success
from rowlock.runtime import faults
from rowlock.runtime.alarm import Alarm
from rowlock.runtime.attempt import Attempt
from rowlock.runtime.bounds import bounded
from rowlock.runtime.briefing import told_to_stop
from rowlock.runtime.describe import brief, log
from rowlock.runtime.health import REST_S
from rowlock.runtime.outage import DATABASE_FAILURES, Guard
from rowlock.runtime.verdict import lost_it, say_claimed
from rowlock.store.claim import claim, look

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rowlock.runtime.floor import Floor
    from rowlock.runtime.handling import Alone, Handling
    from rowlock.runtime.roster import Roster
    from rowlock.runtime.settler import Settler
    from rowlock.store.dialects.base import Claimed

# A record that can not be started here yet, since its earlier attempt still runs in this process, waits this long.
NOT_HERE_MS = 1_000


class Claimer:
    """One queue of one database, with slots of its own (K5)."""

    def __init__(
        self, floor: Floor, roster: Roster, settler: Settler, guard: Guard, held: dict[str, Attempt],
        handling: Handling, *, queue: str, slots: int, poll_s: float, on_stuck: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.floor = floor
        self.loop = floor.loop
        self.roster = roster
        self.db = roster.db
        self.settler = settler
        self.handlers = handling.handlers
        self.handlers_guard = handling.guard
        self.queue = queue
        self.slots = slots
        self.running: dict[str, Attempt] = {}
        """By token: every attempt whose handler has not ended."""
        self.alarm = Alarm(self.loop, self.running)
        self.open = 0
        """Attempts whose outcome is not fixed yet."""
        self._guard = guard
        self._held = held
        self._poll_s = poll_s
        self._source = roster.source(queue)
        self._alone = handling.alone(roster, queue)
        # What runs alone is claimed apart, when its place is free (L8).
        self._freely = self._source if self._alone is None else self._alone.others
        self._backlog = max(2 * slots, 1_000)
        self._overran = 0
        self._on_stuck = on_stuck
        self._here: dict[int, Attempt] = {}
        """By id: the attempt that was started last, while its handler runs. None is started beside one without hold."""
        self._clear_at = float("-inf")
        self._unseen_s = float("inf")
        """Seconds from the last look that found nothing due to the last claim: what it took was not visible before."""
        self._waiter: asyncio.Future[None] | None = None
        self._needs_room = False
        self._called = False
        self._changed: asyncio.Future[None] | None = None

    # --- the loop -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Claims until the worker drains; a failing database makes it pause and try again."""
        sure = True  # something may be due: claim without looking first
        while not self.floor.draining:
            free = self.slots - len(self.running)
            if free <= 0 or self.settler.backlog >= self._backlog:
                self._guard.rests()
                await self._room()
                continue
            try:
                claimed, wait = await self.run_once(free, sure=sure)
            except DATABASE_FAILURES as error:
                sure = True
                await self._rest(self._guard.failed(error))
                continue
            self._guard.worked(wait)
            sure = claimed > 0 or wait <= 0
            if wait > 0:
                sure = await self._rest(wait)
        self._guard.ended()

    async def run_once(self, limit: int, *, sure: bool = False) -> tuple[int, float]:
        """Looks, and claims what is due: (how many, seconds until it is worth looking again).

        An idle round is one read (K3); `sure` claims without looking.
        """
        faults.hit("claiming")
        if not sure:
            looked = monotonic()
            seen = await bounded(self.db, self.db.aread(look, self._source), self._guard.patience_s)
            if not seen.due:
                self._clear_at = looked
                return 0, min(self._poll_s, max(seen.wait, 0.001)) if seen.wait is not None else self._poll_s
            if self.floor.draining:
                return 0, 0.0
        sent = monotonic()
        records = await bounded(self.db, self.db.arun(claim, self._freely, limit), self._guard.patience_s)
        if self._alone is not None and len(records) < limit:
            records += await self._claim_alone(self._alone)
        if not records:
            return 0, self._poll_s
        self._unseen_s = monotonic() - self._clear_at
        return (len(records), 0.0) if self.hand_over(records, sent) else (0, self._poll_s)

    async def _claim_alone(self, alone: Alone) -> list[Claimed]:
        """At most one record whose handler writes for as long as it runs, where others have to wait for that."""
        if not alone.take(self.wake):
            return []
        records: list[Claimed] = []
        try:
            records = await bounded(self.db, self.db.arun(claim, alone.source, 1), self._guard.patience_s)
        finally:
            if not records:
                alone.give_back()
        alone.token = records[0].token if records else None
        return records

    def wake(self) -> None:
        """Something may be due: look now. From the loop."""
        self._called = True
        self._go_on()

    def room(self) -> None:
        """A slot or the settler's backlog became free. From the loop."""
        if self._needs_room:
            self._go_on()

    def _go_on(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _room(self) -> None:
        """Waits for a free slot; looks up now and then, so that a beat tells it from a loop that hangs (H1)."""
        self._needs_room = True
        self._waiter = self.loop.create_future()
        timer = self.loop.call_later(REST_S, self._go_on)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
            self._needs_room = False

    async def _rest(self, seconds: float) -> bool:
        """Waits; True if it was woken before the time."""
        if not self._called and not self.floor.draining:
            self._waiter = self.loop.create_future()
            timer = self.loop.call_later(seconds, self._go_on)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        called, self._called = self._called, False
        return called

    # --- from claim to attempt ----------------------------------------------------------------------------

    def hand_over(self, records: Sequence[Claimed], sent: float) -> bool:
        """Starts an attempt for each. What can not be started goes back at once, its attempt unspent (C3)."""
        attempts = [Attempt(self, record, sent) for record in records]
        for attempt in attempts:
            self._held[attempt.token] = attempt
        self.running.update((attempt.token, attempt) for attempt in attempts)
        self.open += len(attempts)
        started = 0
        try:
            faults.hit("claimed")
            for attempt in attempts:
                self._admit(attempt)
                started += 1
        except BaseException as error:  # noqa: BLE001 - whatever it is, these records must not wait for their leases
            log.error("queue %r: %d claimed records could not be started, and go back (%s)",
                      self.queue, len(attempts) - started, brief(error))  # fmt: skip
            self._guard.beat.failed(error)
            for attempt in attempts[started:]:
                self._give_back(attempt)
            return False
        return True

    def _admit(self, attempt: Attempt) -> None:
        floor = self.floor
        if attempt.record.cancelled:  # it came back to the queue before its cancel was carried out (O4)
            self._end_unstarted(attempt, self._decide(attempt, Cancelled(started=False)))
        elif floor.draining:
            self._give_back(attempt)
        elif (earlier := self._here.get(attempt.id)) is not None and lost_it(earlier):
            self._give_back(attempt, NOT_HERE_MS)
        else:
            self._here[attempt.id] = attempt
            say_claimed(attempt, min(attempt.record.waited, self._unseen_s))
            attempt.start()

    def _give_back(self, attempt: Attempt, delay_ms: int | None = None) -> None:
        settlement = self._decide(attempt, GivenBack())
        if delay_ms is not None:
            settlement = msgspec.structs.replace(settlement, delay_ms=delay_ms)
        self._end_unstarted(attempt, settlement)

    def _end_unstarted(self, attempt: Attempt, settlement: Settlement) -> None:
        if attempt.closed:
            return
        attempt.closed = attempt.left = True
        self._fixed()
        self.settler.add(attempt, settlement)
        self.leave(attempt)

    # --- what attempts call -------------------------------------------------------------------------------

    def settle(self, attempt: Attempt, end: End) -> None:
        """The attempt's outcome is fixed."""
        self._fixed()
        self.settler.add(attempt, self.settlement(attempt, end))

    def settled(self, attempt: Attempt, settlement: Settlement) -> None:
        """The attempt's outcome is fixed and written, in its handler's own transaction (L8)."""
        self._fixed()
        self.settler.told(attempt, settlement)

    def settlement(self, attempt: Attempt, end: End) -> Settlement:
        """What `end` comes to for the attempt's record."""
        if isinstance(end, Returned) and end.value is None:  # the hot path
            return success(attempt.id, attempt.token)
        return self._decide(attempt, end)

    def _decide(self, attempt: Attempt, end: End) -> Settlement:
        record = attempt.record
        own = isinstance(end, Blocked | GivenBack | Cancelled)  # a record that this program does not know has no plan
        return decide(
            end, id=record.id, token=record.token, attempt=record.attempt, max_attempts=record.max_attempts,
            backoff=self.roster.backoff if own else attempt.plan.backoff, jitter=self.floor.jitter(),
        )  # fmt: skip

    def _fixed(self) -> None:
        self.open -= 1
        self._tell_change()

    def leave(self, attempt: Attempt) -> None:
        """The attempt's handler has ended, its slot is free."""
        self.running.pop(attempt.token, None)
        if self._alone is not None and attempt.token == self._alone.token:
            self._alone.leave(self.loop)
        if attempt.begun is not None:
            attempt.series.seconds.observe((attempt.ended or attempt.begun) - attempt.begun)
        if attempt.overran:
            self._overran -= 1
        if self._here.get(attempt.id) is attempt:
            del self._here[attempt.id]
        if self._needs_room:
            self._go_on()
        self._tell_change()

    def lost(self, attempt: Attempt) -> None:
        """The attempt's hold is gone; its handler may still run."""
        self._held.pop(attempt.token, None)
        self._fixed()

    def overrun(self, attempt: Attempt) -> None:
        """The attempt was settled while its handler still runs. With every slot like that, nothing works here (H1)."""
        self._overran += 1
        if self._overran >= self.slots:
            self._on_stuck(
                f"every slot of queue {self.queue!r} is held by a handler that did not end within its overrun, "
                f"the last by job {attempt.record.job!r} (H1)"
            )

    # --- draining -----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """`floor.draining` is set: ends the loop, and lets handlers see that the worker stops."""
        self._go_on()
        for attempt in list(self.running.values()):
            if attempt.context_made is not None:
                told_to_stop(attempt.context_made, None)

    def cut_off(self) -> None:
        """The time for finishing is over: what still runs is cancelled (M6)."""
        for attempt in list(self.running.values()):
            attempt.abandon_unstarted()
            if not attempt.closed:
                attempt.ask_to_stop(StopReason.SHUTDOWN)

    def _tell_change(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def until(self, fact: Callable[[], bool]) -> None:
        """Waits until `fact` holds; it is looked at whenever an attempt's outcome is fixed or its handler ends."""
        while not fact():
            self._changed = self.loop.create_future()
            try:
                await self._changed
            finally:
                self._changed = None
