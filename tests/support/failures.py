"""What drivers raise when a database fails, for tests that let it fail where they want."""

from __future__ import annotations

import sqlalchemy as sa

CODES = {
    "deadlock": ("40P01", 1213, "SQLITE_BUSY_SNAPSHOT"),
    "lock wait": ("55P03", 1205, "SQLITE_BUSY"),
    "disk full": ("53100", 1021, "SQLITE_FULL"),
    "read-only": ("25006", 1290, "SQLITE_READONLY"),
}


class DriverError(Exception):
    """What a driver raises, with its own way to tell what happened."""

    def __init__(self, what: str) -> None:
        self.sqlstate, number, self.sqlite_errorname = CODES[what]
        super().__init__(number, f"{what}: S3CR3T")


def database_error(what: str) -> sa.exc.OperationalError:
    """As SQLAlchemy gives it on; one of `CODES`. Its text and parameters have a secret, which nobody may show (S6)."""
    return sa.exc.OperationalError("UPDATE secret", {"payload": "S3CR3T"}, DriverError(what))
