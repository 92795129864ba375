"""A declared job: its name, its policy, its wire type, and the doors through which it is enqueued (J, E1)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, Unpack, overload

from rowlock.errors import DeclarationError, DirectCall, EncodeError, EnqueueTypeError, NotIncluded
from rowlock.model.accepts import Inputs
from rowlock.model.backoff import Backoff
from rowlock.model.policy import Policy
from rowlock.model.request import Enqueued, EnqueueOptions, EnqueueRequest, request, split_item
from rowlock.model.schedule import Schedule
from rowlock.model.signature import Signature
from rowlock.model.site import Site
from rowlock.model.wire import NO_INPUT, WireType

if TYPE_CHECKING:  # the ground floor knows callers' connections by type only; it does no I/O
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    SyncConnection: TypeAlias = Session | scoped_session[Any] | Connection
    AnyAsyncConnection: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection

In = TypeVar("In")
H = TypeVar("H")

_MISSING: Any = object()


class Enqueuer(Protocol):
    """What a job knows of its application: the way to enqueue (architecture: floors)."""

    @property
    def payload_max(self) -> int:
        """The most bytes of an encoded payload (W3)."""
        ...

    def enqueue(
        self, job: Job[Any, Any], requests: Sequence[EnqueueRequest], connection: object, detached: bool
    ) -> list[Enqueued]:
        """Write `requests`, in order, in the caller's transaction or in one of its own (E2)."""
        ...

    def aenqueue(
        self, job: Job[Any, Any], requests: Sequence[EnqueueRequest], connection: object, detached: bool
    ) -> Awaitable[list[Enqueued]]:
        """The same from a coroutine."""
        ...


class Owner(Protocol):
    """The group that a job is declared on; it knows the application once it is included (J11)."""

    @property
    def app(self) -> Enqueuer | None:
        """The application, None before it included the group."""
        ...


