"""PgBouncer in transaction mode before the suite's server: each transaction in the next of a few sessions."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from support.databases import Database
from support.urls import sync_url
from support.waiting import wait_until

SESSIONS = 6


def found() -> str | None:
    """The program, where it is installed."""
    return shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


@contextmanager
def pooled(database: Database) -> Iterator[str]:
    """The URL of the database through the pooler. No session of it lasts longer than the block."""
    program = found()
    assert program is not None
    url = make_url(database.url)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    password = f" password={url.password}" if url.password else ""
    folder = Path(tempfile.mkdtemp(prefix="rowlock-pooler-"))  # where a user without rights can read
    folder.chmod(0o755)
    config, log = folder / "pgbouncer.ini", folder / "log"
    config.write_text(
        f"[databases]\n* = host={url.host} port={url.port or 5432} user={url.username}{password}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        f"pool_mode = transaction\ndefault_pool_size = {SESSIONS}\nmin_pool_size = {SESSIONS}\n"
        "server_round_robin = 1\nmax_client_conn = 200\nlog_connections = 0\nlog_disconnections = 0\n"
    )
    with log.open("wb") as file:
        process = subprocess.Popen(
            [program, *_as_nobody(), str(config)], stdout=file, stderr=file, start_new_session=True
        )
    through = url.set(host="127.0.0.1", port=port)
    try:
        wait_until(lambda: _answers(str(sync_url(through))), 20, log.read_text)
        yield through.render_as_string(hide_password=False)
    finally:
        process.kill()
        process.wait(20)
        wait_until(lambda: not database.sessions(), 20, lambda: "the pooler's sessions ended")
        shutil.rmtree(folder)


def _as_nobody() -> list[str]:
    if os.geteuid() != 0:
        return []
    pwd.getpwnam("nobody")
    return ["-u", "nobody"]


def _answers(url: str) -> bool:
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args={"connect_timeout": 2})
    try:
        engine.connect().close()
    except sa.exc.OperationalError:
        return False
    return True
