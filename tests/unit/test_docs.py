"""Every code block of README.md and docs/ runs; the markers that a page may use are in support/pages.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import pages

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])


def run(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The page in a process of its own, so that its applications and threads end with it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "support.pages", str(page)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    done = run(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


GOOD = """\
# A page
<!-- docs: file shop/config.py -->
```python
price = 3
```
```python
import asyncio
from shop.config import price
await asyncio.sleep(0)
```
Text between.
```python
assert price == 3
```
```console
$ test -f shop/config.py && \\
    echo yes
yes
```
<!-- docs: exit 3 -->
```shell
$ exit 3
```
<!-- docs: until ready -->
```console
$ python -uc "import signal; signal.signal(15, lambda *_: exit(0)); print('ready'); signal.pause()"
```
<!-- docs: raises LookupError -->
```python
{}[1]
```
<!-- docs: skip it needs a server -->
```python
raise SystemExit(1)
```
```json
{not: run}
```
"""


def test_a_good_page_passes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(GOOD)
    done = run(page, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "page.md:34: skipped: it needs a server" in done.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\nx = 1\nassert x == 2\n```\n", 'page.md", line 3'),
        ("```console\n$ false\n```\n", "`false` ended with 1, not 0"),
        ("<!-- docs: raises ValueError -->\n```python\npass\n```\n", "without the ValueError"),
        ("<!-- docs: until ready -->\n```console\n$ true\n```\n", "without printing 'ready'"),
        ("<!-- docs: perhaps -->\n```python\n```\n", "not a marker"),
    ],
)
def test_a_bad_page_fails_and_says_where(tmp_path: Path, text: str, says: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    done = run(page, tmp_path)
    assert done.returncode != 0
    assert says in done.stderr


def test_blocks_in_lists_and_longer_fences_are_read() -> None:
    text = "- item\n  ```python\n  if 1:\n      pass\n  ```\n````console\n$ a\n```\n$ b\n````\n"
    first, second = pages.blocks(text)
    assert first.code == "if 1:\n    pass\n"
    assert pages.commands(second.code) == ["a", "b"]
