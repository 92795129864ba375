"""A database's URL in the settings: written there, or referred to (M1). It has a password in it, so it never shows."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rowlock.errors import SettingsError

# Up to the last @: an unencoded password may have any character in it, and hiding too much harms nobody.
_PASSWORD = re.compile(r"^([^:/?#]+://[^:/@]*):.*@", re.DOTALL)
_SECRET_OPTION = re.compile(r"([?&;][^=&;]*(?:pass|pwd|secret|token|key|cred)[^=&;]*)=[^&;]*", re.IGNORECASE)


def masked(url: str) -> str:
    """The URL without its password and without options that sound like one; what is no URL is hidden altogether."""
    if "://" not in url:
        return "***"
    return _SECRET_OPTION.sub(r"\1=***", _PASSWORD.sub(r"\1:***@", url))


@dataclass(frozen=True, slots=True, repr=False)
class Url:
    """A URL, or where it is found: exactly one of `text`, `env` and `file` is set. `path` is the setting's own."""

    path: str
    text: str | None = None
    env: str | None = None
    file: str | None = None

    def resolve(self) -> str:
        """The URL itself, read anew each time, since a secret may be replaced while the program runs.

        The newline that ends a file is no part of it. Raises `SettingsError` if the variable is not set or the file
        can not be read; the message names it, and never what is in it (M1).
        """
        if self.text is not None:
            return self.text
        if self.env is not None:
            found, where = os.environ.get(self.env), f"the environment variable {self.env}"
            if found is None:
                raise SettingsError(f"{self.path} refers to {where}, which is not set (M1); set it")
        else:
            found, where = self._read(), f"the file {self.file}"
        if not found.strip():
            raise SettingsError(f"{self.path} refers to {where}, which is empty (M1); put the URL in it")
        return found

    def shown(self) -> str | dict[str, str]:
        """The setting as it may be shown: the reference itself, or the URL without its secrets."""
        if self.env is not None:
            return {"env": self.env}
        if self.file is not None:
            return {"file": self.file}
        return masked(self.text or "")

    def _read(self) -> str:
        where = f"{self.path} refers to the file {self.file}"
        try:
            return Path(self.file or "").read_bytes().decode("utf-8").rstrip("\r\n")
        except OSError as error:
            raise SettingsError(f"{where}, which can not be read: {error.strerror} (M1); look at its rights") from None
        except UnicodeDecodeError:
            raise SettingsError(f"{where}, which is not UTF-8 text (M1); put the URL in it") from None

    def __repr__(self) -> str:
        return f"Url({self.shown()!r})"
