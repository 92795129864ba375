"""Dead letters: dead and blocked records are tried anew, or deleted (O2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import text
from sqlalchemy.engine import Connection
from typing_extensions import override

from rowlock.model.outcome import State
from rowlock.model.table import JOBS
from rowlock.store.audit import Action
from rowlock.store.change import Change
from rowlock.store.release import Program
from rowlock.store.revive import Batch, Holders, Revival, Row

if TYPE_CHECKING:
    from rowlock.store.database import Database

DEAD_LETTERS = (State.DEAD, State.BLOCKED)

# The last failure stays in sight until the record ends again, and its token, by which a settlement whose answer was
# lost knows its own effect (L1).
_ANEW = "attempt = 0, handed_back = 0"


class _OfDeadLetters(Change):
    rule: ClassVar[str] = "O2"
    states: ClassVar[tuple[State, ...]] = DEAD_LETTERS

    @override
    def why_not(self, row: Any) -> str | None:
        return None if row.state in DEAD_LETTERS else f"it is {row.state}, not dead or blocked"


class Replay(_OfDeadLetters):
    """Back to pending with no attempt spent, due now; id, key, queue, limits and headers stay."""

    action: ClassVar[Action] = Action.REPLAY
    done: ClassVar[str] = "replayed"

    def __init__(self, db: Database, program: Program) -> None:
        super().__init__(db)
        self._names = {pair.job: known.names for pair, known in program.items()}

    @override
    def names(self, row: Any) -> tuple[str, ...]:
        return self._names.get(row.job, (row.job,))

    @override
    def apply(self, conn: Connection, rows: Sequence[Row], held: Holders, *, dry_run: bool) -> Batch:
        return Revival(self.db, _ANEW, held, dry_run=dry_run).run(conn, rows)


class Purge(_OfDeadLetters):
    """Deleted."""

    action: ClassVar[Action] = Action.PURGE
    done: ClassVar[str] = "purged"
    takes_keys: ClassVar[bool] = False

    @override
    def apply(self, conn: Connection, rows: Sequence[Row], held: Holders, *, dry_run: bool) -> Batch:
        ids = [row[0] for row in rows]
        if ids and not dry_run:
            dialect = self.db.dialect
            still = dialect.is_still(JOBS, *DEAD_LETTERS)
            conn.execute(text(f"DELETE FROM rowlock_job WHERE id {dialect.in_ids(ids)} AND {still}"))
        return Batch(ids, {}, {})
