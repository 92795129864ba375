"""Rowlock's own tables: created, upgraded, checked, repaired, and refused when they are too new (S1, S2, S5)."""

from __future__ import annotations

import json
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, Context, DatabaseUnavailable, NotMigrated, SchemaTooNew
from rowlock.store import migrations
from rowlock.store.database import Database as Store
from support.databases import Database
from support.jobtable import statements
from support.waiting import barrier, in_threads, wait_until

AppFactory = Callable[..., App]

COLUMNS = {
    *("id", "job", "fingerprint", "payload", "key", "queue", "priority", "state", "run_at", "attempt", "max_attempts"),
    *("timeout_ms", "headers", "token", "lease", "claimed_by", "error_category", "error_class", "error_summary"),
    *("created_at", "claimed_at", "finished_at"),
}


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    made = Store("default", database.url)
    yield made
    made.close()


def run(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as conn:
        for statement in statements:
            conn.execute(sa.text(statement))


def rows_of(engine: sa.Engine, statement: str) -> list[Any]:
    with engine.connect() as conn:
        return [tuple(row) for row in conn.execute(sa.text(statement))]


def objects(database: Database) -> list[str]:
    """What the steps make, by name, in order."""
    return [name for step in migrations.STEPS for name in getattr(step, KINDS[database.dialect])]


KINDS = {"sqlite": "sqlite", "postgresql": "postgresql", "mariadb": "mysql"}
KILLED = 9


def migrated(database: Database, *, die_after_write: bool = False) -> list[str]:
    """Migrates as a process of its own would. It can be killed after its first statement that makes something."""
    store = Store("default", database.url, wait_ms=20_000)
    if die_after_write:
        writes = re.compile(r"CREATE|ALTER|INSERT|UPDATE")
        sa.event.listen(
            store.engine(),
            "after_cursor_execute",
            lambda _c, _cur, sql, *_: writes.match(sql.strip()) and os._exit(KILLED),
        )
    made = store.run(migrations.migrate)
    store.close()
    return made


def forked(work: Callable[[], object]) -> int:
    """Runs `work` in a child process; answers its pid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, beside a thread of the suite
        if pid := os.fork():
            return pid
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def ended(pid: int) -> int:
    """A child's exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- S1 -------------------------------------------------------------------------------------------------------------


def test_migrating_twice_makes_everything_once(store: Store) -> None:
    # contract: S1
    made = store.run(migrations.migrate)
    assert {"rowlock_job", "rowlock_job_due", "rowlock_program"} <= set(made)
    assert store.run(migrations.migrate) == []
    assert store.run(migrations.check) == []


def test_processes_that_start_at_once_upgrade_once(database: Database) -> None:
    # contract: S1
    stores = [Store("default", database.url, wait_ms=20_000) for _ in range(4)]
    start = barrier(4)

    def migrate(store: Store) -> list[str]:
        start.wait()
        return store.run(migrations.migrate)

    made = in_threads(*[lambda store=store: migrate(store) for store in stores])
    names = [name for part in made for name in part]
    assert len(names) == len(set(names))
    assert "rowlock_job" in names
    assert len({store.run(migrations.verify) for store in stores}) == 1
    for store in stores:
        store.close()


def test_real_processes_that_start_at_once_upgrade_once(database: Database, engine: sa.Engine) -> None:
    # contract: S1
    told = os.pipe()
    children = [forked(lambda: os.write(told[1], json.dumps(migrated(database)).encode() + b"\n")) for _ in range(3)]
    assert [ended(child) for child in children] == [0, 0, 0]
    os.close(told[1])
    with os.fdopen(told[0]) as lines:
        made = [name for line in lines for name in json.loads(line)]
    assert len(made) == len(set(made)) == len(objects(database))
    assert rows_of(engine, "SELECT count(*) FROM rowlock_meta") == [(3,)]


def test_killed_after_any_statement_of_an_upgrade_the_next_start_finishes_it(
    database: Database, engine: sa.Engine
) -> None:
    # contract: S1
    starts = 0
    while starts < 40:
        starts += 1
        if ended(forked(lambda: migrated(database, die_after_write=True))) == 0:
            break
        there = {name for name in sa.inspect(engine).get_table_names() if name.startswith("rowlock_")}
        if engine.name in {"sqlite", "postgresql"}:  # whole or not at all
            assert there == set()
            assert migrated(database) == [*objects(database)]
    else:
        pytest.fail("each start made something, for ever")
    store = Store("default", database.url)
    assert store.run(migrations.check) == []
    assert re.fullmatch("[0-9a-f]{32}", store.run(migrations.verify))
    store.close()
    if engine.name not in {"sqlite", "postgresql"}:
        assert starts > len(objects(database))  # it died after each of them


def test_a_start_without_anything_to_do_writes_nothing(store: Store) -> None:
    # contract: S1
    store.run(migrations.migrate)
    with statements(store.engine()) as sent:
        store.run(migrations.migrate)
    assert [sql for sql in sent if re.match(r"CREATE|ALTER|DROP|INSERT|UPDATE|DELETE", sql)] == []


@pytest.mark.databases("postgresql", "mariadb", reason="S1: SQLite's lock is the file's own")
def test_a_migration_that_hangs_elsewhere_is_an_error_that_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: S1, Z1
    other = Store("default", store.target)
    lock = type(store.dialect).lock_migration

    def impatient(self: Any, conn: Any) -> None:
        seen = sa.event.listens_for(conn, "before_cursor_execute", retval=True)
        seen(lambda _c, _cur, sql, params, *_: (sql.replace("60s", "50ms").replace(", 60)", ", 0)"), params))
        lock(self, conn)

    def hold(conn: sa.Connection, db: Store) -> None:
        with db.transaction(conn):
            lock(db.dialect, conn)
            monkeypatch.setattr(type(store.dialect), "lock_migration", impatient)
            with pytest.raises(DatabaseUnavailable, match="S1"):
                store.run(migrations.migrate)
        db.dialect.unlock_migration(conn)

    other.run(hold)
    other.close()
    assert store.run(migrations.migrate) != []


def test_the_installation_keeps_its_id(store: Store) -> None:
    # contract: S1, E3
    store.run(migrations.migrate)
    first = store.run(migrations.verify)
    store.run(migrations.migrate)
    assert store.run(migrations.verify) == first
    assert re.fullmatch("[0-9a-f]{32}", first)


def test_check_names_what_is_missing_and_migrate_puts_it_back(store: Store, engine: sa.Engine) -> None:
    # contract: S1
    store.run(migrations.migrate)
    on = " ON rowlock_job" if engine.name in {"mysql", "mariadb"} else ""
    run(engine, f"DROP INDEX rowlock_job_due{on}", "DROP TABLE rowlock_program")
    lost = {"rowlock_job_due", "rowlock_program"}
    if engine.name != "sqlite":
        run(engine, "ALTER TABLE rowlock_job DROP CONSTRAINT rowlock_job_state")
        lost.add("rowlock_job_state")
    problems = store.run(migrations.check)
    assert {problem.split()[0] for problem in problems} == lost
    assert all("rowlock migrate" in problem for problem in problems)
    assert set(store.run(migrations.migrate)) == lost
    assert store.run(migrations.check) == []


def test_check_sees_an_index_that_is_another_one_by_the_same_name(store: Store, engine: sa.Engine) -> None:
    # contract: S1
    store.run(migrations.migrate)
    on = " ON rowlock_job" if engine.name in {"mysql", "mariadb"} else ""
    wrong = {
        "rowlock_job_due": "CREATE INDEX rowlock_job_due ON rowlock_job (queue, id)",
        "rowlock_job_active_key": "CREATE INDEX rowlock_job_active_key ON rowlock_job (job)",
    }
    for name, ddl in wrong.items():
        run(engine, f"DROP INDEX {name}{on}", ddl)
    assert {problem.split()[0] for problem in store.run(migrations.check)} == set(wrong)
    run(engine, *[f"DROP INDEX {name}{on}" for name in wrong])
    assert set(store.run(migrations.migrate)) == set(wrong)
    assert store.run(migrations.check) == []


def test_check_sees_a_missing_column(store: Store, engine: sa.Engine) -> None:
    # contract: S1
    store.run(migrations.migrate)
    run(engine, "ALTER TABLE rowlock_job DROP COLUMN claimed_by")
    assert any("rowlock_job.claimed_by" in problem for problem in store.run(migrations.check))


def test_an_older_schema_is_upgraded_with_its_rows(store: Store, engine: sa.Engine) -> None:
    # contract: S1
    store.run(migrations.migrate)
    now = "'2027-01-01 00:00:00.000000'"
    run(
        engine,
        "DROP TABLE rowlock_program",
        "UPDATE rowlock_meta SET value = '1' WHERE name = 'level'",
        "INSERT INTO rowlock_job (job, fingerprint, payload, max_attempts, timeout_ms, run_at, created_at)"
        f" VALUES ('j', 'f', '{{}}', 3, 1000, {now}, {now})",
    )
    with pytest.raises(NotMigrated, match="level 1"):
        store.run(migrations.verify)
    assert store.run(migrations.migrate) == ["rowlock_program"]
    store.run(migrations.verify)
    with engine.connect() as conn:
        assert conn.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one() == 1


def test_a_newer_schema_refuses_an_older_library_unless_it_may_stay(store: Store, engine: sa.Engine) -> None:
    # contract: S1
    store.run(migrations.migrate)
    newer = migrations.LEVEL + 1
    run(engine, f"UPDATE rowlock_meta SET value = '{newer}' WHERE name = 'level'")
    store.run(migrations.verify)  # a deploy that is rolled back finds what it needs
    assert store.run(migrations.migrate) == []
    run(engine, f"UPDATE rowlock_meta SET value = '{newer}' WHERE name = 'oldest'")
    for function in (migrations.verify, migrations.migrate):
        with pytest.raises(SchemaTooNew, match="upgrade the rowlock package"):
            store.run(function)
    with engine.connect() as conn:
        levels = conn.execute(sa.text("SELECT value FROM rowlock_meta WHERE name = 'level'")).scalar_one()
    assert levels == str(newer)


def test_an_upgrade_is_whole_or_not_at_all(store: Store, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    # contract: S1
    broken = dict.fromkeys(("rowlock_program",), "CREATE TABLE rowlock_program (this is no column")
    step = migrations.STEPS[1]
    bad = type(step)(number=2, oldest=1, postgresql=broken, mysql=broken, sqlite=broken)
    monkeypatch.setattr(migrations, "STEPS", (migrations.STEPS[0], bad))
    with pytest.raises(sa.exc.DBAPIError):
        store.run(migrations.migrate)
    for _ in range(2):  # also again, on the same connection
        with pytest.raises(sa.exc.DBAPIError):
            store.run(migrations.migrate)
    there = {name for name in sa.inspect(engine).get_table_names() if name.startswith("rowlock_")}
    assert there == ({"rowlock_meta", "rowlock_job"} if engine.name in {"mysql", "mariadb"} else set())
    monkeypatch.undo()
    store.run(migrations.migrate)  # where DDL commits, the next start finishes what was cut off
    assert store.run(migrations.check) == []


def test_a_table_cut_off_before_its_indexes_is_finished(store: Store, engine: sa.Engine) -> None:
    # contract: S1
    store.run(migrations.migrate)
    on = " ON rowlock_job" if engine.name in {"mysql", "mariadb"} else ""
    run(engine, *[f"DROP INDEX {name}{on}" for name in ("rowlock_job_expired", "rowlock_job_ended")])
    run(engine, "DELETE FROM rowlock_meta WHERE name IN ('level', 'oldest')")
    assert set(store.run(migrations.migrate)) == {"rowlock_job_expired", "rowlock_job_ended"}
    store.run(migrations.verify)


# --- S2, S5 ----------------------------------------------------------------------------------------------------------


def test_the_documented_columns_are_there(store: Store, engine: sa.Engine) -> None:
    # contract: S2
    store.run(migrations.migrate)
    assert {column["name"] for column in sa.inspect(engine).get_columns("rowlock_job")} >= COLUMNS


def test_columns_have_the_databases_native_types(store: Store, engine: sa.Engine) -> None:
    # contract: S2, S5
    store.run(migrations.migrate)
    times = {"run_at", "lease", "created_at", "claimed_at", "finished_at"}
    texts = {"job", "fingerprint", "key", "queue", "state", "token"}
    types = {column["name"]: column["type"] for column in sa.inspect(engine).get_columns("rowlock_job")}
    if engine.name == "sqlite":
        assert {types[name].compile(engine.dialect) for name in times | texts} == {"TEXT"}
        return
    time = "TIMESTAMP WITH TIME ZONE" if engine.name == "postgresql" else "DATETIME(6)"
    shown = {name: type_.compile(engine.dialect) for name, type_ in types.items()}
    assert {shown[name] for name in times} == {time}
    assert shown["id"].startswith("BIGINT")
    binary = "C" if engine.name == "postgresql" else "utf8mb4_nopad_bin"
    assert {types[name].collation for name in texts} == {binary}
    assert shown["payload"].split()[0] == ("TEXT" if engine.name == "postgresql" else "LONGTEXT")


@pytest.mark.parametrize(
    ("version", "collation", "checks"),
    [("8.0.1", "utf8mb4_bin", False), ("8.0.16", "utf8mb4_bin", True), ("8.0.17", "utf8mb4_0900_bin", True),
     ("9.4.0", "utf8mb4_0900_bin", True), ("10.6.22-MariaDB-log", "utf8mb4_nopad_bin", True)],
)  # fmt: skip
def test_each_mysql_gets_what_it_can_keep(version: str, collation: str, checks: bool) -> None:
    # contract: S1, S5
    from rowlock.store.dialects.mysql import MySQL

    class Connection:
        def exec_driver_sql(self, _sql: str) -> Connection:
            return self

        def scalar_one(self) -> str:
            return version

    ddl: Any = MySQL().ddl(Connection(), migrations.STEPS[0])  # pyright: ignore[reportArgumentType]
    assert f"COLLATE {collation}" in ddl["rowlock_job"]
    assert ("rowlock_job_state" in ddl) is checks
    assert "{" not in "".join(ddl.values())


def test_ids_have_64_bits_and_are_never_reused(app_factory: AppFactory, engine: sa.Engine) -> None:
    # contract: S2
    app = app_factory()

    @app.job(max_attempts=1, timeout=1, name="j")
    def j() -> None: ...

    past_31_bits = {
        "sqlite": "INSERT INTO sqlite_sequence (name, seq) VALUES ('rowlock_job', 2147483646)",
        "postgresql": "ALTER TABLE rowlock_job ALTER COLUMN id RESTART WITH 2147483647",
        "mysql": "ALTER TABLE rowlock_job AUTO_INCREMENT = 2147483647",
    }
    run(engine, past_31_bits.get(engine.name, past_31_bits["mysql"]))
    ids = [j.enqueue().id, *[answer.id for answer in j.enqueue_many([None] * 3)]]
    assert ids == [2**31 - 1, 2**31, 2**31 + 1, 2**31 + 2]
    run(engine, "DELETE FROM rowlock_job")
    assert j.enqueue().id > ids[-1]


def test_records_beyond_31_bits_run_and_are_shown(app_factory: AppFactory, engine: sa.Engine) -> None:
    # contract: S2, O1
    # case: C91
    app, ran = app_factory(), list[int]()

    @app.job(max_attempts=2, timeout=30, name="j")
    def j(ctx: Context) -> None:
        ran.append(ctx.id)
        if ctx.attempt == 1 and ctx.id == 2**31:
            raise ValueError

    j.enqueue()
    run(engine, f"UPDATE rowlock_job SET id = {2**31 - 1}")
    if engine.name == "sqlite":
        run(engine, f"UPDATE sqlite_sequence SET seq = {2**31 - 1}")
    elif engine.name == "postgresql":
        run(engine, f"ALTER TABLE rowlock_job ALTER COLUMN id RESTART WITH {2**31}")
    else:
        run(engine, f"ALTER TABLE rowlock_job AUTO_INCREMENT = {2**31}")
    ids = [2**31 - 1, j.enqueue(key="k").id, *[each.id for each in j.enqueue_many([None, (None, {"delay": 3_600})])]]
    assert ids == [2**31 - 1 + n for n in range(4)]
    assert j.enqueue(key="k").id == 2**31
    run(engine, "UPDATE rowlock_job SET run_at = created_at")
    with app.worker_thread():
        wait_until(lambda: {record.state for record in app.records.list().items} == {"succeeded"})
    assert sorted(ran) == sorted([*ids, 2**31])  # the one that failed ran again
    assert [record.id for record in app.records.list().items] == ids[::-1]
    assert [record.id for record in app.records.list(after=ids[3]).items] == ids[2::-1]


@pytest.mark.databases("postgresql", "mariadb", reason="C91: an integer of SQLite has 64 bits")
def test_each_column_with_an_id_has_64_bits(app_factory: AppFactory, engine: sa.Engine) -> None:
    # contract: S2
    # case: C91
    app_factory()
    named = "column_name IN ('id', 'record', 'job_id') OR column_name LIKE '%%\\_id' OR column_default LIKE 'nextval%%'"
    with engine.connect() as conn:
        found = conn.exec_driver_sql(
            "SELECT table_name, column_name, data_type FROM information_schema.columns"
            f" WHERE table_name LIKE 'rowlock\\_%%' AND ({named})"
        ).all()
    types = {f"{table}.{column}": kind for table, column, kind in found}
    assert "rowlock_job.id" in types
    assert {kind for kind in types.values() if "int" in kind} == {"bigint"}


def test_times_are_native_and_in_utc(app_factory: AppFactory, engine: sa.Engine) -> None:
    # contract: S5
    app = app_factory()

    @app.job(max_attempts=1, timeout=1, name="j")
    def j() -> None: ...

    j.enqueue(run_at=datetime(2031, 2, 3, 4, 5, 6, 700, tzinfo=UTC))
    with engine.connect() as conn:
        value: Any = conn.execute(sa.text("SELECT run_at FROM rowlock_job")).scalar_one()
    if engine.name == "sqlite":
        assert value == "2031-02-03 04:05:06.000700"
    else:
        assert (value if value.tzinfo else value.replace(tzinfo=UTC)) == datetime(2031, 2, 3, 4, 5, 6, 700, tzinfo=UTC)


@pytest.mark.databases("sqlite", reason="S5: the other databases have a native time type")
def test_every_path_writes_the_one_format_of_time(app_factory: AppFactory, engine: sa.Engine) -> None:
    # contract: S5
    app = app_factory()

    @app.job(max_attempts=3, timeout=1, name="j")
    def j() -> None: ...

    j.enqueue()
    j.enqueue(delay=1)
    j.enqueue(run_at=datetime(2031, 1, 1, tzinfo=UTC))
    j.enqueue_many([None, (None, {"delay": 0.001})])
    run(
        engine,
        "INSERT INTO rowlock_job (job, fingerprint, payload, max_attempts, timeout_ms) VALUES ('j', 'f', '', 1, 1)",
    )
    with engine.connect() as conn:
        times = [t for row in conn.execute(sa.text("SELECT run_at, created_at FROM rowlock_job")) for t in row]
    assert len(times) == 12
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}", time) for time in times)


@pytest.mark.parametrize(
    "change",
    [
        "state = 'finished'",
        "state = 'Pending'",
        "state = 'running', lease = NULL",
        "run_at = NULL",
        "priority = NULL",
        "created_at = NULL",
        "max_attempts = NULL",
        "queue = NULL",
        "payload = NULL",
    ],
)
def test_the_table_refuses_what_is_not_sane(app_factory: AppFactory, engine: sa.Engine, change: str) -> None:
    # contract: S5
    app = app_factory()

    @app.job(max_attempts=1, timeout=1, name="j")
    def j() -> None: ...

    j.enqueue()
    with pytest.raises(sa.exc.DBAPIError):
        run(engine, f"UPDATE rowlock_job SET {change}")


OUT_OF_TIME = {
    "postgresql": ("infinity", "-infinity", "10000-01-01", "0044-03-15 BC"),
    "sqlite": ("infinity", "soon", "2031-1-1", "2031-01-01", "2031-01-01T00:00:00.000000", "2031-01-01 00:00:00.000",
               "2031-13-01 00:00:00.000000", "2031-02-30 00:00:00.000000", "2031-01-01 24:00:00.000000",
               "0000-01-01 00:00:00.000000", "2031-01-01 00:00:00.00000x", "2031-01-01 00:00:00+00:00x"),
    "mysql": ("0000-00-00", "0001-01-01"),
}  # fmt: skip


@pytest.mark.parametrize("column", ["run_at", "created_at", "lease", "claimed_at", "finished_at"])
def test_a_time_that_would_break_a_fetch_is_refused(app_factory: AppFactory, engine: sa.Engine, column: str) -> None:
    # contract: S5
    app = app_factory()

    @app.job(max_attempts=1, timeout=1, name="j")
    def j() -> None: ...

    j.enqueue()
    kind = "mysql" if engine.name == "mariadb" else engine.name
    for value in OUT_OF_TIME[kind]:
        with engine.begin() as conn:
            if kind == "mysql":  # the mode in which the server takes nearly everything
                conn.exec_driver_sql("SET sql_mode = 'ALLOW_INVALID_DATES'")
            with pytest.raises(sa.exc.DBAPIError):
                conn.exec_driver_sql(f"UPDATE rowlock_job SET {column} = '{value}'")
            conn.rollback()
    for value in ("1970-01-01 00:00:00.000000", "2032-02-29 23:59:59.999999", "9999-12-31 00:00:00.000001"):
        run(engine, f"UPDATE rowlock_job SET {column} = '{value}'")
        assert len(app.records.list().items) == 1
