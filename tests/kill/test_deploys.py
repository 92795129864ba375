"""Two versions of one program side by side in real processes: a rolling deploy, its rollback, and what follows (S7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rowlock import App, Enqueued, Record, State
from support.story import mostly_slow
from support.waiting import wait_until

V1 = """
@dataclass(frozen=True)
class Order:
    id: int

@jobs.job(name="a", max_attempts=3, timeout=30)
async def a(input: Order, ctx: Context) -> None:
    note("v1", ctx)

@jobs.job(name="b", max_attempts=3, timeout=30)
async def b(input: Order, ctx: Context) -> None:
    note("v1", ctx)
"""
V2 = """
@dataclass(frozen=True)
class OldOrder:
    id: int

@dataclass(frozen=True)
class Order:
    id: int
    remark: str

def upgrade(old: OldOrder) -> Order:
    return Order(old.id, "from the old one")

@jobs.job(name="a", max_attempts=3, timeout=30, accepts=((OldOrder, upgrade),))
async def a(input: Order, ctx: Context) -> None:
    note("v2", ctx)

@jobs.job(name="b.new", aliases=("b",), max_attempts=3, timeout=30)
async def b(input: OldOrder, ctx: Context) -> None:
    note("v2", ctx)

@jobs.job(name="c", max_attempts=3, timeout=30)
async def c(input: Order, ctx: Context) -> None:
    note("v2", ctx)
"""
JOB = {"poll_ms": 30}
EACH = 15


def from_v1(module: Any, number: int = EACH) -> list[Enqueued]:
    orders = [module.Order(n) for n in range(number)]
    return [*module.a.enqueue_many(orders), *module.b.enqueue_many(orders)]


def from_v2(module: Any, number: int = EACH) -> list[Enqueued]:
    orders = [module.Order(n, "") for n in range(number)]
    old = [module.OldOrder(n) for n in range(number)]
    return [*module.a.enqueue_many(orders), *module.b.enqueue_many(old), *module.c.enqueue_many(orders)]


def records(app: App, made: Iterable[Enqueued]) -> list[Record]:
    return [app.records.get(each.id) for each in made]


def wait_for_success(kit: Any, made: list[Enqueued]) -> None:
    """All of them, each by its first attempt, which ran once."""
    app = kit.module.app
    wait_until(lambda: all(r.state is State.SUCCEEDED for r in records(app, made)), what=kit.story)
    assert {record.attempt for record in records(app, made)} == {1}
    assert [len(kit.effects(record=each.id)) for each in made] == [1] * len(made)


@mostly_slow("postgresql")
def test_a_deploy_and_its_rollback_lose_block_and_spend_nothing(
    kill_kit: Any, dialect: str
) -> None:  # contract: S7, J10, J4, O3
    v1, v2 = kill_kit(V1, job=JOB), kill_kit(V2, job=JOB)
    old, new = v1.module, v2.module

    # The deploy: new workers come while old ones run, and both versions enqueue.
    before = from_v1(old)
    w1 = v1.start().ready()
    w2 = v2.start().ready()
    meanwhile, theirs = from_v1(old), from_v2(new)
    wait_for_success(v1, [*before, *meanwhile, *theirs])
    assert {v1.effects(record=each.id)[0].pid for each in theirs} == {w2.pid}

    # A key is shared over the rename.
    waiting = old.b.enqueue(old.Order(1), key="k", delay=3600)
    assert new.b.enqueue(new.OldOrder(1), key="k") == Enqueued(waiting.id, False, State.PENDING)

    # The rollback: the new version's workers go, another process of it still enqueues.
    w2.term()
    assert w2.wait() == 0
    left = from_v2(new, 1)
    wait_for_success(v1, from_v1(old))  # which are behind them
    assert {(r.state, r.attempt, r.error_category) for r in records(old.app, left)} == {(State.PENDING, 0, None)}
    w1.term()
    assert w1.wait() == 0

    # An impatient old worker blocks them, whole; the new version is deployed again, and gives them back.
    impatient = kill_kit(V1, job={**JOB, "unknown_ms": 300}).start().ready()
    wait_until(lambda: all(r.state is State.BLOCKED for r in records(old.app, left)), what=lambda: impatient.stderr)
    assert [r.error_category for r in records(old.app, left)] == ["schema_mismatch", "unknown_job", "unknown_job"]
    assert {r.attempt for r in records(old.app, left)} == {0}
    impatient.term()
    assert impatient.wait() == 0
    again = v2.start().ready()
    wait_until(lambda: "3 blocked records can be run again" in again.stderr, what=lambda: again.stderr)
    release = v2.run("records", "release", f"{v2.name}:app", "--yes")
    assert release.wait() == 0
    assert "3 records released" in release.stderr
    wait_for_success(v2, left)
