"""Programs that change while records wait: enqueue-only programs, earlier inputs, renames (J4, J8, J10, S4, S7)."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, DeclarationError, Enqueued, Jobs, State
from rowlock.store import schema
from support.story import all_on_sqlite
from support.waiting import wait_until

AppFactory = Callable[..., App]


@dataclass(frozen=True)
class V1:
    name: str


@dataclass(frozen=True)
class V2:
    name: str
    copies: int = 1


@dataclass(frozen=True)
class V3:
    title: str
    copies: int
    colour: str = "grey"


def to_2(old: V1) -> V2:
    return V2(old.name, copies=2)


def to_3(old: V2) -> V3:
    return V3(old.name, old.copies)


def from_1(old: V1) -> V3:
    return to_3(to_2(old))


class Version:
    """One version of a program on the test's database; `got` is what its handler ran, in order."""

    def __init__(
        self,
        make: AppFactory,
        url: str,
        input: type,
        name: str = "print",
        *,
        unknown_ms: int = 3_600_000,
        **options: Any,
    ) -> None:
        self.jobs = Jobs()
        self.got: list[tuple[int, Any]] = []

        def handler(input: Any, ctx: Any) -> None:
            self.got.append((ctx.id, input))

        from rowlock import Context

        handler.__annotations__ |= {"input": input, "ctx": Context, "return": None}
        self.job: Any = self.jobs.job(name=name, max_attempts=3, timeout=5, **options)(handler)
        job = {"poll_ms": 20, "unknown_ms": unknown_ms, "retry_base_ms": 1, "retry_max_ms": 1}
        self.app = make(
            self.jobs,
            settings={"database": {"default": {"url": url}}, "runtime": {"mode": "worker"}, "job": job},
        )

    def state(self, made: Enqueued) -> tuple[State, int, str | None]:
        found = self.app.records.get(made.id)
        return found.state, found.attempt, found.error_category

    def ends(self, made: Enqueued, state: State = State.SUCCEEDED) -> None:
        wait_until(lambda: self.state(made)[0] is state, what=lambda: str(self.app.records.get(made.id)))


@pytest.fixture
def version(app_factory: AppFactory, database_url: str) -> Callable[..., Version]:
    return lambda *args, **options: Version(app_factory, database_url, *args, **options)


def announced(app: App) -> set[tuple[str, str]]:
    with app.databases["default"].engine().connect() as connection:
        rows = connection.execute(sa.select(schema.program.c.job, schema.program.c.fingerprint))
        return {(row.job, row.fingerprint) for row in rows}


# --- J10: earlier inputs ----------------------------------------------------------------------------------------------


def test_each_earlier_input_arrives_as_the_present_one(version: Callable[..., Version]) -> None:
    # contract: J10
    first, second = version(V1), version(V2)
    third = version(V3, accepts=((V1, from_1), (V2, to_3)))
    made = [
        first.job.enqueue(V1("a")),
        second.job.enqueue(V2("b", 7)),
        third.job.enqueue(V3("c", 8, "red")),
        *first.job.enqueue_many([V1("d"), V1("e")]),
    ]
    with third.app.worker_thread():
        for each in made:
            third.ends(each)
    inputs = [V3("a", 2), V3("b", 7), V3("c", 8, "red"), V3("d", 2), V3("e", 2)]
    assert dict(third.got) == {each.id: input for each, input in zip(made, inputs, strict=True)}


def test_a_chain_keeps_only_the_fingerprints_that_it_names(version: Callable[..., Version]) -> None:
    # contract: J10, S7
    # "Nothing is migrated silently": V1 can be brought to V2 and V2 to V3, and nobody said that V1 is accepted.
    first, second = version(V1), version(V2, accepts=((V1, to_2),))
    third = version(V3, accepts=((V2, to_3),))
    old, newer = first.job.enqueue(V1("a")), second.job.enqueue(V2("b"))
    with third.app.worker_thread():
        third.ends(newer)
        assert third.state(old) == (State.PENDING, 0, None)
    with second.app.worker_thread():  # the version in between takes it
        second.ends(old)
    assert second.got == [(old.id, V2("a", 2))]


