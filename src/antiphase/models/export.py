"""A loaded model as files: in our layout, in the released one, or in a repository of the hub."""

import tempfile
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import HfApi
from safetensors.torch import save_file
from torch import nn

from antiphase.data.hub import OFFLINE
from antiphase.errors import UserError
from antiphase.files import replacing
from antiphase.models import checkpoints
from antiphase.models.clip import CLIP
from antiphase.models.released import to_released
from antiphase.models.vit import VisionTransformer

RELEASED_WEIGHTS = "released.safetensors"


def write_model(
    model: nn.Module, directory: str | Path, *, layout: Literal["antiphase", "released"] = "antiphase"
) -> Path:
    """Write a model and return the file of its weights.

    Args:
        model: one of ours, or loaded from a released checkpoint.
        directory: made if missing.
        layout: ``"antiphase"``: ``recipe.json`` and ``model.safetensors``, which ``load_model`` reads and which
            hold sizes, λ_init and preprocessing; ``"released"``: ``released.safetensors`` with the keys of
            DiffCLIP's checkpoints, for the authors' code.

    Raises:
        UserError: the model is foreign, or does not fit the layout.
    """
    directory = Path(directory)
    if not isinstance(model, (CLIP, VisionTransformer)) or model.config is None:
        raise UserError(
            f"{type(model).__name__}: only our own models and DiffCLIP's checkpoints can be written"
        )
    if layout == "antiphase":
        checkpoints.save(model, _recipe(model), directory)
        return directory / checkpoints.WEIGHTS_FILE
    if not isinstance(model, CLIP):
        raise UserError("the released layout is DiffCLIP's: expected a dual encoder")
    with replacing(directory / RELEASED_WEIGHTS) as temporary:
        save_file({name: weight.contiguous() for name, weight in to_released(model).items()}, temporary)
    return directory / RELEASED_WEIGHTS


def push(model: nn.Module, repository: str, *, private: bool = True) -> str:
    """Put a model in our layout into a repository of the hub, made if missing; return its address.

    ``load_model("hub:USER/NAME")`` reads it. The token is the one that ``hf auth login`` left.

    Raises:
        UserError: the model is foreign, or the hub refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_model(model, Path(folder))
        api = HfApi()
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            found = api.upload_folder(repo_id=repository, folder_path=folder)
        except OFFLINE as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"{repository}: cannot be pushed ({reason}); log in with: hf auth login"
            ) from None
    return str(found)


def _recipe(model: CLIP | VisionTransformer) -> dict[str, Any]:
    """Return the recipe that came with a model, or as much of one as is needed to build it again."""
    card = getattr(model, "card", None)
    if card is not None and card.recipe is not None:
        return card.recipe
    assert model.config is not None
    known = {"kind": "clip"} if isinstance(model, CLIP) else {}
    return {**known, "model": model.config.model_dump(mode="json"), "source": getattr(card, "spec", None)}
