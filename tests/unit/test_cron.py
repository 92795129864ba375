from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from time import perf_counter

import pytest
from cronsim import CronSim

from rowlock import Cron, CronError, CronTypeError, RowlockError
from rowlock.model.cron_fields import FIELDS

MINUTE = timedelta(minutes=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- what is one, and what is none (T1) ----------------------------------------------------------------------

ACCEPTED = [
    # text, a field's index, its values
    ("* * * * *", 0, set(range(60))),
    ("0 * * * *", 0, {0}),
    ("59 * * * *", 0, {59}),
    ("00 007 * * *", 1, {7}),
    ("* 23 * * *", 1, {23}),
    ("* * 31 * *", 2, {31}),
    ("* * * 12 *", 3, {12}),
    ("* * * * 0", 4, {0}),
    ("* * * * 6", 4, {6}),
    ("1,3,5 * * * *", 0, {1, 3, 5}),
    ("5,1,1 * * * *", 0, {1, 5}),
    ("1-5 * * * *", 0, {1, 2, 3, 4, 5}),
    ("5-5 * * * *", 0, {5}),
    ("*/15 * * * *", 0, {0, 15, 30, 45}),
    ("*/7 * * * *", 0, {0, 7, 14, 21, 28, 35, 42, 49, 56}),
    ("* * */10 * *", 2, {1, 11, 21, 31}),
    ("10-20/5 * * * *", 0, {10, 15, 20}),
    ("1-2,4,10-14/2 * * * *", 0, {1, 2, 4, 10, 12, 14}),
    ("*/60 * * * *", 0, {0}),
    (f"*/{'9' * 400} * * * *", 0, {0}),
    ("0-59 * * * *", 0, set(range(60))),
    ("*,5 * * * *", 0, set(range(60))),
    ("  0\t9  * *   1-5 ", 4, {1, 2, 3, 4, 5}),
    ("0 0 29 2 *", 2, {29}),  # leap years have it
    ("0 0 31 1,2 *", 2, {31}),  # January has it
    ("0 0 31 2 1", 2, {31}),  # the Mondays in February occur
    ("0 0 30 4 *", 2, {30}),
]

REFUSED = [
    # text, what the message must say: the field, the value, the remedy
    ("", "0 fields"),
    ("   ", "0 fields"),
    ("* * * *", "4 fields"),
    ("* * * * * *", "6 fields"),
    ("0 0 12 * * 2030", "6 fields"),
    ("@daily", "0 0 * * *"),
    ("@REBOOT", "macro"),
    ("@hourly", "0 \\* \\* \\* \\*"),
    ("TZ=Europe/Berlin 0 9 * * *", "UTC"),
    ("60 * * * *", "minute is '60'.*0..59"),
    ("* 24 * * *", "hour is '24'.*0..23"),
    ("* * 0 * *", "day of month is '0'.*1..31"),
    ("* * 32 * *", "day of month is '32'.*1..31"),
    ("* * * 0 *", "month is '0'.*1..12"),
    ("* * * 13 *", "month is '13'.*1..12"),
    ("* * * * 7", "day of week is '7'.*write 0"),  # case: C47 (the contract's value: 7 is refused)
    ("* * * * 5-7", "write 5-6,0"),
    ("* * * * 6-7", "write 6,0"),
    ("* * * * 8", "day of week is '8'.*0..6"),
    ("0 9 * * MON", "write 1 for MON"),  # case: C47 (names are refused)
    ("0 9 * * sat-sun", "write 6 for sat"),
    ("0 9 * * Sunday", "write 0 for Sunday"),
    ("0 9 * JAN *", "write 1 for JAN"),
    ("0 0 ? * 1", r"write \*"),
    ("0 0 L * *", "28-31"),
    ("0 0 15W * *", "L, W and #"),
    ("0 0 * * 5#3", "L, W and #"),
    ("0 0 LW * *", "L, W and #"),
    ("5/15 * * * *", "write 5-59/15"),
    ("*/0 * * * *", "at least 1"),
    ("1-5/0 * * * *", "at least 1"),
    ("*/ * * * *", "none of the forms"),
    ("*/-5 * * * *", "none of the forms"),
    ("*/5/2 * * * *", "one step"),
    ("*-5 * * * *", "none of the forms"),
    ("5- * * * *", "none of the forms"),
    ("-5 * * * *", "none of the forms"),
    ("1-2-3 * * * *", "none of the forms"),
    ("5-1 * * * *", "write 5-59,0-1"),
    ("0 22-2 * * *", "write 22-23,0-2"),
    ("5-0 * * * *", "write 5-59,0"),
    (", * * * *", "between its commas"),
    ("1,,2 * * * *", "between its commas"),
    ("1, * * * *", "between its commas"),
    ("1.5 * * * *", "none of the forms"),
    ("+1 * * * *", "none of the forms"),
    ("0x1 * * * *", "none of the forms"),
    ("** * * * *", "none of the forms"),
    ("٣ * * * *", "none of the forms"),  # a digit, and none of ours
    ("H * * * *", "none of the forms"),
    ("0 9 * * *\n", "none of the forms"),
    ("0 9 * *\u00a0*", "fields"),
    ("0 9 * * *\0", "none of the forms"),
    ("0 9 * * \ud800", "none of the forms"),
    ("0 0 31 2 *", "never occurs"),
    ("0 0 30 2 *", "never occurs"),
    ("0 0 30,31 2 *", "never occurs"),
    ("0 0 31 4,6,9,11 *", "never occurs"),
    ("0 0 31 2 0-6", "never occurs"),  # every day of the week is no restriction
    ("0 0 31 2 */1", "never occurs"),
    ("1," * 300 + "1 * * * *", "512 bytes"),
    (f"*/{'9' * 503} * * * *", "512 bytes"),
    ("é" * 300, "512 bytes"),
]


@pytest.mark.parametrize(("text", "index", "values"), ACCEPTED)
def test_what_a_field_admits(text: str, index: int, values: set[int]) -> None:
    # contract: T1
    assert Cron(text).fields[index] == values


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_what_is_refused_and_what_to_write(text: str, says: str) -> None:
    # contract: T1; case: C47
    with pytest.raises(CronError) as raised:
        Cron(text)
    message = str(raised.value)
    assert re.search(says, message)
    assert "(T1)" in message
    assert len(message) < 400
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, RowlockError)


