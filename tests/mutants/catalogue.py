"""Conditions of ownership, each left out in turn, and the tests that must then fail.

A change replaces a text of the source, everywhere where it stands in that file; a text that is not there is an error,
so that nobody leaves a mutant behind that changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

STORE = "src/rowlock/store"
PG = f"{STORE}/dialects/postgresql_sql.py"
MY = f"{STORE}/dialects/mysql_sql.py"
MYSQL = f"{STORE}/dialects/mysql.py"
MARIADB = f"{STORE}/dialects/mariadb.py"
LITE = f"{STORE}/dialects/sqlite_sql.py"
SQLITE = f"{STORE}/dialects/sqlite.py"
EVERY = ("sqlite", "postgresql", "mariadb")

LEASE = ("tests/contract/test_lease.py", "tests/races/test_lease_races.py")
RACES = ("tests/races/test_lease_races.py",)
CLAIM = ("tests/contract/test_claim.py", "tests/races/test_lease_races.py")
ENQUEUE = ("tests/contract/test_enqueue.py", "tests/races/test_enqueue_races.py")
CANCEL = ("tests/contract/test_cancel_store.py", "tests/races/test_cancel_races.py")


@dataclass(frozen=True)
class Change:
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """`name` says what is missing; `tests` run on each of `databases` until the first fails."""

    name: str
    databases: tuple[str, ...]
    tests: tuple[str, ...]
    changes: tuple[Change, ...]


# --- the pieces of the ownership condition, by database ---------------------------------------------------------------

_PG_STATE = Change(PG, ' AND {is_still(shape, "running", prefix="t.")}\n   ORDER', "\n   ORDER")
_PG_TOKEN = Change(PG, "h JOIN pair p ON p.id = h.id AND p.token = h.token", "h")
_PG_LEASE = Change(PG, "WHERE h.lease > (SELECT now FROM clock)", "WHERE (SELECT now FROM clock) IS NOT NULL")
_PG_PAIRS = Change(PG, "h JOIN pair p ON p.id = h.id AND p.token = h.token", "h JOIN pair p ON p.token = h.token")
_PG_CLOCK = Change(
    PG, "clock AS MATERIALIZED (SELECT {now} AS now,", "clock AS MATERIALIZED (SELECT statement_timestamp() AS now,"
)

_LITE_PAIR = " AND ({quoted(c('id'))}, {quoted(c('token'))}) IN (VALUES {','.join(['(?,?)'] * room)})"
_LITE_STATE = Change(
    LITE, "AND {quoted(c('state'))} = 'running' AND {quoted(c('lease'))} > ", "AND {quoted(c('lease'))} > "
)
_LITE_LEASE = (
    Change(LITE, "'running' AND {quoted(c('lease'))} > ?", "'running' AND coalesce({quoted(c('lease'))}, '') <> ?"),
    Change(LITE, "'running' AND {quoted(c('lease'))} > :rl_now", "'running' AND :rl_now <> ''"),
)
_LITE_TOKEN = (
    Change(LITE, _LITE_PAIR, " AND ({quoted(c('id'))}, 1) IN (VALUES {','.join(['(?, ? IS NULL OR 1)'] * room)})"),
    Change(LITE, "{quoted(c('token'))} = :token", "coalesce({quoted(c('token'))}, '') <> :token || 'x'"),
)
_LITE_PAIRS = (
    Change(LITE, _LITE_PAIR, " AND {quoted(c('token'))} IN ({','.join(['?,?'] * room)})"),
    Change(LITE, "{quoted(c('token'))} = :token", "coalesce({quoted(c('token'))}, '') <> :token || 'x'"),
)
_LITE_CLOCK = Change(
    SQLITE,
    '        with db.transaction(conn):\n            now = db.now_params()["rl_now"]\n            names',
    '        now = db.now_params()["rl_now"]\n        with db.transaction(conn):\n            names',
)

_MY_STATE = (
    Change(MY, " AND {quoted(c('state'))} = 'running' ORDER BY", " ORDER BY"),
    Change(
        MY,
        " AND {quoted(c('state'))} = 'running' AND {quoted(c('lease'))} > {now}",
        " AND {quoted(c('lease'))} > {now}",
    ),
    Change(MY, " AND {owned} AND {quoted(c('state'))} = 'running'", " AND {owned}"),
)
_MY_LEASE = (
    Change(
        MY,
        " AND {quoted(c('state'))} = 'running' AND {quoted(c('lease'))} > {now}",
        " AND {quoted(c('state'))} = 'running'",
    ),
    Change(MY, " AND {quoted(c('lease'))} > {now}) AS held", ") AS held"),
    Change(MY, " = 'running' AND {quoted(c('lease'))} <= {now}", " = 'none'"),
)
_MY_TOKEN = (
    Change(MYSQL, "held = {row[0] for row in rows if wanted[row[0]] == row[1]}", "held = {row[0] for row in rows}"),
    Change(MY, "    owned = f\"({quoted(c('id'))}, {quoted(c('token'))}) IN ({pairs})\"", '    owned = "1 = 1"'),
)
_MY_PAIRS = (
    Change(MYSQL, "if wanted[row[0]] == row[1]}", "if row[1] in wanted.values()}"),
    Change(MARIADB, "if not wait and not db.in_transaction(conn):", "if False:"),
)
_MY_CLOCK = (
    Change(
        MYSQL,
        "        with db.transaction(conn):\n            rows = run(conn, sql.hold_running",
        '        early = run(conn, f"SELECT {self.now(db)}", db.now_params()).scalar_one()\n'
        "        with db.transaction(conn):\n            rows = run(conn, sql.hold_running",
    ),
    Change(
        MYSQL,
        "statement = sql.fenced_update(shape, assignments, own, ids, self.now(db), params)",
        "statement = sql.fenced_update(shape, assignments, own, ids, f\"'{early}'\", params)",
    ),
    Change(MYSQL, "sql.expired_among(shape, ids, self.now(db))", "sql.expired_among(shape, ids, f\"'{early}'\")"),
)


def _owning() -> list[Mutant]:
    parts = {
        "postgresql": ((_PG_STATE,), (_PG_TOKEN,), (_PG_LEASE,), (_PG_PAIRS,), (_PG_CLOCK,)),
        "sqlite": ((_LITE_STATE,), _LITE_TOKEN, _LITE_LEASE, _LITE_PAIRS, (_LITE_CLOCK,)),
        "mariadb": (_MY_STATE, _MY_TOKEN, _MY_LEASE, _MY_PAIRS, _MY_CLOCK),
    }
    made: list[Mutant] = []
    for name, (state, token, lease, pairs, clock) in parts.items():
        only = (name,)
        made += [
            Mutant("renew, settle: state and lease without token", only, LEASE, token),
            Mutant("renew, settle: token without lease", only, LEASE, lease),
            Mutant("renew, settle: token and lease without state", only, LEASE, state),
            Mutant("renew, settle: tokens of a batch unpaired", only, LEASE, pairs),
            Mutant("renew, settle: the clock read before the lock", only, RACES, clock),
        ]
    # By id only, all at once; SQLite's and MariaDB's texts overlap, so that one change can spoil the next one's.
    made.append(Mutant("renew, settle: id only", ("postgresql",), LEASE, (_PG_STATE, _PG_TOKEN, _PG_LEASE)))
    made.append(
        Mutant(
            "renew, settle: id only",
            ("sqlite",),
            LEASE,
            (*_LITE_TOKEN, *_LITE_LEASE, Change(LITE, "{quoted(c('state'))} = 'running' AND", "1 = 1 AND")),
        )
    )
    made.append(
        Mutant(
            "renew, settle: id only",
            ("mariadb",),
            LEASE,
            (*_MY_TOKEN, *_MY_LEASE, Change(MY, " AND {quoted(c('state'))} = 'running'", "")),
        )
    )
    return made


# --- the rest: one text for all databases -----------------------------------------------------------------------------

_RENEW, _SETTLE, _CLAIM = f"{STORE}/renew.py", f"{STORE}/settle.py", f"{STORE}/claim.py"

MUTANTS: list[Mutant] = [
    *_owning(),
    Mutant(
        "renew: what stands is told without the token",
        EVERY, LEASE, (Change(_RENEW, " if tokens[row[0]] == row[1]}", "}"),),
    ),
    Mutant(
        "renew: what stands is told without the lease",
        EVERY, LEASE, (Change(_RENEW, " AND {q(c('lease'))} > {db.dialect.now(db)}", ""),),
    ),
    Mutant(
        "settle: a repeated one knows its effect without the token",
        EVERY, LEASE, (Change(_SETTLE, "for row in conn.execute(statement) if tokens[row[0]] == row[1]}", "for row in conn.execute(statement)}"),),  # noqa: E501
    ),
    Mutant(
        "rescue: the deadline is not looked at again",
        EVERY, LEASE, (Change(_CLAIM, "is_still(shape, 'running')} AND {expired}\"", "is_still(shape, 'running')}\""),),
    ),
    Mutant(
        "rescue: a lease that equals now is not expired",
        EVERY, LEASE, (Change(_CLAIM, "<= {db.dialect.scan_now(db)}", "< {db.dialect.scan_now(db)}"),),
    ),
    Mutant(
        "rescue: the token stays",
        EVERY, LEASE, (Change(_CLAIM, ", f\"{c['token']} = NULL\"]", "]"),),
    ),
    Mutant(
        "bury: the attempts are not looked at again",
        EVERY, LEASE, (Change(_CLAIM, "is_still(shape, 'pending')} AND {attempt} >= {most}\"", "is_still(shape, 'pending')}\""),),  # noqa: E501
    ),
    Mutant(
        "claim: what others took since the look is taken again",
        ("postgresql",), CLAIM, (Change(PG, ' AND {is_still(shape, "pending", prefix="t.")} AND {ready}\n', "\n"),),
    ),
    Mutant(
        "claim: what others took since the look is taken again",
        ("mariadb",), CLAIM,
        (
            Change(MY, "{take(shape, in_ids, now)} AND {quoted(c('state'))} = 'pending' AND {quoted(c('run_at'))} <= {now}", "{take(shape, in_ids, now)}"),  # noqa: E501
            Change(MY, "        f\" AND ({quoted(c('id'))}, {quoted(c('attempt'))}) IN ({tries})\"\n", ""),
        ),
    ),
    Mutant(
        "claim: the look is not in the writing transaction",
        ("sqlite",), CLAIM,
        (Change(SQLITE, "with db.transaction(conn):\n            now, nonce", "if conn:\n            now, nonce"),),
    ),
    Mutant(
        "claim: exhausted records are taken",
        ("postgresql",), CLAIM, (Change(PG, " AND t.{attempt} < t.{most}\"", '"'),),
    ),
    Mutant(
        "enqueue: an ended record answers for its key",
        ("sqlite",), ENQUEUE,
        (Change(f"{STORE}/dialects/sqlite_enqueue.py", " AND state IN ('pending', 'running') AND key", " AND key"),),
    ),
    Mutant(
        "enqueue: an ended record answers for its key",
        ("postgresql",), ENQUEUE,
        (Change(PG, "t.key = k.key AND t.state IN ('pending', 'running') AND", "t.key = k.key AND"),),
    ),
    Mutant(
        "enqueue: a running record does not answer for its key",
        ("postgresql",), ENQUEUE,
        (Change(PG, "t.key = k.key AND t.state IN ('pending', 'running') AND", "t.key = k.key AND t.state = 'pending' AND"),),  # noqa: E501
    ),
    Mutant(
        "enqueue: keys are not unique among active records",
        EVERY, ENQUEUE,
        (
            Change(f"{STORE}/migrations/step0001.py", "CREATE UNIQUE INDEX rowlock_job_active_key", "CREATE INDEX rowlock_job_active_key"),  # noqa: E501
            Change(PG, "    ON CONFLICT (job, key) WHERE state IN ('pending', 'running') AND key IS NOT NULL DO NOTHING\n", "    ON CONFLICT DO NOTHING\n"),  # noqa: E501
            Change(LITE, "    ON CONFLICT (job, key) WHERE state IN ('pending', 'running') AND key IS NOT NULL DO NOTHING", "    ON CONFLICT DO NOTHING"),  # noqa: E501
        ),
    ),
    Mutant(
        "cancel: a settlement does not look for cancels",
        EVERY, CANCEL, (Change(_SETTLE, "    ids = [s.id for s in settlements if", "    ids = [s.id for s in settlements if False and"),),  # noqa: E501
    ),
    Mutant(
        "cancel: work that completed is cancelled",
        EVERY, CANCEL, (Change(_SETTLE, "if s.state is not State.SUCCEEDED and not _is_decided(s)", "if s.id"),),
    ),
    Mutant(
        "cancel: what is held is carried out",
        EVERY, CANCEL,
        (
            Change(f"{STORE}/asked.py", "if not held.get(id_)]", "]"),
            Change(f"{STORE}/asked.py", " AND NOT {_held(db)} {skip}", " {skip}"),
        ),
    ),
    Mutant(
        "cancel: a replayed record is cancelled by the cancel of its earlier life",
        EVERY, CANCEL, (Change(f"{STORE}/revive.py", "forget(conn, self._db, asked(", "forget(conn, self._db, set() and asked("),),  # noqa: E501
    ),
]  # fmt: skip
