"""The server of an evaluation may be slow to answer."""

import asyncio

from aiohttp import web

from agrpo.evaluation.server import FixedServer
from tests.worlds.scripted_server import ScriptedServer


class Shy(ScriptedServer):
    """Has no answer to the first question."""

    num_asked = 0

    async def _tell(self, request: web.Request) -> web.Response:
        self.num_asked += 1
        return web.Response(status=503) if self.num_asked == 1 else await super()._tell(request)


async def longest(url: str) -> int:
    server = FixedServer(url, 5.0)
    try:
        return await server.max_model_len()
    finally:
        await server.close()


def test_a_busy_server_is_asked_again() -> None:
    with Shy(max_model_len=77) as server:
        assert asyncio.run(longest(server.url)) == 77
    assert server.num_asked > 1
