"""The demo, as a user runs it: two real workers, a real SIGKILL, and a summary read from the tables."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from support.cli import Result, commands

pytest.importorskip("markdown_it")

from rowlock.demo import OWN, page, proof, reading

SOURCE = {
    "a.md": "# Alpha <b>\n\ntext",
    "b.md": "---\nx: 1\n---\n# Beta",
    "c/index.md": "## *Gamma*",
    "d.md": "no title",
}
PLAIN = """\
Rowlock's newsroom: # articles, two workers, one SQLite file
  # s  every article written in one transaction with its publish job; one rolled back
  # s  the payload of record # damaged by plain SQL
  # s  two workers ready: A (pid #) and B (pid #)
  # s  the source of record # failed twice; attempt # published it
  # s  X (pid #) killed with SIGKILL, in the middle of record #
  # s  X (pid #) took record # over, # s after the kill (the lease is # s)
  # s  # of # articles published
  # s  front page written; X drained on SIGTERM, exit code #

What the tables say
  ok      every article is published                # of #
  ok      each page is by the attempt that settled  # of # pages agree with their rows
  ok      none came before its time                 # with an embargo, # early
  ok      a source that failed twice was retried    record #: # attempts failed, # published
  ok      a damaged payload was set aside           record #: corrupt_payload, # attempts spent
  ok      X took over what X held                   record #: attempt # died, # published; takeover in # s
  ok      of a rollback nothing is left             # articles, # records
  ok      the front page is written                 record #: succeeded
  ok      nothing is left undone                    # succeeded, # blocked

The pages: HOME/pages/index.html
The tables: HOME/newsroom.db
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One performance with a few articles: its directory, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    for name, text in SOURCE.items():
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / name).write_text(text)
    command = [sys.executable, "-m", "rowlock", "demo", "--input", "in", "--output", "out"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return folder / "out", done.stdout


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Result]]:
    monkeypatch.chdir(tmp_path)
    with commands(capsys, tmp_path) as run:
        yield run


def masked(text: str, home: Path) -> str:
    """Without times, numbers and ids, and without which of the two workers it was."""
    text = re.sub(r"\b[AB](?= \(pid \d+\) (?:killed|took)| drained| took| held)", "X", text.replace(str(home), "HOME"))
    return re.sub(r"\d+(\.\d+)?", "#", re.sub(r"(?m)^ +(?=\d)", "  ", text))


def test_the_plain_form(played: tuple[Path, str]) -> None:
    home, printed = played
    assert masked(printed, home) == PLAIN
    assert "\x1b" not in printed


def test_the_pages_and_the_attempts_are_what_was_staged(played: tuple[Path, str]) -> None:
    home, _ = played
    names = sorted(path.name for path in (home / "pages").iterdir())
    assert names == ["a.html", "b.html", "c-index.html", "d.html", "index.html"]
    alpha = (home / "pages" / "a.html").read_text()
    assert "<h1>Alpha &lt;b&gt;</h1>" in alpha
    assert "<title>Alpha &lt;b&gt;</title>" in alpha
    with contextlib.closing(sqlite3.connect(home / "newsroom.db")) as tables:
        attempts = dict(tables.execute("SELECT key, attempt FROM rowlock_job WHERE state = 'succeeded'"))
    assert attempts == {"publish:1": 2, "publish:2": 3, "publish:3": 1, "publish:4": 1, "front page": 1}


