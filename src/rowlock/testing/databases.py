"""The databases of a case: files of its own, an engine of its own, or one connection and its transaction (X1).

None of them has an event loop: statements of coroutines run on one library thread, as they always do on SQLite, so
that nothing of a case is bound to a loop that may be closed before the case ends.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, ParamSpec, TypeVar

from sqlalchemy import Engine, event, select
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock.errors import KitError, KitTypeError, KitValueError, NotMigrated
from rowlock.store import schema
from rowlock.store.clock import Clock
from rowlock.store.database import Database, StoreFunction, Target
from rowlock.store.failures import translated
from rowlock.store.handlers import Handlers
from rowlock.store.migrations import migrate, verify
from rowlock.store.own import hold_elsewhere
from rowlock.testing.transactions import CaseHandlers

P = ParamSpec("P")
T = TypeVar("T")
Engines = Engine | AsyncEngine | Mapping[str, Engine | AsyncEngine]


class CaseDatabase(Database):
    """A database that the case has for itself, migrated when it is first used.

    `careless`: it lives no longer than the case, so its commits need not survive the machine.
    """

    def __init__(self, name: str, target: Target, *, clock: Clock, careless: bool = False) -> None:
        super().__init__(name, target, clock=clock)
        self._careless = careless
        self._ready: Engine | None = None
        self._making = threading.Lock()

    @classmethod
    def file(cls, name: str, path: Path, *, clock: Clock) -> CaseDatabase:
        """A SQLite file that does not exist yet, nor need its folder."""
        return cls(name, f"sqlite:///{path}", clock=clock, careless=True)

    def engine(self) -> Engine:
        """The sync engine, its database ready for use."""
        with self._making:
            if self._careless:
                Path(str(self.url.database)).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            engine = super().engine()
            if engine is not self._ready:
                if self._careless:
                    event.listen(engine, "connect", _careless)
                with translated(self), engine.connect() as conn:
                    migrate(conn, self)
                self._ready = engine
            return engine

    def empty(self) -> None:
        """Removes the records that earlier cases left."""
        self.run(_empty)

    async def _arun(self, function: Callable[[Connection], T], *, write: bool) -> T:
        with translated(self):
            return await self._writer_thread().submit(function, write=write)


class ConnectionDatabase(Database):
    """Everything inside the transaction of one connection, each function of the store in a savepoint of its own.

    The case is a savepoint too: it is rolled back at the end, and with it whatever happened on the connection since.
    Within a savepoint SQLAlchemy's sessions make savepoints of their own, so a commit in the code under test does not
    end the caller's transaction.
    """

    def __init__(self, name: str, connection: object, *, clock: Clock) -> None:
        if not isinstance(connection, Connection):
            raise KitTypeError(
                f"connection must be a sqlalchemy.Connection, not {type(connection).__name__} (X1); of a Session give "
                f"session.connection(), and for async code give the case an engine= of its own"
            )
        super().__init__(name, connection.engine, clock=clock)
        self._conn = connection
        self._turn = threading.RLock()
        if not connection.in_transaction():
            connection.begin()
        raw: Any = connection.connection.dbapi_connection
        begun = getattr(raw, "in_transaction", False)
        # A SQLite driver in autocommit mode is fine if SQLAlchemy's event says BEGIN in its place.
        if connection.dialect.detect_autocommit_setting(raw) and not begun:
            raise KitError("the connection is in autocommit mode, so it has no transaction to roll back (X1)")
        if self.dialect.one_writer and not begun:
            # Its driver begins only before a row is written, and a savepoint without that is a transaction.
            connection.exec_driver_sql("BEGIN")
        # A pooled connection remembers whose tables it saw, and those of an earlier case are rolled back (E3).
        connection.info.pop("rowlock_installation", None)
        self._case = connection.begin_nested()
        try:
            self._prepare(raw)
        except BaseException:
            self._case.rollback()
            raise

    def _prepare(self, raw: Any) -> None:
        cursor = raw.cursor()
        try:
            self.dialect.add_functions(cursor)
        finally:
            cursor.close()
        try:
            self.run(verify)
        except NotMigrated:
            if not self.dialect.transactional_ddl:  # making them would commit the caller's transaction
                raise
            self.run(migrate)
        self.run(_empty)

    def run(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function(conn, db, …)` on the case's connection, in this thread; one at a time."""
        return self._inside(lambda conn: function(conn, self, *args, **kwargs))

    async def _arun(self, function: Callable[[Connection], T], *, write: bool) -> T:
        return self._inside(function)

    def _inside(self, function: Callable[[Connection], T]) -> T:
        with self._turn, translated(self), self._conn.begin_nested():
            return function(self._conn)

    @contextmanager
    def transaction(self, conn: Connection) -> Generator[None]:
        """The savepoint around each function is what it needs."""
        yield

    def handlers(self, size: int) -> Handlers:
        """Handlers' transactions are savepoints of the case's one."""
        return CaseHandlers(self, self._conn)

    def engine(self) -> NoReturn:
        """There is none."""
        raise KitError(f"database {self.name!r} of this case is one connection (X1); it has no engine")

    def close(self) -> None:
        """Nothing to give back before the case ends."""

    async def aclose(self) -> None:
        """Nothing to give back before the case ends."""

    def finish(self) -> None:
        """Undoes the case."""
        if not self._conn.closed:
            self._conn.info.pop("rowlock_installation", None)
        if self._case.is_active:  # else the test ended the whole transaction
            self._case.rollback()


def make_databases(
    names: tuple[str, ...], given: Connection | Engines | None, clock: Clock, ending: ExitStack
) -> Mapping[str, Database]:
    """The databases of a case: what was given, and SQLite files for the rest. `ending` gives them back."""
    folder = Path(tempfile.gettempdir()) / f"rowlock-case-{secrets.token_hex(8)}"
    ending.callback(shutil.rmtree, folder, ignore_errors=True)
    named = _named(names, given)
    made: dict[str, Database] = {}
    for name in names:
        target = named.get(name)
        if target is None:
            db = CaseDatabase.file(name, folder / f"{len(made)}.db", clock=clock)
            ending.callback(db.close)
        elif isinstance(target, Engine | AsyncEngine):
            db = CaseDatabase(name, target, clock=clock)
            ending.callback(db.close)
            db.empty()
        else:
            db = ConnectionDatabase(name, target, clock=clock)
            ending.callback(db.finish)
        made[name] = db
    return MappingProxyType(hold_elsewhere(made))


def _named(
    names: tuple[str, ...], given: Connection | Engines | None
) -> Mapping[str, Connection | Engine | AsyncEngine]:
    if given is None:
        return {}
    there = ", ".join(names) or "none"
    if not isinstance(given, Mapping):
        name = names[0] if len(names) == 1 else "default"
        if name not in names:
            raise KitValueError(
                f"the application's databases are {there}; say which of them it is for, as engine={{name: engine}} (X1)"
            )
        return {name: given}
    if unknown := [name for name in given if name not in names]:
        raise KitValueError(f"engine names the database {unknown[0]!r}; there is {there} (X1)")
    return given


def _careless(dbapi_connection: Any, _record: Any) -> None:
    cursor = dbapi_connection.cursor()
    cursor.execute("PRAGMA synchronous = OFF")
    cursor.close()


def _empty(conn: Connection, _db: Database) -> None:
    for table in reversed(schema.metadata.sorted_tables):
        # Looked at first: a DELETE that finds nothing can lock a whole index where another case inserts.
        if table is not schema.meta and conn.execute(select(1).select_from(table).limit(1)).first() is not None:
            conn.execute(table.delete())
