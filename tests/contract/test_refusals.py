"""A database that is there and lets nobody in is not one that is not there (C24)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.engine import URL

from rowlock import App, DatabaseUnavailable, LoginRefused
from rowlock.runtime.start import prepare
from support.databases import Database
from support.urls import plain

CHANGES = [{"username": "rl_nobody", "password": "S3CR3T"}, {"database": "rl_nowhere"}]


def refusing(database: Database, change: dict[str, Any]) -> str:
    return plain(database.parsed.set(**change))


@pytest.mark.databases("postgresql", "mariadb", reason="C24: SQLite has no login; a file's rights do not stop root")
@pytest.mark.parametrize("change", CHANGES, ids=["user", "database"])
async def test_each_driver_tells_it_from_an_outage(
    app_factory: Callable[..., App], database: Database, change: dict[str, Any]
) -> None:
    # field report C24
    app = app_factory(migrate=False, url=refusing(database, change))
    with pytest.raises(LoginRefused) as sync:
        app.migrate()
    try:
        with pytest.raises(LoginRefused) as on_loop:
            await app.amigrate()
        with pytest.raises(LoginRefused):
            await prepare(app, wait=True)
    finally:
        await app.aclose()
    for refused in (sync, on_loop):
        assert "look at" in str(refused.value)
        assert "S3CR3T" not in str(refused.value)


@pytest.mark.databases("postgresql", "mariadb", reason="C24: SQLite has no server")
def test_a_server_that_is_not_there_is_an_outage(app_factory: Callable[..., App], database: Database) -> None:
    # field report C24
    url: URL = database.parsed.set(host="127.0.0.1", port=1, query={})
    app = app_factory(migrate=False, url=plain(url))
    with pytest.raises(DatabaseUnavailable):
        app.migrate()
