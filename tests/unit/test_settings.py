# What is refused is tried, and JSON has no types.
# pyright: reportArgumentType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.errors import RowlockError, SettingsError
from rowlock.model.backoff import Backoff
from rowlock.model.settings import Settings
from rowlock.model.settings_url import masked

URL = "postgresql://app:S3CR3T@db/shop"

TOUR: dict[str, Any] = {
    "database": {"default": {"url": {"env": "DATABASE_URL"}, "pool": 10, "auto_migrate": True}},
    "runtime": {"mode": "all", "shutdown_ms": 30000},
    "http": {"app": "newsroom.main:api", "host": "127.0.0.1", "port": 8000},
    "health": {"host": "0.0.0.0", "port": 9090},
    "job": {
        "workers": 4,
        "queues": {"billing": 2},
        "poll_ms": 250,
        "lease_ms": 60000,
        "retry_base_ms": 1000,
        "retry_max_ms": 300000,
        "unknown_ms": 3600000,
    },
    "retention": {"overrides": {"rowlock_job": "14d"}},
}


def nested(path: str, value: object) -> dict[str, Any]:
    """The settings that have `value` at `path`."""
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def look(settings: Settings, path: str) -> object:
    found: Any = settings
    for key in path.split("."):
        found = found[key] if isinstance(found, Mapping) else getattr(found, key)
    return found


def refusal(source: object) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.load(source)
    assert isinstance(caught.value, RowlockError)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


# --- defaults and bounds ---------------------------------------------------------------------------------------


def test_defaults() -> None:
    # contract: M2, M3
    for settings in (Settings.load(), Settings.load(None), Settings.load({})):
        job = settings.job
        assert (job.workers, job.queues, job.poll_ms, job.lease_ms) == (4, {}, 250, 60_000)
        assert (job.retry_base_ms, job.retry_max_ms, job.unknown_ms) == (1_000, 300_000, 3_600_000)
        assert (job.payload_max, job.sweep_ms, job.enqueue_wait_ms, job.overrun_ms) == (1_048_576, 60_000, 2_000, None)
        assert job.backoff == Backoff(1, timedelta(minutes=5))
        assert (settings.runtime.mode, settings.runtime.shutdown_ms) == (None, 30_000)
        assert (settings.http.app, settings.http.host, settings.http.port) == (None, "127.0.0.1", 8000)
        assert settings.health.port is None
        assert settings.database == {}
        assert settings.retention.overrides == {}


def test_the_tours_file(tmp_path: Path) -> None:
    # contract: M1
    file = tmp_path / "setting.json"
    file.write_text(json.dumps(TOUR))
    for source in (TOUR, file, str(file)):
        settings = Settings.load(source)
        assert settings.as_effective() == {
            **TOUR,
            "job": {**TOUR["job"], "enqueue_wait_ms": 2000, "payload_max": 1_048_576, "sweep_ms": 60000},
        }
    assert Settings.load(settings) is settings


@pytest.mark.parametrize(
    ("path", "low", "high"),
    [
        ("job.workers", 1, 256),
        ("job.queues.billing", 1, 256),
        ("job.poll_ms", 1, 60_000),
        ("job.lease_ms", 100, 7_200_000),
        ("job.retry_base_ms", 1, 300_000),
        ("job.retry_max_ms", 1_000, 86_400_000),
        ("runtime.shutdown_ms", 1, 300_000),
        ("job.payload_max", 1, 16 * 1024 * 1024),
        ("job.unknown_ms", 0, 604_800_000),
        ("job.sweep_ms", 100, 600_000),
        ("job.overrun_ms", 1, 7_200_000),
        ("job.enqueue_wait_ms", 1, 60_000),
        ("database.default.pool", 1, 1_000),
        ("http.port", 0, 65_535),
        ("health.port", 0, 65_535),
    ],
)
def test_bounds_are_inside_and_what_is_outside_is_refused(path: str, low: int, high: int) -> None:
    # contract: M1, M2
    for value in (low, high):
        assert look(Settings.load(nested(path, value)), path) == value
    for value in (low - 1, high + 1, -1, 10**30, -(10**5000)):
        said = refusal(nested(path, value))
        if (path, value) in {("job.retry_base_ms", high + 1), ("job.retry_max_ms", low - 1)}:
            assert "must not exceed" in said
        else:
            assert f"settings: {path} is " in said
            assert " to " in said
        if abs(value) < 2**64:
            assert f"{value}" in said.replace(",", "")
    for value in (None, True, False, 5.0, "5", [], {}, 1e400, float("nan"), b"5"):
        assert f"{path} is " in refusal(nested(path, value))


