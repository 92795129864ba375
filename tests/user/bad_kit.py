"""What a type checker refuses of the test kit: an error on each marked line, and on no other. Not run, only read."""

from __future__ import annotations

from rowlock import App
from rowlock.testing import TestApp, context

app = App("sqlite:///news.db")


@app.job(max_attempts=5, timeout=30)
def cleanup() -> None: ...


def test_it(t: TestApp) -> None:
    t.advance(hour=1)  # error
    t.advance("1h")  # error
    t.drain("all")  # error
    t.assert_enqueued(cleanup.handler)  # error
    t.assert_enqueued(cleanup, input={})  # error
    t.refute_enqueued(cleanup, count=0)  # error
    TestApp("newsroom.main:app")  # error
    TestApp(app, leases="short")  # error
    context(attempt="2")  # error
    cleanup()  # error
