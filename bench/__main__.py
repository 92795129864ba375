"""`python -m bench`: everything that the performance page says, measured again here."""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from bench import claims, drain, enqueue, schedules, sweep
from bench.places import Place, place
from bench.results import Results

PARTS = ("drain", "enqueue", "claims", "schedules", "sweep")
SCHEDULES = 1_000
KINDS = ("sqlite", "postgresql", "mariadb")
LOOPS = ("asyncio", "uvloop")
SLOTS = (10, 100, 256)


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    drivers = options.bare if options.bare.is_dir() else None
    if drivers is None and "drain" in (options.parts or PARTS):
        print("no bare loops (--bare, or ROWLOCK_BARE_LOOPS): drains are printed without a ratio", file=sys.stderr)
    results = Results(options.out, resume=options.resume)
    measured = False
    for kind in options.database or KINDS:
        try:
            with place(kind) as here:
                for part in options.parts or PARTS:
                    PART[part](here, options, drivers, results)
                measured = True
        except (OSError, SQLAlchemyError, ImportError) as error:
            print(f"{kind}: left out, {type(error).__name__}: {_first_line(error)}", file=sys.stderr)
    return 0 if measured else 1


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"{', '.join(PARTS)}; all if none is named")
    parser.add_argument("--backlog", type=int, default=20_000, help="due rows of one sweep")
    parser.add_argument("--quick", action="store_true", help="a minute's look: small numbers, one round, asyncio alone")
    parser.add_argument("--resume", action="store_true", help="leave out what stands in the results' file already")
    parser.add_argument("--database", action="append", choices=KINDS)
    parser.add_argument("--records", type=int, help="of one drain: 20,000")
    parser.add_argument("--rounds", type=int, help="bare and Rowlock in turn, 3; the medians count")
    parser.add_argument("--slots", type=int, action="append", help="10, 100 and 256")
    parser.add_argument("--loop", action="append", choices=LOOPS)
    parser.add_argument("--singles", type=int, help="single enqueues of each kind: 1,000")
    parser.add_argument("--many", type=int, help="of one enqueue_many: 10,000")
    parser.add_argument("--history", type=int, help="finished rows for the claims part: 1,000,000")
    bare = os.environ.get("ROWLOCK_BARE_LOOPS", "../shared/bench/drivers")
    parser.add_argument("--bare", type=Path, default=Path(bare), help="the folder of the bare loops' drivers")
    parser.add_argument("--out", type=Path, default=Path("bench-results.jsonl"))
    options = parser.parse_args(arguments)
    full, quick = (20_000, 3, 1_000, 10_000, 1_000_000), (3_000, 1, 100, 2_000, 20_000)
    names = ("records", "rounds", "singles", "many", "history")
    for name, number in zip(names, quick if options.quick else full, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, number)
    options.slots = options.slots or ([100] if options.quick else list(SLOTS))
    options.loop = options.loop or (["asyncio"] if options.quick else list(LOOPS))
    return options


def _drain(here: Place, options: argparse.Namespace, drivers: Path | None, results: Results) -> None:
    for loop in options.loop:
        if loop == "uvloop" and importlib.util.find_spec("uvloop") is None:
            print("uvloop is not installed: its drains are left out (pip install 'rowlock[fast]')", file=sys.stderr)
            continue
        for slots in options.slots:
            what = {"slots": slots, "loop": loop}
            if results.has(here.kind, "drain", what):
                continue
            bare: list[drain.Run] = []
            ours: list[drain.Run] = []
            for _ in range(options.rounds):
                if drivers is not None:
                    bare.append(drain.bare(here, drivers.resolve(), records=options.records, slots=slots, loop=loop))
                ours.append(drain.rowlock(here, records=options.records, slots=slots, loop=loop))
            row: dict[str, object] = {"records": options.records, **_medians("", ours)}
            text = f"{slots:>3} slots {loop:<7} {row['rate']:>9,.0f}/s"
            if bare:
                row |= _medians("bare_", bare)
                row["ratio"] = statistics.median(run.rate for run in ours) / statistics.median(r.rate for r in bare)
                text += f"   bare {row['bare_rate']:>9,.0f}/s   ratio {row['ratio']:.2f}"
            if row["cpu_us"] is not None:
                text += f"   cpu {row['cpu_us']:.1f} us a record" + (f", bare {row['bare_cpu_us']:.1f}" if bare else "")
            results.add(here.kind, "drain", what, row, text)


