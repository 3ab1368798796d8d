"""`proftrack open`: one file, once, over loopback, in the ways that Perfetto's UI accepts."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from browser import launched
from calls import PATIENCE_S
from click.testing import CliRunner

from proftrack.cli import browser, group, handover
from proftrack.cli.handover import LOOPBACK, PERFETTO, PERFETTO_PORT, Handover
from proftrack.errors import UsageError

CONTENT = b"\x1f\x8b the bytes of a trace " * 1000


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "a b'\"&<\u00e9.pt.trace.json.gz"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def offer(trace: Path) -> Iterator[Handover]:
    """The trace on any free port, as it would be on Perfetto's."""
    with Handover(trace, port=0) as offered:
        yield offered


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes


def ask(port: int, method: str, path: str, **headers: str) -> Answer:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


def test_the_address_is_what_perfettos_policy_allows(trace: Path) -> None:
    """connect-src of ui.perfetto.dev names http://127.0.0.1:9001 and no other plain address."""
    with Handover(trace) as offered:
        if offered.by_page:
            pytest.skip(f"port {PERFETTO_PORT} is taken on this machine")
        link, _, target = offered.address.partition("/#!/?url=")
    assert link == "https://ui.perfetto.dev"
    assert target.startswith("http://127.0.0.1:9001/")
    assert target.rsplit("/", 1)[1] == "a_b_.pt.trace.json.gz"  # the UI takes the file's name from here
    assert len(target.split("/")[3]) >= 32  # a random token


def test_it_is_fetched_once_with_cors_for_perfetto_alone(offer: Handover) -> None:
    answer = ask(offer.port, "GET", offer.trace_path, Origin=PERFETTO)
    assert (answer.status, answer.body) == (200, CONTENT)
    assert answer.headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
    assert answer.headers["Content-Length"] == str(len(CONTENT))
    assert offer.wait(PATIENCE_S)
    assert ask(offer.port, "GET", offer.trace_path).status == 410


def test_nothing_else_is_answered(offer: Handover) -> None:
    name = offer.trace_path.rsplit("/", 1)[1]
    for path in ("/", f"/{name}", f"/x/{name}", offer.page_path, "/../etc/passwd", offer.trace_path + "/"):
        assert ask(offer.port, "GET", path).status == 404
    # A site that gave its own name this address (DNS rebinding) is known by the name it calls.
    assert ask(offer.port, "GET", offer.trace_path, Host=f"evil.example:{offer.port}").status == 403
    # The UI asks first whether this is Perfetto's own engine.
    assert ask(offer.port, "POST", "/status", Origin=PERFETTO).status == 404
    assert not offer.wait(0.01)


def test_a_preflight_may_come_first(offer: Handover) -> None:
    answer = ask(offer.port, "OPTIONS", offer.trace_path, Access_Control_Request_Private_Network="true")
    assert answer.status == 204
    assert answer.headers["Access-Control-Allow-Private-Network"] == "true"
    assert answer.headers["Access-Control-Allow-Origin"] == PERFETTO


def test_it_listens_on_loopback_only(offer: Handover) -> None:
    assert offer._server is not None
    assert offer._server.server_address[0] == "127.0.0.1"
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)} - {"127.0.0.1", "127.0.1.1", "::1"}
    for address in others:
        with pytest.raises(OSError), socket.create_connection((address, offer.port), timeout=2):
            pass


