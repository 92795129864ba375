"""Counters and histograms of one application in this process: counted by its workers, read without a server (H2).

What is kept grows with the queues, jobs and outcomes that were seen, never with the number of operations (H3).
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""The upper bounds of both histograms' buckets, in seconds."""
MOST_SERIES = 1_000
"""So many pairs of queue and job are told apart; what comes after that is counted together."""
_PAIR = ("queue", "job")
OTHERS = ("(other)", "(other)")
INFINITE = float("inf")


class Bucket(NamedTuple):
    """How many observations were at most `le` seconds; the last bucket's `le` is infinite, and it has them all."""

    le: float
    total: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric. `value` is a counter's or gauge's number, or how often a histogram was observed."""

    labels: Mapping[str, str]
    value: float
    sum: float = 0.0
    """Of a histogram: the total of what was observed, in seconds."""
    buckets: tuple[Bucket, ...] = ()
    """Of a histogram: cumulative, in order of `le`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with all its samples, each of which has a value for every name in `labels`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    samples: tuple[Sample, ...]

    def value(self, **labels: str) -> float:
        """The sum over the samples that have these labels; 0 if there is none."""
        return sum(each.value for each in self.samples if labels.items() <= each.labels.items())


class Histogram:
    """Counts by bucket, and a sum. Written by one thread at a time."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one; a clock that went back counts as no time."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum += seconds

    def add(self, other: Histogram) -> None:
        """Adds what another one counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def sample(self, labels: Mapping[str, str]) -> Sample:
        """What was observed so far."""
        counts, total, buckets = list(self.counts), 0, list[Bucket]()
        for le, count in zip((*BOUNDS_S, INFINITE), counts, strict=True):
            total += count
            buckets.append(Bucket(le, total))
        return Sample(labels, total, self.sum, tuple(buckets))


class Series:
    """What is counted for one job in one queue."""

    __slots__ = ("blocked", "claimed", "labels", "latency", "lost", "rescued", "seconds", "settled")

    def __init__(self, queue: str, job: str) -> None:
        self.labels = {"queue": queue, "job": job}
        self.claimed = 0
        self.lost = 0
        self.rescued = 0
        self.settled: Counter[str] = Counter()
        """By outcome, as the event says it."""
        self.blocked: Counter[str] = Counter()
        """By category (S4)."""
        self.latency = Histogram()
        self.seconds = Histogram()

    def add(self, other: Series) -> None:
        """Adds what another one counted."""
        self.claimed += other.claimed
        self.lost += other.lost
        self.rescued += other.rescued
        self.settled.update(other.settled.copy())
        self.blocked.update(other.blocked.copy())
        self.latency.add(other.latency)
        self.seconds.add(other.seconds)


