"""`config/setting.json`: one strict file, or the same as an object (M1, M2)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from rowlock.errors import SettingsError
from rowlock.model.backoff import Backoff
from rowlock.model.limits import QUEUE_BYTES
from rowlock.model.settings_read import (
    Choice,
    Node,
    Part,
    Read,
    Table,
    Whole,
    bounds_of,
    database_name,
    flag,
    read_file,
    section,
    text,
    url,
    words,
)
from rowlock.model.settings_url import Url

Mode = Literal["api", "worker", "all"]

_HOUR_MS = 3_600_000
_MIB = 1024 * 1024


class DatabaseSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`database.<name>`."""

    url: Url | None = None
    """None: it is given in code."""
    pool: int | None = None
    """Connections, 1..1,000; None: Rowlock sizes its own (C8)."""
    auto_migrate: bool = True
    """Whether a start creates and upgrades Rowlock's tables (S1)."""
    pooler: Literal["transaction"] | None = None
    """What pools connections between here and the database: turns off prepared statements and LISTEN."""


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`runtime`."""

    mode: Mode | None = None
    """None: not given (M3)."""
    shutdown_ms: int = 30_000
    """How long attempts and requests may finish at a shutdown (M6), 1..300,000."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`http`: the ASGI application, `module:name`, and where it listens (M4)."""

    app: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`health`: where health is served (H1); without the section it is not, and `port` is None."""

    host: str = "127.0.0.1"
    port: int | None = None


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`job`: the bounds and defaults of M2."""

    workers: int = 4
    """Concurrent attempts of a queue in one process, 1..256."""
    queues: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    """The same for single queues."""
    poll_ms: int = 250
    """1..60,000."""
    lease_ms: int = 60_000
    """100..7,200,000."""
    retry_base_ms: int = 1_000
    """1..86,400,000, not above `retry_max_ms`."""
    retry_max_ms: int = 300_000
    """1..86,400,000."""
    unknown_ms: int = _HOUR_MS
    """How long nobody must have announced a job before its records are blocked (S7), 0..604,800,000."""
    enqueue_wait_ms: int = 2_000
    """How long an enqueue waits for another uncommitted one of its key (E4), 1..60,000."""
    payload_max: int = _MIB
    """The largest payload in bytes (W3), 1..16 MiB."""
    sweep_ms: int = 60_000
    """How long one sweep may take (N3), 100..600,000."""
    overrun_ms: int | None = None
    """How long a handler may run on after its deadline before it is settled (R3), 1..7,200,000; None: one lease."""

    @property
    def backoff(self) -> Backoff:
        """The back-off of jobs that declare none (R1)."""
        return Backoff(timedelta(milliseconds=self.retry_base_ms), timedelta(milliseconds=self.retry_max_ms))


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`retention`: windows by table. They are parsed where floors are known: a bad one is reported, not fatal (N5)."""

    overrides: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """The settings of a deployment, complete with defaults (M1, M2)."""

    database: Mapping[str, DatabaseSettings] = msgspec.field(default_factory=dict[str, DatabaseSettings])
    runtime: RuntimeSettings = RuntimeSettings()
    http: HttpSettings = HttpSettings()
    health: HealthSettings = HealthSettings()
    job: JobSettings = JobSettings()
    retention: RetentionSettings = RetentionSettings()
    origin: str = "settings"
    """The file that they are from, "settings" for an object."""
    paths: frozenset[str] = frozenset()
    """Every path that was given."""

    @classmethod
    def load(cls, source: Mapping[str, Any] | str | PathLike[str] | Settings | None = None) -> Settings:
        """Read and check settings: the file's keys as a mapping, the path of a JSON file, or None for the defaults.

        Raises `SettingsError`, which names the path (`job.lease_ms`), the value and the bounds, and never a URL or a
        secret. Secrets that are referred to are not looked up here, but when they are used.
        """
        if source is None:
            return cls()
        if isinstance(source, Settings):
            return source
        if isinstance(source, Mapping):
            return _read(source, "settings")
        if isinstance(source, str | Path) or hasattr(source, "__fspath__"):
            return _read(read_file(Path(source)), str(source))
        raise SettingsError(
            f"settings are a mapping with the file's keys or the path of a JSON file, not {type(source).__name__} (M1)"
        )

    def workers_for(self, queue: str) -> int:
        """The concurrent attempts of `queue` in one process (M2)."""
        return self.job.queues.get(queue, self.job.workers)

    def given(self, path: str) -> bool:
        """Whether this key (`job.queues.billing`) stands in the settings, or else a default holds."""
        return path in self.paths

    @staticmethod
    def bounds() -> dict[str, Whole | Choice]:
        """What bounds each setting, by its path; `*` in a path stands for names of the user's own (M2)."""
        return {name: bound for key, read in _TOP.items() for name, bound in bounds_of(read, key).items()}

    def as_effective(self) -> dict[str, Any]:
        """The settings with their defaults filled in, as the file's JSON would have them, secrets hidden.

        What is absent and has no default (a `pool`, say) stays absent, since null is no legal value (M1).
        """
        shown: dict[str, Any] = {name: _plain(getattr(self, name)) for name in _TOP}
        if self.health.port is None:
            del shown["health"]
        return shown

    def __repr__(self) -> str:
        return f"Settings({self.as_effective()!r})"


