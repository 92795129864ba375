"""What every loop does when the database fails: go on, with pauses, and say it once (K2)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from rowlock.errors import DatabaseError
from rowlock.runtime.describe import brief, log
from rowlock.runtime.events import Event, Events
from rowlock.runtime.health import Beat

if TYPE_CHECKING:
    from rowlock.runtime.metrics import Meter
    from rowlock.store.database import Database

DATABASE_FAILURES = (SQLAlchemyError, DatabaseError, OSError, TimeoutError)
"""What a database, its driver or the way to it can raise. Anything else in a loop is a defect, and ends it (H1)."""

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
# So many deadlocks or ended lock waits of one loop in a row are an outage all the same: a file that stays locked, say.
PASSING = 3
# Statements that wait for no row take milliseconds; a server that accepts and never answers takes for ever.
FIRST_PATIENCE_S = 10.0
LONGEST_PATIENCE_S = 60.0


class Pauses:
    """Growing pauses, each shortened by a random share so that many workers do not come back in step."""

    def __init__(self, first: float = FIRST_PAUSE_S, longest: float = LONGEST_PAUSE_S) -> None:
        self._first = first
        self._longest = longest
        self._tries = 0

    def reset(self) -> None:
        """The next pause is the first again."""
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait before the next try."""
        pause = min(self._longest, self._first * 2 ** min(self._tries, 16))
        self._tries += 1
        return pause * (1 - 0.2 * random.random())  # noqa: S311 - spread, not a secret


class Outage:
    """One database's state as all loops together see it: one line when it begins to fail, one when it is over.

    Called from the worker's loop and from the keeper's thread.
    """

    def __init__(self, db: Database, events: Events, meter: Meter | None = None) -> None:
        self._db = db
        self._meter = meter
        self._events = events
        self._failing: set[str] = set()
        self._lock = threading.Lock()
        self.said = False
        """Whether the outage has been logged, and its end has not."""
        self.over_since = float("-inf")
        self.writes_wait: Callable[[], bool] = lambda: False
        """Whether a handler's transaction keeps every other write waiting at this moment, as it may (L8)."""
        self.on_sign: Callable[[], None] = lambda: None
        """Called when one loop's statement went well while others wait in their pauses. Also on the keeper's thread."""

    def is_passing(self, error: BaseException) -> bool:
        """A deadlock, or a wait for a lock that ended at its bound: nothing to talk about if the next try works."""
        dialect = self._db.dialect
        return isinstance(error, DBAPIError) and (dialect.is_conflict(error) or dialect.is_lock_timeout(error))

    def begun(self, service: str, error: BaseException) -> None:
        """The service can not work."""
        with self._lock:
            self._failing.add(service)
            first, self.said = not self.said, True
        if first:
            log.warning(
                "database %r fails (%s: %s); retrying, with pauses of at most %g s",
                *(self._db.name, service, brief(error), LONGEST_PAUSE_S),
            )
            if self._meter is not None:
                self._meter.outage(self._db.name)
            self._tell("begun")

    def worked(self, service: str) -> None:
        """The service's statement went well: the others may try again, and the outage is over when none fails."""
        with self._lock:
            self._failing.discard(service)
            last = self.said and not self._failing
            if last:
                self.said = False
                self.over_since = monotonic()
        if last:
            log.warning("database %r works again", self._db.name)
            self._tell("over")
        else:
            self.on_sign()

    def withdraw(self, service: str) -> None:
        """The service has nothing to do any more, whatever the database does."""
        with self._lock:
            self._failing.discard(service)

    def _tell(self, outcome: str) -> None:
        if self._events.wanted("outage"):
            self._events.tell(Event("outage", outcome=outcome, database=self._db.name))


class Guard:
    """One loop's share: its pauses, its patience, its beat, and its word in the outage of its database."""

    def __init__(self, service: str, outage: Outage, beat: Beat) -> None:
        self.service = service
        self.outage = outage
        self.beat = beat
        self.patience_s = FIRST_PATIENCE_S
        """How long a statement may take. Twice as long after one that took longer: a slow server is not a dead one."""
        self._pauses = Pauses()
        self._failing = False
        self._in_a_row = 0

    def worked(self, within: float | None = None) -> None:
        """The database did what the loop asked for; the next is due `within` seconds."""
        self.beat.ok(within)
        self._in_a_row = 0
        if self._failing or self.outage.said:
            self._failing = False
            self._pauses.reset()
            self.patience_s = FIRST_PATIENCE_S
            self.outage.worked(self.service)

    def rests(self, within: float | None = None) -> None:
        """The loop lives, and has nothing to ask the database for."""
        self.beat.ok(within)
        self.ended()

    def failed(self, error: BaseException) -> float:
        """The loop's work failed; answers how many seconds to pause."""
        self._failing = True
        self.beat.failed(error)
        self._in_a_row += 1
        passing = self.outage.is_passing(error) and (self._in_a_row < PASSING or self.outage.writes_wait())
        if isinstance(error, TimeoutError):
            # Sent into a silence that is over: the last of an outage whose end has been said, not a new one.
            passing = monotonic() - self.patience_s < self.outage.over_since
            self.patience_s = min(LONGEST_PATIENCE_S, self.patience_s * 2)
        if not passing:
            self.outage.begun(self.service, error)
        return self._pauses.next()

    def ended(self) -> None:
        """The loop stops: it has no word in the outage any more."""
        if self._failing:
            self._failing = False
            self.outage.withdraw(self.service)
