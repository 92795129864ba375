"""PostgreSQL's statements: one function builds one."""

from __future__ import annotations

import hashlib
import random
import re
import struct
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from rowlock.errors import EnqueueBusy
from rowlock.model.table import QueueShape
from rowlock.store.dialects.base import CLAIMED_COLUMNS, PARAMETERS, Row, is_cancelled, not_paused, one_of

_TYPES = {"instant": "timestamptz"}
MOST_RESERVED = 1_000
"""More keys than this in one call of a caller's transaction are left to the unique index: each reserved key is a
lock in the server's shared table, which has room for a few thousand."""
OUT_OF_MEMORY = "53200"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _columns(shape: QueueShape, *roles: str, of: str = "t") -> str:
    return ", ".join(f"{of}.{quoted(shape.column(role))}" for role in roles)


def _in_branch(shape: QueueShape, branch: str) -> str:
    """The rows of one branch that wait. The partial index needs its condition word for word."""
    c = shape.column
    return (
        f"t.{quoted(c('state'))} = 'pending' AND t.{quoted(c('group'))} = :queue "
        f"AND t.{quoted(c('job'))} = {branch}.job AND t.{quoted(c('fingerprint'))} = {branch}.fingerprint"
    )


def _level_ctes(shape: QueueShape) -> str:
    """Each branch's priorities, best first, found by skipping: one index probe for each, however many rows."""
    table, priority = quoted(shape.table), quoted(shape.column("priority"))
    return f"""
branch AS MATERIALIZED (
  SELECT b.job, b.fingerprint, b.n
    FROM unnest(CAST(:jobs AS text[]), CAST(:fingerprints AS text[])) WITH ORDINALITY AS b(job, fingerprint, n)
   WHERE {not_paused(shape)}),
level(job, fingerprint, n, priority) AS (
  SELECT b.job, b.fingerprint, b.n,
         (SELECT t.{priority} FROM {table} t WHERE {_in_branch(shape, "b")} ORDER BY t.{priority} LIMIT 1)
    FROM branch b
  UNION ALL
  SELECT l.job, l.fingerprint, l.n,
         (SELECT t.{priority} FROM {table} t WHERE {_in_branch(shape, "l")} AND t.{priority} > l.priority
           ORDER BY t.{priority} LIMIT 1)
    FROM level l WHERE l.priority IS NOT NULL)"""


@lru_cache(maxsize=64)
def levels(shape: QueueShape, scan_now: str) -> str:
    """The heads of all branches and priorities: which are due, and when the others will be."""
    table, run_at, priority = quoted(shape.table), quoted(shape.column("run_at")), quoted(shape.column("priority"))
    return f"""
WITH RECURSIVE {_level_ctes(shape)}
SELECT h.n, h.priority, extract(epoch FROM h.head - {scan_now})
  FROM (SELECT l.n, l.priority,
               (SELECT t.{run_at} FROM {table} t WHERE {_in_branch(shape, "l")} AND t.{priority} = l.priority
                 ORDER BY t.{run_at} LIMIT 1) AS head
          FROM level l WHERE l.priority IS NOT NULL) h
 WHERE h.head IS NOT NULL"""


@lru_cache(maxsize=256)
def claim(shape: QueueShape, over: int, scan_now: str, now: str) -> str:
    """Claims due records. Candidates are read without locks, so only what is returned gets locked (C2).

    `id = ANY(ARRAY(…))` keeps the primary key's index at every batch size; a join flips to a full scan.
    """
    c = shape.column
    table = quoted(shape.table)
    id_, state, run_at, priority = (quoted(c(role)) for role in ("id", "state", "run_at", "priority"))
    attempt, most = quoted(c("attempt")), quoted(c("max_attempts"))
    ready = f"t.{run_at} <= {scan_now} AND t.{attempt} < t.{most}"
    return f"""
WITH RECURSIVE {_level_ctes(shape)},
candidate AS (
  SELECT due.id
    FROM (SELECT * FROM level WHERE priority IS NOT NULL ORDER BY priority) l
   CROSS JOIN LATERAL (
     SELECT t.{id_} AS id, t.{run_at} AS run_at FROM {table} t
      WHERE {_in_branch(shape, "l")} AND t.{priority} = l.priority AND {ready}
      ORDER BY t.{run_at}, t.{id_} LIMIT {over}) due
   ORDER BY l.priority, due.run_at, due.id LIMIT {over}),
held AS (
  SELECT t.{id_} AS id FROM {table} t
   WHERE t.{id_} = ANY(ARRAY(SELECT id FROM candidate)) AND {is_still(shape, "pending", prefix="t.")} AND {ready}
   ORDER BY t.{priority}, t.{run_at}, t.{id_} LIMIT CAST(:limit AS bigint) FOR UPDATE SKIP LOCKED)
UPDATE {table} AS t
   SET {state} = 'running', {attempt} = t.{attempt} + 1,
       {quoted(c("token"))} = replace(CAST(gen_random_uuid() AS text), '-', ''),
       {quoted(c("lease"))} = {now} + (CAST(:leases AS bigint[]))[array_position(CAST(:jobs AS text[]),
         t.{quoted(c("job"))})] * interval '1 millisecond',
       {quoted(c("claimed_by"))} = :claimed_by, {quoted(c("claimed_at"))} = {now}
 WHERE t.{id_} = ANY(ARRAY(SELECT id FROM held))
RETURNING {_columns(shape, *CLAIMED_COLUMNS)}, {is_cancelled(shape, f"t.{id_}")},
          CAST(extract(epoch FROM {now} - t.{run_at}) AS double precision)"""


