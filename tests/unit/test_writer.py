"""The thread that does a SQLite file's async work."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rowlock.store.database import Database


async def test_a_close_in_between_loses_no_work(tmp_path: Path) -> None:
    # contract: E8
    db = Database("default", f"sqlite:///{tmp_path}/jobs.db")

    def one(conn, db):
        return conn.exec_driver_sql("SELECT 1").scalar_one()

    async def read() -> int:
        return await db.aread(one)

    async def close() -> None:
        await asyncio.get_running_loop().run_in_executor(None, db.close)

    for _ in range(20):
        answers = await asyncio.wait_for(
            asyncio.gather(*[read() for _ in range(20)], close(), *[read() for _ in range(20)]), 30
        )
        assert [answer for answer in answers if answer is not None] == [1] * 40
    await db.aclose()


async def test_one_failing_write_leaves_those_beside_it_alone(tmp_path: Path) -> None:
    # contract: L6
    db = Database("default", f"sqlite:///{tmp_path}/jobs.db")
    db.run(lambda conn, db: conn.exec_driver_sql("CREATE TABLE t (n integer PRIMARY KEY)"))

    def insert(conn, db, n: int) -> int:
        conn.exec_driver_sql("INSERT INTO t VALUES (?)", (n,))
        if n == 3:
            raise RuntimeError("no")
        return n

    results = await asyncio.gather(*[db.arun(insert, n) for n in range(8)], return_exceptions=True)
    assert [n for n in results if isinstance(n, int)] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(results[3], RuntimeError)
    there = await db.aread(lambda conn, db: [row[0] for row in conn.exec_driver_sql("SELECT n FROM t ORDER BY n")])
    # A write that ran alone was in autocommit mode; one that shared a transaction was rolled back by itself.
    assert [n for n in there if n != 3] == [0, 1, 2, 4, 5, 6, 7]
    await db.aclose()