class Tally:
    """What one worker counts, on its loop, so that nobody waits for a lock; read from anywhere."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def series(self, queue: str, job: str) -> Series:
        """The counts of `job` in `queue`, made when first asked for."""
        found = self._series.get((queue, job))
        if found is None:
            pair = (queue, job) if len(self._series) < MOST_SERIES else OTHERS
            found = self._series.setdefault(pair, Series(*pair))
        return found

    def every(self) -> list[Series]:
        """All of them at this moment."""
        return list(self._series.copy().values())

    def add(self, other: Tally) -> None:
        """Adds what another one counted."""
        for series in other.every():
            self.series(*series.labels.values()).add(series)


class Meter:
    """One for an application: enqueues count on any thread, each worker in a tally of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def begin(self) -> Tally:
        """The tally of a worker that starts."""
        with self._lock:
            self._after_fork()
            self._live.append(tally := Tally())
        return tally

    def end(self, tally: Tally) -> None:
        """The worker has stopped: its counts stay, in one place with those before it (H3)."""
        with self._lock:
            if tally in self._live:
                self._live.remove(tally)
                self._past.add(tally)

    def enqueued(self, queue: str, job: str, created: int, met: int) -> None:
        """`created` records were written, and `met` ones found by their key. From any thread."""
        with self._lock:
            self._after_fork()
            pair = (queue, job) if (queue, job) in self._enqueued or len(self._enqueued) < MOST_SERIES else OTHERS
            counts = self._enqueued.setdefault(pair, [0, 0])
            counts[0] += created
            counts[1] += met

    def outage(self, database: str) -> None:
        """The database began to fail. From any thread."""
        with self._lock:
            self._outages[database] += 1

    def totals(self) -> tuple[int, int, dict[str, int]]:
        """Of all jobs and queues together: claimed, lost, settled by outcome."""
        settled: Counter[str] = Counter()
        with self._lock:
            every = self._every()
        for series in every:
            settled.update(series.settled)
        return sum(series.claimed for series in every), sum(series.lost for series in every), dict(settled)

    def read(self) -> dict[str, Metric]:
        """The metrics, by name. Those of a parent process are not a forked child's."""
        with self._lock:
            self._after_fork()
            enqueued = {pair: tuple(counts) for pair, counts in self._enqueued.items()}
            outages = dict(self._outages)
            every = self._every()
        pairs = [({"queue": queue, "job": job}, counts) for (queue, job), counts in enqueued.items()]
        found = [
            _counter("rowlock_enqueued", "Records written", _PAIR, ((labels, counts[0]) for labels, counts in pairs)),
            _counter("rowlock_duplicates", "Enqueues that met a record of their key (E4)", _PAIR,
                     ((labels, counts[1]) for labels, counts in pairs)),
            _counter("rowlock_claimed", "Attempts that were started", _PAIR, _of(every, lambda s: s.claimed)),
            _counter("rowlock_settled", "Attempts whose end was written", (*_PAIR, "outcome"), _by(every, "outcome")),
            _counter("rowlock_lost", "Attempts that lost their hold (L3)", _PAIR, _of(every, lambda s: s.lost)),
            _counter("rowlock_rescued", "Records of dead workers found by these (L7)", _PAIR,
                     _of(every, lambda s: s.rescued)),
            _counter("rowlock_blocked", "Records set aside (S4)", (*_PAIR, "category"), _by(every, "category")),
            _counter("rowlock_outages", "Times that a database began to fail (K2)", ("database",),
                     (({"database": name}, count) for name, count in outages.items())),
            Metric("rowlock_queue_latency_seconds", "histogram", "From due, or visible if that was later, to claimed",
                   _PAIR, tuple(s.latency.sample(s.labels) for s in every if s.claimed)),
            Metric("rowlock_handler_seconds", "histogram", "From a handler's start to its end", _PAIR,
                   tuple(s.seconds.sample(s.labels) for s in every if s.claimed)),
        ]  # fmt: skip
        return {metric.name: metric for metric in found}

    def _every(self) -> list[Series]:
        self._after_fork()
        together = Tally()
        for tally in (self._past, *self._live):
            together.add(tally)
        return together.every()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._past = Tally()
        self._live: list[Tally] = []
        self._enqueued: dict[tuple[str, str], list[int]] = {}
        self._outages: Counter[str] = Counter()


Values = Iterable[tuple[Mapping[str, str], float]]


def _counter(name: str, help: str, labels: tuple[str, ...], values: Values) -> Metric:
    return Metric(name, "counter", help, labels, tuple(Sample(each, value) for each, value in values))


def gauge(name: str, help: str, labels: tuple[str, ...], values: Values) -> Metric:
    """A metric of what is the case at this moment."""
    return Metric(name, "gauge", help, labels, tuple(Sample(each, value) for each, value in values))


def _of(every: Iterable[Series], value: Callable[[Series], int]) -> Values:
    return ((series.labels, value(series)) for series in every)


def _by(every: Iterable[Series], label: Literal["outcome", "category"]) -> Values:
    for series in every:
        counts = series.settled if label == "outcome" else series.blocked
        for value, count in counts.items():
            yield series.labels | {label: value}, count