def test_the_message_has_path_value_and_bounds() -> None:
    # contract: M1
    assert refusal({"job": {"lease_ms": 99}}) == (
        "settings: job.lease_ms is 99; it must be a whole number, 100 to 7,200,000 (M2)"
    )
    assert refusal({"job": {"lease_ms": None}}).startswith("settings: job.lease_ms is null; ")
    assert refusal({"job": {"lease_ms": True}}).startswith("settings: job.lease_ms is true; ")
    assert refusal({"job": {"lease_ms": "60s"}}).startswith('settings: job.lease_ms is "60s"; ')


def test_the_base_must_not_exceed_the_cap() -> None:
    # contract: M2
    assert Settings.load({"job": {"retry_base_ms": 7, "retry_max_ms": 7}}).job.backoff == Backoff(0.007, 0.007)
    assert Settings.load({"job": {"retry_base_ms": 86_400_000, "retry_max_ms": 86_400_000}})
    said = refusal({"job": {"retry_base_ms": 8, "retry_max_ms": 7}})
    assert "job.retry_base_ms is 8" in said
    assert "job.retry_max_ms 7" in said


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("database.default.auto_migrate", (True, False), (0, 1, "true", None)),
        ("database.default.pooler", ("transaction",), ("session", "", None, True)),
        ("runtime.mode", ("api", "worker", "all"), ("ALL", "", "both", None, 1, [])),
        ("http.app", ("a.b:c",), ("", " ", None, 5)),
        ("http.host", ("::1", "localhost"), ("", None, 5, "x" * 256)),
        ("retention.overrides.rowlock_job", ("14d", "nonsense", ""), (14, None, {})),
    ],
)
def test_words_and_flags(path: str, good: tuple[object, ...], bad: tuple[object, ...]) -> None:
    # contract: M1, N5
    for value in good:
        assert look(Settings.load(nested(path, value)), path) == value
    for value in bad:
        assert path in refusal(nested(path, value))


@pytest.mark.parametrize("path", ["database", "database.default", "runtime", "http", "health", "job", "job.queues"])
@pytest.mark.parametrize("value", [None, [], "S3CR3T://", 5, True])
def test_a_section_is_an_object(path: str, value: object) -> None:
    # contract: M1
    said = refusal(nested(path, value))
    assert f"{path} is " in said
    assert "an object" in said
    assert "S3CR3T" not in said


@pytest.mark.parametrize("value", [[], 5, "", True, b"{}"])
def test_the_whole_is_an_object(value: object, tmp_path: Path) -> None:
    # contract: M1
    if not isinstance(value, bytes | str):
        file = tmp_path / "s.json"
        file.write_text(json.dumps(value))
        assert "an object" in refusal(file)
    if not isinstance(value, str):
        assert "mapping" in refusal(value)


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("jobs", "job"),
        ("job.lease", "lease_ms"),
        ("job.queue", "queues"),
        ("database.default.uri", "url"),
        ("database.default.url.environ", "env"),
        ("runtime.shutdown", "shutdown_ms"),
        ("http.hosts", "host"),
        ("health.ports", "port"),
        ("retention.override", "overrides"),
    ],
)
def test_an_unknown_key_is_refused_with_its_path(path: str, near: str) -> None:
    # contract: M1
    said = refusal(nested(path, URL))
    assert f"no setting {path} " in said
    assert f"did you mean {near}?" in said
    assert "S3CR3T" not in said


def test_keys_are_texts() -> None:
    # contract: M1
    assert "of type int" in refusal({"job": {"queues": {5: 1}}})
    assert "of type int" in refusal({5: {}})


