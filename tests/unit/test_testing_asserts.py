from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import pytest
import sqlalchemy as sa

from rowlock import App, CorruptPayload
from rowlock.testing import KitTypeError, KitValueError, TestApp

app = App("sqlite:////nowhere/at/all.db")


@dataclass(frozen=True)
class Base:
    article: int


@dataclass(frozen=True)
class Notify(Base):
    channel: str = "web"


@dataclass(frozen=True)
class OldNotify:
    number: int


class Words(msgspec.Struct):
    words: list[str]


class Typed(TypedDict):
    a: int


@app.job(
    max_attempts=1, timeout=1, name="notify", aliases=("tell",), accepts=((OldNotify, lambda o: Notify(o.number)),)
)
def notify(input: Notify) -> None: ...


@app.job(max_attempts=1, timeout=1, name="charge")
def charge() -> None:
    raise RuntimeError


words = app.declare("words", input=Words, max_attempts=1, timeout=1)
typed = app.declare("typed", input=Typed, max_attempts=1, timeout=1)
earlier = app.declare("earlier", input=OldNotify, max_attempts=1, timeout=1)


@pytest.fixture
def t() -> Iterator[TestApp]:
    with TestApp(app, now=datetime(2027, 3, 1, tzinfo=UTC)) as case:
        yield case


def says(text: str) -> str:
    return textwrap.dedent(text).strip()


def test_answers_what_it_found(t: TestApp) -> None:
    # contract: X1
    ids = [notify.enqueue(Notify(n), key=f"k{n}").id for n in range(3)]
    found = t.assert_enqueued(notify)
    assert [record.input for record in found] == [Notify(0), Notify(1), Notify(2)]
    assert [record.record.id for record in found] == ids
    assert t.enqueued(notify) == found
    assert t.enqueued(charge) == []


def test_finds_by_every_value(t: TestApp) -> None:
    # contract: X1
    notify.enqueue(Notify(1, "mail"), key="k", queue="q")
    notify.enqueue(Notify(1))
    charge.enqueue()
    words.enqueue(Words(["a", "b"]))
    typed.enqueue({"a": 3})
    t.assert_enqueued(notify, count=2)
    t.assert_enqueued(notify, where={"article": 1}, count=2)  # of the base class
    t.assert_enqueued(notify, where={"article": 1, "channel": "mail"}, key="k", queue="q", state="pending", count=1)
    t.assert_enqueued(notify, where={"channel": "web"}, count=1)
    t.assert_enqueued(notify, queue="default", count=1)
    t.assert_enqueued(words, where={"words": ["a", "b"]})
    t.assert_enqueued(typed, where={"a": 3})
    t.assert_enqueued(charge)
    t.assert_enqueued(charge, state="dead", count=0)
    t.refute_enqueued(notify, where={"channel": "fax"})
    t.refute_enqueued(notify, key="other")
    t.refute_enqueued(notify, queue="other")
    t.refute_enqueued(notify, state="succeeded")


def test_counts_what_has_run_already(t: TestApp) -> None:
    # contract: X1, X2
    notify.enqueue(Notify(1))
    t.drain()
    t.assert_enqueued(notify, count=1)
    t.assert_enqueued(notify, state="succeeded", count=1)
    t.refute_enqueued(notify, state="pending")


def test_finds_records_under_an_alias_and_of_an_earlier_type(t: TestApp) -> None:
    # contract: J4, J10
    earlier.enqueue(OldNotify(7))
    with t.engine().begin() as connection:
        connection.execute(sa.text("UPDATE rowlock_job SET job = 'tell'"))
    t.assert_enqueued(notify, where={"article": 7, "channel": "web"}, count=1)


