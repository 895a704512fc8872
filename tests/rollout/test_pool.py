import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from agrpo.errors import RequestRefused, ServerOutage
from agrpo.inference.client import SamplingParams
from agrpo.rollout.pool import ServerPool
from agrpo.store.servers import ServerRecord
from tests.worlds.scripted_server import Answer, ScriptedServer

PARAMS = SamplingParams(max_tokens=4)


@pytest.fixture
def one() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def two() -> Iterator[ScriptedServer]:
    with ScriptedServer(max_model_len=100) as server:
        yield server


def row(server: ScriptedServer, version: int | None = 0, state: str = "healthy", process_id: int = 1) -> ServerRecord:
    return ServerRecord(1, server.url, 0, process_id, state, version, {})  # type: ignore[arg-type]


def scene(play: Callable[[ServerPool], Awaitable[None]], limit_s: float = 30.0) -> list[ServerRecord]:
    """Play with a pool; returns the servers that turned out to serve foreign weights."""
    distrusted: list[ServerRecord] = []

    async def distrust(server: ServerRecord) -> None:
        distrusted.append(server)

    async def run() -> None:
        pool = ServerPool(limit_s, distrust)
        try:
            await asyncio.wait_for(play(pool), 20)
        finally:
            await pool.close()

    asyncio.run(run())
    return distrusted


def test_requests_go_to_the_least_loaded_server(one: ScriptedServer, two: ScriptedServer) -> None:
    one.script = two.script = lambda prompt, params, n: Answer(after_s=0.3)

    async def play(pool: ServerPool) -> None:
        await pool.update([row(one), row(two)], 0)
        await asyncio.gather(*(pool.generate([5, 6], PARAMS) for _ in range(6)))
        assert (len(one.requests), len(two.requests)) == (3, 3)
        assert pool.num_in_flight == 0
        assert await pool.max_model_len() == 100

    scene(play)


def test_whoever_runs_while_a_replaced_server_is_closed_sees_the_new_rows(
    one: ScriptedServer, two: ScriptedServer
) -> None:
    """Else the pool would seem usable without any server to use, and who waits for one would never let go."""

    async def play(pool: ServerPool) -> None:
        await pool.update([row(one), row(two)], 0)
        await pool.max_model_len()
        updating = asyncio.ensure_future(pool.update([row(one, None, process_id=2), row(two)], 1))
        await asyncio.sleep(0)  # up to where it lets others run
        assert not updating.done() and not pool.has_usable
        await updating

    scene(play)


@pytest.mark.parametrize("bad", [("starting", 0), ("lost", 0), ("healthy", None), ("healthy", 4)])
def test_only_healthy_servers_with_the_current_weights_are_used(
    one: ScriptedServer, two: ScriptedServer, bad: tuple[str, int | None]
) -> None:
    async def play(pool: ServerPool) -> None:
        await pool.update([row(one, bad[1], bad[0])], 5)
        waiting = asyncio.ensure_future(pool.generate([5], PARAMS))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done and not pool.has_usable
        two.weight_version = "5"
        await pool.update([row(one, bad[1], bad[0]), row(two, 5)], 5)
        await waiting
        assert (len(one.requests), len(two.requests)) == (0, 1)

    scene(play)


def test_an_outage_is_retried_elsewhere_and_counted(one: ScriptedServer, two: ScriptedServer) -> None:
    one.script = lambda prompt, params, n: Answer(status=503)

    async def play(pool: ServerPool) -> None:
        await pool.update([row(one), row(two)], 0)
        for _ in range(4):
            await pool.generate([5], PARAMS)
        assert pool.num_retries == 1 and len(one.requests) == 1 and len(two.requests) == 4

    scene(play)


def test_a_server_that_comes_back_is_used_again(one: ScriptedServer) -> None:
    one.kill()

    async def play(pool: ServerPool) -> None:
        await pool.update([row(one)], 0)
        waiting = asyncio.ensure_future(pool.generate([5], PARAMS))
        while pool.num_retries == 0:
            await asyncio.sleep(0.01)
        one.start()
        turn = await waiting
        assert turn.output_ids == [10, 1] and turn.output_log_probs == [-0.5, -0.5]

    scene(play)