def _plain(value: object) -> Any:
    if isinstance(value, Url):
        return value.shown()
    if isinstance(value, msgspec.Struct):
        fields = {name: cast("object", getattr(value, name)) for name in value.__struct_fields__}
        return {name: _plain(item) for name, item in fields.items() if item is not None}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in cast("Mapping[str, object]", value).items()}
    return value


def _part(make: type[msgspec.Struct], **fields: Read) -> Read:
    return Part(make, fields)


_port = Whole(0, 65_535, "0 takes a free one")

_TOP: dict[str, Read] = {
    "database": Table(
        database_name,
        _part(
            DatabaseSettings, url=url, pool=Whole(1, 1_000, "C8"), auto_migrate=flag, pooler=Choice(("transaction",))
        ),
    ),
    "runtime": _part(RuntimeSettings, mode=Choice(("api", "worker", "all")), shutdown_ms=Whole(1, 300_000)),
    "http": _part(HttpSettings, app=text(1_024), host=text(255), port=_port),
    "health": _part(HealthSettings, host=text(255), port=_port),
    "job": _part(
        JobSettings,
        workers=Whole(1, 256),
        queues=Table(text(QUEUE_BYTES), Whole(1, 256)),
        poll_ms=Whole(1, 60_000),
        lease_ms=Whole(100, 7_200_000),
        retry_base_ms=Whole(1, 86_400_000),
        retry_max_ms=Whole(1, 86_400_000),
        unknown_ms=Whole(0, 604_800_000),
        enqueue_wait_ms=Whole(1, 60_000, "E4"),
        payload_max=Whole(1, 16 * _MIB),
        sweep_ms=Whole(100, 600_000),
        overrun_ms=Whole(1, 7_200_000),
    ),
    "retention": _part(RetentionSettings, overrides=Table(text(255), words)),
}


def _read(source: object, origin: str) -> Settings:
    given: set[str] = set()
    settings = section(Node(source, "", origin, given), Settings, _TOP)
    job, health = settings.job, settings.health
    if job.retry_base_ms > job.retry_max_ms:
        raise SettingsError(
            f"{origin}: job.retry_base_ms is {job.retry_base_ms:,} and job.retry_max_ms {job.retry_max_ms:,}; "
            f"the base must not exceed the cap (M2)"
        )
    if "health" in given and health.port is None:
        raise SettingsError(
            f"{origin}: health.port is missing; give the port that health is served on, or leave health out (H1)"
        )
    return msgspec.structs.replace(settings, origin=origin, paths=frozenset(given))
