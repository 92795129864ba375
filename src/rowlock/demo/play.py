"""The play itself: articles and jobs, two workers, an accident, and what is left of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from rowlock.demo import newsroom
from rowlock.demo.director import DemoError
from rowlock.demo.newsroom import Accident, Article, Publish, app
from rowlock.demo.proof import Facts, proofs
from rowlock.demo.reading import Story
from rowlock.demo.screen import Screen
from rowlock.demo.workers import Worker
from rowlock.store.records import Record

T = TypeVar("T")

LONGEST_S = 28.0
EMBARGOES_S = (3.0, 4.0, 5.0)
"""After the start. The first is over when the workers have been there for a while, also on a slow machine."""
LOOK_S = 0.02


class Play:
    """One performance. `home` is the demo's directory."""

    def __init__(self, home: Path, screen: Screen) -> None:
        self.home = home
        self.screen = screen
        self.engine = newsroom.engine()
        self.workers: list[Worker] = []

    def run(self, read: list[Story]) -> bool:
        """All of it; whether every claim held."""
        app.migrate()
        newsroom.Base.metadata.create_all(self.engine)
        try:
            with self.screen.bar():
                slow, failing = self._write(read)
                garbled = self._damage()
                self._start()
                self._wait_for_retries(failing)
                killed = self._kill(slow)
                survivor = next(worker for worker in self.workers if worker is not killed[0])
                takeover_s = self._wait_for_takeover(slow, killed, survivor)
                self._wait_for_pages(len(read))
                drained = self._close(survivor)
            facts = Facts(self.home / "pages", garbled, killed[0].name, survivor.name, takeover_s)
            return self._prove(facts) and drained
        finally:
            for worker in self.workers:
                worker.reap()
            app.close()
            self.engine.dispose()

    # --- the acts -----------------------------------------------------------------------------------------

    def _write(self, read: list[Story]) -> tuple[int, int]:
        """Each article and its job in one transaction; answers the record that is slow and the one that fails."""
        now = datetime.now(UTC)
        records: list[int] = []
        for number, story in enumerate(read):
            trouble = {0: newsroom.SLOW, 1: newsroom.FAILS_TWICE}.get(number)
            wait = EMBARGOES_S[number // 3 % len(EMBARGOES_S)] if number % 3 == 2 else None
            with Session(self.engine) as session, session.begin():
                records.append(
                    _submit(session, story, trouble, None if wait is None else now + timedelta(seconds=wait))
                )
        with Session(self.engine) as session:
            _submit(session, Story("spiked", "Spiked", "nowhere", ""), None, None, key="publish:spiked")
            session.rollback()
        self.screen.happened("every article written in one transaction with its publish job; one rolled back")
        return records[0], records[1]

    def _damage(self) -> int:
        record = newsroom.publish.enqueue(Publish(1), key="garbled").id
        with self.engine.begin() as connection:
            damage = "UPDATE rowlock_job SET payload = substr(payload, 1, 7) WHERE id = :id"
            connection.execute(sa.text(damage), {"id": record})
        self.screen.happened(f"the payload of record {record} damaged by plain SQL")
        return record

    def _start(self) -> None:
        self.workers += [Worker("A", self.home), Worker("B", self.home)]
        self._wait(lambda: all(worker.ready for worker in self.workers), "two workers", "starting two workers")
        self.screen.happened(f"two workers ready: {' and '.join(map(str, self.workers))}")

    def _wait_for_retries(self, failing: int) -> None:
        record = self._wait(lambda: _if_succeeded(app.records.get(failing)), f"record {failing} to be published")
        self.screen.happened(f"the source of record {failing} failed twice; attempt {record.attempt} published it")

    def _kill(self, slow: int) -> tuple[Worker, datetime]:
        """SIGKILL for the worker that is in the middle of the slow record."""

        def held() -> Record | None:
            record = app.records.get(slow)
            with Session(self.engine) as session:
                begun = session.scalar(sa.select(Article.attempt).where(Article.record == slow)) == record.attempt
            return record if begun and record.state == "running" else None

        record = self._wait(held, f"record {slow} to be in work")
        victim = next(worker for worker in self.workers if _is_of(record, worker))
        killed_at = datetime.now(UTC)
        victim.kill()
        with Session(self.engine) as session, session.begin():
            rows = session.execute(
                sa.text("SELECT id, attempt, claimed_by FROM rowlock_job WHERE state = 'running' AND claimed_by = :by"),
                {"by": record.claimed_by},
            )
            session.add_all([Accident(record=row.id, attempt=row.attempt, claimed_by=row.claimed_by) for row in rows])
        self.screen.happened(f"{victim} killed with SIGKILL, in the middle of record {slow}", "bold red")
        return victim, killed_at

    def _wait_for_takeover(self, slow: int, killed: tuple[Worker, datetime], survivor: Worker) -> float:
        def taken() -> datetime | None:
            record = app.records.get(slow)
            return record.claimed_at if _is_of(record, survivor) else None

        seconds = (self._wait(taken, f"the takeover of record {slow}") - killed[1]).total_seconds()
        lease = f"the lease is {newsroom.LEASE_S:g} s"
        self.screen.happened(
            f"{survivor} took record {slow} over, {seconds:.1f} s after the kill ({lease})", "bold green"
        )
        return seconds

    def _wait_for_pages(self, total: int) -> None:
        self._wait(lambda: self._published() == total, "every article to be published")
        self.screen.happened(f"{total} of {total} articles published")

    def _close(self, survivor: Worker) -> bool:
        record = newsroom.front_page.enqueue(key="front page").id
        self._wait(lambda: _if_succeeded(app.records.get(record)), "the front page")
        code = survivor.drain()
        self.screen.happened(f"front page written; {survivor.name} drained on SIGTERM, exit code {code}")
        return code == 0

    def _prove(self, facts: Facts) -> bool:
        self.screen.heading("What the tables say")
        all_held = True
        for held, claim, shown in proofs(self.engine, facts):
            self.screen.proof(held, claim, shown)
            all_held = all_held and held
        return all_held

    # --- waiting ------------------------------------------------------------------------------------------

    def _published(self) -> int:
        done = "SELECT count(*) FROM rowlock_job WHERE state = 'succeeded' AND key LIKE 'publish:%'"
        with self.engine.connect() as connection:
            return int(connection.execute(sa.text(done)).scalar_one())

    def _wait(self, fact: Callable[[], T | None], what: str, doing: str = "published") -> T:
        """Look until there is one. Raises DemoError when a worker ends by itself, or it takes too long."""
        total = self._articles()
        while not (answer := fact()):
            self.screen.progress(doing, self._published(), total)
            if gone := [worker for worker in self.workers if worker.ended_by_itself]:
                raise DemoError(f"worker {gone[0]} has ended by itself; its log is {gone[0].log}")
            if self.screen.seconds > LONGEST_S:
                raise DemoError(f"the demo waited for {what} until {LONGEST_S:g} s were over; look at {self.home}")
            time.sleep(LOOK_S)
        return answer

    def _articles(self) -> int:
        with Session(self.engine) as session:
            return session.scalar(sa.select(sa.func.count()).select_from(Article)) or 0


def _submit(
    session: Session, story: Story, trouble: str | None, run_at: datetime | None, key: str | None = None
) -> int:
    """What a newsroom does with an article: its row, and the job that publishes it, in the session's transaction."""
    article = Article(slug=story.slug, title=story.title, source=story.source, body=story.body, trouble=trouble)
    session.add(article)
    session.flush()
    done = newsroom.publish.enqueue(
        Publish(article.id),
        key=key or f"publish:{article.id}",
        run_at=run_at,
        headers=None if run_at is None else {"embargo": run_at.isoformat()},
        connection=session,
    )
    return done.id


def _if_succeeded(record: Record) -> Record | None:
    return record if record.state == "succeeded" else None


def _is_of(record: Record, worker: Worker) -> bool:
    """Whether this process claimed the record last; `claimed_by` is host:pid."""
    return record.claimed_by is not None and record.claimed_by.rpartition(":")[2] == str(worker.pid)
