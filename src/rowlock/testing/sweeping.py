"""Retention in a case: the worker's own sweeper, on the case's clock, in the case's thread (X1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rowlock.model.retention import SweepReport
from rowlock.runtime.events import Events
from rowlock.runtime.health import Health
from rowlock.runtime.outage import Guard, Outage
from rowlock.runtime.sweeper import Sweeper

if TYPE_CHECKING:
    from rowlock.testing.program import CaseProgram

TURN = "test case"
"""One for all sweeps of a case: one that a fault cut off must not keep the next one waiting."""


async def sweep(program: CaseProgram) -> SweepReport:
    """Every database in turn, each until nothing is due."""
    total = SweepReport()
    events, health = Events(program.hooks), Health()
    for name, db in program.databases.items():
        guard = Guard(f"sweeper@{name}", Outage(db, events), health.beat(f"sweeper@{name}"))
        sweeper = Sweeper(program, db, guard, events, blocking=_here, token=TURN, paced=False)
        while True:
            report = await sweeper.run_once()
            assert report is not None  # a case has its databases for itself
            total = total.plus(report)
            if report.finished or not (report.swept or report.skipped):
                break
    return total


async def _here(work: Callable[[], Any]) -> Any:
    return work()