def test_accepted_fingerprints_are_announced_for_each_name(version: Callable[..., Version]) -> None:
    # contract: J10, S7, J4
    third = version(V3, name="print.new", aliases=("print", "press"), accepts=((V1, from_1), (V2, to_3)))
    fingerprints = set(third.job.fingerprints)
    assert len(fingerprints) == 3
    assert fingerprints > {version(V1).job.wire.fingerprint, version(V2).job.wire.fingerprint}
    with third.app.worker_thread():
        wait_until(lambda: announced(third.app))
    assert announced(third.app) == {(name, f) for name in ("print.new", "print", "press") for f in fingerprints}


def test_an_upgrade_that_raises_spends_attempts_and_no_other_record(version: Callable[..., Version]) -> None:
    # contract: J10, R4, R1
    def refuse(old: V1) -> V2:
        if old.name == "bad":
            raise ValueError("S3CR3T")
        return to_2(old)

    first, second = version(V1), version(V2, accepts=((V1, refuse),))
    bad, good = first.job.enqueue(V1("bad")), first.job.enqueue(V1("good"))
    with second.app.worker_thread():
        second.ends(bad, State.DEAD)
        second.ends(good)
    found = second.app.records.get(bad.id)
    assert (found.attempt, found.error_category, found.error_class) == (3, "failed", "ValueError")
    assert found.error_summary is None
    assert second.got == [(good.id, V2("good", 2))]


def test_an_upgrade_to_something_else_is_a_failed_attempt(version: Callable[..., Version]) -> None:
    # contract: J10
    wrong: Any = lambda old: {"name": old.name}  # noqa: E731 - as a user writes it
    first, second = version(V1), version(V2, accepts=((V1, wrong),))
    made = first.job.enqueue(V1("a"))
    with second.app.worker_thread():
        second.ends(made, State.DEAD)
    found = second.app.records.get(made.id)
    assert (found.error_category, found.error_class) == ("failed", "TypeError")
    assert second.got == []


def test_a_record_of_an_earlier_input_still_answers_for_its_key(version: Callable[..., Version]) -> None:
    # contract: J10, E4
    first, second = version(V1), version(V2, accepts=((V1, to_2),))
    made = first.job.enqueue(V1("a"), key="k")
    assert second.job.enqueue(V2("b"), key="k") == Enqueued(made.id, False, State.PENDING)
    assert second.job.enqueue_many([(V2("b"), {"key": "k"})]) == [Enqueued(made.id, False, State.PENDING)]


# --- J4: renames ------------------------------------------------------------------------------------------------------


def test_records_of_the_old_name_run_under_the_new_one(version: Callable[..., Version]) -> None:
    # contract: J4, S7
    # case: C58
    old, new = version(V1, name="old.name"), version(V1, name="new.name", aliases=("old.name",))
    made = old.job.enqueue_many([V1(str(n)) for n in range(5)])
    later = new.job.enqueue(V1("new"))
    with new.app.worker_thread():
        for each in [*made, later]:
            new.ends(each)
    assert sorted(input.name for _, input in new.got) == ["0", "1", "2", "3", "4", "new"]
    assert {new.app.records.get(each.id).job for each in made} == {"old.name"}  # kept as they were enqueued
    assert new.app.records.get(later.id).job == "new.name"


