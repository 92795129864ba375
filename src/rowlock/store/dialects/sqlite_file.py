"""What keeps a user from using an SQLite file (C24, C96)."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy.engine import URL

READ_ONLY = (("mode", "ro"), ("immutable", "1"))


def path_of(url: URL) -> str:
    """The path in a URL, also in one of SQLite's own; empty for a database in memory."""
    path = (url.database or "").removeprefix("file:").partition("?")[0]
    return "" if path == ":memory:" or url.query.get("mode") == "memory" else path


def unusable(url: URL, error: str) -> str | None:
    """What to look at, if this user can not use the file until somebody changes something; None if they can.

    The directory is needed as well: the write-ahead log is beside the file.
    """
    if not (path := path_of(url)):
        return None
    file = Path(path)
    folder = file.absolute().parent
    if error == "SQLITE_NOTADB":
        return f"its file, which is no SQLite database: {file}"
    if any(url.query.get(name) == value for name, value in READ_ONLY) and file.exists():
        return f"its URL, which opens the file only to read it: {file}"
    if not folder.is_dir():
        return None  # a volume that is not mounted yet: the database is not there, which may pass
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the rights on its directory, which this user can not write to: {folder}"
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        return f"the rights on its file, which this user can not write to: {file}"
    return None


def not_there(url: URL) -> str:
    """What to do about a file that can not be opened, and perhaps can later."""
    file = Path(path_of(url))
    if not file.absolute().parent.is_dir():
        return f"its directory is not there: make, or mount, {file.absolute().parent}"
    if file.is_dir():
        return "its path is that of a directory: give that of a file"
    if not file.exists():
        return "its file is not there: look at its path, or run `rowlock migrate`"
    return "look at its path, and at the disk that it is on"
