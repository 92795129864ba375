"""docs/deployment.md has every setting, with its default and its bounds; docs/jobs.md has every option."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from rowlock import EnqueueOptions, JobOptions, Settings
from rowlock.model.settings_read import Whole

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"


def rows() -> dict[str, str]:
    """The table's rows by the settings that they are about; names of the user's own as `*`."""
    found: dict[str, str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            for key in re.findall(r"`([a-z_]+\.[a-z_.<>]+)`", line.split("|")[1]):
                found[re.sub(r"<\w+>", "*", key)] = line
    return found


def declared() -> set[str]:
    return {
        f"{part}.{'*.' if part == 'database' else ''}{name}{'.*' if name in ('queues', 'overrides') else ''}"
        for part in ("database", "runtime", "http", "health", "job", "retention")
        for name in struct_of(part).__struct_fields__
    }


def struct_of(part: str) -> type[msgspec.Struct]:
    if part == "database":
        return type(Settings.load({"database": {"default": {"url": "sqlite:///a.db"}}}).database["default"])
    return type(getattr(Settings(), part))


def test_the_table_of_settings_is_complete() -> None:
    # contract: M1, M2
    assert set(rows()) == declared()


@pytest.mark.parametrize(("path", "bound"), [item for item in Settings.bounds().items() if isinstance(item[1], Whole)])
def test_a_bound_on_the_page_is_that_of_the_code(path: str, bound: Whole) -> None:
    # contract: M2
    assert f"{bound.low:,}..{bound.high:,}" in rows()[path]


@pytest.mark.parametrize("part", ["runtime", "job"])
def test_a_default_on_the_page_is_that_of_the_code(part: str) -> None:
    # contract: M2
    settings = getattr(Settings(), part)
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, int):
            cells = rows()[f"{part}.{name}"].split("|")
            assert cells[2].strip() == f"{value:,}", name


def test_the_tables_of_options_are_complete() -> None:
    # contract: J1, E1
    page = (PAGE.parent / "jobs.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    assert named >= set(JobOptions.__annotations__) | set(EnqueueOptions.__annotations__)