@pytest.mark.parametrize("queue", ["", "  ", "q" * 129, "ü" * 65, "a\0b", "\ud800"])
def test_a_queues_name_has_the_bounds_of_a_queue(queue: str) -> None:
    # contract: J1, M1
    assert "a name in job.queues" in refusal({"job": {"queues": {queue: 1}}})


def test_a_port_is_needed_to_serve_health() -> None:
    # contract: H1
    assert "health.port is missing" in refusal({"health": {"host": "0.0.0.0"}})


# --- queues and what was given ---------------------------------------------------------------------------------


def test_workers_of_a_queue() -> None:
    # contract: M2
    settings = Settings.load({"job": {"workers": 9, "queues": {"billing": 2}}})
    assert settings.workers_for("billing") == 2
    assert settings.workers_for("other") == 9


def test_what_was_given_is_known() -> None:
    # contract: M1, M2
    settings = Settings.load(TOUR)
    for path in ("job", "job.queues", "job.queues.billing", "job.workers", "database.default.url", "health.port"):
        assert settings.given(path)
    for path in ("job.queues.other", "job.overrun_ms", "job.sweep_ms", "database.reports", "nonsense"):
        assert not settings.given(path)
    assert not Settings.load().given("job")


def test_later_changes_of_the_object_do_not_matter() -> None:
    source = {"job": {"queues": {"billing": 2}}}
    settings = Settings.load(source)
    source["job"]["queues"]["billing"] = 0
    assert settings.workers_for("billing") == 2


# --- the file --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"{", "line 1, column 2"),
        (b'{"job": {},}', "not JSON"),
        (b"{} {}", "not JSON"),
        (b'{"job": {"workers": NaN}}', "NaN is no JSON number"),
        (b'{"job": {"workers": -Infinity}}', "-Infinity is no JSON number"),
        (b'{"job": ' * 100_000, "nested too deeply"),
        (b'{"job": {"workers": ' + b"9" * 5000 + b"}}", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"job": {"workers": 1, "workers": 2}}', "job.workers stands there twice"),
        (b'{"job": {}, "job": {}}', "job stands there twice"),
        (b'{"database": {"a": {"url": "S3CR3T", "url": "S3CR3T"}}}', "database.a.url stands there twice"),
        (b'{"job": {"queues": {"a": 1, "b": 2, "a": 1}}}', "job.queues.a stands there twice"),
    ],
)
def test_a_file_that_is_no_settings_is_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    # contract: M1
    file = tmp_path / "setting.json"
    file.write_bytes(content)
    said = refusal(file)
    assert says in said
    assert str(file) in said
    assert "\n" not in said
    assert "S3CR3T" not in said


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    # contract: M1
    assert "No such file" in refusal(tmp_path / "none.json")
    assert "Is a directory" in refusal(str(tmp_path))
    assert "can not be read" in refusal("a\0b")
    assert "not int" in refusal(5)


# --- secrets ---------------------------------------------------------------------------------------------------


def resolve(value: object) -> str:
    url = Settings.load({"database": {"default": {"url": value}}}).database["default"].url
    assert url is not None
    return url.resolve()


def test_a_url_is_given_or_referred_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # contract: M1
    file = tmp_path / "secret"
    file.write_text(f"{URL}\n")
    monkeypatch.setenv("SHOP_URL", URL)
    assert resolve(URL) == URL
    assert resolve({"env": "SHOP_URL"}) == URL
    assert resolve({"file": str(file)}) == URL
    file.write_bytes(f"{URL}\r\n".encode())
    assert resolve({"file": str(file)}) == URL


