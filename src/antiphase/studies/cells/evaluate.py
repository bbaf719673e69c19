"""Measurements other than attacks: a task of the evaluation suite, and relevance maps of a CLIP for texts."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import polars as pl
from jaxtyping import Bool

from antiphase import processes, terminal
from antiphase.commands.evaluate.run import left_out, load_source, protocol_with, warm
from antiphase.data import PairSet, load_pairs
from antiphase.data.emoji import on_white
from antiphase.data.images import model_images
from antiphase.data.sources import EMOJI_SETS
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.mmvp import MmvpSet
from antiphase.evaluation.tasks import find_task
from antiphase.models.image_towers import image_tower
from antiphase.models.zeroshot import as_dual_encoder
from antiphase.sensitivity.relevance import METHODS, NoSecondMap, attention_map, enlarge, localise
from antiphase.studies.cells.models import Measurement
from antiphase.studies.spec import Lab

FEATURES_FOLDER = "features"  # below the store's root: what several tasks of a model need of a data set
_BATCH_SIZE = 256
_PROJECTED = "features are taken after the projection: this model gives no access to those before it"


@final
@dataclass(frozen=True, kw_only=True)
class Evaluate(Measurement):
    """Evaluate one task of :data:`~antiphase.registry.TASKS`, with one row per image, caption, episode or pair."""

    kind = "evaluate"
    task: str
    protocol: dict[str, Any] = field(default_factory=dict)  # what differs from ``antiphase evaluate``
    limit: int | None = None
    train_limit: int | None = None

    @property
    def label(self) -> str:
        return f"{self.task} on {self.data} of {self.model.label}"

    def content(self) -> dict[str, str]:
        if ":" not in self.data:
            return {}
        source = load_source(self.data, self.split, None, None, find_task(self.task).learns, False, False)
        parts = (source.test, source.train, source.validation)
        return {"data": " ".join(part.fingerprint()[:16] for part in parts if part is not None)}

    def factors(self) -> dict[str, Any]:
        return self.model.factors() | {"task": self.task, "data": self.data}

    def facts(self) -> Iterator[tuple[str, Any]]:
        protocol = protocol_with(self.protocol)
        yield from super().facts()
        yield self.task, {name: getattr(protocol, name) for name in find_task(self.task).fields} | {"data": self.data}
        if self.task == "zero-shot" and not protocol.templates:
            yield self.task, {"templates": "the data's own, else 80 and 7"}

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        """Measure; features that are in the store already are read."""
        task, protocol = find_task(self.task), protocol_with(self.protocol)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            source = load_source(self.data, self.split, self.limit, self.train_limit, task.learns, False, lab.progress)
        lab.warnings += [str(one.message) for one in caught if one.category is UserWarning] + left_out(source)
        if self.task not in source.tasks():
            able = ", ".join(source.tasks()) or "another set"
            raise UserError(f"{self.task} on {self.data}: not possible with these data; expected one of {able}")
        if why := task.too_small(source, protocol):
            raise UserError(why)
        model = lab.model(self.model)
        if task.learns and protocol.space == "raw" and not image_tower(model).raw:
            lab.warnings.append(_PROJECTED)
        how = {"batch_size": lab.batch_size or _BATCH_SIZE, "progress": lab.progress, "process": lab.process}
        store = FeatureStore(lab.store.root / FEATURES_FOLDER, **how)
        warm(task, model, source, protocol, store)  # each process its part
        alone = replace(store, process=processes.Process(), progress=lab.progress and lab.process.first)
        rows = task.measure(model, source, protocol, alone)
        if isinstance(source.test, MmvpSet):
            names = dict(enumerate(source.test.pattern_names))
            rows = rows.with_columns(pattern=pl.col("group").replace_strict(names, return_dtype=pl.String))
        return rows.with_columns(task=pl.lit(self.task), data=pl.lit(self.data))


COMBINED, POSITIVE, NEGATIVE = "relevance", "relevance-positive", "relevance-negative"
ROW_SCHEMA: dict[str, Any] = {"sample": pl.Int64, "text": pl.String, "kind": pl.String}
ROW_SCHEMA |= {"height": pl.Int64, "width": pl.Int64, "relevance": pl.List(pl.Float32)}
ROW_SCHEMA |= {"pointing_game": pl.Boolean, "average_precision": pl.Float64, "object_share": pl.Float64}
ROW_SCHEMA |= {"image": pl.Binary, "image_height": pl.Int64, "image_width": pl.Int64, "prefers_own": pl.Boolean}
"""Columns of the rows: ``relevance`` row by row on ``height`` × ``width`` patches, ``image`` as RGB bytes.

