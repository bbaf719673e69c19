"""Models of transformers: image classifiers and dual encoders, from the hub or a directory."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.data.decoding import Interpolation, Square
from antiphase.data.hub import OFFLINE, offline_at_once
from antiphase.errors import UserError, first_line
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, with_card
from antiphase.models.kinds import attention_kind
from antiphase.models.normalize import Normalize, Normalized
from antiphase.models.schemes.scheme import Scheme, Wanted, drawn_from
from antiphase.models.schemes.timm import imagenet_names

_FAILURES = (*OFFLINE, ValueError, KeyError, ImportError)


class Logits(nn.Module):
    """Return the logits of a classifier of transformers as a tensor.

    Args:
        model: an image classifier of transformers.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        return self.model(pixel_values=images).logits


class HuggingFaceDual(nn.Module):
    """Wrap a dual encoder of transformers as one of images in [0, 1] and strings.

    Args:
        model: has ``get_image_features``, ``get_text_features`` and ``logit_scale``.
        tokenizer: of transformers; None if its files are missing.
        mean: mean of each channel, in units of the [0, 1] pixel range.
        std: standard deviation of each channel, in the same units.
        square: resizes and crops an image to the model's size.
    """

    def __init__(
        self, model: Any, tokenizer: Any, mean: Sequence[float], std: Sequence[float], square: Square
    ) -> None:
        super().__init__()
        self.model = model
        self.normalize = Normalize(mean, std)
        self.tokenizer = tokenizer
        self.square = square
        self.image_shape = (len(mean), square.size, square.size)

    @property
    def logit_scale(self) -> Tensor:
        """Natural logarithm of the factor on the cosines."""
        return self.model.logit_scale

    def encode_image(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch embed"]:
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
        tokens = self.tokenizer(
            list(texts), padding=padding, truncation=True, max_length=longest, return_tensors="pt"
        )
        return _tensor(self.model.get_text_features(**tokens.to(place)))


def _tensor(output: Any) -> Tensor:
    """Return the embedding; transformers 5 returns it as the pooled output."""
    return output if isinstance(output, Tensor) else output.pooler_output


def import_transformers(what: str) -> Any:
    """Return the module transformers.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import transformers  # an extra
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
        processor = _optional(transformers.AutoImageProcessor, place)
        tokenizer = _optional(transformers.AutoTokenizer, place) if kind == "dual" else None
    checkpoints.check_finite(model.state_dict(), spec)
    short = folder.resolve().name if folder.is_dir() else name.rpartition("/")[2]
    if kind == "other":
        about = ModelCard(short, spec, attention_kind(model), wanted.drawn, (0, 0, 0), 0)
        return with_card(model, about)
    vision = getattr(config, "vision_config", config)
    channels, size = int(getattr(vision, "num_channels", 3)), _size(processor, vision, spec)
    mean, std = _normalisation(processor, channels, spec)
    if kind == "dual":
        if not all(
            hasattr(model, part) for part in ("get_image_features", "get_text_features", "logit_scale")
        ):
            raise UserError(
                f"{spec}: {type(model).__name__} is not supported; expected a model such as CLIP or SigLIP"
            )
        square = Square(size, _interpolation(processor))
        dual = HuggingFaceDual(model, tokenizer, mean, std, square)
        return with_card(
            dual, ModelCard(short, spec, attention_kind(model), wanted.drawn, dual.image_shape, 0)
        )
    labels = config.num_labels
    card = ModelCard(
        short, spec, attention_kind(model), wanted.drawn, (channels, size, size), labels,
        class_names=_class_names(config.id2label, labels),
    )  # fmt: skip
    return with_card(Normalized(Logits(model), mean, std), card)


def _kind(transformers: Any, config: Any) -> tuple[str, Any]:
    """Return whether a model is a ``classifier``, a ``dual`` encoder or ``other``, and the class that loads it."""
    known = transformers.models.auto.modeling_auto
    names = config.architectures or [""]
    if "ImageClassification" in names[0] and config.model_type in (
        known.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    ):
        return "classifier", transformers.AutoModelForImageClassification
    if config.model_type in known.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        return "dual", transformers.AutoModelForZeroShotImageClassification
    return "other", transformers.AutoModel


def _optional(factory: Any, place: str) -> Any:
    """Load a processor or tokenizer; None if its files are missing."""
    try:
        return factory.from_pretrained(place)
    except _FAILURES:
        return None


def _size(processor: Any, vision: Any, spec: str) -> int:
    for place, key in (("crop_size", "height"), ("size", "height"), ("size", "shortest_edge")):
        held = getattr(processor, place, None)
        try:
            size = held[key] if held else None
        except (KeyError, TypeError):
            continue
        if size:
            return int(size)
    size = getattr(vision, "image_size", None)
    if size is None:
        raise UserError(
            f"{spec}: says nothing of its image size; expected a preprocessor_config.json next to it"
        )
    return int(size[0] if isinstance(size, list | tuple) else size)


def _normalisation(processor: Any, channels: int, spec: str) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and standard deviation of each channel, in units of the [0, 1] pixel range."""
    if processor is None:
        warnings.warn(f"{spec}: no preprocessor_config.json: its images are not normalised", stacklevel=4)
        return (0.0,) * channels, (1.0,) * channels
    factor = 255 * processor.rescale_factor if getattr(processor, "do_rescale", True) else 255
    plain = not getattr(processor, "do_normalize", True)
    mean = (0.0,) * channels if plain else processor.image_mean
    std = (1.0,) * channels if plain else processor.image_std
    return [value / factor for value in mean], [value / factor for value in std]


def _interpolation(processor: Any) -> Interpolation:
    return "bilinear" if int(getattr(processor, "resample", 3) or 3) == 2 else "bicubic"


def _class_names(labels: dict[int, str], count: int) -> tuple[str, ...] | None:
    names = tuple(str(labels.get(number, "")) for number in range(count))
    if names[:1] == ("LABEL_0",):
        return None
    ours = imagenet_names(count) if names[0].startswith("tench") else None
    return ours or names


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence the progress bars and messages of transformers and of the hub's client."""
    logging = transformers.utils.logging
    level, bars, hub = (
        logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
        getLogger("huggingface_hub"),
    )
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub_level = hub.level
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
