"""Rowlock's tables in a test's empty database at once, where a test does not look at how they are made.

The first database of a server is migrated for real, and what came of it is noted as SQL; the next ones get that in one
go. Measured here: a migration takes 380 ms on MariaDB, where each step commits, and this 50 ms.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

import sqlalchemy as sa

from support.databases import Database

ANY_TABLE = {
    "postgresql": "SELECT 1 FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema') LIMIT 1",
    "mariadb": "SHOW TABLES",
}
META = "INSERT INTO rowlock_meta (name, value) VALUES (:name, :value)"


def migrate(database: Database, migration: Callable[[], object]) -> None:
    """What `migration` does to `database`; on an empty one the short way, if there is one."""
    server = database.server
    if server is None:
        migration()
        return
    engine = sa.create_engine(database.sync_url, poolclass=sa.NullPool)
    with engine.begin() as conn:
        empty = not conn.exec_driver_sql(ANY_TABLE[database.dialect]).all()
        if empty and server.tables:
            for statement in server.tables:
                conn.exec_driver_sql(statement)
            conn.execute(sa.text(META), {"name": "installation", "value": secrets.token_hex(16)})
            return
    if empty:
        server.tables = _noted(database, migration)
    else:
        migration()


def _noted(database: Database, migration: Callable[[], object]) -> list[str]:
    """Migrates, and answers the statements by which the same tables are made: the last of them fill rowlock_meta."""
    made: list[str] = []

    def note(_conn: object, _cursor: object, sql: str, *_: object) -> None:
        if re.match(r"\s*(CREATE|ALTER)\b", sql):
            made.append(sql)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        migration()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    engine = sa.create_engine(database.sync_url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        if database.dialect == "mariadb":  # each of the steps rebuilds or commits; the tables as they are now do not
            names = conn.exec_driver_sql("SHOW TABLES").scalars().all()
            made = [conn.exec_driver_sql(f"SHOW CREATE TABLE {name}").one()[1] for name in names]
            made = [re.sub(r" AUTO_INCREMENT=\d+", "", one).replace("%", "%%") for one in made]
        rows = conn.exec_driver_sql("SELECT name, value FROM rowlock_meta WHERE name <> 'installation'").all()
    values = ", ".join(f"('{name}', '{value}')" for name, value in rows)
    fill = f"INSERT INTO rowlock_meta (name, value) VALUES {values}"
    return [*made, fill] if database.dialect == "mariadb" else ["; ".join([*made, fill])]
