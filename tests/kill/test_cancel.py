"""Cancelling what real workers have in work: they hear of it, or they die or stand still before they could."""

from __future__ import annotations

import sqlalchemy as sa

from rowlock import State
from support.story import Table, complaints, limits, logged, mostly_slow, wait_logged

FAST = {"workers": 6, "poll_ms": 50}


# contract: O4, R7
# case: C71
@mostly_slow("postgresql")
def test_a_cancel_from_another_process_reaches_every_kind_of_handler(kill_kit, engine: sa.Engine) -> None:
    kit = kill_kit(
        """
    @jobs.job(name="async", max_attempts=3, timeout=30)
    async def cooperates(ctx: Context) -> None:
        note("start", ctx)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            note(f"told: {ctx.stop_reason}", ctx)
            raise

    @jobs.job(name="sync", max_attempts=3, timeout=30)
    def looks(ctx: Context) -> None:
        note("start", ctx)
        while not ctx.stopping:
            time.sleep(0.01)
        note(f"told: {ctx.stop_reason}", ctx)
        raise ValueError("it was told to stop")

    @jobs.job(name="ignores", max_attempts=3, timeout=30)
    def ignores(ctx: Context) -> None:
        note("start", ctx)
        hold("middle", ctx)

    @jobs.job(name="next", max_attempts=3, timeout=30)
    def following(ctx: Context) -> None:
        note("next", ctx)
    """,
        job=FAST,
    )
    for name in ("cooperates", "looks", "ignores"):
        getattr(kit.module, name).enqueue()
    table = Table(engine)
    worker = kit.start()
    kit.wait_for("start", 3)
    command = kit.run("records", "cancel", "--app", f"{kit.name}:app", "--state", "running", "--by", "ada", "--yes")
    assert command.wait() == 0, command.stderr
    kit.wait_for("told: cancelled", 2)
    table.wait(lambda rows: [row.state for row in rows[:2]] == ["cancelled"] * 2, story=kit.story)
    kit.release("middle")
    table.wait(lambda rows: rows[2].state == "succeeded", story=kit.story)
    kit.module.following.enqueue()
    kit.wait_for("next")
    worker.term()
    assert worker.wait() == 0
    assert table.ends() == {
        "async": ("cancelled", 1, "cancelled"),
        "sync": ("cancelled", 1, "cancelled"),
        "ignores": ("succeeded", 1, None),
        "next": ("succeeded", 1, None),
    }
    assert logged(kit.workers, "ERROR") == []
    assert not complaints([worker])


SOURCE = """
async def work(ctx: Context) -> None:
    note("start", ctx)
    await ahold("middle", ctx)
    note("end", ctx)

jobs.job(name="more", max_attempts=3, {limits})(work)
jobs.job(name="last", max_attempts=1, {limits})(work)
jobs.job(name="other", max_attempts=3, {limits})(work)
"""


# contract: O4, L7
@mostly_slow("mariadb")
def test_a_worker_that_dies_with_cancels_unseen_leaves_them_cancelled(
    kill_kit, engine: sa.Engine, dialect: str
) -> None:
    kit = kill_kit(SOURCE.format(limits=limits(dialect)), job=FAST)
    more, last, other = kit.module.jobs.jobs
    done = {job.name: job.enqueue(key="k") for job in (more, last, other)}
    table, records = Table(engine), kit.module.app.records
    first = kit.start()
    kit.wait_for("start", 3)
    first.pause()
    for name in ("more", "last"):
        assert records.cancel(done[name].id) is State.RUNNING
    first.kill()
    second = kit.start()
    table.wait(lambda rows: [row.state for row in rows[:2]] == ["cancelled"] * 2, story=kit.story)
    again = [one for one in kit.wait_for("start", 4) if one.pid == second.pid]
    assert [one.job for one in again] == ["other"]  # what nobody cancelled is tried again
    assert more.enqueue(key="k").created
    kit.release("middle")
    table.wait(lambda rows: [row.state for row in rows[2:]] == ["succeeded"] * 2, story=kit.story)
    assert [(row.state, row.attempt, row.error_category) for row in table.rows()[:2]] == [
        ("cancelled", 1, "cancelled")
    ] * 2
    assert [one.job for one in kit.effects("start")].count("last") == 1
    assert [one.record for one in kit.effects("start")].count(done["more"].id) == 1


# contract: O4, L1, L3
# case: C03
@mostly_slow("postgresql")
def test_a_worker_that_stood_still_meanwhile_changes_nothing(kill_kit, engine: sa.Engine, dialect: str) -> None:
    kit = kill_kit(SOURCE.format(limits=limits(dialect)), job=FAST)
    more = kit.module.jobs.jobs[0]
    done = more.enqueue()
    table, records = Table(engine), kit.module.app.records
    stopped = kit.start()
    kit.wait_for("start")
    stopped.pause()
    assert records.cancel(done.id) is State.RUNNING
    other = kit.start()
    table.wait(lambda rows: rows[0].state == "cancelled", story=kit.story)
    ended = table.rows()
    kit.release("middle")
    stopped.resume()
    wait_logged(stopped, "WARNING", "lost its hold")
    for worker in (stopped, other):
        worker.term()
    assert [worker.wait() for worker in (stopped, other)] == [0, 0]
    assert table.rows() == ended
    assert len(kit.effects("start")) == 1
