"""An article's page, and the evidence on it: which record and which attempt wrote it, and a digest of what it says."""

from __future__ import annotations

import hashlib
import html
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

_MARK = re.compile(r'<meta name="rowlock" content="record=(\d+) attempt=(\d+) sha256=([0-9a-f]{64})">')
_BODY = re.compile(r"<article>\n(.*)</article>", re.DOTALL)
_STYLE = """
body { font: 17px/1.6 Georgia, serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem; color: #222; }
h1, h2, h3 { line-height: 1.2; } a { color: #8a3324; }
pre { background: #f6f4f0; padding: .8rem; overflow-x: auto; font-size: 14px; line-height: 1.4; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
table { border-collapse: collapse; }
td, th { border-bottom: 1px solid #ddd; padding: .3rem .8rem .3rem 0; text-align: left; }
footer { margin-top: 3rem; border-top: 1px solid #ddd; color: #777; font-size: 14px; }
"""


class Evidence(NamedTuple):
    """What a page says about its origin. `whole` is whether its text has the digest that stands on it."""

    record: int
    attempt: int
    whole: bool


def rendered(markdown: str) -> str:
    """The HTML of an article's Markdown. HTML in it is escaped: an article is text that somebody sent."""
    return MarkdownIt("js-default").render(markdown)


def write(path: Path, title: str, body: str, *, record: int, attempt: int, note: str) -> None:
    """Write a page as a whole or not at all; a second run replaces it, which is what makes the job repeatable."""
    digest = hashlib.sha256(body.encode()).hexdigest()
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n'
        f'<meta name="rowlock" content="record={record} attempt={attempt} sha256={digest}">\n'
        f"<style>{_STYLE}</style></head><body>\n<article>\n{body}</article>\n"
        f"<footer><p>{html.escape(note)} Record {record}, attempt {attempt}.</p></footer>\n</body></html>\n"
    )
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    Path(temporary).replace(path)


def evidence(path: Path) -> Evidence | None:
    """What the page says; None if there is none, or no evidence on it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    mark, body = _MARK.search(text), _BODY.search(text)
    if mark is None or body is None:
        return None
    digest = hashlib.sha256(body[1].encode()).hexdigest()
    return Evidence(int(mark[1]), int(mark[2]), digest == mark[3])
