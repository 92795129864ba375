"""docs/errors.md has every error that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from rowlock import errors
from rowlock.model import answer

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def test_the_page_on_errors_is_complete() -> None:
    # contract: Z1
    there = {name for module in (errors, answer) for name, value in vars(module).items() if _is_error(value)}
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == there - {"RowlockError"}


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, errors.RowlockError)
