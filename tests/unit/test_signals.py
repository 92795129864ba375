"""When a signal drains, when it ends the process, and when it is only an echo. contract: M6"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from rowlock.runtime import signals
from rowlock.runtime.signals import ECHO_S, Signals


class Loop:
    def call_soon_threadsafe(self, soon: Any) -> None:
        soon()


class Left(Exception):
    """The process would have ended."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])

    def leave(_why: str) -> None:
        raise Left

    monkeypatch.setattr(signals, "leave_now", leave)
    return now


def attached(told: list[str]) -> Signals:
    made = Signals()
    made.attach(Loop(), lambda: told.append("gate"), lambda: told.append("stop"))  # type: ignore[arg-type]
    return made


def test_the_same_signal_at_once_is_an_echo_of_the_first(clock: list[float]) -> None:
    told = list[str]()
    handler = attached(told)
    handler._handle(signal.SIGTERM, None)
    clock[0] += ECHO_S / 2
    handler._handle(signal.SIGTERM, None)
    handler._handle(signal.SIGTERM, None)
    assert told == ["gate", "stop"]
    clock[0] += ECHO_S
    with pytest.raises(Left):
        handler._handle(signal.SIGTERM, None)


def test_the_other_signal_is_a_second_one_whenever_it_comes(clock: list[float]) -> None:
    handler = attached([])
    handler._handle(signal.SIGTERM, None)
    with pytest.raises(Left):
        handler._handle(signal.SIGINT, None)