def test_deployed_without_the_alias_they_are_left_warned_of_once_and_hide_nothing(
    version: Callable[..., Version], caplog: pytest.LogCaptureFixture
) -> None:
    # contract: S7, S4, J4
    # case: C58
    old, new = version(V1, name="old.name"), version(V1, name="new.name", unknown_ms=90_000)
    left = old.job.enqueue_many([(V1(str(n)), {"priority": 0}) for n in range(5)])
    with new.app.databases["default"].engine().connect() as connection:  # they have waited, and not for too long
        earlier = new.app.databases["default"].dialect.plus_ms("run_at", "-60000")
        connection.exec_driver_sql(f"UPDATE rowlock_job SET run_at = {earlier}")
    with caplog.at_level(logging.WARNING, "rowlock"), new.app.worker_thread():
        behind = new.job.enqueue_many([V1("b"), V1("c")])
        for each in behind:
            new.ends(each)
        wait_until(lambda: "old.name" in caplog.text)
    assert {new.state(each) for each in left} == {(State.PENDING, 0, None)}
    said = [record.getMessage() for record in caplog.records if "old.name" in record.getMessage()]
    assert len(said) == 1  # for five records
    # In place of the scenario's line in `stats`: the counts, and the answer of `explain` (H4).
    waiting = new.app.records.list(job="old.name", state="pending").items
    assert len(waiting) == 5
    assert str(new.app.records.explain(waiting[0].id).reason) == "no_program"
    # The next deploy has the alias, and they run.
    with version(V1, name="new.name", aliases=("old.name",)).app.worker_thread():
        for each in left:
            new.ends(each)


def test_a_name_or_alias_that_is_taken_is_refused_where_it_is_included(app_factory: AppFactory) -> None:
    # contract: J4, J5
    # case: C58
    for first, second in [
        ({"name": "a"}, {"name": "a"}),
        ({"name": "a"}, {"name": "b", "aliases": ("a",)}),
        ({"name": "a", "aliases": ("c",)}, {"name": "b", "aliases": ("c",)}),
    ]:
        jobs = Jobs()
        jobs.declare(**first, max_attempts=1, timeout=1)
        jobs.declare(**second, max_attempts=1, timeout=1)
        with pytest.raises(DeclarationError, match="J4"):
            app_factory(jobs, migrate=False)


# --- C59: what a change of the input does -----------------------------------------------------------------------------
# The scenario lets an added field with a default work, refuses others as "arguments do not fit", and tries them again.
# The contract knows each input by its fingerprint (W4): another field is another schema, whose records wait for a
# program that knows them (S7), or are blocked, whole, when none does (S4); `accepts` says how they run.


def input_type(name: str = "Input", **fields: Any) -> type:
    defaults = {key: value[1] for key, value in fields.items() if isinstance(value, tuple)}
    types = {key: value[0] if isinstance(value, tuple) else value for key, value in fields.items()}
    return dataclass(frozen=True)(type(name, (), {"__annotations__": types, "__module__": __name__, **defaults}))


SAME = {
    "another default": (input_type(a=int, b=(int, 1)), input_type(a=int, b=(int, 2))),
    "a default that came": (input_type(a=int, b=int), input_type(a=int, b=(int, 2))),
    "another order": (input_type(a=int, b=int), input_type(b=int, a=int)),
    "another class name": (input_type(a=int, b=int), input_type("Renamed", a=int, b=int)),
}
OTHER = {
    "a field with a default came": (input_type(a=int), input_type(a=int, b=(int, 1))),
    "a field came": (input_type(a=int), input_type(a=int, b=int)),
    "a field went": (input_type(a=int, b=int), input_type(a=int)),
    "a field was renamed": (input_type(a=int), input_type(b=int)),
    "another type": (input_type(a=str), input_type(a=int)),
    "now optional": (input_type(a=int), input_type(a=int | None)),
}


@all_on_sqlite("change", SAME)
def test_what_leaves_the_schema_as_it_is_just_runs(version: Callable[..., Version], change: str) -> None:
    # contract: W4, S7
    # case: C59
    before, after = SAME[change]
    old, new = version(before), version(after)
    made, back = old.job.enqueue(before(a=1, b=7)), new.job.enqueue(after(a=1, b=8))
    with new.app.worker_thread():
        new.ends(made)
        new.ends(back)
    assert dict(new.got) == {made.id: after(a=1, b=7), back.id: after(a=1, b=8)}
    again = new.job.enqueue(after(a=2, b=9))
    with old.app.worker_thread():  # and the reverse, after a rollback
        old.ends(again)
    assert old.got == [(again.id, before(a=2, b=9))]


