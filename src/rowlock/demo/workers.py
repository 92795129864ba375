"""The demo's worker processes: `python -m rowlock run`, as anybody would start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

APP = "rowlock.demo.newsroom:app"
ENDING_S = 5.0


class Worker:
    """One process; its log is a file in the demo's directory."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.log = home / f"worker-{name.lower()}.log"
        environment = {**os.environ, "ROWLOCK_DEMO_HOME": str(home), "ROWLOCK_DEMO_DIRECTED": "1"}
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C is the director's, who ends its workers in order.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", "rowlock", "run", APP],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._told = False

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    @property
    def ended_by_itself(self) -> bool:
        """Whether the process is gone, and nobody told it to go."""
        return not self._told and not self.running

    @property
    def ready(self) -> bool:
        """Whether it has said that it may claim."""
        return "ready:" in self.log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._told = True
        self._process.kill()
        self._process.wait()
        self._close()

    def drain(self) -> int:
        """SIGTERM; its exit code, when it has drained."""
        self._told = True
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(ENDING_S)
        self._close()
        return code

    def reap(self) -> None:
        """End it, whatever it does."""
        if self.running:
            self.kill()
        self._close()

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
