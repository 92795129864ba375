from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, registry, scoped_session, sessionmaker

from rowlock import (
    App,
    ConnectionTypeError,
    Context,
    DeclarationError,
    DeclarationTypeError,
    EnqueueValueError,
    FilterError,
    Job,
    Jobs,
    Lease,
    NotBuiltYet,
    NotFound,
    NotMigrated,
    SettingsError,
    StartRefused,
    State,
    UnsupportedDatabase,
)

POLICY: dict[str, Any] = {"max_attempts": 5, "timeout": 30}


@dataclass(frozen=True)
class Publish:
    article: int


@dataclass
class News:
    """An application on a file of its own, a job, and an engine of the user's on the same file."""

    app: App
    publish: Job[Publish, Any]
    url: str
    engine: sa.Engine

    def keys(self) -> list[str | None]:
        return sorted(str(record.key) for record in self.app.records.list().items)


@pytest.fixture
def news(tmp_path: Path) -> Iterator[News]:
    url = f"sqlite:///{tmp_path}/news.db"
    app = App(url)

    @app.job(**POLICY, name="news.publish")
    def publish(input: Publish) -> None: ...

    app.migrate()
    engine = sa.create_engine(url)
    yield News(app, publish, url, engine)
    engine.dispose()
    app.close()


# --- declaring and including (J4, J11) -------------------------------------------------------------------------


def test_an_application_needs_no_database_to_declare() -> None:
    # contract: J11 X5
    app = App()
    job = app.declare("a", input=Publish, **POLICY, aliases=("b",))
    assert app.jobs == {"a": job, "b": job}
    assert app.job_for("b") is job
    assert app.job_for("c") is None
    with pytest.raises(DeclarationError, match=r"'a' .*on the database 'default', and none is configured"):
        job.enqueue(Publish(1))


@pytest.mark.parametrize(
    ("first", "second"), [(("a", ()), ("a", ())), (("a", ("b",)), ("b", ())), (("a", ("c",)), ("b", ("c",)))]
)
def test_a_taken_name_or_alias_is_refused(first: Any, second: Any) -> None:
    # contract: J4 J5 (C58)
    app, one, other = App(), Jobs(), Jobs()
    one.declare(first[0], **POLICY, aliases=first[1])
    other.declare("untouched", **POLICY)
    other.declare(second[0], **POLICY, aliases=second[1])
    app.include(one)
    with pytest.raises(DeclarationError, match=r"the name or alias .* is that of 'a' \(.*test_app.py:\d+\) already"):
        app.include(other)
    assert "untouched" not in app.jobs  # all or none
    assert other.app is None
    with pytest.raises(DeclarationError, match="already"):
        app.declare(second[0], **POLICY, aliases=second[1])


def test_a_group_is_included_once(news: News) -> None:
    # contract: J11
    jobs = Jobs()
    late = jobs.declare("late", **POLICY)
    news.app.include(jobs, jobs)
    news.app.include(jobs)
    assert late.enqueue().created
    with pytest.raises(DeclarationError, match="belongs to another application"):
        App(include=[jobs])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """`package({"job.py": text, …})` writes a package and answers its name."""
    name = f"package_{tmp_path.name}"

    def write(files: dict[str, str]) -> str:
        for file, text in {"__init__.py": "", **files}.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


JOB = "from rowlock import Jobs\njobs = Jobs()\njobs.declare({!r}, max_attempts=1, timeout=1)\n"


def test_modules_are_included_by_name(package: Callable[..., str]) -> None:
    # contract: J11
    name = package({"article.py": JOB.format("a"), "other.py": JOB.format("b")})
    app = App(include=[f"{name}.article"])
    app.include(f"{name}.other", f"{name}.other")
    assert sorted(app.jobs) == ["a", "b"]


def test_a_job_package_is_included_with_its_topics(package: Callable[..., str]) -> None:
    # contract: J7 J11
    name = package({"job/__init__.py": "", "job/mail.py": JOB.format("mail"), "job/feed.py": JOB.format("feed")})
    assert sorted(App(include=[f"{name}.job"]).jobs) == ["feed", "mail"]


