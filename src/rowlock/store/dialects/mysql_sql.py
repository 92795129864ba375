"""MySQL's and MariaDB's statements: one function builds one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import text

from rowlock.model.table import JOB_TABLE, QueueShape
from rowlock.store.dialects.base import CLAIMED_COLUMNS, PARAMETERS, Row, is_cancelled

PAUSED = -1


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


ID_HINT = "FORCE INDEX (PRIMARY)"


def _by_id(shape: QueueShape, alias: str = "") -> str:
    """The table in a statement that names rows by id. Where few rows are in work an optimizer likes an index of all
    that are in this state as well, and then waits for, and locks, those that others have locked (L4).
    """
    return f"{quoted(shape.table)} {alias} {ID_HINT}"


def _in_branch(shape: QueueShape, pair: str) -> str:
    c = shape.column
    return f"t.{quoted(c('state'))} = 'pending' AND t.{quoted(c('group'))} = :queue AND t.pair = {pair}"


@lru_cache(maxsize=128)
def heads(shape: QueueShape, branches: int, places: int, now: str) -> Any:
    """For each branch the first waiting row behind each of some priorities, and the microseconds until it is due.

    Written out, one index probe each: a recursive statement would read every waiting row of a branch here, since a
    range whose bound comes from another row is not used. A paused queue has one row more, of no branch (O5).
    """
    c = shape.column
    priority, run_at = quoted(c("priority")), quoted(c("run_at"))
    one = (
        f"(SELECT {{n}} AS n, {{k}} AS k, t.{priority}, TIMESTAMPDIFF(MICROSECOND, {now}, t.{run_at})"
        f" FROM {quoted(shape.table)} t FORCE INDEX (rowlock_job_due)"
        f" WHERE {_in_branch(shape, ':pair{n}')} AND t.{priority} > :after{{k}}"
        f" ORDER BY t.{priority}, t.{run_at} LIMIT 1)"
    )
    probes = [one.replace("{n}", str(n)).replace("{k}", str(k)) for n in range(branches) for k in range(places)]
    if shape.table == JOB_TABLE:
        probes.append(f"(SELECT {PAUSED}, 0, 0, 0 FROM rowlock_pause p WHERE p.queue = :queue)")
    return text(" UNION ALL ".join(probes))


@lru_cache(maxsize=128)
def candidates(shape: QueueShape, branches: int, per_branch: int, now: str, *, whole: bool) -> Any:
    """The due rows at one priority, a slice of each branch in index order. No lock is taken."""
    c = shape.column
    id_, run_at = quoted(c("id")), quoted(c("run_at"))
    columns = _whole(shape, now) if whole else f"t.{id_}, t.{run_at}"
    one = (
        f"(SELECT {{n}} AS n, {columns} FROM {quoted(shape.table)} t FORCE INDEX (rowlock_job_due)"
        f" WHERE {_in_branch(shape, ':pair{n}')} AND t.{quoted(c('priority'))} = :priority AND t.{run_at} <= {now}"
        f" AND t.{quoted(c('attempt'))} < t.{quoted(c('max_attempts'))}"
        f" ORDER BY t.{run_at}, t.{id_} LIMIT {per_branch})"
    )
    return text(" UNION ALL ".join(one.replace("{n}", str(n)) for n in range(branches)))


def _whole(shape: QueueShape, now: str) -> str:
    """A record as a claim answers it, and the microseconds since it was due.

    The cancel is read without a lock, although the record is read with one.
    """
    columns = [f"t.{quoted(shape.column(role))}" for role in CLAIMED_COLUMNS]
    cancelled = is_cancelled(shape, f"t.{quoted(shape.column('id'))}")
    return ", ".join([*columns, cancelled, f"TIMESTAMPDIFF(MICROSECOND, t.{quoted(shape.column('run_at'))}, {now})"])


def lock_pending(shape: QueueShape, in_ids: str, now: str) -> str:
    """Locks candidates by primary key, and reads them whole; what has changed since is passed over."""
    c = shape.column
    return (
        f"SELECT {_whole(shape, now)} FROM {_by_id(shape, 't')} WHERE {quoted(c('id'))} {in_ids}"
        f" AND {quoted(c('state'))} = 'pending' AND {quoted(c('run_at'))} <= {now}"
        f" AND {quoted(c('attempt'))} < {quoted(c('max_attempts'))} FOR UPDATE SKIP LOCKED"
    )


def lock_first(shape: QueueShape, limit: int, now: str) -> str:
    """Locks the first rows of a branch at one priority that nobody else holds."""
    c = shape.column
    return (
        f"SELECT {_whole(shape, now)} FROM {quoted(shape.table)} t FORCE INDEX (rowlock_job_due)"
        f" WHERE {_in_branch(shape, ':pair')}"
        f" AND t.{quoted(c('priority'))} = :priority AND t.{quoted(c('run_at'))} <= {now}"
        f" AND t.{quoted(c('attempt'))} < t.{quoted(c('max_attempts'))}"
        f" ORDER BY t.{quoted(c('run_at'))}, t.{quoted(c('id'))} LIMIT {limit} FOR UPDATE SKIP LOCKED"
    )


def take(shape: QueueShape, in_ids: str, now: str) -> str:
    """Makes locked rows running. A row's token is the claim's nonce and its id: one statement for all."""
    c = shape.column
    return (
        f"UPDATE {_by_id(shape)} SET {quoted(c('state'))} = 'running',"
        f" {quoted(c('attempt'))} = {quoted(c('attempt'))} + 1,"
        f" {quoted(c('token'))} = CONCAT(:nonce, LOWER(HEX({quoted(c('id'))}))),"
        f" {quoted(c('lease'))} = {now} + INTERVAL :lease_ms * 1000 MICROSECOND,"
        f" {quoted(c('claimed_by'))} = :claimed_by, {quoted(c('claimed_at'))} = {now}"
        f" WHERE {quoted(c('id'))} {in_ids}"
    )


def take_due(shape: QueueShape, in_ids: str, tries: str, now: str) -> str:
    """Makes rows running that were only read: those that are still due and were not tried since (`tries`)."""
    c = shape.column
    return (
        f"{take(shape, in_ids, now)} AND {quoted(c('state'))} = 'pending' AND {quoted(c('run_at'))} <= {now}"
        f" AND ({quoted(c('id'))}, {quoted(c('attempt'))}) IN ({tries})"
    )


def of_tokens(shape: QueueShape, in_ids: str, tokens: str) -> str:
    """The rows among these that a claim took."""
    c = shape.column
    return (
        f"SELECT {quoted(c('id'))} FROM {_by_id(shape)} WHERE {quoted(c('id'))} {in_ids}"
        f" AND {quoted(c('token'))} IN ({tokens})"
    )


def all_held(shape: QueueShape, in_ids: str, pairs: str, records: int, now: str) -> str:
    """What follows an update's condition: it applies to all these pairs or, if one does not hold, to none.

    A derived table with an aggregate is the one way to read the table that is being updated.
    """
    c = shape.column
    owned = f"({quoted(c('id'))}, {quoted(c('token'))}) IN ({pairs})"
    return (
        f" AND {owned} AND (SELECT held.n FROM (SELECT COUNT(*) AS n FROM {_by_id(shape)}"
        f" WHERE {quoted(c('id'))} {in_ids} AND {owned} AND {quoted(c('state'))} = 'running'"
        f" AND {quoted(c('lease'))} > {now}) AS held) = {records}"
    )


def changed_of(shape: QueueShape, in_ids: str, pairs: str, now: str) -> str:
    """The rows of these pairs that an update of them has just ended or renewed."""
    c = shape.column
    return (
        f"SELECT {quoted(c('id'))} FROM {_by_id(shape)} WHERE {quoted(c('id'))} {in_ids}"
        f" AND ({quoted(c('id'))}, {quoted(c('token'))}) IN ({pairs})"
        f" AND ({quoted(c('state'))} <> 'running' OR {quoted(c('lease'))} > {now})"
    )


def hold_running(shape: QueueShape, in_ids: str, *, wait: bool) -> str:
    c = shape.column
    return (
        f"SELECT {quoted(c('id'))}, {quoted(c('token'))} FROM {_by_id(shape)} WHERE {quoted(c('id'))} {in_ids}"
        f" AND {quoted(c('state'))} = 'running' ORDER BY {quoted(c('id'))} FOR UPDATE{'' if wait else ' SKIP LOCKED'}"
    )


def fenced_update(
    shape: QueueShape,
    assignments: str,
    records: Sequence[Mapping[str, Any]],
    in_ids: str,
    now: str,
    params: dict[str, Any],
) -> str:
    """The update of rows that are locked and whose tokens match; adds its values to `params`."""
    c = shape.column

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name == "now":
            return now
        values = [record[name] for record in records]
        if all(one == values[0] for one in values):
            params[name] = values[0]
            return f"CAST(:{name} AS SIGNED)" if PARAMETERS[name] in {"bigint", "integer"} else f":{name}"
        cases: list[str] = []
        for n, record in enumerate(records):
            params[f"{name}{n}"] = record[name]
            cases.append(f"WHEN {int(record['id'])} THEN :{name}{n}")
        return f"CASE {quoted(c('id'))} {' '.join(cases)} END"

    changes = re.sub(r"\{(\w+)\}", value, assignments)
    return (
        f"UPDATE {_by_id(shape, 't')} SET {changes} WHERE {quoted(c('id'))} {in_ids}"
        f" AND {quoted(c('state'))} = 'running' AND {quoted(c('lease'))} > {now}"
    )


def expired_among(shape: QueueShape, in_ids: str, now: str) -> str:
    c = shape.column
    return (
        f"SELECT {quoted(c('id'))} FROM {_by_id(shape)} WHERE {quoted(c('id'))} {in_ids}"
        f" AND {quoted(c('state'))} = 'running' AND {quoted(c('lease'))} <= {now}"
    )


def bound(statement: str, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """`:name` as the drivers' `%(name)s`, for statements that are written anew each time."""
    return re.sub(r":(\w+)", r"%(\1)s", statement), dict(params)


