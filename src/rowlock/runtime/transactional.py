"""An attempt whose handler works in a transaction that commits together with its settlement, or not at all (L8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING

from rowlock.model.outcome import Cancelled, GivenBack, Raised, Returned, Settlement, is_outcome
from rowlock.runtime import faults
from rowlock.runtime.describe import log, trace
from rowlock.runtime.outage import DATABASE_FAILURES
from rowlock.runtime.verdict import report_failure
from rowlock.store.settle import Verdict

if TYPE_CHECKING:
    from rowlock.runtime.attempt import Attempt
    from rowlock.store.transactional import HandlerTransaction

FINISHING = frozenset({"ack", "drop", "dead"})
"""The outcomes that end the work: with them its effects are committed. What is tried again must not have happened."""
AGAIN_S = 0.1
LATER_S = 1.0


def in_thread(attempt: Attempt) -> None:
    """A sync handler's whole run, on its thread; does not raise."""
    guard = attempt.lane.handlers_guard
    try:
        with attempt.lane.handlers.open() as transaction:
            guard.worked()
            attempt.join(transaction)
            attempt.work()
            settlement = _committed_with(attempt)
            if settlement is not None:
                for _ in _ending(attempt, transaction, settlement):
                    time.sleep(AGAIN_S)
    except BaseException as error:  # noqa: BLE001 - a thread of ours goes on whatever a database does
        pause = _failed(attempt, error)
        if pause:
            time.sleep(pause)


async def run(attempt: Attempt) -> None:
    """An async handler's whole run, as its task; does not raise."""
    guard = attempt.lane.handlers_guard
    try:
        async with attempt.lane.handlers.aopen(guard.patience_s) as transaction:
            guard.worked()
            attempt.join(transaction)
            try:
                await attempt.awork()
            except BaseException:
                if attempt.ended is None:  # else it is a GeneratorExit, raised once more (see `Attempt._run`)
                    raise
            transaction.dropped = attempt.stop is not None
            settlement = _committed_with(attempt)
            if settlement is not None and transaction.dropped:
                # It went to its end all the same, but the cancellation may have hit a statement: nothing is committed.
                attempt.end = Cancelled() if attempt.cancelled else GivenBack(shutdown=True)
                attempt.let_go()
            elif settlement is not None:
                # An answer that the network swallowed would hold the slot for ever (K2).
                left_s = max(0.0, attempt.limit - monotonic())
                async with attempt.lane.handlers.within(left_s + guard.patience_s):
                    await _end_with(attempt, transaction, settlement)
    except BaseException as error:  # noqa: BLE001 - R4: nothing of it may reach the loop
        pause = _failed(attempt, error)
        if pause:
            await asyncio.sleep(pause)
    attempt.on_loop()


async def _end_with(attempt: Attempt, transaction: HandlerTransaction, settlement: Settlement) -> None:
    conn = transaction.aconnection
    assert conn is not None
    waits = _ending(attempt, transaction, settlement)
    while await conn.run_sync(lambda _: next(waits, False)):  # noqa: ASYNC110 - another session's lock has no event
        await asyncio.sleep(AGAIN_S)


def _ending(attempt: Attempt, transaction: HandlerTransaction, settlement: Settlement) -> Iterator[bool]:
    """Commits the handler's work with its settlement; yields while somebody else has the row, for a pause."""
    if not _prepared(attempt, transaction):
        return
    while (verdict := transaction.settle(settlement)) is Verdict.BUSY and monotonic() < attempt.limit:
        yield True
    if verdict is not Verdict.SETTLED:
        attempt.end = None  # its hold is gone: told by `on_loop`, and nothing of it is committed
        attempt.let_go()
        return
    attempt.unsure = True
    transaction.commit()
    attempt.unsure = False
    attempt.settled = settlement


def cut_off_later(attempt: Attempt) -> None:
    """Its hold is gone: an answer that has not come by then never does, and would keep the thread for ever (K2)."""
    if attempt.transaction is not None:
        attempt.lane.loop.call_later(attempt.lane.handlers_guard.patience_s, attempt.transaction.cut_off)


def _committed_with(attempt: Attempt) -> Settlement | None:
    """The settlement that commits with the handler's work; None if its work is to be undone."""
    end = attempt.end
    if end is None or not (isinstance(end, Returned) or (isinstance(end, Raised) and is_outcome(end.error))):
        return None
    settlement = attempt.lane.settlement(attempt, end)
    return settlement if settlement.outcome in FINISHING and attempt.hold_still() else None


def _prepared(attempt: Attempt, transaction: HandlerTransaction) -> bool:
    """Whether the handler's writes went well, and nobody ended its transaction. If not, the attempt has failed."""
    try:
        faults.hit("settling")
        transaction.finish()
    except asyncio.CancelledError:  # the bound of its end: the connection must not be used again
        raise
    except BaseException as error:  # noqa: BLE001 - what a flush or a constraint raises is the handler's failure
        _fail(attempt, error)
        return False
    return True


def _failed(attempt: Attempt, error: BaseException) -> float:
    """What was not the handler's doing: the seconds to wait before the attempt is given back, 0 if it had begun."""
    if attempt.settled is not None:  # committed; giving the connection back failed
        return 0.0
    if attempt.begun is None:
        attempt.end = GivenBack()
        guard = attempt.lane.handlers_guard
        if isinstance(error, DATABASE_FAILURES):
            return guard.failed(error)
        log.error("a handler's transaction could not begin: %s; its record goes back", trace(error))
        guard.beat.failed(error)
        return LATER_S
    _fail(attempt, error)
    return 0.0


def _fail(attempt: Attempt, error: BaseException) -> None:
    report_failure(attempt, error)
    attempt.end = Raised(error)
    attempt.let_go()
