from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated, Any, Never, NoReturn, Optional, TypedDict

import pytest

from rowlock import (
    Ack,
    Backoff,
    Context,
    CorruptPayload,
    Dead,
    DeclarationError,
    DeclarationTypeError,
    DirectCall,
    Drop,
    EncodeError,
    EncodeTypeError,
    Enqueued,
    EnqueueTypeError,
    EnqueueValueError,
    Job,
    Jobs,
    NotBuiltYet,
    NotIncluded,
    Outcome,
    Retry,
    RowlockError,
    State,
)
from rowlock.model.request import EnqueueRequest


@dataclass(frozen=True)
class Publish:
    article: int
    channel: str = "web"


@dataclass(frozen=True)
class OldPublish:
    article: int


class Note(TypedDict):
    text: str


POLICY: dict[str, Any] = {"max_attempts": 5, "timeout": 30}


class Host:
    """An application that only notes what it is asked to write."""

    payload_max = 1000

    def __init__(self) -> None:
        self.jobs: list[Job[Any, Any]] = []
        self.written: list[EnqueueRequest] = []
        self.calls = 0

    def adopt(self, jobs: Sequence[Job[Any, Any]]) -> None:
        self.jobs += jobs

    def enqueue(self, job: Any, requests: Any, connection: Any, detached: Any) -> list[Enqueued]:
        self.calls += 1
        self.written += requests
        return [Enqueued(number, True, State.PENDING) for number, _ in enumerate(requests, 1)]

    async def aenqueue(self, job: Any, requests: Any, connection: Any, detached: Any) -> list[Enqueued]:
        return self.enqueue(job, requests, connection, detached)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def host(jobs: Jobs) -> Host:
    host = Host()
    jobs.include_in(host)
    return host


@pytest.fixture
def publish(jobs: Jobs, host: Host) -> Job[Publish, Any]:
    @jobs.job(**POLICY, name="news.publish", priority=7, queue="news")
    def publish(input: Publish) -> None: ...

    return publish


def declared(text: str, **options: Any) -> Job[Any, Any]:
    """The job of the function `handler` in a module of this text."""
    names = {"__name__": "newsroom.job", "Publish": Publish, "OldPublish": OldPublish, "Note": Note, "Context": Context}
    names |= {"Any": Any, "Retry": Retry, "Dead": Dead, "functools": functools}
    exec(text, names)
    return Jobs().job(**{**POLICY, **options})(names["handler"])


# --- options (J1, J4) ----------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_contract(jobs: Jobs) -> None:
    # contract: J1
    @jobs.job(max_attempts=5, timeout=30)
    def job(input: Publish) -> None: ...

    assert (job.database, job.queue, job.priority) == ("default", "default", 100)
    assert (job.max_attempts, job.timeout) == (5, timedelta(seconds=30))
    assert (job.backoff, job.lease, job.overrun, job.aliases) == (None, None, None, ())
    assert job.dedupe_for == timedelta(0)


def test_every_option_is_kept(jobs: Jobs) -> None:
    # contract: J1 J4
    backoff = Backoff(base=1, cap=2)

    @jobs.job(
        max_attempts=100, timeout=timedelta(hours=1), name="a", aliases=["b", "c"], database="other", queue="q",
        priority=0, backoff=backoff, lease=7200, overrun=0.001, dedupe_for=timedelta(days=3_650),
    )  # fmt: skip
    def job() -> None: ...

    assert (job.names, job.database, job.queue, job.priority) == (("a", "b", "c"), "other", "q", 0)
    assert (job.backoff, job.lease, job.overrun) == (backoff, timedelta(hours=2), timedelta(milliseconds=1))
    assert job.dedupe_for == timedelta(days=3_650)


