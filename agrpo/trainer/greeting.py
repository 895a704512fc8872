"""The first look at a server: can it be trained against at all?"""

import logging
from collections.abc import Sequence

from agrpo.errors import BadInput
from agrpo.inference.capabilities import Capabilities, check_trainable, start_command
from agrpo.inference.client import ServerClient
from agrpo.inference.http import run_blocking
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig

logger = logging.getLogger(__name__)


def greet(url: str, args: AsyncGRPOConfig, dtype: str, drivable: Sequence[str]) -> str:
    """The weight-transfer backend of a server, one of `drivable`; a warning when it computes in another dtype.

    Raises BadInput, with the command that starts a better server, when this one cannot take weights or give what the
    loss needs, ServerOutage when it does not answer.
    """
    able = capabilities_of(url, args.vllm_server_timeout)
    backend = check_trainable(url, able, drivable)
    wanted = args.num_sampler_logprobs if args.score_centering else 0
    if able.max_logprobs is not None and 0 <= able.max_logprobs < wanted:
        raise BadInput(
            f"server {url} gives at most {able.max_logprobs} log-probabilities per token, num_sampler_logprobs is "
            f"{wanted}; start it with: {start_command(able.model, backend)} --max-logprobs {wanted}"
        )
    own = dtype.removeprefix("torch.")
    if able.dtype is not None and able.dtype != own:
        logger.warning(
            "server %s computes in %s, the trainer in %s: restart it with --dtype %s", url, able.dtype, own, own
        )
    return backend


def capabilities_of(url: str, timeout_s: float) -> Capabilities:
    """What a server can do."""

    async def ask() -> Capabilities:
        async with ServerClient(url, timeout_s) as client:
            return await client.capabilities()

    return run_blocking(ask())
