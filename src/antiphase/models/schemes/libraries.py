"""Models of timm, torchvision, open_clip and transformers by name, with their pretrained weights or those of a file."""

import importlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from antiphase.data import decoding, hub
from antiphase.errors import UserError, first_line, install, shown
from antiphase.models import checkpoints, preprocessing
from antiphase.models.clip import Embeddings, Texts
from antiphase.models.preprocessing import Images, Normalized, Preprocessing
from antiphase.models.schemes.scheme import Wanted, check_known, downloading, drawn_from, probe, scheme

FAILURES = (Exception,)  # of other libraries, for any content
OPEN_CLIP_CONFIG = "open_clip_config.json"


@scheme("timm:NAME", "any timm classifier, with its pretrained weights, or those of timm:NAME@FILE", random=True)
def _timm(request: Wanted) -> nn.Module:
    import timm  # seconds to import
    from timm.data.config import resolve_data_config

    name, file = request.split()
    known = timm.list_models()
    check_known(name.partition(".")[0], known, "timm has no model", "timm.list_models() lists them")

    def make(**sizes: int) -> nn.Module:
        return timm.create_model(name, pretrained=not (file or request.random_weights), **sizes)  # pyright: ignore

    with hub.offline_at_once():
        model = _made(request, make, "download them", "pos_embed", "img_size", "in_chans")
    settings: dict[str, Any] = resolve_data_config(model=model)
    channels, *side = settings["input_size"]
    patches: Any = getattr(getattr(model, "patch_embed", None), "img_size", None)
    settings["input_size"] = (int(getattr(model, "in_chans", channels)), *(patches or side))
    used = preprocessing.of_timm(settings, request.spec)
    tag = str(getattr(model, "pretrained_cfg", {}).get("tag") or "")
    parts = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    kinds = timm.models.get_arch_pretrained_cfgs(name).values() if file and "." not in name else ()
    known = [resolve_data_config(pretrained_cfg=one.to_dict()) for one in kinds]
    others = len({str([one[part] for part in parts]) for one in known}) > 1
    return _loaded(request, Normalized(model, used.normalize()), model.num_classes, used, tag, others)


@scheme("torchvision:NAME", "any torchvision classifier; NAME.WEIGHTS or NAME@FILE for other weights", random=True)
def _torchvision(request: Wanted) -> nn.Module:
    from torchvision import models  # a second to import

    named, file = request.split()
    name, _, tag = named.partition(".")
    known = models.list_models(module=models)
    check_known(name, known, "torchvision has no classifier", "torchvision.models.list_models() has them all")
    choices: Any = models.get_model_weights(name)
    if tag and tag not in choices.__members__:
        expected = ", ".join(choices.__members__)
        raise UserError(f"torchvision:{name} has no weights {shown(tag)}; expected one of {expected}")
    weights = choices[tag] if tag else choices.DEFAULT

    def make(**sizes: int) -> nn.Module:
        return models.get_model(name, weights=None if file or request.random_weights else weights, **sizes)

    model = _made(request, make, f"download {weights.url}", "pos_embedding", "image_size")
    size = getattr(model, "image_size", None)  # of a vision transformer, from its position embeddings
    used = preprocessing.of_torchvision(weights.transforms(), request.spec, size)
    wrapped = Normalized(model, used.normalize()).eval()
    _, count, _ = probe(wrapped, request.spec, used.image_shape)
    others = not tag and len({str(one.transforms()) for one in choices}) > 1
    return _loaded(request, wrapped, count, used, weights.name, others)


def _made(request: Wanted, make: Callable[..., Any], fix: str, positions: str, size: str, channels: str = "") -> Any:
    """Return what ``make`` builds, with the sizes and weights of the specification's file if it names one."""
    _, file = request.split()
    spec = request.spec.partition("@")[0]
    fix = f"{fix} on a machine with network access and give {spec}@FILE, or build the model with --random-weights"
    with drawn_from(request.seed), downloading(f"{spec}: the weights are not available", fix):
        sizes: dict[str, int] = {}
        state: dict[str, Any] = {}
        if file:
            with torch.device("meta"):
                default = make().state_dict()
            state = checkpoints.read_state(file, default, sized=False)
            *_, head = (key for key, x in default.items() if key.endswith(("weight", "bias")) and x.ndim)
            first = next((key for key, weight in default.items() if weight.ndim == 4), "")
            place = next((key for key in default if key.endswith(positions)), "")
            if head in state and state[head].ndim:
                sizes["num_classes"] = len(state[head])
            if channels and first in state and state[first].ndim == 4:
                sizes[channels] = state[first].shape[1]
            if place in state and first in default and state[place].shape != default[place].shape:
                tokens, file_tokens = default[place].shape[-2], state[place].shape[-2]
                others = tokens - int(tokens**0.5) ** 2  # that are no patches
                sizes[size] = round(max(file_tokens - others, 1) ** 0.5) * default[first].shape[-1]
        model = make(**sizes)
        if file:
            checkpoints.load_into(model, state, file)
    checkpoints.check_finite(model.state_dict(), request.spec)
    return model


