"""Workers that stand still for longer than a lease, and go on: whoever lost its hold is told, and changes nothing."""

from __future__ import annotations

import time

import sqlalchemy as sa

from support.story import Table, complaints, lease_of, limits, mostly_slow, wait_logged

LEASE = 1.2
SOURCE = """
async def work(ctx: Context) -> None:
    note("start", ctx)
    if ctx.attempt > 1:
        await ahold("second", ctx)
        return note("end", ctx)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("told", ctx)
        note(f"told: {{ctx.stop_reason}}", ctx)
        if ctx.job == "fails":
            raise ValueError from None
        if ctx.job == "snoozes":
            raise Snooze(0) from None
        if ctx.job == "dies":
            raise Dead("late") from None

for name in ("ends", "fails", "snoozes", "dies"):
    jobs.job(name=name, max_attempts=3, {limits})(work)

def sync(ctx: Context) -> None:
    note("start", ctx)
    if ctx.attempt > 1:
        hold("second", ctx)
        return note("end", ctx)
    if ctx.job == "goes on":    # ends without having looked, in the first moment after the pause
        return hold("late", ctx)
    while not ctx.stopping:
        time.sleep(0.01)
    note("told", ctx)
    try:
        ctx.raise_if_lost()
    except LeaseLost:
        note("told: lost", ctx)

for name in ("sync", "goes on"):
    jobs.job(name=name, max_attempts=3, {limits})(sync)
"""


# contract: L1, L3, R4; case: C03
@mostly_slow("mariadb")
def test_a_worker_that_stood_still_past_its_leases_changes_nothing(kill_kit, engine: sa.Engine, dialect: str) -> None:
    kit = kill_kit(SOURCE.format(limits=limits(dialect, lease=LEASE)), job={"workers": 6, "poll_ms": 50})
    for job in kit.module.jobs.jobs:
        job.enqueue()
    table = Table(engine)
    stopped = kit.start()
    kit.wait_for("start", 6)
    stopped.pause()
    other = kit.start()
    kit.wait_for("second", 6)
    held = {row.id: (row.state, row.attempt, row.token) for row in table.rows()}
    assert {(state, attempt) for state, attempt, _ in held.values()} == {("running", 2)}

    kit.release("late")  # the first thing that this handler finds when it goes on
    resumed = time.time()
    stopped.resume()
    told = kit.wait_for("told", 5)
    bound = min(2, lease_of(dialect, lease=LEASE) / 2)
    assert all(one.at - resumed < bound + 1 for one in told)  # the second is for a machine with other things to do
    assert {one.job for one in told} == {"ends", "fails", "snoozes", "dies", "sync"}
    if dialect != "sqlite":  # there the timeout ended before the lease did, and may be what is seen first
        kit.wait_for("told: lost", 5)
    wait_logged(stopped, "WARNING", "'goes on', record 6: attempt 1 lost its hold")
    wait_logged(stopped, "WARNING", "its result is dropped")
    # It could not free what the other one holds, nor take it back, nor start it again.
    assert {row.id: (row.state, row.attempt, row.token) for row in table.rows()} == held

    kit.release("second")
    table.wait(lambda rows: all(row.state == "succeeded" for row in rows), story=kit.story)
    assert {row.attempt for row in table.rows()} == {2}
    assert len(kit.effects("start")) == 12
    assert {one.pid for one in kit.effects("end")} == {other.pid}
    for worker in (stopped, other):
        worker.term()
    assert [worker.wait() for worker in (stopped, other)] == [0, 0]
    if dialect != "sqlite":
        assert not complaints(kit.workers)
