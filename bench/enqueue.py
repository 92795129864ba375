"""What an enqueue costs beside the bare INSERT of the same row, each in its own transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bench import program
from bench.places import Place

BATCH = 1_000
"""Rows of one bare insert."""


def measure(place: Place, singles: int, many: int) -> dict[str, float]:
    """Seconds a record: bare and Rowlock, in turn, the better of three rounds each."""
    app, noop = program.application(place.url)
    app.migrate()
    place.execute("DELETE FROM rowlock_job")
    try:
        insert, insert_many, close = BARE[place.kind](place)
        best: dict[str, float] = {}
        for round_ in range(3):
            for name, records, call in (
                ("bare", singles, lambda: [insert(n) for n in range(singles)]),
                ("sync", singles, lambda: [noop.enqueue(program.Input(n)) for n in range(singles)]),
                ("async", singles, lambda: asyncio.run(_async(app, noop, singles))),
                ("keyed", singles, lambda r=round_: [
                    noop.enqueue(program.Input(n), key=f"{r}.{n}") for n in range(singles)
                ]),
                ("bare many", many, lambda: insert_many(many)),
                ("many", many, lambda: noop.enqueue_many([program.Input(n) for n in range(many)])),
            ):  # fmt: skip
                begun = time.perf_counter()
                call()
                best[name] = min(best.get(name, 1e9), (time.perf_counter() - begun) / records)
        close()
        return best
    finally:
        app.close()


async def _async(app: Any, noop: Any, singles: int) -> None:
    for n in range(singles):
        await noop.aenqueue(program.Input(n))
    await app.aclose()


def _values(n: int) -> tuple[Any, ...]:
    return ("noop", "f" * 64, f'{{"n":{n}}}', "bench", 100, 5, 30_000)


_COLUMNS = "job, fingerprint, payload, queue, priority, max_attempts, timeout_ms"


def _postgresql(place: Place) -> tuple[Callable[[int], Any], Callable[[int], Any], Callable[[], Any]]:
    import psycopg

    conn = psycopg.connect(place.url, autocommit=True)
    one = f"INSERT INTO rowlock_job ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)"
    constants = "'noop', repeat('f', 64), p, 'bench', 100, 5, 30000"
    many = f"INSERT INTO rowlock_job ({_COLUMNS}) SELECT {constants} FROM unnest(%s::text[]) p"

    def batch(records: int) -> None:
        for start in range(0, records, BATCH):
            conn.execute(many, ([f'{{"n":{n}}}' for n in range(start, min(start + BATCH, records))],))

    return (lambda n: conn.execute(one, _values(n))), batch, conn.close


def _sqlite(place: Place) -> tuple[Callable[[int], Any], Callable[[int], Any], Callable[[], Any]]:
    import sqlite3

    conn = sqlite3.connect(place.url.removeprefix("sqlite:///"), isolation_level=None)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("PRAGMA synchronous = FULL")
    one = f"INSERT INTO rowlock_job ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"

    def batch(records: int) -> None:
        for start in range(0, records, BATCH):
            conn.execute("BEGIN IMMEDIATE")
            conn.executemany(one, [_values(n) for n in range(start, min(start + BATCH, records))])
            conn.execute("COMMIT")

    return (lambda n: conn.execute(one, _values(n))), batch, conn.close


def _mariadb(place: Place) -> tuple[Callable[[int], Any], Callable[[int], Any], Callable[[], Any]]:
    import pymysql
    from sqlalchemy.engine import make_url

    url = make_url(place.url)
    options: dict[str, Any] = {"user": url.username, "password": url.password or "", "database": url.database}
    if "unix_socket" in url.query:
        options["unix_socket"] = url.query["unix_socket"]
    else:
        options |= {"host": url.host, "port": url.port or 3306}
    conn = pymysql.connect(**options, autocommit=True)
    cursor = conn.cursor()
    times = ", run_at, created_at"
    now = ", UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)"
    head, row = f"INSERT INTO rowlock_job ({_COLUMNS}{times}) VALUES ", f"(%s, %s, %s, %s, %s, %s, %s{now})"
    one = head + row

    def batch(records: int) -> None:
        for start in range(0, records, BATCH):
            rows = [value for n in range(start, min(start + BATCH, records)) for value in _values(n)]
            cursor.execute(head + ", ".join([row] * min(BATCH, records - start)), rows)

    return (lambda n: cursor.execute(one, _values(n))), batch, conn.close


BARE = {"postgresql": _postgresql, "sqlite": _sqlite, "mariadb": _mariadb}
