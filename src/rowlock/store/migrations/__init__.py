"""Rowlock's own schema: created, upgraded and repaired here, apart from the application's migrations (S1).

Where DDL is transactional an upgrade is whole or not at all. Where DDL commits (MySQL, MariaDB) each object is made
by one statement that is left out when the object is there, so that the next start finishes what was cut off.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlalchemy import inspect, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from rowlock.errors import DatabaseUnavailable, NotMigrated, SchemaTooNew
from rowlock.store import schema
from rowlock.store.failures import not_migrated, where
from rowlock.store.migrations.step import Step
from rowlock.store.migrations.step0001 import STEP as STEP_1
from rowlock.store.migrations.step0002 import STEP as STEP_2
from rowlock.store.migrations.step0003 import STEP as STEP_3
from rowlock.store.migrations.step0004 import STEP as STEP_4
from rowlock.store.migrations.step0005 import STEP as STEP_5
from rowlock.store.migrations.step0006 import STEP as STEP_6
from rowlock.store.migrations.step0007 import STEP as STEP_7

if TYPE_CHECKING:
    from rowlock.store.database import Database

STEPS: tuple[Step, ...] = (STEP_1, STEP_2, STEP_3, STEP_4, STEP_5, STEP_6, STEP_7)
LEVEL = STEPS[-1].number
"""The schema level that this library makes and needs."""

_META = "CREATE TABLE rowlock_meta (name varchar(64) NOT NULL PRIMARY KEY, value varchar(255) NOT NULL)"


def migrate(conn: Connection, db: Database) -> list[str]:
    """Brings the schema to this library's level, and puts back what is missing of it. Answers what was made.

    Any number of processes may call it at once: one works, the others wait and find nothing to do. Raises
    `SchemaTooNew`, `UnsupportedDatabase`, and `DatabaseUnavailable` when another session keeps it locked for too long.
    """
    db.dialect.check_server(conn)
    try:
        return _locked(conn, db)
    except DBAPIError as error:
        if not db.dialect.is_lock_timeout(error):
            raise
        raise DatabaseUnavailable(
            f"database {db.name!r} ({where(db)}) is kept locked by another session, so that its tables can not be "
            f"looked after (S1); look what holds the lock"
        ) from error


def _locked(conn: Connection, db: Database) -> list[str]:
    if db.dialect.transactional_ddl:
        with db.transaction(conn):
            db.dialect.lock_migration(conn)
            return _upgrade(conn, db)
    db.dialect.lock_migration(conn)
    try:
        return _upgrade(conn, db)
    finally:
        db.dialect.unlock_migration(conn)


def _upgrade(conn: Connection, db: Database) -> list[str]:
    if not db.dialect.has_table(conn, "rowlock_meta"):  # asked first: IF NOT EXISTS makes a driver warn at each start
        conn.exec_driver_sql(_META)
    found = _read(conn)
    _refuse_newer(found, db)
    made: list[str] = []
    for step in STEPS:
        made += _make(conn, db, step)
        if int(found.get("level", "0")) < step.number:
            _write(conn, level=str(step.number), oldest=str(max(step.oldest, int(found.get("oldest", "0")))))
    if "installation" not in found:
        _write(conn, installation=secrets.token_hex(16))
    return made


def _make(conn: Connection, db: Database, step: Step) -> list[str]:
    missing = _missing(conn, db, step)
    for ddl in missing.values():
        conn.exec_driver_sql(ddl)
    return list(missing)


def verify(conn: Connection, db: Database) -> str:
    """Refuses a schema that this library can not work on; answers the installation's id (E3).

    Raises `NotMigrated`, `SchemaTooNew`. Fails no caller's transaction.
    """
    if not db.dialect.has_table(conn, "rowlock_meta"):
        raise not_migrated(db)
    found = _read(conn)
    _refuse_newer(found, db)
    level = int(found.get("level", "0"))
    if level < LEVEL:
        raise NotMigrated(
            f"database {db.name!r} ({where(db)}) has Rowlock's tables at level {level}, this library needs level "
            f"{LEVEL} (S1); run `rowlock migrate`, or app.migrate()"
        )
    return found["installation"]


def check(conn: Connection, db: Database) -> list[str]:
    """What a live schema lacks of the expected one, a sentence each; empty when nothing."""
    if not db.dialect.has_table(conn, "rowlock_meta"):
        return [f"table rowlock_meta is missing in {where(db)}; run `rowlock migrate`"]
    there = _objects(conn)
    problems = [
        f"{name} is missing in {where(db)}; run `rowlock migrate`"
        for step in STEPS
        for name in _missing(conn, db, step)
    ]
    inspector = inspect(conn)
    problems += _other_indexes(conn, db)
    for table in schema.metadata.tables.values():
        if table.name in there:
            live = {column["name"] for column in inspector.get_columns(table.name)}
            problems += [
                f"column {table.name}.{column.name} is missing in {where(db)}; restore it from a fresh schema"
                for column in table.columns
                if column.name not in live
            ]
    level = int(_read(conn).get("level", "0"))
    if level < LEVEL:
        problems.append(f"the schema in {where(db)} is at level {level} of {LEVEL}; run `rowlock migrate`")
    return problems


_INDEX = re.compile(r"CREATE (UNIQUE )?INDEX (\w+) ON (\w+)\s*\(([^)]*)\)( WHERE)?")


def _other_indexes(conn: Connection, db: Database) -> list[str]:
    """Indexes that have the name of one of Rowlock's and are something else."""
    inspector = inspect(conn)
    problems: list[str] = []
    for step in STEPS:
        for ddl in db.dialect.ddl(conn, step).values():
            if not (made := _INDEX.match(ddl)) or not inspector.has_table(made[3]):
                continue
            expected = (bool(made[1]), [name.strip() for name in made[4].split(",")], bool(made[5]))
            for index in inspector.get_indexes(made[3]):
                partial = any(name.endswith("_where") for name in index.get("dialect_options", {}))
                live = (bool(index["unique"]), list(index["column_names"]), partial)
                if index["name"] == made[2] and live != expected:
                    problems.append(
                        f"{made[2]} in {where(db)} is another index than Rowlock's; drop it, and run `rowlock migrate`"
                    )
    return problems


