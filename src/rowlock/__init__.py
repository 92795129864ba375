"""Durable jobs in the database you already have: SQLite, PostgreSQL, MySQL, MariaDB."""

from rowlock.app import App
from rowlock.errors import (
    ConnectionTypeError,
    CorruptPayload,
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
    UnsupportedDatabase,
    WrongDatabase,
)
from rowlock.findings import Finding
from rowlock.model.answer import OutcomeError, OutcomeTypeError
from rowlock.model.backoff import Backoff
from rowlock.model.context import Context, StopReason
from rowlock.model.group import Jobs
from rowlock.model.identity import Id, Secret
from rowlock.model.job import Job
from rowlock.model.outcome import Ack, Category, Dead, Drop, Outcome, Retry, Snooze, State
from rowlock.model.policy import DeclareOptions, JobOptions
from rowlock.model.request import Enqueued, EnqueueOptions
from rowlock.model.settings import Settings
from rowlock.model.table import Lease
from rowlock.runtime.events import Event
from rowlock.store.records import Count, Page, Record

__all__ = [
    "Ack",
    "App",
    "Backoff",
    "Category",
    "ConnectionTypeError",
    "Context",
    "CorruptPayload",
    "Count",
    "DatabaseError",
    "DatabaseUnavailable",
    "Dead",
    "DeclarationError",
    "DeclarationTypeError",
    "DeclareOptions",
    "DirectCall",
    "Drop",
    "EncodeError",
    "EncodeTypeError",
    "EnqueueBusy",
    "EnqueueOptions",
    "EnqueueTypeError",
    "EnqueueValueError",
    "Enqueued",
    "Event",
    "FilterError",
    "FilterTypeError",
    "Finding",
    "Id",
    "InvalidState",
    "Job",
    "JobOptions",
    "Jobs",
    "KeyTaken",
    "Lease",
    "LeaseLost",
    "MissingDriver",
    "NotBuiltYet",
    "NotFound",
    "NotIncluded",
    "NotMigrated",
    "Outcome",
    "OutcomeError",
    "OutcomeTypeError",
    "Page",
    "Record",
    "Retry",
    "RowlockError",
    "SafeError",
    "SchemaTooNew",
    "Secret",
    "Settings",
    "SettingsError",
    "Snooze",
    "StartRefused",
    "State",
    "StopReason",
    "TransactionConflict",
    "UnsupportedDatabase",
    "WrongDatabase",
]
