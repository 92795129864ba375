"""What the commands that change records share: the options, the question, the answer (O2)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from rowlock.cli import output
from rowlock.cli.failing import CommandError

if TYPE_CHECKING:
    from rowlock.store.change import Done

MOST = 2**63 - 1

One = Annotated[str | None, typer.Argument(metavar="ID", help="Only this record.", show_default=False)]
Most = Annotated[
    int | None, typer.Option("--limit", min=1, max=MOST, help="How many at most, the oldest.", show_default=False)
]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who does it, for the audit table.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say how many there are.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, where several are changed.")]


def named(first: str | None, second: str | None) -> tuple[int | None, str | None]:
    """The ID and the application of `[ID] [APP]`, where either may be left out. Raises CommandError."""
    if first is None:
        return None, second
    if second is None and ":" in first:
        return None, first
    number = int(first) if first.isascii() and first.isdigit() and len(first) <= len(str(MOST)) else 0
    if not 1 <= number <= MOST:
        raise CommandError(
            f"ID {first!r} is neither a record's id, which is a whole number from 1, nor an application, as "
            f"newsroom.main:app; write [ID] [APP]"
        )
    return number, second


def carry_out(change: Callable[[bool], Done], verb: str, participle: str, *, dry_run: bool, asks: bool) -> Done:
    """Call `change`, which takes whether to change nothing; ask before it changes some. Raises CommandError."""
    if asks and not dry_run:
        found = change(True)
        if not found.count:
            return found
        _ask(verb, participle, found.count)
    return change(dry_run)


def _ask(verb: str, done: str, count: int) -> None:
    """Where nobody can be asked it is refused."""
    if not sys.stdin.isatty():
        raise CommandError(f"{records(count)} would be {done}, and nobody can be asked here; give --yes, or --dry-run")
    typer.confirm(f"{verb} {records(count)}?", abort=True, err=True)


def tell(done: Done, participle: str, *, left: str, dry_run: bool, json: bool) -> None:
    """Print what became of it; `left` says what the records are still whose keys are taken."""
    if json:
        output.document({"count": done.count, "conflicts": done.conflicts, "dry_run": dry_run})
        return
    kept = f"; {done.conflicts} stay {left}, since active records have their keys" if done.conflicts else ""
    output.line(f"{records(done.count)} {'would be ' if dry_run else ''}{participle}{kept}")


def records(count: int) -> str:
    """So many records, in words."""
    return f"{count} record" if count == 1 else f"{count} records"
