"""MySQL's and MariaDB's claim: candidates are read without locks, then locked by primary key (C2).

A locking read keeps every row that it examined locked, SKIP LOCKED or not: a sort that returned 5 rows
locked 3,000, and the second claimer got none.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection

from rowlock.store.dialects import mysql_server as server
from rowlock.store.dialects import mysql_sql as sql
from rowlock.store.dialects import scan
from rowlock.store.dialects.base import Claimed, Dialect, Level, Source, fetch, lease_of

if TYPE_CHECKING:
    from rowlock.store.database import Database

Locking = Callable[[int], tuple[str, dict[str, Any]] | None]
"""The next statement that locks at most so many pending rows, with its parameters; None if there is no other."""

BEFORE_ALL = -(2**31)
MOST_HINTS = 8


class ClaimHooks(Dialect):
    """The hooks that `store/claim.py` calls."""

    def levels(self, conn: Connection, db: Database, source: Source) -> list[Level]:
        params: dict[str, Any] = {"queue": source.queue} | db.now_params()
        params |= {f"pair{n}": server.pair_of(b.job, b.fingerprint) for n, b in enumerate(source.branches)}
        # The priorities that the last look found are asked for together; only a new one takes another trip.
        hint = db.hints.get(source, ())
        after: tuple[int, ...] = (BEFORE_ALL, *hint)
        heads: dict[tuple[int, int], tuple[int, float] | None] = {}
        while after:
            heads |= self._heads(conn, db, source, after, params)
            after = tuple(sorted({head[0] for head in heads.values() if head} - {key[1] for key in heads}))
        levels = {(key[0], head[0]): head[1] for key, head in heads.items() if head}
        db.hints[source] = tuple(sorted({priority for _, priority in levels}))[:MOST_HINTS]
        return [Level(branch, priority, wait) for (branch, priority), wait in levels.items()]

    def _heads(
        self, conn: Connection, db: Database, source: Source, after: tuple[int, ...], params: dict[str, Any]
    ) -> dict[tuple[int, int], tuple[int, float] | None]:
        """By branch and priority: the priority of the first row behind it, and the seconds until it is due."""
        statement = sql.heads(source.table, len(source.branches), len(after), self.scan_now(db))
        rows = fetch(conn, statement, params | {f"after{k}": priority for k, priority in enumerate(after)})
        if any(row[0] == sql.PAUSED for row in rows):
            return {}
        found: dict[tuple[int, int], tuple[int, float] | None] = {}
        found |= {(n, priority): None for n in range(len(source.branches)) for priority in after}
        for n, k, priority, wait_us in rows:
            found[n, after[k]] = (priority, float(wait_us) / 1_000_000)
        return found

    def claim(self, conn: Connection, db: Database, source: Source, limit: int) -> list[Claimed]:
        return self.claim_levels(conn, db, source, scan.due_levels(self.levels(conn, db, source)), limit)

    def claim_levels(
        self, conn: Connection, db: Database, source: Source, due: list[tuple[int, list[int]]], limit: int
    ) -> list[Claimed]:
        """Claims from these priorities and branches: reads candidates, then locks them by primary key."""
        claimed: list[Claimed] = []
        for priority, branches in due:
            # A little more is read than is asked for: what others hold at this moment is passed over.
            wanted = limit - len(claimed)
            candidates = self._best(conn, db, source, priority, branches, wanted + min(wanted, 32))
            if not candidates:
                continue
            ids = [candidate.id for candidate in candidates]
            taken = self._take(conn, db, source, wanted, self._each(ids, source, db))
            if not taken:  # others hold all of these, and must not hide what is behind (C2)
                taken = self._take(conn, db, source, wanted, self._front(priority, branches, source, db))
            claimed += taken
            if len(claimed) >= limit:
                break
        return claimed

    def _best(
        self, conn: Connection, db: Database, source: Source, priority: int, branches: list[int], limit: int
    ) -> list[scan.Candidate]:
        per_branch = scan.slice_of(limit, len(branches))
        slices: list[list[scan.Candidate]] = [list[scan.Candidate]() for _ in branches]
        for row in self.candidates(conn, db, source, priority, branches, per_branch):
            slices[int(row[0])].append(scan.Candidate(row[2], row[1]))
        return scan.merge(slices, per_branch, limit)

    def candidates(
        self,
        conn: Connection,
        db: Database,
        source: Source,
        priority: int,
        branches: list[int],
        per_branch: int,
        *,
        whole: bool = False,
    ) -> list[Any]:
        """The best due rows of each branch, read without locks: its place, id and run_at, or (`whole`) all of it."""
        statement = sql.candidates(source.table, len(branches), per_branch, self.scan_now(db), whole=whole)
        params: dict[str, Any] = {"queue": source.queue, "priority": priority} | db.now_params()
        for place, n in enumerate(branches):
            branch = source.branches[n]
            params[f"pair{place}"] = server.pair_of(branch.job, branch.fingerprint)
        return fetch(conn, statement, params)

    def _each(self, ids: list[int], source: Source, db: Database) -> Locking:
        """Locks these rows, best first, in slices of what is still needed: only what is returned gets locked."""
        rest = list(ids)

        def lock(needed: int) -> tuple[str, dict[str, Any]] | None:
            part = rest[:needed]
            del rest[:needed]
            return (sql.lock_pending(source.table, self.in_ids(part), self.scan_now(db)), {}) if part else None

        return lock

    def _front(self, priority: int, branches: list[int], source: Source, db: Database) -> Locking:
        """Locks each branch's first rows that nobody holds, in the order of the index, so that no sort locks more."""
        rest = [source.branches[n] for n in branches]

        def lock(needed: int) -> tuple[str, dict[str, Any]] | None:
            if not rest:
                return None
            branch = rest.pop(0)
            params = {
                "queue": source.queue,
                "priority": priority,
                "pair": server.pair_of(branch.job, branch.fingerprint),
            }
            return sql.lock_first(source.table, needed, self.scan_now(db)), params

        return lock

    def _take(self, conn: Connection, db: Database, source: Source, limit: int, locking: Locking) -> list[Claimed]:
        shape, leases, nonce = source.table, lease_of(source), secrets.token_hex(12)
        locked: list[Any] = []
        with db.transaction(conn):
            while len(locked) < limit and (statement := locking(limit - len(locked))):
                locked += run(conn, statement[0], statement[1] | db.now_params()).all()
            by_lease: dict[int, list[int]] = {}
            for row in locked:
                by_lease.setdefault(leases[row[1]], []).append(row[0])
            for lease_ms, part in by_lease.items():
                run(
                    conn,
                    sql.take(shape, self.in_ids(part), self.now(db)),
                    {"nonce": nonce, "lease_ms": lease_ms, "claimed_by": source.claimed_by} | db.now_params(),
                )
        claimed = [claimed_of(row, f"{nonce}{row[0]:x}", leases[row[1]]) for row in locked]
        claimed.sort(key=claim_order)
        return claimed


def run(conn: Connection, statement: str, params: Mapping[str, Any]) -> Any:
    """For statements with lists of ids: written anew each time, so there is nothing to compile or to cache."""
    return conn.exec_driver_sql(*sql.bound(statement, params))


def claimed_of(row: Any, token: str, lease_ms: int) -> Claimed:
    """A row that was read before it was taken, as it is afterwards."""
    return Claimed._make((*row[:8], row[8] + 1, *row[9:12], token, lease_ms, row[13], row[14] / 1_000_000))


def claim_order(record: Claimed) -> tuple[int, Any, int]:
    """priority, run_at, id (C2)."""
    return record.priority, record.run_at, record.id
