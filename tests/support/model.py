"""What becomes of records, said a second time: plain Python over a dict, with no code of the store's.

tests/contract/test_model.py lets the store and this go the same way and compares them after each step. Times are whole
microseconds since the test began.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MS = 1_000
BACKOFF_MS, BACKOFF_CAP_MS = 700, 2_000
FREE_HAND_BACKS = 9
CURABLE = ("unknown_job", "schema_mismatch", "invalid_policy")
REFUNDED = ("snooze", "returned", "handed_back", "corrupt_payload", *CURABLE)


@dataclass
class Record:
    job: str
    key: str | None
    priority: int
    due: int
    most: int
    state: str = "pending"
    attempt: int = 0
    handed_back: int = 0
    lease: int | None = None
    token: str | None = None
    category: str | None = None
    finished: int | None = None


@dataclass
class Model:
    now: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    locked: set[int] = field(default_factory=set)
    """Rows that somebody outside has locked."""
    asked: set[int] = field(default_factory=set)
    """Cancels beside records that were in work."""

    def owns(self, id_: int, token: str) -> bool:
        record = self.records.get(id_)
        if record is None or record.state != "running" or record.lease is None:
            return False
        return record.token == token and record.lease > self.now

    def active(self, job: str, key: str | None) -> int | None:
        found = [
            id_
            for id_, each in self.records.items()
            if key is not None and (each.job, each.key) == (job, key) and each.state in ("pending", "running")
        ]
        assert len(found) <= 1, f"{found} are all active as {job} {key}"
        return found[0] if found else None

    def claimable(self, jobs: Iterable[str]) -> list[int]:
        """In claim order."""
        free = [
            (each.priority, each.due, id_)
            for id_, each in self.records.items()
            if each.state == "pending" and each.job in jobs and each.due <= self.now
            if each.attempt < each.most and id_ not in self.locked
        ]
        return [id_ for _, _, id_ in sorted(free)]

    def claim(self, id_: int, token: str, lease_ms: int) -> None:
        record = self.records[id_]
        record.state, record.token, record.lease = "running", token, self.now + lease_ms * MS
        record.attempt += 1

    def renew(self, id_: int, token: str, lease_ms: int) -> str:
        if not self.owns(id_, token):
            return "lost"
        if id_ in self.locked:
            return "busy"
        self.records[id_].lease = self.now + lease_ms * MS
        return "renewed"

    def settle(self, id_: int, token: str, kind: str, wait_ms: int, *, repeated: bool) -> str:
        record, decided = self.records.get(id_), kind in ("ack", "drop", "dead", "cancelled")
        if not self.owns(id_, token):
            if not repeated or record is None or record.state == "running" or record.token != token:
                return "lost"
            return "cancelled" if record.state == "cancelled" and kind not in ("dead", "cancelled") else "settled"
        if id_ in self.locked:
            return "busy"
        if decided or id_ not in self.asked:
            self._end(record, kind, wait_ms)
            return "settled"
        record.attempt -= kind in REFUNDED
        self._leave(record, "cancelled", "cancelled")
        return "cancelled"

    def _end(self, record: Record, kind: str, wait_ms: int) -> None:
        last = record.attempt >= record.most
        match kind:
            case "ack" | "drop":
                self._leave(record, "succeeded", None)
            case "failed" | "timed_out" if last:
                self._leave(record, "dead", kind)
            case "failed" | "timed_out":
                wait_ms = min(BACKOFF_MS << (record.attempt - 1), BACKOFF_CAP_MS)
                self._wait(record, self.now + wait_ms * MS, kind)
            case "retry" | "retry_at" if last:
                self._leave(record, "dead", "attempts_exhausted")
            case "retry" | "retry_at":  # an instant that has passed is now
                self._wait(record, max(self.now + wait_ms * MS, self.now), None)
            case "dead":
                self._leave(record, "dead", "rejected")
            case "cancelled":
                self._leave(record, "cancelled", "cancelled")
            case "snooze":
                record.attempt -= 1
                self._wait(record, self.now + wait_ms * MS, record.category)
            case "returned":
                record.attempt -= 1
                self._wait(record, record.due, record.category)
            case "handed_back":
                record.attempt -= record.handed_back < FREE_HAND_BACKS
                record.handed_back += 1
                self._wait(record, record.due, record.category)
            case _:  # what must not be run as it is
                record.attempt -= 1
                self._leave(record, "blocked", kind)

    def _leave(self, record: Record, state: str, category: str | None) -> None:
        record.state, record.category, record.finished, record.lease = state, category, self.now, None

    def _wait(self, record: Record, due: int, category: str | None) -> None:
        record.state, record.category, record.due, record.lease = "pending", category, due, None

    def rescue(self) -> dict[int, str]:
        """What leases no longer cover: each id, and what it is now."""
        moved: dict[int, str] = {}
        for id_, record in self.records.items():
            if record.state == "running" and record.lease <= self.now and id_ not in self.locked:
                record.token = None
                if record.attempt < record.most:
                    self._wait(record, record.due, record.category)
                else:
                    self._leave(record, "dead", "attempts_exhausted")
                moved[id_] = record.state
        return moved

    def bury(self) -> dict[int, str]:
        """What no claim may take: each id, and what it is now."""
        moved: dict[int, str] = {}
        for id_, record in self.records.items():
            if record.state == "pending" and record.attempt >= record.most and id_ not in self.locked:
                record.token = None
                sane = 1 <= record.most <= 100
                self._leave(record, *(("dead", "attempts_exhausted") if sane else ("blocked", "invalid_policy")))
                moved[id_] = record.state
        return moved

    def carry_out(self) -> set[int]:
        """Ends what somebody asked to cancel and nobody holds; answers what became cancelled."""
        cancelled: set[int] = set()
        for id_ in list(self.asked - self.locked):
            record = self.records.get(id_)
            if record is not None and self.owns(id_, record.token):
                continue
            self.asked.discard(id_)
            if record is None or record.state in ("succeeded", "cancelled") or record.category == "rejected":
                continue
            record.token = None if record.state == "running" else record.token
            self._leave(record, "cancelled", "cancelled")
            cancelled.add(id_)
        return cancelled

    # --- operators --------------------------------------------------------------------------------------------------

    def cancel(self, id_: int) -> str:
        record = self.records[id_]
        if record.state == "pending" and id_ not in self.locked:
            self._leave(record, "cancelled", "cancelled")
            return "cancelled"
        if record.state not in ("pending", "running"):
            return "refused"
        self.asked.add(id_)
        return "running"

    def release(self, id_: int) -> str:
        """Blocked, and this program knows it."""
        record = self.records[id_]
        if record.state != "blocked" or record.category not in CURABLE or not 1 <= record.most <= 100:
            return "refused"
        return self._revive(id_, record.attempt, record.handed_back, None)

    def replay(self, id_: int) -> str:
        record = self.records[id_]
        if record.state not in ("dead", "blocked"):
            return "refused"
        return self._revive(id_, 0, 0, record.category)

    def _revive(self, id_: int, attempt: int, handed_back: int, category: str | None) -> str:
        record = self.records[id_]
        if id_ in self.locked:
            return "refused"
        if self.active(record.job, record.key) is not None:
            return "taken"
        record.attempt, record.handed_back, record.finished = attempt, handed_back, None
        self._wait(record, self.now, category)
        self.asked.discard(id_)
        return "done"

    def purge(self, id_: int) -> str:
        if self.records[id_].state not in ("dead", "blocked") or id_ in self.locked:
            return "refused"
        del self.records[id_]
        return "done"