@pytest.mark.parametrize("missing", ["max_attempts", "timeout"])
def test_required_options_have_no_default(missing: str) -> None:
    # contract: J1 J5
    options = {option: value for option, value in POLICY.items() if option != missing}
    with pytest.raises(DeclarationTypeError, match=rf"job '.*test_job\..*refused' .*{missing} is missing.*J1"):

        @Jobs().job(**options)
        def refused() -> None: ...


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempts": 0}, r"max_attempts is 0, outside 1\.\.100"),
        ({"max_attempts": 101}, r"max_attempts is 101, outside 1\.\.100"),
        ({"timeout": 0}, "timeout=0 s is out of bounds"),
        ({"timeout": 0.0005}, r"timeout=0\.0005 s is out of bounds"),
        ({"timeout": 3600.001}, "timeout=.*1 ms to 3,600 s"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"priority": -1}, "priority is -1, outside 0..32,767"),
        ({"priority": 32_768}, "priority is 32768"),
        ({"queue": ""}, "queue is '', which is blank"),
        ({"queue": "q" * 129}, "queue has 129 bytes"),
        ({"queue": "é" * 65}, "queue has 130 bytes"),
        ({"queue": "a\0"}, "queue is .* NUL"),
        ({"queue": "\ud800"}, "queue is .* lone surrogate"),
        ({"lease": 0.099}, r"lease=0\.099 s is out of bounds: it must be 100 ms to 7,200 s"),
        ({"lease": 7201}, "lease=7201"),
        ({"overrun": 0}, "overrun=0 s is out of bounds"),
        ({"overrun": timedelta(hours=3)}, "overrun="),
        ({"dedupe_for": -0.001}, "dedupe_for=.*out of bounds"),
        ({"dedupe_for": timedelta(days=3_650, milliseconds=1)}, "dedupe_for=.*out of bounds"),
        ({"dedupe_for": float("inf")}, "dedupe_for=inf"),
        ({"name": " \t\u2003"}, "name is .* blank"),
        ({"name": "n" * 1025}, "name has 1,025 bytes"),
        ({"name": "a\0b"}, "name is .* NUL"),
        ({"aliases": ("b", "b")}, "alias 'b' repeats"),
        ({"name": "a", "aliases": ("a",)}, "alias 'a' repeats"),
        ({"aliases": ("",)}, "an alias is '', which is blank"),
        ({"database": ""}, "database is ''"),
        ({"executor": "fiber"}, "executor is 'fiber'"),
    ],
)
def test_a_value_out_of_bounds_is_refused(options: dict[str, Any], words: str) -> None:
    # contract: J1 J4 J5 M2
    with pytest.raises(DeclarationError, match=words) as caught:

        @Jobs().job(**{**POLICY, **options})
        def refused() -> None: ...

    assert not isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempts": True}, "max_attempts is True, not an int"),
        ({"max_attempts": "5"}, "max_attempts is '5', not an int"),
        ({"max_attempts": 5.0}, "max_attempts is 5.0, not an int"),
        ({"timeout": True}, "timeout must be a timedelta or a number of seconds"),
        ({"timeout": "30"}, "timeout must be a timedelta or a number of seconds"),
        ({"timeout": None}, "timeout must be"),
        ({"priority": None}, "priority is None"),
        ({"queue": None}, "queue is None"),
        ({"queue": b"q"}, "queue is an object of type bytes"),
        ({"name": 5}, "name is 5, not a str"),
        ({"aliases": "old"}, "aliases is 'old'"),
        ({"aliases": (5,)}, "an alias is 5"),
        ({"backoff": 5}, "backoff is 5"),
        ({"dedupe": 5}, "dedupe is no option of a job.*did you mean dedupe_for"),
        ({"qeue": "q"}, "did you mean queue"),
        ({"accepts": OldPublish}, "accepts is the class OldPublish"),
        ({"accepts": (OldPublish,)}, "accepts has the class OldPublish in it"),
        ({"accepts": ((OldPublish, 5),)}, "accepts has 5 as an upgrade"),
    ],
)
def test_a_wrong_kind_of_value_is_refused(options: dict[str, Any], words: str) -> None:
    # contract: J1 J5 Z1
    with pytest.raises(DeclarationTypeError, match=words):

        @Jobs().job(**{**POLICY, **options})
        def refused() -> None: ...


