"""docs/clauses.md explains every code that a message names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = r"[A-Z]\d{1,2}"


def test_every_code_in_the_source_and_the_docs_is_explained() -> None:
    # contract: Z1
    page = ROOT / "docs" / "clauses.md"
    explained = set(re.findall(rf"^\| ({CODE}) \|", page.read_text(), re.MULTILINE))
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    cited = {
        code
        for file in files
        for group in re.findall(rf"\(({CODE}(?:, {CODE})*)\)", file.read_text())
        for code in re.findall(CODE, group)
        if not re.match(r"C\d\d", code)  # field reports, in comments
    }
    assert cited, "no message cites a clause"
    assert cited <= explained
