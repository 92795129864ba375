"""The records in work of one database, by token: a dict that the worker's loop writes and others read.

Single operations on a dict are atomic, so there is no lock that the loop and the keeper's thread would wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rowlock.runtime.attempt import Attempt


def snapshot(held: Mapping[str, Attempt]) -> list[Attempt]:
    """The attempts at this moment."""
    while True:
        try:
            return list(dict(held).values())
        except RuntimeError:  # the collector ran in the middle of the copy, and let the other thread in
            continue
