"""A bulk replay that is killed in the middle: what it did stays done, the rest waits for the next one (O2)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rowlock import App, Done
from rowlock.store import change
from support.databases import Database
from support.jobtable import JobTable
from support.story import mostly_slow
from support.waiting import wait_until

PROGRAM = """
import os
from rowlock import App
app = App(os.environ["NEWS_URL"])
"""


@mostly_slow("postgresql")
def test_the_rest_stays_dead_and_the_next_one_completes_it(tmp_path: Path, database: Database) -> None:
    # contract: O2, O6
    # case: C85
    (tmp_path / "news.py").write_text(PROGRAM)
    with JobTable(database, real_time=True) as table:
        now = table.now()
        ids = table.add(6_000, state="dead", error_category="failed", finished_at=now)
        others = [*table.add(5), *table.add(5, state="succeeded", finished_at=now)]
        before = table.rows(others)
        app = App(database.url)

        def count() -> int:
            return sum(entry.count for entry in app.audit.list().items)

        command = [sys.executable, "-m", "rowlock", "records", "replay", "--app", "news:app", "--job", "a", "-y"]
        replay = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "NEWS_URL": database.url})
        wait_until(lambda: count() >= 2 * change.BATCH or replay.poll() is not None)
        replay.kill()
        replay.wait()
        states = [row.state for row in table.rows(ids)]
        done = states.count("pending")
        assert 0 < done < 6_000
        assert states == ["pending"] * done + ["dead"] * (6_000 - done)  # the oldest first
        assert done == count()
        assert app.records.replay(state="dead") == Done(6_000 - done, 0)
        assert {row.state for row in table.rows(ids)} == {"pending"}
        assert table.rows(others) == before
        app.close()
