"""docs/how-it-works.md shows the SQL that the code builds."""

from __future__ import annotations

import re
from pathlib import Path

from rowlock.model.outcome import State
from rowlock.model.table import JOBS
from rowlock.store import settle
from rowlock.store.dialects import postgresql_sql as sql
from rowlock.store.dialects.postgresql import PostgreSQL

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works.md"


def test_the_statements_on_the_page_are_those_of_the_code() -> None:
    dialect, now = PostgreSQL(), "clock_timestamp()"
    success = settle._Kind(State.SUCCEEDED, False, False, False, False, False)
    extend = f'"lease" = {dialect.plus_ms("{now}", "{lease_ms}")}'
    assert re.findall(r"```sql\n(.*?)\n```", PAGE.read_text(), re.DOTALL) == [
        sql.claim(JOBS, 128, f"(SELECT {now})", now).strip(),
        sql.fenced_update(JOBS, extend, now, (), False).strip(),
        sql.fenced_update(JOBS, settle._assignments(dialect, JOBS, success), now, (), False).strip(),
    ]