@pytest.mark.parametrize(
    ("files", "module", "words"),
    [
        ({}, ".nowhere", "there is no module '.*nowhere'"),
        ({"job.py": "x = 1"}, ".job", "has no Jobs group in its namespace"),
    ],
)
def test_a_module_without_jobs_is_refused(
    package: Callable[..., str], files: dict[str, str], module: str, words: str
) -> None:
    # contract: J11 J5
    with pytest.raises(DeclarationError, match=words):
        App(include=[package(files) + module])


def test_what_a_module_fails_with_passes_through(package: Callable[..., str]) -> None:
    # contract: J5
    name = package({"job.py": "import nowhere_to_be_found", "other.py": "1 / 0"})
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        App(include=[f"{name}.job"])
    with pytest.raises(ZeroDivisionError):
        App(include=[f"{name}.other"])


@pytest.mark.parametrize("include", ["newsroom.job", [5], 5, [Publish]])
def test_other_things_are_not_included(include: Any) -> None:
    # contract: J11 Z1
    with pytest.raises(DeclarationTypeError, match="J11"):
        App(include=include)


# --- databases and settings (M1, J5) ---------------------------------------------------------------------------


def test_databases_are_given_in_code_in_settings_or_partly_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # contract: M1
    engine = sa.create_engine("sqlite:///c.db")
    app = App(
        "sqlite:///a.db",
        databases={"b": sa.make_url("sqlite:///b.db"), "c": engine},
        settings={"database": {"default": {"pool": 3}, "d": {"url": {"env": "D_URL"}}}, "job": {"enqueue_wait_ms": 5}},
    )
    monkeypatch.setenv("D_URL", "sqlite:///d.db")  # looked up when it is used, not on import
    assert {name: db.url.database for name, db in app.databases.items()} == {
        "default": "a.db", "b": "b.db", "c": "c.db", "d": "d.db",
    }  # fmt: skip
    assert app.databases["default"].pool == 3
    assert {db.wait_ms for db in app.databases.values()} == {5}


def test_a_url_in_code_and_in_settings_is_refused() -> None:
    # contract: M1
    settings = {"database": {"default": {"url": "sqlite:///secret.db"}}}
    with pytest.raises(SettingsError, match=r"database\.default\.url is given, and App") as caught:
        App("sqlite:///a.db", settings=settings)
    assert "secret" not in str(caught.value)
    with pytest.raises(SettingsError, match=r"database\.other\.url is missing"):
        App("sqlite:///a.db", settings={"database": {"other": {"pool": 3}}})


@pytest.mark.parametrize("target", [5, Session, object(), b"sqlite://"])
def test_other_things_are_no_database(target: Any) -> None:
    # contract: J5 Z1
    with pytest.raises(DeclarationTypeError, match="the database 'default' is"):
        App(target)


def test_a_wrong_url_is_refused_where_it_is_given() -> None:
    # contract: J5
    with pytest.raises(UnsupportedDatabase, match="database 'default'"):
        App("newsroom.db")
    with pytest.raises(DeclarationError, match='"default" among databases='):
        App("sqlite:///a.db", databases={"default": "sqlite:///b.db"})


# --- what a start refuses (J5) ---------------------------------------------------------------------------------


def test_everything_wrong_is_said_at_once() -> None:
    # contract: J5 L5 M2
    app = App("sqlite:///a.db", databases={"twin": "sqlite:///a.db"}, settings={"job": {"queues": {"billing": 2}}})
    app.declare("elsewhere", **POLICY, database="reports")

    @app.job(**POLICY, name="short", lease=30)
    def short() -> None: ...

    app.queue("billing", workers=3)
    with pytest.raises(StartRefused) as caught:
        app.validate()
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 refusals:"
    for line, words in zip(
        lines[1:],
        [
            "queue 'billing' has workers=3 in code and job.queues.billing of 2 in the settings",
            "databases 'default' and 'twin' have URLs of one database",
            "job 'elsewhere'",
            "job 'short'",
        ],
        strict=True,
    ):
        assert words in line
    codes = {(finding.code, Path(finding.file).name) for finding in app.findings() if finding.code != "not-included"}
    assert codes == {("queue", "test_app.py"), ("database", "test_app.py"), ("lease", "test_app.py")}


