"""Tree attention on a GPU by flash kernels from the Hub; they are downloaded the first time."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from agrpo.attention.backends import Needs
from agrpo.attention.tree_varlen import VarlenBackend, VarlenTree, half_on_gpu


@dataclass(frozen=True, slots=True)
class HubKernel:
    """A kernel repository and where it runs."""

    repository: str
    version: int
    rocm: bool
    capabilities: range
    """Major compute capabilities; ignored on ROCm."""
    softcap: bool

    def refusal(self, needs: Needs) -> str | None:
        """Why the kernel cannot serve; the last question is whether it can be fetched."""
        if reason := half_on_gpu(needs):
            return reason
        if needs.softcap and not self.softcap:
            return f"{self.repository} has no soft-capping"
        if self.rocm != bool(torch.version.hip):
            return f"{self.repository} runs on {'ROCm' if self.rocm else 'NVIDIA'} GPUs"
        major = torch.cuda.get_device_capability(needs.device)[0]
        if not self.rocm and major not in self.capabilities:
            return f"{self.repository} is not made for compute capability {major}"
        try:
            _fetch(self.repository, self.version)
        except Exception as error:  # whatever keeps it away (offline, no build for this torch), another backend serves
            return f"{self.repository} cannot be loaded ({error})"
        return None

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tree: VarlenTree,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """A `Kernel`."""
        function, names = _fetch(self.repository, self.version)
        settings: dict[str, Any] = {"softmax_scale": scale, "causal": True}
        settings |= {"cu_seqlens_q": tree.cu_queries, "cu_seqlens_k": tree.cu_keys}
        settings |= {"max_seqlen_q": tree.max_queries, "max_seqlen_k": tree.max_keys}
        if window is not None:
            settings["window_size"] = (window - 1, 0)
        if softcap is not None:
            settings["softcap" if "softcap" in names else "logits_soft_cap"] = softcap
        # The kernels differ in which lengths they still ask for.
        given = {name: setting for name, setting in settings.items() if name in names}
        out = function(query, key, value, **given)
        attended: Tensor = out[0] if isinstance(out, tuple) else out
        return attended


@cache
def _fetch(repository: str, version: int) -> tuple[Callable[..., Any], frozenset[str]]:
    """The kernel's function and the names of its arguments."""
    from kernels import get_kernel

    function = get_kernel(repository, version=version).flash_attn_varlen_func
    return function, frozenset(inspect.signature(function).parameters)


def _backend(kernel: HubKernel) -> VarlenBackend:
    return VarlenBackend(kernel.refusal, kernel.attend)


FLASH3 = _backend(HubKernel("kernels-community/flash-attn3", 1, False, range(9, 10), True))
FLASH4 = _backend(HubKernel("kernels-community/flash-attn4", 0, False, range(10, 12), False))
AITER = _backend(HubKernel("kernels-community/aiter-flash-attn", 2, True, range(0), False))
