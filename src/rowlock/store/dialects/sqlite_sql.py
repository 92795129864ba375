"""SQLite's statements, and its instants as sortable text: one function builds one statement."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import text

from rowlock.model.table import QueueShape
from rowlock.store.dialects import scan
from rowlock.store.dialects.base import CLAIMED_COLUMNS

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
def levels(shape: QueueShape, branches: int) -> Any:
    values = ", ".join(f"({n}, :job{n}, :fingerprint{n})" for n in range(branches))
    c = shape.column
    words = scan.Words(
        **scan.words_of(shape, '"'),
        branches=f"(SELECT column1 AS n, column2 AS job, column3 AS fingerprint FROM (VALUES {values}))",
        columns="job, fingerprint",
        in_branch=(
            f"t.{quoted(c('state'))} = 'pending' AND t.{quoted(c('group'))} = :queue "
            f"AND t.{quoted(c('job'))} = {{b}}.job AND t.{quoted(c('fingerprint'))} = {{b}}.fingerprint"
        ),
    )
    return text(scan.levels_sql(words))


@lru_cache(maxsize=32)
def candidates(shape: QueueShape) -> Any:
    """The due rows of one branch and priority, whole: one index range, in order, no sorting."""
    c = shape.column
    columns = ", ".join(
        f"CAST({quoted(c(role))} AS BLOB)" if role in BLOBS else quoted(c(role)) for role in CLAIMED_COLUMNS
    )
    return text(
        f"SELECT {columns} FROM {quoted(shape.table)} WHERE {quoted(c('state'))} = 'pending'"
        f" AND {quoted(c('group'))} = :queue AND {quoted(c('job'))} = :job"
        f" AND {quoted(c('fingerprint'))} = :fingerprint"
        f" AND {quoted(c('priority'))} = :priority AND {quoted(c('run_at'))} <= :rl_now"
        f" AND {quoted(c('attempt'))} < {quoted(c('max_attempts'))}"
        f" ORDER BY {quoted(c('run_at'))}, {quoted(c('id'))} LIMIT :limit"
    )


@lru_cache(maxsize=32)
def take(shape: QueueShape) -> str:
    c = shape.column
    return (
        f"UPDATE {quoted(shape.table)} SET {quoted(c('state'))} = 'running',"
        f" {quoted(c('attempt'))} = {quoted(c('attempt'))} + 1, {quoted(c('token'))} = ?, {quoted(c('lease'))} = ?,"
        f" {quoted(c('claimed_by'))} = ?, {quoted(c('claimed_at'))} = ? WHERE {quoted(c('id'))} = ?"
    )


@lru_cache(maxsize=32)
def holding(shape: QueueShape) -> str:
    c = shape.column
    return (
        f"SELECT {quoted(c('id'))}, {quoted(c('token'))} FROM {quoted(shape.table)} WHERE {quoted(c('id'))} {{ids}}"
        f" AND {quoted(c('state'))} = 'running' AND {quoted(c('lease'))} > :rl_now"
    )


@lru_cache(maxsize=64)
def fenced(shape: QueueShape, assignments: str) -> str:
    c = shape.column
    changes = re.sub(r"\{(\w+)\}", lambda match: ":rl_now" if match[1] == "now" else f":{match[1]}", assignments)
    return (
        f"UPDATE {quoted(shape.table)} AS t SET {changes} WHERE {quoted(c('id'))} = :id"
        f" AND {quoted(c('token'))} = :token AND {quoted(c('state'))} = 'running' AND {quoted(c('lease'))} > :rl_now"
    )


_INSERT_TEXT = """
INSERT INTO rowlock_job (job, fingerprint, payload, key, queue, priority, state, run_at, attempt, max_attempts,
                         timeout_ms, headers, token, created_at)
VALUES (:job, :fingerprint, :payload, :key, :queue, :priority, 'pending', :run_at, 0, :max_attempts,
        :timeout_ms, :headers, :nonce, :created_at)
    ON CONFLICT (job, key) WHERE state IN ('pending', 'running') AND key IS NOT NULL DO NOTHING"""
INSERT = text(_INSERT_TEXT)
INSERT_ONE = text(_INSERT_TEXT + "\nRETURNING token, id")
