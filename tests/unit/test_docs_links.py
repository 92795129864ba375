"""Links between the pages lead somewhere: the file is there, and so is the heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def prose(page: Path) -> str:
    return re.sub(r"^(```+).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    lost: list[str] = []
    for target, anchor in LINK.findall(prose(page)):
        there = (page.parent / target).resolve() if target else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            lost.append(f"{target}#{anchor}")
    assert not lost


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    named = {target for target, _ in LINK.findall(index.read_text(encoding="utf-8"))}
    assert named == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
