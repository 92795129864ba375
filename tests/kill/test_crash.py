"""Workers that die: what they had in work comes back, counted, and nothing is lost."""

from __future__ import annotations

import random
import time

import sqlalchemy as sa

from support.story import Table, complaints, lease_of, limits, mostly_slow
from support.waiting import wait_until

FAST = {"workers": 8, "poll_ms": 50}


# contract: C4, L1, L7, R2, K2; case: C01
def test_a_record_of_a_killed_worker_comes_back_after_its_lease(kill_kit, engine: sa.Engine, dialect: str) -> None:
    kit = kill_kit(
        f"""
    async def work(ctx: Context) -> None:
        note("start", ctx)
        await ahold("middle", ctx)
        note("end", ctx)

    for most in (1, 2, 3):
        jobs.job(name=f"most {{most}}", max_attempts=most, {limits(dialect)})(work)
    """,
        job=FAST,
    )
    for job in kit.module.jobs.jobs:
        job.enqueue()
    table = Table(engine)
    first = kit.start()
    kit.wait_for("middle", 3)
    idle = kit.start().ready()

    killed = time.time()
    first.kill()
    again = [one for one in kit.wait_for("start", 5) if one.pid == idle.pid]
    assert sorted((one.job, one.attempt) for one in again) == [("most 2", 2), ("most 3", 2)]
    # The last renewal was at most a third of the lease old, so that it can not have ended before.
    assert all(one.at - killed > 0.6 * lease_of(dialect) for one in again)
    table.wait(lambda rows: rows[0].state == "dead")
    assert table.ends()["most 1"] == ("dead", 1, "attempts_exhausted")

    kit.wait_for("middle", 5)
    idle.kill()
    later = kit.start()  # nobody was alive meanwhile
    assert [(one.job, one.attempt) for one in kit.wait_for("start", 6) if one.pid == later.pid] == [("most 3", 3)]
    kit.release("middle")
    table.wait(lambda rows: rows[2].state == "succeeded" and rows[1].state == "dead", story=kit.story)
    assert table.ends() == {
        "most 1": ("dead", 1, "attempts_exhausted"),
        "most 2": ("dead", 2, "attempts_exhausted"),
        "most 3": ("succeeded", 3, None),
    }
    assert len(kit.effects("start")) == 6
    assert len(kit.effects("end")) == 1


# contract: C4, C5, E8, L1, L7; case: C05, C07, C08
@mostly_slow("postgresql")
def test_whatever_kills_a_worker_every_record_ends(kill_kit, engine: sa.Engine, dialect: str) -> None:
    """A poison pill that kills every process that takes it, kills at named points, and kills at random moments."""
    # A timeout that a busy machine lets pass costs another attempt here, of which there are enough.
    short = "timeout=1, lease=1.1" if dialect == "sqlite" else limits(dialect)
    kit = kill_kit(
        f"""
    import re
    from support.effects import effects

    def die() -> None:
        os.kill(os.getpid(), 9)

    @jobs.job(name="pill", max_attempts=3, priority=1, {short})
    def pill(ctx: Context) -> None:
        note("start", ctx)
        die()

    async def point(ctx: Context) -> None:
        note("start", ctx)

    # Where a settlement was sent and not heard of: committed already, or gone with its transaction.
    def settling(_connection, _cursor, statement, *_) -> None:
        if re.search(r"SET [`\\"]?state[`\\"]? = 'succeeded'", statement) and not effects("dies settling"):
            note("dies settling")
            die()

    listen("after_cursor_execute", settling)

    points = [
        jobs.job(name=name, max_attempts=50, priority=2, {short})(point)
        for name in ("claimed", "before", "after", "settled")
    ]

    @jobs.job(name="work", max_attempts=50, {short})
    async def work(ctx: Context) -> None:
        note("start", ctx)
        await asyncio.sleep(0.1)
        note("end", ctx)
    """
        """
    def at(point: str, here) -> None:
        if here.job == point and not effects("dies " + point):
            note("dies " + point, here)
            die()

    def listen(app) -> None:
        app.on("claimed")(lambda event: at("claimed", event))
        app.before_attempt(lambda ctx: at("before", ctx))
        app.after_attempt(lambda ctx: at("after", ctx))
        app.on("settled")(lambda event: at("settled", event))
    """,
        after="listen(app)",
        job=FAST,
    )
    module, table = kit.module, Table(engine)
    module.work.enqueue_many(None for _ in range(100))
    module.pill.enqueue()
    for job in module.points:
        job.enqueue()

    dice = random.Random(dialect)
    left, worker = 2, None
    while not all(row.state in ("succeeded", "dead") for row in table.rows()):
        if worker is None or not worker.running:  # what a supervisor does
            worker = kit.start()
            wait_until(lambda w=worker: not w.running or "ready:" in w.stderr, 20, kit.story)
        if left and not table.states("pill")["pending"]:
            time.sleep(dice.uniform(0, 0.3))
            worker.kill()
            left -= 1
        time.sleep(0.02)
        assert len(kit.workers) < 20, kit.story()

    assert len(kit.effects("dies settling")) == 1
    pill = table.one("pill")
    assert (pill.attempt, pill.error_category) == (3, "attempts_exhausted")
    starts = {(one.job, one.attempt) for one in kit.effects("start")}
    assert 1 <= len(kit.effects("start", pill.id)) <= 3  # one killed by a neighbour before it started has counted too
    for job in ("claimed", "before", "after", "settled"):
        (death,) = kit.effects(f"dies {job}")
        started, last = (job, death.attempt) in starts, table.one(job).attempt
        # What had not started did not start; what had ended but was not written runs again; what was written does not.
        assert started == (job in ("after", "settled"))
        assert last == death.attempt if job == "settled" else last > death.attempt
    assert table.states("work") == {"succeeded": 100}
    assert {one.record for one in kit.effects("end")} == {row.id for row in table.rows("work")}
    for row in table.rows():  # whoever starts has been counted
        attempts = [one.attempt for one in kit.effects("start", row.id)]
        assert len(set(attempts)) == len(attempts) <= row.attempt
    assert not complaints(kit.workers)
