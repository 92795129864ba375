"""What the demo claims at its end, each claim read from the tables and held against the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from rowlock.demo import page

ARTICLES = """
SELECT a.id, a.slug, a.record, a.attempt, j.id AS job_id, j.state, j.attempt AS job_attempt
FROM article a LEFT JOIN rowlock_job j ON j.job = 'news.publish' AND j.key = 'publish:' || a.id
ORDER BY a.id
"""
EMBARGOED = """
SELECT count(*) AS all_of_them, coalesce(sum(claimed_at < run_at), 0) AS early
FROM rowlock_job WHERE job = 'news.publish' AND headers LIKE '%embargo%'
"""
FAILURES = """
SELECT j.id, j.state, j.attempt, count(f.attempt) AS failed, max(f.attempt) AS last
FROM rowlock_job j JOIN failure f ON f.record = j.id GROUP BY j.id, j.state, j.attempt
"""
BLOCKED = "SELECT id, error_category, attempt FROM rowlock_job WHERE state = 'blocked'"
HELD_AT_DEATH = """
SELECT h.record, h.attempt, j.attempt AS job_attempt, j.state, j.claimed_by <> h.claimed_by AS elsewhere
FROM accident h JOIN rowlock_job j ON j.id = h.record ORDER BY h.record
"""
SPIKED = """
SELECT (SELECT count(*) FROM article WHERE slug = 'spiked') AS articles,
       (SELECT count(*) FROM rowlock_job WHERE key = 'publish:spiked') AS records
"""
FRONT_PAGE = "SELECT id, state, attempt FROM rowlock_job WHERE job = 'news.front_page'"
STATES = "SELECT state, count(*) AS records FROM rowlock_job GROUP BY state ORDER BY count(*) DESC"


class Proof(NamedTuple):
    """A claim, whether it holds, and what was found."""

    held: bool
    claim: str
    shown: str


class Facts(NamedTuple):
    """What only the director knows: what it did, and how long the takeover took."""

    pages: Path
    garbled: int
    killed: str
    survivor: str
    takeover_s: float


def proofs(engine: sa.Engine, facts: Facts) -> Iterator[Proof]:
    """Every claim, in the order in which they are shown."""
    with engine.connect() as connection:

        def ask(sql: str) -> list[Any]:
            return list(connection.execute(sa.text(sql)))

        articles = ask(ARTICLES)
        yield _published(articles)
        yield _by_who_settled(articles, facts.pages)
        yield _at_its_time(ask(EMBARGOED)[0])
        yield _retried(ask(FAILURES))
        yield _blocked(ask(BLOCKED), facts)
        yield _recovered(ask(HELD_AT_DEATH), facts)
        yield _rolled_back(ask(SPIKED)[0])
        yield _front_page(ask(FRONT_PAGE), facts.pages)
        yield _nothing_left(ask(STATES))


def _published(articles: list[Any]) -> Proof:
    done = sum(row.state == "succeeded" for row in articles)
    return Proof(done == len(articles) > 0, "every article is published", f"{done} of {len(articles)}")


def _by_who_settled(articles: list[Any], pages: Path) -> Proof:
    """The page, the article's row and the job's row name one record and one attempt, and the page is whole."""
    agree = 0
    for row in articles:
        found = page.evidence(pages / f"{row.slug}.html")
        settled = (row.job_id, row.job_attempt, True)
        agree += found is not None and tuple(found) == settled and (row.record, row.attempt, True) == settled
    claim = "each page is by the attempt that settled"
    return Proof(agree == len(articles), claim, f"{agree} of {len(articles)} pages agree with their rows")


def _at_its_time(row: Any) -> Proof:
    return Proof(row.early == 0, "none came before its time", f"{row.all_of_them} with an embargo, {row.early} early")


def _retried(rows: list[Any]) -> Proof:
    held = [(row.state, row.failed, row.attempt > row.last) for row in rows] == [("succeeded", 2, True)]
    shown = ", ".join(f"record {row.id}: {row.failed} attempts failed, {row.attempt} published" for row in rows)
    return Proof(held, "a source that failed twice was retried", shown)


def _blocked(rows: list[Any], facts: Facts) -> Proof:
    held = [tuple(row) for row in rows] == [(facts.garbled, "corrupt_payload", 0)]
    shown = ", ".join(f"record {row.id}: {row.error_category}, {row.attempt} attempts spent" for row in rows)
    return Proof(held, "a damaged payload was set aside", shown or "no record is blocked")


def _recovered(rows: list[Any], facts: Facts) -> Proof:
    held = [row.state == "succeeded" and bool(row.elsewhere) and row.job_attempt > row.attempt for row in rows]
    shown = ", ".join(
        f"record {row.record}: attempt {row.attempt} died, {row.job_attempt} published" for row in rows[:2]
    )
    more = f" and {len(rows) - 2} more" if len(rows) > 2 else ""
    shown += f"{more}; takeover in {facts.takeover_s:.1f} s"
    claim = f"{facts.survivor} took over what {facts.killed} held"
    return Proof(bool(held) and all(held), claim, shown)


def _rolled_back(row: Any) -> Proof:
    held = row.articles == row.records == 0
    return Proof(held, "of a rollback nothing is left", f"{row.articles} articles, {row.records} records")


def _front_page(rows: list[Any], pages: Path) -> Proof:
    expected = [(row.id, row.attempt, True) for row in rows if row.state == "succeeded"]
    held = len(expected) == 1 and page.evidence(pages / "index.html") == expected[0]
    return Proof(held, "the front page is written", ", ".join(f"record {row.id}: {row.state}" for row in rows))


def _nothing_left(rows: list[Any]) -> Proof:
    held = {row.state for row in rows} == {"succeeded", "blocked"}
    return Proof(held, "nothing is left undone", ", ".join(f"{row.records} {row.state}" for row in rows))
