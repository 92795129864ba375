"""What the house asks of its own files, where no linter does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LONGEST = 320
# The kits that stand for the world outside: they poll, delay, and hold handlers.
MAY_SLEEP = (
    "tests/kill/",
    "tests/support/waiting.py",
    "tests/support/proxy.py",
    "tests/support/effects.py",
    "tests/support/schedulers.py",
)


def offending(files: list[Path], pattern: str, but_not: tuple[str, ...] = ()) -> list[str]:
    """file:line of every match; `but_not` are beginnings of paths that may."""
    found = []
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        if not name.startswith(but_not):
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                if re.search(pattern, line):
                    found.append(f"{name}:{number}: {line.strip()}")
    return found


def test_rooms_are_small() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in SOURCE}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_only_the_dialects_know_which_database_it_is() -> None:
    by_dialect = r"dialect(\.name|_name)?\s*(==|!=|\bin\b|\bnot in\b)"
    by_word = r"""\.name\s*(==|!=)\s*["'](sqlite|postgresql|mysql|mariadb)"""
    assert offending(SOURCE, f"{by_dialect}|{by_word}", ("src/rowlock/store/dialects/",)) == []


def test_tests_wait_for_facts_and_do_not_sleep() -> None:
    # sleep(0) gives way to other tasks and waits for nothing.
    me = Path(__file__).relative_to(ROOT).as_posix()
    sleeping = r"(?<![\w`])((asyncio|time)\.)?sleep\((?!0\))"
    assert offending(TESTS, sleeping, (*MAY_SLEEP, me)) == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="asks git which files are the project's")
def test_texts_are_about_the_project_only() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    words = re.compile("|".join(("cla" + "ude", "chat" + "gpt", "cop" + "ilot", "sub" + "agent")), re.IGNORECASE)
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if words.search(name) or (path.is_file() and words.search(path.read_text(encoding="utf-8", errors="ignore"))):
            found.append(name)
    assert found == []
