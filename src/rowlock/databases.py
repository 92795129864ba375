"""The databases of an application: given in code, in the settings, or partly in each (M1)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock.errors import DeclarationError, DeclarationTypeError, SettingsError
from rowlock.model.limits import shown
from rowlock.model.policy import database_name
from rowlock.model.settings import DatabaseSettings, Settings
from rowlock.store.database import Database
from rowlock.store.own import hold_elsewhere

Target: TypeAlias = str | URL | Engine | AsyncEngine


class Configured:
    """Which databases there are. A URL that the settings refer to is looked up on first use, not on import."""

    def __init__(self, default: Target | None, others: Mapping[str, Target] | None, settings: Settings) -> None:
        self._settings = settings
        self._targets = _in_code(default, others)
        for name, configured in settings.database.items():
            _refuse_twice_or_never(name, in_code=name in self._targets, configured=configured, origin=settings.origin)
        self._lock = threading.Lock()
        self._made: Mapping[str, Database] | None = None
        if not settings.database:
            self._made = self._make()  # all in code: what is wrong with a URL is said where it stands

    @property
    def databases(self) -> Mapping[str, Database]:
        """By name. Raises SettingsError for a secret that is not there, UnsupportedDatabase."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    @property
    def names(self) -> tuple[str, ...]:
        """The names, without looking up what a URL refers to."""
        return (*self._targets, *(name for name in self._settings.database if name not in self._targets))

    def one(self, name: str | None) -> Database:
        """The database of this name; without one the only one there is, or the one named "default"."""
        databases = self.databases
        if name is None:
            name = next(iter(databases)) if len(databases) == 1 else "default"
        if name not in databases:
            there = ", ".join(map(repr, databases)) or "none"
            raise DeclarationError(f"no database {shown(name)} is configured (J5); there is {there}")
        return databases[name]

    def swap(self, databases: Mapping[str, Database] | None) -> Mapping[str, Database] | None:
        """Put others in the place of the configured ones, and answer those; None if they were never made."""
        with self._lock:
            old, self._made = self._made, databases
            return old

    def close(self) -> None:
        """Give back the connections of this process."""
        for db in (self._made or {}).values():
            db.close()

    async def aclose(self) -> None:
        """The same with those of the running loop."""
        for db in (self._made or {}).values():
            await db.aclose()

    def _make(self) -> Mapping[str, Database]:
        return MappingProxyType(hold_elsewhere({name: self._database(name) for name in self.names}))

    def _database(self, name: str) -> Database:
        configured = self._settings.database.get(name) or DatabaseSettings()
        target = self._targets.get(name)
        if target is None:
            assert configured.url is not None
            target = configured.url.resolve()
        wait_ms, pooler = self._settings.job.enqueue_wait_ms, configured.pooler is not None
        db = Database(name, target, pool=configured.pool, wait_ms=wait_ms, pooler=pooler)
        if pooler:
            _refuse_pooler(db, f"{self._settings.origin}: database.{name}.pooler")
        return db


def _in_code(default: Target | None, others: Mapping[str, Target] | None) -> dict[str, Target]:
    targets = dict(others or {})
    if default is not None:
        if "default" in targets:
            raise DeclarationError(
                'App has a database as its first argument and a "default" among databases= (J5); give it once'
            )
        targets = {"default": default, **targets}
    for name, target in targets.items():
        database_name(name, who="App: databases")
        if not isinstance(target, str | URL | Engine | AsyncEngine):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
            raise DeclarationTypeError(
                f"App: the database {name!r} is {shown(target)} (J5); give a URL, an Engine or an AsyncEngine"
            )
    return targets


def _refuse_pooler(db: Database, where: str) -> None:
    if not db.dialect.has_transaction_poolers:
        raise SettingsError(
            f'{where} is "transaction", and {db.dialect.label} is not worked with through a transaction pooler (C25); '
            f"leave it out, and give the database's own address"
        )
    if isinstance(db.target, Engine | AsyncEngine) and db.url.get_driver_name() != "psycopg":
        raise SettingsError(
            f'{where} is "transaction", and the engine that App(…) gives has the driver {db.url.get_driver_name()!r}, '
            f"whose statements need a session of their own (C25); give a URL, or an engine with psycopg"
        )


def _refuse_twice_or_never(name: str, *, in_code: bool, configured: DatabaseSettings, origin: str) -> None:
    if in_code and configured.url is not None:
        raise SettingsError(
            f"{origin}: database.{name}.url is given, and App(…) gives that database too (M1); give it in one place"
        )
    if not in_code and configured.url is None:
        raise SettingsError(f"{origin}: database.{name}.url is missing, and App(…) does not give it (M1); give the URL")
