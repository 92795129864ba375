"""Real worker processes (`rowlock run`), an effects table, and signals at named points.

kit = kill_kit('''
@jobs.job(name="work", max_attempts=3, timeout=30)
async def work(ctx: Context) -> None:
    note("start", ctx)
    await ahold("middle", ctx)
    note("end", ctx)
''', job={"lease_ms": 1000})
kit.module.work.enqueue()
worker = kit.start()
kit.wait_for("middle")
worker.kill()
"""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import effects, ready
from support.databases import Database
from support.effects import Effect, release
from support.waiting import BOUND, wait_until
from support.zygote import Forked

URL = "ROWLOCK_TEST_URL"
TESTS = Path(__file__).parents[1]

HEADER = """\
import asyncio
import os
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

from rowlock import *
from rowlock import App, Context, Jobs

from support.effects import ahold, hold, listen, note

jobs = Jobs()
"""
FOOTER = """
settings = {settings!r}
settings["database"]["default"]["url"] = os.environ["ROWLOCK_TEST_URL"]
app = App(settings=settings)
app.include(jobs)
"""


class Worker:
    """One process. Whatever the test does, it is reaped at its end."""

    def __init__(self, command: list[str], folder: Path, url: str, number: int, *, fork: bool = False) -> None:
        """`fork`: of a process that has imported everything already; `command` is then what follows `rowlock`."""
        self.command = ["rowlock", *command] if fork else command
        self._log = folder / f"worker-{number}.log"
        paths = [str(folder), str(TESTS), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, URL: url, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
        self._log.touch()
        # A session of its own: signals reach this worker only, and its children can be ended with it.
        self.process: Forked | subprocess.Popen[bytes]
        if fork:
            self.process = Forked(command, folder, env, self._log)
        else:
            with self._log.open("wb") as log:
                self.process = subprocess.Popen(
                    command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
        self.pid = self.process.pid

    @property
    def stderr(self) -> str:
        """What it printed so far, to stderr and stdout."""
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def ready(self, timeout: float = BOUND) -> Worker:
        """Wait for its line `ready: …`; from then on it claims."""
        wait_until(lambda: "ready:" in self.stderr or not self.running, timeout, self._story)
        assert "ready:" in self.stderr, self._story()
        return self

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.process.wait(BOUND)

    def term(self) -> None:
        self.signal(signal.SIGTERM)

    def interrupt(self) -> None:
        self.signal(signal.SIGINT)

    def pause(self) -> None:
        """SIGSTOP: the whole process stands still, its renewals too."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def wait(self, timeout: float = 40.0) -> int:
        """Its exit code, once it has ended by itself or by a signal."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout:g} s. {self._story()}") from None

    def reap(self) -> None:
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)
            self.process.wait(BOUND)

    def _story(self) -> str:
        return f"{' '.join(self.command[1:])} (pid {self.pid}) printed:\n{self.stderr}"


class KillKit:
    """An application in a folder of its own, run by any number of processes; `module` is it in this process."""

    def __init__(
        self,
        source: str,
        folder: Path,
        database: Database,
        patch: pytest.MonkeyPatch,
        *,
        after: str = "",
        **settings: Any,
    ) -> None:
        """`after` is source that needs `app`."""
        self.folder, self.database, self.url = folder, database, database.url
        self.name = f"app_{secrets.token_hex(4)}"
        self.workers: list[Worker] = []
        settings = {"database": {"default": {}}, "runtime": {"mode": "worker"}, **settings}
        text = HEADER + textwrap.dedent(source) + FOOTER.format(settings=settings)
        text += textwrap.dedent(after)
        (folder / f"{self.name}.py").write_text(text)
        patch.setenv(effects.FILE, "")  # put back to what it was after the test
        patch.setenv(URL, self.url)
        effects.create(folder / "effects.db")
        patch.syspath_prepend(folder)

    @property
    def module(self) -> ModuleType:
        """The generated module, imported here to enqueue with; its `app` is migrated."""
        if self.name not in sys.modules:
            ready.migrate(self.database, importlib.import_module(self.name).app.migrate)
        return sys.modules[self.name]

    def start(self, *arguments: str, url: str | None = None) -> Worker:
        """Start `rowlock run`, forked; `url` sends it through a proxy."""
        return self._add(["run", f"{self.name}:app", *arguments], url, fork=True)

    def run(self, *arguments: str, url: str | None = None) -> Worker:
        """Start any command of Rowlock's in the folder of the application, by `python -m rowlock` as users do."""
        return self._add([sys.executable, "-m", "rowlock", *arguments], url, fork=False)

    def _add(self, command: list[str], url: str | None, *, fork: bool) -> Worker:
        self.workers.append(Worker(command, self.folder, url or self.url, len(self.workers), fork=fork))
        return self.workers[-1]

    def effects(self, what: str | None = None, record: int | None = None) -> list[Effect]:
        return effects.effects(what, record)

    def wait_for(self, what: str, count: int = 1, timeout: float = BOUND) -> list[Effect]:
        """The effects of this kind, once there are `count` of them."""
        wait_until(lambda: len(self.effects(what)) >= count, timeout, lambda: f"{count} of {what!r}. {self.story()}")
        return self.effects(what)

    def release(self, point: str) -> None:
        """Let the handlers that `hold` at this point go on."""
        release(point)

    def story(self) -> str:
        return "\n".join([f"effects: {effects.effects()}", *(worker._story() for worker in self.workers)])

    def close(self) -> None:
        """End all workers, and give back what the module here holds."""
        for worker in self.workers:
            worker.reap()
        if module := sys.modules.pop(self.name, None):
            module.app.close()
        for worker in self.workers:  # shown by pytest where the test failed
            print(worker._story())
