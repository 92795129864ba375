"""Keeps a background loop going that ended by a defect; a database failure never gets here (H1, K2)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic

from rowlock.runtime.describe import log, trace
from rowlock.runtime.health import Beat
from rowlock.runtime.outage import Pauses

ENDS = 5
WITHIN_S = 60.0


def _is_cancelled() -> bool:
    """Whether somebody asked for it; a driver or a library may raise CancelledError by itself."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def supervised(body: Callable[[], Awaitable[None]], beat: Beat, on_stuck: Callable[[str], None]) -> None:
    """Runs `body` until it returns or this is cancelled; restarts it with growing pauses when it raises.

    After five ends within a minute it gives up and calls `on_stuck` with a sentence: the process then drains (H1).
    """
    ends: deque[float] = deque(maxlen=ENDS)
    pauses = Pauses()
    while True:
        try:
            await body()
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit in a loop of ours must not end the process either
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            beat.failed(error)
            ends.append(monotonic())
            log.error("the loop %r ended by a defect, and is restarted: %s", beat.name, trace(error))
            stuck = len(ends) == ENDS and ends[-1] - ends[0] < WITHIN_S
        else:
            return
        if stuck:
            on_stuck(f"the loop {beat.name!r} ended {ENDS} times within a minute (H1)")
            return
        await asyncio.sleep(pauses.next())
