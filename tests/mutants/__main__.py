"""`make mutants`: leaves out each condition of tests/mutants/catalogue.py in a copy of the tree, and runs the tests
that must notice. Prints a table; the exit code is 1 if one survives.

Words behind the command choose mutants by their names, and databases: `make mutants ARGS="rescue sqlite"`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mutants.apply import ROOT, mutate
from mutants.catalogue import EVERY, MUTANTS, Mutant

LONGEST_S = 300
COPIED = ("src", "tests", "docs", "pyproject.toml", "README.md")


def main(words: list[str]) -> int:
    databases = [word for word in words if word in EVERY] or list(EVERY)
    names = [word for word in words if word not in EVERY]
    survived = 0
    print(f"{'database':11} {'what is left out':66} killed by")
    with tempfile.TemporaryDirectory(prefix="rowlock-mutants-") as folder:
        tree = Path(folder)
        for part in COPIED:
            source = ROOT / part
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, tree / part)
        for mutant, database in _wanted(names, databases):
            killer = _killer(tree, mutant, database)
            survived += killer is None
            print(f"{database:11} {mutant.name:66} {killer or 'SURVIVED'}", flush=True)
    print(f"{survived} survived" if survived else "none survived")
    return 1 if survived else 0


def _wanted(names: list[str], databases: list[str]) -> Iterator[tuple[Mutant, str]]:
    for mutant in MUTANTS:
        for database in databases:
            if database in mutant.databases and all(name in mutant.name for name in names):
                yield mutant, database


def _killer(tree: Path, mutant: Mutant, database: str) -> str | None:
    """The first test that fails; None if all pass. What can not be run at all is an error, no death."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-k", database]
    with mutate(tree, mutant):
        try:
            run = subprocess.run(
                [*command, *mutant.tests],
                cwd=tree, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"nothing ended within {LONGEST_S} s"
    failed = re.search(r"^(?:FAILED|ERROR) \S+?::(.+?)(?: - |$)", run.stdout, re.MULTILINE)
    if run.returncode == 0:
        return None
    if run.returncode != 1 or failed is None:
        raise SystemExit(
            f"{mutant.name}, {database}: the tests did not run\n{run.stdout[-2_000:]}{run.stderr[-2_000:]}"
        )
    return failed[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