@pytest.mark.parametrize(
    "option",
    [
        {"executor": "process"},
    ],
)
def test_what_is_not_built_is_refused_and_named(option: dict[str, Any]) -> None:
    # contract: J1
    with pytest.raises(NotBuiltYet, match=next(iter(option))):

        @Jobs().job(**{**POLICY, **option})
        def refused() -> None: ...


def test_asking_for_nothing_of_what_is_not_built_is_harmless(jobs: Jobs) -> None:
    # contract: J1
    @jobs.job(**POLICY, schedule=None, executor="thread", overlap=None)
    def job() -> None: ...

    assert jobs.jobs == [job]


def test_queue_tables_are_not_built(jobs: Jobs) -> None:
    # contract: J1
    with pytest.raises(NotBuiltYet, match="queue tables"):
        jobs.subscribe(object(), workers=4)


def test_a_message_names_job_place_parameter_value_and_rule() -> None:
    # contract: J5
    with pytest.raises(DeclarationError) as caught:

        @Jobs().job(name="news.publish", max_attempts=0, timeout=1)
        def refused() -> None: ...

    message = str(caught.value)
    for word in ("'news.publish'", "test_job.py:", "max_attempts", "is 0", "1..100", "J1"):
        assert word in message


def test_the_default_name_is_module_and_qualified_name() -> None:
    # contract: J4
    assert declared("def handler() -> None: ...").name == "newsroom.job.handler"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ({"__file__": "/srv/app/main.py"}, "main.handler"),
        ({"__spec__": type("Spec", (), {"name": "newsroom.main"})(), "__file__": "/srv/x.py"}, "newsroom.main.handler"),
        ({}, "__main__.handler"),
    ],
)
def test_a_program_that_is_run_names_its_jobs_as_those_who_import_it(module: dict[str, Any], name: str) -> None:
    # contract: J4
    names: dict[str, Any] = {"__name__": "__main__", **module}
    exec("def handler() -> None: ...", names)
    assert Jobs().job(**POLICY)(names["handler"]).name == name


# --- signatures (J3) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("def handler() -> None: ...", ()),
        ("def handler(ctx: Context) -> None: ...", ("ctx",)),
        ("def handler(input: Publish) -> None: ...", ("input",)),
        ("def handler(anything: Publish, context: Context) -> None: ...", ("input", "ctx")),
        ("def handler(ctx: Context, input: Publish) -> None: ...", ("ctx", "input")),
        ("def handler(input: Publish, ctx: Context, /) -> None: ...", ("input", "ctx")),
        ("def handler(ctx: 'Context', input: 'Publish') -> 'None': ...", ("ctx", "input")),
        (
            "from __future__ import annotations\ndef handler(ctx: Context, input: Publish) -> None: ...",
            ("ctx", "input"),
        ),
        ("def handler(input: Note): ...", ("input",)),
    ],
)
@pytest.mark.parametrize("kind", ["", "async "])
def test_a_handler_takes_nothing_an_input_a_context_or_both(kind: str, text: str, arguments: tuple[str, ...]) -> None:
    # contract: J3
    job = declared(text.replace("def handler", f"{kind}def handler"))
    assert job.arguments("input", "ctx") == arguments
    assert job.wants_context == ("ctx" in arguments)
    assert job.takes_input == ("input" in arguments)
    assert job.is_async == bool(kind)


def test_types_may_be_local_to_a_function(jobs: Jobs) -> None:
    # contract: J3
    @dataclass
    class Inner:
        value: int

    @dataclass
    class Local:
        inner: Inner

    @jobs.job(**POLICY)
    def job(input: Local, ctx: Context) -> Retry | None: ...

    assert job.wire.python_type is Local


