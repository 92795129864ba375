"""`rowlock run` in modes all and api: an ASGI application in the worker's own loop (M3, M4, M5, M6)."""

from __future__ import annotations

import http.client
import re
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from support.kill import Worker
from support.story import Table, mostly_slow
from support.waiting import wait_until

pytest.importorskip("uvicorn")

API = """
import sys
from support.effects import ahold, note

async def api(scope, receive, send):
    if scope["type"] == "lifespan":
        await life(receive, send)
        return
    if scope["path"] == "/slow":
        await ahold("slow")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})

async def life(receive, send):
    await receive()
    note("up")
    await send({"type": "lifespan.startup.complete"})
    await receive()
    note("down")
    await send({"type": "lifespan.shutdown.complete"})

def program():
    return next(module.app for name, module in list(sys.modules.items()) if name.startswith("app_"))

async def life_with_worker(scope, receive, send):
    if scope["type"] != "lifespan":
        await api(scope, receive, send)
        return
    async with program().worker():
        await life(receive, send)

async def refuses(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no"})
"""
WORK = """
@jobs.job(name="work", max_attempts=1, timeout=30)
async def work(ctx: Context) -> None:
    note("work", ctx)
"""


@pytest.fixture
def site(kill_kit: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "site_api.py").write_text(API)

    def make(mode: str, api: str = "api", **settings: Any) -> Any:
        runtime = {"mode": mode, **settings.pop("runtime", {})}
        http = {"app": f"site_api:{api}", "port": 0, **settings.pop("http", {})}
        return kill_kit(WORK, runtime=runtime, http=http, job={"poll_ms": 30}, **settings)

    return make


class Request(threading.Thread):
    """One GET on its own thread."""

    def __init__(self, worker: Worker, path: str = "/") -> None:
        super().__init__(daemon=True)
        self.port, self.path = port_of(worker), path
        self.status: int | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", self.path)
            self.status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            self.error = error
        finally:
            connection.close()

    def ended(self) -> int | None:
        self.join(60)
        assert not self.is_alive()
        return self.status


def port_of(worker: Worker) -> int:
    found = re.search(r"^ready: .*http=127\.0\.0\.1:(\d+)$", worker.stderr, re.MULTILINE)
    assert found, worker.stderr
    return int(found[1])


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionError:
        return True
    return False


# contract: M3, M4, M5, M6
@mostly_slow("sqlite")
def test_mode_all_serves_both_and_drains_both(site: Callable[..., Any], engine: sa.Engine, dialect: str) -> None:
    kit = site("all")
    kit.module.work.enqueue()
    worker = kit.start().ready()
    assert "queues=default http=127.0.0.1:" in worker.stderr
    kit.wait_for("work")
    assert kit.effects("up")[0].at < kit.effects("work")[0].at  # it listens first, then claims
    assert Request(worker).ended() == 200
    slow, port = Request(worker, "/slow"), port_of(worker)
    kit.wait_for("slow")
    worker.term()
    wait_until(lambda: refused(port), 20, lambda: "no new connections are taken")
    kit.module.work.enqueue()
    assert worker.running
    kit.release("slow")
    assert slow.ended() == 200
    assert worker.wait() == 0
    assert len(kit.effects("down")) == 1
    assert Table(engine).states() == {"succeeded": 1, "pending": 1}


# contract: M3
@mostly_slow("sqlite")
@pytest.mark.parametrize("mode", ["api", "all"])
def test_a_worker_in_the_application_itself_is_a_safe_no_op(
    site: Callable[..., Any], engine: sa.Engine, mode: str, dialect: str
) -> None:
    """In mode api nothing works on jobs; in mode all the command does, and not once more."""
    kit = site(mode, "life_with_worker")
    kit.module.work.enqueue()
    worker = kit.start().ready()
    assert Request(worker).ended() == 200
    if mode == "all":
        kit.wait_for("work")
    worker.term()
    assert worker.wait() == 0
    assert Table(engine).states() == ({"succeeded": 1} if mode == "all" else {"pending": 1})
    assert ("queues=" in worker.stderr) is (mode == "all")


# contract: M6
@mostly_slow("sqlite")
def test_a_request_that_does_not_end_is_cut_off(site: Callable[..., Any], dialect: str) -> None:
    kit = site("api", runtime={"shutdown_ms": 1_000})
    worker = kit.start().ready()
    slow = Request(worker, "/slow")
    kit.wait_for("slow")
    worker.term()
    assert worker.wait() == 1
    assert slow.ended() is None or slow.status == 500
    assert "did not end within 1 s" in worker.stderr


# contract: M3, M4, M5
@mostly_slow("sqlite")
def test_what_can_not_be_served_is_refused_before_anything_is_claimed(
    site: Callable[..., Any], engine: sa.Engine, dialect: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            ({"app": "site_api:nothing"}, "http.app is 'site_api:nothing', which can not be had"),
            ({"app": "nowhere:api"}, "http.app is 'nowhere:api', which can not be had"),
            ({"app": "site_api:sys"}, "which is a module and no ASGI application"),
            ({"port": port}, f"http.port {port}: can not listen there"),
            ({"app": "site_api:refuses"}, "http.app 'site_api:refuses' refused to start"),
        ]
        for http_settings, says in cases:
            kit = site("all", http=http_settings)
            kit.module.work.enqueue()
            worker = kit.start()
            assert worker.wait() == 1
            assert says in worker.stderr, worker.stderr
            assert "Traceback" not in worker.stderr
    assert Table(engine).states() == {"pending": len(cases)}


# contract: M3
@mostly_slow("sqlite")
def test_in_mode_worker_serving_http_is_a_no_op(site: Callable[..., Any], dialect: str) -> None:
    kit = site("all", http={"app": "nowhere:api"})
    kit.module.work.enqueue()
    worker = kit.start("--mode", "worker").ready()
    kit.wait_for("work")
    worker.term()
    assert worker.wait() == 0
    assert "http=" not in worker.stderr
    assert sys.modules.get("nowhere") is None
