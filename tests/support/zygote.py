"""Starts worker processes in a twentieth of the time: a process that has imported everything, and forks on request.

A fork is a process of its own, with its own pid, signals and connections; what it shares is only what `import` made.
Whatever is about the command's own first moments starts `python -m rowlock` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]


# --- in the test's process -----------------------------------------------------------------------------------


class Zygote:
    """The forking process, started when first asked; it ends with the test run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **request: Any) -> Any:
        with self._lock:
            if self._process is None:
                path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
                env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "support.zygote"], env=env, text=True, start_new_session=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )  # fmt: skip
                atexit.register(self.close)
            assert self._process.stdin
            assert self._process.stdout
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            assert answer, "the zygote has ended"
            return json.loads(answer)

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin
            assert self._process.stdout
            self._process.stdin.close()
            self._process.wait(10)
            self._process.stdout.close()
            self._process = None


ZYGOTE = Zygote()


class Forked:
    """A forked process, as far as tests use a `subprocess.Popen`: `rowlock ARGUMENTS`, or `python -m …`."""

    def __init__(self, arguments: list[str], folder: Path, env: dict[str, str], log: Path) -> None:
        self.pid: int = ZYGOTE.ask(fork=arguments, folder=str(folder), env=env, log=str(log))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = ZYGOTE.ask(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        from support.waiting import TookTooLong, wait_until

        try:
            wait_until(lambda: self.poll() is not None, timeout)
        except TookTooLong:
            raise subprocess.TimeoutExpired("a forked worker", timeout) from None
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


# --- in the forking process ----------------------------------------------------------------------------------


def serve() -> None:
    """Answers requests until its input ends; then nothing that it forked is left."""
    _import_everything()
    pids: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        answer: int | None = None
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            if pid:
                pids.discard(pid)
                answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                return _become(request)
            pids.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    return None


def _become(request: dict[str, Any]) -> Any:
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    null, log = os.open(os.devnull, os.O_RDONLY), os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    sys.argv = ["rowlock", *request["fork"]]
    sys.path[:0] = request["env"]["PYTHONPATH"].split(os.pathsep)
    if request["fork"][0] == "-m":
        sys.argv = request["fork"][1:]
        return runpy.run_module(sys.argv[0], run_name="__main__")
    from rowlock.cli import main

    return main()


def _import_everything() -> None:
    import importlib

    names = (
        "uvloop asyncpg psycopg asyncmy pymysql sqlite3 rowlock.app rowlock.cli.root rowlock.cli.run rowlock.cli.logs "
        "rowlock.cli.lookup rowlock.runtime.serve rowlock.store.migrations sqlalchemy.dialects.postgresql.asyncpg "
        "sqlalchemy.dialects.postgresql.psycopg sqlalchemy.dialects.mysql.asyncmy sqlalchemy.dialects.mysql.mariadb "
        "sqlalchemy.dialects.mysql.pymysql sqlalchemy.dialects.sqlite support.effects"
    )
    for name in names.split():
        importlib.import_module(name)


if __name__ == "__main__":
    serve()
