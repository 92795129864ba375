"""How fast one worker process empties a queue of no-op records, beside the bare loop at the same slots and loop.

The clock runs from the first handler call to the moment when no row is unsettled, seen from outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from bench import program
from bench.places import Place, settle_down

BARE = {"postgresql": "d_raw_natural.py", "sqlite": "d_raw_sqlite.py", "mariadb": "d_raw_mariadb.py"}
UNSETTLED = {
    "sqlite": "'available', 'running'",
    "postgresql": "'pending', 'running'",
    "mariadb": "'available', 'running'",
}
LIMIT_S = 300


class Run(NamedTuple):
    """Records a second, and microseconds of the worker's own CPU a record (None where that can not be read)."""

    rate: float
    cpu_us: float | None


def bare(place: Place, drivers: Path, *, records: int, slots: int, loop: str) -> Run:
    """The hand-written loop."""
    bare_place = _bare_place(place)
    driver = [sys.executable, str(drivers / BARE[place.kind])]
    env = {**os.environ, **place.env}
    if place.kind == "postgresql":
        bare_place.execute("DROP TABLE IF EXISTS raw_jobs")
    elif place.kind == "sqlite":
        for suffix in ("", "-wal", "-shm"):
            Path(place.env["RAW_SQLITE"] + suffix).unlink(missing_ok=True)
    subprocess.run([*driver, "setup"], env=env, cwd=drivers, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*driver, "bulk", str(records)], env=env, cwd=drivers, check=True, stdout=subprocess.DEVNULL)
    settle_down(bare_place)
    arguments = ["worker", f"slots={slots}", *(["loop=uvloop"] if loop == "uvloop" else [])]
    count = f"SELECT count(*) FROM raw_jobs WHERE state IN ({UNSETTLED[place.kind]})"
    return _measure([*driver, *arguments], env, drivers, bare_place, count, records)


def rowlock(place: Place, *, records: int, slots: int, loop: str) -> Run:
    """Rowlock."""
    app, noop = program.application(place.url, slots)
    app.migrate()
    place.execute("DELETE FROM rowlock_job")
    noop.enqueue_many([program.Input(n) for n in range(records)])
    app.close()
    settle_down(place)
    command = [sys.executable, "-m", "bench.program", place.url, str(slots), loop]
    count = "SELECT count(*) FROM rowlock_job WHERE state IN ('pending', 'running')"
    return _measure(command, dict(os.environ), Path.cwd(), place, count, records)


def _bare_place(place: Place) -> Place:
    if place.kind == "sqlite":
        return Place("sqlite", f"sqlite:///{place.env['RAW_SQLITE']}", place.env)
    if place.kind == "mariadb":  # its driver works in this database, whatever it is told
        return Place("mariadb", "mariadb://root@localhost/test?unix_socket=/run/mysqld/mysqld.sock", place.env)
    return place


def _measure(command: list[str], env: dict[str, str], cwd: Path, place: Place, count: str, records: int) -> Run:
    with tempfile.NamedTemporaryFile("r", suffix=".events") as events:
        env = {**env, "BENCH_EVENTS": events.name, "BENCH_TARGET": str(records)}
        process = subprocess.Popen(command, env=env, cwd=cwd, stderr=subprocess.PIPE)
        try:
            begun = _until(process, Path(events.name), "first")
            cpu = _cpu_s(process.pid)
            _until(process, Path(events.name), "all")
            engine = place.engine()
            with engine.connect() as conn:
                while conn.execute(sa.text(count)).scalar_one():
                    time.sleep(0.01)
            ended = time.time()
            used = _cpu_s(process.pid)
            engine.dispose()
        finally:
            process.kill()
            process.communicate()
    return Run(records / (ended - begun), None if cpu is None or used is None else (used - cpu) / records * 1e6)


def _cpu_s(pid: int) -> float | None:
    """The CPU time of all threads so far, by Linux' scheduler; on a shared machine it scatters less than the clock."""
    try:
        return (
            sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9
        )
    except (OSError, ValueError):
        return None


def _until(process: subprocess.Popen[bytes], events: Path, event: str) -> float:
    """When the worker wrote this event down."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        written = events.read_text().splitlines(keepends=True)
        seen = {line["ev"]: line["t"] for line in map(json.loads, filter(lambda line: line.endswith("\n"), written))}
        if event in seen:
            return float(seen[event])
        if process.poll() is not None:
            assert process.stderr is not None
            raise SystemExit(f"the worker ended early:\n{process.stderr.read().decode()}")
        time.sleep(0.005)
    raise SystemExit(f"the worker did not get through within {LIMIT_S} s")