def test_types_may_come_from_the_handlers_closure() -> None:
    # contract: J3
    def make() -> Any:
        @dataclass
        class Local:
            value: int

        def handler(input: Local) -> None:
            Local(1)

        return handler

    assert Jobs().job(**POLICY)(make()).takes_input


@pytest.mark.parametrize(
    "annotation",
    [
        None, Ack, Retry, Outcome, Retry | None, Retry | Dead | Drop | None, Optional[Dead],  # noqa: UP045 - users still write it
        NoReturn, Never,
        Annotated[Retry | None, "why"], "Retry | None",
    ],
)  # fmt: skip
def test_it_returns_none_or_outcomes(annotation: Any) -> None:
    # contract: J3 R6
    def handler() -> None: ...

    handler.__annotations__["return"] = annotation
    assert Jobs().job(**POLICY)(handler)


@pytest.mark.parametrize("annotation", [int, str | None, Retry | int, object, Any, list[Retry], dict, "list[Ack]"])
def test_other_return_annotations_are_refused(annotation: Any) -> None:
    # contract: J3
    def handler() -> None: ...

    handler.__annotations__["return"] = annotation
    with pytest.raises(DeclarationTypeError, match=r"the return annotation has .* \(J3\)"):
        Jobs().job(**POLICY)(handler)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def handler(a: Publish, b: OldPublish) -> None: ...", "'a', 'b' are 2 inputs"),
        ("def handler(a: Context, b: Context) -> None: ...", "'a' and 'b' are both a Context"),
        ("def handler(a) -> None: ...", "parameter 'a' has no annotation"),
        ("def handler(a: Publish = None) -> None: ...", "has a default"),
        ("def handler(*a: Publish) -> None: ...", "takes any number of arguments"),
        ("def handler(**a: Publish) -> None: ...", "takes any keyword arguments"),
        ("def handler(*, a: Publish) -> None: ...", "is keyword-only"),
        ("def handler(a: int) -> None: ...", "parameter 'a': int: "),
        ("def handler(a: Any) -> None: ...", "parameter 'a': "),
        ("def handler(a: None) -> None: ...", "parameter 'a' is None"),
        ("def handler(a: 'Nowhere') -> None: ...", "'a' names 'Nowhere', which is not defined"),
        ("def handler(a: '1 +') -> None: ...", "the annotation of parameter 'a' can not be read"),
        ("def handler() -> None: yield", "a generator is no handler"),
        ("async def handler() -> None: yield", "a generator is no handler"),
        ("handler = lambda: None", "a lambda is no handler"),
        ("def f(a) -> None: ...\nhandler = functools.partial(f, 1)", "a functools.partial is no handler"),
        ("class handler: ...", "the class handler is no handler"),
        ("class C:\n  def __call__(self) -> None: ...\nhandler = C()", "an object of type C is no handler"),
        ("class C:\n  def m(self) -> None: ...\nhandler = C().m", "a method is no handler"),
        ("class C:\n  @classmethod\n  def m(cls) -> None: ...\nhandler = C.m", "a method is no handler"),
        ("class C:\n  @staticmethod\n  def m() -> None: ...\nhandler = C.m", "C.m is a method of a class"),
        ("class C:\n  def m(self: Publish) -> None: ...\nhandler = C.m", "C.m is a method of a class"),
        ("handler = print", "is no handler"),
        ("handler = None", "None is no handler"),
    ],
)
def test_other_handlers_are_refused(text: str, words: str) -> None:
    # contract: J3 J5
    with pytest.raises(DeclarationError, match=words) as caught:
        declared(text, name="news.refused")
    assert "'news.refused'" in str(caught.value)


