"""Dual encoders from elsewhere: DiffCLIP's released checkpoints, open_clip's models."""

import contextlib
import difflib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import hf_hub_download
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.data.decoding import Square
from antiphase.data.hub import OFFLINE
from antiphase.errors import UserError
from antiphase.models import checkpoints
from antiphase.models.clip import CLIP, build_clip
from antiphase.models.normalize import Normalize
from antiphase.models.released import config_of, from_released, read_released
from antiphase.models.towers import attention_spec

RELEASED_FILE = "checkpoint_best.pt"


class OpenClip(nn.Module):
    """A model of open_clip as a dual encoder of images in [0, 1] and strings.

    Args:
        model: with ``encode_image`` (of normalised images), ``encode_text`` and ``logit_scale``.
        tokenizer: from strings to token ids.
        mean: subtracted from the images, one number a channel.
        std: what they are divided by after that.
        square: brings an image to the model's size.
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
        """The natural logarithm of what cosines are multiplied by."""
        return self.model.logit_scale

    def encode_image(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch embed"]:
        """Return the embeddings of images in [0, 1], not normalised."""
        return self.model.encode_image(self.normalize(images))

    def encode_text(
        self, texts: Sequence[str] | Int64[Tensor, "batch length"]
    ) -> Float[Tensor, "batch embed"]:
        """Return the embeddings of texts or of their token ids, not normalised."""
        tokens = texts if isinstance(texts, Tensor) else self.tokenizer(list(texts))
        return self.model.encode_text(tokens.to(self.logit_scale.device))


def load_released(name: str, lambda_init: float | Literal["depth"] | None) -> CLIP:
    """Load one of the authors' checkpoints: DiffCLIP, its baseline, or the vision-only model.

    Args:
        name: a file, a folder with ``checkpoint_best.pt``, or a repository of the hub.
        lambda_init: λ_init, which is not in the file; ``"depth"`` for DiffCLIP*. The baseline needs none.

    Raises:
        UserError: it cannot be had or read, or λ_init is needed and not given.
    """
    path = _released_file(name)
    state = read_released(path)
    schedule = "depth" if lambda_init == "depth" else "constant"
    number = None if isinstance(lambda_init, str) else lambda_init
    config = config_of(state, str(path), lambda_init=number, schedule=schedule)
    if any(attention_spec(tower.attention).differential for tower in (config.vision, config.text)):
        warnings.warn(
            f"{name}: λ_init = {lambda_init} is taken on trust, nothing in the file can confirm it: models of "
            "another λ_init load without error and are wrong",
            stacklevel=2,
        )
    model = build_clip(config)
    checkpoints.load_into(model, from_released(state, config, str(path)), str(path))
    return model


def _released_file(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path / RELEASED_FILE
    if path.exists() or path.suffix in (".pt", ".pth"):
        return path
    try:
        return Path(hf_hub_download(name, RELEASED_FILE))
    except OFFLINE as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"diffclip:{name}: neither a file here nor to be had from the hub ({reason}); give a path, or "
            "download it where there is a network"
        ) from None


@contextlib.contextmanager
def _quiet_logging() -> Iterator[None]:
    """Keep open_clip from saying on stderr that a model without weights has none."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def load_open_clip(name: str, random_weights: bool, seed: int) -> OpenClip:
    """Load ``NAME`` or ``NAME/TAG`` of open_clip, TAG being one of its pretrained weights.

    Raises:
        UserError: open_clip does not know it, or its weights cannot be had.
    """
    import open_clip  # seconds to import

    base, _, tag = name.partition("/")
    if base not in open_clip.list_models():
        near = difflib.get_close_matches(base, open_clip.list_models(), 3)
        hint = f"did you mean {', '.join(near)}?" if near else "open_clip.list_models() lists them"
        raise UserError(f"open_clip has no model {base!r}; {hint}")
    tags = open_clip.list_pretrained_tags_by_model(base)
    if not random_weights and tag not in tags:
        raise UserError(
            f"open_clip:{name}: expected open_clip:{base}/TAG with TAG one of {', '.join(tags) or 'none'}, or "
            "--random-weights"
        )
    # some weights were trained with QuickGELU; open_clip warns of the mismatch and goes on with GELU
    known = {} if random_weights else open_clip.get_pretrained_cfg(base, tag)
    try:
        with torch.random.fork_rng(devices=[]), _quiet_logging():
            torch.manual_seed(seed)  # open_clip draws from the global generator, which is put back afterwards
            model: Any = open_clip.create_model(
                base,
                pretrained=None if random_weights else tag,
                force_quick_gelu=bool(known.get("quick_gelu")),
            )
            tokenizer = open_clip.get_tokenizer(base)  # some come from the hub
    except OFFLINE as error:
        reason = str(error).strip().splitlines()[0]
        if random_weights:
            raise UserError(
                f"open_clip:{name}: its text tower or tokenizer is on the hub and not in the cache ({reason}); load it "
                "once where there is a network, or take a model with a tokenizer of its own, such as open_clip:ViT-B-32"
            ) from None
        raise UserError(
            f"open_clip:{name}: the weights cannot be had ({reason}); download them where there is a network, "
            "or build the model with --random-weights"
        ) from None
    checkpoints.check_finite(model.state_dict(), f"open_clip:{name}")
    settings = model.visual.preprocess_cfg
    if settings["resize_mode"] != "shortest":
        raise UserError(
            f"open_clip:{name}: its images are resized by {settings['resize_mode']!r}; expected a model whose "
            "shorter side is resized and whose centre is cut out"
        )
    size = settings["size"][0] if isinstance(settings["size"], (tuple, list)) else settings["size"]
    square = Square(int(size), settings["interpolation"])
    return OpenClip(model, tokenizer, settings["mean"], settings["std"], square)