def test_512_bytes_are_the_most() -> None:
    # contract: T1
    longest = f"*/{'9' * 502} * * * *"
    assert len(longest) == 512
    assert Cron(longest).fields[0] == {0}
    with pytest.raises(CronError, match="512 bytes"):
        Cron(longest.replace("9", "99", 1))


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["*"] * 5, object()])
def test_what_is_no_text(value: object) -> None:
    # contract: T1
    with pytest.raises(CronTypeError) as raised:
        Cron(value)  # pyright: ignore[reportArgumentType]
    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize("seed", range(4))
def test_any_text_is_a_cron_or_a_sentence(seed: int) -> None:
    # contract: T1
    rng = random.Random(seed)
    for _ in range(2_000):
        text = " ".join("".join(rng.choices("*0123456789,-/?#LW@=ax. ", k=rng.randint(0, 6))) for _ in range(5))
        try:
            assert all(Cron(text).fields)
        except CronError as error:
            assert "(T1)" in str(error)  # noqa: PT017 - most are none


# --- which days match (T2) -----------------------------------------------------------------------------------


def days(text: str, first: str = "2026-01-01", count: int = 10) -> list[str]:
    return [f"{moment:%Y-%m-%d}" for moment in Cron(text).next(at(first) - MINUTE, count)]


def test_two_restricted_day_fields_are_an_or() -> None:
    # contract: T2; case: C46
    found = days("0 9 1 * 1", count=8)
    assert found == [
        "2026-01-01", "2026-01-05", "2026-01-12", "2026-01-19", "2026-01-26", "2026-02-01", "2026-02-02", "2026-02-09",
    ]  # fmt: skip
    assert "one of the two is enough" in Cron("0 9 1 * 1").describe()


@pytest.mark.parametrize("any_day", ["*", "*/1", "1-31", "1-31/1", "1-15,16-31", "*,5"])
def test_a_field_that_admits_every_day_of_the_month_is_unrestricted(any_day: str) -> None:
    # contract: T2; case: C46
    assert days(f"0 0 {any_day} * 1", count=3) == ["2026-01-05", "2026-01-12", "2026-01-19"]


