"""A place that one holder at a time has, over all processes of a machine: an OS lock on a side file.

It is given back by the system when its process dies, however that happens.
"""

from __future__ import annotations

import os
from pathlib import Path


class Place:
    """The place that the file `path` stands for. Not to be taken twice by one object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None

    def take(self) -> bool:
        """Takes it if it is free; never waits. Raises OSError if the file can not be made."""
        if self._held is not None:
            return False
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            free = _lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if not free:
            os.close(descriptor)
            return False
        self._held = descriptor
        return True

    def is_taken(self) -> bool:
        """Whether anybody has it at this moment. From any thread: it asks by a descriptor of its own."""
        if self._held is not None:
            return True
        if not self.path.exists():
            return False
        asking = Place(self.path)
        free = asking.take()
        asking.give_back()
        return not free

    def give_back(self) -> None:
        """It is free again. Nothing happens if it is not held."""
        descriptor, self._held = self._held, None
        if descriptor is not None:
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return _lock_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_windows(descriptor: int) -> bool:
    import msvcrt

    locking, mode = getattr(msvcrt, "locking"), getattr(msvcrt, "LK_NBLCK")  # noqa: B009 - not there elsewhere
    try:
        locking(descriptor, mode, 1)
    except OSError:
        return False
    return True
