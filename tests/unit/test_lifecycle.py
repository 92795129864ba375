"""Declarations of retention: windows, classes, what belongs where, floors, overrides (N1, N4, N5)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rowlock import DeclarationError, DeclarationTypeError
from rowlock.model.lifecycle import (
    CLASSES,
    Archive,
    Lifecycle,
    Retention,
    Ttl,
    dedupe_floor,
    highest,
    overridden,
    refuse_below,
    window,
)
from rowlock.model.retention import Floor, SweepReport, TableSweep

DAY = timedelta(days=1)
FLOOR = Floor(DAY, "the mailer", "it looks back a day", "make the window longer")


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("1h", timedelta(hours=1)), ("48h", 2 * DAY), ("7d", 7 * DAY), ("2w", 14 * DAY), ("1y", 365 * DAY),
        ("007d", 7 * DAY), ("100y", 36_500 * DAY), (timedelta(milliseconds=1), timedelta(milliseconds=1)),
        (timedelta(microseconds=1), timedelta(microseconds=1)),
    ],
)  # fmt: skip
def test_a_window_is_a_whole_number_and_a_unit_or_a_timedelta(text: Any, span: timedelta) -> None:
    # contract: N1
    assert window(text, what="max_age") == span
    assert Retention(text).max_age == Ttl("at", text).expire_after == span
    assert Archive("old", text).after == span


@pytest.mark.parametrize(
    "text",
    [
        "", "7", "d", "7 d", " 7d", "7d ", "7D", "7m", "7s", "7days", "1.5d", "-7d", "+7d", "0d", "0h", "1d12h", "٧d",
        "101y", "999999999y", "9" * 30 + "d", "7d\n", timedelta(0), timedelta(days=-1), timedelta(days=36_501),
    ],
)  # fmt: skip
def test_what_is_no_window_is_refused_with_the_value(text: Any) -> None:
    # contract: N1
    for declare in (Retention, lambda value: Ttl("at", value), lambda value: Archive("old", value)):
        with pytest.raises(DeclarationError, match="N1") as refused:
            declare(text)
        assert repr(text)[:8] in str(refused.value)


@pytest.mark.parametrize("value", [7, 7.0, True, None, b"7d", object()])
def test_a_window_of_another_kind_is_a_type_error(value: Any) -> None:
    # contract: N1
    with pytest.raises(DeclarationTypeError, match="timedelta"):
        Retention(value)


def test_each_class_permits_what_the_contract_says() -> None:
    # contract: N1
    policies: dict[str, dict[str, Any]] = {
        "nothing": {},
        "retention": {"retention": Retention("7d")},
        "ttl": {"ttl": Ttl("at", "7d")},
        "archive": {"archive": Archive("old", "7d")},
        "both": {"retention": Retention("7d"), "ttl": Ttl("at", "7d")},
        "retention and archive": {"retention": Retention("7d"), "archive": Archive("old")},
        "ttl and archive": {"ttl": Ttl("at", "7d"), "archive": Archive("old")},
    }
    others = {"retention", "ttl", "retention and archive", "ttl and archive"}
    legal = {
        "record": {"nothing"},
        "audit": {"retention", "archive", "retention and archive"},
        "transient": others, "telemetry": others, "event": others,
    }  # fmt: skip
    assert set(legal) == set(CLASSES)
    for kind in CLASSES:
        for name, policy in policies.items():
            if name in legal[kind]:
                Lifecycle(kind, **policy)
                continue
            with pytest.raises(DeclarationError, match="N1") as refused:
                Lifecycle(kind, **policy)
            assert isinstance(refused.value, ValueError)


def test_an_unknown_class_is_refused() -> None:
    # contract: N1
    for kind in ("", "Transient", "log", None, 7):
        with pytest.raises(DeclarationError, match="record, transient, telemetry, event, audit"):
            Lifecycle(kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declare", "place"),
    [
        (lambda: Lifecycle("transient", max_age="7d"), r"Retention\(max_age\)"),
        (lambda: Lifecycle("transient", retention=Retention("7d"), only_when={"a": 1}), r"Retention\(…, only_when"),
        (lambda: Lifecycle("transient", expire_after="7d"), r"Ttl\(column, expire_after\)"),
        (lambda: Lifecycle("audit", keep="7d"), r"Archive\(to, after, keep\)"),
        (lambda: Retention("7d", archive=Archive("old")), r"Lifecycle\(…, archive=Archive"),
        (lambda: Retention("7d", column="at"), r"Ttl\(column"),
        (lambda: Ttl("at", "7d", to="old"), r"Archive\(to\)"),
        (lambda: Archive("old", "7d", only_when={}), r"Retention\(…, only_when"),
        (lambda: Retention("7d", at_least="1d"), r"app\.retention_floor"),
        (lambda: Lifecycle("transient", guards=[]), r"app\.retention_guard"),
        (lambda: Lifecycle("transient", nonsense=1), "no option"),
        (lambda: Lifecycle("transient", retention="7d"), r"Retention\(…\)"),
        (lambda: Lifecycle("transient", ttl=Retention("7d")), r"Ttl\(…\)"),
        (lambda: Lifecycle("audit", archive="old"), r"Archive\(…\)"),
    ],
)
def test_what_stands_in_the_wrong_place_is_refused_with_the_right_one(declare: Any, place: str) -> None:
    # contract: N1
    with pytest.raises(DeclarationTypeError, match=place):
        declare()


def test_only_when_says_which_rows() -> None:
    # contract: N1
    assert Retention("7d").only_when == {}
    assert Ttl("at", "7d", only_when={"status": ["sent", None]}).only_when == {"status": ["sent", None]}
    for wrong in ({}, {"status": []}, {"status": ()}):
        with pytest.raises(DeclarationError, match="N1"):
            Retention("7d", only_when=wrong)
    with pytest.raises(DeclarationTypeError, match="only_when"):
        Retention("7d", only_when="status")  # type: ignore[arg-type]


def test_rows_leave_by_the_archive_no_later_than_by_the_retention() -> None:
    # contract: N7
    both = Lifecycle("audit", retention=Retention("90d"), archive=Archive("old", "30d", "1y"))
    assert both.window == 30 * DAY
    assert Lifecycle("audit", retention=Retention("90d"), archive=Archive("old")).window == 90 * DAY
    assert Lifecycle("audit", archive=Archive("old", "2d")).window == 2 * DAY
    assert Lifecycle("event", ttl=Ttl("at", "3h")).window == timedelta(hours=3)
    assert Lifecycle("record").window is None
    for wrong in (
        lambda: Lifecycle("audit", retention=Retention("90d"), archive=Archive("old", "91d")),
        lambda: Lifecycle("audit", retention=Retention("90d"), archive=Archive("old", keep="90d")),
        lambda: Lifecycle("event", ttl=Ttl("at", "1d"), archive=Archive("old", "2d")),
        lambda: Lifecycle("audit", archive=Archive("old")),
        lambda: Archive("old", "2d", "2d"),
    ):
        with pytest.raises(DeclarationError, match="N7"):
            wrong()


# --- floors and overrides ---------------------------------------------------------------------------------------------


def test_a_window_below_a_floor_is_refused_with_both_numbers_and_equal_is_legal() -> None:
    # contract: N4
    refuse_below("message", DAY, [FLOOR])
    refuse_below("message", None, [FLOOR])
    refuse_below("message", timedelta(1), [])
    with pytest.raises(DeclarationError, match="82,800 s") as refused:
        refuse_below("message", timedelta(hours=23), [FLOOR])
    assert "1 d" in str(refused.value)
    assert "the mailer" in str(refused.value)
    assert highest([FLOOR, dedupe_floor("charge", 2 * DAY)]) == dedupe_floor("charge", 2 * DAY)
    with pytest.raises(DeclarationError, match="dedupe_for of job 'charge'"):
        refuse_below("rowlock_job", 2 * DAY - timedelta(milliseconds=1), [FLOOR, dedupe_floor("charge", 2 * DAY)])


@pytest.mark.parametrize(
    ("text", "runs", "why"),
    [
        (None, 7, None), ("14d", 14, None), ("1d", 1, None), ("24h", 1, None),
        ("23h", 7, "the mailer"), ("", 7, "whole number"), ("nonsense", 7, "whole number"), ("0d", 7, "more than 0"),
        ("101y", 7, "at most"),
    ],
)  # fmt: skip
def test_an_override_is_taken_or_rejected_and_never_clamped(text: str | None, runs: int, why: str | None) -> None:
    # contract: N5
    span, violation = overridden("message", 7 * DAY, text, [FLOOR])
    assert span == runs * DAY
    if why is None:
        assert violation is None
    else:
        assert violation is not None
        assert why in violation
        assert "retention.overrides.message" in violation
        assert "7 d go on" in violation


def test_a_record_has_no_window_to_override() -> None:
    # contract: N5
    span, violation = overridden("account", None, "7d", [])
    assert span is None
    assert violation is not None
    assert "for ever" in violation


def test_two_reports_make_one() -> None:
    # contract: N8
    one = SweepReport(3, 1, ("a",), ("v",), 10, True, 1.0, (TableSweep("default", "t", 3, 1),))
    two = SweepReport(2, 0, ("a", "b"), ("v",), 5, False, 0.5, (TableSweep("other", "t", 2),))
    both = one.plus(two)
    assert (both.swept, both.skipped, both.errors, both.violations) == (5, 1, ("a", "b"), ("v",))
    assert (both.reclaimed, both.finished, both.seconds, len(both.tables)) == (15, False, 1.5, 2)
