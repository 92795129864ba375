"""Prepares what the demo needs, gives it, and tidies up."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rowlock.demo.reading import Story, stories
from rowlock.demo.screen import Screen
from rowlock.errors import RowlockError

OWN = Path(__file__).parent / "articles"
"""The articles that the package brings along."""
FEWEST = 3
"""One whose source fails, one whose worker dies, one with an embargo."""
OF_A_DEMO = {"newsroom.db", "newsroom.db-wal", "newsroom.db-shm", "worker-a.log", "worker-b.log", "pages"}


class DemoError(RowlockError):
    """The demo can not be given, or did not come to its end."""


def show(inputs: Sequence[Path], output: Path | None, *, keep: bool = False) -> int:
    """Run the demo; answers 0, or 1 if a claim does not hold.

    Arguments: `inputs` folders and files of Markdown, the package's own articles if empty; `output` where database,
    pages and logs are written and stay, a temporary directory if None, which stays with `keep`. Raises DemoError.
    """
    read, notes = _read(inputs)
    screen = Screen()
    with _home(output, keep=keep) as home:
        screen.title("Rowlock's newsroom", f"{len(read)} articles, two workers, one SQLite file")
        for note in notes:
            screen.text(f"         {note}")
        os.environ["ROWLOCK_DEMO_HOME"] = str(home)
        from rowlock.demo.play import Play  # its newsroom takes its place from the environment

        held = Play(home, screen).run(read)
    if output is not None or keep:
        screen.text(f"\nThe pages: {home / 'pages' / 'index.html'}\nThe tables: {home / 'newsroom.db'}")
    return 0 if held else 1


def _read(inputs: Sequence[Path]) -> tuple[list[Story], list[str]]:
    if missing := [path for path in inputs if not path.exists()]:
        raise DemoError(f"--input {missing[0]}: there is no such file or folder; give one with Markdown in it")
    read, notes = stories(inputs or [OWN])
    if not read:
        raise DemoError(
            f"--input {', '.join(map(str, inputs))}: no Markdown file is in it; give a folder with *.md files"
        )
    if len(read) < FEWEST:
        notes.append(
            f"{FEWEST - len(read)} of the {FEWEST} articles are Rowlock's own, as fewer can not show everything"
        )
        read = stories([*inputs, OWN])[0][:FEWEST]
    return read, notes


@contextmanager
def _home(output: Path | None, *, keep: bool) -> Generator[Path]:
    """The demo's directory, with an empty `pages` in it; only what a demo leaves is ever deleted."""
    if output is None:
        home = Path(tempfile.mkdtemp(prefix="rowlock-demo-"))
    else:
        home = output.absolute()
        _emptied(home)
    (home / "pages").mkdir()
    try:
        yield home
    except Exception:
        keep = keep or (output is None and any(home.glob("worker-*.log")))  # somebody will want to know why
        raise
    finally:
        if output is None and not keep:
            shutil.rmtree(home, ignore_errors=True)


def _emptied(home: Path) -> None:
    if home.exists() and not home.is_dir():
        raise DemoError(f"--output {home} is no directory; name one that is empty, or is not there yet")
    home.mkdir(parents=True, exist_ok=True)
    there = {path.name for path in home.iterdir()}
    if others := sorted(there - OF_A_DEMO):
        raise DemoError(f"--output {home} has something else in it ({others[0]}); name a directory of the demo's own")
    for name in there:
        path = home / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
