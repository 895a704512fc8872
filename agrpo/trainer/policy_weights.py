"""The trained weights as rank 0 hashes and sends them, whole also where every rank holds only a shard."""

from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agrpo.trainer import ranks
from agrpo.trainer.policy_model import digest_of, named_weights


class PolicyWeights:
    """The weights of the last `gather`; of a model that is not sharded simply those it has."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._whole: dict[str, Tensor] | None = None

    @property
    def is_sharded(self) -> bool:
        """Whether ranks hold parts of the parameters (FSDP2)."""
        return dist.is_available() and any(isinstance(tensor, DTensor) for tensor in self._model.parameters())

    def gather(self) -> None:
        """On every rank, whenever sharded weights have changed: rank 0 then holds them whole, in main memory."""
        if not self.is_sharded:
            return
        whole = {}
        for name, parameter in named_weights(self._model):
            tensor = parameter.detach()
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if ranks.rank() == 0:
                whole[name] = full.cpu()
        self._whole = whole

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Name under which the model is saved, and tensor, in name order; on rank 0."""
        return named_weights(self._model) if self._whole is None else iter(self._whole.items())

    def digest(self) -> str:
        """Hash of the weights; the same weights, the same digest, sharded or not."""
        return digest_of(self.named())
