"""vLLM plugin: a weight-transfer backend that reads one safetensors file.

Loaded by every vLLM process through the entry point group `vllm.general_plugins`. It imports only vllm, torch,
safetensors and the standard library, so that it also installs alone (`pip install --no-deps`) where the server lives.
The message of an update is {"path", "digest"}; the file holds tensors under the checkpoint's names.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.models.interfaces import supports_multimodal

BACKEND = "agrpo_file"
FOLDER_VARIABLE = "AGRPO_WEIGHTS_DIR"


class RefusedUpdate(ValueError):
    """The update names a file outside the allowed folders, a damaged file, or tensors that the model does not have."""


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Nothing to agree on before the first update."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """One update: `path` of a safetensors file, `digest` as SHA-256 in hexadecimal of its bytes."""

    path: str
    digest: str


class FileWeightTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads all weights of the model from a file that the trainer wrote."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Nothing to set up: a file needs no connection."""

    def start_weight_update(self) -> None:
        """Leave the model alone: a client that dies between start and update must leave a model that can serve."""

    def finish_weight_update(self) -> None:
        """Nothing is left over after `receive_weights`."""

    def shutdown(self) -> None:
        """No connection to close."""

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Check the file, then reload the whole model from it; layers that were not reached keep their old weights.

        Raises:
            RefusedUpdate: the file may not be read or is damaged (nothing changed), or does not fit the model.
        """
        path = allowed_path(update_info.path, os.environ.get(FOLDER_VARIABLE, ""))
        check_digest(path, update_info.digest)
        names = ParameterNames.of(self.model)
        initialize_layerwise_reload(self.model)
        try:
            load_every_tensor(self.model, path, names)
        except BaseException:
            forget_partial_layers(self.model)
            raise
        finally:
            finalize_layerwise_reload(self.model, self.model_config)  # type: ignore[no-untyped-call]
            refresh_tied_heads(self.model)


@dataclass(frozen=True)
class ParameterNames:
    """The model's parameters as vLLM names them: those to load, and further names of the same ones (tied)."""

    own: frozenset[str]
    tied: frozenset[str]

    @staticmethod
    def of(model: torch.nn.Module) -> "ParameterNames":
        """To be read before a layerwise reload starts, which unties what is tied. Of a vision-language model only the
        text model's, because its tower is never sent."""
        text = {id(parameter) for parameter in text_model(model).parameters()}
        own = frozenset(name for name, parameter in model.named_parameters() if id(parameter) in text)
        named = model.named_parameters(remove_duplicate=False)
        return ParameterNames(own, frozenset(name for name, parameter in named if id(parameter) in text) - own)


def text_model(model: torch.nn.Module) -> torch.nn.Module:
    """The part that answers: all of a model for text."""
    text: Any = model.get_language_model() if supports_multimodal(model) else model
    return cast("torch.nn.Module", text)


def register() -> None:
    """Entry point: make the backend known to vLLM; vLLM may load a plugin twice in one process."""
    with contextlib.suppress(ValueError):
        WeightTransferEngineFactory.register_engine(BACKEND, FileWeightTransferEngine)


def allowed_path(path: str, folders: str) -> Path:
    """The real path of `path` if it lies under one of `folders` (joined with os.pathsep), symbolic links resolved."""
    real = Path(path).resolve()
    roots = [Path(folder).resolve() for folder in folders.split(os.pathsep) if folder]
    if not any(real.is_relative_to(root) for root in roots):
        raise RefusedUpdate(
            f"weights file {path} is outside the allowed folders {[str(root) for root in roots]}; "
            f"start the server with {FOLDER_VARIABLE} set to the folder that the trainer writes to"
        )
    return real


def check_digest(path: Path, expected: str) -> None:
    """Refuse a file that is missing, cut short or not the one that the trainer wrote."""
    if not path.is_file():
        raise RefusedUpdate(f"weights file {path} does not exist on the server's host; use a folder that both can see")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise RefusedUpdate(f"weights file {path} has digest {found}, expected {expected}; publish again")


def load_every_tensor(model: torch.nn.Module, path: Path, names: ParameterNames) -> None:
    """Load all tensors of the file; one that the model does not take, or a parameter left without one, is an error.

    Tensors go one at a time because vLLM's loaders skip some unknown names in silence: only then does an empty
    answer tell which name it was.
    """
    loaded: set[str] = set()
    for name, tensor in tensors(path):
        loaded |= load_tensor(model, name, tensor, names)
    missing = sorted(names.own - loaded) + partly_loaded(model)
    if missing:
        raise RefusedUpdate(f"the update lacks weights for {len(missing)} parameters of the model: {missing[:3]}")


def load_tensor(model: torch.nn.Module, name: str, tensor: torch.Tensor, names: ParameterNames) -> set[str]:
    """Load one tensor; the vLLM names that it went to.

    Raises:
        RefusedUpdate: unknown name, wrong shape, or the second name of a tied parameter.
    """
    load: Any = model.load_weights
    try:
        placed: set[str] = load([(name, tensor)])
    except (ValueError, KeyError, RuntimeError, AssertionError) as error:
        reason = str(error)[:200]
        raise RefusedUpdate(f"the model cannot take tensor {name!r} of shape {list(tensor.shape)}: {reason}") from error
    if not placed:
        raise RefusedUpdate(f"the model has no parameter for tensor {name!r}; send the checkpoint's names")
    if placed & names.tied:
        raise RefusedUpdate(f"tensor {name!r} is tied to another one in this model; send only the embedding")
    return placed


def partly_loaded(model: torch.nn.Module) -> list[str]:
    """Layers that wait for more elements, as a fused gate_up_proj without its up_proj does.

    vLLM would fill the rest with uninitialised memory. Padded vocabularies are the legitimate case and left out.
    """
    return [
        name
        for name, layer in model.named_modules()
        if not isinstance(layer, VocabParallelEmbedding)
        and get_layerwise_info(layer).can_load()
        and 0 < get_layerwise_info(layer).load_numel < (get_layerwise_info(layer).load_numel_total or 0)
    ]


def tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a safetensors file, one in memory at a time."""
    with safe_open(path, framework="pt", device="cpu") as file:
        for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
            yield name, file.get_tensor(name)


def forget_partial_layers(model: torch.nn.Module) -> None:
    """Drop buffered tensors of unfinished layers, so that finalizing puts their old weights back."""
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            info.loaded_weights.clear()
            info.load_numel = 0


def refresh_tied_heads(model: torch.nn.Module) -> None:
    """Pack the output heads again: the CPU build keeps a packed copy of the tied embedding that a reload misses."""
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and layer.weight.device.type == "cpu":
            method: Any = layer.quant_method
            method.process_weights_after_loading(layer)
