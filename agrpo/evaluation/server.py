"""One vLLM server for one evaluation, and the calls that a rollout loop makes of it."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from agrpo.errors import BadInput, Outage, ServerOutage
from agrpo.inference.client import SamplingParams, ServerClient, is_healthy
from agrpo.launch.child import last_lines, open_supervisor
from agrpo.records import TurnRecord

T = TypeVar("T")

_LOOK_EVERY_S = 0.5
RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0)


@contextmanager
def serving(command: list[str], env: dict[str, str], url: str, log_path: Path, limit_s: float) -> Iterator[str]:
    """Run a server while the block works; its supervisor ends it when we are gone, however we go.

    Raises BadInput with the end of its log when it dies before it answers, Outage when it never does.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    supervisor = open_supervisor(["--log", str(log_path.absolute()), "--", *command], env)
    assert supervisor.stdin is not None and supervisor.stdout is not None
    supervisor.stdin.write(b"0\n")  # it starts the command when it is told an id
    supervisor.stdin.flush()
    try:
        deadline = time.monotonic() + limit_s
        while not is_healthy(url):
            if supervisor.poll() is not None:
                raise BadInput(f"the server ended before it answered; the end of its log:\n{last_lines(log_path)}")
            if time.monotonic() > deadline:
                raise Outage(f"the server does not answer after {limit_s:g} s; its log:\n{last_lines(log_path)}")
            time.sleep(_LOOK_EVERY_S)
        yield url
    finally:
        supervisor.terminate()
        supervisor.wait()
        supervisor.stdin.close()
        supervisor.stdout.close()


class FixedServer:
    """The one server, whose weights do not change; offers what a loop wants of its server pool."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._client = ServerClient(url, timeout_s)

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> TurnRecord:
        """Sample one turn, again after an outage. Raises ServerOutage when that lasts."""
        return await _outlast(lambda: self._client.generate(prompt_ids, params))

    async def max_model_len(self) -> int:
        """Longest prompt plus completion; asked again after an outage, too."""
        return (await _outlast(self._client.capabilities)).max_model_len

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()


async def _outlast(call: Callable[[], Awaitable[T]]) -> T:
    for delay_s in RETRY_DELAYS_S:
        try:
            return await call()
        except ServerOutage:
            await asyncio.sleep(delay_s)
    return await call()


def hidden_gpus() -> dict[str, str]:
    """The environment of a process that only talks to servers."""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
