"""MariaDB 10.6 and newer: MySQL's hooks, with shorter ways where MariaDB can fail at once on a lock.

`SET STATEMENT innodb_lock_wait_timeout = 0 FOR …` makes one UPDATE that either changes all its rows or, if somebody
has one of them locked, nothing. Only then is the long way taken, that locks row by row and passes over.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from rowlock.model.table import QueueShape
from rowlock.store.dialects import mysql_server as server
from rowlock.store.dialects import mysql_sql as sql
from rowlock.store.dialects import scan
from rowlock.store.dialects.base import Claimed, Source, lease_of
from rowlock.store.dialects.mysql import MySQL
from rowlock.store.dialects.mysql_claim import claim_order, claimed_of, run

if TYPE_CHECKING:
    from rowlock.store.database import Database

AT_ONCE = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "


class MariaDB(MySQL):
    """MariaDB 10.6 and newer."""

    name: ClassVar[str] = "mariadb"
    label: ClassVar[str] = "MariaDB"
    for_share: ClassVar[str] = "LOCK IN SHARE MODE NOWAIT"
    returning: ClassVar[str] = " RETURNING token, id"

    def claim(self, conn: Connection, db: Database, source: Source, limit: int) -> list[Claimed]:
        levels = scan.due_levels(self.levels(conn, db, source))
        if len(levels) != 1 or len(set(lease_of(source).values())) != 1 or db.in_transaction(conn):
            return self.claim_levels(conn, db, source, levels, limit)
        priority, branches = levels[0]
        rows = self._whole(conn, db, source, priority, branches, limit)
        if not rows:
            return []
        # Nothing: somebody has one of them locked, or others took them all, and there may be more behind.
        return self._take_at_once(conn, db, source, rows) or self.claim_levels(conn, db, source, levels, limit)

    def _whole(
        self, conn: Connection, db: Database, source: Source, priority: int, branches: list[int], limit: int
    ) -> list[Any]:
        """The best due rows, read whole and without locks."""
        per_branch = scan.slice_of(limit, len(branches))
        found: dict[int, Any] = {}
        slices: list[list[scan.Candidate]] = [list[scan.Candidate]() for _ in branches]
        for row in self.candidates(conn, db, source, priority, branches, per_branch, whole=True):
            found[row[1]] = row[1:]
            slices[int(row[0])].append(scan.Candidate(row[8], row[1]))
        return [found[candidate.id] for candidate in scan.merge(slices, per_branch, limit)]

    def _take_at_once(self, conn: Connection, db: Database, source: Source, rows: list[Any]) -> list[Claimed]:
        """Takes the rows that were read and are still free, if nobody has one of them locked; else none."""
        lease_ms, nonce = source.branches[0].lease_ms, secrets.token_hex(12)  # all branches have this one
        tries = ",".join(f"({row[0]},{row[8]})" for row in rows)
        params = {"nonce": nonce, "lease_ms": lease_ms, "claimed_by": source.claimed_by} | db.now_params()
        statement = sql.take_due(source.table, self.in_ids([row[0] for row in rows]), tries, self.now(db))
        try:
            taken = run(conn, AT_ONCE + statement, params).rowcount
        except DBAPIError as error:
            if server.code(error) in server.LOCK_TIMEOUTS | server.CONFLICTS:
                return []
            raise
        if taken != len(rows):
            tokens = ",".join(f"'{nonce}{row[0]:x}'" for row in rows)
            mine = sql.of_tokens(source.table, self.in_ids([row[0] for row in rows]), tokens)
            ids = {row[0] for row in run(conn, mine, {})}
            rows = [row for row in rows if row[0] in ids]
        claimed = [claimed_of(row, f"{nonce}{row[0]:x}", lease_ms) for row in rows]
        claimed.sort(key=claim_order)
        return claimed

    def fenced_update(
        self,
        conn: Connection,
        db: Database,
        shape: QueueShape,
        assignments: str,
        records: Sequence[Mapping[str, Any]],
        *,
        wait: bool = False,
    ) -> set[int]:
        if not wait and not db.in_transaction(conn):
            done = self._update_at_once(conn, db, shape, assignments, records)
            if done:
                return done
        return super().fenced_update(conn, db, shape, assignments, records, wait=wait)

    def _update_at_once(
        self,
        conn: Connection,
        db: Database,
        shape: QueueShape,
        assignments: str,
        records: Sequence[Mapping[str, Any]],
    ) -> set[int]:
        """Updates all records, if each pair holds and nobody has one of their rows locked; else nothing.

        The clock may be read by the same statement, as it never waits for a lock (L2).
        """
        ids = self.in_ids([record["id"] for record in records])
        pairs = ",".join(f"({record['id']},:token{n})" for n, record in enumerate(records))
        params = {f"token{n}": record["token"] for n, record in enumerate(records)} | db.now_params()
        statement = sql.fenced_update(shape, assignments, records, ids, self.now(db), params)
        try:
            all_held = sql.all_held(shape, ids, pairs, len(records), self.now(db))
            changed = run(conn, AT_ONCE + statement + all_held, params).rowcount
        except DBAPIError as error:
            if server.code(error) in server.LOCK_TIMEOUTS | server.CONFLICTS:
                return set()
            raise
        if changed in {0, len(records)}:
            return {record["id"] for record in records} if changed else set()
        # A hold ended between the two halves of the statement.
        return {row[0] for row in run(conn, sql.changed_of(shape, ids, pairs, self.now(db)), params)}
