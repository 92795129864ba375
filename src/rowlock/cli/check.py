"""`rowlock check`: the static pre-flight, for CI (J6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from rowlock.cli import output
from rowlock.cli.failing import sentences
from rowlock.cli.options import Application, ApplicationOption

if TYPE_CHECKING:
    from rowlock.app import App
    from rowlock.findings import Finding


@sentences
def check(app: Application = None, app_option: ApplicationOption = None) -> None:
    """Validate the application without touching its databases, for CI.

    It is imported, and everything that a start would refuse is reported: settings, limits, names, databases, leases,
    pool sizes, groups that no application includes. One line a finding, `file:line: code message`, on stdout; exit
    code 1 if there is one. What is no reason to refuse a start (a rejected override of retention, a table that
    has no index for it) is said on stderr.

    \b
    Example:
      rowlock check newsroom.main:app
    """
    found = list(_findings(app, app_option))
    for finding in found:
        output.line(str(finding))
    if found:
        raise typer.Exit(1)


def _findings(argument: str | None, option: str | None) -> Iterator[Finding]:
    from rowlock.cli import lookup
    from rowlock.findings import Finding

    try:
        app = lookup.application(argument, option)
    except lookup.ImportFailure as failure:
        yield _shown(Finding(failure.file, failure.line, failure.code, str(failure)))
        return
    found = [*app.findings(), *_of_mode(app)]
    for finding in found:
        yield _shown(finding)
    if not found:
        for sentence in (*app.retention.violations(), *app.lifecycles.without_index()):
            output.note(f"retention: {sentence}")
        names = {job.name for job in app.jobs.values()}
        output.note(f"nothing found: {_many(len(names), 'job')}, {_many(len(app.databases), 'database')}")


def _of_mode(app: App) -> Iterator[Finding]:
    from rowlock.errors import StartRefused
    from rowlock.findings import Finding
    from rowlock.runtime.start import mode_of

    try:
        if any(job.has_handler for job in app.jobs.values()) or app.settings.runtime.mode is not None:
            mode_of(app, None)  # a program that only enqueues is not run by this command
    except StartRefused as refused:
        yield Finding(app.settings.origin, 1, "mode", str(refused))


def _shown(finding: Finding) -> Finding:
    from rowlock.cli.lookup import relative

    return finding._replace(file=relative(finding.file), message=" ".join(finding.message.split()))


def _many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