@pytest.mark.parametrize("any_day", ["*", "*/1", "0-6", "0,1,2,3,4,5,6", "0-3,4-6"])
def test_a_field_that_admits_every_day_of_the_week_is_unrestricted(any_day: str) -> None:
    # contract: T2; case: C46
    assert days(f"0 0 1 * {any_day}", count=3) == ["2026-01-01", "2026-02-01", "2026-03-01"]


def test_a_stepped_star_that_leaves_days_out_is_restricted() -> None:
    # contract: T2 (other crons look at the first character: here the sets count)
    assert days("0 0 */2 * 1", count=4) == ["2026-01-01", "2026-01-03", "2026-01-05", "2026-01-07"]
    assert "2026-01-12" in days("0 0 */2 * 1")


def test_sunday_is_0() -> None:
    # contract: T1; case: C47
    assert date.fromisoformat(days("0 0 * * 0", count=1)[0]).isoweekday() == 7
    assert [date.fromisoformat(day).isoweekday() for day in days("0 0 * * 5-6,0", count=6)] == [5, 6, 7, 5, 6, 7]


def test_leap_day() -> None:
    # contract: T1; case: C48
    leap = Cron("0 0 29 2 *")
    assert leap.next(at("2024-02-29"), 3) == [at("2028-02-29"), at("2032-02-29"), at("2036-02-29")]
    assert leap.next(at("2096-02-29")) == at("2104-02-29")  # 2100 is none
    assert leap.previous(at("2104-02-29")) == at("2096-02-29")
    assert leap.previous(at("2024-02-29 00:01")) == at("2024-02-29")
    assert Cron("0 0 * 2 *").next(at("2024-02-28")) == at("2024-02-29")
    assert Cron("0 0 * 2 *").next(at("2023-02-28")) == at("2024-02-01")


# --- next and previous ---------------------------------------------------------------------------------------


def brute(cron: Cron, first: datetime, count: int) -> list[datetime]:
    """Every minute looked at on its own, by the letter of T2."""
    minutes, hours, of_month, months, of_week = cron.fields
    found = []
    for n in range(count):
        moment = first + n * MINUTE
        week_day = (moment.weekday() + 1) % 7
        if len(of_month) == 31 or len(of_week) == 7:
            on = moment.day in of_month and week_day in of_week
        else:
            on = moment.day in of_month or week_day in of_week
        if on and moment.minute in minutes and moment.hour in hours and moment.month in months:
            found.append(moment)
    return found


def legal(rng: random.Random) -> str:
    """A random legal text, in which every form occurs, and which may never occur."""

    def item(low: int, high: int) -> str:
        first, last = sorted((rng.randint(low, high), rng.randint(low, high)))
        step = rng.randint(1, high)
        return rng.choice(["*", f"{first}", f"{first}-{last}", f"*/{step}", f"{first}-{last}/{step}"])

    def field(low: int, high: int) -> str:
        return ",".join(item(low, high) for _ in range(rng.choice([1, 1, 1, 2, 3])))

    return " ".join(field(one.low, one.high) for one in FIELDS)


def crons(seed: int, count: int) -> list[Cron]:
    rng, found = random.Random(seed), list[Cron]()
    while len(found) < count:
        try:
            found.append(Cron(legal(rng)))
        except CronError as error:
            assert "never occurs" in str(error)  # noqa: PT017 - some do not
    return found


@pytest.mark.parametrize("seed", range(6))
def test_next_agrees_with_every_minute_looked_at(seed: int) -> None:
    # contract: T1, T2: 300 expressions over four years. Of each every day, and of some days every minute.
    first = at("2024-01-01")
    calendar = [first + timedelta(days=n) for n in range(1461)]
    for cron in crons(seed, 50):
        time_of_day = timedelta(hours=min(cron.fields[1]), minutes=min(cron.fields[0]))
        matching = [day for day in calendar if brute(cron, day + time_of_day, 1)]
        assert list(days_of(cron, first, first + timedelta(days=1461))) == matching, cron
        for day in random.Random(seed).sample(calendar, 3) + matching[:1]:
            assert list(cron.between(day - MINUTE, day + 1439 * MINUTE)) == brute(cron, day, 1440), cron


