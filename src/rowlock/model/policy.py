"""A job's options (J1): their names, their bounds, and which of them this version does not have yet."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Required, TypedDict, cast, get_type_hints

from rowlock.errors import DeclarationError, DeclarationTypeError, NotBuiltYet
from rowlock.model.backoff import Backoff
from rowlock.model.cron import Cron
from rowlock.model.durations import MILLISECOND
from rowlock.model.limits import (
    DECLARING,
    NAME_BYTES,
    PRIORITY_MAX,
    QUEUE_BYTES,
    check_int,
    check_span,
    check_text,
    shown,
)
from rowlock.model.schedule import Schedule, read_schedule

MAX_ATTEMPTS = 100
TIMEOUT_MAX = timedelta(seconds=3600)
LEASE_MIN = timedelta(milliseconds=100)
LEASE_MAX = timedelta(milliseconds=7_200_000)
DEDUPE_MAX = timedelta(days=3_650)
Upgrade = Callable[[Any], Any]


class DeclareOptions(TypedDict, total=False):
    """The options of a job. `max_attempts` and `timeout` are required; no default exists (J1)."""

    max_attempts: Required[int]
    """1..100; counts the first execution."""
    timeout: Required[timedelta | float]
    """1 ms..3,600 s, a timedelta or seconds; counts from the handler's start (R3)."""
    aliases: Sequence[str]
    """Earlier names: records stored under them are this job's (J4)."""
    accepts: Sequence[tuple[type[Any] | None, Upgrade]]
    """Earlier input types, each with a function to the present one (J10)."""
    database: str
    """The configured database that keeps the records; the group's if not given."""
    queue: str
    """1..128 bytes; "default" if not given."""
    priority: int
    """0..32,767, smaller first; 100 if not given."""
    backoff: Backoff | None
    """How long a failed attempt waits (R1); the settings' if not given."""
    lease: timedelta | float | None
    """100 ms..7,200 s; the settings' if not given."""
    overrun: timedelta | float | None
    """1 ms..7,200 s: how long a handler past its deadline is waited for (R3); one lease if not given."""
    dedupe_for: timedelta | float
    """0 (default)..3,650 d: so long from its creation a succeeded record still answers for its key (E5)."""
    transactional: bool
    """Run the handler inside a transaction that commits together with the settlement, or not at all (L8)."""
    executor: Literal["thread", "process"] | None


class JobOptions(DeclareOptions, total=False):
    """The options of a job with a handler."""

    name: str | None
    """A stable identity, 1..1,024 bytes; module and qualified name if not given (J4)."""
    schedule: str | Cron | None
    """Five cron fields in UTC, as "0 9 * * 1-5": a record is made for each such minute (T). Of a job without input."""
    catch_up: Literal["all", "latest", "none"] | None
    """Of the minutes that were missed, say while nothing ran: each (if not given), the newest, or none (T6)."""
    catch_up_max: timedelta | float | None
    """How far catch_up="all" looks back, 1 minute..366 days; 7 days if not given (T6)."""
    overlap: Literal["allow", "skip"] | None
    """With "skip" no record is made while the previous one is pending or running; "allow" if not given (T6)."""


# An option of the contract whose feature is not there is refused, never ignored (J1); these values ask for nothing.
_NOT_BUILT: Mapping[str, tuple[object, ...]] = {
    "executor": (None, "thread"),
}
_OPTIONS = frozenset(get_type_hints(JobOptions)) - {"name"}


@dataclass(frozen=True, slots=True)
class Policy:
    """A job's options, checked. `backoff`, `lease` and `overrun` are None where the settings decide."""

    max_attempts: int
    timeout: timedelta
    aliases: tuple[str, ...]
    accepts: tuple[tuple[Any, Upgrade], ...]
    database: str
    queue: str
    priority: int
    backoff: Backoff | None
    lease: timedelta | None
    overrun: timedelta | None
    transactional: bool
    schedule: Schedule | None
    dedupe_for: timedelta


