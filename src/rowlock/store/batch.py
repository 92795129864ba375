"""The records of one enqueue call on their way into the table: what was found, what was made, what is still to do."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from rowlock.errors import EnqueueBusy, RowlockError
from rowlock.model.outcome import State
from rowlock.model.request import Enqueued, EnqueueRequest
from rowlock.store.dialects.base import Row
from rowlock.store.freed import freed

if TYPE_CHECKING:
    from rowlock.store.database import Database

CHUNK = 1_000
"""The most rows in one INSERT."""
CHUNK_CHARACTERS = 1 << 20
"""The most characters of payload in one INSERT of several rows: servers bound the length of a statement."""
OWN_RETRIES = 20


class JobTarget(NamedTuple):
    """The job that records are for. `names` are its name and its aliases: they share their keys."""

    names: tuple[str, ...]
    max_attempts: int
    timeout_ms: int
    window_ms: int = 0
    """For so long from its creation a succeeded record still answers for its key (E5)."""


class Batch:
    """The records of one call: which keys are settled, as found or as made, and which are not."""

    def __init__(self, db: Database, target: JobTarget, requests: Sequence[EnqueueRequest]) -> None:
        self.target = target
        self.size = len(requests)
        self._db = db
        self._deadline = time.monotonic() + db.wait_ms / 1000
        prefix = secrets.token_hex(12)
        job, most, timeout = target.names[0], target.max_attempts, target.timeout_ms
        self._rows = [
            Row(
                job,
                r.fingerprint,
                r.payload,
                r.key,
                r.queue,
                r.priority,
                r.run_at,
                r.delay_ms,
                most,
                timeout,
                r.headers,
                f"{prefix}{n:08x}",
            )
            for n, r in enumerate(requests)
        ]
        self._conflicts = 0
        self.forget()

    def forget(self) -> None:
        """Back to the start: the transaction that this was written in is gone."""
        self._ids: dict[str, int] = {}
        self._found: dict[str, tuple[int, State]] = {}
        self._plain = [row for row in self._rows if row.key is None]
        self._keyed: dict[str, Row] = {}
        for row in self._rows:
            if row.key is not None:
                self._keyed.setdefault(row.key, row)  # within one call, the first of a key becomes the record

    @property
    def done(self) -> bool:
        """Whether each record was found or made."""
        return not self._plain and not self._keyed

    def missing(self) -> list[str]:
        """The keys of which no active record was found and none was made yet, in the one order that all calls have."""
        return sorted(self._keyed)

    def learn(self, active: Sequence[tuple[str, int, str]]) -> None:
        """Takes note of active records that a look found."""
        for key, id_, state in active:
            if self._keyed.pop(key, None) is not None:
                self._found[key] = (id_, State(state))

    @property
    def windowed(self) -> bool:
        """Whether succeeded records answer for keys of this call."""
        return self.target.window_ms > 0 and bool(self._keyed)

    # --- writing ------------------------------------------------------------------------------------------

    def write(self, conn: Connection, *, looked: bool = False) -> None:
        """Looks, unless somebody has just `looked`, inserts, and looks again until each record is found or made."""
        while not self.done:
            if not looked:
                self.look(conn)
            looked = False
            self.insert(conn)
            self._refuse_late()

    def join(self, conn: Connection) -> None:
        """`write` in a caller's transaction."""
        self.look(conn)
        if self._keyed:
            self._db.dialect.reserve_keys(conn, self._db, self.target.names[0], self.missing())
        self.write(conn)

    def judge_outside(self, own: Connection, conn: Connection) -> DBAPIError | None:
        """For a caller's transaction that is blind to what others commit: `_take_back` by a look on `own`."""
        recent = self._recent(own, self._made_keys())
        try:
            self._take_back(conn, recent)
        except DBAPIError as error:
            return error
        return None

    def join_in_turn(self, own: Connection, conn: Connection) -> DBAPIError | None:
        """`write` in a caller's transaction whose snapshot may be blind: the look is on a connection of Rowlock's own.

        Nobody else of this key is between look and insert meanwhile, so the caller's insert waits for nobody. What
        fails on the caller's connection is answered, not raised: it says nothing about Rowlock's own.
        """
        dialect, names = self._db.dialect, self.target.names
        while self._keyed:
            missing = self.missing()
            with dialect.keys_in_turn(own, self._db, names[0], missing):
                active = dialect.look_once(own, names, missing)
                try:
                    if active is None:  # an enqueue of one of them is not committed: it may be the caller's own
                        self.learn(dialect.find_own(conn, names, missing))
                    else:
                        self._learn_outside(conn, active)
                        self.learn(self._recent(own, self.missing()))
                        self._insert_keyed(conn, own)
                except DBAPIError as error:
                    return error
            if active is None and len(self._keyed) == len(missing):
                self._learn_outside(conn, dialect.look_outside(own, self._db, names, missing))
            self._refuse_late()
        return None

    def _learn_outside(self, conn: Connection, active: Sequence[tuple[str, int, str]]) -> None:
        """`learn`, but for what the caller's transaction itself has ended."""
        own = freed(conn, self._db, [id_ for _, id_, _ in active])
        self.learn([record for record in active if record[1] not in own])

    def look(self, conn: Connection) -> None:
        """Looks for active records of the keys, without a lock, and for succeeded ones that still answer (E5)."""
        if self._keyed:
            self.learn(self._db.dialect.find_active(conn, self.target.names, self.missing()))
            self.learn(self._recent(conn, self.missing()))

    def insert(self, conn: Connection) -> None:
        """Inserts what is missing; a key that is taken after all stays missing."""
        for rows in _chunks(self._plain):
            self._make(conn, rows)
        self._plain = []
        self._insert_keyed(conn, conn)

    def _insert_keyed(self, conn: Connection, looks: Connection) -> None:
        # Keys in one order everywhere, so that two batches can not wait for each other in a circle.
        for rows in _chunks([self._keyed[key] for key in self.missing()]):
            self._make(conn, rows)
        made = [key for key, row in self._keyed.items() if row.nonce in self._ids]
        for key in made:
            del self._keyed[key]
        self._take_back(conn, self._recent(looks, made))

    # --- succeeded records that still answer (E5) ---------------------------------------------------------

    def _recent(self, conn: Connection, keys: Sequence[str]) -> Sequence[tuple[str, int, str]]:
        if not self.target.window_ms or not keys:
            return ()
        return self._db.dialect.find_recent(conn, self._db, self.target.names, keys, self.target.window_ms)

    def _take_back(self, conn: Connection, recent: Sequence[tuple[str, int, str]]) -> None:
        """Takes back records whose key turned out to be answered for, by a look after they were inserted.

        Between a look and an insert a record can come, run and succeed. Once a row of ours has the key nobody else's
        is active, so that a look behind the insert, in the same transaction, misses none that has succeeded.
        """
        if not recent:
            return
        ours = {row.key: row.nonce for row in self._rows if row.nonce in self._ids}
        again = [(key, id_, state) for key, id_, state in recent if key in ours]
        self._delete(conn, [self._ids.pop(ours[key]) for key, _, _ in again])
        for key, id_, state in again:
            self._found[key] = (id_, State(state))

    def _made_keys(self) -> list[str]:
        return sorted(row.key for row in self._rows if row.key is not None and row.nonce in self._ids)

    def _make(self, conn: Connection, rows: Sequence[Row]) -> None:
        self._ids |= dict(self._db.dialect.insert(conn, self._db, rows))

    def leaves_part(self, error: Exception) -> bool:
        """Whether a call that ends so leaves records behind in a caller's transaction that goes on."""
        return bool(self._ids) and (isinstance(error, RowlockError) or self._db.dialect.is_lock_timeout(error))

    def undo(self, conn: Connection) -> None:
        """Takes back what was made in a caller's transaction."""
        try:
            self._delete(conn, list(self._ids.values()))
        except DBAPIError:
            return  # the transaction has failed as a whole, and nothing of it will stay

    def _delete(self, conn: Connection, ids: Sequence[int]) -> None:
        for start in range(0, len(ids), CHUNK):
            in_ids = self._db.dialect.in_ids(ids[start : start + CHUNK])
            conn.exec_driver_sql(f"DELETE FROM rowlock_job WHERE id {in_ids}")

    def _refuse_late(self) -> None:
        if self._keyed and time.monotonic() >= self._deadline:
            raise EnqueueBusy(
                f"job {self.target.names[0]!r}: other enqueues of the same key kept coming and going for "
                f"{self._db.wait_ms} ms (E4, job.enqueue_wait_ms); nothing was written, try again"
            )

    @contextmanager
    def again_after_conflict(self) -> Generator[None]:
        """In Rowlock's own transaction: a deadlock is run again, a wait at its bound is `EnqueueBusy`."""
        try:
            yield
        except DBAPIError as error:
            dialect = self._db.dialect
            if dialect.is_lock_timeout(error):
                raise EnqueueBusy(
                    f"job {self.target.names[0]!r}: another transaction holds the same key, or the database's write "
                    f"lock, and did not end within {self._db.wait_ms} ms (E4, job.enqueue_wait_ms); nothing was "
                    f"written, try again"
                ) from error
            self._conflicts += 1
            if not dialect.is_conflict(error) or self._conflicts > OWN_RETRIES:
                raise
            self.forget()

    def answers(self) -> list[Enqueued]:
        """An answer for each request, in the order of the requests (E1)."""
        made = {row.key: row.nonce for row in self._rows if row.key is not None and row.nonce in self._ids}
        answers: list[Enqueued] = []
        for row in self._rows:
            if row.nonce in self._ids:
                answers.append(Enqueued(self._ids[row.nonce], True, State.PENDING))
            elif row.key in made:
                answers.append(Enqueued(self._ids[made[row.key]], False, State.PENDING))
            else:
                assert row.key is not None
                id_, state = self._found[row.key]
                answers.append(Enqueued(id_, False, state))
        return answers


def _chunks(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows in their order, as many at a time as one INSERT takes."""
    chunk: list[Row] = []
    characters = 0
    for row in rows:
        if chunk and (len(chunk) >= CHUNK or characters + len(row.payload) > CHUNK_CHARACTERS):
            yield chunk
            chunk, characters = [], 0
        chunk.append(row)
        characters += len(row.payload)
    if chunk:
        yield chunk