def test_a_decorated_handler_is_read_through_its_wrapper(jobs: Jobs) -> None:
    # contract: J3
    def traced(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    @jobs.job(**POLICY)
    @traced
    def job(ctx: Context, input: Publish) -> None: ...

    assert (job.arguments(1, 2), job.is_async) == ((2, 1), False)

    async def later(input: Publish) -> None: ...

    with pytest.raises(DeclarationTypeError, match="sync wrapper around an async function"):
        jobs.job(**POLICY)(traced(later))


# --- the target (J2, J8) -------------------------------------------------------------------------------------


def test_a_job_is_not_a_function(publish: Job[Publish, Any]) -> None:
    # contract: J2 X4
    for arguments in [(), (Publish(1),), (1, 2, 3)]:
        with pytest.raises(DirectCall, match=r"'news.publish' is not a function.*\.enqueue.*\.handler") as caught:
            publish(*arguments)
        assert isinstance(caught.value, TypeError)


def test_the_handler_is_the_plain_function(jobs: Jobs) -> None:
    # contract: J2
    def handler(input: Publish) -> None: ...

    assert jobs.job(**POLICY)(handler).handler is handler


def test_a_job_shows_its_name_and_place_and_is_equal_to_itself_only(publish: Job[Publish, Any]) -> None:
    # contract: J5
    assert repr(publish).startswith("<Job 'news.publish' (test_job.py:")
    assert {publish: 1}[publish] == 1


def test_a_declared_job_has_the_same_limits_and_fingerprint(jobs: Jobs, publish: Job[Publish, Any]) -> None:
    # contract: J8
    remote = jobs.declare("media.render", input=Publish, **POLICY)
    assert remote.fingerprints == publish.fingerprints
    assert not remote.has_handler
    with pytest.raises(DeclarationError, match=r"'media.render' \(.*test_job.py:\d+\) is declared without a handler"):
        _ = remote.handler
    with pytest.raises(DeclarationError, match=r"job 'media.render' \(.*test_job.py:\d+\): max_attempts is 0"):
        jobs.declare("media.render", input=Publish, max_attempts=0, timeout=1)
    assert not jobs.declare("media.clock", **POLICY).takes_input


# --- groups (J11) --------------------------------------------------------------------------------------------


def test_a_group_gives_its_database() -> None:
    # contract: J11
    jobs = Jobs(database="reports")
    assert jobs.declare("a", **POLICY).database == "reports"
    assert jobs.declare("b", **POLICY, database="other").database == "other"
    with pytest.raises(DeclarationError, match="database is ''"):
        Jobs(database="")


def test_a_group_belongs_to_one_application(jobs: Jobs) -> None:
    # contract: J11
    job = jobs.declare("a", **POLICY)
    first = Host()
    jobs.include_in(first)
    jobs.include_in(first)
    assert first.jobs == [job]
    with pytest.raises(DeclarationError, match="belongs to another application"):
        jobs.include_in(Host())


def test_jobs_declared_after_the_inclusion_join_too(jobs: Jobs, host: Host) -> None:
    # contract: J11
    assert host.jobs == []
    assert host.jobs == [jobs.declare("late", **POLICY)]


async def _aenqueue(job: Job[Any, Any]) -> None:
    await job.aenqueue(Publish(1))


def test_enqueueing_before_the_inclusion_says_what_is_missing(jobs: Jobs) -> None:
    # contract: J11 J5
    job = jobs.declare("news.late", input=Publish, **POLICY)
    for enqueue in (lambda: job.enqueue(Publish(1)), lambda: job.enqueue_many([])):
        with pytest.raises(NotIncluded, match=r"'news.late'.*no application has included.*app.include"):
            enqueue()
    with pytest.raises(NotIncluded):
        _aenqueue(job).send(None)


# --- earlier inputs (J10) ------------------------------------------------------------------------------------


def accepting(upgrade: Any, old: Any = OldPublish) -> Job[Any, Any]:
    return Jobs().declare("news.publish", input=Publish, **POLICY, accepts=((old, upgrade),))


def test_an_earlier_payload_is_decoded_and_brought_to_the_present_type() -> None:
    # contract: J10
    job = accepting(lambda old: Publish(old.article, "old"))
    present, earlier = job.fingerprints
    assert [job.knows(each) for each in (present, earlier, "0" * 64)] == [True, True, False]
    assert job.decode(earlier, b'{"article":1}') == Publish(1, "old")
    assert job.decode(present, '{"article":1,"channel":"new"}') == Publish(1, "new")
    with pytest.raises(CorruptPayload):
        job.decode(earlier, b'{"article":1,"channel":"web"}')
    with pytest.raises(LookupError):
        job.decode("0" * 64, b"{}")


def test_a_job_may_once_have_had_no_input() -> None:
    # contract: J10
    job = accepting(lambda _: Publish(0), old=None)
    assert job.decode(job.fingerprints[1], b"null") == Publish(0)


def test_a_failing_upgrade_passes_its_error_on() -> None:
    # contract: J10 R4
    def upgrade(old: OldPublish) -> Publish:
        raise ZeroDivisionError

    job = accepting(upgrade)
    with pytest.raises(ZeroDivisionError):
        job.decode(job.fingerprints[1], b'{"article":1}')


def test_an_upgrade_to_something_else_is_an_error() -> None:
    # contract: J10
    job = accepting(lambda old: old)
    with pytest.raises(TypeError, match="answered OldPublish, not Publish"):
        job.decode(job.fingerprints[1], b'{"article":1}')


@dataclass
class SameShape:
    channel: str
    article: int


async def _upgrade_later(old: OldPublish) -> Publish:
    return Publish(old.article)


@pytest.mark.parametrize(
    ("accepts", "words"),
    [
        (((SameShape, print),), "SameShape, whose schema equals"),
        (((OldPublish, print), (OldPublish, print)), "OldPublish, whose schema equals"),
        (((OldPublish, _upgrade_later),), "async function as an upgrade"),
        (((int, print),), "accepts: int"),
    ],
)
def test_bad_earlier_inputs_are_refused(accepts: Any, words: str) -> None:
    # contract: J10 J5
    with pytest.raises(DeclarationError, match=f"job 'news.publish'.*{words}"):
        Jobs().declare("news.publish", input=Publish, **POLICY, accepts=accepts)


# --- what one enqueue asks for (E1, E4, E6) ------------------------------------------------------------------


def test_a_plain_enqueue_takes_the_jobs_own_policy(publish: Job[Publish, Any], host: Host) -> None:
    # contract: E1
    assert publish.enqueue(Publish(1)) == Enqueued(1, True, State.PENDING)
    (request,) = host.written
    assert request == EnqueueRequest(
        '{"article":1,"channel":"web"}', publish.wire.fingerprint, None, None, None, 7, "news", None
    )


def test_every_option_reaches_the_record(publish: Job[Publish, Any], host: Host) -> None:
    # contract: E1 E4 E6 S2
    when = datetime(2027, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    publish.enqueue(Publish(1), key="k", run_at=when, priority=0, queue="other", headers={"trace": "é"})
    (request,) = host.written
    assert (request.key, request.priority, request.queue) == ("k", 0, "other")
    assert (request.run_at, request.delay_ms) == (datetime(2027, 1, 1, tzinfo=UTC), None)
    assert request.headers == '{"trace":"é"}'


@pytest.mark.parametrize(
    ("delay", "delay_ms"),
    [
        (0, 0),
        (1.5, 1500),
        (timedelta(hours=1), 3_600_000),
        (timedelta(microseconds=1), 1),
        (timedelta(days=3650), 315_360_000_000),
    ],
)
def test_a_delay_is_rounded_up_to_milliseconds(
    publish: Job[Publish, Any], host: Host, delay: Any, delay_ms: int
) -> None:
    # contract: E6
    publish.enqueue(Publish(1), delay=delay)
    assert host.written[0].delay_ms == delay_ms


@pytest.mark.parametrize(
    "run_at", [datetime.min.replace(tzinfo=UTC), datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))]
)
def test_any_instant_in_the_past_is_fine(publish: Job[Publish, Any], host: Host, run_at: datetime) -> None:
    # contract: E6
    publish.enqueue(Publish(1), run_at=run_at)
    assert host.written[0].run_at == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("key", ["k", "k" * 1024, "é" * 512, " k ", "ключ", "a\nb"])