def read_policy(options: Mapping[str, object], *, job: str, name: str, database: str) -> Policy:
    """Check `options`; `job` begins each refusal, `database` is the group's.

    Raises DeclarationError, DeclarationTypeError for a wrong kind, NotBuiltYet for a feature to come. (J1, J4, J5)
    """
    _refuse_unknown(options, job=job)
    for required, example in ("max_attempts", "max_attempts=5"), ("timeout", "timeout=30"):
        if required not in options:
            raise DeclarationTypeError(
                f"{job}: {required} is missing (J1); no default exists: say for example {example}"
            )

    def span(option: str, low: timedelta, high: timedelta, rule: str) -> timedelta | None:
        value = options.get(option)
        if value is None:
            return None
        return check_span(value, what=f"{job}: {option}", low=low, high=high, rule=rule, refuse=DECLARING)

    timeout = options["timeout"]
    backoff = options.get("backoff")
    if backoff is not None and not isinstance(backoff, Backoff):
        raise DeclarationTypeError(f"{job}: backoff is {shown(backoff)} (J1); give Backoff(base=…, cap=…)")
    return Policy(
        max_attempts=check_int(
            options["max_attempts"], what=f"{job}: max_attempts", low=1, high=MAX_ATTEMPTS, rule="J1", refuse=DECLARING
        ),
        timeout=check_span(
            timeout, what=f"{job}: timeout", low=MILLISECOND, high=TIMEOUT_MAX, rule="J1", refuse=DECLARING
        ),
        aliases=_aliases(options.get("aliases", ()), job=job, name=name),
        accepts=_accepts(options.get("accepts", ()), job=job),
        database=database_name(options.get("database", database), who=job),
        queue=check_text(
            options.get("queue", "default"), what=f"{job}: queue", high=QUEUE_BYTES, rule="J1", refuse=DECLARING
        ),
        priority=check_int(
            options.get("priority", 100), what=f"{job}: priority", low=0, high=PRIORITY_MAX, rule="J1", refuse=DECLARING
        ),
        backoff=backoff,
        lease=span("lease", LEASE_MIN, LEASE_MAX, "M2"),
        overrun=span("overrun", MILLISECOND, LEASE_MAX, "M2"),
        transactional=_flag(options.get("transactional", False), what=f"{job}: transactional"),
        schedule=read_schedule(options, job=job),
        dedupe_for=check_span(
            options.get("dedupe_for", 0),
            what=f"{job}: dedupe_for",
            low=timedelta(0),
            high=DEDUPE_MAX,
            rule="E5",
            refuse=DECLARING,
        ),
    )


def _flag(value: object, *, what: str) -> bool:
    if not isinstance(value, bool):
        raise DeclarationTypeError(f"{what} is {shown(value)} (J1); it is True or False")
    return value


def database_name(value: object, *, who: str) -> str:
    """The name of a configured database."""
    return check_text(value, what=f"{who}: database", high=128, rule="J1", refuse=DECLARING)


def job_name(value: object, *, what: str) -> str:
    """A job's name or alias: 1..1,024 bytes, not blank, no NUL (J4)."""
    return check_text(value, what=what, high=NAME_BYTES, rule="J4", refuse=DECLARING)


def _refuse_unknown(options: Mapping[str, object], *, job: str) -> None:
    for option, value in options.items():
        if option not in _OPTIONS:
            near = difflib.get_close_matches(option, _OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(sorted(_OPTIONS))}"
            raise DeclarationTypeError(f"{job}: {option} is no option of a job (J1); {hint}")
        if option == "executor" and value not in (None, "thread", "process"):
            raise DeclarationError(f'{job}: executor is {shown(value)} (J1); it is "thread" or "process"')
        if option in _NOT_BUILT and value not in _NOT_BUILT[option]:
            raise NotBuiltYet(
                f"{job}: {option}={shown(value)} asks for a feature that this version does not have (J1); leave it out"
            )


def _aliases(value: object, *, job: str, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise DeclarationTypeError(f'{job}: aliases is {shown(value)} (J4); give a tuple of names, as ("old.name",)')
    aliases: list[str] = []
    for alias in cast("Sequence[object]", value):
        text = job_name(alias, what=f"{job}: an alias")
        if text == name or text in aliases:
            raise DeclarationError(
                f"{job}: the alias {shown(text)} repeats the job's name or another alias (J4); remove it"
            )
        aliases.append(text)
    return tuple(aliases)


def _accepts(value: object, *, job: str) -> tuple[tuple[Any, Upgrade], ...]:
    usage = "give pairs of an earlier input type and a function to the present one, as ((Old, upgrade),)"
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise DeclarationTypeError(f"{job}: accepts is {shown(value)} (J10); {usage}")
    pairs: list[tuple[Any, Upgrade]] = []
    for pair in cast("Sequence[object]", value):
        if not isinstance(pair, tuple) or len(cast("tuple[object, ...]", pair)) != 2:
            raise DeclarationTypeError(f"{job}: accepts has {shown(cast('object', pair))} in it (J10); {usage}")
        old, upgrade = cast("tuple[Any, object]", pair)
        if not callable(upgrade):
            raise DeclarationTypeError(f"{job}: accepts has {shown(upgrade)} as an upgrade (J10); {usage}")
        pairs.append((old, upgrade))
    return tuple(pairs)
