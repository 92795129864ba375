"""MySQL's and MariaDB's statements: one function builds one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import text

from rowlock.model.table import QueueShape
from rowlock.store.dialects import scan
from rowlock.store.dialects.base import CLAIMED_COLUMNS, PARAMETERS, Row


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _in_branch(shape: QueueShape, pair: str) -> str:
    c = shape.column
    return f"t.{quoted(c('state'))} = 'pending' AND t.{quoted(c('group'))} = :queue AND t.pair = {pair}"


@lru_cache(maxsize=64)
def levels(shape: QueueShape, branches: int, now: str) -> Any:
    """The heads of all branches and priorities, with the microseconds until each is due.

    Not divided there: the server keeps four digits of a quotient, so what is due in 49 µs would be due now.
    """
    values = " UNION ALL ".join(f"SELECT {n} AS n, CAST(:pair{n} AS BINARY(16)) AS pair" for n in range(branches))
    words = scan.Words(
        **scan.words_of(shape, "`"),
        branches=f"({values})",
        columns="pair",
        in_branch=_in_branch(shape, "{b}.pair"),
    )
    return text(
        f"SELECT h.n, h.priority, TIMESTAMPDIFF(MICROSECOND, {now}, h.head)"
        f" FROM ({scan.levels_sql(words)}) h WHERE h.head IS NOT NULL"
    )


@lru_cache(maxsize=128)
def candidates(shape: QueueShape, branches: int, per_branch: int, now: str) -> Any:
    """The due rows at one priority, a slice of each branch in index order. No lock is taken."""
    c = shape.column
    id_, run_at = quoted(c("id")), quoted(c("run_at"))
    one = (
        f"(SELECT {{n}} AS n, t.{id_}, t.{run_at} FROM {quoted(shape.table)} t FORCE INDEX (rowlock_job_due)"
        f" WHERE {_in_branch(shape, ':pair{n}')} AND t.{quoted(c('priority'))} = :priority AND t.{run_at} <= {now}"
        f" AND t.{quoted(c('attempt'))} < t.{quoted(c('max_attempts'))}"
        f" ORDER BY t.{run_at}, t.{id_} LIMIT {per_branch})"
    )
    return text(" UNION ALL ".join(one.replace("{n}", str(n)) for n in range(branches)))


def lock_pending(shape: QueueShape, in_ids: str, now: str) -> str:
    """Locks candidates by primary key, and reads them whole; what has changed since is passed over."""
    c = shape.column
    columns = ", ".join(quoted(c(role)) for role in CLAIMED_COLUMNS)
    return (
        f"SELECT {columns} FROM {quoted(shape.table)} WHERE {quoted(c('id'))} {in_ids}"
        f" AND {quoted(c('state'))} = 'pending' AND {quoted(c('run_at'))} <= {now}"
        f" AND {quoted(c('attempt'))} < {quoted(c('max_attempts'))} FOR UPDATE SKIP LOCKED"
    )


def lock_first(shape: QueueShape, limit: int, now: str) -> str:
    """Locks the first rows of a branch at one priority that nobody else holds."""
    c = shape.column
    columns = ", ".join(quoted(c(role)) for role in CLAIMED_COLUMNS)
    return (
        f"SELECT {columns} FROM {quoted(shape.table)} t FORCE INDEX (rowlock_job_due)"
        f" WHERE {_in_branch(shape, ':pair')}"
        f" AND t.{quoted(c('priority'))} = :priority AND t.{quoted(c('run_at'))} <= {now}"
        f" AND t.{quoted(c('attempt'))} < t.{quoted(c('max_attempts'))}"
        f" ORDER BY t.{quoted(c('run_at'))}, t.{quoted(c('id'))} LIMIT {limit} FOR UPDATE SKIP LOCKED"
    )


def take(shape: QueueShape, in_ids: str, now: str) -> str:
    """Makes locked rows running. A row's token is the claim's nonce and its id: one statement for all."""
    c = shape.column
    return (
        f"UPDATE {quoted(shape.table)} SET {quoted(c('state'))} = 'running',"
        f" {quoted(c('attempt'))} = {quoted(c('attempt'))} + 1,"
        f" {quoted(c('token'))} = CONCAT(:nonce, LOWER(HEX({quoted(c('id'))}))),"
        f" {quoted(c('lease'))} = {now} + INTERVAL :lease_ms * 1000 MICROSECOND,"
        f" {quoted(c('claimed_by'))} = :claimed_by, {quoted(c('claimed_at'))} = {now}"
        f" WHERE {quoted(c('id'))} {in_ids}"
    )


def hold_running(shape: QueueShape, in_ids: str, *, wait: bool) -> str:
    c = shape.column
    return (
        f"SELECT {quoted(c('id'))}, {quoted(c('token'))} FROM {quoted(shape.table)} WHERE {quoted(c('id'))} {in_ids}"
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
        f"UPDATE {quoted(shape.table)} AS t SET {changes} WHERE {quoted(c('id'))} {in_ids}"
        f" AND {quoted(c('state'))} = 'running' AND {quoted(c('lease'))} > {now}"
    )


def expired_among(shape: QueueShape, in_ids: str, now: str) -> str:
    c = shape.column
    return (
        f"SELECT {quoted(c('id'))} FROM {quoted(shape.table)} WHERE {quoted(c('id'))} {in_ids}"
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
    """One multi-row INSERT. Times are computed there: the session's zone is the caller's, so UTC_TIMESTAMP."""
    params: dict[str, Any] = {
        "job": rows[0].job,
        "fingerprint": rows[0].fingerprint,
        "most": rows[0].max_attempts,
        "timeout": rows[0].timeout_ms,
    }
    values: list[str] = []
    for n, row in enumerate(rows):
        due = now
        if row.delay_ms is not None:
            due = f"{now} + INTERVAL {int(row.delay_ms)} * 1000 MICROSECOND"
        elif row.run_at is not None:
            due = f"GREATEST(%(at{n})s, {now})"
            params[f"at{n}"] = to_db(row.run_at)
        params[f"p{n}"], params[f"k{n}"], params[f"q{n}"] = row.payload, row.key, row.queue
        params[f"h{n}"], params[f"n{n}"] = row.headers, row.nonce
        values.append(
            f"(%(job)s, %(fingerprint)s, %(p{n})s, %(k{n})s, %(q{n})s, {int(row.priority)}, 'pending', {due}, 0,"
            f" %(most)s, %(timeout)s, %(h{n})s, %(n{n})s, {now})"
        )
    return _COLUMNS + ", ".join(values), params
