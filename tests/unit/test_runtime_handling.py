"""The one place of a file's transactional handlers: one holder over processes, and a gap after each (L8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rowlock.runtime.handling import Alone
from rowlock.store.place import Place


class Hand:
    """A loop whose timer a test rings by hand."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, ring: Callable[[], None]) -> None:
        self.timers.append((delay, ring))


@pytest.mark.parametrize(("took_s", "gap_s"), [(0.0, 0.002), (0.05, 0.05), (3_600.0, 0.11)])
def test_between_two_handlers_the_file_is_free_for_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_s: float, gap_s: float
) -> None:
    # contract: L8
    """As long as the handler had it, and not longer than a tenth of a second; nobody takes the place meanwhile."""
    now, woken, loop = [100.0], list[str](), Hand()
    monkeypatch.setattr("rowlock.runtime.handling.monotonic", lambda: now[0])
    here, elsewhere, source = Place(tmp_path / "place"), Place(tmp_path / "place"), object()
    alone = Alone(here, source, source)  # type: ignore[arg-type]
    assert alone.take(lambda: woken.append("wake"))
    assert not elsewhere.take()
    now[0] += took_s
    given: Any = loop
    alone.leave(given)
    [(delay, ring)] = loop.timers
    assert delay == pytest.approx(gap_s)
    assert not elsewhere.take()
    assert not alone.take(lambda: None)
    assert woken == []
    ring()
    assert woken == ["wake"]
    assert elsewhere.take()
    assert not alone.take(lambda: None)
    elsewhere.give_back()
