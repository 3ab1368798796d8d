"""Hands one trace file to Perfetto's UI, once, over this machine's loopback.

directly       ui.perfetto.dev fetches http://127.0.0.1:9001/...: the only address on this machine that its content
               security policy allows (google/perfetto, ui/src/frontend/index.ts), with CORS for that one origin
through a page if port 9001 is taken, or the browser refuses to fetch from loopback (Safari): a page that we serve
               opens the UI and sends it the trace with postMessage, as Perfetto documents

The path contains a random token, and the trace is served once. The server listens on 127.0.0.1 only and answers only
requests with that host: another site cannot reach it by resolving its own name to this address.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import secrets
import shutil
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any

from proftrack.cli import browser
from proftrack.errors import UsageError

PERFETTO = "https://ui.perfetto.dev"
PERFETTO_PORT = 9001
LOOPBACK = "127.0.0.1"


class Handover:
    """Serves the file while it is open; `wait` says whether it was fetched.

    Raises UsageError if there is no such file or no free port.
    """

    def __init__(self, trace: Path, *, port: int = PERFETTO_PORT, by_page: bool = False) -> None:
        self._trace = trace
        self._token = secrets.token_urlsafe(24)
        self._fetched = threading.Event()
        self._sending = threading.Lock()
        if not trace.is_file():
            raise UsageError(f"{trace}: no such file", "name a trace (.json, .json.gz)")
        server = None if by_page else self._listen(port)
        self.by_page = server is None
        self._server = server or self._listen(0)
        if self._server is None:
            raise UsageError(f"no free port on {LOOPBACK}", f"open {trace} at {PERFETTO} by hand")
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def _listen(self, port: int) -> ThreadingHTTPServer | None:
        handler = type("_Bound", (_Handler,), {"handover": self})
        try:
            return ThreadingHTTPServer((LOOPBACK, port), handler)
        except OSError:
            return None

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        assert self._server is not None
        return int(self._server.server_address[1])

    @property
    def file_name(self) -> str:
        """The file's name as the UI shows it."""
        return re.sub(r"[^A-Za-z0-9._-]+", "_", self._trace.name)

    @property
    def trace_path(self) -> str:
        """Path of the trace on this server."""
        return f"/{self._token}/{self.file_name}"

    @property
    def page_path(self) -> str:
        """Path of the page that hands the trace over."""
        return f"/{self._token}/"

    @property
    def address(self) -> str:
        """What to open in a browser."""
        here = f"http://{LOOPBACK}:{self.port}"
        return f"{here}{self.page_path}" if self.by_page else f"{PERFETTO}/#!/?url={here}{self.trace_path}"

    def open_browser(self) -> bool:
        """Open the address in the user's browser; False if there is none."""
        return browser.show(self.address)

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the trace to be fetched; a transfer that has begun may finish."""
        if not self._fetched.wait(seconds):
            with self._sending:  # held while a transfer is under way
                pass
        return self._fetched.is_set()

    def __enter__(self) -> Handover:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    # -- for the handler

    def hosts(self) -> tuple[str, ...]:
        """The Host headers that a request may have."""
        return f"{LOOPBACK}:{self.port}", f"localhost:{self.port}"

    @contextlib.contextmanager
    def sending(self) -> Any:
        """The one transfer: yields the file, or None if it is being fetched or was fetched already."""
        if not self._sending.acquire(blocking=False):
            yield None
            return
        try:
            if self._fetched.is_set():
                yield None
                return
            with self._trace.open("rb") as file:
                yield file
            self._fetched.set()
        finally:
            self._sending.release()

    def page(self) -> tuple[bytes, str]:
        """The page, and its content security policy."""
        template = resources.files("proftrack.cli").joinpath("handover.html").read_text(encoding="utf-8")
        text = template.replace("FILE_NAME", self.file_name)  # has harmless characters only
        script = text.partition("<script>")[2].partition("</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'"
        return text.encode(), f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


class _Handler(BaseHTTPRequestHandler):
    """Answers for one Handover."""

    handover: Handover
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.handover.hosts():
            self._refuse(HTTPStatus.FORBIDDEN)
        elif secrets.compare_digest(self.path, self.handover.trace_path):
            self._send_trace()
        elif self.handover.by_page and secrets.compare_digest(self.path, self.handover.page_path):
            self._send_page()
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        # The UI asks any server on port 9001 whether it is Perfetto's own engine, before it fetches.
        self.close_connection = True
        self._refuse(HTTPStatus.NOT_FOUND)

    def do_OPTIONS(self) -> None:
        """Answer the preflight that browsers send before a public site may fetch from this machine."""
        self.send_response(HTTPStatus.NO_CONTENT)
        self._allow()
        self.send_header("Access-Control-Allow-Methods", "GET")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def _send_trace(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError), self.handover.sending() as file:
            if file is None:
                self._refuse(HTTPStatus.GONE)
                return
            size = file.seek(0, 2)
            file.seek(0)
            self.send_response(HTTPStatus.OK)
            self._allow()
            self._headers("application/octet-stream", size)
            shutil.copyfileobj(file, self.wfile, 1 << 20)
            self.wfile.flush()

    def _send_page(self) -> None:
        text, policy = self.handover.page()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Security-Policy", policy)
        self._headers("text/html; charset=utf-8", len(text))
        self.wfile.write(text)

    def _refuse(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self._allow()
        self._headers("text/plain", 0)

    def _allow(self) -> None:
        self.send_header("Access-Control-Allow-Origin", PERFETTO)
        self.send_header("Vary", "Origin")

    def _headers(self, kind: str, size: int) -> None:
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the command prints what matters."""