_COLUMNS = (
    "INSERT INTO rowlock_job (job, fingerprint, payload, `key`, queue, priority, state, run_at, attempt, max_attempts,"
    " timeout_ms, headers, token, created_at) VALUES "
)


def insert(rows: Sequence[Row], now: str, to_db: Callable[[Any], Any]) -> tuple[str, dict[str, Any]]:
    """One multi-row INSERT. Times are computed there: the session's zone is the caller's, so UTC_TIMESTAMP.

    A value that is the same in all rows is one parameter: the drivers write each of them into the statement.
    """
    first = rows[0]
    params: dict[str, Any] = {"job": first.job, "fingerprint": first.fingerprint}
    params |= {"most": first.max_attempts, "timeout": first.timeout_ms}
    marks: dict[str, str] = {}
    for name in ("payload", "key", "queue", "headers", "nonce"):
        column = [getattr(row, name) for row in rows]
        same = all(value == column[0] for value in column)
        marks[name] = f"%({name})s" if same else f"%({name}{{n}})s"
        params |= {name: column[0]} if same else {f"{name}{n}": value for n, value in enumerate(column)}
    shape = (
        f"(%(job)s, %(fingerprint)s, {marks['payload']}, {marks['key']}, {marks['queue']}, {{priority}}, 'pending',"
        f" {{due}}, 0, %(most)s, %(timeout)s, {marks['headers']}, {marks['nonce']}, {now})"
    )
    values: list[str] = []
    for n, row in enumerate(rows):
        due = now
        if row.delay_ms is not None:
            due = f"{now} + INTERVAL {int(row.delay_ms)} * 1000 MICROSECOND"
        elif row.run_at is not None:
            due = f"%(at{n})s" if row.exact else f"GREATEST(%(at{n})s, {now})"
            params[f"at{n}"] = to_db(row.run_at)
        values.append(shape.format(n=n, priority=int(row.priority), due=due))
    return _COLUMNS + ", ".join(values), params