def test_keys_up_to_the_bound_are_kept_as_they_are(publish: Job[Publish, Any], host: Host, key: str) -> None:
    # contract: E4
    publish.enqueue(Publish(1), key=key)
    assert host.written[0].key == key


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": ""}, "key is '', which is blank"),
        ({"key": " \t\n\u2003"}, "key is .* blank"),
        ({"key": "k" * 1025}, "key has 1,025 bytes"),
        ({"key": "é" * 513}, "key has 1,026 bytes"),
        ({"key": "a\0b"}, "key is .* NUL"),
        ({"key": "\ud800"}, "key is .* lone surrogate"),
        ({"delay": -0.001}, "delay=.*out of bounds"),
        ({"delay": timedelta(days=3654)}, "delay=.*out of bounds"),
        ({"delay": float("inf")}, "delay=inf"),
        ({"delay": 1, "run_at": datetime(2027, 1, 1, tzinfo=UTC)}, "exclude each other"),
        ({"run_at": datetime(2027, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))}, "later than 9999-12-31"),
        ({"priority": -1}, "priority is -1"),
        ({"priority": 32_768}, "priority is 32768"),
        ({"queue": ""}, "queue is ''"),
        ({"queue": "q" * 129}, "queue has 129 bytes"),
        ({"headers": {str(n): "" for n in range(33)}}, "headers has 33 entries"),
        ({"headers": {"a": "b" * 8192}}, "headers has 8,193 bytes"),
        ({"headers": {"a": "\0"}}, "headers has a NUL"),
        ({"headers": {"a": "\udfff"}}, "headers has a lone surrogate"),
        ({"headers": {"": "b"}}, "headers has an empty name"),
    ],
)
def test_options_out_of_bounds_are_refused_before_any_write(
    publish: Job[Publish, Any], host: Host, options: dict[str, Any], words: str
) -> None:
    # contract: E4 E6
    with pytest.raises(EnqueueValueError, match=f"job 'news.publish': .*{words}") as caught:
        publish.enqueue(Publish(1), **options)
    assert not isinstance(caught.value, TypeError)
    assert host.calls == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": 5}, "key is 5, not a str"),
        ({"key": b"k"}, "key is an object of type bytes"),
        ({"delay": "1h"}, "delay must be"),
        ({"delay": True}, "delay must be"),
        ({"run_at": "tomorrow"}, "run_at is 'tomorrow', not a datetime"),
        ({"run_at": 1_800_000_000}, "run_at is 1800000000"),
        ({"priority": True}, "priority is True"),
        ({"queue": 5}, "queue is 5"),
        ({"headers": "a=b"}, "headers is 'a=b', not a mapping"),
        ({"headers": {"a": 5}}, "headers has 5 in it"),
        ({"headers": {5: "a"}}, "headers has 5 in it"),
        ({"dealy": 5}, "unknown option 'dealy'.*did you mean delay"),
        ({"when": 5}, "unknown option 'when'.*the options are delay, headers"),
    ],
)
def test_options_of_a_wrong_kind_are_refused_before_any_write(
    publish: Job[Publish, Any], host: Host, options: dict[str, Any], words: str
) -> None:
    # contract: E1 Z1
    with pytest.raises(EnqueueTypeError, match=words):
        publish.enqueue(Publish(1), **options)
    assert host.calls == 0