``object_share`` of the image is the object's: what a map of one value has as average precision. ``prefers_own`` says
whether the map's mean is larger on the object that is asked for than on the image's other objects.
"""

_SHOWN = 96  # pixels a side of the image that is kept, at most


@final
@dataclass(frozen=True, kw_only=True)
class Relevance(Measurement):
    """Compute relevance maps of a dual encoder's image tower, with one row per image, text and kind of map.

    Maps are compared with the object by measures without a threshold: the pointing game and mask average precision. The
    object is the one that the text names, where the source has objects; in other drawings on white it is everything
    that is not white, including holes. Masks are cropped to the centre square that models see.
    """

    kind = "relevance"
    limit: int
    ask: Literal["caption", "class", "objects"] = "caption"  # the first one, or names of these
    texts: tuple[str, ...] = ()  # for every image instead; with objects, for images that show all
    prompt: str = "{}"  # template around a text
    kinds: tuple[str, ...] = (COMBINED, POSITIVE, NEGATIVE)  # of METHODS; A1, A2: if differential

    def shipped(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Figures show the maps of the first training seed alone."""
        return rows.drop("relevance", "image", strict=False) if self.model.factors()["training_seed"] else rows

    @property
    def label(self) -> str:
        query = f" for {' and '.join(self.texts)}" if self.texts else ""
        return f"relevance on {self.data}{query} of {self.model.label}"

    def content(self) -> dict[str, str]:
        return {"data": self._pairs(False).fingerprint()[:16]} if ":" in self.data else {}

    def factors(self) -> dict[str, Any]:
        return self.model.factors() | {"data": self.data, "asked": ", ".join(self.texts) or None}

    def facts(self) -> Iterator[tuple[str, Any]]:
        yield from super().facts()
        # of an image: its two largest objects, or one
        queries = len(self.texts) or (2 if self.ask == "objects" else 1)
        yield "look", {"data": self.data, "images": self.limit, "queries": queries, "texts": self.texts}

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        if odd := [kind for kind in self.kinds if kind not in METHODS]:
            raise UserError(f"kind {odd[0]!r}: expected some of {', '.join(METHODS)}")
        if "{}" not in self.prompt:
            raise UserError(f"prompt {self.prompt!r}: expected {{}} in the place of the text")
        model, pairs = lab.model(self.model), self._pairs(lab.progress)
        square, kinds = as_dual_encoder(model).square, self.kinds
        try:
            attention_map(model, model_images(pairs, [0], square).to(lab.device), "negative")
        except NoSecondMap:  # standard attention has only one map
            kinds = tuple(kind for kind in kinds if kind not in (POSITIVE, NEGATIVE))
        rows: list[dict[str, Any]] = []
        with terminal.progress_bar(self.label, len(pairs), lab.progress and lab.process.first) as advance:
            for position in range(len(pairs)):
                image = model_images(pairs, [position], square).to(lab.device)
                texts = self.texts or self._own_texts(pairs, position)
                prompts = [self.prompt.replace("{}", text) for text in texts]
                about, masks = _shown(pairs, position, square)
                for kind in kinds:
                    maps = METHODS[kind].maps(model, image, prompts, -1)[:, 0].float().cpu().numpy()
                    if not np.isfinite(maps).all():
                        raise UserError(f"{self.label}: a map is not finite; expected a trained model")
                    for text, values in zip(texts, maps, strict=True):
                        grid = dict(zip(("height", "width"), values.shape, strict=True))
                        row = about | grid | _scores(values, masks, text) | {"text": text, "kind": kind}
                        rows.append(row | {"relevance": values.ravel().tolist()})
                advance(1)
        return pl.DataFrame(rows, ROW_SCHEMA, orient="row")

    def _pairs(self, progress: bool) -> PairSet:
        pairs = load_pairs(self.data, split=self.split, progress=progress)
        if not isinstance(pairs, PairSet):
            raise UserError(f"{self.data}: expected pairs with random access; shards are for training")
        if {"class": pairs.labels, "objects": pairs.objects}.get(self.ask, pairs) is None:
            raise UserError(f"ask {self.ask!r} on {self.data}: its images have none; expected ask 'caption'")
        if self.texts and pairs.objects is not None:
            shown = [{one.name for one in objects} for objects in pairs.objects]
            if not (rows := [row for row, names in enumerate(shown) if names.issuperset(self.texts)]):
                raise UserError(f"texts on {self.data}: no image shows {' and '.join(self.texts)}")
            pairs = pairs.take(rows)
        return pairs.subset(self.limit, 0)

    def _own_texts(self, pairs: PairSet, position: int) -> tuple[str, ...]:
        match self.ask:
            case "objects" if pairs.objects is not None:
                return tuple(one.name for one in pairs.objects[position])
            case "class" if pairs.labels is not None:
                return (pairs.class_names[int(pairs.labels[position])],)
            case _:
                return (pairs.captions[position][0],)


Masks = dict[str | None, Bool[np.ndarray, "side side"]]


def _shown(pairs: PairSet, position: int, square: Any) -> tuple[dict[str, Any], Masks]:
    """Return the fields of an image that is kept, and its masks by name but for empty ones; a drawing's has none."""
    pixels = pairs.pixels(position)
    image = square.at(min(square.size, _SHOWN))(pixels).permute(1, 2, 0).contiguous().numpy()
    about = {"sample": int(pairs.ids[position]), "image": image.tobytes()}
    about |= {"image_height": len(image), "image_width": image.shape[1]}
    masks: Masks = {None: on_white(pixels)} if pairs.objects is None and pairs.name in EMOJI_SETS else {}
    for one in () if pairs.objects is None else pairs.objects[position]:
        mask = one.mask()
        side = min(mask.shape)  # of the centre that models see
        top, left = ((length - side) // 2 for length in mask.shape)
        masks[one.name] = mask[top : top + side, left : left + side]
    return about, {name: mask for name, mask in masks.items() if mask.any()}


def _scores(values: np.ndarray, masks: Masks, text: str) -> dict[str, Any]:
    if (mask := masks.get(text, masks.get(None))) is None:
        return {}
    hit, precision = localise(values, mask)
    scores = {"pointing_game": hit, "average_precision": precision, "object_share": float(mask.mean())}
    others = np.any([other & ~mask for name, other in masks.items() if name != text], axis=0)
    if None not in masks and others.any():
        fine = enlarge(values, *mask.shape)
        scores["prefers_own"] = bool(fine[mask].mean() > fine[others].mean())
    return scores