@lru_cache(maxsize=128)
def find_recent(keys: int, now: str) -> str:
    """A probe for each key: one list of them would be read whole, with every record that each has had."""
    probes = " UNION ALL ".join(
        f"(SELECT done_key, id, state, created_at FROM rowlock_job FORCE INDEX (rowlock_job_done_key)"
        f" WHERE done_key = :key{n} ORDER BY created_at DESC LIMIT 1)"
        for n in range(keys)
    )
    return (
        f"SELECT done_key, id, state FROM ({probes}) AS last"
        f" WHERE created_at > {now} - INTERVAL :window_ms * 1000 MICROSECOND"
    )


def is_ascii(params: Mapping[str, Any]) -> bool:
    """Whether every character set has these values' characters, and at one place."""
    return all(value.isascii() for value in params.values() if isinstance(value, str))


def as_bytes(statement: str, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The same statement, its texts as bytes: for a session that would replace characters, or end texts at them."""
    other = {name: value for name, value in params.items() if isinstance(value, str) and not value.isascii()}
    marked = re.sub(r"%\((\w+)\)s", lambda m: f"CONVERT({m[0]} USING utf8mb4)" if m[1] in other else m[0], statement)
    return marked, {**params, **{name: value.encode() for name, value in other.items()}}


def may_be_long(params: Mapping[str, Any], rows: int) -> bool:
    """Whether it is worth to count the bytes of an INSERT of so many rows: a cheap look."""
    texts = ((name, len(value)) for name, value in params.items() if isinstance(value, str | bytes))
    return sum(length * _times(name, rows) for name, length in texts) > 1 << 17


def size_of(statement: str, params: Mapping[str, Any], rows: int) -> int:
    """The bytes of an INSERT of so many rows once the driver has written the values into it."""
    size = len(statement)
    for name, value in params.items():
        written = 32
        if isinstance(value, bytes):
            written += 2 * len(value)
        elif isinstance(value, str):
            written += len(value.encode()) + sum(map(value.count, "\0\n\r\x1a\"'\\"))
        size += written * _times(name, rows)
    return size


def _times(name: str, rows: int) -> int:
    """How often a value is written: one of a row's own has its number, the others stand in each row."""
    return 1 if name[-1].isdigit() else rows