def days_of(cron: Cron, first: datetime, end: datetime) -> Iterator[datetime]:
    moment = cron.next(first - MINUTE)
    while moment < end:
        yield moment.replace(hour=0, minute=0)
        moment = cron.next(moment.replace(hour=23, minute=59))


@pytest.mark.parametrize("seed", range(100, 103))
def test_next_and_previous_from_any_instant(seed: int) -> None:
    # contract: T1
    rng = random.Random(seed)
    for cron in crons(seed, 100):
        moment = at("2020-01-01") + timedelta(seconds=rng.randint(0, 10 * 365 * 86_400), microseconds=rng.randint(0, 9))
        following = cron.next(moment)
        before = cron.previous(moment)
        assert before < moment < following
        assert cron.matches(following)
        assert cron.matches(before)
        assert (following.second, following.microsecond) == (0, 0)
        assert cron.previous(following + timedelta(microseconds=1)) == following
        assert cron.next(before - timedelta(microseconds=1)) == before
        assert list(cron.between(before, following)) == [following] or cron.matches(moment)
        if cron.next(before) != following:  # the instant itself is one: it is neither before nor after itself
            assert cron.next(before) == moment


@pytest.mark.parametrize("seed", range(200, 204))
def test_agreement_with_another_library(seed: int) -> None:
    # contract: T1, T2. cronsim follows Debian's cron, where a day field that begins with * is unrestricted, and one
    # that admits every day in other words is not; a range of one value and a step mean "from it on" there. Texts in
    # which that matters are left out.
    rng, compared = random.Random(seed), 0
    for cron in crons(seed, 300):
        of_month, of_week = (cron.text.split()[index] for index in (2, 4))
        if _other_rule(of_month, 31, cron.fields[2]) or _other_rule(of_week, 7, cron.fields[4]):
            continue
        if any(first == last for first, last in re.findall(r"(\d+)-(\d+)/", cron.text)):
            continue
        start = at("2024-01-01") + timedelta(minutes=rng.randint(0, 4 * 366 * 1440))
        other = CronSim(cron.text, start)
        assert cron.next(start, 20) == [next(other) for _ in range(20)], cron
        compared += 1
    assert compared > 50


def _other_rule(text: str, every: int, admitted: frozenset[int]) -> bool:
    return text.startswith("*") != (len(admitted) == every)


def test_the_instant_itself_is_neither_next_nor_previous() -> None:
    # contract: T1
    daily = Cron("0 9 * * *")
    assert daily.next(at("2026-11-30 09:00")) == at("2026-12-01 09:00")
    assert daily.previous(at("2026-11-30 09:00")) == at("2026-11-29 09:00")
    assert daily.next(at("2026-11-30 08:59:59.999999")) == at("2026-11-30 09:00")
    assert daily.previous(at("2026-11-30 09:00:00.000001")) == at("2026-11-30 09:00")


def test_several_are_a_list() -> None:
    # contract: T1
    daily = Cron("0 9 * * *")
    assert daily.next(at("2026-12-30 10:00"), n=3) == [
        at("2026-12-31 09:00"), at("2027-01-01 09:00"), at("2027-01-02 09:00"),
    ]  # fmt: skip
    assert daily.next(at("2026-12-30 10:00"), n=1) == [at("2026-12-31 09:00")]
    for n in (0, -1, 10_001):
        with pytest.raises(CronError, match=r"1\.\.10,000"):
            daily.next(at("2026-12-30"), n=n)
    with pytest.raises(CronTypeError):
        daily.next(at("2026-12-30"), n=1.5)  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_other_time_zones_are_brought_to_utc_and_naive_ones_refused() -> None:
    # contract: T1; case: C49
    daily = Cron("30 1 * * *")
    east = datetime(2026, 3, 29, 1, 45, tzinfo=timezone(timedelta(hours=2)))  # 23:45 of the day before in UTC
    assert daily.next(east) == at("2026-03-29 01:30")
    assert daily.next(east).tzinfo is UTC
    naive = datetime(2026, 3, 29)  # noqa: DTZ001 - what is refused
    for ask in (daily.next, daily.previous, daily.matches):
        with pytest.raises(CronError, match="no time zone"):
            ask(naive)
        with pytest.raises(CronTypeError, match="not a datetime"):
            ask("2026-03-29")  # pyright: ignore[reportArgumentType]


