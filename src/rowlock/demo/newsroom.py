"""The newsroom: the application that the demo's workers run.

It is an ordinary program: a SQLAlchemy model, two jobs, an App. What is staged (a source that fails, a press that is
slow) stands in the article's row.
"""

from __future__ import annotations

import html
import os
import signal
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from rowlock import App, Backoff, Context, Id, Jobs, SafeError, Snooze
from rowlock.demo import page

HOME = Path(os.environ.get("ROWLOCK_DEMO_HOME", "demo-out")).absolute()
PAGES = HOME / "pages"
URL = f"sqlite:///{HOME / 'newsroom.db'}"

LEASE_S = 3.0
TIMEOUT_S = 2.5
"""Shorter than the lease, as SQLite needs it."""

FAILS_TWICE = "its source fails twice"
SLOW = "its press is slow"

jobs = Jobs()


class Base(DeclarativeBase):
    """The newsroom's own tables."""


class Article(Base):
    """An article; `record` and `attempt` say who published it last."""

    __tablename__ = "article"
    id: Mapped[int] = mapped_column(primary_key=True)
    slug: Mapped[str] = mapped_column(unique=True)
    title: Mapped[str]
    source: Mapped[str]
    body: Mapped[str]
    trouble: Mapped[str | None]
    record: Mapped[int | None]
    attempt: Mapped[int | None]


class Failure(Base):
    """An attempt whose source did not answer."""

    __tablename__ = "failure"
    record: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)


class Accident(Base):
    """What a worker held when it was killed: one row a record."""

    __tablename__ = "accident"
    record: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    claimed_by: Mapped[str]


@dataclass(frozen=True)
class Publish:
    """The input of `publish`."""

    article: Id[Article]


class SourceDownError(SafeError):
    """The source of an article does not answer."""


@cache
def engine() -> sa.Engine:
    """The newsroom's own engine, on the file that its jobs are in too."""
    return sa.create_engine(URL, connect_args={"timeout": 10})


@jobs.job(name="news.publish", max_attempts=8, timeout=TIMEOUT_S, lease=LEASE_S, backoff=Backoff(base=0.1, cap=1))
def publish(input: Publish, ctx: Context) -> None:
    """Render an article to its page, then note in its row who did."""
    with Session(engine()) as session:
        article = session.get_one(Article, input.article)
    if article.trouble == FAILS_TWICE and ctx.attempt <= 2:
        with Session(engine()) as session, session.begin():
            session.add(Failure(record=ctx.id, attempt=ctx.attempt))
        raise SourceDownError("the source does not answer")
    page.write(
        PAGES / f"{article.slug}.html",
        article.title,
        page.rendered(article.body),
        record=ctx.id,
        attempt=ctx.attempt,
        note=f"From {article.source}.",
    )
    with Session(engine()) as session, session.begin():
        noted = {"record": ctx.id, "attempt": ctx.attempt}
        session.execute(sa.update(Article).where(Article.id == article.id).values(noted))
    if article.trouble == SLOW:
        _print_slowly(ctx)


@jobs.job(name="news.front_page", max_attempts=5, timeout=TIMEOUT_S, lease=LEASE_S)
def front_page(ctx: Context) -> None:
    """List what is published."""
    with Session(engine()) as session:
        articles = session.scalars(sa.select(Article).where(Article.record.is_not(None)).order_by(Article.id)).all()
    items = "".join(
        f'<li><a href="{article.slug}.html">{html.escape(article.title)}</a></li>\n' for article in articles
    )
    body = f"<h1>The newsroom</h1>\n<ol>\n{items}</ol>\n"
    page.write(PAGES / "index.html", "The newsroom", body, record=ctx.id, attempt=ctx.attempt, note="The front page.")


def _print_slowly(ctx: Context) -> None:
    """Work until the accident has happened, so that the worker is certain to die in the middle of it."""
    while not _accident_happened():
        if ctx.stopping:
            raise Snooze(0)
        time.sleep(0.02)


def _accident_happened() -> bool:
    with Session(engine()) as session:
        return session.scalar(sa.select(sa.func.count()).select_from(Accident)) != 0


def _end_with_the_director() -> None:
    """Nobody ends a worker whose director was killed: its end of the pipe is how it hears of that."""
    os.read(0, 1)  # not through sys.stdin, whose lock a thread must not hold when the interpreter ends
    os.kill(os.getpid(), signal.SIGTERM)


app = App(
    settings={"database": {"default": {"url": URL}}, "runtime": {"mode": "worker"}, "job": {"poll_ms": 50}},
    include=[jobs],
)

if os.environ.get("ROWLOCK_DEMO_DIRECTED"):
    threading.Thread(target=_end_with_the_director, daemon=True).start()
