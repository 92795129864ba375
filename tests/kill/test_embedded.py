"""A worker inside a user's program: it takes no signals, stops when asked, and leaves nothing behind (M6, H3)."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from rowlock import Context, Jobs
from support.databases import Database
from support.kill import Worker
from support.story import Table, complaints, mostly_slow
from support.waiting import Signal, wait_until

HANDLED = (signal.SIGTERM, signal.SIGINT)


def fixed() -> list[object]:
    return [signal.getsignal(number) for number in HANDLED]


# contract: M6; case: C14
async def test_an_embedded_worker_takes_no_signals_and_stops_when_asked(app_factory, engine: sa.Engine) -> None:
    jobs = Jobs()
    running = Signal("the handler runs")

    @jobs.job(name="waits", max_attempts=3, timeout=5)
    async def waits(ctx: Context) -> None:
        running.set()
        while not ctx.stopping:
            await asyncio.sleep(0.01)

    @jobs.job(name="stops", max_attempts=3, timeout=5)
    def stops() -> None:
        app.stop()
        app.stop()

    app = app_factory(jobs)
    before, table = fixed(), Table(engine)
    app.stop()  # before there is anything to stop
    waits.enqueue()
    async with app.worker():
        assert fixed() == before
        await running.wait_async()
        assert app.health()["status"] == "ok"
    assert fixed() == before
    assert table.states() == {"succeeded": 1}

    stops.enqueue()  # from inside a handler, on its thread
    async with app.worker():
        await _until(lambda: app.health()["status"] == "stopped")
    assert table.states() == {"succeeded": 2}
    assert fixed() == before
    await app.aclose()


async def _until(fact) -> None:
    from support.waiting import wait_until_async

    await wait_until_async(fact)


# contract: H3, M6, E8
@mostly_slow("postgresql")
def test_connections_threads_and_files_are_back_after_a_stop(kill_kit, database: Database, tmp_path: Path) -> None:
    """In a process of its own: this one opens and closes files for its other tests at any moment."""
    kit = kill_kit("""
    done = []

    @jobs.job(name="sync", max_attempts=3, timeout=5)
    def sync() -> None:
        done.append(1)

    @jobs.job(name="asynchronous", max_attempts=3, timeout=5)
    async def asynchronous() -> None:
        done.append(1)
    """)
    (tmp_path / "host.py").write_text(f"""
import gc, os, threading, time
from {kit.name} import app, asynchronous, done, sync

def round(number):
    sync.enqueue_many([None] * 50)
    asynchronous.enqueue_many([None] * 50)
    with app.worker_thread():
        while len(done) < 100 * number:
            time.sleep(0.01)
    app.close()
    gc.collect()
    opened = (f"/proc/self/fd/{{fd}}" for fd in os.listdir("/proc/self/fd"))
    files = sorted(os.readlink(one) for one in opened if os.path.lexists(one))  # the listing's own is closed again
    print("counted", len(files), sorted(thread.name for thread in threading.enumerate()), files, flush=True)

app.migrate()
for number in range(1, 5):
    round(number)
while not os.path.exists("end"):
    time.sleep(0.01)
""")
    before = len(database.sessions())
    host = Worker([sys.executable, "host.py"], kit.folder, kit.url, 98)
    kit.workers.append(host)
    wait_until(lambda: host.stderr.count("counted") == 4 or not host.running, what=lambda: host.stderr)
    assert host.running, host.stderr
    wait_until(lambda: len(database.sessions()) <= before, what=lambda: str(database.sessions()))
    counts = [line.split(" ", 2)[1:] for line in host.stderr.splitlines() if line.startswith("counted")]
    # Whatever is loaded once is loaded by the first round.
    assert {count for count, _ in counts[1:]} == {counts[0][0]}, host.stderr
    assert {names.split("]")[0] for _, names in counts} == {"['MainThread'"}, host.stderr
    (tmp_path / "end").touch()
    assert host.wait() == 0


# contract: M6; case: C14
@mostly_slow("mariadb")
def test_a_program_with_a_worker_in_it_keeps_its_own_signal_handlers(
    kill_kit, engine: sa.Engine, tmp_path: Path, dialect: str
) -> None:
    """The host process ends by a handler of its own, and the worker with it: nothing is left in work."""
    kit = kill_kit(
        """
    @jobs.job(name="work", max_attempts=3, timeout=5)
    async def work(ctx: Context) -> None:
        note("start", ctx)
        while not ctx.stopping:
            await asyncio.sleep(0.01)
    """
    )
    kit.module.work.enqueue()
    (tmp_path / "host.py").write_text(f"""
import signal, sys, threading
from {kit.name} import app
from support.effects import note
over = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: over.set())
with app.worker_thread():
    over.wait()
note("mine")
sys.exit(7)
""")
    worker = Worker([sys.executable, "host.py"], kit.folder, kit.url, 99)
    kit.workers.append(worker)
    kit.wait_for("start")
    worker.term()
    assert worker.wait() == 7
    assert kit.effects("mine")
    assert Table(engine).states() == {"succeeded": 1}
    assert not complaints([worker])


# contract: H3
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_the_number_of_records(kill_kit, engine: sa.Engine, dialect: str) -> None:
    kit = kill_kit(
        """
    @dataclass
    class Input:
        n: int

    @jobs.job(name="none", max_attempts=3, timeout=30)
    async def none(input: Input) -> None: ...

    @jobs.job(name="fails", max_attempts=1, timeout=30)
    def fails(input: Input) -> None:
        raise ValueError(input.n)
    """,
        after="import logging; logging.getLogger('rowlock').setLevel('CRITICAL')",
        job={"workers": 100, "poll_ms": 50},
    )
    module, total = kit.module, 300_000
    worker = kit.start().ready()
    resident, done, sent = [], 0, 0
    while done < total:
        while sent < total and sent - done < 20_000:
            module.none.enqueue_many(module.Input(n) for n in range(4_900))
            module.fails.enqueue_many(module.Input(n) for n in range(100))
            sent += 5_000
        time.sleep(0.2)
        with engine.connect() as connection:
            left = connection.execute(
                sa.text("SELECT count(*) FROM rowlock_job WHERE state IN ('pending', 'running')")
            ).scalar_one()
        done = sent - left
        if done >= total / 10:
            resident.append(_resident_mb(worker.pid))
        assert worker.running
    grown = resident[-1] - resident[0]
    assert grown < 10, f"grew by {grown:.1f} MB: {[round(one) for one in resident]}"
    files = list(Path(f"/proc/{worker.pid}/fd").iterdir())
    assert len(files) < 60
    worker.term()
    assert worker.wait() == 0


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024