def example(of: type) -> Any:
    values = {int: 5, str: "S3CR3T", int | None: 5}
    return of(**{name: values[kind] for name, kind in of.__annotations__.items()})


@all_on_sqlite("change", OTHER)
def test_another_schema_waits_for_a_program_that_knows_it(version: Callable[..., Version], change: str) -> None:
    # contract: S7, S4, W4, J10
    # case: C59
    before, after = OTHER[change]
    old, new, impatient = version(before), version(after), version(after, unknown_ms=0)
    made, theirs = old.job.enqueue(example(before)), new.job.enqueue(example(after))
    with new.app.worker_thread():  # new workers leave the old producers' records alone
        new.ends(theirs)
        assert new.state(made) == (State.PENDING, 0, None)
    theirs = new.job.enqueue(example(after))
    with old.app.worker_thread():  # and old workers those of the new producers
        old.ends(made)
        assert old.state(theirs) == (State.PENDING, 0, None)
    stray = old.job.enqueue(example(before))
    with impatient.app.worker_thread():  # nobody has announced it: set aside whole, no attempt spent
        wait_until(lambda: impatient.state(stray)[0] is not State.PENDING)
    assert impatient.state(stray) == (State.BLOCKED, 0, "schema_mismatch")
    with old.app.databases["default"].engine().connect() as connection:
        row = connection.execute(sa.select(schema.job).where(schema.job.c.id == stray.id)).one()
    assert (row.payload, row.error_summary) == (old.job.wire.encode(example(before)), None)
    # The version hook: a program that accepts the earlier input gives it back and runs it.
    knowing = version(after, accepts=((before, lambda _: example(after)),))
    assert knowing.app.records.release(stray.id).count == 1
    with knowing.app.worker_thread():
        knowing.ends(stray)
    assert (stray.id, example(after)) in knowing.got


@pytest.mark.parametrize(
    "payload", ['{"a":"S3CR3T"}', '{"a":1,"extra":"S3CR3T"}', "{}"], ids=["type", "extra", "missing"]
)
def test_a_payload_that_does_not_fit_its_fingerprint_is_corrupt_and_shows_no_value(
    version: Callable[..., Version], payload: str, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: W5, S4, S6
    # case: C59
    kind = input_type(a=int)
    new = version(kind)
    made, behind = new.job.enqueue(kind(a=1)), new.job.enqueue(kind(a=2))
    with new.app.databases["default"].engine().connect() as connection:
        connection.execute(schema.job.update().where(schema.job.c.id == made.id).values(payload=payload))
    with caplog.at_level(logging.INFO, "rowlock"), new.app.worker_thread():
        new.ends(made, State.BLOCKED)
        new.ends(behind)
    assert new.state(made) == (State.BLOCKED, 0, "corrupt_payload")
    assert "S3CR3T" not in caplog.text
    assert new.got == [(behind.id, kind(a=2))]


# --- J8: programs that only enqueue -----------------------------------------------------------------------------------

DECLARED = """
from dataclasses import dataclass
from rowlock import Jobs

@dataclass(frozen=True)
class Render:
    video: int
    codec: str = "av1"

jobs = Jobs()
render = jobs.declare("media.render", input=Render, max_attempts=4, timeout=600, queue="media", priority=7)
"""
HANDLERS = """
import {heavy}
from dataclasses import dataclass
from rowlock import Context, Jobs

@dataclass(frozen=True)
class Video:
    video: int
    codec: str

jobs = Jobs()
got = []

@jobs.job(name="media.render", max_attempts=2, timeout=600, queue="media")
def render(input: Video, ctx: Context) -> None:
    got.append((ctx.id, input.video, input.codec))
"""
CLIENT = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[2])
from rowlock import App
import {declared} as declared