def _loaded(request: Wanted, model: Any, count: int, used: Preprocessing, tag: str, others: bool) -> nn.Module:
    """Return the model with its card; ``others``: whether weights of its architecture differ in their preprocessing."""
    name, file = request.split()
    doubt = f"a file of weights does not tell its preprocessing; used is that of {tag}, {used}"
    fix = f"for that of other weights give {request.spec.partition('@')[0]}.WEIGHTS@{file}"
    doubts = (f"{request.spec}: {doubt}; {fix}",) if file and others else ()
    tag = "" if file or request.random_weights else tag
    return request.loaded(model, name, count, used, class_names=imagenet_names(count), doubts=doubts, tag=tag)


def imagenet_names(num_classes: int) -> tuple[str, ...] | None:
    """Return the WordNet ids of the classes of an ImageNet model; None if the number of classes is not ImageNet's."""
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    known = infer_imagenet_subset({"num_classes": num_classes})
    return tuple(ImageNetInfo(known).label_names()) if known else None


class ForeignDual(nn.Module):
    """Base of the wrappers of other libraries' dual encoders; ``tokenizer`` converts strings to token ids."""

    def __init__(self, model: Any, tokenizer: Any, used: Preprocessing) -> None:
        super().__init__()
        self.model = model
        self.normalize = used.normalize()
        self.tokenizer = tokenizer
        self.square, self.image_shape = used.square, used.image_shape

    @property
    def logit_scale(self) -> Tensor:
        return self.model.logit_scale


class OpenClip(ForeignDual):
    """Wrap an open_clip model as a dual encoder of images in [0, 1] and strings."""

    def encode_image(self, images: Images, normalize: bool = False) -> Embeddings:
        return self.model.encode_image(self.normalize(images), normalize=normalize)

    def encode_text(self, texts: Texts, normalize: bool = False) -> Embeddings:
        tokens = texts if isinstance(texts, Tensor) else self.tokenizer(list(texts))
        return self.model.encode_text(tokens.to(self.logit_scale.device), normalize=normalize)


@contextmanager
def quiet_logging(name: str | None = None) -> Iterator[None]:
    """Silence a logger; the root's has open_clip's message that a model was built without pretrained weights."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@scheme("open_clip:NAME/TAG", "any open_clip model, also of a file, NAME@FILE, or an exported directory", random=True)
def _open_clip(request: Wanted) -> nn.Module:
    import open_clip  # seconds to import

    named, file = request.split()
    base, _, tag = named.partition("/")
    spec, drawn, folder = f"open_clip:{named}", request.random_weights, Path(named).expanduser()
    about: dict[str, Any] = {}  # of the weights TAG: their preprocessing and activation
    stored, others = (folder / OPEN_CLIP_CONFIG).is_file(), False
    if stored and (file or drawn):
        raise UserError(f"{request.spec}: {folder} has its own weights; leave out @FILE and --random-weights")
    if not stored:
        models, tags = open_clip.list_models(), open_clip.list_pretrained_tags_by_model(base)
        check_known(base, models, "open_clip has no model", "open_clip.list_models() lists them")
        known = {one: open_clip.get_pretrained_cfg(base, one) for one in tags}
        if not drawn and tag not in known and (tag or not file):
            fix = f"TAG one of {', '.join(known) or 'none'}, open_clip:{base}@FILE, or --random-weights"
            raise UserError(f"{spec}: expected open_clip:{base}/TAG with {fix}")
        about = {} if drawn else known.get(tag, {})
        parts = ("mean", "std", "interpolation", "resize_mode", "quick_gelu")
        others = not tag and len({str([one.get(part) for part in parts]) for one in known.values()}) > 1
    fault, fix = "the weights are not available", "build the model with --random-weights"
    once = "load it once with network access"
    if stored:
        fault, once = "cannot be loaded", "export it again"
        fix = f"correct {folder / OPEN_CLIP_CONFIG} if it was moved"
    elif drawn or file:
        fault = "its text tower or tokenizer is neither cached nor available"
        fix = "use one such as open_clip:ViT-B-32"
    place = f"local-dir:{folder}" if stored else base
    with drawn_from(request.seed), quiet_logging(), downloading(f"{spec}: {fault}", f"{once}, or {fix}", FAILURES):
        model: Any = open_clip.create_model(
            place,
            pretrained=None if stored or drawn or file else tag,
            # some weights were trained with QuickGELU; open_clip would only warn and use GELU
            force_quick_gelu=bool(about.get("quick_gelu")),
            force_preprocess_cfg=about,
            pretrained_text=not file,
        )
        tokenizer = open_clip.get_tokenizer(place)  # some are downloaded from the hub
    if file:
        checkpoints.load_into(model, checkpoints.read_state(file, model.state_dict()), file)
    checkpoints.check_finite(model.state_dict(), spec)
    used = preprocessing.of_open_clip(model.visual.preprocess_cfg, spec)
    doubt = f"a file of weights tells neither activation nor preprocessing; used are {base}'s own, {used}"
    fix = f"for those of other weights give {spec}/TAG@{file}"
    doubts = (f"{spec}: {doubt}; {fix}",) if file and others else ()
    tag = "" if drawn or file or stored else tag
    name = folder.resolve().name if stored else named
    return request.loaded(OpenClip(model, tokenizer, used), name, used=used, doubts=doubts, tag=tag)


class Logits(nn.Module):
    """Return the logits of an image classifier of transformers as a tensor."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        return self.model(pixel_values=images).logits


