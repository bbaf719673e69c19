"""Load a classifier of images in [0, 1], or a dual encoder, from a one-line specification."""

import os
import re
import tempfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from huggingface_hub import HfApi, hf_hub_download
from safetensors.torch import save_file
from torch import nn

from antiphase.arguments import OWN_WORDS, Seed, validated
from antiphase.data import decoding, hub
from antiphase.errors import UserError, shown
from antiphase.files import digest, replacing
from antiphase.models import checkpoints, layouts, trained
from antiphase.models.card import ModelCard, attention_kind, card_of, square_of, with_card
from antiphase.models.checkpoints import raw_bytes
from antiphase.models.clip import CLIP, ClipConfig, build_clip
from antiphase.models.schemes.diffclip import CONFIG, to_released
from antiphase.models.schemes.scheme import Scheme, Wanted, downloading, named_spec, scheme
from antiphase.models.vit import VisionTransformer, VitConfig, build
from antiphase.registry import MODELS, RUNS, find

RELEASED_WEIGHTS = "released.safetensors"
Layout = Literal["antiphase", "released", "open_clip"]


@validated
def load_model(
    spec: Annotated[str | os.PathLike[str], OWN_WORDS],
    *,
    random_weights: bool = False,
    seed: Seed = 0,
    lambda_init: float | Literal["depth"] | None = None,
    module: nn.Module | None = None,
) -> nn.Module:
    """Load a classifier of images in [0, 1], or a dual encoder, in evaluation mode, with ``model.card``.

    Args:
        spec: a run directory of ``antiphase train`` or ``train-clip``, or one of the forms of :func:`forms`, such as
            ``python:model.py:build``, which runs that file. ``NAME=SPEC`` names the model, ``SPEC@seed=N`` states the
            seed of its training, from which it is drawn if it is random.
        random_weights: build a ``timm:``, ``torchvision:``, ``hf:`` or ``open_clip:`` model without a download.
        seed: random seed of these weights, and of all that a ``python:`` function draws from torch.
        lambda_init: of a ``diffclip:`` checkpoint, as ``#lambda_init=`` behind its name.
        module: gets the weights of a run directory of ``antiphase.train(module, …)``, which holds no code.

    >>> load_model("specimen:diffvit-0").card.attention
    'differential'
    """
    spec = os.fspath(spec) if isinstance(spec, os.PathLike) else spec
    if not isinstance(spec, str) or not spec:
        raise UserError(f"model {shown(spec)}: expected a string such as 'specimen:diffvit-0'")
    name, text, stated = named_spec(spec)
    if name or stated is not None:
        settings: Any = {"random_weights": random_weights, "lambda_init": lambda_init, "module": module}
        return named(load_model(text, seed=seed if stated is None else stated, **settings), name, stated)
    if lambda_init is not None:
        if not spec.startswith("diffclip:") or "#" in spec:
            raise UserError(f"lambda_init {shown(lambda_init)}: is for a diffclip: file without one; leave it out")
        spec = f"{spec}#lambda_init={lambda_init}"
    scheme = scheme_of(spec)
    if module is not None and scheme is not None:
        raise UserError(f"module: is for a run directory, not for {shown(spec)}; leave it out")
    if random_weights and not (scheme and scheme.random):
        able = ", ".join(f"{name}:" for name in MODELS if find(MODELS, name, "scheme").random)
        raise UserError(f"model {spec!r}: --random-weights only applies to {able} models; leave it out")
    if scheme is not None:
        return scheme.load(Wanted(spec, spec.partition(":")[2], random_weights, seed))
    if not os.path.isdir(spec):  # never raises, unlike Path.is_dir
        known = f"did you mean python:{spec}?" if ".py:" in spec else f"expected one of DIRECTORY, {', '.join(forms())}"
        raise UserError(f"model {shown(spec)}: no such directory; {known}")
    return load_run(Path(spec), spec, Path(spec).resolve().name, module)