def test_an_outage_without_end_is_an_error_within_the_limit(one: ScriptedServer) -> None:
    one.kill()

    async def play(pool: ServerPool) -> None:
        await pool.update([row(one)], 0)
        begin = time.monotonic()
        with pytest.raises(ServerOutage, match=r"no vLLM server has answered for .*vllm_server_timeout=1"):
            await pool.generate([5], PARAMS)
        assert time.monotonic() - begin < 10
        assert pool.num_in_flight == 0

    scene(play, limit_s=1.0)


def test_a_refused_request_is_not_retried(one: ScriptedServer) -> None:
    one.script = lambda prompt, params, n: Answer(status=400)

    async def play(pool: ServerPool) -> None:
        await pool.update([row(one)], 0)
        with pytest.raises(RequestRefused, match="the script says no"):
            await pool.generate([5], PARAMS)
        assert len(one.requests) == 1 and pool.num_retries == 0 and pool.num_in_flight == 0

    scene(play)


def test_weights_that_were_never_published_are_refused_and_told(one: ScriptedServer, two: ScriptedServer) -> None:
    one.weight_version = "default"

    async def play(pool: ServerPool) -> None:
        await pool.update([row(one), row(two)], 0)
        turn = await pool.generate([5], PARAMS)
        assert turn.weight_versions == [("0", 0, 2)]

    assert [server.url for server in scene(play)] == [one.url]


def test_a_new_process_at_the_same_url_is_asked_what_it_can_do(one: ScriptedServer) -> None:
    async def play(pool: ServerPool) -> None:
        await pool.update([row(one)], 0)
        assert await pool.max_model_len() == 512
        one.max_model_len = 64
        await pool.update([row(one)], 0)
        assert await pool.max_model_len() == 512
        await pool.update([row(one, process_id=2)], 0)
        assert await pool.max_model_len() == 64

    scene(play)


def test_servers_without_candidate_sets_are_named(one: ScriptedServer) -> None:
    async def play(pool: ServerPool) -> None:
        await pool.update([row(one)], 0)
        assert await pool.shortcomings(restricted=False) == []
        (words,) = await pool.shortcomings(restricted=True)
        assert words.startswith(f"{one.url} gives no candidate sets") and "--return-sampling-mask" in words

    scene(play)


def test_the_load_is_the_fullest_cache_and_the_sum_of_the_rest(one: ScriptedServer, two: ScriptedServer) -> None:
    two.metrics += 'vllm:kv_cache_usage_perc{engine="1"} 0.7\nvllm:num_requests_waiting 3\n'

    async def play(pool: ServerPool) -> None:
        await pool.update([row(one), row(two)], 0)
        load = await pool.load()
        assert load is not None
        assert (load.kv_cache_frac, load.kv_cache_tokens, load.num_queued) == (0.7, 131072, 3.0)
        one.metrics = two.metrics = "nothing of vLLM"
        assert await pool.load() is None

    scene(play)


def test_a_server_that_fell_back_to_older_weights_is_refused_and_told(one: ScriptedServer, two: ScriptedServer) -> None:
    """A trainer that thawed after a takeover has finished its own update."""
    one.weight_version, two.weight_version = "5", "8"

    async def play(pool: ServerPool) -> None:
        await pool.update([row(one, 8), row(two, 8)], 8)
        turn = await pool.generate([5], PARAMS)
        assert turn.weight_versions == [("8", 0, 2)]

    assert [server.url for server in scene(play)] == [one.url]


def test_newer_weights_than_confirmed_are_an_update_on_its_way(one: ScriptedServer) -> None:
    one.weight_version = "9"

    async def play(pool: ServerPool) -> None:
        await pool.update([row(one, 8)], 8)
        assert (await pool.generate([5], PARAMS)).weight_versions == [("9", 0, 2)]

    assert scene(play) == []
