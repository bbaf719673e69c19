"""Dual encoders of open_clip."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.data.hub import OFFLINE
from antiphase.errors import UserError, first_line
from antiphase.models.checkpoints import check_finite
from antiphase.models.preprocessing import Images, Preprocessing, of_open_clip
from antiphase.models.schemes.scheme import Scheme, Wanted, check_known, drawn_from


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
        self.square, self.image_shape = preprocessing.square, preprocessing.image_shape

    @property
    def logit_scale(self) -> Tensor:
        """Natural logarithm of the factor on the cosines."""
        return self.model.logit_scale

    def encode_image(self, images: Images, normalize: bool = False) -> Float[Tensor, "batch embed"]:
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


def _load(wanted: Wanted) -> nn.Module:
    import open_clip  # seconds to import

    spec, drawn = f"open_clip:{wanted.name}", wanted.random_weights
    base, _, tag = wanted.name.partition("/")
    check_known(base, open_clip.list_models(), "open_clip has no model", "open_clip.list_models() lists them")
    tags = open_clip.list_pretrained_tags_by_model(base)
    if not drawn and tag not in tags:
        raise UserError(
            f"{spec}: expected open_clip:{base}/TAG with TAG one of {', '.join(tags) or 'none'}, or --random-weights"
        )
    # some weights were trained with QuickGELU; open_clip would only warn and use GELU
    quick = not drawn and bool(open_clip.get_pretrained_cfg(base, tag).get("quick_gelu"))
    try:
        with drawn_from(wanted.seed), quiet_logging():
            model: Any = open_clip.create_model(
                base, pretrained=None if drawn else tag, force_quick_gelu=quick
            )
            tokenizer = open_clip.get_tokenizer(base)  # some are downloaded from the hub
    except OFFLINE as error:
        what = "its text tower or tokenizer is neither cached nor" if drawn else "the weights are not"
        fix = "use one such as open_clip:ViT-B-32" if drawn else "build the model with --random-weights"
        reason = f"{what} available ({first_line(error)}); load it once with network access, or {fix}"
        raise UserError(f"{spec}: {reason}") from None
    check_finite(model.state_dict(), spec)
    preprocessing = of_open_clip(model.visual.preprocess_cfg, spec)
    dual = OpenClip(model, tokenizer, preprocessing)
    facts = {"preprocessing": preprocessing, "tag": "" if drawn else tag}
    return wanted.loaded(dual, wanted.name, dual.image_shape, **facts)


OPEN_CLIP = Scheme(
    "open_clip:NAME/TAG", "any open_clip model, with the pretrained weights TAG", _load, random=True
)
