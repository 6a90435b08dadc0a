"""A reverse proxy that serves one server below a path, and can misbehave as proxies do."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREFIX = "/llm"
NOT_PASSED_ON = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length"})


class PrefixProxy(ThreadingHTTPServer):
    """Serves the port `target` below PREFIX and nothing else.

    strip: removes the prefix, as nginx's `proxy_pass` with a path does; otherwise it stays.
    signed_in: what it does not pass on without the cookie that it sets with the page; instead
    it redirects to a page of its own. holding: while it is cleared, requests wait. cut: bytes of an
    answer to POST, after which it ends.
    """

    daemon_threads = True

    def __init__(self, target: int, strip: bool, signed_in: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.strip = strip
        self.signed_in = signed_in
        self.holding = threading.Event()
        self.holding.set()
        self.cut: int | None = None
        self.outside: list[str] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PREFIX}/"


class _Handler(BaseHTTPRequestHandler):
    server: PrefixProxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        proxy = self.server
        path, _, query = self.path.partition("?")
        if path != PREFIX and not path.startswith(f"{PREFIX}/"):
            proxy.outside.append(self.path)
            self.send_error(404)
            return
        is_page = path in (PREFIX, f"{PREFIX}/")
        if proxy.signed_in and not is_page and "session=1" not in self.headers.get("Cookie", ""):
            self.send_response(302)
            self.send_header("Location", "/sign-in")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        proxy.holding.wait(30)
        if proxy.strip:
            path = path[len(PREFIX) :] or "/"
        self._pass_on(f"{path}?{query}" if query else path, is_page)

    do_POST = do_GET

    def _pass_on(self, path: str, is_page: bool) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=30)
        sent = {k: v for k, v in self.headers.items() if k.lower() not in NOT_PASSED_ON}
        upstream.request(self.command, path, body or None, sent)
        answer = upstream.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in NOT_PASSED_ON:
                self.send_header(name, value)
        if self.server.signed_in and is_page:
            self.send_header("Set-Cookie", "session=1; Path=/; HttpOnly")
        self.end_headers()  # HTTP/1.0: the body ends with the connection
        left = self.server.cut if self.command == "POST" else None
        while (left is None or left > 0) and (piece := answer.read1()):
            self.wfile.write(piece[:left])
            left = None if left is None else left - len(piece)
        upstream.close()


@contextmanager
def prefix_proxy(target: int, *, strip: bool, signed_in: bool = False) -> Iterator[PrefixProxy]:
    proxy = PrefixProxy(target, strip, signed_in)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield proxy
    finally:
        proxy.holding.set()
        proxy.shutdown()
        thread.join()
        proxy.server_close()
