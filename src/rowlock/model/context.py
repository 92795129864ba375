"""What a handler is told about its attempt (R7)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast

import msgspec

from rowlock.errors import LeaseLost, TransactionMisuse

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class StopReason(StrEnum):
    """Why an attempt is asked to stop (R7)."""

    SHUTDOWN = "shutdown"
    CANCELLED = "cancelled"
    LOST = "lost"
    DEADLINE = "deadline"


class Transaction(Protocol):
    """The transaction of an attempt, as far as a context leads to it. Each raises `TransactionMisuse`."""

    def connection(self, what: str) -> Connection:
        """For a sync handler."""
        ...

    def session(self, what: str) -> Session:
        """For a sync handler."""
        ...

    def async_connection(self, what: str) -> AsyncConnection:
        """For an async handler."""
        ...

    def async_session(self, what: str) -> AsyncSession:
        """For an async handler."""
        ...


class Context:
    """The record and the attempt that a handler works on (R7).

    A handler gets one if a parameter of it is annotated with this class (J3). It lives as long as the attempt, and can
    be read from any thread. Rowlock keeps its own copy of what is in here: nothing that is assigned to a context
    changes the record.
    """

    __slots__ = (
        "_headers",
        "_stop_reason",
        "_stopping",
        "_transaction",
        "attempt",
        "deadline",
        "id",
        "job",
        "key",
        "max_attempts",
        "queue",
        "run_at",
    )

    id: int
    """The record's id."""
    job: str
    """The job's name, as declared here (the record may have been enqueued by one of its aliases)."""
    key: str | None
    """The record's key, None without one."""
    attempt: int
    """The number of this execution, 1 for the first."""
    max_attempts: int
    """How many executions there are at most, this one included."""
    deadline: datetime
    """When this attempt times out, in UTC."""
    queue: str
    """The queue that the record came from."""
    run_at: datetime
    """When the record was due, in UTC; for a schedule its minute."""

    def __init__(
        self,
        *,
        id: int,
        job: str,
        key: str | None,
        attempt: int,
        max_attempts: int,
        deadline: datetime,
        queue: str,
        run_at: datetime,
        headers: Mapping[str, str] | str | bytes | None = None,
    ) -> None:
        self.id = id
        self.job = job
        self.key = key
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.deadline = deadline
        self.queue = queue
        self.run_at = run_at
        self._headers = headers
        self._stopping = False
        self._stop_reason: StopReason | None = None
        self._transaction: Transaction | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the record was enqueued with, read-only; empty without any.

        Stored headers that are no JSON object of texts (written by hand, say) read as empty: they are about the
        record, not part of its input, and do not fail the attempt.
        """
        # Stored text is parsed when somebody asks: most handlers never do.
        if not isinstance(self._headers, MappingProxyType):
            self._headers = _read(self._headers)
        return cast("Mapping[str, str]", self._headers)

    @property
    def stopping(self) -> bool:
        """Whether the handler should come to an end soon; a sync handler looks at this now and then (M6, O4, L3)."""
        return self._stopping

    @property
    def stop_reason(self) -> StopReason | None:
        """Why, set before an async handler's `CancelledError` arrives; None while nobody has to stop yet (R7).

        A shutdown sets `stopping` when it begins and the reason when the time for finishing is used up (M6).
        """
        return self._stop_reason

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if this attempt no longer owns its record (L3).

        For sync handlers, before an effect outside of the database: an async handler is cancelled instead.
        """
        if self._stop_reason is StopReason.LOST:
            raise LeaseLost(
                f"record {self.id} of job {self.job!r}: attempt {self.attempt} lost its hold, and nothing that it does "
                f"changes the record any more (L3); end the handler, another attempt has the record"
            )

    @property
    def connection(self) -> Connection:
        """The connection of the attempt's transaction, for a sync handler (L8).

        What is written on it commits together with the settlement, or not at all. Its `commit` and `rollback` raise.
        Raises `TransactionMisuse` in an async handler, and in a job that is not declared with `transactional=True`.
        """
        return self._own("ctx.connection").connection("ctx.connection")

    def session(self) -> Session:
        """The ORM session of the attempt's transaction, for a sync handler; the same at each call (L8).

        Raises `TransactionMisuse`, as `connection` does.
        """
        return self._own("ctx.session()").session("ctx.session()")

    @property
    def aconnection(self) -> AsyncConnection:
        """The connection of the attempt's transaction, for an async handler (L8). Raises `TransactionMisuse`."""
        return self._own("ctx.aconnection").async_connection("ctx.aconnection")

    def asession(self) -> AsyncSession:
        """The ORM session of the attempt's transaction, for an async handler (L8). Raises `TransactionMisuse`."""
        return self._own("ctx.asession()").async_session("ctx.asession()")

    def __repr__(self) -> str:
        return f"<Context id={self.id} job={self.job!r} attempt={self.attempt}/{self.max_attempts}>"

    def _stop(self, reason: StopReason | None = None) -> None:
        """Ask the handler to stop, by the worker; without a reason as yet while a shutdown lets it finish.

        The first reason stays, except that a lost hold outdoes every other: from then on nothing counts (L3).
        """
        # The reason first: who sees `stopping` from another thread finds it set.
        if self._stop_reason is None or reason is StopReason.LOST:
            self._stop_reason = reason
        self._stopping = True

    def _own(self, what: str) -> Transaction:
        if self._transaction is None:
            raise TransactionMisuse(
                f"{what} in job {self.job!r}, which has no transaction of its own (L8): declare the job with "
                f"transactional=True, or open a transaction yourself"
            )
        return self._transaction

    def _join(self, transaction: Transaction) -> None:
        """Give the handler its transaction, by the worker."""
        self._transaction = transaction


def _read(headers: object) -> Mapping[str, str]:
    if headers is None:
        return _NO_HEADERS
    if isinstance(headers, Mapping):
        return MappingProxyType(dict(cast("Mapping[str, str]", headers)))
    try:
        return MappingProxyType(msgspec.json.decode(cast("str | bytes", headers), type=dict[str, str]))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _NO_HEADERS
