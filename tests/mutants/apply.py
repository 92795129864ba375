"""Changing texts of a tree, and putting them back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mutants.catalogue import Mutant

ROOT = Path(__file__).parents[2]


class NotThere(ValueError):
    """The source has moved on; the catalogue must follow."""


def changed(tree: Path, mutant: Mutant) -> dict[Path, str]:
    """The mutant's files as they would be. Raises `NotThere`."""
    texts: dict[Path, str] = {}
    for change in mutant.changes:
        path = tree / change.file
        text = texts.get(path) or path.read_text()
        if change.old not in text:
            raise NotThere(
                f"mutant {mutant.name!r} ({', '.join(mutant.databases)}): {change.file} has no {change.old!r}"
            )
        texts[path] = text.replace(change.old, change.new)
    return texts


@contextmanager
def mutate(tree: Path, mutant: Mutant) -> Iterator[None]:
    """In a copy, never in the tree that somebody works in."""
    assert tree.resolve() != ROOT.resolve()
    texts = changed(tree, mutant)
    before = {path: path.read_text() for path in texts}
    try:
        for path, text in texts.items():
            path.write_text(text)
        yield
    finally:
        for path, text in before.items():
            path.write_text(text)
