"""What all parts of one worker share: its loop, its threads, its word to stop, and where it reports to."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable

from rowlock.model.context import Context
from rowlock.runtime.events import Events
from rowlock.runtime.health import Health
from rowlock.runtime.metrics import Tally
from rowlock.runtime.pool import Threads

FailureListener = Callable[[BaseException, Context], object]


class Floor:
    """Made by the worker when it starts, on its loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: Threads, events: Events, health: Health, *,
        jitter: Callable[[], float] = random.random, on_failure: FailureListener | None = None,
        tally: Tally | None = None,
    ) -> None:  # fmt: skip
        self.loop = loop
        self.thread = threading.get_ident()
        self.threads = threads
        self.events = events
        self.health = health
        self.tally = tally or Tally()
        self.jitter = jitter
        self.draining = False
        """Set once, from a signal handler too: from then on nothing is claimed and nothing claimed is started."""
        hooks = events.hooks
        self.before = tuple(hooks.before_attempt)
        self.after = tuple(hooks.after_attempt)
        self.failure = (*hooks.on_failure, *(() if on_failure is None else (on_failure,)))
        # Asked once: an event that nobody listens to must cost nothing a record (H2).
        self.tell_claimed = events.wanted("claimed")
        self.tell_settled = events.wanted("settled")