def test_a_pool_that_is_too_small_is_refused_with_the_arithmetic() -> None:
    # contract: C8 J5
    app = App("sqlite:///a.db", settings={"database": {"default": {"pool": 1}}})
    with pytest.raises(StartRefused, match=r"database 'default': pool=1 is too small \(C8\): .*= 2"):
        app.validate()
    assert [finding.code for finding in app.findings() if finding.code != "not-included"] == ["pool"]


def test_a_secret_that_is_not_there_is_a_finding() -> None:
    # contract: J5 M1
    app = App(settings={"database": {"default": {"url": {"env": "ROWLOCK_NOT_SET"}}}})
    with pytest.raises(StartRefused, match="ROWLOCK_NOT_SET, which is not set"):
        app.validate()


def test_a_group_that_nobody_includes_is_a_finding_of_check_and_no_refusal(news: News) -> None:
    # contract: J11
    gc.collect()  # groups of other tests
    forgotten = Jobs()
    forgotten.declare("a", **POLICY)
    found = [str(each) for each in news.app.findings() if each.line == forgotten.site.line]
    assert found == [f"{__file__}:{forgotten.site.line}: not-included {found[0].partition('not-included ')[2]}"]
    assert "a Jobs group with 1 job is" in found[0]
    news.app.validate()


def test_a_queue_has_slots_within_bounds() -> None:
    # contract: M2 J1
    app = App()
    app.queue("a", workers=256)
    app.queue("b")
    assert {name: queue.workers for name, queue in app.queues.items()} == {"a": 256, "b": None}
    for workers in (0, 257):
        with pytest.raises(DeclarationError, match=f"queue 'c': workers is {workers}, outside 1..256"):
            app.queue("c", workers=workers)
    for wrong in (True, 1.5, "2"):
        with pytest.raises(DeclarationTypeError, match="queue 'c': workers"):
            app.queue("c", workers=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DeclarationError, match=r"app\.queue: name"):
        app.queue("")
    with pytest.raises(NotBuiltYet, match="queue 'c': claim="):
        app.queue("c", claim=Lease(5))
    with pytest.raises(NotBuiltYet):
        app.subscribe(object())


# --- hooks (H2) ------------------------------------------------------------------------------------------------


def test_hooks_are_collected_and_given_back() -> None:
    # contract: H2 S6
    app = App()

    @app.before_attempt
    def before(ctx: Context) -> None: ...

    @app.after_attempt
    def after(ctx: Context) -> None: ...

    @app.on_failure
    def failure(exc: BaseException, ctx: Context) -> None: ...

    @app.on("settled")
    def settled(event: Any) -> None: ...

    hooks = app.hooks
    assert (hooks.before_attempt, hooks.after_attempt, hooks.on_failure) == ([before], [after], [failure])
    assert hooks.events == {"settled": [settled]}


def test_other_hooks_are_refused() -> None:
    # contract: H2 J5
    app = App()

    async def later(ctx: Context) -> None: ...

    for decorator in (app.before_attempt, app.after_attempt, app.on_failure, app.on("lost")):
        with pytest.raises(DeclarationTypeError, match="async function is no hook"):
            decorator(later)
    with pytest.raises(DeclarationTypeError, match="5 is no function"):
        app.before_attempt(5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DeclarationError, match=r"'setled'.*no such event.*enqueued, claimed, settled"):
        app.on("setled")


def test_enqueued_is_told_of_what_was_created(news: News) -> None:
    # contract: H2
    seen: list[Any] = []
    news.app.on("enqueued")(seen.append)
    done = news.publish.enqueue(Publish(1), key="k", queue="q")
    news.publish.enqueue(Publish(1), key="k")
    assert [(event.name, event.id, event.job, event.queue) for event in seen] == [
        ("enqueued", done.id, "news.publish", "q")
    ]

    @news.app.on("enqueued")
    def fails(event: Any) -> None:
        raise SystemExit

    assert news.publish.enqueue(Publish(1)).created


# --- the caller's transaction (E2) -----------------------------------------------------------------------------


def opened(news: News, kind: str) -> Any:
    """A connection of this kind, not committed yet."""
    match kind:
        case "Session":
            return Session(news.engine)
        case "scoped_session":
            return scoped_session(sessionmaker(news.engine))
        case _:
            return news.engine.connect()


