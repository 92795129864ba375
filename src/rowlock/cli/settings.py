"""`rowlock settings`: what holds, and within which bounds (M1, M2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from rowlock.cli import output
from rowlock.cli.failing import sentences
from rowlock.cli.options import Application, ApplicationOption, Json
from rowlock.model.settings_read import Choice, Whole

if TYPE_CHECKING:
    from rowlock.app import App


@sentences
def settings(app: Application = None, app_option: ApplicationOption = None, json: Json = False) -> None:
    """Show the effective settings, where each is from, and its bounds. Passwords are masked.

    \b
    Examples:
      rowlock settings newsroom.main:app
      rowlock settings newsroom.main:app --json
    """
    from rowlock.cli import lookup

    program = lookup.application(app, app_option)
    effective = program.settings.as_effective()
    for name, url in _in_code(program).items():
        effective["database"].setdefault(name, {})["url"] = url
    if json:
        output.document(
            {
                "origin": program.settings.origin,
                "settings": effective,
                "given": sorted(program.settings.paths),
                "bounds": {path: _as_json(bound) for path, bound in program.settings.bounds().items()},
            }
        )
        return
    rows = [
        (path, _text(value), _origin(program, path), bound)
        for path, value, bound in _all(effective, program.settings.bounds())
    ]
    output.table(("setting", "value", "from", "bounds"), rows)


def _in_code(program: App) -> dict[str, str]:
    from rowlock.model.settings_url import masked

    return {
        name: masked(db.url.render_as_string(hide_password=True))
        for name, db in program.databases.items()
        if not program.settings.given(f"database.{name}.url")
    }


def _origin(program: App, path: str) -> str:
    if program.settings.given(path):
        return program.settings.origin
    return "code" if path.startswith("database.") and path.endswith(".url") else "default"


def _all(effective: Mapping[str, Any], bounds: Mapping[str, Whole | Choice]) -> Iterator[tuple[str, object, str]]:
    """Every setting: those that hold, then those that have no value and no default."""
    seen: set[str] = set()
    for path, value, pattern in _flat(effective, "", ""):
        seen.add(pattern)
        yield path, value, _bound(bounds.get(pattern))
    for pattern, bound in bounds.items():
        if pattern not in seen and "*" not in pattern:
            yield pattern, None, _bound(bound)


def _flat(values: Mapping[str, Any], path: str, pattern: str) -> Iterator[tuple[str, object, str]]:
    """Each value with its path, and with the path in which `*` stands for the user's own names."""
    for name, value in values.items():
        inner = f"{path}.{name}" if path else name
        generic = f"{pattern}.{'*' if pattern in _OWN_NAMES else name}" if pattern else name
        if isinstance(value, Mapping) and "env" not in value and "file" not in value:
            yield from _flat(cast("Mapping[str, Any]", value), inner, generic)
        else:
            yield inner, value, generic


_OWN_NAMES = ("database", "job.queues", "retention.overrides")


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return " ".join(f"{name} {text}" for name, text in cast("Mapping[str, str]", value).items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bound(bound: Whole | Choice | None) -> str:
    match bound:
        case None:
            return ""
        case Whole(low, high):
            return f"{low:,} to {high:,}"
        case Choice(words):
            return " or ".join(words)


def _as_json(bound: Whole | Choice) -> object:
    return {"words": bound.words} if isinstance(bound, Choice) else {"low": bound.low, "high": bound.high}
