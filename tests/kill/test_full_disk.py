"""A disk that is full for a while: the worker survives, says it once, and goes on when there is room (K2)."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from rowlock import DatabaseUnavailable
from support.databases import SQLite
from support.story import Table, complaints, logged, wait_logged
from support.waiting import wait_until

JOBS = """
from pathlib import Path

@dataclass
class Input:
    text: str

@jobs.job(name="work", max_attempts=1, timeout=30, lease=60)
async def work(input: Input) -> None:
    while not Path("go").exists():
        await asyncio.sleep(0.01)
"""


class SmallDisk:
    """A file system of a few megabytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """To the last byte."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 9, 1):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "rowlock-test", str(folder)], capture_output=True, check=False
    )
    if mounting.returncode:
        pytest.skip(f"K2: a disk of its own takes the right to mount one: {mounting.stderr.decode().strip()}")
    yield SmallDisk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


# contract: K2, E8
@pytest.mark.databases(
    "sqlite", reason="K2: a server's disk is the server's; its answers are in tests/contract/test_worker.py"
)
def test_a_disk_that_is_full_for_a_while(kill_kit, small_disk: SmallDisk, tmp_path: Path, dialect: str) -> None:
    kit = kill_kit(JOBS, SQLite(small_disk.folder / "test.db"), job={"poll_ms": 50, "workers": 20})
    module = kit.module
    engine = sa.create_engine(kit.url.replace("sqlite:", "sqlite+pysqlite:"), poolclass=sa.NullPool)
    table = Table(engine)
    module.work.enqueue_many(module.Input("x") for _ in range(60))
    worker = kit.start().ready()
    table.wait(lambda rows: sum(row.state == "running" for row in rows) == 20)
    with engine.connect() as reader:  # as long as somebody reads an earlier state, the log of writes must grow
        reader.execute(sa.text("SELECT count(*) FROM rowlock_job")).all()
        small_disk.fill()
        with pytest.raises(DatabaseUnavailable):
            while True:
                module.work.enqueue(module.Input("y" * 4_000))
        before = table.states()
        (tmp_path / "go").touch()
        wait_logged(worker, "WARNING", " fails (")
        assert before["running"] == 20
        assert set(table.states()) <= {"running", "pending", "succeeded"}
        assert table.states().total() == before.total()
        assert worker.running
    small_disk.free()
    table.wait(lambda rows: all(row.state == "succeeded" for row in rows), story=kit.story)
    assert {row.attempt for row in table.rows()} == {1}
    assert len(table.rows()) == before.total()
    wait_logged(worker, "WARNING", "works again")
    wait_until(lambda: len(logged([worker], "WARNING", " fails (")) == len(logged([worker], "WARNING", "works again")))
    assert len(logged([worker], "WARNING", " fails (")) == 1
    assert not complaints([worker])
    module.work.enqueue(module.Input("z"))
    worker.term()
    assert worker.wait() == 0
    engine.dispose()
