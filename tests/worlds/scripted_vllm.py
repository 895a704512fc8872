"""An HTTP server that speaks vLLM's protocol as a script tells it: real sockets, no vLLM."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agrpo.errors import ServerOutage
from agrpo.inference.client import ServerClient
from agrpo.inference.http import run_blocking

Answer = tuple[int, object]
"""Status and body: text and bytes go out as they are, everything else as JSON."""
HANG: Answer = (0, None)
"""Never answer."""


class ScriptedVllm:
    """The state of one scripted server: what it was asked, what it answers, which weights it claims to serve."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, Any]] = []
        """Path without query, and body, of every request in order."""
        self.script: dict[str, Answer | Callable[[Any], Answer]] = {}
        """Answers by path that replace the ordinary ones."""
        self.version = "default"
        self.paused = False
        self.updating = False
        self.updates: list[Any] = []
        self.model_config = {"dtype": "torch.float32", "max_logprobs": 20, "logprobs_mode": "processed_logprobs"}
        self.config: dict[str, Any] = {
            "weight_transfer_config": {"backend": "agrpo_file"},
            "device_config": {"device": "cpu"},
        }
        self.released = threading.Event()

    def paths(self) -> list[str]:
        """The paths asked, in order."""
        return [path for path, _ in self.asked]

    def answer(self, path: str, body: Any) -> Answer:
        """The scripted answer, else what a healthy server says."""
        self.asked.append((path, body))
        scripted = self.script.get(path)
        if scripted is not None:
            return scripted(body) if callable(scripted) else scripted
        ordinary = getattr(self, "on_" + path.strip("/").replace("/", "_"), None)
        return (404, {"error": "no such path"}) if ordinary is None else (200, ordinary(body))

    def on_health(self, body: Any) -> object:
        return ""

    def on_v1_models(self, body: Any) -> object:
        return {"data": [{"id": "tiny", "max_model_len": 256, "parent": None}]}

    def on_server_info(self, body: Any) -> object:
        return {"vllm_config": {"model_config": self.model_config, **self.config}}

    def on_weight_info(self, body: Any) -> object:
        return {"weight_version": self.version}

    def on_pause(self, body: Any) -> object:
        self.paused = True
        return {"status": "paused"}

    def on_resume(self, body: Any) -> object:
        self.paused = False
        return {"status": "resumed"}

    def on_start_weight_update(self, body: Any) -> object:
        self.updating = True
        return {"message": "started"}

    def on_update_weights(self, body: Any) -> object:
        self.updates.append(body["update_info"])
        return {"message": "updated"}

    def on_finish_weight_update(self, body: Any) -> object:
        self.updating = False
        self.version = body["weight_version"]
        return {"message": "finished"}

    def on_reset_prefix_cache(self, body: Any) -> object:
        return {"success": True}

    def on_update_weight_version(self, body: Any) -> object:
        self.version = body["new_version"]
        return {"success": True}


@contextmanager
def scripted_vllm() -> Iterator[ScriptedVllm]:
    """Serve a script on a free port of the loopback address."""
    state = ScriptedVllm()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.reply(json.loads(self.rfile.read(length) or b"null"))

        def do_GET(self) -> None:
            self.reply(None)

        def reply(self, body: Any) -> None:
            status, said = state.answer(self.path.partition("?")[0], body)
            if status == 0:
                state.released.wait(60)
                self.close_connection = True
                return
            payload = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *args: object) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def served_version(url: str) -> str | None:
    """What a server says it serves ("default": its first checkpoint); None when it does not answer."""

    async def ask() -> str | None:
        async with ServerClient(url, 2.0) as client:
            return await client.weight_version()

    try:
        return run_blocking(ask())
    except ServerOutage:
        return None
