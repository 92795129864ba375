"""What a type checker refuses: an error on each marked line, and on no other (C92, J2, J3). Not run, only read."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from rowlock import App, Context, Jobs


@dataclass(frozen=True)
class Publish:
    article: int


@dataclass(frozen=True)
class Other:
    article: int


jobs = Jobs()
app = App()


@jobs.job(max_attempts=5, timeout=30)
async def publish(input: Publish, ctx: Context) -> None: ...


@jobs.job(max_attempts=5, timeout=30)
def cleanup() -> None: ...


remote = jobs.declare("media.render", input=Publish, max_attempts=3, timeout=600)

# --- declaring ---------------------------------------------------------------------------------------------

jobs.job(max_attempts=5)  # error
jobs.job(timeout=5)  # error
jobs.job(max_attempts="5", timeout=30)  # error
jobs.job(max_attempts=5, timeout="30")  # error
jobs.job(max_attempts=5, timeout=30, dedupe=60)  # error
jobs.job(max_attempts=5, timeout=30, backoff=5)  # error
jobs.job(max_attempts=5, timeout=30, executor="fiber")  # error
jobs.job(max_attempts=5, timeout=30, schedule=5)  # error
jobs.job(max_attempts=5, timeout=30, schedule="* * * * *", catch_up="last")  # error
jobs.job(max_attempts=5, timeout=30, schedule="* * * * *", overlap=True)  # error
jobs.declare("a", max_attempts=5, timeout=30, schedule="* * * * *")  # error
jobs.declare("a", input=Publish(1), max_attempts=5, timeout=30)  # error
jobs.declare(input=Publish, max_attempts=5, timeout=30)  # error
app.job(max_attempts=5)  # error


@jobs.job(max_attempts=5, timeout=30)  # error
def answers(input: Publish) -> int:
    return input.article


@jobs.job(max_attempts=5, timeout=30)  # error
async def answers_later(input: Publish) -> str:
    return str(input.article)


@jobs.job(max_attempts=5, timeout=30)  # error
def two_inputs(input: Publish, other: Other) -> None: ...


@jobs.job(max_attempts=5, timeout=30)  # error
def keyword_only(*, input: Publish) -> None: ...


class Service:
    @jobs.job(max_attempts=5, timeout=30)  # error
    def method(self, input: Publish, ctx: Context) -> None: ...


# --- calling -----------------------------------------------------------------------------------------------

publish(Publish(1))  # error
cleanup()  # error
remote(Publish(1))  # error
remote.handler(Publish(1))  # error
publish.handler(Other(1))  # error

# --- enqueueing --------------------------------------------------------------------------------------------

publish.enqueue()  # error
publish.enqueue(Other(1))  # error
publish.enqueue(1)  # error
publish.enqueue(article=1)  # error
publish.enqueue(Publish(1), Publish(2))  # error
publish.enqueue(Publish(1), key=5)  # error
publish.enqueue(Publish(1), dealy=5)  # error
publish.enqueue(Publish(1), run_at="tomorrow")  # error
publish.enqueue(Publish(1), headers={"a": 1})  # error
cleanup.enqueue(Publish(1))  # error
cleanup.enqueue("once")  # error
publish.enqueue_many([Publish(1), Other(1)])  # error
publish.enqueue_many([(Publish(1), {"dealy": 5})])  # error
publish.enqueue_many(Publish(1))  # error


async def connections(session: Session, async_session: AsyncSession, engine: Engine) -> None:
    publish.enqueue(Publish(1), connection=async_session)  # error
    publish.enqueue(Publish(1), connection=engine)  # error
    await publish.aenqueue(Publish(1), connection=session)  # error
    await publish.aenqueue(Other(1))  # error
    publish.aenqueue(Publish(1))  # error
    app.bind(engine)  # error


# --- answers -----------------------------------------------------------------------------------------------

print(publish.enqueue(Publish(1)).identity)  # error

# --- operations --------------------------------------------------------------------------------------------

app.records.replay("42")  # error
app.records.replay(state="dead", older="1d")  # error
app.records.purge(queue=1)  # error
app.queues.pause()  # error


async def operates(session: Session) -> None:
    await app.records.areplay(42, connection=session)  # error
    app.records.areplay(42)  # error
    await app.queues.apause("billing", connection=session)  # error