TAMPERED = {
    "every article is published": "UPDATE rowlock_job SET state = 'dead' WHERE key = 'publish:4'",
    "each page is by the attempt that settled": "UPDATE rowlock_job SET attempt = 3 WHERE key = 'publish:1'",
    "none came before its time": "UPDATE rowlock_job SET run_at = '2999-01-01' WHERE headers IS NOT NULL",
    "a source that failed twice was retried": "DELETE FROM failure WHERE attempt = 1",
    "a damaged payload was set aside": "UPDATE rowlock_job SET attempt = 1 WHERE state = 'blocked'",
    "B took over what A held": "UPDATE accident SET claimed_by = j.claimed_by FROM rowlock_job j WHERE j.id = record",
    "of a rollback nothing is left": "UPDATE article SET slug = 'spiked' WHERE id = 4",
    "the front page is written": "UPDATE rowlock_job SET attempt = 2 WHERE job = 'news.front_page'",
    "nothing is left undone": "UPDATE rowlock_job SET state = 'dead', finished_at = created_at WHERE key = 'garbled'",
}


@pytest.fixture
def proven(played: tuple[Path, str], tmp_path: Path) -> Callable[[str], dict[str, bool]]:
    """`proven(sql)`: what is proven of the performance's tables after this statement."""
    home = tmp_path / "copy"
    shutil.copytree(played[0], home)

    def prove(statement: str) -> dict[str, bool]:
        engine = sa.create_engine(f"sqlite:///{home / 'newsroom.db'}")
        try:
            with engine.begin() as connection:
                connection.execute(sa.text("PRAGMA ignore_check_constraints = ON"))
                garbled = connection.scalar(sa.text("SELECT id FROM rowlock_job WHERE key = 'garbled'"))
                connection.execute(sa.text(statement))
            facts = proof.Facts(pages=home / "pages", garbled=garbled, killed="A", survivor="B", takeover_s=3.0)
            return {claim: held for held, claim, _ in proof.proofs(engine, facts)}
        finally:
            engine.dispose()

    return prove


@pytest.mark.parametrize(("claim", "statement"), TAMPERED.items(), ids=TAMPERED)
def test_a_claim_that_does_not_hold_is_seen(
    proven: Callable[[str], dict[str, bool]], claim: str, statement: str
) -> None:
    before, after = proven("SELECT 1"), proven(statement)
    assert list(before) == list(TAMPERED)
    assert all(before.values())
    assert not after[claim]


def test_a_page_that_was_changed_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    page.write(path, "A", page.rendered("# A"), record=7, attempt=2, note="")
    assert page.evidence(path) == (7, 2, True)
    path.write_text(path.read_text().replace("<h1>A", "<h1>B"))
    assert page.evidence(path) == (7, 2, False)
    path.write_text("something else")
    assert page.evidence(path) is None
    assert page.evidence(tmp_path / "nothing.html") is None


def test_reading_takes_any_folder(tmp_path: Path) -> None:
    for name in (".venv/x.md", "node_modules/y.md", "A b.md", "sub/A-b.md", "a-b.md", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "binary.md").write_bytes(b"# \xff\x00 `code` and [a link](x)")
    (tmp_path / "large.md").write_bytes(b"x" * (reading.MOST_BYTES + 1))
    found, notes = reading.stories([tmp_path])
    assert {story.slug: story.title for story in found} == {
        "a-b": "A b",
        "a-b-2": "a-b",
        "binary": "\ufffd\ufffd code and a link",
        "sub-a-b": "A-b",
    }
    assert notes == [f"{tmp_path / 'large.md'} is left out: it is larger than 1 MiB"]


def test_the_package_has_a_handful_of_its_own() -> None:
    found, notes = reading.stories([OWN])
    assert len(found) >= 5
    assert notes == []
    assert all(story.body.startswith("# ") for story in found)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--input", "nowhere"], "--input nowhere: there is no such file or folder"),
        (["--input", "empty"], "--input empty: no Markdown file is in it"),
        (["--output", "full"], "has something else in it (mine.txt)"),
        (["--output", "full/mine.txt"], "is no directory"),
    ],
)
def test_what_it_can_not_work_with_is_one_sentence(
    cli: Callable[..., Result], tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert says in cli("demo", *arguments).sentence
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_without_a_markdown_library_it_says_what_to_install(
    cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'rowlock[demo]'" in cli("demo").sentence
