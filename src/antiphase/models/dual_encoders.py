"""Loaders of DiffCLIP's released checkpoints and of open_clip's models."""

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

from antiphase.data.hub import OFFLINE, offline_at_once
from antiphase.errors import UserError, first_line
from antiphase.models import checkpoints
from antiphase.models.clip import CLIP, build_clip
from antiphase.models.preprocessing import Preprocessing, of_open_clip
from antiphase.models.released import config_of, from_released, read_released, stored_config
from antiphase.models.towers import attention_spec

RELEASED_FILE = "checkpoint_best.pt"


class OpenClip(nn.Module):
    """Wrap an open_clip model as a dual encoder of images in [0, 1] and strings.

    Args:
        model: has ``encode_image`` (of normalised images), ``encode_text`` and ``logit_scale``.
        tokenizer: converts strings to token ids.
        preprocessing: what is done with a picture.
    """

    def __init__(self, model: Any, tokenizer: Any, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.model = model
        self.normalize = preprocessing.normalize()
        self.tokenizer = tokenizer
        self.preprocessing, self.square = preprocessing, preprocessing.square
        self.image_shape = (len(preprocessing.mean), self.square.size, self.square.size)

    @property
    def logit_scale(self) -> Tensor:
        """Natural logarithm of the factor on the cosines."""
        return self.model.logit_scale

    def encode_image(
        self, images: Float[Tensor, "batch 3 height width"], normalize: bool = False
    ) -> Float[Tensor, "batch embed"]:
        """Return image embeddings, of length 1 if ``normalize``."""
        return self.model.encode_image(self.normalize(images), normalize=normalize)

    def encode_text(
        self, texts: Sequence[str] | Int64[Tensor, "batch length"], normalize: bool = False
    ) -> Float[Tensor, "batch embed"]:
        """Return text embeddings, of length 1 if ``normalize``."""
        tokens = texts if isinstance(texts, Tensor) else self.tokenizer(list(texts))
        return self.model.encode_text(tokens.to(self.logit_scale.device), normalize=normalize)


def load_released(name: str, lambda_init: float | Literal["depth"] | None) -> CLIP:
    """Load one of the authors' checkpoints: DiffCLIP, its baseline, or the vision-only model.

    Args:
        name: a file, a folder with ``checkpoint_best.pt``, or a repository on the Hugging Face hub.
        lambda_init: λ_init, which the file does not contain; ``"depth"`` for DiffCLIP*, None for the baseline.

    Raises:
        UserError: if the checkpoint cannot be found or read, or if λ_init is missing or has no use.
    """
    path = _released_file(name)
    state = read_released(path)
    config = stored_config(path)
    if config is not None and lambda_init is not None:
        raise UserError(f"{name}: lambda_init {lambda_init}: the file's header has it already; leave it out")
    if config is None:
        schedule = "depth" if lambda_init == "depth" else "constant"
        number = None if isinstance(lambda_init, str) else lambda_init
        config = config_of(state, str(path), lambda_init=number, schedule=schedule)
        differential = any(attention_spec(of.attention).differential for of in (config.vision, config.text))
        if lambda_init is not None and not differential:
            raise UserError(
                f"{name}: lambda_init {lambda_init}: both towers have standard attention, without λ; leave it out"
            )
        if differential:
            warnings.warn(
                f"{name}: λ_init = {lambda_init} cannot be checked, the file does not contain it; with a wrong λ_init "
                "the checkpoint loads without error but gives wrong outputs",
                stacklevel=2,
            )
    model = build_clip(config)
    checkpoints.load_into(model, from_released(state, config, str(path)), str(path))
    return model


def local_checkpoint(name: str) -> Path | None:
    """Return the file of a released checkpoint by its path or folder; None for a repository on the hub."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path / RELEASED_FILE
    return path if path.exists() or path.suffix in (".pt", ".pth") else None


def _released_file(name: str) -> Path:
    if (path := local_checkpoint(name)) is not None:
        return path
    try:
        with offline_at_once():
            return Path(hf_hub_download(name, RELEASED_FILE))
    except OFFLINE as error:
        reason = first_line(error)
        raise UserError(
            f"diffclip:{name}: not a local file, and not available from the hub ({reason}); give a path, or "
            "download it on a machine with network access"
        ) from None


@contextlib.contextmanager
def quiet_logging() -> Iterator[None]:
    """Silence open_clip's message that a model was built without pretrained weights."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def load_open_clip(name: str, random_weights: bool, seed: int) -> OpenClip:
    """Load ``NAME`` or ``NAME/TAG`` from open_clip; TAG names the pretrained weights.

    Raises:
        UserError: if open_clip does not know the model, or its weights are not available.
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
    # some weights were trained with QuickGELU; open_clip would only warn and use GELU
    known = {} if random_weights else open_clip.get_pretrained_cfg(base, tag)
    try:
        with torch.random.fork_rng(devices=[]), quiet_logging():
            torch.manual_seed(seed)  # open_clip draws from the global generator; fork_rng restores it
            model: Any = open_clip.create_model(
                base,
                pretrained=None if random_weights else tag,
                force_quick_gelu=bool(known.get("quick_gelu")),
            )
            tokenizer = open_clip.get_tokenizer(base)  # some are downloaded from the hub
    except OFFLINE as error:
        reason = first_line(error)
        if random_weights:
            raise UserError(
                f"open_clip:{name}: its text tower or tokenizer is neither cached nor available ({reason}); "
                "load it once with network access, or use a model with a built-in tokenizer, such as open_clip:ViT-B-32"
            ) from None
        raise UserError(
            f"open_clip:{name}: the weights are not available ({reason}); download them on a machine with network "
            "access, or build the model with --random-weights"
        ) from None
    checkpoints.check_finite(model.state_dict(), f"open_clip:{name}")
    found = of_open_clip(model.visual.preprocess_cfg, f"open_clip:{name}")
    return OpenClip(model, tokenizer, found)