def test_a_reference_is_followed_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # contract: M1
    monkeypatch.delenv("SHOP_URL", raising=False)
    file = tmp_path / "secret"
    source = {"a": {"url": {"env": "SHOP_URL"}}, "b": {"url": {"file": str(file)}}}
    database = Settings.load({"database": source}).database
    a, b = database["a"].url, database["b"].url
    assert a is not None
    assert b is not None
    with pytest.raises(SettingsError, match=r"database\.a\.url refers to the environment variable SHOP_URL.*not set"):
        a.resolve()
    with pytest.raises(SettingsError, match=r"database\.b\.url refers to the file .*secret.*No such file"):
        b.resolve()
    for content, says in ((b"\n", "empty"), (b"S3CR3T\xff", "UTF-8")):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=says) as caught:
            b.resolve()
        assert "S3CR3T" not in str(caught.value)
    monkeypatch.setenv("SHOP_URL", " ")
    with pytest.raises(SettingsError, match="empty"):
        a.resolve()
    monkeypatch.setenv("SHOP_URL", "first")
    assert a.resolve() == "first"
    monkeypatch.setenv("SHOP_URL", "second")
    assert a.resolve() == "second"


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        f"{URL}\n",
        "a\0b",
        "\ud800",
        None,
        5,
        True,
        [URL],
        {},
        {"env": "A", "file": "b"},
        {"env": URL},
        {"env": ""},
        {"env": "A B"},
        {"env": None},
        {"env": {"env": "S3CR3T"}},
        {"file": URL},
        {"file": ""},
        {"file": "a\0b"},
        {"file": 5},
    ],
)
def test_a_url_that_is_none_is_refused_unseen(value: object) -> None:
    # contract: M1, S6
    # case: C64
    said = refusal({"database": {"default": {"url": value}}})
    assert "database.default.url" in said
    assert "S3CR3T" not in said


@pytest.mark.parametrize(
    "source",
    [
        {"database": URL},
        {"database": {"default": URL}},
        {"database": {"url": URL}},
        {"database": {URL: {}}},
        {"database": {"default": {"pool": URL}}},
        {"database": {"default": {"pooler": "S3CR3T"}}},
        {"job": URL},
        {"job": {"lease_ms": URL}},
    ],
)
def test_a_url_in_the_wrong_place_is_not_shown(source: object) -> None:
    # contract: M1, S6
    assert "S3CR3T" not in refusal(source)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "postgresql://app:***@db/shop"),
        ("mysql://u:S3CR3T@S3CR3T/#?@h:3306/db", "mysql://u:***@h:3306/db"),
        ("mysql://:S3CR3T@h/db", "mysql://:***@h/db"),
        ("mariadb://root@localhost/db?unix_socket=/run/x", "mariadb://root@localhost/db?unix_socket=/run/x"),
        ("postgresql:///db?user=u&password=S3CR3T&x=1", "postgresql:///db?user=u&password=***&x=1"),
        ("postgresql:///db?sslPassword=S3CR3T", "postgresql:///db?sslPassword=***"),
        ("sqlite:///newsroom.db", "sqlite:///newsroom.db"),
        ("host=db password=S3CR3T", "***"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    # contract: M1, S6
    # case: C64
    settings = Settings.load({"database": {"default": {"url": url}}})
    assert masked(url) == shown
    assert settings.as_effective()["database"]["default"]["url"] == shown
    for text in (repr(settings), str(settings), repr(settings.database), repr(settings.database["default"].url)):
        assert "S3CR3T" not in text
        assert shown in text


# Characters that can stand in a part of a URL, encoded or not.
passwords = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1).map(lambda part: f"S3{part}3T")


@given(passwords)
def test_no_password_is_ever_shown(password: str) -> None:
    # contract: S6
    assert "S3" not in masked(f"postgresql+asyncpg://app:{password}@db:5432/shop?a=b")


def test_effective_settings_are_settings() -> None:
    # contract: M1
    for source in (TOUR, {}, {"job": {"overrun_ms": 5}}, {"database": {"default": {"pooler": "transaction"}}}):
        effective = Settings.load(source).as_effective()
        assert Settings.load(json.loads(json.dumps(effective))).as_effective() == effective


def test_settings_can_be_sent_to_another_process() -> None:
    # contract: K1
    settings = Settings.load(TOUR)
    assert pickle.loads(pickle.dumps(settings)) == settings


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
keys = st.sampled_from(
    ["database", "job", "queues", "workers", "default", "url", "env", "file", "pool", "runtime", "mode", "x", ""]
)


@given(st.recursive(leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3)))
def test_anything_is_read_or_refused(source: object) -> None:
    # contract: M1
    if isinstance(source, str):
        return
    try:
        settings = Settings.load(source)
    except SettingsError:
        return
    assert 1 <= settings.job.workers <= 256
