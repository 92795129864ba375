"""Handlers that do what no handler should: each fails by itself, and the worker serves on (R3, R4)."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from support.story import Table, logged, mostly_slow, wait_logged

SOURCE = """
FAULTS = {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt, "GeneratorExit": GeneratorExit,
          "CancelledError": asyncio.CancelledError, "BaseException": type("Own", (BaseException,), {})}

async def misbehaves(ctx: Context) -> None:
    note("start", ctx)
    what = ctx.job.partition(" ")[2]
    if ctx.job.startswith("task "):
        async def other():
            await asyncio.sleep(0)
            raise FAULTS[what]()
        task = asyncio.ensure_future(other())
        await asyncio.sleep(0.05)    # it does not look at the task
    elif what == "own cancel":
        asyncio.current_task().cancel()
        await asyncio.sleep(1)
    elif what == "awaits a cancelled task":
        task = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        await task
    elif what == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))
            group.create_task(fails())
    elif what == "timeout":
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    else:
        raise FAULTS[what]()

async def fails() -> None:
    raise ValueError

def sync(ctx: Context) -> None:
    note("start", ctx)
    raise FAULTS[ctx.job.partition(" ")[2]]()

for fault in FAULTS:
    jobs.job(name=f"async {fault}", max_attempts=1, timeout=30)(misbehaves)
    jobs.job(name=f"sync {fault}", max_attempts=1, timeout=30)(sync)
for fault in ("SystemExit", "KeyboardInterrupt"):
    jobs.job(name=f"task {fault}", max_attempts=1, timeout=30)(misbehaves)
for what in ("own cancel", "awaits a cancelled task", "group", "timeout"):
    jobs.job(name=f"async {what}", max_attempts=1, timeout=30)(misbehaves)

@jobs.job(name="slow", max_attempts=1, timeout=0.3)
async def slow(ctx: Context) -> None:
    note("start", ctx)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.2)
        note("cleaned up", ctx)

@jobs.job(name="swallows", max_attempts=2, timeout=0.3, overrun=0.6, backoff=Backoff(base=0.001, cap=0.001))
async def swallows(ctx: Context) -> None:
    note("start", ctx)
    if ctx.attempt > 1:
        return
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await ahold("goes on", ctx)
        note("late end", ctx)

@jobs.job(name="deaf", queue="deaf", max_attempts=1, timeout=0.3, overrun=0.6)
def deaf(ctx: Context) -> None:
    note("start", ctx)
    hold("deaf", ctx)

@jobs.job(name="quick", queue="deaf", priority=200, max_attempts=1, timeout=30)
def quick(ctx: Context) -> None:
    note("start", ctx)

@jobs.job(name="good", max_attempts=1, timeout=30, priority=200)
def good(ctx: Context) -> None:
    note("start", ctx)
"""


# contract: R2, R3, R4, R6; case: C68, C70, C72
@mostly_slow("postgresql")
@pytest.mark.parametrize("loop", ["--uvloop", "--no-uvloop"])
def test_whatever_a_handler_does_the_worker_serves_on(kill_kit, engine: sa.Engine, loop: str, dialect: str) -> None:
    kit = kill_kit(SOURCE, job={"workers": 4, "queues": {"deaf": 2}, "poll_ms": 50})
    for job in kit.module.jobs.jobs:
        job.enqueue()
    table, worker = Table(engine), kit.start(loop)
    kit.wait_for("goes on")
    table.wait(lambda rows: all(row.state in ("succeeded", "dead") for row in rows), story=kit.story)
    ends = table.ends()
    # C72: one attempt is one start, also when it times out. R3: the next one may overlap once the overrun is over.
    assert ends.pop("slow") == ("dead", 1, "timed_out")
    assert ends.pop("deaf") == ("dead", 1, "timed_out")
    assert ends.pop("swallows") == ("succeeded", 2, None)
    assert ends.pop("quick") == ends.pop("good") == ("succeeded", 1, None)
    assert set(ends.values()) == {("dead", 1, "failed")}
    assert len(ends) == 16
    assert kit.effects("cleaned up")
    assert len(kit.effects("start")) == len(table.rows()) + 1
    # What comes in late is dropped, with one line for each.
    kit.release("goes on")
    kit.release("deaf")
    for job in ("swallows", "deaf"):
        wait_logged(worker, "WARNING", f"{job!r}, record {table.one(job).id}: the handler of attempt 1 ended after")
    assert len(logged([worker], "WARNING")) == 2
    assert table.ends()["swallows"] == ("succeeded", 2, None)
    assert worker.running
    kit.module.good.enqueue()
    table.wait(lambda rows: rows[-1].state == "succeeded", story=kit.story)
    worker.term()
    assert worker.wait() == 0
    assert "Traceback" not in worker.stderr
    assert "never retrieved" not in worker.stderr


# contract: R3, H1, M6; case: C69
@mostly_slow("sqlite")
def test_threads_that_hang_are_counted_and_do_not_keep_the_process(kill_kit, engine: sa.Engine, dialect: str) -> None:
    """C69: the slots stay taken, nothing else is started; with every slot gone the process ends, with 1."""
    kit = kill_kit(
        """
    @jobs.job(name="hangs", max_attempts=1, timeout=0.3, overrun=0.5)
    def hangs(ctx: Context) -> None:
        note("start", ctx)
        threading.Event().wait()

    @jobs.job(name="quick", max_attempts=1, timeout=30, priority=200)
    def quick(ctx: Context) -> None:
        note("start", ctx)
    """,
        job={"workers": 2, "poll_ms": 50},
        runtime={"mode": "worker", "shutdown_ms": 300},
    )
    kit.module.hangs.enqueue_many([None, None])
    kit.module.quick.enqueue()
    table, worker = Table(engine), kit.start()
    assert worker.wait() == 1
    assert logged([worker], "ERROR", "every slot of queue 'default' is held")
    assert [(row.state, row.attempt, row.error_category) for row in table.rows("hangs")] == [
        ("dead", 1, "timed_out"), ("dead", 1, "timed_out"),
    ]  # fmt: skip
    assert table.ends()["quick"] == ("pending", 0, None)
    assert len(kit.effects("start")) == 2


# contract: H1, M6
@mostly_slow("sqlite")
def test_a_loop_that_keeps_ending_by_a_defect_ends_the_process_with_1(
    kill_kit, engine: sa.Engine, dialect: str
) -> None:
    """Four ends are survived; what is in work at the fifth is finished, and nothing more is started."""
    kit = kill_kit(
        """
    from rowlock.runtime import faults

    @jobs.job(name="work", max_attempts=1, timeout=30)
    async def work(ctx: Context) -> None:
        note("start", ctx)
        while not ctx.stopping:
            await asyncio.sleep(0.01)

    faults.arm("announcer", RuntimeError("S3CR3T"), 5)
    """,
        job={"workers": 1, "poll_ms": 50},
    )
    kit.module.work.enqueue_many([None, None])
    table, worker = Table(engine), kit.start()
    assert worker.wait() == 1
    assert len(logged([worker], "ERROR", "the loop 'announcer' ended by a defect")) == 5
    assert logged([worker], "ERROR", "the loop 'announcer' ended 5 times within a minute (H1)")
    assert sorted(row.state for row in table.rows()) == ["pending", "succeeded"]
    assert "S3CR3T" not in worker.stderr