@pytest.mark.parametrize("bound", [False, True], ids=["given", "bound"])
@pytest.mark.parametrize("kind", ["Session", "scoped_session", "Connection"])
def test_an_enqueue_lives_and_dies_with_the_callers_transaction(news: News, kind: str, bound: bool) -> None:
    # contract: E2 (C17)
    caller = opened(news, kind)

    def enqueue(key: str) -> None:
        if bound:
            with news.app.bind(caller):
                news.publish.enqueue(Publish(1), key=key)
        else:
            news.publish.enqueue(Publish(1), key=key, connection=caller)

    enqueue("rolled back")
    caller.rollback()
    enqueue("committed")
    assert news.keys() == []
    savepoint = caller.begin_nested()
    enqueue("savepoint")
    savepoint.rollback()
    caller.commit()
    caller.close()
    assert news.keys() == ["committed"]


@pytest.mark.parametrize("bound", [False, True], ids=["given", "bound"])
@pytest.mark.parametrize("kind", ["AsyncSession", "async_scoped_session", "AsyncConnection"])
def test_so_does_an_async_one(news: News, kind: str, bound: bool) -> None:
    # contract: E2 (C17)
    async def scenario() -> None:
        engine = create_async_engine(news.url.replace("sqlite:", "sqlite+aiosqlite:"))
        match kind:
            case "AsyncSession":
                caller: Any = AsyncSession(engine)
            case "async_scoped_session":
                caller = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
            case _:
                caller = await engine.connect()

        async def enqueue(key: str) -> None:
            if bound:
                with news.app.bind(caller):
                    await news.publish.aenqueue(Publish(1), key=key)
            else:
                await news.publish.aenqueue(Publish(1), key=key, connection=caller)

        try:
            await enqueue("rolled back")
            await caller.rollback()
            await enqueue("committed")
            assert news.keys() == []
            await caller.commit()
        finally:
            await caller.close()
            await engine.dispose()
            await news.app.aclose()

    asyncio.run(scenario())
    assert news.keys() == ["committed"]


def test_an_autocommit_connection_is_its_own_transaction(news: News) -> None:
    # contract: E2 (C19)
    with news.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        news.publish.enqueue(Publish(1), key="a", connection=connection)
        assert news.keys() == ["a"]
        connection.rollback()
    assert news.keys() == ["a"]


def test_nothing_is_flushed_or_begun_for_the_caller_beyond_its_own_transaction(news: News) -> None:
    # contract: E2
    class Row:
        def __init__(self, id: int) -> None:
            self.id = id

    mapper = registry()
    table = sa.Table("article", mapper.metadata, sa.Column("id", sa.Integer, primary_key=True))
    mapper.map_imperatively(Row, table)
    mapper.metadata.create_all(news.engine)
    with Session(news.engine) as session:
        row = Row(1)
        session.add(row)
        news.publish.enqueue(Publish(1), connection=session)
        assert row in session.new
        session.commit()


@pytest.mark.parametrize(
    "make",
    [
        lambda news: news.engine,
        lambda news: news.engine.pool,
        lambda news: sessionmaker(news.engine),
        lambda news: Session,
        lambda news: object(),
        lambda news: "sqlite://",
        lambda news: 0,
        lambda news: news.engine.url,
    ],
    ids=["Engine", "pool", "sessionmaker", "class", "object", "str", "0", "URL"],
)
def test_other_connections_are_refused_with_the_list_of_what_is_accepted(news: News, make: Any) -> None:
    # contract: E2 Z1 (C19)
    given = make(news)
    accepted = r"not accepted: .*Session, scoped_session or Connection by enqueue, .*AsyncSession.* by aenqueue"
    for refused in (
        lambda: news.publish.enqueue(Publish(1), connection=given),
        lambda: news.publish.enqueue_many([], connection=given),
        lambda: news.publish.aenqueue(Publish(1), connection=given).send(None),
        lambda: news.app.bind(given).__enter__(),
    ):
        with pytest.raises(ConnectionTypeError, match=accepted) as caught:
            refused()
        assert isinstance(caught.value, TypeError)
    assert news.keys() == []