class HuggingFaceDual(ForeignDual):
    """Wrap a dual encoder of transformers as one of images in [0, 1] and strings; its tokenizer may be missing."""

    def encode_image(self, images: Images) -> Embeddings:
        output = self.model.get_image_features(pixel_values=self.normalize(images))
        return getattr(output, "pooler_output", output)  # transformers 5 returns more than a tensor

    def encode_text(self, texts: Texts) -> Embeddings:
        if isinstance(texts, Tensor):
            tokens: Any = {"input_ids": texts.to(self.logit_scale.device)}
        elif self.tokenizer is None:
            raise UserError(f"{type(self.model).__name__}: no tokenizer; add it by tokenizer.save_pretrained")
        else:
            # siglip was trained on texts of full length without a mask
            padding = "max_length" if self.model.config.model_type.startswith("siglip") else True
            longest = self.model.config.text_config.max_position_embeddings
            options = {"padding": padding, "truncation": True, "max_length": longest, "return_tensors": "pt"}
            tokens = self.tokenizer(list(texts), **options).to(self.logit_scale.device)
        output = self.model.get_text_features(**tokens)
        return getattr(output, "pooler_output", output)


def import_extra(name: str, feature: str) -> Any:
    """Return a module of the extra ``vlm`` that ``feature`` needs."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{feature}: needs {name}; install it with {install('vlm')}") from None


def pretrained(factory: Any, place: str, spec: str, lacking: bool = False) -> Any:
    """Return a model of transformers in float32 with the weights in its files; ``lacking``: whether some may be random.

    Warn of weights that it does not have. Transformers only logs what does not fit.
    """
    how = {"output_loading_info": True, "ignore_mismatched_sizes": True, "trust_remote_code": False}
    model, told = factory.from_pretrained(place, dtype=torch.float32, **how)
    missing, unexpected = sorted(told["missing_keys"]), sorted(told["unexpected_keys"])
    for name, shape, expected in sorted(told["mismatched_keys"], key=str):
        raise UserError(f"{spec}: {name!r} has shape {tuple(shape)}, expected {tuple(expected)}; see its config.json")
    why = f"{spec}: its files lack {len(missing)} of the model's weights, such as {', '.join(missing[:2])}"
    if missing and not lacking:
        raise UserError(f"{why}; expected all, by the names that save_pretrained gives them")
    if missing:
        warnings.warn(f"{why}; these are random", stacklevel=3)
    elif unexpected and not lacking:
        more = f"{', '.join(unexpected[:2])} ({len(unexpected)})"
        warnings.warn(f"{spec}: ignored, not in the model: {more}", stacklevel=3)
    return model


@scheme("hf:ORG/NAME", "a classifier or dual encoder of transformers, on the hub or in a directory", random=True)
def _hugging_face(request: Wanted) -> nn.Module:
    spec, name = request.spec, request.name
    transformers = import_extra("transformers", spec)
    folder = Path(name).expanduser()
    place = str(folder) if folder.is_dir() else name
    fix = "expected a directory written by save_pretrained, or a model on the hub and network access"
    with quiet(transformers), hub.offline_at_once():
        with downloading(f"{spec}: cannot be loaded", fix, FAILURES), drawn_from(request.seed):
            config: Any = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
            kind, factory = _kind(transformers, config)
            if request.random_weights:
                model = factory.from_config(config)
            else:
                model = pretrained(factory, place, spec, lacking=kind == "other")
        processor = None if kind == "other" else _processor(transformers, place, spec)
        tokenizer = None
        if kind == "dual":
            with suppress(*FAILURES):  # its files may be missing
                tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    checkpoints.check_finite(model.state_dict(), spec)
    short = folder.resolve().name if folder.is_dir() else name.rpartition("/")[2]
    if kind == "other":
        return request.loaded(model, short)
    vision = getattr(config, "vision_config", config)
    channels = int(getattr(vision, "num_channels", 3))
    doubts = ()
    if config.model_type == "timm_wrapper":
        from timm.data.config import resolve_data_config  # seconds to import

        used = preprocessing.of_timm(resolve_data_config(pretrained_cfg=config.pretrained_cfg), spec)
    elif processor is None:
        doubts = (f"{spec}: no preprocessor_config.json: its images are not normalised",)
        warnings.warn(doubts[0], stacklevel=3)
        if (size := getattr(vision, "image_size", None)) is None:
            raise UserError(f"{spec}: says nothing of its image size; expected a preprocessor_config.json")
        side = preprocessing.one_side(size if isinstance(size, list | tuple) else (size, size), spec)
        used = Preprocessing(decoding.Square(side), (0.0,) * channels, (1.0,) * channels)
    else:
        used = preprocessing.of_processor(processor, channels, spec)
    if kind == "classifier":
        if not (count := config.num_labels):
            raise UserError(f"{spec}: its config.json has no labels, so that it gives features; expected a classifier")
        aim = getattr(config, "problem_type", None) or ("regression" if count == 1 else "single_label_classification")
        if aim != "single_label_classification":
            fix = "expected one class for each image; load it with python:FILE:FUNCTION if its outputs are logits"
            raise UserError(f"{spec}: made for {aim.replace('_', ' ')}, of {count} labels; {fix}")
        wrapped = Normalized(Logits(model), used.normalize())
        names: Any = tuple(str(config.id2label.get(number, "")) for number in range(count))
        if names[:1] == ("LABEL_0",):
            names = None
        elif names[0].startswith("tench"):
            names = imagenet_names(count) or names
        return request.loaded(wrapped, short, count, used, class_names=names, doubts=doubts)
    if not all(hasattr(model, part) for part in ("get_image_features", "get_text_features", "logit_scale")):
        raise UserError(f"{spec}: {type(model).__name__} is not supported; expected a CLIP or SigLIP")
    return request.loaded(HuggingFaceDual(model, tokenizer, used), short, used=used, doubts=doubts)


def _kind(transformers: Any, config: Any) -> tuple[str, Any]:
    auto, kind, named = transformers.models.auto.modeling_auto, config.model_type, config.architectures
    may_classify = kind in auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    if kind == "timm_wrapper" or (may_classify and "ImageClassification" in (named or [""])[0]):
        return "classifier", transformers.AutoModelForImageClassification
    if kind in auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        return "dual", transformers.AutoModelForZeroShotImageClassification
    if may_classify and not named:
        raise ValueError("its config.json names no architectures, so that it may be a classifier or not: add them")
    return "other", transformers.AutoModel


def _processor(transformers: Any, place: str, spec: str) -> Any:
    names, exists = ("preprocessor_config.json", "processor_config.json"), True
    find, options = transformers.utils.cached_file, {"_raise_exceptions_for_missing_entries": False}
    with suppress(OSError, ValueError):
        alone, joint = (find(place, name, **options) for name in names)
        exists = bool(alone) or (bool(joint) and "image_processor" in json.loads(Path(joint).read_bytes()))
    try:
        about = transformers.ImageProcessingMixin.get_image_processor_dict(place)[0] if exists else {}
        named = str(about.get("image_processor_type") or about.get("feature_extractor_type") or "")
        plain = named.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
        if named and not hasattr(transformers, plain):  # else that of the model's family is taken
            raise ValueError(f"unknown type {shown(named)}")
        return transformers.AutoImageProcessor.from_pretrained(place, use_fast=False, trust_remote_code=False)
    except Exception as error:  # of transformers, for any content
        if not exists and isinstance(error, OSError):
            return None
        fix = f"expected an image processor of transformers {transformers.__version__}"
        raise UserError(f"{spec}: preprocessor_config.json cannot be used ({first_line(error)}); {fix}") from None


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence the progress bars and messages of transformers and of the hub's client."""
    ours, bars = transformers.utils.logging, transformers.utils.logging.is_progress_bar_enabled()
    ours.disable_progress_bar()
    try:
        with quiet_logging("transformers"), quiet_logging("huggingface_hub"):
            yield
    finally:
        if bars:
            ours.enable_progress_bar()
