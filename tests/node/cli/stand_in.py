"""A real HTTP server that answers commands as a node would, with what a test tells it to say."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PEER = "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"
OTHER = "12D3KooWBmAwcd4PJNJvfV89HwE48nwkRmAgo8Vy3uQEyNNHBox2"


@dataclass(frozen=True)
class Said:
    """What to answer: a JSON value, or pieces of an event stream.

    `cut` closes the stream before its end; `hold` keeps it open until the event is set.
    """

    body: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[bytes] = ()
    cut: bool = False
    hold: threading.Event | None = None


@dataclass(frozen=True)
class Heard:
    """What a command asked."""

    method: str
    path: str
    body: Any
    authorization: str
    headers: Mapping[str, str]


class StandIn(ThreadingHTTPServer):
    """Answers by `METHOD /path` without the query; everything that was asked is in `heard`."""

    daemon_threads = True

    def __init__(self, answers: Mapping[str, Said]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = dict(answers)
        self.heard: list[Heard] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "StandIn":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join(timeout=5)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: object) -> None:
        request = Heard(
            self.command, self.path, body, self.headers.get("Authorization", ""), dict(self.headers)
        )
        self.server.heard.append(request)
        missing = Said({"code": 1001, "message": "no such path"}, status=404)
        answer = self.server.answers.get(f"{self.command} {self.path.partition('?')[0]}", missing)
        self.close_connection = True
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.events:
            self._stream(answer)
            return
        content = (
            answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        )
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, answer: Said) -> None:
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in answer.events:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        if answer.hold is not None:
            answer.hold.wait(timeout=30)
            return
        if not answer.cut:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass


def delta(text: str) -> bytes:
    """One chunk of a streamed chat answer."""
    return (
        b"data: "
        + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()
        + b"\n\n"
    )
