"""The hot statements read what they return, and little more, however large the table is (S5).

Rows examined are at most 10 times the rows returned, and 100: with rows of an unknown job in front, with future rows at
a better priority, with history, and both with fresh statistics and with those that were taken when the table was empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from rowlock.model.outcome import Settlement, State
from rowlock.model.table import JOBS
from rowlock.store import asked, cancel, claim, migrations, programs, renew, settle
from rowlock.store.database import Database as Store
from support.databases import Database
from support.plans import measure

ROWS = pytest.mark.parametrize(
    "number", [1_000, 100_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
LIMITS = [1, 16, 100, 256]
F = "f" * 64
KNOWN = [programs.Pair("a", F), programs.Pair("b", F)]
SOURCE = claim.Source(JOBS, "default", (claim.Branch("a", F, 60_000), claim.Branch("b", F, 60_000)), "plans")
NUMBERS = {
    "sqlite": "(WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < {n}) SELECT i FROM g) AS g",
    "postgresql": "generate_series(1, {n}) AS g(i)",
    "mysql": "(SELECT seq AS i FROM seq_1_to_{n}) AS g",
}
PAST, FUTURE = "'2020-01-01 00:00:00.000000'", "'2090-01-01 00:00:00.000000'"
WAITING = "job = 'unknown' AND state = 'pending' AND priority = 1"
CENTURY_MS = 3_155_760_000_000
PAGES_OF_A_ROW = 5
"""PostgreSQL: the descent in an index, the heap, the entries of five indexes; a scan of an index reads thousands."""


def family(engine: sa.Engine) -> str:
    return "mysql" if engine.name == "mariadb" else engine.name


def fill(engine: sa.Engine, number: int) -> None:
    """Unknown and future rows in front, history, and due rows; of a running or exhausted kind a few hundred."""
    key = "`key`" if family(engine) == "mysql" else "key"

    def rows(count: int, job: str, state: str, priority: int, due: str, **other: str) -> str:
        values = {"attempt": "0", "lease": "NULL", key: "NULL"} | other
        return (
            "INSERT INTO rowlock_job (job, fingerprint, payload, queue, priority, state, run_at, max_attempts,"
            f" timeout_ms, token, created_at, {', '.join(values)})"
            f" SELECT '{job}', '{F}', '{{}}', 'default', {priority}, '{state}', {due}, 3, 1000, 't', {PAST},"
            f" {', '.join(values.values())} FROM {NUMBERS[family(engine)].format(n=count)}"
        )

    keyed = "CONCAT('k', i)" if family(engine) != "sqlite" else "'k' || i"
    with engine.begin() as conn:
        for statement in (
            rows(number, "unknown", "pending", 1, PAST),
            rows(number // 5, "unknown", "pending", 0, FUTURE),
            rows(number, "a", "pending", 5, FUTURE),
            rows(number, "a", "succeeded", 100, PAST),
            rows(number // 5, "a", "succeeded", 100, PAST, **{key: "'hot'"}),
            rows(2_000, "a", "succeeded", 100, PAST, **{key: keyed}),
            rows(2_000, "a", "pending", 100, PAST, **{key: keyed}),
            rows(2_000, "b", "pending", 100, PAST),
            rows(600, "a", "running", 100, PAST, lease=FUTURE),
            rows(3_000, "a", "running", 100, PAST, lease=PAST),
            rows(3_000, "spent", "pending", 200, PAST, attempt="3"),
        ):
            conn.exec_driver_sql(statement)


def analyze(engine: sa.Engine) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql({"mysql": "ANALYZE TABLE rowlock_job"}.get(family(engine), "ANALYZE rowlock_job"))


@pytest.fixture
def store(database: Database, engine: sa.Engine) -> Iterator[Store]:
    """A database whose statistics are those of an empty table, and stay so."""
    made = Store("default", database.url, wait_ms=60_000)
    made.run(migrations.migrate)
    keep = {
        "mysql": "ALTER TABLE rowlock_job STATS_PERSISTENT = 1, STATS_AUTO_RECALC = 0",
        "postgresql": "ALTER TABLE rowlock_job SET (autovacuum_enabled = off)",
    }
    if family(engine) in keep:
        with engine.begin() as conn:
            conn.exec_driver_sql(keep[family(engine)])
    analyze(engine)
    yield made
    made.close()


def judge(engine: sa.Engine, what: str, act: Callable[[sa.Connection], int], *, twice: bool = False) -> None:
    """Holds what `act` read against the rows that it answers to have returned.

    `twice`: a first time unjudged, in which a look learns what it asks for at once in the next one.
    """
    with engine.connect() as conn:
        if twice:
            act(conn)
        read = measure(conn, lambda: act(conn))
    bound = 10 * read.answer + 100
    assert read.rows <= bound, (what, read)
    assert read.pages <= PAGES_OF_A_ROW * bound, (what, read)
    assert read.complaints == [], (what, read)


def every_hot_statement(db: Store, callers: sa.Engine) -> None:
    own = db.engine()
    judge(own, "look", lambda conn: 1 if claim.look(conn, db, SOURCE).due else 0, twice=True)
    for limit in LIMITS:
        judge(own, f"claim {limit}", lambda conn, limit=limit: len(claim.claim(conn, db, SOURCE, limit)))
        records = db.run(claim.claim, SOURCE, limit)
        assert len(records) == limit
        holds = [renew.Hold(record.id, record.token, 60_000) for record in records]
        judge(own, f"renew {limit}", lambda conn, holds=holds: len(renew.renew(conn, db, JOBS, holds).renewed))
        pairs = [(hold.id, hold.token) for hold in holds]
        judge(
            own,
            f"verify {limit}",
            lambda conn, pairs=pairs: len(pairs) - len(renew.verify_holds(conn, db, JOBS, pairs)),
        )
        lost = [Settlement(hold.id, "another's", State.SUCCEEDED, "ack") for hold in holds]
        judge(own, f"lost {limit}", lambda conn, lost=lost: len(settle.settle(conn, db, JOBS, lost, repeated=True)))
        back = [Settlement(h.id, h.token, State.PENDING, "failed", delay_ms=n) for n, h in enumerate(holds[::2])]
        judge(own, f"retry {limit}", lambda conn, back=back: len(settle.settle(conn, db, JOBS, back)))
        done = [Settlement(hold.id, hold.token, State.SUCCEEDED, "ack") for hold in holds[1::2]]
        judge(own, f"settle {limit}", lambda conn, done=done: len(settle.settle(conn, db, JOBS, done)))
    judge(own, "rescue", lambda conn: len(claim.rescue(conn, db, JOBS)))
    judge(own, "bury", lambda conn: len(claim.bury(conn, db, JOBS)))
    judge(own, "pending_pairs", lambda conn: len(db.dialect.pending_pairs(conn)))
    judge(own, "block_unknown", lambda conn: len(programs.block_unknown(conn, db, KNOWN, 0)))
    judge(own, "strangers", lambda conn: len(programs.strangers(conn, db, KNOWN, 0)))
    for engine in (own, callers):  # a caller's session plans by its own settings
        for keys in (1, 100, 1_000):
            there = [f"k{n}" for n in range(1_900 - keys, 1_900)]
            nowhere = [f"n{n}" for n in range(keys)]
            for names in (["a"], ["a", "before"]):
                judge(
                    engine,
                    f"find {keys} {names}",
                    lambda conn, names=names, keys=there: len(db.dialect.find_active(conn, names, keys)),
                )
            judge(
                engine,
                f"find none of {keys}",
                lambda conn, keys=nowhere: len(db.dialect.find_active(conn, ["a"], keys)) + len(keys),
            )
            for wanted in (["hot", *there[1:]], nowhere):
                judge(
                    engine if family(engine) != "mysql" else own,  # there it is asked on a connection of Rowlock's own
                    f"find recent {keys}",
                    lambda conn, keys=wanted: (
                        len(db.dialect.find_recent(conn, db, ["a"], keys, CENTURY_MS)) + len(keys)
                    ),
                )
            judge(
                own,
                f"look once for {keys}",
                lambda conn, keys=nowhere: len(db.dialect.look_once(conn, ["a"], keys) or []) + len(keys),
            )
    cancels(db, own)


def cancels(db: Store, own: sa.Engine) -> None:
    """With many that are asked for and not carried out yet."""
    with own.connect() as conn:
        ids = [row[0] for row in conn.exec_driver_sql("SELECT id FROM rowlock_job WHERE state = 'running' LIMIT 2000")]
        some = [row[0] for row in conn.exec_driver_sql(f"SELECT id FROM rowlock_job WHERE {WAITING} LIMIT 500")]
        for start in range(0, 2_100, 500):
            db.dialect.note_cancels(conn, db, (some[:100] + ids)[start : start + 500], None)
    told = cancel.Told({}, None)
    for limit in LIMITS:
        part, waiting = ids[-limit:], some[-limit:]
        judge(own, f"asked {limit}", lambda conn, part=part: len(asked.asked(conn, db, part)))
        judge(own, f"asked in vain {limit}", lambda conn, ids=waiting: len(asked.asked(conn, db, ids)) + len(ids))
        judge(
            own,
            f"cancel {limit}",
            lambda conn, ids=waiting: len(cancel.at_once_or_beside(conn, db, set(ids), set(), told, 1).cancelled),
        )
        del some[-limit:]
    page: list[asked.Carried] = [asked.Carried([], 0)]

    def carry_out(conn: sa.Connection) -> int:
        page.append(asked.carry_out(conn, db, page[-1].next or 0))
        return 2 * len(page[-1].records) + asked.PAGE  # a page is read whole, and then there are two tables to change

    while page[-1].next is not None:
        judge(own, "carry out", carry_out)
    assert sum(len(each.records) for each in page) >= 100


@ROWS
def test_every_hot_statement_with_old_statistics_and_with_fresh_ones(
    store: Store, engine: sa.Engine, number: int
) -> None:
    # contract: S5
    fill(engine, number)
    every_hot_statement(store, engine)
    analyze(engine)
    store.close()  # plans of connections that saw the old statistics end with them
    every_hot_statement(store, engine)


def test_a_plan_that_reads_the_table_is_seen(store: Store, engine: sa.Engine) -> None:
    # contract: S5
    fill(engine, 20_000)

    def scan(conn: sa.Connection) -> int:
        return len(conn.exec_driver_sql("SELECT id FROM rowlock_job WHERE claimed_by = 'nobody'").all())

    def other_index(conn: sa.Connection) -> int:
        due = "state = 'pending' AND queue = 'default' AND priority = 7"
        return len(conn.exec_driver_sql(f"SELECT id FROM rowlock_job WHERE {due} ORDER BY run_at LIMIT 1").all())

    for act in (scan, other_index):
        with pytest.raises(AssertionError):
            judge(engine, "bad", act)
