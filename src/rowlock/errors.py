"""One tree of errors (contract Z1). Every message says what, where, which rule, and what to do.

A refusal of a value is also a `ValueError`, a refusal of a kind of thing also a `TypeError`, so that
callers who only know the standard exceptions catch the right one.
"""

from __future__ import annotations


class RowlockError(Exception):
    """The root of everything that Rowlock raises on purpose."""


# --- declaring ---------------------------------------------------------------------------------------------


class DeclarationError(RowlockError, ValueError):
    """A job, a group or an application is declared in a way that a clause forbids (J5)."""


class DeclarationTypeError(DeclarationError, TypeError):
    """A declaration names a kind of thing that is not accepted there (J3, W2)."""


class NotBuiltYet(DeclarationError):
    """An option of the contract whose feature this version does not have. It is refused, never ignored (J1)."""


class CronError(RowlockError, ValueError):
    """A cron text that is none, or that never occurs, or an instant that can not be asked about (T1)."""


class CronTypeError(CronError, TypeError):
    """Another kind of thing where a cron takes a text, a datetime or a number (T1)."""


class DirectCall(RowlockError, TypeError):
    """A job was called like a function (J2). Use `.enqueue(…)`, or `.handler(…)` in a unit test."""


class NotIncluded(RowlockError):
    """A job of a group that no application has included yet was used (J11)."""


class SettingsError(RowlockError, ValueError):
    """A setting is unknown, null, of the wrong kind or out of its bounds (M1, M2). The message has its path."""


# --- enqueueing --------------------------------------------------------------------------------------------


class EncodeError(RowlockError, ValueError):
    """An input can not be put on the wire (W2, W3). The message has the path to the field, never the value."""


class EncodeTypeError(EncodeError, TypeError):
    """An input, or a field of it, is of another type than declared."""


class EnqueueValueError(RowlockError, ValueError):
    """A key, time, delay, priority, queue or header of an enqueue is outside its bounds (E4, E6)."""


class EnqueueTypeError(EnqueueValueError, TypeError):
    """An option of an enqueue is of a wrong kind, unknown, or missing (E1)."""


class ConnectionTypeError(RowlockError, TypeError):
    """What was given as `connection` is not one of the accepted kinds (E2)."""


class WrongDatabase(RowlockError, ValueError):
    """The caller's connection leads to another database than the job's (E3). Nothing was written."""


class EnqueueBusy(RowlockError):
    """Another uncommitted enqueue of the same key did not end within `job.enqueue_wait_ms` (E4).

    Nothing was written, and the caller's transaction is still usable.
    """


class TransactionConflict(RowlockError):
    """The database ended the caller's transaction with a failure that a retry of the whole transaction cures (E4).

    Deadlocks and serialization failures arrive as this. Roll back, and run the transaction again.
    """


# --- the database ------------------------------------------------------------------------------------------


class DatabaseError(RowlockError):
    """A database can not be used as asked."""


class NotMigrated(DatabaseError):
    """Rowlock's tables are missing, or older than this library needs (S1). Run `rowlock migrate`."""


class SchemaTooNew(DatabaseError):
    """Rowlock's tables say that this library is too old to use them (S1). Upgrade the library."""


class DatabaseUnavailable(DatabaseError):
    """The database did not answer, or refused the connection. The message never has a password."""


class LoginRefused(DatabaseError):
    """The database answered, and refused the connection: user, password or database name are wrong.

    To try again changes nothing, so nothing waits for it. The message never has a password.
    """


class MissingDriver(DatabaseError, ImportError):
    """The Python driver for a database is not installed. The message has the `pip install` line."""


class UnsupportedDatabase(DatabaseError):
    """A URL, an engine or a server version that Rowlock does not support."""


# --- running -----------------------------------------------------------------------------------------------


class LeaseLost(RowlockError):
    """This attempt no longer owns its record; nothing that it does changes the record any more (L3)."""


class TransactionMisuse(RowlockError):
    """A handler asked for a transaction that it does not have, or ended the one that is the attempt's (L8)."""


class CorruptPayload(RowlockError):
    """A stored payload does not fit the declared schema (W5). The message has a path, never a value."""


class SafeError(RowlockError):
    """A failure whose text the handler's author vouches for: it is kept as the record's summary (S6).

    At most 500 characters are kept; NUL characters and surrogates are cleaned.
    """


class StartRefused(RowlockError):
    """A program can not do what it declares, found before it listens, migrates or claims (J5, M3, M5)."""


# --- operations --------------------------------------------------------------------------------------------


class FilterError(RowlockError, ValueError):
    """An argument of an operation is outside its bounds (O1)."""


class FilterTypeError(FilterError, TypeError):
    """An argument of an operation is of a wrong kind (O1)."""


class NotFound(RowlockError, LookupError):
    """No record has this id (O2), or no schedule this name (T7)."""


class InvalidState(RowlockError):
    """The record's state does not allow this operation (O2, O4)."""


class KeyTaken(RowlockError):
    """The record's key is held by another active record (O2)."""

    def __init__(self, id: int, holder: int) -> None:
        super().__init__(
            f"record {id} can not become pending: its key is held by the active record {holder} (O2); "
            f"let that one finish, or cancel it"
        )
        self.id = id
        self.holder = holder


# --- the test kit ------------------------------------------------------------------------------------------


class KitError(RowlockError):
    """The test kit can not do what a test asks of it at this place (X1)."""


class KitValueError(KitError, ValueError):
    """A value that a test gives to the kit is outside its bounds (X1)."""


class KitTypeError(KitValueError, TypeError):
    """What a test gives to the kit is of a wrong kind (X1)."""
