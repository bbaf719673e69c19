"""Models of transformers: image classifiers and dual encoders, from the hub or a directory."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.data.decoding import Square
from antiphase.data.hub import OFFLINE, offline_at_once
from antiphase.errors import UserError, first_line, shown
from antiphase.models.checkpoints import check_finite
from antiphase.models.preprocessing import Images, Normalized, Preprocessing, of_processor, one_side
from antiphase.models.schemes.classifiers import imagenet_names
from antiphase.models.schemes.scheme import Scheme, Wanted, drawn_from

_FAILURES = (*OFFLINE, ValueError, KeyError, ImportError)


class Logits(nn.Module):
    """Return the logits of an image classifier of transformers as a tensor."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Images) -> Float[Tensor, "batch classes"]:
        return self.model(pixel_values=images).logits


class HuggingFaceDual(nn.Module):
    """Wrap a dual encoder of transformers as one of images in [0, 1] and strings.

    Args:
        model: has ``get_image_features``, ``get_text_features`` and ``logit_scale``.
        tokenizer: of transformers; None if its files are missing.
        preprocessing: what is done with a picture.
    """

    def __init__(self, model: Any, tokenizer: Any, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.model = model
        self.normalize = preprocessing.normalize()
        self.tokenizer = tokenizer
        self.square, self.image_shape = preprocessing.square, preprocessing.image_shape

    @property
    def logit_scale(self) -> Tensor:
        """Natural logarithm of the factor on the cosines."""
        return self.model.logit_scale

    def encode_image(self, images: Images) -> Float[Tensor, "batch embed"]:
        return _tensor(self.model.get_image_features(pixel_values=self.normalize(images)))

    def encode_text(
        self, texts: Sequence[str] | Int64[Tensor, "batch length"]
    ) -> Float[Tensor, "batch embed"]:
        place = self.logit_scale.device
        if isinstance(texts, Tensor):
            return _tensor(self.model.get_text_features(input_ids=texts.to(place)))
        if self.tokenizer is None:
            raise UserError(
                f"{type(self.model).__name__} was saved without its tokenizer; save it next to the weights with "
                "tokenizer.save_pretrained"
            )
        # siglip was trained on texts of full length without a mask
        padding = "max_length" if self.model.config.model_type.startswith("siglip") else True
        longest = self.model.config.text_config.max_position_embeddings
        options = {"padding": padding, "truncation": True, "max_length": longest, "return_tensors": "pt"}
        return _tensor(self.model.get_text_features(**self.tokenizer(list(texts), **options).to(place)))


def _tensor(output: Any) -> Tensor:
    """Return the embedding; transformers 5 returns it as the pooled output."""
    return output if isinstance(output, Tensor) else output.pooler_output


def import_transformers(what: str) -> Any:
    """Return the module transformers, an extra that ``what`` needs."""
    try:
        import transformers
    except ImportError:
        raise UserError(f"{what}: needs transformers; install it with pip install 'antiphase[vlm]'") from None
    return transformers


def _load(wanted: Wanted) -> nn.Module:
    spec, name = wanted.spec, wanted.name
    transformers = import_transformers(spec)
    folder = Path(name).expanduser()
    place = str(folder) if folder.is_dir() else name
    with quiet(transformers), offline_at_once():
        try:
            config: Any = transformers.AutoConfig.from_pretrained(place)
            kind, factory = _kind(transformers, config)
            with drawn_from(wanted.seed):
                if wanted.random_weights:
                    model = factory.from_config(config)
                else:
                    model = factory.from_pretrained(place, dtype=torch.float32)
        except _FAILURES as error:
            raise UserError(
                f"{spec}: cannot be loaded ({first_line(error)}); expected a directory written by save_pretrained, or "
                "a model on the hub and network access"
            ) from None
        processor = None if kind == "other" else _processor(transformers, place, spec)
        tokenizer = None
        if kind == "dual":
            with suppress(*_FAILURES):  # its files may be missing
                tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    check_finite(model.state_dict(), spec)
    short = folder.resolve().name if folder.is_dir() else name.rpartition("/")[2]
    if kind == "other":
        return wanted.loaded(model, short, (0, 0, 0))
    vision = getattr(config, "vision_config", config)
    channels = int(getattr(vision, "num_channels", 3))
    doubts = ()
    if processor is None:
        doubts = (f"{spec}: no preprocessor_config.json: its images are not normalised",)
        warnings.warn(doubts[0], stacklevel=3)
        size = getattr(vision, "image_size", None)
        if size is None:
            raise UserError(
                f"{spec}: says nothing of its image size; expected a preprocessor_config.json next to it"
            )
        side = one_side(size if isinstance(size, list | tuple) else (size, size), spec)
        used = Preprocessing(Square(side), (0.0,) * channels, (1.0,) * channels)
    else:
        used = of_processor(processor, channels, spec)
    facts: dict[str, Any] = {"preprocessing": used, "doubts": doubts}
    if kind == "classifier":
        count = config.num_labels
        wrapped = Normalized(Logits(model), used.mean, used.std, used.bgr)
        facts["class_names"] = _class_names(config.id2label, count)
        return wanted.loaded(wrapped, short, used.image_shape, count, **facts)
    if not all(hasattr(model, part) for part in ("get_image_features", "get_text_features", "logit_scale")):
        raise UserError(
            f"{spec}: {type(model).__name__} is not supported; expected a model such as CLIP or SigLIP"
        )
    return wanted.loaded(HuggingFaceDual(model, tokenizer, used), short, used.image_shape, **facts)


def _kind(transformers: Any, config: Any) -> tuple[str, Any]:
    """Return whether a model is a ``classifier``, a ``dual`` encoder or ``other``, and the class that loads it."""
    auto, kind = transformers.models.auto.modeling_auto, config.model_type
    classifies = "ImageClassification" in (config.architectures or [""])[0]
    if classifies and kind in auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        return "classifier", transformers.AutoModelForImageClassification
    if kind in auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        return "dual", transformers.AutoModelForZeroShotImageClassification
    return "other", transformers.AutoModel


def _processor(transformers: Any, place: str, spec: str) -> Any:
    """Load an image processor, that for Pillow where there are two; None if its file is missing."""
    exists = _has_processor(transformers, place)
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
        raise UserError(
            f"{spec}: its preprocessor_config.json cannot be used ({first_line(error)}); expected an image processor "
            f"of transformers {transformers.__version__}, as save_pretrained writes it"
        ) from None


def _has_processor(transformers: Any, place: str) -> bool:
    """Return whether a model has a file of its image processor, readable or not; True if that cannot be told."""
    names = ("preprocessor_config.json", "processor_config.json")
    find, options = transformers.utils.cached_file, {"_raise_exceptions_for_missing_entries": False}
    try:
        alone, joint = (find(place, name, **options) for name in names)
        return bool(alone) or (bool(joint) and "image_processor" in json.loads(Path(joint).read_bytes()))
    except (OSError, ValueError):
        return True


def _class_names(labels: dict[int, str], count: int) -> tuple[str, ...] | None:
    names = tuple(str(labels.get(number, "")) for number in range(count))
    if names[:1] == ("LABEL_0",):
        return None
    return (imagenet_names(count) if names[0].startswith("tench") else None) or names


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence the progress bars and messages of transformers and of the hub's client."""
    logging, hub = transformers.utils.logging, getLogger("huggingface_hub")
    level, hub_level, bars = logging.get_verbosity(), hub.level, logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub.setLevel("ERROR")
    try:
        yield
    finally:
        hub.setLevel(hub_level)
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


HUGGING_FACE = Scheme(
    "hf:ORG/NAME",
    "an image classifier or dual encoder of transformers: from the hub, or hf:DIRECTORY",
    _load,
    random=True,
)
