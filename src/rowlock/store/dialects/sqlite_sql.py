"""SQLite's statements, and its instants as sortable text: one function builds one statement."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from rowlock.model.table import QueueShape
from rowlock.store.dialects.base import is_cancelled, not_paused

BLOBS = frozenset({"payload", "headers", "key"})
"""Fetched as bytes: one byte that is not UTF-8 must fail one record, not the fetch (W5)."""


def to_text(moment: datetime) -> str:
    """The one format of stored instants: 26 characters, UTC, microseconds; it sorts as time."""
    utc = moment.astimezone(UTC)
    return f"{utc.year:04d}-{utc:%m-%d %H:%M:%S}.{utc.microsecond:06d}"


def from_text(value: str) -> datetime:
    return datetime.fromisoformat(value).replace(tzinfo=UTC)


def plus_ms(instant: str, milliseconds: float) -> str:
    return to_text(from_text(instant) + timedelta(milliseconds=milliseconds))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@lru_cache(maxsize=32)
def levels(shape: QueueShape, branches: int) -> str:
    """Each branch's priorities with pending rows, found by skipping, and the earliest run_at of each."""
    c = shape.column
    table, priority, run_at = quoted(shape.table), quoted(c("priority")), quoted(c("run_at"))
    values = ", ".join(f"({n}, :job{n}, :fingerprint{n})" for n in range(branches))

    def waiting(branch: str) -> str:
        return (
            f"t.{quoted(c('state'))} = 'pending' AND t.{quoted(c('group'))} = :queue "
            f"AND t.{quoted(c('job'))} = {branch}.job AND t.{quoted(c('fingerprint'))} = {branch}.fingerprint"
        )

    return f"""
WITH RECURSIVE branch(n, job, fingerprint) AS (VALUES {values}),
level(n, job, fingerprint, priority) AS (
  SELECT b.n, b.job, b.fingerprint,
         (SELECT t.{priority} FROM {table} t WHERE {waiting("b")} ORDER BY t.{priority} LIMIT 1)
    FROM branch b WHERE {not_paused(shape)}
  UNION ALL
  SELECT l.n, l.job, l.fingerprint,
         (SELECT t.{priority} FROM {table} t WHERE {waiting("l")} AND t.{priority} > l.priority
           ORDER BY t.{priority} LIMIT 1)
    FROM level l WHERE l.priority IS NOT NULL)
SELECT l.n, l.priority,
       (SELECT t.{run_at} FROM {table} t WHERE {waiting("l")} AND t.{priority} = l.priority
         ORDER BY t.{run_at} LIMIT 1) AS head
  FROM level l WHERE l.priority IS NOT NULL"""


@lru_cache(maxsize=32)
def candidates(shape: QueueShape) -> str:
    """The due rows of one branch and priority: one index range, in order, no sorting.

    Of what a claim hands out only that which its condition does not say already.
    """
    c = shape.column
    columns = ", ".join(
        f"CAST({quoted(c(role))} AS BLOB)" if role in BLOBS else quoted(c(role))
        for role in ("id", "run_at", "payload", "key", "attempt", "max_attempts", "timeout_ms", "headers")
    )
    return (
        f"SELECT {columns}, {is_cancelled(shape, 't.' + quoted(c('id')))} FROM {quoted(shape.table)} t"
        f" WHERE {quoted(c('state'))} = 'pending'"
        f" AND {quoted(c('group'))} = ? AND {quoted(c('job'))} = ? AND {quoted(c('fingerprint'))} = ?"
        f" AND {quoted(c('priority'))} = ? AND {quoted(c('run_at'))} <= ?"
        f" AND {quoted(c('attempt'))} < {quoted(c('max_attempts'))}"
        f" ORDER BY {quoted(c('run_at'))}, {quoted(c('id'))} LIMIT ?"
    )


def places(count: int) -> int:
    """So many places a statement has for `count` values; the rest are NULL.

    A statement that has the same text again is not compiled again, and to compile an update of the job table, with its
    checks and partial indexes, costs as much as to run it on twenty rows.
    """
    room = 1 << (count - 1).bit_length()
    return room if count > room * 3 // 4 else room * 3 // 4


def take(shape: QueueShape, ids: Sequence[int]) -> tuple[str, tuple[Any, ...]]:
    """Makes due rows running: the statement, and the parameters behind nonce, lease, claimed_by and claimed_at."""
    room = places(len(ids))
    return _take(shape, room), (*ids, *[None] * (room - len(ids)))


