"""Where measurements go: a line for people, and a line of JSON in a file that later runs can go on from."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Results:
    """Appends to `path`. With `resume` what a line there is about is not measured again."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self._there: set[str] = set()
        if resume and path.exists():
            text = path.read_text(encoding="utf-8")
            if text and not text.endswith("\n"):  # a run that was killed while it wrote
                with path.open("a", encoding="utf-8") as file:
                    file.write("\n")
            for line in text.splitlines():
                try:
                    row = json.loads(line)
                    self._there.add(_name(row["database"], row["part"], row["of"]))
                except (ValueError, KeyError, TypeError):
                    continue  # cut off in the middle of a line: measured again

    def has(self, database: str, part: str, of: Mapping[str, Any]) -> bool:
        """Whether this stands in the file already."""
        return _name(database, part, of) in self._there

    def add(self, database: str, part: str, of: Mapping[str, Any], row: Mapping[str, Any], text: str) -> None:
        """Prints and keeps one measurement."""
        print(f"{database:<11}{part:<8} {text}", flush=True)
        line = {"at": time.time(), "database": database, "part": part, "of": dict(of), **row}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _name(database: str, part: str, of: Mapping[str, Any]) -> str:
    return json.dumps([database, part, of], sort_keys=True)
