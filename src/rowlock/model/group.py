"""A group of jobs: what a domain module declares on, without knowing any application (J11)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import FrameType
from typing import Any, Never, Protocol, TypeAlias, TypeVar, Unpack, cast, overload

from rowlock.errors import DeclarationError, NotBuiltYet
from rowlock.model.accepts import Inputs
from rowlock.model.context import Context
from rowlock.model.job import Enqueuer, In, Job
from rowlock.model.limits import shown
from rowlock.model.outcome import Outcome
from rowlock.model.policy import DeclareOptions, JobOptions, Policy, database_name, job_name, read_policy
from rowlock.model.signature import Signature, names_around, read_signature, require_function
from rowlock.model.site import Site, caller, import_name, local_names, site_of
from rowlock.model.wire import NO_INPUT, WireType, wire_type

Answer: TypeAlias = Outcome | None
R = TypeVar("R", bound=Answer | Coroutine[Any, Any, Answer])


class Host(Enqueuer, Protocol):
    """What a group needs of the application that includes it."""

    def adopt(self, jobs: Sequence[Job[Any, Any]]) -> None:
        """Take jobs in, all or none: at inclusion, and each one declared later. DeclarationError: taken name (J4)."""
        ...


_groups: weakref.WeakSet[Jobs] = weakref.WeakSet()


def groups() -> list[Jobs]:
    """The groups of this process, in order of declaration: `check` reports those that nobody includes (J11)."""
    return sorted(_groups, key=lambda group: group.site)


class Jobs:
    """A group of jobs of one database (J11). It belongs to one application once `app.include(jobs)` has run.

    `database` is the name of a configured database, the default of the group's jobs. Raises DeclarationError.
    """

    def __init__(self, database: str = "default") -> None:
        self.database = database_name(database, who="Jobs")
        self._jobs: list[Job[Any, Any]] = []
        self._app: Host | None = None
        self.site = site_of(caller())
        _groups.add(self)

    def __repr__(self) -> str:
        return f"<Jobs of {self.site.module} ({self.site}), {len(self._jobs)} jobs>"

    @property
    def app(self) -> Enqueuer | None:
        """The application that included this group; None before."""
        return self._app

    @property
    def jobs(self) -> list[Job[Any, Any]]:
        """The declared jobs, in order."""
        return list(self._jobs)

    def include_in(self, app: Host) -> None:
        """Join `app`; again is harmless, another application is refused with DeclarationError. (J11)"""
        if self._app is app:
            return
        if self._app is not None:
            raise DeclarationError(f"{self!r} belongs to another application already (J11); a group belongs to one App")
        app.adopt(self._jobs)
        self._app = app

    def job(self, **options: Unpack[JobOptions]) -> Declarator:
        """Declare a function as a job: `@jobs.job(max_attempts=5, timeout=30)` (J1).

        `max_attempts` and `timeout` are required; `JobOptions` has every option with its bounds. The function takes
        nothing, one wire-safe record, a Context, or both, and returns None or an outcome (J3). Raises
        DeclarationError, DeclarationTypeError for a wrong kind, NotBuiltYet.
        """
        return Declarator(self, options)

    @overload
    def declare(self, name: str, *, input: type[In], **options: Unpack[DeclareOptions]) -> Job[In, None]: ...
    @overload
    def declare(self, name: str, *, input: None = None, **options: Unpack[DeclareOptions]) -> Job[None, None]: ...
    def declare(self, name: str, *, input: Any = None, **options: Any) -> Job[Any, Any]:
        """Declare a job whose handler lives in another program (J8): the same typing, limits and fingerprint.

        `input` is its record type, None for a job without input; the options are those of `job`.
        """
        return self.declare_at(caller(), name, input, options)

    def subscribe(self, table: object, **options: object) -> Never:
        """Consume a queue table of the user's own (Q). Refused: this version does not have it."""
        raise NotBuiltYet(
            "jobs.subscribe: this version does not have queue tables (J1); enqueue records of a job instead"
        )

    # --- for the decorator and for App --------------------------------------------------------------------

    def declare_at(self, frame: FrameType, name: str, input: Any, options: Mapping[str, object]) -> Job[Any, Any]:
        """`declare`, for the code that `frame` runs."""
        site, names = site_of(frame), local_names(frame)
        name = job_name(name, what=f"a job ({site}): name")
        where = f"job {shown(name)} ({site})"
        wire: WireType[Any] = NO_INPUT
        if input is not None:
            wire = wire_type(input, where=f"{where}: input", localns=names)
        return self._add(where, name, wire, options, names, None, None, site)

    def declare_handler(
        self, frame: FrameType, handler: Callable[..., Any], options: Mapping[str, object]
    ) -> Job[Any, Any]:
        """Declare `handler`, for the code that `frame` runs."""
        given = options.get("name")
        label = given or getattr(handler, "__qualname__", None) or type(handler).__name__
        function = require_function(handler, job=f"job {shown(label)} ({site_of(frame)})")
        code = function.__code__
        site = Site(import_name(function.__globals__), code.co_filename, code.co_firstlineno)
        default = f"{site.module}.{function.__qualname__}"
        where = f"job {shown(given) if isinstance(given, str) else repr(default)} ({site})"
        name = job_name(default if given is None else given, what=f"{where}: name")
        names = names_around(handler, local_names(frame))
        signature = read_signature(handler, job=where, names=names)
        wire: WireType[Any] = NO_INPUT
        if signature.input_name is not None:
            parameter = f"{where}: parameter {signature.input_name!r}"
            wire = wire_type(signature.input_type, where=parameter, localns=names)
        rest = {option: value for option, value in options.items() if option != "name"}
        return self._add(where, name, wire, rest, names, handler, signature, site)

    def _add(
        self,
        where: str,
        name: str,
        wire: WireType[Any],
        options: Mapping[str, object],
        names: Mapping[str, Any],
        handler: Callable[..., Any] | None,
        signature: Signature | None,
        site: Site,
    ) -> Job[Any, Any]:
        policy = read_policy(options, job=where, name=name, database=self.database)
        _refuse_schedule(policy, where, wire, handler)
        inputs = Inputs(wire, where)
        inputs.accept(policy.accepts, names=names)
        job: Job[Any, Any] = Job(self, name, policy, inputs, handler=handler, signature=signature, site=site)
        if self._app is not None:
            self._app.adopt([job])
        self._jobs.append(job)
        return job


