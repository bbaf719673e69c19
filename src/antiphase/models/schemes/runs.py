"""Models in our own layout: run directories, specimens of the package, uploads on the hub; how they are written."""

import tempfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import HfApi, hf_hub_download
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn

from antiphase.arguments import validated
from antiphase.data.hub import OFFLINE, offline_at_once
from antiphase.errors import UserError, first_line, invalid, shown
from antiphase.files import replacing
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, card_of, with_card
from antiphase.models.clip import CLIP, build_clip, valid_clip
from antiphase.models.kinds import attention_kind
from antiphase.models.schemes.diffclip import CONFIG, to_released
from antiphase.models.schemes.scheme import Scheme, Wanted
from antiphase.models.transformer import attention_spec
from antiphase.models.vit import VisionTransformer, VitConfig, build
from antiphase.registry import RUNS, find

RELEASED_WEIGHTS = "released.safetensors"


def load_run(directory: Path, spec: str, name: str) -> nn.Module:
    """Load a run directory of ``antiphase train``, ``train-clip`` or ``train-vlm``."""
    recipe = checkpoints.read_recipe(directory)
    source, path = directory / checkpoints.RECIPE_FILE, directory / checkpoints.WEIGHTS_FILE
    if (made := recipe.get("kind")) in RUNS:
        model = find(RUNS, made, "kind of run")(directory)
        return with_card(model, replace(card_of(model), name=name, spec=spec))
    names, count = None, 0
    if made == "clip":
        model = build_clip(valid_clip(recipe.get("model"), f"{source}: ", ("model",)))
        kind = attention_kind(model)
    else:
        try:
            config = VitConfig.model_validate(recipe.get("model"))
        except ValidationError as error:
            raise invalid(error, f"{source}: ", ("model",)) from None
        model, kind = build(config), attention_spec(config.attention).family
        count = config.num_classes
        names = _class_names(recipe, count, source)
    checkpoints.load_into(model, checkpoints.read_weights(path), str(path))
    card = ModelCard(name, spec, kind, recipe.get("seed"), model.image_shape, count, recipe, names)
    return with_card(model, card)


def specimen_names() -> list[str]:
    """Return the names of the trained models that ship with the package."""
    return sorted(
        entry.name for entry in _specimens().iterdir() if (entry / checkpoints.RECIPE_FILE).exists()
    )


def _specimens() -> Path:
    return Path(str(files("antiphase").joinpath("specimens")))


def _load_specimen(wanted: Wanted) -> nn.Module:
    name = wanted.name
    if name not in specimen_names():
        raise UserError(f"specimen {shown(name)}: expected one of {', '.join(specimen_names())}")
    return load_run(_specimens() / name, wanted.spec, name)


def _load_from_hub(wanted: Wanted) -> nn.Module:
    name = wanted.name
    try:
        with offline_at_once():
            recipe, _ = (
                hf_hub_download(name, file) for file in (checkpoints.RECIPE_FILE, checkpoints.WEIGHTS_FILE)
            )
    except OFFLINE as error:
        raise UserError(
            f"hub:{name}: not available from the hub ({first_line(error)}); check the name, or "
            "download it on a machine with network access and give the folder"
        ) from None
    return load_run(Path(recipe).parent, wanted.spec, name.rpartition("/")[2])


def _class_names(recipe: dict[str, Any], num_classes: int, source: Path) -> tuple[str, ...] | None:
    """Return the class names in a recipe; None for runs of older versions."""
    names = recipe.get(checkpoints.CLASS_NAMES)
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != num_classes or not all(isinstance(n, str) for n in names):
        raise UserError(
            f"{source}: {checkpoints.CLASS_NAMES}: expected a list of {num_classes} names; correct or remove it"
        )
    return tuple(names)


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
        card = getattr(model, "card", None)
        kind = {"kind": "clip"} if isinstance(model, CLIP) else {}
        config = {"model": model.config.model_dump(mode="json"), "source": getattr(card, "spec", None)}
        recipe = getattr(card, "recipe", None)
        checkpoints.save(model, kind | config if recipe is None else recipe, directory)
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
        write_model(model, folder)
        api = HfApi()
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repository, folder_path=folder))
        except OFFLINE as error:
            reason = first_line(error)
            raise UserError(f"{repository}: upload failed ({reason}); log in with: hf auth login") from None


SPECIMEN = Scheme(
    "specimen:NAME",
    "a trained model shipped with the package: vit-0 … vit-2, diffvit-0 … diffvit-2",
    _load_specimen,
)
HUB = Scheme(
    "hub:USER/NAME", "a model on the Hugging Face hub, uploaded by antiphase.models.push", _load_from_hub
)
