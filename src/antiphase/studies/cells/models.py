"""The models of studies, and the measurement of one of them on one source of data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, final, get_args, runtime_checkable

import polars as pl
from torch import nn

from antiphase.commands import lineup, loading
from antiphase.data import ImageSet, load_data
from antiphase.errors import UserError
from antiphase.models import card as model_card
from antiphase.models import checkpoints
from antiphase.models.class_names import in_model_order
from antiphase.models.schemes import diffclip, python_code
from antiphase.models.zeroshot import bound
from antiphase.models.zoo import load_model
from antiphase.studies.spec import Cell, Lab
from antiphase.studies.store import file_digest

FACTORS: dict[str, Any] = {"series": pl.String, "trained_on": pl.String, "depth": pl.Int64, "dim": pl.Int64}
FACTORS |= {"lambda_init": pl.Float64, "train_eps": pl.Float64, "lambda_schedule": pl.String, "training_seed": pl.Int64}
"""Columns that every row of a measurement has in addition to what was measured: what sets its model apart."""


def aside(default: Any) -> Any:
    """Return a dataclass field that is not part of a cell's identity."""
    return field(default=default, metadata={"identity": False})


@runtime_checkable
class Model(Protocol):
    """A model that cells measure: its ``FACTORS``, and the training that it needs, if there is one."""

    @property
    def label(self) -> str: ...
    def load(self, lab: Lab) -> nn.Module: ...
    def factors(self) -> dict[str, Any]: ...
    def needed(self) -> tuple[Cell, ...]: ...


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A model that is not trained here: its series, seed and other factors."""

    series: str = aside("")
    seed: int = 0
    extra: tuple[tuple[str, Any], ...] = aside(())

    def factors(self) -> dict[str, Any]:
        return {"series": self.series, "training_seed": self.seed, **dict(self.extra)}

    def needed(self) -> tuple[Cell, ...]:
        return ()


@final
@dataclass(frozen=True, kw_only=True)
class Given(_Made):
    """A model that exists already; see :func:`given`."""

    spec: str
    content: str = ""
    note: str = aside("")
    random_weights: bool = False

    @property
    def label(self) -> str:
        return self.spec

    def load(self, lab: Lab) -> nn.Module:
        return loading.with_kind_found(load_model(self.spec, random_weights=self.random_weights))


@final
@dataclass(frozen=True, kw_only=True)
class Own(_Made):
    """A model of your own, from any function that returns one. Its cells run again when the function's source changes.

    If ``attention`` (``"softmax"``, ``"differential"``, ``"none"`` or ``"unknown"``) is not given, it is detected.
    """

    build: Callable[[int], nn.Module]
    image_shape: tuple[int, int, int]
    num_classes: int
    attention: model_card.AttentionKind | None = None

    def __post_init__(self) -> None:
        kinds = get_args(model_card.AttentionKind)
        if self.attention not in (None, *kinds):
            raise UserError(f"attention {self.attention!r}: expected one of {', '.join(kinds)}")

    @property
    def label(self) -> str:
        return f"{self.series} seed {self.seed}"

    def load(self, lab: Lab) -> nn.Module:
        model = self.build(self.seed)
        kind = self.attention or model_card.attention_kind(model)
        model_card.with_card(
            model, model_card.ModelCard(self.label, self.label, kind, self.seed, self.image_shape, self.num_classes)
        )
        return model if self.attention else loading.with_kind_found(model)


def given(spec: str, series: str, seed: int = 0, note: str = "", **factors: Any) -> Given:
    """Return a model that is not trained here; ``factors`` are values of ``FACTORS``, such as ``depth``."""
    told = {"series": series, "seed": seed, "note": note, "extra": tuple(sorted(factors.items()))}
    return Given(spec=spec, content=_content(spec), **told)


def _content(spec: str) -> str:
    """Return a digest of the files that a specification names, which may change; empty for a name that lasts."""
    kind, _, name = spec.partition(":")
    if kind == "python":
        return python_code.code_content(name)
    file = name.partition("@")[2]
    places = {"diffclip": name.partition("#")[0], "hf": name, "timm": file, "torchvision": file}
    places["open_clip"] = file or name
    if not (named := places.get(kind, spec)):
        return ""
    place = Path(named).expanduser()
    names = (checkpoints.RECIPE_FILE, "config.json", checkpoints.WEIGHTS_FILE, diffclip.RELEASED_FILE)
    files = [path for path in (place, *(place / name for name in names)) if path.is_file()]
    return file_digest(*files)[:16] if files else ""


@lru_cache
def image_content(source: str, split: str) -> dict[str, str]:
    """Return what a cell's ``content`` says of its images: a fingerprint of those in a path, which may change."""
    return {"data": load_data(source, split=split, progress=False).fingerprint()[:16]} if ":" in source else {}


@dataclass(frozen=True, kw_only=True)
class Measurement(Cell):
    """A measurement of one model on one source of data."""

    model: Model
    data: str
    split: str = "test"

    @property
    def label(self) -> str:
        return f"{self.table} of {self.model.label}"

    def needs(self) -> tuple[Cell, ...]:
        return self.model.needed()

    def content(self) -> dict[str, str]:
        return image_content(self.data, self.split)

    def factors(self) -> dict[str, Any]:
        return self.model.factors() | {"data": self.setting}

    @property
    def setting(self) -> str:
        """The data as rows name them, with how the model's weights started if that is not the usual way."""
        return getattr(self.model, "setting", self.data)

    def facts(self) -> Iterator[tuple[str, Any]]:
        return facts_of_given(self.model)

    def options(self) -> Any:
        """Return the options of the command that measures the same, if there is one."""

    def running(self, lab: Lab) -> Any:
        return self.options().model_copy(update={"batch_size": lab.batch_size, "quiet": not lab.progress})

    def ready(
        self, lab: Lab, limit: int | None, image_size: int | None = None, prompt: str | None = None
    ) -> tuple[nn.Module, ImageSet]:
        """Return a classifier on the lab's device, and its images with the preprocessing of the model."""
        loaded = lab.model(self.model)
        size, channels = model_card.size_for([loaded])
        fit: dict[str, Any] = {"image_size": image_size or size, "channels": channels}
        if self.data == "random":  # has no classes of its own
            fit["num_classes"] = model_card.card_of(loaded).num_classes
        images = lab.images(self.data, self.split, limit, **fit)
        model_card.settle_size([loaded], images.image_shape)
        images = model_card.with_own_pixels(images, [loaded])
        classifier = bound(loaded, images, prompt)
        images, _ = in_model_order([model_card.card_of(classifier)], images)
        lineup.check_fit(model_card.card_of(classifier), images)
        return classifier, images


def facts_of_given(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a measured model is, where it is not trained here."""
    if isinstance(model, Given):
        yield "given", {"spec": model.spec, "note": f"{model.spec}: {model.note}" if model.note else ""}
