"""One numbered step of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """What one version adds: objects by name, each made by one statement.

    `oldest` is the least library level that may still use the schema once this step is done: a step that only
    adds leaves it, so that a deploy can be rolled back (S1).
    """

    number: int
    oldest: int
    postgresql: Mapping[str, str]
    mysql: Mapping[str, str]
    sqlite: Mapping[str, str]
