"""What MySQL and MariaDB servers say, and the values of the generated columns that stand in for partial indexes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from sqlalchemy.engine import Connection

from rowlock.errors import UnsupportedDatabase
from rowlock.store.dialects.base import driver_error

MISSING_TABLE = 1146
DUPLICATE = 1062
CONFLICTS = frozenset({1213, 1020})
"""Deadlock; and MariaDB's "record has changed since last read", its serialization failure."""
LOCK_TIMEOUTS = frozenset({1205, 3572})
OUTAGES = frozenset(
    {1021, 1036, 1040, 1041, 1053, 1077, 1079, 1080, 1114, 1152, 1159, 1160, 1161, 1184, 1290, 1792, 1836, 1927, 3032}
)
"""Disk full, read-only, too many connections, shutting down, connection killed."""

CLIENT_FAULTS = frozenset({0, *range(2000, 3000)})
"""The client's numbers: no connection, or it broke off. All others are the server's."""


def check_version(version: str) -> None:
    """Refuses servers without SKIP LOCKED, by what `version()` says. Raises `UnsupportedDatabase`."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    kind, floor = ("MariaDB", (10, 6)) if "mariadb" in version.lower() else ("MySQL", (8, 0, 1))
    if numbers < floor:
        raise UnsupportedDatabase(
            f"this {kind} server is {version}; Rowlock needs {'.'.join(map(str, floor))} or newer, for SKIP LOCKED: "
            f"upgrade the server"
        )


def pair_of(job: str, fingerprint: str) -> bytes:
    """The generated column `pair`: a key of this length fits an index, a job's name does not."""
    return hashlib.md5(job.encode() + b"\0" + fingerprint.encode(), usedforsecurity=False).digest()


def active_key(job: str, key: str) -> bytes:
    """The generated column `active_key`: NULL once a record has ended; bytes, so compared as bytes."""
    return job.encode() + b"\0" + key.encode()


def key_of(active: bytes) -> str:
    """The key in an `active_key`; a job's name has no NUL."""
    return active.partition(b"\0")[2].decode()


TURNS = 64
"""Named locks of a database for keys that are being enqueued; keys that share one only take turns for a moment."""


def turns_of(job: str, keys: Sequence[str]) -> list[int]:
    """The named locks of these keys, in the order in which all take them."""
    return sorted({hashlib.sha256(active_key(job, key)).digest()[0] % TURNS for key in keys})


def speaks_utf8(conn: Connection) -> bool:
    """Whether the session takes every character: a caller's may be of an older character set."""
    if CHARSET not in conn.info:
        conn.info[CHARSET] = conn.exec_driver_sql("SELECT @@character_set_client").scalar_one()
    return conn.info[CHARSET] == "utf8mb4"


def longest_statement(conn: Connection) -> int:
    """The bytes that the server takes in one statement."""
    if PACKET not in conn.info:
        conn.info[PACKET] = int(conn.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())
    return conn.info[PACKET]


CHARSET, PACKET = "rowlock_charset", "rowlock_packet"


def code(error: BaseException) -> int | None:
    """The server's or the client's number for an error."""
    args = getattr(driver_error(error), "args", ())
    return args[0] if args and isinstance(args[0], int) else None