def test_a_drivers_own_connection_is_refused(news: News) -> None:
    # contract: E2 (C19)
    with news.engine.connect() as connection:
        for given in (connection.connection, connection.connection.dbapi_connection):
            with pytest.raises(ConnectionTypeError, match="not accepted"):
                news.publish.enqueue(Publish(1), connection=given)  # pyright: ignore[reportArgumentType]


def test_a_closed_connection_is_refused(news: News) -> None:
    # contract: E2 (C19)
    connection = news.engine.connect()
    connection.close()
    with pytest.raises(ConnectionTypeError, match="connection is closed"):
        news.publish.enqueue(Publish(1), connection=connection)

    async def scenario() -> None:
        engine = create_async_engine(news.url.replace("sqlite:", "sqlite+aiosqlite:"))
        with pytest.raises(ConnectionTypeError, match="not started, or closed"):
            await news.publish.aenqueue(Publish(1), connection=engine.connect())
        async with engine.connect() as connection:
            pass
        with pytest.raises(ConnectionTypeError, match="closed"):
            await news.publish.aenqueue(Publish(1), connection=connection)
        await engine.dispose()

    asyncio.run(scenario())


def test_a_session_without_an_engine_is_refused(news: News) -> None:
    # contract: E2
    with Session() as session, pytest.raises(ConnectionTypeError, match="the Session has no engine"):
        news.publish.enqueue(Publish(1), connection=session)


def test_sync_and_async_do_not_mix(news: News) -> None:
    # contract: E2 (C19)
    async def scenario() -> None:
        async with AsyncSession() as async_session:
            with Session(news.engine) as session:
                with pytest.raises(ConnectionTypeError, match=r"AsyncSession, which only coroutines.*await \.aenqueue"):
                    news.publish.enqueue(Publish(1), connection=async_session)  # pyright: ignore[reportArgumentType]
                with pytest.raises(ConnectionTypeError, match=r"a Session, which would block.*call \.enqueue"):
                    await news.publish.aenqueue(Publish(1), connection=session)  # pyright: ignore[reportArgumentType]
                with news.app.bind(session), pytest.raises(ConnectionTypeError, match="finds bound"):
                    await news.publish.aenqueue(Publish(1))
                with news.app.bind(async_session), pytest.raises(ConnectionTypeError, match="finds bound"):
                    news.publish.enqueue(Publish(1))

    asyncio.run(scenario())
    assert news.keys() == []


# --- binding (E2) ----------------------------------------------------------------------------------------------


def test_detached_leaves_the_bound_one_aside(news: News) -> None:
    # contract: E2
    with news.engine.connect() as connection, news.app.bind(connection):
        news.publish.enqueue(Publish(1), key="detached", detached=True)
        assert news.keys() == ["detached"]
        with pytest.raises(EnqueueValueError, match="exclude each other"):
            news.publish.enqueue(Publish(1), connection=connection, detached=True)


def test_a_given_connection_goes_before_a_bound_one(news: News) -> None:
    # contract: E2
    with news.engine.connect() as bound, news.engine.connect() as given:
        with news.app.bind(bound):
            news.publish.enqueue(Publish(1), key="given", connection=given)
        given.commit()
    assert news.keys() == ["given"]


def test_nested_binds_restore_the_outer_one(news: News) -> None:
    # contract: E2
    binding = news.app._binding
    with news.engine.connect() as one, news.engine.connect() as other:
        with news.app.bind(one):
            with pytest.raises(ZeroDivisionError), news.app.bind(other):
                assert binding.current() is other
                _ = 1 / 0
            assert binding.current() is one
        assert binding.current() is None


def test_applications_bind_apart(news: News) -> None:
    # contract: E2
    with news.engine.connect() as connection, news.app.bind(connection):
        assert App()._binding.current() is None


def test_a_task_that_outlives_the_block_is_not_bound_any_more(news: News) -> None:
    # contract: E2
    binding = news.app._binding
    with news.engine.connect() as connection:
        with news.app.bind(connection):
            inside = contextvars.copy_context()
            assert inside.run(binding.current) is connection
            unbound: list[Any] = []
            thread = threading.Thread(target=lambda: unbound.append(binding.current()))
            thread.start()
            thread.join()
        assert inside.run(binding.current) is None
        assert unbound == [None]


# --- life cycle and records ------------------------------------------------------------------------------------