def _medians(prefix: str, runs: list[drain.Run]) -> dict[str, float | None]:
    cpu = [run.cpu_us for run in runs if run.cpu_us is not None]
    return {
        f"{prefix}rate": statistics.median(run.rate for run in runs),
        f"{prefix}cpu_us": statistics.median(cpu) if cpu else None,
    }


def _enqueue(here: Place, options: argparse.Namespace, _drivers: Path | None, results: Results) -> None:
    if all(results.has(here.kind, "enqueue", {"what": name}) for name in ("sync", "async", "keyed", "many")):
        return
    cost = enqueue.measure(here, singles=options.singles, many=options.many)
    for name in ("sync", "async", "keyed"):
        times = cost[name] / cost["bare"]
        text = f"{name:<6} {cost[name] * 1e6:>7,.0f} us   bare {cost['bare'] * 1e6:>6,.0f} us   times {times:.2f}"
        results.add(
            here.kind, "enqueue", {"what": name}, {"seconds": cost[name], "bare": cost["bare"], "times": times}, text
        )
    rate, base = 1 / cost["many"], 1 / cost["bare many"]
    row = {"records": options.many, "seconds": cost["many"], "bare": cost["bare many"], "ratio": rate / base}
    text = f"many   {rate:>7,.0f}/s   bare {base:>7,.0f}/s   ratio {rate / base:.2f}"
    results.add(here.kind, "enqueue", {"what": "many"}, row, text)


def _claims(here: Place, options: argparse.Namespace, _drivers: Path | None, results: Results) -> None:
    if all(results.has(here.kind, "claims", {"what": name}) for name in claims.WHAT):
        return
    cost = claims.measure(here.kind, options.history)
    for name in claims.WHAT:
        empty, full = cost[f"{name} empty"], cost[f"{name} full"]
        text = (
            f"{name:<7} {full:.2f} ms with {options.history:,} finished rows, {empty:.2f} without   "
            f"times {full / empty:.2f}"
        )
        row = {"history": options.history, "empty_ms": empty, "full_ms": full, "times": full / empty}
        results.add(here.kind, "claims", {"what": name}, row, text)


def _schedules(here: Place, _options: argparse.Namespace, _drivers: Path | None, results: Results) -> None:
    if results.has(here.kind, "schedules", {"what": "idle"}):
        return
    cost = schedules.measure(here, SCHEDULES)
    text = f"idle   {cost['ms']:.2f} ms a pass over {SCHEDULES:,} schedules, {cost['statements']:g} statements"
    results.add(here.kind, "schedules", {"what": "idle"}, {"schedules": SCHEDULES, **cost}, text)


def _sweep(here: Place, options: argparse.Namespace, _drivers: Path | None, results: Results) -> None:
    of = {"backlog": options.backlog}
    if results.has(here.kind, "sweep", of):
        return
    cost = sweep.measure(here, options.backlog, options.rounds)
    times = cost["beside"] / cost["alone"]
    text = (
        f"{cost['rate']:>7,.0f} rows/s   claims at p99 {cost['alone']:.2f} ms alone, {cost['beside']:.2f} beside   "
        f"times {times:.2f}"
    )
    row = {"rate": cost["rate"], "alone_ms": cost["alone"], "beside_ms": cost["beside"], "times": times}
    results.add(here.kind, "sweep", of, row, text)


PART: dict[str, Callable[[Place, argparse.Namespace, Path | None, Results], None]] = {
    "drain": _drain,
    "enqueue": _enqueue,
    "claims": _claims,
    "schedules": _schedules,
    "sweep": _sweep,
}


if __name__ == "__main__":
    sys.exit(main())