def is_still(shape: QueueShape, *states: str, prefix: str = "") -> str:
    """The condition for rows that are named by id: in words that hide the index of all rows in this state from the
    planner, which prefers it to the primary key at small numbers, and then reads every record in work.
    """
    return f"({prefix}{quoted(shape.column('state'))} || '') {one_of(states)}"


def parameters_of(assignments: str) -> list[str]:
    return [name for name in PARAMETERS if f"{{{name}}}" in assignments]


@lru_cache(maxsize=256)
def fenced_update(shape: QueueShape, assignments: str, now: str, varying: tuple[str, ...], wait: bool) -> str:
    """Updates what the pairs still own.

    The clock is the output of an aggregate over the locked rows, so it is read after the last lock, whatever the plan:
    as a plain condition beside them a sequential scan reads it first, and revives a lease that ended during the wait.
    The deadline judged is the locked row's, since the statement's own snapshot may be older than the wait (L2).
    """
    c = shape.column
    table, id_, token, lease = (quoted(name) for name in (shape.table, c("id"), c("token"), c("lease")))

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name == "now":
            return "(SELECT now FROM clock)"
        kind = _TYPES.get(PARAMETERS[name], PARAMETERS[name])
        if name in varying:
            return f"(CAST(:{name} AS {kind}[]))[array_position(CAST(:ids AS bigint[]), t.{id_})]"
        return f"CAST(:{name} AS {kind})"

    changes = re.sub(r"\{(\w+)\}", value, assignments)
    return f"""
WITH pair AS MATERIALIZED (
  SELECT p.id, p.token FROM unnest(CAST(:ids AS bigint[]), CAST(:tokens AS text[])) AS p(id, token)),
held AS MATERIALIZED (
  SELECT t.{id_} AS id, t.{token} AS token, t.{lease} AS lease FROM {table} t
   WHERE t.{id_} = ANY(CAST(:ids AS bigint[])) AND {is_still(shape, "running", prefix="t.")}
   ORDER BY t.{id_} FOR UPDATE{"" if wait else " SKIP LOCKED"}),
clock AS MATERIALIZED (SELECT {now} AS now, count(*) AS locked FROM held)
UPDATE {table} AS t SET {changes}
 WHERE t.{id_} = ANY(ARRAY(SELECT h.id FROM held h JOIN pair p ON p.id = h.id AND p.token = h.token
                            WHERE h.lease > (SELECT now FROM clock)))
RETURNING t.{id_}"""


_INSERT = """
INSERT INTO rowlock_job (job, fingerprint, payload, key, queue, priority, state, run_at, attempt, max_attempts,
                         timeout_ms, headers, token, created_at)"""
_CONFLICT = """
    ON CONFLICT (job, key) WHERE state IN ('pending', 'running') AND key IS NOT NULL DO NOTHING
RETURNING token, id"""


_ROW_TYPES = {
    "payload": "text",
    "key": "text",
    "queue": "text",
    "priority": "integer",
    "run_at": "timestamptz",
    "delay_ms": "bigint",
    "headers": "text",
}
"""The values of a row that may differ within one INSERT, and their types."""


def _due(run_at: str, delay_ms: str, now: str, exact: bool) -> str:
    return run_at if exact else f"COALESCE({now} + {delay_ms} * interval '1 millisecond', GREATEST({run_at}, {now}))"


@lru_cache(maxsize=4)
def insert_one(now: str, exact: bool) -> str:
    value = {name: f"CAST(:{name} AS {kind})" for name, kind in _ROW_TYPES.items()}
    return f"""{_INSERT}
VALUES (:job, :fingerprint, :payload, {value["key"]}, :queue, :priority, 'pending',
        {_due(value["run_at"], value["delay_ms"], now, exact)}, 0, :max_attempts, :timeout_ms, {value["headers"]},
        CAST(:nonce AS text), {now}){_CONFLICT}"""


@lru_cache(maxsize=64)
def insert_many(now: str, varying: tuple[str, ...], exact: bool) -> str:
    """Many rows; only the values that differ between them travel as arrays."""
    value = {name: f"r.{name}" if name in varying else f"CAST(:{name} AS {kind})" for name, kind in _ROW_TYPES.items()}
    arrays = ", ".join(f"CAST(CAST(:{name} AS text) AS {_ROW_TYPES.get(name, 'text')}[])" for name in varying)
    return f"""{_INSERT}
SELECT CAST(:job AS text), CAST(:fingerprint AS text), {value["payload"]}, {value["key"]}, {value["queue"]},
       {value["priority"]}, 'pending', {_due(value["run_at"], value["delay_ms"], now, exact)}, 0,
       CAST(:max_attempts AS integer), CAST(:timeout_ms AS integer), {value["headers"]}, r.nonce, {now}
  FROM unnest({arrays}) WITH ORDINALITY AS r({", ".join(varying)}, n)
 ORDER BY r.n{_CONFLICT}"""