def test_options_that_are_none_are_not_given(publish: Job[Publish, Any], host: Host) -> None:
    # contract: E1
    publish.enqueue(Publish(1), key=None, run_at=None, delay=None, priority=None, queue=None, headers=None)
    publish.enqueue(Publish(1), headers={})
    publish.enqueue(Publish(1))
    assert host.written[0] == host.written[1] == host.written[2]


def test_a_wrong_input_is_refused_before_any_write(publish: Job[Publish, Any], host: Host) -> None:
    # contract: W2 W3 E1
    for wrong in (OldPublish(1), None, {"article": 1}, Publish("1"), Publish):
        with pytest.raises(EncodeTypeError, match=r"job 'news\.publish': "):
            publish.enqueue(wrong)
    with pytest.raises(EncodeError, match=r"job 'news\.publish': Publish\.article"):
        publish.enqueue(Publish(2**63))
    with pytest.raises(TypeError, match="the input is missing"):
        publish.enqueue()
    assert host.calls == 0


def test_a_payload_is_bounded_in_bytes(publish: Job[Publish, Any], host: Host) -> None:
    # contract: W3
    frame = len('{"article":1,"channel":""}')
    publish.enqueue(Publish(1, "x" * (1000 - frame)))
    for channel in ("x" * (1001 - frame), "é" * 500):
        with pytest.raises(
            EncodeError, match=r"the payload has 1,\d\d\d bytes, more than payload_max of 1,000"
        ) as caught:
            publish.enqueue(Publish(1, channel))
        assert channel not in str(caught.value)
    assert host.calls == 1


