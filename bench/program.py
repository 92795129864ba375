"""The program under measurement: one no-op job. `python -m bench.program URL SLOTS LOOP` works until it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowlock import App, Job

EVENTS = os.environ.get("BENCH_EVENTS", os.devnull)
TARGET = int(os.environ.get("BENCH_TARGET", "0"))


@dataclass(frozen=True)
class Input:
    n: int


class Calls:
    """Counts handler calls; writes down the first and the last."""

    count = 0

    @classmethod
    def one(cls) -> None:
        cls.count += 1
        if cls.count == 1:
            emit("first")
        if cls.count == TARGET:
            emit("all")


def emit(event: str) -> None:
    with Path(EVENTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"ev": event, "t": time.time()}) + "\n")


async def handler(input: Input) -> None:
    Calls.one()


def application(url: str, slots: int = 100) -> tuple[App, Job[Input, Any]]:
    """An application of its own on this database, and its one job."""
    app = App(settings={"database": {"default": {"url": url}}, "job": {"queues": {"bench": slots}}})
    return app, app.job(max_attempts=5, timeout=30, name="noop", queue="bench")(handler)


async def work(url: str, slots: int) -> None:
    app, _ = application(url, slots)
    async with app.worker():
        await asyncio.Event().wait()


def main() -> None:
    url, slots, loop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if loop == "uvloop":
        import uvloop

        uvloop.run(work(url, slots))
    else:
        asyncio.run(work(url, slots))


if __name__ == "__main__":
    main()
