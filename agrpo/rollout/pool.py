"""The servers that may generate now: least loaded first, retried after an outage."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agrpo.errors import ServerOutage
from agrpo.inference.client import SamplingParams, ServerClient
from agrpo.records import TurnRecord
from agrpo.rollout.cap import ServerLoad
from agrpo.store.servers import ServerRecord

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0


@dataclass(slots=True)
class _Server:
    client: ServerClient
    row: ServerRecord
    num_in_flight: int = 0
    num_outages: int = 0
    """Outages in a row, those of one pause counted once."""
    paused_until: float = 0.0


class ServerPool:
    """Sends each request to the least loaded server that is healthy and has confirmed the current weights."""

    def __init__(self, outage_limit_s: float, on_foreign_weights: Callable[[ServerRecord], Awaitable[None]]) -> None:
        self.num_retries = 0
        self._outage_limit_s = outage_limit_s
        self._on_foreign_weights = on_foreign_weights
        self._servers: dict[str, _Server] = {}
        self._policy_version = -1
        self._outage_since: float | None = None
        self._usable = asyncio.Event()

    async def update(self, rows: Sequence[ServerRecord], policy_version: int) -> None:
        """Take over what the store knows about the servers."""
        self._policy_version = policy_version
        gone = [url for url, known in self._servers.items() if _is_replaced(known.row, rows)]
        replaced = [self._servers.pop(url) for url in gone]
        for row in rows:
            known = self._servers.get(row.url)
            if known is None:
                self._servers[row.url] = _Server(ServerClient(row.url, self._outage_limit_s), row)
            else:
                known.row = row
        self._refresh()
        for server in replaced:  # last: whoever runs meanwhile must see the new rows
            await server.client.close()

    async def close(self) -> None:
        """Close every connection."""
        for server in self._servers.values():
            await server.client.close()

    @property
    def num_in_flight(self) -> int:
        """Requests being served."""
        return sum(server.num_in_flight for server in self._servers.values())

    @property
    def has_usable(self) -> bool:
        """Whether a request could be sent right now."""
        return self._usable.is_set()

    async def max_model_len(self) -> int:
        """Longest prompt plus completion that every usable server takes; waits for one."""
        while True:
            await self._usable.wait()
            try:
                known = [await server.client.capabilities() for server in self._candidates()]
            except ServerOutage:
                continue
            if known:
                return min(capabilities.max_model_len for capabilities in known)
            self._usable.clear()

    async def shortcomings(self, restricted: bool) -> list[str]:
        """What the usable servers cannot do, in words; waits for one. `restricted`: candidate sets are wanted."""
        await self.max_model_len()
        found = []
        for server in self._candidates():
            able = await server.client.capabilities()
            if not able.token_endpoint:
                found.append(
                    f"{server.row.url} has its token endpoint closed: its tokens carry no policy version and no "
                    "candidate set; start it with --enable-scale-out"
                )
            elif restricted and not able.sampling_masks:
                found.append(
                    f"{server.row.url} gives no candidate sets: under top_k, top_p and min_p every ratio is biased by "
                    "the kept mass; start it with --return-sampling-mask (and VLLM_USE_V2_MODEL_RUNNER=1 if it refuses)"
                )
        return found

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> TurnRecord:
        """One turn from some server, retried on outages.

        Raises RequestRefused and MalformedAnswer at once, ServerOutage when no server has answered for the limit.
        """
        while True:
            server = await self._take()
            confirmed = server.row.weight_version or 0
            try:
                turn = await server.client.generate(prompt_ids, params)
                await self._refuse_foreign_weights(server, turn, confirmed)
            except ServerOutage as error:
                self.num_retries += 1
                self._pause(server, error)
            else:
                self._outage_since = None
                server.num_outages = 0
                return turn
            finally:
                server.num_in_flight -= 1

    async def load(self) -> ServerLoad | None:
        """How busy the usable servers are; None when none says so."""
        readings = []
        for server in self._candidates():
            try:
                readings.append(await server.client.metrics())
            except ServerOutage:
                continue
        if not readings:
            return None
        return ServerLoad(
            kv_cache_frac=max(reading.kv_cache_usage_frac for reading in readings),
            kv_cache_tokens=sum(reading.kv_cache_tokens or 0 for reading in readings),
            num_running=sum(reading.num_running for reading in readings),
            num_queued=sum(reading.num_waiting for reading in readings),
            num_preemptions=sum(reading.num_preemptions for reading in readings),
        )

    async def _take(self) -> _Server:
        while True:
            await self._usable.wait()
            candidates = self._candidates()
            if candidates:
                server = min(candidates, key=lambda candidate: candidate.num_in_flight)
                server.num_in_flight += 1
                return server
            self._usable.clear()

    def _candidates(self) -> list[_Server]:
        now = time.monotonic()
        return [server for server in self._servers.values() if self._is_current(server) and server.paused_until <= now]

    def _is_current(self, server: _Server) -> bool:
        version = server.row.weight_version
        return server.row.state == "healthy" and version is not None and version >= self._policy_version

    def _refresh(self) -> None:
        if self._candidates():
            self._usable.set()
        else:
            self._usable.clear()

    def _pause(self, server: _Server, error: ServerOutage) -> None:
        """Leave a server alone for a while, longer each time; give up when no server has answered for the limit."""
        now = time.monotonic()
        self._outage_since = self._outage_since or now
        if now - self._outage_since > self._outage_limit_s:
            raise ServerOutage(
                f"no vLLM server has answered for {now - self._outage_since:.0f} s "
                f"(vllm_server_timeout={self._outage_limit_s}); the last one said: {error}"
            ) from error
        if server.paused_until <= now:
            pause = min(FIRST_PAUSE_S * 2**server.num_outages, LONGEST_PAUSE_S)
            server.num_outages += 1
            server.paused_until = now + pause
            asyncio.get_running_loop().call_later(pause + 0.01, self._refresh)
        self._refresh()

    async def _refuse_foreign_weights(self, server: _Server, turn: TurnRecord, confirmed: int) -> None:
        """A server that restarted behind our back serves the base checkpoint, under a version that is no number; one
        that a trainer of an earlier attempt has written to serves an older version than it had confirmed."""
        served = [version for version, _, _ in turn.weight_versions]
        foreign = [version for version in served if not version.isdecimal() or int(version) < confirmed]
        if foreign:
            await self._on_foreign_weights(server.row)
            raise ServerOutage(
                f"{server.row.url} generated under weight version {foreign[0]!r} when it had confirmed {confirmed}"
            )


def _is_replaced(known: ServerRecord, rows: Sequence[ServerRecord]) -> bool:
    """Whether a server has gone, or another process serves its url: what it could do is asked again."""
    return all((row.url, row.process_id) != (known.url, known.process_id) for row in rows)
