"""Dual encoders of open_clip."""

import contextlib
import difflib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.data.hub import OFFLINE
from antiphase.errors import UserError, first_line
from antiphase.models import checkpoints
from antiphase.models.card import ModelCard, with_card
from antiphase.models.kinds import attention_kind
from antiphase.models.preprocessing import Preprocessing, of_open_clip
from antiphase.models.schemes.scheme import Scheme, Wanted


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


def _load_open_clip(wanted: Wanted) -> nn.Module:
    model = load_open_clip(wanted.name, wanted.random_weights, wanted.seed)
    card = ModelCard(
        wanted.name,
        wanted.spec,
        attention_kind(model),
        wanted.drawn,
        model.image_shape,
        0,
        preprocessing=model.preprocessing,
        tag="" if wanted.random_weights else wanted.name.partition("/")[2],
    )
    return with_card(model, card)


OPEN_CLIP = Scheme(
    "open_clip:NAME/TAG", "any open_clip model, with the pretrained weights TAG", _load_open_clip, random=True
)
