"""The place that one holder at a time has, over processes (L8)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rowlock.store.place import Place

HOLD = "import sys; from pathlib import Path; from rowlock.store.place import Place; "


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    # contract: L8
    one, other = Place(tmp_path / "place"), Place(tmp_path / "place")
    assert not one.is_taken()
    assert one.take()
    assert not one.take()
    assert not other.take()
    assert one.is_taken()
    assert other.is_taken()
    one.give_back()
    assert not other.is_taken()
    assert other.take()
    other.give_back()


def test_it_is_free_again_when_its_process_has_died(tmp_path: Path) -> None:
    # contract: L8
    path = tmp_path / "place"
    source = (
        f"{HOLD}place = Place(Path({str(path)!r})); assert place.take(); print('taken', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"taken\n"
        assert Place(path).is_taken()
        holder.kill()
        holder.wait()
        place = Place(path)
        assert place.take()
        place.give_back()