def _refuse_schedule(policy: Policy, where: str, wire: WireType[Any], handler: Callable[..., Any] | None) -> None:
    if policy.schedule is None:
        return
    if wire is not NO_INPUT:
        raise DeclarationError(
            f"{where}: schedule={policy.schedule.cron.text!r} is given to a job with an input, which nobody would give "
            f"it (T3); schedule a job without input, that enqueues this one"
        )
    if handler is None:
        raise DeclarationError(
            f"{where}: schedule={policy.schedule.cron.text!r} is given to a job whose handler lives in another program "
            f"(T3, J8); declare the schedule beside the handler"
        )


class Declarator:
    """What `jobs.job(…)` answers: the decorator, typed by what the handler takes (J3)."""

    def __init__(self, group: Jobs, options: JobOptions) -> None:
        self._group = group
        self._options = options

    @overload
    def __call__(self, handler: Callable[[], R], /) -> Job[None, Callable[[], R]]: ...
    @overload
    def __call__(self, handler: Callable[[Context], R], /) -> Job[None, Callable[[Context], R]]: ...
    @overload
    def __call__(self, handler: Callable[[In], R], /) -> Job[In, Callable[[In], R]]: ...
    @overload
    def __call__(self, handler: Callable[[In, Context], R], /) -> Job[In, Callable[[In, Context], R]]: ...
    @overload
    def __call__(self, handler: Callable[[Context, In], R], /) -> Job[In, Callable[[Context, In], R]]: ...
    def __call__(self, handler: Callable[..., Any], /) -> Job[Any, Any]:
        """Declare `handler`."""
        return self._group.declare_handler(caller(), handler, cast("Mapping[str, object]", self._options))