app = App(sys.argv[1])
app.include(declared.jobs)
ids = [declared.render.enqueue(declared.Render(1), key="k").id]
ids += [made.id for made in declared.render.enqueue_many([declared.Render(2, "vp9"), declared.Render(3)])]

async def later():
    made = await declared.render.aenqueue(declared.Render(4))
    await app.aclose()
    return made.id

ids.append(asyncio.run(later()))
refused = None
try:
    declared.render.enqueue({{"video": 5}})
except TypeError as error:
    refused = type(error).__name__
app.close()
print(json.dumps({{"ids": ids, "refused": refused, "modules": sorted(sys.modules)}}))
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a module into a folder that is on the path, under a name of this test's."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(kind: str, text: str) -> str:
        name = f"rl_{kind}_{abs(hash(tmp_path))}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    return write


def client(folder: Path, url: str, declared: str) -> dict[str, Any]:
    """A program of its own that only enqueues; what it tells."""
    path = folder / "client.py"
    path.write_text(CLIENT.format(declared=declared))
    ran = subprocess.run(
        [sys.executable, str(path), url, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_program_that_only_enqueues_imports_no_handler(
    app_factory: AppFactory, database_url: str, modules: Callable[..., str], tmp_path: Path
) -> None:
    # contract: J8
    # case: C63 (the untyped enqueue by a name's text is not there: J8 gives the same typing)
    heavy = modules("heavy", "import decimal\n")
    handlers = modules("handlers", HANDLERS.format(heavy=heavy))
    declared = modules("declared", DECLARED)
    app = app_factory()  # the tables are there: the client neither makes them nor has settings of a worker
    told = client(tmp_path, database_url, declared)
    assert declared in told["modules"]
    assert {heavy, handlers} & set(told["modules"]) == set()
    assert told["refused"] == "EncodeTypeError"  # typed, also where no type checker looked
    found = app.records.get(told["ids"][0])
    assert (found.max_attempts, found.timeout_ms, found.queue, found.priority, found.key) == (
        4,
        600_000,
        "media",
        7,
        "k",
    )

    worker = app_factory(
        __import__(handlers).jobs, settings={"database": {"default": {"url": database_url}}, "job": {"poll_ms": 20}}
    )
    with worker.worker_thread():
        wait_until(lambda: all(worker.records.get(id_).state is State.SUCCEEDED for id_ in told["ids"]))
    got = sys.modules[handlers].got
    assert sorted(got) == list(zip(told["ids"], [1, 2, 3, 4], ["av1", "vp9", "av1", "av1"], strict=True))


def test_a_worker_with_the_declaration_alone_leaves_its_records_to_others(version: Callable[..., Version]) -> None:
    # contract: J8, S7
    # case: C63
    own, remote = version(V1, unknown_ms=0), version(V2, name="media.render", unknown_ms=0)
    declared = own.jobs.declare("media.render", input=V2, max_attempts=3, timeout=5)
    assert declared.wire.fingerprint == remote.job.wire.fingerprint
    theirs = declared.enqueue(V2("a"), priority=0)
    with own.app.worker_thread():
        own.ends(own.job.enqueue(V1("behind")))
        wait_until(lambda: ("media.render", declared.wire.fingerprint) in announced(own.app))
        own.ends(own.job.enqueue(V1("behind again")))
        assert own.state(theirs) == (State.PENDING, 0, None)  # neither taken nor blocked: it is known
    with remote.app.worker_thread():
        remote.ends(theirs)
    assert remote.got == [(theirs.id, V2("a"))]


def test_a_declared_job_has_no_handler_to_call(version: Callable[..., Version]) -> None:
    # contract: J8, J2
    own = version(V1)
    declared: Any = own.jobs.declare("media.render", input=V2, max_attempts=3, timeout=5)
    with pytest.raises(DeclarationError, match=r"media\.render"):
        declared.handler(V2("a"))
    with pytest.raises(TypeError, match="enqueue"):
        declared(V2("a"))
