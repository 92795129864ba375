"""A look for cancels each poll, for what is in work (O4, K3)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rowlock.hooks import Hooks
from rowlock.runtime.canceller import Canceller
from rowlock.runtime.events import Events
from rowlock.runtime.health import Health
from rowlock.runtime.outage import Guard, Outage
from support.scripted import ScriptedDatabase


def attempt(id_: int, told: list[int]) -> Any:
    return SimpleNamespace(id=id_, cancelled=False, closed=False, ended=None, cancel=lambda: told.append(id_))


async def test_who_is_in_work_is_asked_for_once_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    # contract: O4, K3
    told, slept = list[int](), list[float]()
    held = {"a": attempt(1, told), "b": attempt(2, told)}
    db: Any = ScriptedDatabase(asked=lambda _ids: [2])

    class EnoughError(Exception): ...

    async def sleeps(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            held.clear()
        if len(slept) == 4:
            raise EnoughError

    guard = Guard("canceller", Outage(db, Events(Hooks())), Health().beat("canceller"))
    monkeypatch.setattr("rowlock.runtime.canceller.asyncio", SimpleNamespace(sleep=sleeps))
    with pytest.raises(EnoughError):
        await Canceller(db, guard, held, poll_s=0.25).run()
    assert slept == [0.25] * 4
    assert db.called("asked") == [([1, 2],)] * 2  # and nothing is read while nobody is in work
    assert told == [2, 2]
