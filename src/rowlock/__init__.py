"""Durable jobs in the database you already have: SQLite, PostgreSQL, MySQL, MariaDB."""

# Names are imported from their modules when they are first asked for: a command line has to listen for signals, and to
# answer `--help`, before SQLAlchemy is there, which takes half a second (M6).

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rowlock.app import App
    from rowlock.errors import (
        ConnectionTypeError,
        CorruptPayload,
        CronError,
        CronTypeError,
        DatabaseError,
        DatabaseUnavailable,
        DeclarationError,
        DeclarationTypeError,
        DirectCall,
        EncodeError,
        EncodeTypeError,
        EnqueueBusy,
        EnqueueTypeError,
        EnqueueValueError,
        FilterError,
        FilterTypeError,
        InvalidState,
        KeyTaken,
        LeaseLost,
        LoginRefused,
        MissingDriver,
        NotBuiltYet,
        NotFound,
        NotIncluded,
        NotMigrated,
        RowlockError,
        SafeError,
        SchemaTooNew,
        SettingsError,
        StartRefused,
        TransactionConflict,
        TransactionMisuse,
        UnsupportedDatabase,
        WrongDatabase,
    )
    from rowlock.findings import Finding
    from rowlock.model.answer import OutcomeError, OutcomeTypeError
    from rowlock.model.backoff import Backoff
    from rowlock.model.context import Context, StopReason
    from rowlock.model.cron import Cron
    from rowlock.model.group import Jobs
    from rowlock.model.identity import Id, Secret
    from rowlock.model.job import Job
    from rowlock.model.lifecycle import Archive, Lifecycle, Retention, Ttl
    from rowlock.model.outcome import Ack, Category, Dead, Drop, Outcome, Retry, Snooze, State
    from rowlock.model.policy import DeclareOptions, JobOptions
    from rowlock.model.request import Enqueued, EnqueueOptions
    from rowlock.model.retention import Planned, SweepReport, TableSweep
    from rowlock.model.settings import Settings
    from rowlock.model.table import Lease
    from rowlock.queues import QueueInfo
    from rowlock.runtime.events import Event
    from rowlock.runtime.health import HealthReport, LoopReport
    from rowlock.runtime.metrics import Bucket, Metric, Sample
    from rowlock.schedules import ScheduleInfo, ScheduleState
    from rowlock.store.audit import Action, AuditEntry, AuditPage
    from rowlock.store.change import Done
    from rowlock.store.counts import Count
    from rowlock.store.explain import Explanation, Reason
    from rowlock.store.records import Page, Record

__all__ = [
    "Ack",
    "Action",
    "App",
    "Archive",
    "AuditEntry",
    "AuditPage",
    "Backoff",
    "Bucket",
    "Category",
    "ConnectionTypeError",
    "Context",
    "CorruptPayload",
    "Count",
    "Cron",
    "CronError",
    "CronTypeError",
    "DatabaseError",
    "DatabaseUnavailable",
    "Dead",
    "DeclarationError",
    "DeclarationTypeError",
    "DeclareOptions",
    "DirectCall",
    "Done",
    "Drop",
    "EncodeError",
    "EncodeTypeError",
    "EnqueueBusy",
    "EnqueueOptions",
    "EnqueueTypeError",
    "EnqueueValueError",
    "Enqueued",
    "Event",
    "Explanation",
    "FilterError",
    "FilterTypeError",
    "Finding",
    "HealthReport",
    "Id",
    "InvalidState",
    "Job",
    "JobOptions",
    "Jobs",
    "KeyTaken",
    "Lease",
    "LeaseLost",
    "Lifecycle",
    "LoginRefused",
    "LoopReport",
    "Metric",
    "MissingDriver",
    "NotBuiltYet",
    "NotFound",
    "NotIncluded",
    "NotMigrated",
    "Outcome",
    "OutcomeError",
    "OutcomeTypeError",
    "Page",
    "Planned",
    "QueueInfo",
    "Reason",
    "Record",
    "Retention",
    "Retry",
    "RowlockError",
    "SafeError",
    "Sample",
    "ScheduleInfo",
    "ScheduleState",
    "SchemaTooNew",
    "Secret",
    "Settings",
    "SettingsError",
    "Snooze",
    "StartRefused",
    "State",
    "StopReason",
    "SweepReport",
    "TableSweep",
    "TransactionConflict",
    "TransactionMisuse",
    "Ttl",
    "UnsupportedDatabase",
    "WrongDatabase",
]

