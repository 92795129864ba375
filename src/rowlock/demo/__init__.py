"""`rowlock demo`: a newsroom on one SQLite file, with two workers, one of which is killed."""

from __future__ import annotations

from rowlock.demo.director import OWN, show

__all__ = ["OWN", "show"]