def test_a_miss_shows_what_comes_near(t: TestApp) -> None:
    # contract: X1
    notify.enqueue(Notify(1, "mail"), key="k")
    notify.enqueue(Notify(2), delay=90)
    charge.enqueue()
    charge.enqueue()
    t.drain()
    with pytest.raises(AssertionError) as failure:
        t.assert_enqueued(notify, where={"article": 2, "channel": "mail"}, state="pending")
    assert str(failure.value) == says(
        """
        at least one is wanted of job 'notify' with article=2, channel='mail', state 'pending', and none was enqueued
          of this job, with other values:
            #2 pending, due in 0:01:30, queue 'default': Notify(article=2, channel='web')
              channel is 'web', not 'mail'
            #1 succeeded, queue 'default', key 'k': Notify(article=1, channel='mail')
              state is 'succeeded', not 'pending'; article is 1, not 2
          other jobs that were: charge (2)
        """
    )


def test_a_wrong_count_shows_what_matches(t: TestApp) -> None:
    # contract: X1
    notify.enqueue(Notify(1))
    charge.enqueue()
    t.drain()
    with pytest.raises(AssertionError) as failure:
        t.assert_enqueued(charge, count=2)
    assert str(failure.value) == says(
        """
        2 are wanted of job 'charge', and 1 was enqueued
          these match:
            #2 dead, failed, queue 'default': None
          other jobs that were: notify (1)
        """
    )
    with pytest.raises(AssertionError, match="0 are wanted of job 'charge', and 1 was enqueued"):
        t.assert_enqueued(charge, count=0)


def test_nothing_at_all_is_said_too(t: TestApp) -> None:
    # contract: X1
    with pytest.raises(AssertionError) as failure:
        t.assert_enqueued(charge)
    assert str(failure.value) == says(
        """
        at least one is wanted of job 'charge', and none was enqueued
          nothing of this job was enqueued
          no other job was enqueued
        """
    )


def test_a_refutation_shows_what_is_there(t: TestApp) -> None:
    # contract: X1
    notify.enqueue(Notify(1))
    notify.enqueue(Notify(2))
    with pytest.raises(AssertionError) as failure:
        t.refute_enqueued(notify, where={"article": 2})
    assert str(failure.value) == says(
        """
        nothing is wanted of job 'notify' with article=2, and 1 was enqueued:
            #2 pending, due now, queue 'default': Notify(article=2, channel='web')
        """
    )


def test_many_records_are_not_all_shown(t: TestApp) -> None:
    # contract: X1
    notify.enqueue_many([Notify(n) for n in range(1200)])
    assert len(t.enqueued(notify)) == 1200
    with pytest.raises(AssertionError, match=r"… and 1190 more$"):
        t.refute_enqueued(notify)


def test_a_payload_that_can_not_be_read_is_a_miss(t: TestApp) -> None:
    # contract: X1, W5
    notify.enqueue(Notify(1))
    with t.engine().begin() as connection:
        connection.execute(sa.text("""UPDATE rowlock_job SET payload = '{"article": "x"}'"""))
    [found] = t.assert_enqueued(notify)
    with pytest.raises(CorruptPayload):
        _ = found.input
    with pytest.raises(AssertionError, match=r"its input can not be read \(CorruptPayload\)"):
        t.assert_enqueued(notify, where={"article": 1})
    with t.engine().begin() as connection:
        connection.execute(sa.text("UPDATE rowlock_job SET fingerprint = 'another'"))
    with pytest.raises(LookupError):
        _ = t.enqueued(notify)[0].input


def test_a_misspelt_field_does_not_pass(t: TestApp) -> None:
    # contract: X1, Z1
    with pytest.raises(
        KitValueError, match="'chanel', and the input of job 'notify' has only the fields article, channel"
    ):
        t.refute_enqueued(notify, where={"chanel": "web"})
    with pytest.raises(KitValueError, match="no fields"):
        t.assert_enqueued(charge, where={"x": 1})
    with pytest.raises(KitValueError, match="the states are pending"):
        t.refute_enqueued(notify, state="done")


def test_a_stranger_is_refused(t: TestApp) -> None:
    # contract: X1, Z1
    other = App().declare("notify", max_attempts=1, timeout=1)
    with pytest.raises(KitValueError, match="not one of this application"):
        t.refute_enqueued(other)
    stranger: Any = notify.handler
    with pytest.raises(KitTypeError, match=r"@jobs\.job"):
        t.enqueued(stranger)