def test_a_job_without_input_takes_none(jobs: Jobs, host: Host) -> None:
    # contract: E1 J3
    job = jobs.declare("clean", **POLICY)
    job.enqueue()
    job.enqueue(key="once")
    assert [(request.payload, request.key) for request in host.written] == [("null", None), ("null", "once")]
    with pytest.raises(EnqueueTypeError, match=r"takes no input.*was given a Publish"):
        job.enqueue(Publish(1))


def test_many_are_one_call_in_order(publish: Job[Publish, Any], host: Host) -> None:
    # contract: E1
    answers = publish.enqueue_many(
        (Publish(n) if n % 2 else (Publish(n), {"key": str(n), "delay": n}) for n in range(4)),
    )
    assert [answer.id for answer in answers] == [1, 2, 3, 4]
    assert host.calls == 1
    assert [request.key for request in host.written] == ["0", None, "2", None]
    assert publish.enqueue_many([]) == []


@pytest.mark.parametrize(
    ("item", "error"),
    [
        (OldPublish(1), EncodeTypeError),
        ((Publish(1), {"key": ""}), EnqueueValueError),
        ((Publish(1), {"dealy": 1}), EnqueueTypeError),
        ((Publish(1), {"connection": None}), EnqueueTypeError),
        ((Publish(1), "key"), EnqueueTypeError),
        ((Publish(1),), EnqueueTypeError),
        (None, EncodeTypeError),
    ],
)
def test_one_bad_item_refuses_the_whole_call_and_is_named(
    publish: Job[Publish, Any], host: Host, item: Any, error: type[RowlockError]
) -> None:
    # contract: E1 (C52)
    with pytest.raises(error, match=r"job 'news\.publish', item 2: "):
        publish.enqueue_many([Publish(1), Publish(2), item, Publish(3)])
    assert host.calls == 0


def test_the_async_doors_ask_for_the_same(publish: Job[Publish, Any], host: Host) -> None:
    # contract: E1
    def finished(coroutine: Any) -> Any:
        with pytest.raises(StopIteration) as ended:
            coroutine.send(None)
        return ended.value.value

    assert finished(publish.aenqueue(Publish(1), key="k")) == publish.enqueue(Publish(1), key="k")
    assert finished(publish.aenqueue_many([Publish(1)])) == publish.enqueue_many([Publish(1)])
    assert host.written[0::2] == host.written[1::2]