@lru_cache(maxsize=64)
def _take(shape: QueueShape, room: int) -> str:
    """A row's token is the claim's nonce and its id."""
    c = shape.column
    return (
        f"UPDATE {quoted(shape.table)} SET {quoted(c('state'))} = 'running',"
        f" {quoted(c('attempt'))} = {quoted(c('attempt'))} + 1,"
        f" {quoted(c('token'))} = ? || printf('%x', {quoted(c('id'))}), {quoted(c('lease'))} = ?,"
        f" {quoted(c('claimed_by'))} = ?, {quoted(c('claimed_at'))} = ?"
        f" WHERE {quoted(c('id'))} IN ({','.join('?' * room)})"
    )


@lru_cache(maxsize=64)
def _owned(shape: QueueShape, room: int) -> str:
    """The condition that a row is held by its pair of id and token, with an unexpired lease (L1)."""
    c = shape.column
    return (
        f"{quoted(c('id'))} IN ({','.join('?' * room)})"
        f" AND ({quoted(c('id'))}, {quoted(c('token'))}) IN (VALUES {','.join(['(?,?)'] * room)})"
        f" AND {quoted(c('state'))} = 'running' AND {quoted(c('lease'))} > ?"
    )


def _owners(records: Sequence[Mapping[str, Any]], room: int, now: str) -> list[Any]:
    """The parameters of `_owned`."""
    none = [None] * (room - len(records))
    values: list[Any] = [record["id"] for record in records] + none
    for record in records:
        values += (record["id"], record["token"])
    return [*values, *none, *none, now]


def holding(shape: QueueShape, records: Sequence[Mapping[str, Any]], now: str) -> tuple[str, tuple[Any, ...]]:
    """The ids that are held, in one value: a row each would cost a turn of the GIL each."""
    room = places(len(records))
    ids = f"SELECT group_concat({quoted(shape.column('id'))}) FROM {quoted(shape.table)}"
    return f"{ids} WHERE {_owned(shape, room)}", tuple(_owners(records, room, now))


def fenced(
    shape: QueueShape, assignments: str, records: Sequence[Mapping[str, Any]], now: str
) -> tuple[str, tuple[Any, ...]]:
    """The update of records whose values are all the same."""
    room = places(len(records))
    changes, names = _marked(assignments)
    values = [now if name == "now" else records[0][name] for name in names]
    statement = f"UPDATE {quoted(shape.table)} AS t SET {changes} WHERE {_owned(shape, room)}"
    return statement, (*values, *_owners(records, room, now))


def fenced_each(shape: QueueShape, assignments: str) -> str:
    """The update of one record, for values that differ."""
    c = shape.column
    return (
        f"UPDATE {quoted(shape.table)} AS t SET {_changes(assignments)} WHERE {quoted(c('id'))} = :id"
        f" AND {quoted(c('token'))} = :token AND {quoted(c('state'))} = 'running' AND {quoted(c('lease'))} > :rl_now"
    )


@lru_cache(maxsize=64)
def _marked(assignments: str) -> tuple[str, tuple[str, ...]]:
    """The assignments with a mark for each value, and the values' names in the order of the marks."""
    return re.sub(r"\{\w+\}", "?", assignments), tuple(re.findall(r"\{(\w+)\}", assignments))


@lru_cache(maxsize=64)
def _changes(assignments: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: ":rl_now" if match[1] == "now" else f":{match[1]}", assignments)


INSERT = """
INSERT INTO rowlock_job (job, fingerprint, payload, key, queue, priority, state, run_at, attempt, max_attempts,
                         timeout_ms, headers, token, created_at)
VALUES (?, ?, ?, ?, ?, ?, 'pending', ?, 0, ?, ?, ?, ?, ?)
    ON CONFLICT (job, key) WHERE state IN ('pending', 'running') AND key IS NOT NULL DO NOTHING"""
INSERT_ONE = INSERT + "\nRETURNING token, id"


@lru_cache(maxsize=512)
def find_recent(keys: int) -> str:
    """A probe for each key."""
    return f"""
SELECT wanted.column1, (SELECT id FROM rowlock_job INDEXED BY rowlock_job_done_key
                    WHERE job = ?{keys + 1} AND key = wanted.column1 AND state = 'succeeded' AND key IS NOT NULL
                      AND created_at > ?{keys + 2} ORDER BY created_at DESC LIMIT 1)
  FROM (VALUES {", ".join(f"(?{n})" for n in range(1, keys + 1))}) wanted"""
