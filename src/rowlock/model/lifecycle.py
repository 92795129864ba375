"""How long rows are kept: declarations of a table's life cycle, floors under them, and overrides (N1, N4, N5)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, Never, TypeAlias, cast

from rowlock.errors import DeclarationError, DeclarationTypeError
from rowlock.model.durations import show
from rowlock.model.limits import shown
from rowlock.model.retention import CREATED_AT, Floor

LifecycleClass: TypeAlias = Literal["record", "transient", "telemetry", "event", "audit"]
CLASSES: Final[tuple[LifecycleClass, ...]] = ("record", "transient", "telemetry", "event", "audit")

LONGEST = timedelta(days=36_500)
"""The longest window: a hundred years."""
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1), "y": timedelta(days=365)}
_WINDOW = re.compile(r"(\d{1,9})([hdwy])", re.ASCII)

_PLACES = {
    "max_age": "Retention(max_age)",
    "expire_after": "Ttl(column, expire_after)",
    "column": "Ttl(column, expire_after)",
    "only_when": "Retention(…, only_when={…}) or Ttl(…, only_when={…})",
    "to": "Archive(to)",
    "after": "Archive(to, after)",
    "keep": "Archive(to, after, keep)",
    "retention": "Lifecycle(…, retention=Retention(…))",
    "ttl": "Lifecycle(…, ttl=Ttl(…))",
    "archive": "Lifecycle(…, archive=Archive(…))",
    "database": "app.lifecycle(table, …, database=…)",
    "at_least": "app.retention_floor(table, at_least=…)",
    "who": "app.retention_floor(table, …, who=…)",
    "why": "app.retention_floor(table, …, why=…)",
    "remedy": "app.retention_floor(table, …, remedy=…)",
    "guard": "app.retention_guard(table)",
    "guards": "app.retention_guard(table)",
}


def window(value: object, *, what: str) -> timedelta:
    """A window as it is written: a whole number and h, d, w or y (365 d), as "7d", or a timedelta; up to 100 y (N1).

    Raises DeclarationError, DeclarationTypeError; `what` begins their sentence.
    """
    if isinstance(value, str):
        found = _WINDOW.fullmatch(value)
        if found is None:
            raise DeclarationError(f"{what} is {shown(value)} (N1); write a whole number and h, d, w or y, as '7d'")
        number = int(found[1])
        # Compared as numbers: the product of a long number might be more than a timedelta has.
        span = _UNITS[found[2]] * number if number <= LONGEST / _UNITS[found[2]] else LONGEST * 2
    elif isinstance(value, timedelta):
        span = timedelta(value.days, value.seconds, value.microseconds)
    else:
        raise DeclarationTypeError(
            f"{what} is {shown(value)} (N1); give a text with a unit, as '7d' (h, d, w, y), or a timedelta"
        )
    if not timedelta(0) < span <= LONGEST:
        raise DeclarationError(f"{what} is {shown(value)} (N1); it must be more than 0 and at most {show(LONGEST)}")
    return span


class Retention:
    """Rows go when they are older than `max_age`, by their `created_at` (N1).

    `max_age` is a whole number and h, d, w or y, as "7d", or a timedelta, up to 100 years. `only_when` are columns and
    the values that they must have, a list for any of several, None for NULL. Raises DeclarationError.
    """

    __slots__ = ("max_age", "only_when")

    def __init__(
        self, max_age: str | timedelta, *, only_when: Mapping[Any, object] | None = None, **misplaced: Never
    ) -> None:
        _refuse_misplaced("Retention", misplaced)
        self.max_age = window(max_age, what="Retention: max_age")
        self.only_when = _only_when(only_when, "Retention")

    def __repr__(self) -> str:
        return f"Retention({show(self.max_age)!r})"


class Ttl:
    """Rows go when `expire_after` has passed since the instant in `column`; never where that is NULL (N1).

    The other arguments are those of `Retention`.
    """

    __slots__ = ("column", "expire_after", "only_when")

    def __init__(
        self,
        column: Any,
        expire_after: str | timedelta,
        *,
        only_when: Mapping[Any, object] | None = None,
        **misplaced: Never,
    ) -> None:
        _refuse_misplaced("Ttl", misplaced)
        self.column: object = column
        self.expire_after = window(expire_after, what="Ttl: expire_after")
        self.only_when = _only_when(only_when, "Ttl")

    def __repr__(self) -> str:
        return f"Ttl({shown(self.column)}, {show(self.expire_after)!r})"


class Archive:
    """Rows are copied to the table `to` before they go, and nothing goes uncopied (N7).

    `to` is a table or model with the same columns; `after` the age at which rows move, the retention's `max_age` if not
    given; `keep` how long the copies stay, for ever if not given; `database` the name of the target's database, the
    table's own if not given. Raises DeclarationError.
    """

    __slots__ = ("after", "database", "keep", "to")

    def __init__(
        self,
        to: Any,
        after: str | timedelta | None = None,
        keep: str | timedelta | None = None,
        *,
        database: str | None = None,
        **misplaced: Never,
    ) -> None:
        _refuse_misplaced("Archive", misplaced)
        self.to: object = to
        self.after = None if after is None else window(after, what="Archive: after")
        self.keep = None if keep is None else window(keep, what="Archive: keep")
        self.database = database
        if self.after is not None and self.keep is not None and self.keep <= self.after:
            raise DeclarationError(
                f"Archive: keep is {show(self.keep)} and after {show(self.after)} (N7); both count from created_at, so "
                f"that keep must be the longer one"
            )

    def __repr__(self) -> str:
        return f"Archive({shown(self.to)})"


class Lifecycle:
    """What becomes of a table's rows (N1).

    The first argument is the class: `record` is kept for ever and takes nothing else; `audit` wants an archive or a
    retention; `transient`, `telemetry` and `event` want a retention or a ttl, and may have an archive. Raises
    DeclarationError.
    """

    __slots__ = ("archive", "kind", "retention", "ttl")

    def __init__(
        self,
        kind: LifecycleClass,
        *,
        retention: Retention | None = None,
        ttl: Ttl | None = None,
        archive: Archive | None = None,
        **misplaced: Never,
    ) -> None:
        if kind not in CLASSES:
            raise DeclarationError(f"Lifecycle: {shown(kind)} is no class (N1); the classes are {', '.join(CLASSES)}")
        _refuse_misplaced("Lifecycle", misplaced)
        for name, value, of in (("retention", retention, Retention), ("ttl", ttl, Ttl), ("archive", archive, Archive)):
            if value is not None and not isinstance(value, of):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
                raise DeclarationTypeError(f"Lifecycle: {name} is {shown(value)} (N1); give {of.__name__}(…)")
        self.kind: LifecycleClass = kind
        self.retention = retention
        self.ttl = ttl
        self.archive = archive
        self._refuse_odd()

    def __repr__(self) -> str:
        parts = [f", {part!r}" for part in (self.retention, self.ttl, self.archive) if part is not None]
        return f"Lifecycle({self.kind!r}{''.join(parts)})"

    @property
    def window(self) -> timedelta | None:
        """How old rows are when they leave the table; None: they are kept for ever."""
        if self.archive is not None and self.archive.after is not None:
            return self.archive.after
        if self.retention is not None:
            return self.retention.max_age
        return None if self.ttl is None else self.ttl.expire_after

    @property
    def column(self) -> object:
        """What ages the rows: `created_at`, or the column of the ttl."""
        return CREATED_AT if self.ttl is None else self.ttl.column

    @property
    def only_when(self) -> Mapping[Any, object]:
        """The values that rows must have to go."""
        policy = self.retention or self.ttl
        return {} if policy is None else policy.only_when

    def _refuse_odd(self) -> None:
        given = [name for name in ("retention", "ttl", "archive") if getattr(self, name) is not None]
        if self.kind == "record":
            if given:
                raise DeclarationError(
                    f"Lifecycle: a record is kept for ever, and {given[0]} is given (N1); leave it out, or give the "
                    f"class that the rows are of: transient, telemetry, event or audit"
                )
            return
        if self.retention is not None and self.ttl is not None:
            raise DeclarationError("Lifecycle: retention and ttl are given (N1); rows age by one of them, give one")
        wanted = ("archive", "retention") if self.kind == "audit" else ("retention", "ttl")
        if not set(given) & set(wanted):
            raise DeclarationError(
                f"Lifecycle: class {self.kind} wants {' or '.join(wanted)} (N1), and has "
                f"{given[0] if given else 'neither'}; give one, or class record to keep its rows for ever"
            )
        if self.kind == "audit" and self.ttl is not None:
            raise DeclarationError("Lifecycle: class audit takes no ttl (N1); give archive or retention")
        self._refuse_odd_archive()

    def _refuse_odd_archive(self) -> None:
        archive = self.archive
        if archive is None:
            return
        if self.ttl is not None and archive.after is not None:
            raise DeclarationError("Lifecycle: the ttl says when rows move (N7); leave the archive's after out")
        if archive.after is None and self.window is None:
            raise DeclarationError("Lifecycle: the archive has no after, and there is no retention (N7); give one")
        if archive.after is not None and self.retention is not None and archive.after > self.retention.max_age:
            raise DeclarationError(
                f"Lifecycle: rows would be {show(self.retention.max_age)} old at most, by the retention, and move at "
                f"{show(archive.after)}, by the archive's after (N7); after must not be the longer one"
            )
        if archive.keep is not None and self.ttl is None and self.window is not None and archive.keep <= self.window:
            raise DeclarationError(
                f"Lifecycle: rows move when they are {show(self.window)} old, and are kept until {show(archive.keep)} "
                f"(N7); both count from created_at, so that keep must be the longer one"
            )


def _only_when(given: object, what: str) -> Mapping[Any, object]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DeclarationTypeError(
            f"{what}: only_when is {shown(given)} (N1); give columns and values, as {{'status': 'sent'}}"
        )
    wanted = cast("Mapping[Any, object]", given)
    if not wanted:
        raise DeclarationError(f"{what}: only_when names no column (N1); leave it out to take every row")
    for name, value in wanted.items():
        if isinstance(value, list | tuple | set | frozenset) and not value:
            raise DeclarationError(f"{what}: only_when has no value for {shown(name)} (N1); no row would ever go")
    return dict(wanted)


def _refuse_misplaced(what: str, misplaced: Mapping[str, object]) -> None:
    for name in misplaced:
        place = _PLACES.get(name)
        if place is None:
            raise DeclarationTypeError(
                f"{what}: {name} is no option (N1); look at its docstring for those that there are"
            )
        raise DeclarationTypeError(f"{what}: {name} stands in the wrong place (N1); it belongs in {place}")


# --- floors and overrides ------------------------------------------------------------------------------------


def refuse_below(table: str, span: timedelta | None, floors: Iterable[Floor]) -> None:
    """Raises DeclarationError, naming both numbers, for a window below a floor; equal is legal (N4)."""
    floor = highest(floors)
    if span is not None and floor is not None and span < floor.at_least:
        raise DeclarationError(
            f"table {table!r} keeps its rows {show(span)}, and {floor.who} needs them for {show(floor.at_least)} (N4): "
            f"{floor.why}; {floor.remedy}"
        )


def highest(floors: Iterable[Floor]) -> Floor | None:
    """The floor that asks for the most."""
    return max(floors, key=lambda floor: floor.at_least, default=None)


def overridden(
    table: str, declared: timedelta | None, text: str | None, floors: Iterable[Floor]
) -> tuple[timedelta | None, str | None]:
    """The window that runs, and what is wrong with the override, if it is rejected (N5): rejected, never clamped."""
    if text is None:
        return declared, None
    where = f"retention.overrides.{table} is {shown(text)}"
    if declared is None:
        return None, f"{where}, and the rows of a record are kept for ever (N5); take it out"
    try:
        span = window(text, what=where)
    except DeclarationError as refusal:
        return declared, f"{refusal}; the declared {show(declared)} go on (N5)"
    floor = highest(floors)
    if floor is not None and span < floor.at_least:
        return declared, (
            f"{where}, and {floor.who} needs rows for {show(floor.at_least)} (N5): {floor.why}; {floor.remedy}; "
            f"the declared {show(declared)} go on"
        )
    return span, None


def dedupe_floor(job: str, dedupe_for: timedelta) -> Floor:
    """What a dedupe window asks of the finished records (E5, N4)."""
    return Floor(
        at_least=dedupe_for,
        who=f"dedupe_for of job {job!r}",
        why="a finished record answers as duplicate only while it is there (E5)",
        remedy="shorten dedupe_for, or keep finished records longer: retention.overrides.rowlock_job",
    )