def test_without_tables_an_enqueue_says_so_and_creates_nothing(tmp_path: Path) -> None:
    # contract: S1
    app = App(f"sqlite:///{tmp_path}/empty.db")
    job = app.declare("a", **POLICY)
    with pytest.raises(NotMigrated, match=r"rowlock migrate.*app\.migrate"):
        job.enqueue()
    assert "rowlock_job" in app.migrate()["default"]
    assert app.migrate() == {"default": []}
    assert job.enqueue().created
    app.close()
    assert job.enqueue().created  # the next use opens new connections
    app.close()


def test_records_are_read(news: News) -> None:
    # contract: O1 S2
    done = news.publish.enqueue_many([(Publish(n), {"key": str(n)}) for n in range(3)])
    news.publish.enqueue(Publish(4), delay=60)
    records = news.app.records
    assert (records.get(done[0].id).key, records.get(done[0].id).max_attempts) == ("0", 5)
    with pytest.raises(NotFound):
        records.get(10**6)
    page = records.list(job="news.publish", state="pending", limit=3)
    assert [record.key for record in page.items] == [None, "2", "1"]
    assert [record.key for record in records.list(limit=3, after=page.next).items] == ["0"]
    assert [record.key for record in records.list(key="1", queue="default", state=State.PENDING).items] == ["1"]
    assert records.list(older_than=3600).items == []
    (count,) = records.counts()
    assert (count.queue, count.state, count.count, count.future) == ("default", "pending", 4, 1)

    async def scenario() -> None:
        assert await records.aget(done[0].id) == records.get(done[0].id)
        assert await records.alist(limit=2) == records.list(limit=2)
        assert await records.acounts() == records.counts()
        await news.app.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"state": "finished"}, "state is 'finished'.*pending, running"),
        ({"state": 5}, "state is 5"),
        ({"limit": 0}, "limit is 0, outside 1..1,000"),
        ({"limit": 1001}, "limit is 1001"),
        ({"older_than": -1}, "older_than=-1"),
        ({"older_than": "1 week"}, "older_than is '1 week'"),
        ({"older_than": []}, "older_than must be"),
        ({"job": 5}, "job is 5"),
    ],
)
def test_wrong_filters_are_refused(news: News, wanted: dict[str, Any], words: str) -> None:
    # contract: O1 Z1
    with pytest.raises(FilterError, match=words):
        news.app.records.list(**wanted)
    with pytest.raises(DeclarationError, match="no database 'other' is configured"):
        news.app.records.list(database="other")


def test_an_application_works_embedded(news: News) -> None:
    # contract: M6
    done = threading.Event()

    @news.app.job(**POLICY, name="news.work")
    def work() -> None:
        done.set()

    work.enqueue()
    assert news.app.health()["status"] == "stopped"
    with news.app.worker_thread():
        assert done.wait(10)
        assert news.app.health()["status"] == "ok"
    done.clear()
    work.enqueue()

    async def scenario() -> None:
        async with news.app.lifespan(object()):
            while not done.is_set():
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert news.app.health()["status"] == "stopped"


def test_in_api_mode_serving_jobs_is_a_safe_no_op(tmp_path: Path) -> None:
    # contract: M3
    app = App(f"sqlite:///{tmp_path}/api.db", settings={"runtime": {"mode": "api"}})

    @app.job(**POLICY)
    def job() -> None: ...

    async def scenario() -> None:
        async with app.worker(), app.lifespan():
            assert app.health()["status"] == "stopped"

    asyncio.run(scenario())
    with app.worker_thread():
        assert app.health()["status"] == "stopped"
    assert not (tmp_path / "api.db").exists()


def test_the_test_kit_puts_other_databases_in_the_place_of_the_configured_ones(news: News, tmp_path: Path) -> None:
    # contract: X1
    case = App(f"sqlite:///{tmp_path}/case.db", settings={"job": {"unknown_ms": 0}})
    case.migrate()
    configured = news.app.databases
    with news.app._swap(case.databases, case.settings):
        assert news.app.settings.job.unknown_ms == 0
        news.publish.enqueue(Publish(1), key="case")
        assert news.keys() == ["case"]
    assert news.app.databases is configured
    assert news.keys() == []
    case.close()
