"""What is the case in a process's workers at this moment, as metrics (H2)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rowlock.runtime.metrics import Metric, gauge

if TYPE_CHECKING:
    from rowlock.runtime.claimer import Claimer
    from rowlock.runtime.worker import Worker


def gauges(workers: Iterable[Worker]) -> dict[str, Metric]:
    """Slots and attempts of each queue, settlements that wait, and the state of each loop."""
    workers = list(workers)
    slots, running, waiting = Counter[str](), Counter[str](), Counter[str]()
    failures, silent = Counter[str](), dict[str, float]()
    now = time.time()
    for worker in workers:
        for claimer in _claimers(worker):
            slots[claimer.queue] += claimer.slots
            running[claimer.queue] += len(claimer.running)
        for pipeline in worker.pipelines:
            waiting[pipeline.db.name] += pipeline.settler.backlog
        for beat in tuple(worker.health.beats.values()):
            failures[beat.name] += beat.failures
            if beat.at is not None:
                silent[beat.name] = max(silent.get(beat.name, 0.0), now - beat.at)
    found = [
        gauge("rowlock_slots", "Attempts that may run at once", ("queue",), _each("queue", slots)),
        gauge("rowlock_running", "Attempts whose handler has not ended", ("queue",), _each("queue", running)),
        gauge("rowlock_settling", "Ended attempts that are not written yet", ("database",), _each("database", waiting)),
        gauge("rowlock_loop_failures", "Failures of each loop since its worker started", ("loop",),
              _each("loop", failures)),
        gauge("rowlock_loop_silent_seconds", "Since each loop's last beat", ("loop",), _each("loop", silent)),
    ]  # fmt: skip
    return {metric.name: metric for metric in found}


def _claimers(worker: Worker) -> Iterator[Claimer]:
    for pipeline in worker.pipelines:
        yield from pipeline.claimers


def _each(label: str, values: dict[str, float] | Counter[str]) -> Iterator[tuple[dict[str, str], float]]:
    return (({label: name}, value) for name, value in values.items())
