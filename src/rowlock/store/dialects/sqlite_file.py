"""What keeps a user from using an SQLite file (C24)."""

from __future__ import annotations

import os
from pathlib import Path


def unusable(name: str | None) -> str | None:
    """What to look at, if the file or its directory can not be used by this user; None if they can.

    The directory is needed as well: the write-ahead log is beside the file.
    """
    if not name:
        return None
    file = Path(name)
    folder = file.absolute().parent
    if not folder.is_dir():
        return None  # a volume that is not mounted yet: the database is not there, which may pass
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the rights on its directory, which this user can not write to: {folder}"
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        return f"the rights on its file, which this user can not write to: {file}"
    return None
