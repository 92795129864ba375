"""Reading a folder of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_ARTICLES = 300
MOST_BYTES = 1_048_576

_TITLE = re.compile(r"^#{1,2}\s+(.+?)\s*#*\s*$", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---\s*\n.*?\n---\s*\n", re.DOTALL)
_MARKUP = re.compile(r"[`*_]|!?\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Story:
    """One Markdown file."""

    slug: str
    title: str
    source: str
    body: str


def stories(paths: Iterable[Path]) -> tuple[list[Story], list[str]]:
    """The stories of these folders and files, and a sentence for each thing that was left out."""
    found: list[Story] = []
    notes: list[str] = []
    taken = {"index"}  # the front page
    for path in paths:
        for file in _files(path):
            if len(found) == MOST_ARTICLES:
                return found, [*notes, f"only the first {MOST_ARTICLES} articles are taken"]
            if file.stat().st_size > MOST_BYTES:
                notes.append(f"{file} is left out: it is larger than 1 MiB")
                continue
            story = _story(file, path, taken)
            taken.add(story.slug)
            found.append(story)
    return found, notes


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*.md")):
        # Not what tools and environments keep below a project.
        hidden = any(part.startswith((".", "node_modules")) for part in file.relative_to(path).parts)
        if not hidden and file.is_file():
            yield file


def _story(file: Path, root: Path, taken: set[str]) -> Story:
    text = file.read_bytes().decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    body = _FRONT_MATTER.sub("", text)
    heading = _TITLE.search(body)
    title = _MARKUP.sub(r"\1", heading[1]) if heading else file.stem
    name = file.relative_to(root) if root.is_dir() else Path(file.name)
    plain = re.sub(r"[^a-z0-9]+", "-", str(name.with_suffix("")).lower()).strip("-")[:80] or "article"
    slug, number = plain, 1
    while slug in taken:
        number += 1
        slug = f"{plain}-{number}"
    return Story(slug, title[:200], str(file), body)
