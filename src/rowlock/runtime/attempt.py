"""One attempt: from the claim of a record to the settlement that says how it ended (R)."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

from rowlock.model.context import Context, StopReason
from rowlock.model.outcome import Blocked, Cancelled, End, GivenBack, Raised, TimedOut
from rowlock.runtime import briefing, transactional
from rowlock.runtime.alarm import CLOSE_S
from rowlock.runtime.briefing import told_to_stop
from rowlock.runtime.dispatch import Refused, decode, plan_of
from rowlock.runtime.isolate import current
from rowlock.runtime.verdict import conclude, report_failure, say_dropped, say_lost, timeout_error

if TYPE_CHECKING:
    from rowlock.model.outcome import Settlement
    from rowlock.runtime.claimer import Claimer
    from rowlock.runtime.roster import Plan
    from rowlock.store.dialects.base import Claimed
    from rowlock.store.transactional import HandlerTransaction

_gate = threading.Lock()
"""Between a hold's end and the settlement in a handler's transaction: which came first counts (L3, L8)."""


class Attempt:
    """An execution of a record, and the keeper's entry for its lease.

    All methods run on the loop, except `in_thread` and those that say otherwise. `closed` means that its outcome is
    fixed: handed to the settler, or lost. `left` means that its handler has ended and its slot is free.
    """

    __slots__ = (
        "arguments", "begun", "cancelled", "closed", "context_made", "deadline", "end", "ended", "ending", "id", "lane",
        "lease_ms", "lease_s", "left", "limit", "lost", "overran", "plan", "record", "renewed_at", "series", "settled",
        "stop", "stray", "task", "timed_out", "timer", "token", "transaction", "unsure", "watched",
    )  # fmt: skip

    plan: Plan
    arguments: tuple[Any, ...]

    def __init__(self, lane: Claimer, record: Claimed, claimed_at: float) -> None:
        self.lane = lane
        self.record = record
        self.id = record.id
        self.token = record.token
        self.series = lane.floor.tally.series(record.queue, record.job)
        self.lease_ms = record.lease_ms
        self.lease_s = record.lease_ms / 1000
        # The claim was sent at this time at the earliest, so the lease ends after `renewed_at + lease_s`.
        self.renewed_at = claimed_at
        # Renewed until then at most (L4). While it has not started it gets a lease more than what it may take.
        self.limit = claimed_at + self.lease_s * 2 + record.timeout_ms / 1000
        self.begun: float | None = None
        self.ended: float | None = None
        self.deadline = 0.0
        self.context_made: Context | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.stop: StopReason | None = None
        self.stray: BaseException | None = None
        self.end: End | None = None
        self.cancelled = False  # somebody asked for that, and this attempt knows it (O4)
        self.timed_out = self.overran = self.closed = self.left = self.lost = False
        self.watched = False
        """Whether its deadline is still to come."""
        # Of a transactional attempt (L8): see `runtime/transactional.py`.
        self.transaction: HandlerTransaction | None = None
        self.settled: Settlement | None = None
        self.ending = self.unsure = False

    # --- starting -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Judges the record and sets its handler going; does not raise."""
        lane = self.lane
        try:
            plan = self.plan = plan_of(lane.roster, self.record)
            value = decode(plan, self.record.payload)
            self.arguments = plan.arguments(value, self.context() if plan.wants else None)
        except Refused as refused:
            self._refuse(refused.end)
            return
        if plan.is_async:
            # Not through the loop's task factory: that one is for tasks that handlers start.
            body = transactional.run(self) if plan.transactional else self._run()
            self.task = asyncio.Task(body, loop=lane.loop, name=plan.name)
        else:
            self.deadline = monotonic() + self.record.timeout_ms / 1000  # until the thread gets to it: not before that
            lane.alarm.set(self.deadline)
            self.watched = True
            lane.floor.threads.submit(self)

    def _refuse(self, end: Blocked | Raised) -> None:
        if isinstance(end, Raised):
            report_failure(self, end.error)
        self._close(end)
        self._leave()

    def _begin(self) -> bool:
        """The handler is about to start, on its task or thread. False if it must not any more."""
        if self.closed:  # its hold was lost while it waited for its first step
            return False
        if self.cancelled:
            self.end = Cancelled(started=False)
            return False
        if self.lane.floor.draining:  # claimed but not started: goes back unspent (M6)
            self.end = GivenBack()
            return False
        begun = monotonic()
        self.deadline = begun + self.record.timeout_ms / 1000
        self.limit = self.deadline + self.plan.overrun_s
        self.begun = begun  # last: the loop takes the deadline for the handler's own from then on
        return True

    async def _run(self) -> None:
        # A GeneratorExit thrown into a task closes what it awaits, and is raised here once more: it is over then.
        try:  # noqa: SIM105 - a context manager costs more, once a record
            await self.awork()
        except BaseException:  # noqa: BLE001, S110
            pass
        self.on_loop()

    async def awork(self) -> None:
        """An async handler's run, up to its `end`; does not raise."""
        lane = self.lane
        value: Any = None
        error: BaseException | None = None
        if self._begin():
            self.watched = True
            if self.deadline < lane.alarm.at:
                lane.alarm.set(self.deadline)
            try:
                current.set(self)
                if lane.floor.before:
                    self._call_hooks(lane.floor.before, "before_attempt hook")
                value = await self.plan.handler(*self.arguments)
            except BaseException as raised:  # noqa: BLE001 - R4: none of them may reach the loop
                error = raised
            if lane.floor.after:
                error = self._after(error)
            self.end = conclude(self, value, error)
            error = None  # its traceback has this frame: no cycle

    def in_thread(self) -> None:
        """A sync handler's whole run, on its thread; does not raise."""
        if self.plan.transactional:
            transactional.in_thread(self)
        else:
            self.work()

    def work(self) -> None:
        """A sync handler's run, up to its `end`; does not raise."""
        value: Any = None
        error: BaseException | None = None
        if not self._begin():
            return
        try:
            current.set(self)
            if self.lane.floor.before:
                self._call_hooks(self.lane.floor.before, "before_attempt hook")
            value = self.plan.handler(*self.arguments)
        except BaseException as raised:  # noqa: BLE001 - R4
            error = raised
        if self.lane.floor.after:
            error = self._after(error)
        self.end = conclude(self, value, error)
        error = None

    # --- ending -------------------------------------------------------------------------------------------

    def on_loop(self) -> None:
        """The handler has ended: its slot is free, and its outcome goes to the settler if it still counts."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.settled is not None and not self.closed:
            self.closed = True
            self.lane.settled(self, self.settled)
        elif self.end is not None and not self.closed:
            self._close(self.end)
        else:
            if not self.closed:  # the keeper's word, that its hold is lost, overtook the call on the loop
                self.lose()
            if self.begun is not None and not self.left:
                say_dropped(self)
        self.end = None
        self._leave()

    def _close(self, end: End) -> None:
        self.closed = True
        if self.unsure:
            self.lane.settler.doubt(self.token)
        self.lane.settle(self, end)

    def _leave(self) -> None:
        # The task's context leads back here (`current`): without that cycle all is freed now, not by the collector,
        # whose share of a short handler's time was a third.
        self.task = None
        if not self.left:
            self.left = True
            self.lane.leave(self)

    def on_deadline(self) -> None:
        """The outcome is fixed as timed out (R3). The async handler is cancelled, once; then it has `overrun`."""
        if self.closed or self.ended is not None or self.timed_out:  # it ended in time; the loop was late to hear of it
            self.watched = False
            return
        if self.begun is None:  # no thread has got to it yet; its time begins then
            self.deadline = monotonic() + self.record.timeout_ms / 1000
            return
        if self.deadline > monotonic() + CLOSE_S:  # a thread got to it in this moment
            return
        self.watched = False
        if self.stop is StopReason.SHUTDOWN:
            return  # it was cancelled for that already: handed back if it ends, else it keeps its lease (M6)
        self.timed_out = True
        self.ask_to_stop(StopReason.DEADLINE)
        self.timer = self.lane.loop.call_later(self.plan.overrun_s, self._on_overrun)

    def _on_overrun(self) -> None:
        """It did not end: settled now, while the lease is held. Its slot stays taken until it ends (R3)."""
        if self.closed or self.ended is not None:
            return
        self.overran = True
        report_failure(self, timeout_error(self), still_runs=True)
        self._close(Cancelled() if self.cancelled else TimedOut())
        self.lane.overrun(self)

    # --- being stopped ------------------------------------------------------------------------------------

    def ask_to_stop(self, reason: StopReason) -> None:
        """Tells the handler why, then cancels it if it is async; the first reason stays, but for a lost hold."""
        if self.stop is None or reason is StopReason.LOST:
            self.stop = reason
        if self.context_made is not None:
            told_to_stop(self.context_made, self.stop)
        if self.task is not None and self.begun is not None and self.ended is None:
            self.task.cancel()

    def cancel(self) -> None:
        """Somebody asked to cancel the record (O4). An async handler that was stopped already is left to clean up."""
        self.cancelled = True
        if self.stop is None and not self.closed and self.ended is None:
            self.ask_to_stop(StopReason.CANCELLED)

    def say_lost_early(self) -> None:
        """From the keeper's thread: a sync handler that looks at its context sees it at once (L3)."""
        self.lost = True
        if self.context_made is not None:
            told_to_stop(self.context_made, StopReason.LOST)

    def lose(self) -> None:
        """The hold is gone (L3): the handler is cancelled, and whatever it does afterwards is dropped."""
        with _gate:
            self.lost = True
            if self.ending:  # its settlement is under way in its own transaction: that one's verdict counts
                transactional.cut_off_later(self)
                return
        if self.closed:
            self.lane.settler.forget(self)
            return
        self.closed = True
        say_lost(self)
        self.lane.lost(self)
        self.ask_to_stop(StopReason.LOST)

    def hold_still(self) -> bool:
        """From here on its own transaction says whether the hold stands (L8). False if it is gone already."""
        with _gate:
            self.ending = not (self.closed or self.lost)
            return self.ending

    def let_go(self) -> None:
        """Its transaction is not committed: the usual rules again."""
        self.ending = False

    def join(self, transaction: HandlerTransaction) -> None:
        """The handler's transaction has begun (L8). Before the handler starts."""
        self.transaction = transaction
        if self.context_made is not None:
            briefing.join(self.context_made, transaction)

    def abandon_unstarted(self) -> None:
        """Its task was cancelled from outside before its first step, so that nothing of it ever ran."""
        if not self.left and self.begun is None and self.task is not None and self.task.done():
            self.end = GivenBack()
            self.on_loop()

    def blame(self, error: BaseException) -> None:
        """A task that the handler started raised what would have ended the loop (R4)."""
        self.stray = error

    # --- for the handler and the hooks --------------------------------------------------------------------

    def context(self) -> Context:
        """The handler's context, made when somebody needs it."""
        if self.context_made is None:
            self.context_made = briefing.context_of(self)
        return self.context_made

    def _after(self, error: BaseException | None) -> BaseException | None:
        try:
            self._call_hooks(self.lane.floor.after, "after_attempt hook")
        except BaseException as raised:  # noqa: BLE001 - R4
            return error or raised
        return error

    def _call_hooks(self, hooks: tuple[Any, ...], what: str) -> None:
        """A failing hook never fails the record (H2); one that raises SystemExit or its like does (R4)."""
        context = self.context()
        for hook in hooks:
            try:
                hook(context)
            except Exception as error:  # noqa: BLE001 - H2
                self.lane.floor.events.complain(hook, error, what)