def test_the_calendar_ends() -> None:
    # contract: T1; case: C65 (no overflow, whatever the instant)
    every = Cron("* * * * *")
    last = datetime.max.replace(tzinfo=UTC)
    with pytest.raises(CronError, match="calendar ends"):
        every.next(last)
    assert every.next(last - 2 * MINUTE, 9) == [at("9999-12-31 23:58"), at("9999-12-31 23:59")]
    with pytest.raises(CronError, match="calendar begins"):
        every.previous(datetime.min.replace(tzinfo=UTC))
    with pytest.raises(CronError, match="outside the years"):
        every.next(datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))))


def test_years_pass_quickly() -> None:
    # contract: T1: no walk minute by minute. The bound is far above what it takes, and far below a walk.
    leap = Cron("0 0 29 2 *")
    begin = perf_counter()
    for _ in range(100):
        leap.next(at("2096-03-01"))
        leap.previous(at("2104-02-01"))
    assert perf_counter() - begin < 1.0


# --- the fingerprint (T3) and words (T8) ---------------------------------------------------------------------


def test_the_fingerprint_is_of_the_parsed_sets() -> None:
    # contract: T3
    same = ["*/15 0 * * 1-5", "0,15,30,45 0 * * 1,2,3,4,5", " 00-45/15 000 1-31 */1 1-5 "]
    assert {Cron(text).fingerprint for text in same} == {Cron(same[0]).fingerprint}
    assert len({Cron(text) for text in same}) == 1
    others = ["*/15 1 * * 1-5", "*/20 0 * * 1-5", "*/15 0 1 * 1-5", "*/15 0 * 1 1-5", "*/15 0 * * 1"]
    assert len({Cron(text).fingerprint for text in [same[0], *others]}) == 6
    assert Cron(same[0]) != Cron(others[0])


def test_the_fingerprint_never_changes() -> None:
    # contract: T3: it is stored, and another one fails a start (T7)
    assert Cron("0 9 * * 1-5").fingerprint == "459560bfcd684dda2aaf760fd1c4d069542f19514e780996ba8330372ed2b352"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* * * * *", "every minute (UTC)"),
        ("*/15 * * * *", "every 15 minutes (UTC)"),
        ("0 * * * *", "every hour (UTC)"),
        ("0 */2 * * *", "every 2 hours (UTC)"),
        ("5 * * * *", "at minute 5 of every hour (UTC)"),
        ("5,35 * * * *", "at minutes 5 and 35 of every hour (UTC)"),
        ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour (UTC)"),
        ("0 9 * * *", "at 09:00 (UTC)"),
        ("30 4,16 * * *", "at 04:30 and 16:30 (UTC)"),
        ("0 9 * * 1-5", "at 09:00 on Monday to Friday (UTC)"),
        ("0 0 29 2 *", "at 00:00 on day 29 of the month in February (UTC)"),
        ("0 0 1,15 1-3,12 *", "at 00:00 on days 1 and 15 of the month in January to March and December (UTC)"),
        ("0 9-17 * * 6,0", "at minute 0 of the hours 9 to 17 on Sunday and Saturday (UTC)"),
        ("* 3 * * *", "every minute of the hour 3 (UTC)"),
        (
            "0 9 1 * 1",
            "at 09:00 on day 1 of the month and also on Monday (one of the two is enough) (UTC)",
        ),
        ("0 0 1-31 * 1", "at 00:00 on Monday (UTC)"),
    ],
)
def test_in_words(text: str, words: str) -> None:
    # contract: T8; case: C46
    assert Cron(text).describe() == words


def test_it_shows_its_text() -> None:
    assert repr(Cron("0 9 * * *")) == "Cron('0 9 * * *')"
    assert Cron("0 9 * * *").text == "0 9 * * *"
