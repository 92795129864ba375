"""What a user may write: pyright in strict mode has nothing to say (C92). Not run, only read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NoReturn, TypedDict, assert_type

import msgspec
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session

from rowlock import (
    Ack,
    Action,
    App,
    AuditEntry,
    AuditPage,
    Backoff,
    Context,
    Cron,
    Dead,
    Done,
    Drop,
    Enqueued,
    EnqueueOptions,
    Event,
    Id,
    Job,
    Jobs,
    Page,
    QueueInfo,
    Record,
    Retry,
    ScheduleInfo,
    Snooze,
    State,
)


class Base(DeclarativeBase):
    pass


class Article(Base):
    __tablename__ = "article"
    id: Mapped[int] = mapped_column(primary_key=True)


@dataclass(frozen=True)
class Publish:
    article: Id[Article]
    channel: str = "web"


class Render(msgspec.Struct):
    page: int


class Notify(TypedDict):
    user: int


jobs = Jobs(database="default")


@jobs.job(max_attempts=5, timeout=30, name="news.publish", aliases=("publish",), backoff=Backoff(base=1, cap=300))
async def publish(input: Publish, ctx: Context) -> None:
    if ctx.attempt > 1:
        raise Snooze(60)


@jobs.job(max_attempts=3, timeout=timedelta(seconds=30), queue="cleaning", priority=10, lease=60, overrun=5)
def cleanup() -> None: ...


@jobs.job(max_attempts=3, timeout=30)
async def tick(ctx: Context) -> Retry | Drop | None: ...


@jobs.job(max_attempts=3, timeout=30, accepts=((Publish, lambda old: Render(old.article)),))
def render(ctx: Context, input: Render) -> Dead | None: ...


@jobs.job(max_attempts=3, timeout=30)
def notify(input: Notify) -> Ack: ...


@jobs.job(max_attempts=1, timeout=1)
def always_dead() -> NoReturn:
    raise Dead("never again")


remote = jobs.declare("media.remote", input=Render, max_attempts=3, timeout=600)
remote_clock = jobs.declare("media.clock", max_attempts=3, timeout=600)
app = App("sqlite:///news.db", include=[jobs, "newsroom.job"])


@app.job(max_attempts=1, timeout=1)
def ping() -> None: ...


pong = app.declare("pong", input=Publish, max_attempts=1, timeout=1)

# Each shape of a handler gives its own type of job.
assert_type(cleanup, Job[None, Callable[[], None]])
assert_type(render, Job[Render, Callable[[Context, Render], Dead | None]])
assert_type(remote, Job[Render, None])
assert_type(remote_clock, Job[None, None])
assert_type(ping, Job[None, Callable[[], None]])
assert_type(pong, Job[Publish, None])


def enqueues(session: Session, scoped: scoped_session[Session], connection: Connection) -> None:
    done = publish.enqueue(Publish(1), key="publish:1", connection=session)
    assert_type(done, Enqueued)
    assert_type(done.id, int)
    assert_type(done.created, bool)
    publish.enqueue(Publish(1, channel="print"), delay=timedelta(hours=1), connection=scoped)
    publish.enqueue(Publish(1), delay=3.5, priority=1, queue="other", headers={"a": "b"}, connection=connection)
    publish.enqueue(Publish(1), run_at=datetime(2027, 1, 1, tzinfo=UTC), detached=True)
    cleanup.enqueue()
    cleanup.enqueue(key="once")
    tick.enqueue(key="once", connection=session)
    notify.enqueue({"user": 1})
    remote.enqueue(Render(page=1))
    remote_clock.enqueue(delay=1)
    with app.bind(session):
        render.enqueue(Render(page=1))


def enqueues_many(session: Session, keys: Sequence[str]) -> list[Enqueued]:
    options: EnqueueOptions = {"key": "a", "delay": 1}
    publish.enqueue_many([Publish(1), (Publish(2), options)])
    publish.enqueue_many((Publish(n), {"key": key}) for n, key in enumerate(keys))
    publish.enqueue_many([(Publish(1), {"run_at": datetime(2027, 1, 1, tzinfo=UTC)})], connection=session)
    cleanup.enqueue_many([None, (None, {"key": "a"})])
    return render.enqueue_many(Render(page=n) for n in range(1000))


async def enqueues_async(
    session: AsyncSession, scoped: async_scoped_session[AsyncSession], connection: AsyncConnection
) -> None:
    assert_type(await publish.aenqueue(Publish(1), connection=session), Enqueued)
    await publish.aenqueue(Publish(1), connection=scoped)
    await cleanup.aenqueue(key="once", connection=connection)
    assert_type(await publish.aenqueue_many([Publish(1)], connection=session), list[Enqueued])
    with app.bind(session):
        await tick.aenqueue()


async def handlers(ctx: Context) -> None:
    """The plain function, for unit tests."""
    assert_type(await publish.handler(Publish(1), ctx), None)
    assert_type(cleanup.handler(), None)
    assert_type(render.handler(ctx, Render(page=1)), Dead | None)
    assert_type(await tick.handler(ctx), Retry | Drop | None)


@app.on("settled")
def count(event: Event) -> None: ...


@app.before_attempt
def clean(ctx: Context) -> None: ...


@app.on_failure
def report(exc: BaseException, ctx: Context) -> None: ...


async def cancels(session: Session, asession: AsyncSession) -> None:
    """One answers the state that it left, many how many they were."""
    assert_type(app.records.cancel(1, by="ann", connection=session), State)
    assert_type(app.records.cancel(job="publish", older_than=timedelta(days=1), limit=5, dry_run=True), Done)
    assert_type(await app.records.acancel(1, connection=asession), State)
    assert_type(await app.records.acancel(state="pending"), Done)


async def runs() -> None:
    app.migrate()
    app.queue("billing", workers=2)
    async with app.worker():
        assert_type(app.records.get(1), Record)
        assert_type(app.records.list(state="dead", limit=10), Page)
    with app.worker_thread():
        app.stop()


def operates(session: Session) -> None:
    assert_type(app.records.replay(42, connection=session), Done)
    assert_type(app.records.replay(state="dead", older_than="1d", limit=10, dry_run=True, by="ann"), Done)
    assert_type(app.records.purge(state=State.BLOCKED, older_than=timedelta(days=90)), Done)
    assert_type(app.records.counts()[0].estimated, bool)
    assert_type(app.queues.pause("billing", connection=session), bool)
    assert_type(app.queues.list()[0], QueueInfo)
    assert_type(app.audit.list(action="purge", limit=5).items[0], AuditEntry)
    assert_type(app.audit.list(action=Action.PAUSE), AuditPage)


async def operates_async(session: AsyncSession) -> None:
    assert_type(await app.records.areplay(42, connection=session), Done)
    assert_type(await app.records.apurge(key="k", by="ann"), Done)
    assert_type(await app.queues.aresume("billing", connection=session), bool)
    assert_type(await app.audit.alist(), AuditPage)


@jobs.job(max_attempts=3, timeout=30, schedule="0 * * * *", catch_up="latest", overlap="skip")
def hourly() -> None: ...


@jobs.job(max_attempts=3, timeout=30, schedule=Cron("30 4 * * 1-5"), catch_up_max=timedelta(days=1))
async def nightly(ctx: Context) -> None:
    assert_type(ctx.run_at, datetime)


async def schedules(app: App, connection: Connection) -> None:
    assert_type(Cron("* * * * *").next(datetime.now(UTC)), datetime)
    assert_type(Cron("* * * * *").next(datetime.now(UTC), n=3), list[datetime])
    assert_type(Cron("* * * * *").previous(datetime.now(UTC)), datetime)
    assert_type(app.schedules.list(), list[ScheduleInfo])
    assert_type(await app.schedules.alist(), list[ScheduleInfo])
    assert_type(app.schedules.accept("news.hourly", by="ann", connection=connection), bool)
    app.schedules.forget("news.gone")
