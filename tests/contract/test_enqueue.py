"""Enqueueing: what it answers, how keys work, what it refuses (E1, E4, E6-E8, W3)."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import rowlock
from rowlock import App, Context, EncodeError, EnqueueValueError, Jobs, NotMigrated, State
from support.waiting import wait_until

AppFactory = Callable[..., App]


@dataclass(frozen=True)
class Text:
    text: str = ""


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def send(jobs: Jobs) -> Any:
    @jobs.job(max_attempts=3, timeout=30, name="send", queue="mail", priority=7)
    def send(input: Text) -> None: ...

    return send


@pytest.fixture
def app(app_factory: AppFactory, jobs: Jobs, send: Any) -> App:
    return app_factory(jobs)


def rows(engine: sa.Engine, columns: str = "*") -> list[Any]:
    with engine.connect() as conn:
        return list(conn.execute(sa.text(f"SELECT {columns} FROM rowlock_job ORDER BY id")))


# --- E1: the doors and their answers ------------------------------------------------------------------------------


async def test_every_door_writes_the_same_record(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E1
    answers = [
        send.enqueue(Text("a"), headers={"trace": "é"}),
        await send.aenqueue(Text("a"), headers={"trace": "é"}),
        *send.enqueue_many([(Text("a"), {"headers": {"trace": "é"}})]),
        *await send.aenqueue_many([(Text("a"), {"headers": {"trace": "é"}})]),
    ]
    await app.aclose()
    assert [(answer.created, answer.state) for answer in answers] == [(True, State.PENDING)] * 4
    found = rows(engine, "id, job, payload, queue, priority, state, attempt, max_attempts, timeout_ms, headers")
    assert [row[0] for row in found] == [answer.id for answer in answers]
    assert {tuple(row[1:]) for row in found} == {
        ("send", '{"text":"a"}', "mail", 7, "pending", 0, 3, 30_000, '{"trace":"é"}')
    }


def test_options_override_the_jobs_own(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E1
    send.enqueue(Text(), priority=0, queue="fast")
    send.enqueue(Text(), priority=32_767, queue="q" * 128)
    assert [tuple(row) for row in rows(engine, "priority, queue")] == [(0, "fast"), (32_767, "q" * 128)]


def test_many_keep_their_order_and_answer_each_item(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E1, E4
    there = send.enqueue(Text("there"), key="there")
    items = [Text("0"), (Text("1"), {"key": "b"}), (Text("2"), {"key": "there"}), (Text("3"), {"key": "a"})]
    items += [(Text("4"), {"key": "b"}), Text("5")]
    answers = send.enqueue_many(items)
    assert [answer.created for answer in answers] == [True, True, False, True, False, True]
    assert answers[2].id == there.id
    assert answers[4].id == answers[1].id
    payloads = {row[0]: row[1] for row in rows(engine, "id, payload")}
    assert [payloads[answers[n].id] for n in (0, 1, 3, 5)] == [f'{{"text":"{n}"}}' for n in (0, 1, 3, 5)]


def test_thousands_at_once_are_whole_or_not_there(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E1
    answers = send.enqueue_many([(Text(str(n)), {"key": f"k{n % 2_400}"}) for n in range(2_500)])
    assert sum(answer.created for answer in answers) == 2_400
    assert [answers[n].id for n in range(2_400, 2_500)] == [answers[n].id for n in range(100)]
    assert len(rows(engine)) == 2_400
    payloads = {row[0]: row[1] for row in rows(engine, "id, payload")}
    assert all(payloads[answers[n].id] == f'{{"text":"{n}"}}' for n in range(2_400))


def test_one_invalid_item_refuses_the_whole_call_before_any_write(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E1
    with pytest.raises(EnqueueValueError, match="item 2"):
        send.enqueue_many([Text("0"), (Text("1"), {"key": "k"}), (Text("2"), {"key": " "})])
    with pytest.raises(EncodeError, match="item 1"):
        send.enqueue_many([Text("0"), Text("\ud800")])
    assert rows(engine) == []
    assert send.enqueue_many([]) == []


# --- E4: keys ------------------------------------------------------------------------------------------------------


def test_an_active_record_answers_for_its_key_and_is_left_as_it_was(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E4
    first = send.enqueue(Text("first"), key="k")
    for state in ("pending", "running"):
        with engine.begin() as conn:
            lease = "'2027-01-01 00:00:00.000000'"
            conn.execute(sa.text(f"UPDATE rowlock_job SET state = '{state}', lease = {lease}, token = 't'"))
        before = rows(engine)
        again = send.enqueue(Text("again"), key="k", delay=60, priority=1)
        assert (again.id, again.created, again.state) == (first.id, False, state)
        assert rows(engine) == before


@pytest.mark.parametrize("state", ["succeeded", "dead", "blocked", "cancelled"])
def test_an_ended_record_frees_its_key(app: App, send: Any, engine: sa.Engine, state: str) -> None:
    # contract: E4
    first = send.enqueue(Text(), key="k")
    with engine.begin() as conn:
        conn.execute(sa.text(f"UPDATE rowlock_job SET state = '{state}'"))
    again = send.enqueue(Text(), key="k")
    assert again.created
    assert again.id > first.id


def test_keys_are_compared_byte_for_byte(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E4, S5
    composed = unicodedata.normalize("NFC", "é")
    keys = ["key", "Key", "KEY", "key ", " key", "kéy", composed, unicodedata.normalize("NFD", composed), "ß", "ss"]
    keys += ["ключ", "\U0001f600", "\U0001f601", "a\tb", "a b", "%", "_", "\\", "'", '"', "a\x1fb", "İ", "i"]
    ids = [send.enqueue(Text(), key=key).id for key in keys]
    assert len(set(ids)) == len(keys)
    assert [send.enqueue(Text(), key=key).id for key in keys] == ids
    assert [answer.id for answer in send.enqueue_many([(Text(), {"key": key}) for key in keys])] == ids
    stored = {row[0]: row[1] for row in rows(engine, "id, rowlock_job.key")}
    assert [stored[id_] for id_ in ids] == keys


def test_a_key_belongs_to_its_job(app: App, send: Any) -> None:
    # contract: E4
    @app.job(max_attempts=1, timeout=1, name="other")
    def other(input: Text) -> None: ...

    assert send.enqueue(Text(), key="k").created
    assert other.enqueue(Text(), key="k").created


def test_a_key_has_1_to_1024_bytes_not_characters(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E4
    longest = ["k" * 1_024, "é" * 512, "\U0001f600" * 256]
    assert [send.enqueue(Text(), key=key).created for key in longest] == [True] * 3
    assert [send.enqueue(Text(), key=key).created for key in longest] == [False] * 3
    for key in ["", " ", "\t\n", "\u2003", "k" * 1_025, "é" * 512 + "k", "a\x00b", "\ud800"]:
        with pytest.raises(EnqueueValueError, match="key"):
            send.enqueue(Text(), key=key)
    assert len(rows(engine)) == 3


def test_a_key_survives_a_rename_by_its_alias(app_factory: AppFactory, app: App, send: Any) -> None:
    # contract: E4, J4
    old = send.enqueue(Text(), key="k")
    renamed = app_factory()

    @renamed.job(max_attempts=3, timeout=30, name="deliver", aliases=("send",))
    def deliver(input: Text) -> None: ...

    again = deliver.enqueue(Text(), key="k")
    assert (again.id, again.created) == (old.id, False)


# --- E6: when --------------------------------------------------------------------------------------------------------


def due_in(app: App, id_: int) -> timedelta:
    record = app.records.get(id_)
    return record.run_at - record.created_at


def test_now_later_and_in_the_past(app: App, send: Any) -> None:
    # contract: E6
    assert due_in(app, send.enqueue(Text()).id) == timedelta(0)
    assert due_in(app, send.enqueue(Text(), delay=90).id) == timedelta(seconds=90)
    assert due_in(app, send.enqueue(Text(), delay=timedelta(milliseconds=1)).id) == timedelta(milliseconds=1)
    past = datetime(2001, 1, 1, tzinfo=UTC)
    assert due_in(app, send.enqueue(Text(), run_at=past).id) == timedelta(0)
    for answer in send.enqueue_many([(Text(), {"run_at": past}), (Text(), {"delay": 5}), Text()]):
        assert due_in(app, answer.id) in {timedelta(0), timedelta(seconds=5)}


def test_an_instant_comes_back_as_it_was_given(app: App, send: Any) -> None:
    # contract: E6, S5
    kolkata = timezone(timedelta(hours=5, minutes=30))
    for run_at in [
        datetime(2031, 5, 6, 7, 8, 9, 123_456, tzinfo=kolkata),
        datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC),
        datetime(2038, 1, 20, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ]:
        for answer in (send.enqueue(Text(), run_at=run_at), *send.enqueue_many([(Text(), {"run_at": run_at})] * 2)):
            assert app.records.get(answer.id).run_at == run_at


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -0.001},
        {"delay": timedelta(days=3_654)},
        {"delay": float("nan")},
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is the point
        {"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=2)))},
        {"priority": -1},
        {"priority": 32_768},
        {"queue": ""},
        {"queue": "q" * 129},
        {"headers": {"k": "v" * 9_000}},
    ],
    ids=repr,
)
def test_values_out_of_bounds_are_refused_where_they_are_given(
    app: App, send: Any, engine: sa.Engine, options: dict[str, Any]
) -> None:
    # contract: E6, J1
    with pytest.raises(ValueError, match="send"):
        send.enqueue(Text(), **options)
    with pytest.raises(ValueError, match="send"):
        send.enqueue_many([(Text(), options)])
    assert rows(engine) == []


# --- W3, E8 -----------------------------------------------------------------------------------------------------------


def test_a_payload_up_to_the_bound_is_kept_whole_and_a_larger_one_refused(
    app: App, send: Any, engine: sa.Engine
) -> None:
    # contract: W3
    for size in (65_535, 65_536, 70_000, 1_048_576 - len('{"text":""}')):
        send.enqueue(Text("x" * size))
    assert [len(row[0]) for row in rows(engine, "payload")][-1] == 1_048_576
    for text in ("x" * (1_048_577 - len('{"text":""}')), "é" * 600_000, "x" * 5_242_880):
        with pytest.raises(EncodeError, match="payload_max"):
            send.enqueue(Text(text))
    assert len(rows(engine)) == 4


def test_text_that_databases_dislike_comes_back_equal(app: App, send: Any) -> None:
    # contract: W3
    from rowlock.store import records

    for text in ["a\x00b", "\u2028", "\U0001f600", "%s %(x)s :name {x} \\", "'\"`", "\r\n\t\x1f", "e\u0301"]:
        for answer in (send.enqueue(Text(text)), *send.enqueue_many([Text(text)] * 2)):
            stored = app.databases["default"].run(records.payload, answer.id)
            assert send.wire.decode(stored) == Text(text)


def test_without_tables_it_says_so_and_creates_nothing(app_factory: AppFactory, engine: sa.Engine) -> None:
    # contract: S1
    app = app_factory(migrate=False)

    @app.job(max_attempts=1, timeout=1, name="j")
    def j() -> None: ...

    with pytest.raises(NotMigrated, match="rowlock migrate"):
        j.enqueue()
    with pytest.raises(NotMigrated, match="rowlock migrate"), engine.begin() as conn:
        j.enqueue(connection=conn)
    with pytest.raises(NotMigrated, match="rowlock migrate"):
        j.enqueue_many([(None, {"key": "k"}), None])
    assert sa.inspect(engine).get_table_names() == []


def test_a_job_may_enqueue_itself_and_inherits_nothing(app: App, jobs: Jobs, engine: sa.Engine) -> None:
    # contract: E7
    @jobs.job(max_attempts=3, timeout=30, name="again")
    def again(input: Text, ctx: Context) -> None:
        if input.text == "parent":
            again.enqueue(Text("child"))

    parent = again.enqueue(Text("parent"), key="k", priority=1, queue="other", headers={"a": "b"})
    app.queue("other")
    with app.worker_thread():
        wait_until(lambda: [row[0] for row in rows(engine, "state")] == ["succeeded"] * 2)
    child = app.records.list().items[0]
    assert child.id > parent.id
    assert (child.queue, child.priority, child.headers, child.key) == ("default", 100, None, None)


def test_a_payload_and_a_name_are_data(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: Z4
    target, payload = "antigravity", '{"py/object": "antigravity.geohash", "text": "cos\\nsystem\\n(S\'true\'\\ntR."}'
    ids = [send.enqueue(Text()).id for _ in range(2)]
    with engine.begin() as conn:
        change = sa.text("UPDATE rowlock_job SET payload = :payload, job = :job WHERE id = :id")
        conn.execute(change, {"payload": payload, "job": "send", "id": ids[0]})
        conn.execute(change, {"payload": payload, "job": f"{target}.geohash", "id": ids[1]})
    with app.worker_thread():
        wait_until(lambda: app.records.get(ids[0]).state == "blocked")
    assert app.records.get(ids[0]).error_category == "corrupt_payload"
    assert app.records.get(ids[1]).state == "pending"  # nobody knows such a job, and nobody looks for a module
    assert target not in sys.modules


def test_nothing_of_the_library_unpickles_or_evaluates() -> None:
    # contract: Z4
    source = Path(rowlock.__file__).parent
    called = r"\b(pickle|marshal|shelve|eval|exec|__import__)\b\s*[.(]"
    found = [f"{file.name}: {line.strip()}" for file in source.rglob("*.py") for line in file.read_text().splitlines()
             if re.search(called, line)]  # fmt: skip
    assert found == []