_HOMES = {
    "Ack": "rowlock.model.outcome",
    "Action": "rowlock.store.audit",
    "App": "rowlock.app",
    "Archive": "rowlock.model.lifecycle",
    "AuditEntry": "rowlock.store.audit",
    "AuditPage": "rowlock.store.audit",
    "Backoff": "rowlock.model.backoff",
    "Bucket": "rowlock.runtime.metrics",
    "Category": "rowlock.model.outcome",
    "ConnectionTypeError": "rowlock.errors",
    "Context": "rowlock.model.context",
    "CorruptPayload": "rowlock.errors",
    "Count": "rowlock.store.counts",
    "Cron": "rowlock.model.cron",
    "CronError": "rowlock.errors",
    "CronTypeError": "rowlock.errors",
    "DatabaseError": "rowlock.errors",
    "DatabaseUnavailable": "rowlock.errors",
    "Dead": "rowlock.model.outcome",
    "DeclarationError": "rowlock.errors",
    "DeclarationTypeError": "rowlock.errors",
    "DeclareOptions": "rowlock.model.policy",
    "DirectCall": "rowlock.errors",
    "Done": "rowlock.store.change",
    "Drop": "rowlock.model.outcome",
    "EncodeError": "rowlock.errors",
    "EncodeTypeError": "rowlock.errors",
    "EnqueueBusy": "rowlock.errors",
    "EnqueueOptions": "rowlock.model.request",
    "EnqueueTypeError": "rowlock.errors",
    "EnqueueValueError": "rowlock.errors",
    "Enqueued": "rowlock.model.request",
    "Event": "rowlock.runtime.events",
    "Explanation": "rowlock.store.explain",
    "FilterError": "rowlock.errors",
    "FilterTypeError": "rowlock.errors",
    "Finding": "rowlock.findings",
    "HealthReport": "rowlock.runtime.health",
    "Id": "rowlock.model.identity",
    "InvalidState": "rowlock.errors",
    "Job": "rowlock.model.job",
    "JobOptions": "rowlock.model.policy",
    "Jobs": "rowlock.model.group",
    "KeyTaken": "rowlock.errors",
    "Lease": "rowlock.model.table",
    "LeaseLost": "rowlock.errors",
    "Lifecycle": "rowlock.model.lifecycle",
    "LoginRefused": "rowlock.errors",
    "LoopReport": "rowlock.runtime.health",
    "Metric": "rowlock.runtime.metrics",
    "MissingDriver": "rowlock.errors",
    "NotBuiltYet": "rowlock.errors",
    "NotFound": "rowlock.errors",
    "NotIncluded": "rowlock.errors",
    "NotMigrated": "rowlock.errors",
    "Outcome": "rowlock.model.outcome",
    "OutcomeError": "rowlock.model.answer",
    "OutcomeTypeError": "rowlock.model.answer",
    "Page": "rowlock.store.records",
    "Planned": "rowlock.model.retention",
    "QueueInfo": "rowlock.queues",
    "Reason": "rowlock.store.explain",
    "Record": "rowlock.store.records",
    "Retention": "rowlock.model.lifecycle",
    "Retry": "rowlock.model.outcome",
    "RowlockError": "rowlock.errors",
    "SafeError": "rowlock.errors",
    "Sample": "rowlock.runtime.metrics",
    "ScheduleInfo": "rowlock.schedules",
    "ScheduleState": "rowlock.schedules",
    "SchemaTooNew": "rowlock.errors",
    "Secret": "rowlock.model.identity",
    "Settings": "rowlock.model.settings",
    "SettingsError": "rowlock.errors",
    "Snooze": "rowlock.model.outcome",
    "StartRefused": "rowlock.errors",
    "State": "rowlock.model.outcome",
    "StopReason": "rowlock.model.context",
    "SweepReport": "rowlock.model.retention",
    "TableSweep": "rowlock.model.retention",
    "TransactionConflict": "rowlock.errors",
    "TransactionMisuse": "rowlock.errors",
    "Ttl": "rowlock.model.lifecycle",
    "UnsupportedDatabase": "rowlock.errors",
    "WrongDatabase": "rowlock.errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
