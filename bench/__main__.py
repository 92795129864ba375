"""`python -m bench`: everything that the performance page says, measured again here."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import claims, drain, enqueue
from bench.places import Place, place

PARTS = ("drain", "enqueue", "claims")
KINDS = ("sqlite", "postgresql", "mariadb")


def main() -> None:
    options = _arguments()
    drivers = options.bare if options.bare and options.bare.is_dir() else None
    if drivers is None:
        print("no bare loops (--bare, or ROWLOCK_BARE_LOOPS): drains are printed without a ratio", file=sys.stderr)
    for kind in options.database or KINDS:
        try:
            with place(kind) as here:
                for part in options.parts or PARTS:
                    PART[part](here, options, drivers)
        except OSError as error:
            print(f"{kind}: no server ({type(error).__name__}), left out", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="drain, enqueue, claims; all if none is named")
    parser.add_argument("--database", action="append", choices=KINDS)
    parser.add_argument("--records", type=int, default=20_000, help="of one drain")
    parser.add_argument("--rounds", type=int, default=3, help="bare and Rowlock in turn; the medians count")
    parser.add_argument("--slots", type=int, action="append")
    parser.add_argument("--loop", action="append", choices=["asyncio", "uvloop"])
    parser.add_argument("--history", type=int, default=1_000_000, help="finished rows for the claims part")
    bare = os.environ.get("ROWLOCK_BARE_LOOPS", "../shared/bench/drivers")
    parser.add_argument("--bare", type=Path, default=Path(bare), help="the folder of the bare loops' drivers")
    parser.add_argument("--out", type=Path, default=Path("bench-results.jsonl"))
    return parser.parse_args()


def _drain(here: Place, options: argparse.Namespace, drivers: Path | None) -> None:
    for loop in options.loop or ["asyncio", "uvloop"]:
        for slots in options.slots or [10, 100, 256]:
            bare: list[float] = []
            ours: list[float] = []
            for _ in range(options.rounds):
                if drivers is not None:
                    bare.append(drain.bare(here, drivers.resolve(), records=options.records, slots=slots, loop=loop))
                ours.append(drain.rowlock(here, records=options.records, slots=slots, loop=loop))
            rate, base = statistics.median(ours), statistics.median(bare) if bare else None
            row = {"slots": slots, "loop": loop, "records": options.records, "rate": rate, "bare": base}
            against = f"{base:>9,.0f}/s bare   ratio {rate / base:.2f}" if base else ""
            _tell(options, here, "drain", f"{slots:>3} slots {loop:<7} {rate:>9,.0f}/s   {against}", row)


def _enqueue(here: Place, options: argparse.Namespace, _drivers: Path | None) -> None:
    cost = enqueue.measure(here, singles=1_000)
    for name in ("single", "async", "keyed"):
        times = cost[name] / cost["bare"]
        text = (
            f"{name:<7} {cost[name] * 1e6:>7,.0f} us   bare insert {cost['bare'] * 1e6:>6,.0f} us   times {times:.2f}"
        )
        _tell(options, here, "enqueue", text, {"what": name, "seconds": cost[name], "bare": cost["bare"]})
    rate, base = 1 / cost["many"], 1 / cost["bare many"]
    text = f"many    {rate:>7,.0f}/s   bare insert {base:>7,.0f}/s   ratio {rate / base:.2f}"
    _tell(options, here, "enqueue", text, {"what": "many", "seconds": cost["many"], "bare": cost["bare many"]})


def _claims(here: Place, options: argparse.Namespace, _drivers: Path | None) -> None:
    cost = claims.measure(here, options.history)
    for name in ("claim", "look"):
        empty, full = cost[f"{name} empty"], cost[f"{name} full"]
        with_history = f"{full:.2f} ms with {options.history:,} finished rows"
        text = f"{name:<6} {with_history}, {empty:.2f} without   times {full / empty:.2f}"
        _tell(options, here, "claims", text, {"what": name, "empty_ms": empty, "full_ms": full})


PART: dict[str, Callable[[Place, argparse.Namespace, Path | None], None]] = {
    "drain": _drain,
    "enqueue": _enqueue,
    "claims": _claims,
}


def _tell(options: argparse.Namespace, here: Place, part: str, text: str, row: dict[str, Any]) -> None:
    print(f"{here.kind:<11}{part:<8} {text}", flush=True)
    with options.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"at": time.time(), "database": here.kind, "part": part, **row}) + "\n")


if __name__ == "__main__":
    main()
