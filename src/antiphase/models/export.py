"""Write a loaded model in our layout or in DiffCLIP's released one, or push it to the Hugging Face hub."""

import tempfile
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import HfApi
from safetensors.torch import save_file
from torch import nn

from antiphase.arguments import validated
from antiphase.data.hub import OFFLINE
from antiphase.errors import UserError, first_line
from antiphase.files import replacing
from antiphase.models import checkpoints
from antiphase.models.clip import CLIP
from antiphase.models.released import CONFIG, to_released
from antiphase.models.vit import VisionTransformer

RELEASED_WEIGHTS = "released.safetensors"


@validated
def write_model(
    model: nn.Module, directory: str | Path, *, layout: Literal["antiphase", "released"] = "antiphase"
) -> Path:
    """Write a model to a directory and return the path of its weights.

    Args:
        model: trained by antiphase, or loaded from a released DiffCLIP checkpoint.
        directory: created if missing.
        layout: ``"antiphase"``: ``recipe.json`` (sizes, λ_init, preprocessing) and ``model.safetensors``, which
            ``load_model`` reads; ``"released"``: ``released.safetensors`` with the keys of DiffCLIP's checkpoints,
            for the authors' code, which takes the sizes and λ_init as arguments. They are in the file's header, where
            ``load_model("diffclip:FILE")`` finds them.

    Raises:
        UserError: if the model is of another library, or cannot be expressed in the layout.
    """
    directory = Path(directory)
    if not isinstance(model, (CLIP, VisionTransformer)) or model.config is None:
        raise UserError(
            f"{type(model).__name__}: cannot be written; expected a model of antiphase or a DiffCLIP checkpoint"
        )
    if layout == "antiphase":
        checkpoints.save(model, _recipe(model), directory)
        return directory / checkpoints.WEIGHTS_FILE
    if not isinstance(model, CLIP):
        raise UserError(f"layout 'released': expected a dual encoder, not {type(model).__name__}")
    with replacing(directory / RELEASED_WEIGHTS) as temporary:
        tensors = {name: weight.contiguous() for name, weight in to_released(model).items()}
        save_file(tensors, temporary, {CONFIG: model.config.model_dump_json()})
    return directory / RELEASED_WEIGHTS


@validated
def push(model: nn.Module, repository: str, *, private: bool = True) -> str:
    """Upload a model to a repository on the Hugging Face hub and return its URL.

    ``load_model("hub:USER/NAME")`` reads it. Uses the token stored by ``hf auth login``.

    Args:
        model: as for :func:`write_model`.
        repository: ``USER/NAME``, created if missing.
        private: whether a new repository is private.

    Raises:
        UserError: if the model is of another library, or the hub refuses the upload.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_model(model, Path(folder))
        api = HfApi()
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            found = api.upload_folder(repo_id=repository, folder_path=folder)
        except OFFLINE as error:
            reason = first_line(error)
            raise UserError(f"{repository}: upload failed ({reason}); log in with: hf auth login") from None
    return str(found)


def _recipe(model: CLIP | VisionTransformer) -> dict[str, Any]:
    """Return the model's recipe, or one with its configuration alone if it has none."""
    card = getattr(model, "card", None)
    if card is not None and card.recipe is not None:
        return card.recipe
    assert model.config is not None
    known = {"kind": "clip"} if isinstance(model, CLIP) else {}
    return {**known, "model": model.config.model_dump(mode="json"), "source": getattr(card, "spec", None)}
