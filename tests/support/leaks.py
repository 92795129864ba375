"""What a test left behind: threads, asyncio tasks, database sessions, a lock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from support.databases import Database, SQLite
from support.waiting import TookTooLong, wait_until

GRACE = 10.0  # seconds; servers notice a closed connection a moment later, busy ones later than that


class LeakWatch:
    """Taken before a test; `findings()` after it says what is there that was not there before."""

    def __init__(self, database: Database | None, patch: pytest.MonkeyPatch) -> None:
        self.database = database
        self.threads = set(threading.enumerate())
        self.tasks: list[str] = []
        # asyncio.run cancels what is left over without a word; the test should hear of it.
        cancel_all = asyncio.runners._cancel_all_tasks

        def noting(loop: asyncio.AbstractEventLoop) -> None:
            self.tasks += [
                f"task {task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks(loop) if not task.done()
            ]
            cancel_all(loop)

        patch.setattr(asyncio.runners, "_cancel_all_tasks", noting)

    def findings(self) -> list[str]:
        found = list(self.tasks)
        found += _that_stays(lambda: [f"thread {thread.name}" for thread in set(threading.enumerate()) - self.threads])
        if self.database:
            found += _that_stays(self.database.sessions)
            if isinstance(self.database, SQLite) and self.database.path.exists() and self.database.locked():
                found.append("the write lock of the SQLite file")
        return found


def _that_stays(look: Callable[[], list[str]]) -> list[str]:
    try:
        wait_until(lambda: not look(), GRACE)
    except TookTooLong:
        return look()
    return []