def _missing(conn: Connection, db: Database, step: Step) -> dict[str, str]:
    """What is not there of a step's objects; a column that a step adds is named `table.column`."""
    there, wanted = _objects(conn), db.dialect.ddl(conn, step)
    for table in {name.partition(".")[0] for name in wanted if "." in name} & there:
        there |= {f"{table}.{column['name']}" for column in inspect(conn).get_columns(table)}
    return {name: ddl for name, ddl in wanted.items() if name not in there}


def _objects(conn: Connection) -> set[str]:
    """The names of Rowlock's tables, indexes and constraints that are there."""
    inspector = inspect(conn)
    names: set[str] = set()
    for table in inspector.get_table_names():
        if table.startswith("rowlock_"):
            names.add(table)
            names |= {str(index["name"]) for index in inspector.get_indexes(table)}
            names |= {str(constraint["name"]) for constraint in inspector.get_check_constraints(table)}
    return names


def _refuse_newer(found: Mapping[str, str], db: Database) -> None:
    oldest = int(found.get("oldest", "0"))
    if oldest > LEVEL:
        raise SchemaTooNew(
            f"database {db.name!r} ({where(db)}) has Rowlock's tables at level {found.get('level')}, which libraries "
            f"below level {oldest} may not use; this one is at level {LEVEL} (S1): upgrade the rowlock package"
        )


def _read(conn: Connection) -> dict[str, str]:
    return {row[0]: row[1] for row in conn.execute(select(schema.meta.c.name, schema.meta.c.value))}


def _write(conn: Connection, **values: str) -> None:
    there = _read(conn)
    for name, value in values.items():
        if name in there:
            conn.execute(schema.meta.update().where(schema.meta.c.name == name).values(value=value))
        else:
            conn.execute(schema.meta.insert().values(name=name, value=value))
