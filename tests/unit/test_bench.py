"""`make bench` measures all that it says, goes on where it was, and finds Rowlock within ten times its bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BARE = Path(os.environ.get("ROWLOCK_BARE_LOOPS", ROOT.parent / "shared" / "bench" / "drivers"))
SMALL = (
    "--records",
    "400",
    "--rounds",
    "1",
    "--singles",
    "40",
    "--many",
    "1000",
    "--history",
    "5000",
    "--backlog",
    "1000",
)
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
MANY = {"sqlite": 0.35}


def bench(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", "--out", str(folder / "out.jsonl"), *arguments],
        cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def within_ten_times_the_bounds(found: list[dict[str, Any]]) -> None:
    for row in found:
        if row["part"] == "drain":
            assert row["rate"] > 100, row
            assert row.get("ratio", 1.0) > 0.5 / 10, row
        elif row["of"] == {"what": "many"}:
            assert row["ratio"] > MANY.get(row["database"], 0.5) / 10, row
        elif row["of"] in ({"what": "sync"}, {"what": "async"}):
            assert row["times"] < 3 * 10, row
        elif row["part"] == "claims":
            assert row["full_ms"] < 10 * max(row["empty_ms"], 1.0), row


def test_one_command_measures_everything_and_resumes(tmp_path: Path) -> None:
    first = bench(tmp_path, "--quick", *SMALL, "--database", "sqlite")
    assert first.returncode == 0, first.stderr
    found = rows(tmp_path)
    assert [(row["part"], row["of"]) for row in found] == [
        ("drain", {"slots": 100, "loop": "asyncio"}),
        *(("enqueue", {"what": name}) for name in ("sync", "async", "keyed", "many")),
        *(("claims", {"what": name}) for name in ("enqueue", "claim", "look")),
        ("schedules", {"what": "idle"}),
        ("sweep", found[-1]["of"]),
    ]
    assert len(first.stdout.splitlines()) == len(found)
    assert ("ratio" in found[0]) is BARE.is_dir()
    within_ten_times_the_bounds(found)
    kept = [line for line in (tmp_path / "out.jsonl").read_text().splitlines(keepends=True) if '"look"' not in line]
    (tmp_path / "out.jsonl").write_text("".join(kept) + '{"database": "sql')
    again = bench(tmp_path, "--quick", "--resume", *SMALL, "--database", "sqlite", "claims", "enqueue")
    assert again.returncode == 0, again.stderr
    assert [line.split()[:3] for line in again.stdout.splitlines()] == [
        ["sqlite", "claims", "enqueue"],
        ["sqlite", "claims", "claim"],
        ["sqlite", "claims", "look"],
    ]


def test_a_server_that_is_missing_is_left_out(tmp_path: Path) -> None:
    two = ("--database", "postgresql", "--database", "sqlite")
    done = bench(tmp_path, "--quick", *SMALL, *two, "enqueue", ROWLOCK_TEST_POSTGRES_URL=NOWHERE)
    assert done.returncode == 0, done.stderr
    assert "postgresql: left out, OperationalError" in done.stderr
    assert {row["database"] for row in rows(tmp_path)} == {"sqlite"}
    alone = bench(tmp_path, "--quick", *SMALL, *two[:2], "enqueue", ROWLOCK_TEST_POSTGRES_URL=NOWHERE)
    assert alone.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_servers_are_within_ten_times_the_bounds_too(tmp_path: Path, kind: str) -> None:
    done = bench(tmp_path, *SMALL, "--database", kind)
    if done.returncode:
        pytest.skip(done.stderr)
    found = rows(tmp_path)
    assert {row["part"] for row in found} == {"drain", "enqueue", "claims"}
    within_ten_times_the_bounds(found)