def test_a_transfer_that_broke_off_can_be_repeated(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    trace.write_bytes(b"x" * 50_000_000)
    with Handover(trace, port=0) as offer:
        with socket.create_connection((LOOPBACK, offer.port)) as half:
            half.sendall(f"GET {offer.trace_path} HTTP/1.1\r\nHost: {LOOPBACK}:{offer.port}\r\n\r\n".encode())
            half.recv(1000)
        end = time.monotonic() + PATIENCE_S
        while (answer := ask(offer.port, "GET", offer.trace_path)).status == 410 and time.monotonic() < end:
            time.sleep(0.02)
        assert len(answer.body) == 50_000_000
        assert offer.wait(PATIENCE_S)


def test_where_the_port_is_taken_a_page_hands_it_over(trace: Path) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        with Handover(trace, port=taken.getsockname()[1]) as offer:
            assert offer.by_page
            page = urlsplit(offer.address)
            assert (page.hostname, page.port, page.path) == (LOOPBACK, offer.port, offer.page_path)
            answer = ask(offer.port, "GET", offer.page_path)
            assert answer.status == 200
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert b"postMessage" in answer.body
            assert not offer.wait(0.01)  # the page is not the trace


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        Handover(tmp_path / "gone.json")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_it_prints_the_address_and_ends_by_itself(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover.Handover.__init__, "__kwdefaults__", {"port": 0, "by_page": False})
    monkeypatch.setattr(browser, "show", lambda address: False)
    done = CliRunner().invoke(group, ["open", str(trace), "--wait", "0.2"])
    assert done.exit_code == 1
    assert done.stdout.startswith(f"Open  {PERFETTO}/#!/?url=http://127.0.0.1:")
    assert "was not fetched within" in done.stderr


def test_it_opens_the_browser_and_ends_when_fetched(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover.Handover.__init__, "__kwdefaults__", {"port": 0, "by_page": False})

    def fetch_later(address: str) -> bool:
        target = urlsplit(address.partition("url=")[2])
        threading.Thread(target=lambda: ask(target.port or 0, "GET", target.path)).start()
        return True

    monkeypatch.setattr(browser, "show", fetch_later)
    done = CliRunner().invoke(group, ["open", str(trace)])
    assert done.exit_code == 0
    assert done.stdout.startswith("Opened  ")
    assert "was handed over" in done.stdout


@pytest.mark.parametrize(("variable", "there"), [("", False), ("DISPLAY", True), ("BROWSER", True)])
def test_no_text_browser_takes_the_terminal(monkeypatch: pytest.MonkeyPatch, variable: str, there: bool) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, ":0")
    monkeypatch.setattr("sys.platform", "linux")
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: asked.append(address) or True)
    assert browser.show("https://ui.perfetto.dev") is there
    assert bool(asked) is there


# ---- with a browser --------------------------------------------------------------------------------------------------

# What the UI does, under the origin and the content security policy that it has (google/perfetto, ui/src/frontend).
UI = """<!doctype html><meta http-equiv="Content-Security-Policy" content="default-src 'self';
script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self' http://127.0.0.1:PORT"><title>ui</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", "*");
  else if (event.data.perfetto) window.got = [event.data.perfetto.buffer.byteLength, event.data.perfetto.title];
});
const target = new URLSearchParams(location.hash.slice(3)).get("url");
if (target) {
  fetch("http://127.0.0.1:PORT/status", {method: "post", cache: "no-cache"}).catch(() => null)
    .then(() => fetch(target)).then((answer) => answer.blob())
    .then((blob) => { window.got = [blob.size, target.split("/").pop()]; })
    .catch((error) => { window.got = String(error); });
}
</script>"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched() as running:
        yield running


@pytest.fixture
def context(chromium: Any) -> Iterator[Any]:
    """A browser in which ui.perfetto.dev is the page above, and which lets it ask this machine, as its user would."""
    opened = chromium.new_context(permissions=["local-network-access"])
    opened.set_default_timeout(10_000)
    yield opened
    opened.close()


def serve_ui(context: Any, port: int) -> None:
    text = UI.replace("PORT", str(port))
    context.route(f"{PERFETTO}/**", lambda route: route.fulfill(body=text, content_type="text/html"))


@pytest.mark.slow
def test_the_ui_fetches_it(context: Any, offer: Handover) -> None:
    serve_ui(context, offer.port)
    page = context.new_page()
    page.goto(offer.address)
    page.wait_for_function("window.got")
    assert page.evaluate("window.got") == [len(CONTENT), "a_b_.pt.trace.json.gz"]
    assert offer.wait(PATIENCE_S)


@pytest.mark.slow
def test_the_page_opens_the_ui_and_sends_it(context: Any, trace: Path) -> None:
    with Handover(trace, by_page=True) as offer:
        serve_ui(context, offer.port)
        page = context.new_page()
        page.goto(offer.address)
        assert offer.wait(PATIENCE_S)
        with context.expect_page() as opened:
            page.get_by_role("button").click()
        opened.value.wait_for_function("window.got")
        assert opened.value.evaluate("window.got") == [len(CONTENT), "a_b_.pt.trace.json.gz"]
        assert "Done: see the other tab." in page.get_by_role("status").inner_text()