def arrays_of(rows: Sequence[Row]) -> dict[str, str]:
    """The values that differ between rows, as arrays; payload and nonce always count as such."""
    columns = dict(zip(Row._fields, zip(*rows, strict=True), strict=True))
    always = ("payload", "nonce")
    return {
        name: array_text(columns[name])
        for name in (*_ROW_TYPES, "nonce")
        if name in always or len(set(columns[name])) > 1
    }


def array_text(values: Iterable[object]) -> str:
    """An array as PostgreSQL writes it: a driver that does it value by value takes longer than the server does."""
    parts = ["NULL" if v is None else '"' + str(v).replace("\\", "\\\\").replace('"', '\\"') + '"' for v in values]
    return "{" + ",".join(parts) + "}"


FIND_ACTIVE = """
SELECT found.key, found.id, found.state
  FROM unnest(CAST(:jobs AS text[])) AS j(job) CROSS JOIN unnest(CAST(:keys AS text[])) AS k(key)
 CROSS JOIN LATERAL (
   SELECT t.key, t.id, t.state FROM rowlock_job t
    WHERE t.job = j.job AND t.key = k.key AND t.state IN ('pending', 'running') AND t.key IS NOT NULL LIMIT 1) found"""
"""A probe for each key. With `key = ANY(…)` and old statistics all keys of the job are read, and then compared."""


@lru_cache(maxsize=4)
def find_recent(now: str) -> str:
    return f"""
SELECT found.key, found.id, found.state
  FROM unnest(CAST(:jobs AS text[])) AS j(job) CROSS JOIN unnest(CAST(:keys AS text[])) AS k(key)
 CROSS JOIN LATERAL (
   SELECT t.key, t.id, t.state, t.created_at FROM rowlock_job t
    WHERE t.job = j.job AND t.key = k.key AND t.state = 'succeeded' AND t.key IS NOT NULL
    ORDER BY t.created_at DESC LIMIT 1) found
 WHERE found.created_at > {now} - CAST(:window_ms AS bigint) * interval '1 millisecond'"""


def reserve_keys(conn: Connection, job: str, keys: Sequence[str], wait_ms: int) -> None:
    """Takes a transaction-scoped advisory lock on each key, polling up to the bound.

    To wait inside the INSERT and be cancelled there would abort the caller's transaction. What was taken in a
    round that failed is given back with its savepoint, so two batches can not hold parts of each other. In autocommit
    mode the locks end with the statement that takes them, which still tells that somebody else has one.
    """
    if len(keys) > MOST_RESERVED:
        return
    hashes = sorted(_hash(job, key) for key in keys)
    autocommit = bool(getattr(conn.connection.dbapi_connection, "autocommit", False))
    deadline = time.monotonic() + wait_ms / 1000
    while not _reserved(conn, hashes, savepoint=len(hashes) > 1 and not autocommit):
        if time.monotonic() >= deadline:
            raise EnqueueBusy(
                f"job {job!r}: another transaction has enqueued the same key and did not end within {wait_ms} ms (E4, "
                f"job.enqueue_wait_ms); nothing was written, try again, or end that transaction sooner"
            )
        # On the server, so that a coroutine's loop is not blocked.
        conn.execute(_PAUSE, {"seconds": 0.01 + random.random() * 0.03})  # noqa: S311 - a pause, no secret


def _reserved(conn: Connection, hashes: Sequence[int], *, savepoint: bool) -> bool:
    if not savepoint:
        return conn.execute(_TRY_LOCKS, {"hashes": hashes}).first() is None
    conn.exec_driver_sql("SAVEPOINT rowlock_keys")
    try:
        busy = conn.execute(_TRY_LOCKS, {"hashes": hashes}).first() is not None
        full = False
    except DBAPIError as error:
        busy = full = getattr(error.orig, "sqlstate", None) == OUT_OF_MEMORY
        if not full:
            raise
    if busy:
        conn.exec_driver_sql("ROLLBACK TO SAVEPOINT rowlock_keys")
    conn.exec_driver_sql("RELEASE SAVEPOINT rowlock_keys")
    return full or not busy  # no room for so many locks: as with more keys than are reserved


_TRY_LOCKS = text(
    "SELECT 1 FROM unnest(CAST(:hashes AS bigint[])) AS k(hash) WHERE NOT pg_try_advisory_xact_lock(k.hash) LIMIT 1"
)
_PAUSE = text("SELECT pg_sleep(CAST(:seconds AS double precision))")


def _hash(job: str, key: str) -> int:
    digest = hashlib.sha256(b"rowlock enqueue\0" + job.encode() + b"\0" + key.encode()).digest()
    return struct.unpack(">q", digest[:8])[0]
