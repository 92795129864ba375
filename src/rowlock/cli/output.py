"""What commands print: tables for people, one JSON document for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "dead": "red",
    "blocked": "yellow",
    "cancelled": "dim",
}
"""How a terminal shows the words of a `state` column."""
GAP = "  "


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their headings: drawn on a terminal, plain aligned text elsewhere."""
    rows = [[readable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _drawn(columns, rows)
        return
    widths = [max(len(row[n]) for row in [columns, *rows]) for n in range(len(columns))]
    for row in [columns, *rows]:
        line(GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in columns:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        styled = zip(columns, row, strict=True)
        drawn.add_row(*(Text(cell, style=STYLES.get(cell, "") if name == "state" else "") for name, cell in styled))
    Console().print(drawn)


def document(value: Any) -> None:
    """Print one JSON document. Times are in UTC and end in Z."""
    import msgspec

    line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def line(text: str) -> None:
    """Print a line on stdout."""
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """Print a line on stderr: for people, beside what a program may read from stdout."""
    sys.stderr.write(f"{text}\n")


def readable(text: str) -> str:
    """Stored text as a terminal may get it: what could move its cursor is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, most: int = 60) -> str:
    """At most so many characters of it."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def instant(when: datetime | None) -> str:
    """A time in UTC, to the second."""
    return "" if when is None else f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
