"""What operators did: `app.audit` (O6)."""

from __future__ import annotations

from collections.abc import Callable

from rowlock.errors import FilterError
from rowlock.filters import checked_after, checked_by, checked_limit
from rowlock.model.limits import shown
from rowlock.store import audit
from rowlock.store.audit import Action, AuditPage
from rowlock.store.database import Database


class Audit:
    """What operators did, in the API or with the command: when, what, how many, by whom if said (O6).

    Kept for 90 days. `database` is the name of a configured one; it may be left out where there is only one. If one is
    named `telemetry` it holds the entries of all, and they say of which database they are (N9).
    """

    def __init__(self, database: Callable[[str | None], Database]) -> None:
        self._database = database

    def list(
        self,
        *,
        action: Action | str | None = None,
        by: str | None = None,
        limit: int = 50,
        after: int | None = None,
        database: str | None = None,
    ) -> AuditPage:
        """What was done, newest first, a page at a time.

        `action` and `by` narrow it; `limit` 1..1,000; `after` the `next` of the page before. Answers a page: `.items`,
        and `.next`, None on the last one. Raises FilterError.
        """
        db, action, by = self._home(database), _checked_action(action), checked_by(by)
        return db.run(audit.list_, action=action, by=by, limit=checked_limit(limit), after=checked_after(after))

    async def alist(
        self,
        *,
        action: Action | str | None = None,
        by: str | None = None,
        limit: int = 50,
        after: int | None = None,
        database: str | None = None,
    ) -> AuditPage:
        """`list` from a coroutine."""
        db, action, by = self._home(database), _checked_action(action), checked_by(by)
        return await db.aread(audit.list_, action=action, by=by, limit=checked_limit(limit), after=checked_after(after))

    def _home(self, name: str | None) -> Database:
        db = self._database(name)
        return db.telemetry or db


def _checked_action(action: Action | str | None) -> str | None:
    if action is not None and action not in tuple(Action):
        raise FilterError(f"action is {shown(action)} (O6); the actions are {', '.join(Action)}")
    return None if action is None else Action(action).value