def named(model: nn.Module, name: str, seed: int | None) -> nn.Module:
    """Give a loaded model a name, and the seed of its training, which ends the name; refuse another seed."""
    card = card_of(model)
    if None not in (seed, card.seed) and seed != card.seed:
        raise UserError(f"{card.spec}@seed={seed}: was trained with seed {card.seed}; leave out @seed={seed}")
    if seed is None:
        return with_card(model, replace(card, name=name or card.name))
    name = name or re.sub(rf"-{seed}$", "", card.name)
    return with_card(model, replace(card, name=f"{name}-{seed}", spec=f"{card.spec}@seed={seed}", seed=seed))


def scheme_of(spec: str) -> Scheme | None:
    """Return the scheme of a specification, perhaps with a name; None for a directory."""
    kind, _, name = named_spec(spec).spec.partition(":")
    return find(MODELS, kind, "scheme") if kind in MODELS and name else None


def forms() -> list[str]:
    """Return how each kind of specification is written."""
    return [find(MODELS, name, "scheme").form for name in MODELS]


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a model's ``repr``, parameters and buffers, and of its code and state if it is a user's."""
    card = getattr(model, "card", None)
    parts: list[bytes | str] = [repr(model), *filter(None, (getattr(card, name, "") for name in ("code", "state")))]
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda pair: pair[0]):
        parts += [name, str(tensor.dtype), raw_bytes(tensor)]
    return digest(*parts)


def load_run(directory: Path, spec: str, name: str, module: nn.Module | None = None) -> nn.Module:
    """Load a run directory of ``antiphase train``, ``train-clip`` or ``train-vlm``."""
    recipe = checkpoints.read_recipe(directory)
    source, path = directory / checkpoints.RECIPE_FILE, directory / checkpoints.WEIGHTS_FILE
    if (made := recipe.get("kind")) in RUNS:
        model = find(RUNS, made, "kind of run")(directory)
        return with_card(model, replace(card_of(model), name=name, spec=spec))
    if trained.is_starting_model(recipe):
        model = trained.rebuilt(directory, recipe, _with_any_weights, module)
        names = _class_names(recipe, card_of(model).num_classes, source)
        return _as_trained(model, replace(card_of(model), name=name, spec=spec, class_names=names))
    if module is not None:
        raise UserError(f"module: {directory} says how its model is built; leave it out")
    values = (recipe.get("model"), f"{source}: ", ("model",))
    if made == "clip":
        model, count, names = build_clip(checkpoints.as_config(ClipConfig, *values)), 0, None
    else:
        model = build(checkpoints.as_config(VitConfig, *values))
        count, names = model.num_classes, _class_names(recipe, model.num_classes, source)
    checkpoints.load_into(model, checkpoints.read_weights(path), str(path))
    kind, seed = attention_kind(model), recipe.get("seed")
    return _as_trained(model, ModelCard(name, spec, kind, seed, model.image_shape, count, recipe, names))


def _as_trained(model: nn.Module, card: ModelCard) -> nn.Module:
    if square := (card.recipe or {}).get(trained.SQUARE):
        try:
            one = decoding.Square(**square)
            if one.interpolation not in get_args(decoding.Interpolation) or min(one.size, one.resize or 1) < 1:
                raise TypeError(f"{shown(square)} is no square")
            object.__setattr__(model, "square", one)
        except TypeError as error:
            raise UserError(f"{card.spec}: recipe.json: {trained.SQUARE}: {error}; convert the model again") from None
    if resize := (card.recipe or {}).get(trained.RESIZE):
        if resize not in ("squash", "crop"):
            raise UserError(f"{card.spec}: recipe.json: {trained.RESIZE} {shown(resize)}: expected squash or crop")
        object.__setattr__(model, "square", square_of(with_card(model, card)).resized(resize))
    return with_card(model, card)


def _with_any_weights(spec: str) -> nn.Module:
    scheme = scheme_of(spec)
    return scheme.load(Wanted(spec, spec.partition(":")[2], True)) if scheme else load_model(spec)


def specimen_names() -> list[str]:
    """Return the names of the trained models that ship with the package."""
    return sorted(file.parent.name for file in _specimens().glob(f"*/{checkpoints.RECIPE_FILE}"))


def _specimens() -> Path:
    return Path(str(files("antiphase").joinpath("specimens")))


@scheme("specimen:NAME", "a trained model in the package: vit-0 … -7, diffvit-0 … -7, vit-robust-0, diffvit-robust-0")
def _specimen(request: Wanted) -> nn.Module:
    if (name := request.name) not in specimen_names():
        raise UserError(f"specimen {shown(name)}: expected one of {', '.join(specimen_names())}")
    return load_run(_specimens() / name, request.spec, name)


@scheme("hub:USER/NAME", "a model on the Hugging Face hub, uploaded by antiphase.models.push")
def _hub(request: Wanted) -> nn.Module:
    name = request.name
    fix = "check the name, or download it on a machine with network access and give the folder"
    with downloading(f"hub:{name}: not available from the hub", fix), hub.offline_at_once():
        recipe = hf_hub_download(name, checkpoints.RECIPE_FILE)
        hf_hub_download(name, checkpoints.WEIGHTS_FILE)
    folder = Path(recipe).parent
    if trained.code_of(str(folder)):
        raise UserError(f"{request.spec}: is built by code of a user; download it and give the folder")
    return load_run(folder, request.spec, name.rpartition("/")[2])


def _class_names(recipe: dict[str, Any], num_classes: int, source: Path) -> tuple[str, ...] | None:
    if (names := recipe.get(checkpoints.CLASS_NAMES)) is None:
        return None
    if not isinstance(names, list) or len(names) != num_classes or not all(isinstance(n, str) for n in names):
        raise UserError(f"{source}: {checkpoints.CLASS_NAMES}: expected a list of {num_classes} names")
    return tuple(names)


@validated
def write_model(model: nn.Module, directory: str | Path, *, layout: Layout = "antiphase") -> Path:
    """Write a model to a directory; return the path of its weights.

    Layout ``"antiphase"`` is what ``load_model`` reads; of a foreign model it has the specification, not the code.
    ``"released"`` has the keys of DiffCLIP's checkpoints, with size and λ_init in the header. ``"open_clip"``:
    see :func:`~antiphase.models.layouts.write_open_clip`.
    """
    directory, card = Path(directory), getattr(model, "card", None)
    if not isinstance(model, (CLIP, VisionTransformer)) or model.config is None:
        if layout == "antiphase" and isinstance(card, ModelCard) and card.num_classes:
            checkpoints.save(model, trained.recipe_of(model), directory)
            return directory / checkpoints.WEIGHTS_FILE
        raise UserError(f"{type(model).__name__}: cannot be written; expected a model of antiphase")
    if layout == "antiphase":
        recipe = {"kind": "clip"} if isinstance(model, CLIP) else {}
        recipe |= {"model": model.config.model_dump(mode="json"), "source": getattr(card, "spec", None)}
        checkpoints.save(model, getattr(card, "recipe", None) or recipe, directory)
        return directory / checkpoints.WEIGHTS_FILE
    if not isinstance(model, CLIP):
        raise UserError(f"layout {layout!r}: expected a CLIP, not {type(model).__name__}")
    kinds = model.config.vision.activation, model.config.text.activation, model.config.vision.pre_norm
    if kinds != ("gelu", "quick_gelu", False):
        has = f"has images by {kinds[0]}, texts by {kinds[1]}" + ", a norm before the blocks" * kinds[2]
        expected = "expected images by gelu, texts by quick_gelu and no such norm; use layout antiphase"
        raise UserError(f"layout {layout!r}: the model {has}; {expected}")
    if layout == "open_clip":
        return layouts.write_open_clip(model, directory)
    with replacing(directory / RELEASED_WEIGHTS) as temporary:
        tensors = {name: weight.contiguous() for name, weight in to_released(model).items()}
        save_file(tensors, temporary, {CONFIG: model.config.model_dump_json()})
    return directory / RELEASED_WEIGHTS


@validated
def push(model: nn.Module, repository: str, *, private: bool = True) -> str:
    """Upload a model to ``USER/NAME`` on the hub, with the token of ``hf auth login``; return its URL."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(model, folder)
        api = HfApi()
        with downloading(f"{repository}: upload failed", "log in with: hf auth login"):
            api.create_repo(repository, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repository, folder_path=folder))
