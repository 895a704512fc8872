"""Something that is taken for Prefect's server: well to everybody who asks, and answering the rest with one status."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def prefect_answering(status: int, *exempt: str) -> Iterator[str]:
    """The URL of its API. It answers the `exempt` paths, such as "/flows/filter", with 200 and an empty list."""
    open_to_all = {"/api/health", *(f"/api{path}" for path in exempt)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            is_open = self.path in open_to_all
            body = json.dumps([] if is_open else {"detail": "scripted"}).encode()
            without_tokens = bool(exempt) and self.path.startswith("/api/csrf-token")  # as an old server does
            self.send_response(200 if is_open else 404 if without_tokens else status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PATCH = do_GET

        def log_message(self, *_: object) -> None:
            """Tests read what commands print."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api"
    finally:
        server.shutdown()
        server.server_close()
