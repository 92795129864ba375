"""A newcomer's path: README.md followed to the letter in an empty folder, with a worker that is killed in mid-job.

Once with this interpreter, and once from a clean clone with a virtual environment of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support import pages
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
BOUND = 60.0


class Newcomer:
    """Somebody in an empty folder, who has `bin` on the path and types what README.md shows."""

    def __init__(self, readme: Path, bin: Path, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(bin), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.env = {**kept, "PATH": path, "PYTHONUNBUFFERED": "1"}
        self.blocks = list(pages.blocks(_part(readme.read_text(encoding="utf-8"), "A first job")))
        self.log = folder / "worker.log"
        self.worker: subprocess.Popen[bytes] | None = None

    def block(self, containing: str) -> pages.Block:
        [found] = [block for block in self.blocks if containing in block.code]
        return found

    def types(self, containing: str) -> str:
        """Does what one block says: saves a file, runs Python or a command. Answers what it printed."""
        block = self.block(containing)
        if block.verb == "file":
            (self.folder / block.rest).write_text(block.code, encoding="utf-8")
            return ""
        if block.language == "python":
            return self.runs(["python", "-c", block.code])
        return "".join(self.runs(["bash", "-euc", command]) for command in pages.commands(block.code))

    def runs(self, command: list[str]) -> str:
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=BOUND)
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def starts(self, containing: str) -> None:
        """Starts the worker of a block, and leaves it running."""
        [command] = pages.commands(self.block(containing).code)
        with self.log.open("ab") as log:
            self.worker = subprocess.Popen(
                command.split(), cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def sees(self, text: str) -> None:
        wait_until(lambda: text in self.log.read_text(), BOUND, lambda: f"{text!r} in:\n{self.log.read_text()}")

    def ends(self, *signals: signal.Signals) -> int:
        """Signals for the worker; answers its exit code."""
        assert self.worker is not None
        for number in signals:
            self.worker.send_signal(number)
        code = self.worker.wait(BOUND)
        self.worker = None
        return code

    def leaves(self) -> None:
        if self.worker is not None:
            os.killpg(self.worker.pid, signal.SIGKILL)
            self.worker.wait(BOUND)


def _part(text: str, heading: str) -> str:
    """A chapter of the page, with its sections."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## )", text, re.DOTALL | re.MULTILINE)
    assert found, f"README.md has no chapter {heading!r}"
    return found[1]


@pytest.fixture
def people() -> Iterator[list[Newcomer]]:
    made: list[Newcomer] = []
    yield made
    for person in made:
        person.leaves()


def follow(person: Newcomer) -> None:
    """The whole chapter."""
    person.types("def send_welcome(")
    person.types("rowlock migrate")
    person.types("send_welcome.enqueue(")
    person.starts("rowlock run shop:app")
    person.sees("welcome, customer 1")
    assert person.ends(signal.SIGTERM) == 0

    person.types("def pack(")
    person.types("pack.enqueue(")
    person.starts("rowlock run parcels:app")
    person.sees("packing, attempt 1")
    assert person.ends(signal.SIGKILL) == -signal.SIGKILL
    with closing(sqlite3.connect(person.folder / "shop.db")) as file:
        assert file.execute("SELECT state, attempt FROM rowlock_job WHERE job = 'shop.pack'").fetchall() == [
            ("running", 1)
        ]

    person.starts("rowlock run parcels:app")
    person.sees("packing, attempt 2")
    person.sees("packed")
    assert person.ends(signal.SIGTERM) == 0
    said = person.types("rowlock records list")
    assert "shop.pack" in said
    assert "shop.send_welcome" in said
    assert "running" not in said
    assert re.search(r"attempt\W+2", said), said
    assert "customer 1" in person.log.read_text()
    assert person.log.read_text().count("packed") == 1


def test_the_readme_leads_from_an_empty_folder_through_a_crash(people: list[Newcomer], tmp_path: Path) -> None:
    # contract: L7, C4, M6
    people.append(person := Newcomer(ROOT / "README.md", Path(sys.executable).parent, tmp_path))
    follow(person)


@pytest.mark.slow
def test_a_clean_clone_and_a_new_environment_lead_there_too(people: list[Newcomer], tmp_path: Path) -> None:
    # contract: L7, C4, M6
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout, so nothing can be cloned")
    clone, folder = tmp_path / "rowlock", tmp_path / "shop"
    folder.mkdir()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, timeout=120)
    made = subprocess.run(["make", "venv"], cwd=clone, capture_output=True, text=True, timeout=900)
    assert made.returncode == 0, made.stdout + made.stderr
    people.append(person := Newcomer(clone / "README.md", clone / ".venv" / "bin", folder))
    where = person.runs(["python", "-c", "import rowlock; print(rowlock.__file__)"])
    assert where.startswith(str(clone)), "the clone's own package is what is tried"
    follow(person)
