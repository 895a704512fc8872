"""The client of one vLLM server: token ids in, token ids and log-probabilities out."""

import contextlib
from dataclasses import dataclass
from typing import Any

from agrpo.errors import AgrpoError, MalformedAnswer, RequestRefused, ServerOutage
from agrpo.inference import answers
from agrpo.inference.capabilities import Capabilities, LoadReading, read_capabilities, read_metrics
from agrpo.inference.http import HttpServer, run_blocking
from agrpo.records import TurnRecord

__all__ = ["Capabilities", "SamplingParams", "ServerClient", "is_healthy"]

QUICK_S = 10.0
"""Time limit of the questions that a server answers from memory."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one turn."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    num_logprobs: int = 0
    """Most likely ids to report per token, beside the sampled token's log-probability."""
    seed: int | None = None
    """Sent only to servers with `Capabilities.request_seeds`."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the turn beside the model's own end tokens."""

    @property
    def restricted(self) -> bool:
        """Whether sampling is from a candidate set instead of the whole vocabulary."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


class ServerClient(HttpServer):
    """One server. No request is ever repeated here: a `ServerOutage` is the caller's to retry."""

    def __init__(self, base_url: str, timeout_s: float = 1800.0) -> None:
        super().__init__(base_url, timeout_s)
        self._capabilities: Capabilities | None = None

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> TurnRecord:
        """Sample one turn.

        Raises:
            ServerOutage: worth a retry. RequestRefused: the same request would be refused again.
            MalformedAnswer: the answer cannot be trained on.
        """
        able = await self.capabilities()
        if able.token_endpoint:
            body = {"model": able.model, "token_ids": prompt_ids, "sampling_params": token_params(params, able)}
            answer = await self.post("/inference/v1/generate", body | {"stream": False})
            restricted = params.restricted and able.sampling_masks
            return answers.from_token_endpoint(answer, prompt_ids, params.num_logprobs, restricted)
        answer = await self.post("/v1/completions", completions_body(prompt_ids, params, able))
        return answers.from_completions(answer, prompt_ids, params.num_logprobs)

    async def capabilities(self) -> Capabilities:
        """What the server can do, asked once; errors as in `generate`."""
        if self._capabilities is None:
            models = await self.get("/v1/models", QUICK_S)
            # The first /server_info collects the environment, which takes many seconds.
            info = await self._if_open(self.get("/server_info?config_format=json"))
            self._capabilities = read_capabilities(models, info, await self._has_token_endpoint())
        return self._capabilities

    async def health(self) -> bool:
        """Whether the server says that it is well."""
        try:
            await self.text("GET", "/health", timeout_s=QUICK_S)
        except AgrpoError:
            return False
        return True

    async def metrics(self) -> LoadReading:
        """How busy the server is; ServerOutage when it does not say."""
        try:
            return read_metrics(await self.text("GET", "/metrics", timeout_s=QUICK_S))
        except (RequestRefused, MalformedAnswer) as error:
            raise ServerOutage(f"{self.base_url} publishes no metrics: {error}") from error

    async def weight_version(self) -> str | None:
        """The policy version it serves, "default" for the checkpoint it started from; None where that is closed."""
        info = await self._if_open(self.get("/weight_info", QUICK_S))
        return None if info is None else str(info.get("weight_version"))

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability under the served weights of each token given those before it, NaN first [tokens]."""
        able = await self.capabilities()
        body = {"model": able.model, "prompt": token_ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        return answers.prompt_log_probs(await self.post("/v1/completions", body), token_ids)

    async def _has_token_endpoint(self) -> bool:
        # An open endpoint refuses an empty request for its content; a closed one answers 403, an older server 404.
        status, _ = await self.exchange("POST", "/inference/v1/generate", {}, QUICK_S)
        return status in (400, 422)

    async def _if_open(self, request: Any) -> dict[str, Any] | None:
        with contextlib.suppress(RequestRefused):
            answer: dict[str, Any] = await request
            return answer
        return None


def token_params(params: SamplingParams, able: Capabilities) -> dict[str, Any]:
    """`sampling_params` of the token endpoint: everything is said, so that no default of the model's slips in.

    One more log-probability than wanted is asked for: the server counts the sampled token among them.
    """
    wanted = params.num_logprobs
    if wanted and (able.max_logprobs is None or able.max_logprobs == -1 or wanted < able.max_logprobs):
        wanted += 1
    return _shared(params, able) | {"logprobs": wanted, "detokenize": False}


def completions_body(prompt_ids: list[int], params: SamplingParams, able: Capabilities) -> dict[str, Any]:
    """The body of `/v1/completions` that answers with token ids."""
    return _shared(params, able) | {
        "model": able.model,
        "prompt": prompt_ids,
        "logprobs": params.num_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": False,
    }


def _shared(params: SamplingParams, able: Capabilities) -> dict[str, Any]:
    said: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "stop_token_ids": list(params.stop_token_ids),
    }
    if params.seed is not None and able.request_seeds:
        said["seed"] = params.seed
    return said


def is_healthy(url: str, timeout_s: float = QUICK_S) -> bool:
    """Whether the server at `url` answers its health check within the limit; for synchronous code."""

    async def ask() -> bool:
        async with HttpServer(url, timeout_s) as server:
            try:
                await server.text("GET", "/health")
            except AgrpoError:
                return False
            return True

    return run_blocking(ask())
