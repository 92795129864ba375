"""Tasks that have to end do, also when a driver loses the first word (M6, K2)."""

from __future__ import annotations

import asyncio

from rowlock.runtime import bounds
from rowlock.runtime.bounds import end_all


# contract: M6
async def test_a_task_that_forgets_a_cancellation_is_told_again(monkeypatch) -> None:
    monkeypatch.setattr(bounds, "AGAIN_S", 0.01)
    forgotten = 0

    async def forgets() -> None:
        nonlocal forgotten
        while forgotten < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                forgotten += 1
        await asyncio.Event().wait()

    async def fails() -> None:
        raise ValueError

    tasks = [asyncio.ensure_future(one) for one in (forgets(), fails())]
    await asyncio.sleep(0)
    await asyncio.wait_for(end_all(tasks), 5)
    assert forgotten == 2
    assert tasks[0].cancelled()
    await end_all([])