class Job(Generic[In, H]):
    """A durable entry point (J). Made by `@jobs.job(…)` or `jobs.declare(…)`, never directly.

    It is a target, not a function: enqueue it, or call `.handler` in a unit test (J2).
    """

    def __init__(
        self,
        owner: Owner,
        name: str,
        policy: Policy,
        inputs: Inputs[In],
        *,
        handler: H | None,
        signature: Signature | None,
        site: Site,
    ) -> None:
        self._owner = owner
        self._handler = handler
        self._signature = signature
        self.name = name
        self.module, self.file, self.line = site
        self.database: str = policy.database
        self.queue: str = policy.queue
        self.priority: int = policy.priority
        self.max_attempts: int = policy.max_attempts
        self.timeout: timedelta = policy.timeout
        self.backoff: Backoff | None = policy.backoff
        self.lease: timedelta | None = policy.lease
        self.overrun: timedelta | None = policy.overrun
        self.transactional: bool = policy.transactional
        self.dedupe_for: timedelta = policy.dedupe_for
        self.aliases: tuple[str, ...] = policy.aliases
        self.schedule: Schedule | None = policy.schedule
        self.wire: WireType[In] = inputs.present
        self._inputs = inputs

    def __repr__(self) -> str:
        return f"<Job {self.name!r} ({PurePath(self.file).name}:{self.line})>"

    if not TYPE_CHECKING:  # absent from the static type, so that a type checker refuses the call too (J2)

        def __call__(self, *_args: object, **_kwargs: object) -> None:
            """Refused, whatever the arguments."""
            raise DirectCall(
                f"job {self.name!r} is not a function (J2): enqueue it with .enqueue(…) or await .aenqueue(…), "
                f"or call .handler(…) in a unit test"
            )

    # --- what the job is ----------------------------------------------------------------------------------

    @property
    def handler(self) -> H:
        """The plain function, for unit tests (J2). A job that is only declared has none: DeclarationError (J8)."""
        if self._handler is None:
            raise DeclarationError(
                f"job {self.name!r} ({self.file}:{self.line}) is declared without a handler (J8): "
                f"its handler lives in another program"
            )
        return self._handler

    @property
    def has_handler(self) -> bool:
        """False for a job whose handler lives in another program (J8)."""
        return self._handler is not None

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function."""
        return self._signature is not None and self._signature.is_async

    @property
    def wants_context(self) -> bool:
        """Whether the handler takes a Context."""
        return self._signature is not None and self._signature.wants_context

    @property
    def takes_input(self) -> bool:
        """Whether the job has an input record at all (J3)."""
        return self.wire is not NO_INPUT

    @property
    def names(self) -> tuple[str, ...]:
        """The name, then the aliases: every name under which records are this job's (J4)."""
        return (self.name, *self.aliases)

    def arguments(self, input: object, context: object) -> tuple[object, ...]:
        """The handler's arguments in its own order."""
        if self._signature is None:
            raise DeclarationError(f"job {self.name!r} has no handler to call (J8)")
        return self._signature.arguments(input, context)

    # --- payloads (J10) -----------------------------------------------------------------------------------

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The present input's fingerprint, then those that `accepts` names (W4, J10)."""
        return self._inputs.fingerprints

    def knows(self, fingerprint: str) -> bool:
        """Whether a payload stored under this fingerprint can be decoded."""
        return self._inputs.knows(fingerprint)

    def decode(self, fingerprint: str, payload: bytes | str) -> In:
        """The input of a stored payload, an earlier type brought to the present one (J10).

        Raises CorruptPayload; what an upgrade function raises passes through, for the attempt to judge (R4); so does
        a TypeError if an upgrade answers something else than the present type. LookupError: not `knows(fingerprint)`.
        """
        return self._inputs.decode(fingerprint, payload)

    # --- enqueueing (E1) ----------------------------------------------------------------------------------

    @overload
    def enqueue(
        self: Job[None, Any],
        input: None = None,
        *,
        connection: SyncConnection | None = None,
        detached: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued: ...
    @overload
    def enqueue(
        self,
        input: In,
        *,
        connection: SyncConnection | None = None,
        detached: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued: ...
    def enqueue(
        self, input: Any = _MISSING, *, connection: object = None, detached: bool = False, **options: Any
    ) -> Enqueued:
        """Enqueue one record (E1).

        Arguments: `input` what the handler takes; `connection` a SQLAlchemy Session, scoped_session or Connection in
        whose transaction the record is written, else the bound one (`app.bind`), else a short transaction of its own;
        `detached` leaves the bound one aside; the options are those of `EnqueueOptions`. Answers `Enqueued`: a
        duplicate is a value. Before anything is written: EncodeError, EnqueueValueError, ConnectionTypeError,
        WrongDatabase, NotIncluded, NotMigrated. Then EnqueueBusy, TransactionConflict. (E1-E6)
        """
        app = self._app()
        requests = self._one(app, input, options)
        return app.enqueue(self, requests, connection, detached)[0]

    @overload
    async def aenqueue(
        self: Job[None, Any],
        input: None = None,
        *,
        connection: AnyAsyncConnection | None = None,
        detached: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued: ...
    @overload
    async def aenqueue(
        self,
        input: In,
        *,
        connection: AnyAsyncConnection | None = None,
        detached: bool = False,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued: ...
    async def aenqueue(
        self, input: Any = _MISSING, *, connection: object = None, detached: bool = False, **options: Any
    ) -> Enqueued:
        """`enqueue` from a coroutine: `connection` is an AsyncSession, async_scoped_session or AsyncConnection (E2)."""
        app = self._app()
        requests = self._one(app, input, options)
        return (await app.aenqueue(self, requests, connection, detached))[0]

    def enqueue_many(
        self,
        items: Iterable[In | tuple[In, EnqueueOptions]],
        *,
        connection: SyncConnection | None = None,
        detached: bool = False,
    ) -> list[Enqueued]:
        """Enqueue any number of records set-wise (E1).

        `items` are inputs, or pairs of an input and its `EnqueueOptions`. Answers one `Enqueued` for each, in order.
        An invalid item refuses the whole call before anything is written; the message names its index. Otherwise as
        `enqueue`.
        """
        app = self._app()
        return app.enqueue(self, self._many(app, items), connection, detached)

    async def aenqueue_many(
        self,
        items: Iterable[In | tuple[In, EnqueueOptions]],
        *,
        connection: AnyAsyncConnection | None = None,
        detached: bool = False,
    ) -> list[Enqueued]:
        """`enqueue_many` from a coroutine (E1)."""
        app = self._app()
        return await app.aenqueue(self, self._many(app, items), connection, detached)

    def _app(self) -> Enqueuer:
        app = self._owner.app
        if app is None:
            raise NotIncluded(
                f"job {self.name!r} ({self.file}:{self.line}) belongs to a group that no application has included "
                f"(J11): say app.include(jobs), or name the module in App(include=[…]), and import the application"
            )
        return app

    def _one(self, app: Enqueuer, value: Any, options: Mapping[str, object]) -> list[EnqueueRequest]:
        who = f"job {self.name!r}"
        if value is _MISSING:
            if self.takes_input:
                raise EnqueueTypeError(f"{who}: the input is missing (J3); give a {self.wire.name}")
            value = None
        return [self._request(value, options, app.payload_max, who)]

    def _many(self, app: Enqueuer, items: Iterable[Any]) -> list[EnqueueRequest]:
        requests: list[EnqueueRequest] = []
        for index, item in enumerate(items):
            who = f"job {self.name!r}, item {index}"
            value, options = split_item(item, who=who)
            requests.append(self._request(value, options, app.payload_max, who))
        return requests

    def _request(self, value: Any, options: Mapping[str, object], payload_max: int, who: str) -> EnqueueRequest:
        if value is not None and not self.takes_input:
            kind: str = type(value).__name__
            raise EnqueueTypeError(f"{who}: this job takes no input (J3), but was given a {kind}; leave it out")
        wire: WireType[Any] = self.wire
        try:
            payload = wire.encode(value)
        except EncodeError as exc:
            exc.args = (f"{who}: {exc}",)
            raise
        # A character is at most 4 bytes of UTF-8; most payloads need no second look.
        if len(payload) * 4 > payload_max and (size := len(payload.encode())) > payload_max:
            raise EncodeError(
                f"{who}: the payload has {size:,} bytes, more than payload_max of {payload_max:,} (W3); "
                f"store the data elsewhere and enqueue its id"
            )
        return request(payload, wire.fingerprint, options, priority=self.priority, queue=self.queue, who=who)
