"""Trainings of ViTs and CLIPs, and models made from them: untrained, or intervened on at test time."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, final

import polars as pl
import torch
from pydantic import ValidationError
from torch import nn

from antiphase.data import load_data, load_pairs
from antiphase.data.sources import source_of
from antiphase.errors import UserError, invalid
from antiphase.models.card import ModelCard, attention_kind, card_of, with_card
from antiphase.models.clip import PRESETS as CLIP_PRESETS
from antiphase.models.clip import ClipConfig, bare_clip, build_clip, find_clip
from antiphase.models.transformer import AttentionSpec, attention_named, attention_of, attention_spec
from antiphase.models.vit import PRESETS as VIT_PRESETS
from antiphase.models.vit import VitConfig, build_vision, configure
from antiphase.models.zoo import load_model
from antiphase.sensitivity import interventions
from antiphase.studies.cells.models import aside, image_content
from antiphase.studies.spec import Cell, Lab
from antiphase.terminal import eps_label
from antiphase.training import make_recipe, train_classifier
from antiphase.training.recipe import ClipRecipe, Recipe, make_clip_recipe

_SIZES = {"diffclip": "b16", "openmoji": "small"}  # of a preset
_AVERAGED = 1000  # training images that A2 is averaged over


@dataclass(frozen=True, kw_only=True)
class Training(Cell):
    """A training, whose folder holds a model."""

    kind = "train"
    data: str
    seed: int = 0
    limit: int | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)

    @property
    @abstractmethod
    def series(self) -> str: ...

    def needed(self) -> tuple[Cell, ...]:
        return (self,)

    def made(self, depth: int, dim: int, schedule: str | None, eps: float = 0.0) -> dict[str, Any]:
        """Return its factors; the schedule of λ is None for standard attention."""
        lam = float(self.sizes.get("lambda_init", 0.8)) if schedule else None
        factors: dict[str, Any] = {"series": self.series, "trained_on": self.data, "depth": depth, "dim": dim}
        factors |= {"lambda_init": lam, "lambda_schedule": schedule, "train_eps": eps}
        return factors | {"training_seed": self.seed}

    def load(self, lab: Lab) -> nn.Module:
        model = load_model(str(lab.store.folder(self)))
        return with_card(model, replace(card_of(model), name=self.label, seed=self.seed))


# behind the data in rows of models whose blocks start normal, as timm's; those of others start uniform
OTHER_START = ", N(0, 0.02)"


@final
@dataclass(frozen=True, kw_only=True)
class TrainVit(Training):
    """A ViT or DiffViT, trained by cross-entropy or adversarially (sensitivity paper, Appendix C.1, D.2).

    Sizes are ``depth``, ``dim`` and so on; the recipe has fields of :class:`~antiphase.training.recipe.Recipe`.
    """

    model: str  # a key of ``antiphase.registry.VITS``, such as "diffvit"
    called: str = aside("")  # its series, if its attention's label is not enough
    image_size: int | None = None  # of images from files, in pixels
    adversary: dict[str, Any] = field(default_factory=dict)  # settings of adversarial training, including ``eps``

    def __post_init__(self) -> None:
        attention_of(self.model)  # refuses a model that does not exist
        if self.adversary and "eps" not in self.adversary:
            raise UserError(f"adversary {self.adversary}: expected a field eps, such as 1/255")

    @property
    def _attention(self) -> AttentionSpec:
        return attention_spec(attention_named(attention_of(self.model), self.sizes.get("variant")))

    @property
    def series(self) -> str:
        return self.called or self._attention.label

    @property
    def label(self) -> str:
        words = [self.series, f"depth {self.depth}"]
        words += [f"λ {self.sizes['lambda_init']:g}"] if "lambda_init" in self.sizes else []
        words += [f"λ by {self._schedule}"] if self._schedule != "constant" else []
        words += [f"trained at ε {eps_label(float(self.adversary['eps']))}"] if self.adversary else []
        words += [OTHER_START.strip(", ")] if self.start != "uniform" else []
        return " ".join([*words, f"seed {self.seed}"])

    @property
    def depth(self) -> int:
        return int(self._size("depth", 1))

    def _size(self, name: str, default: int) -> int:
        return int(self.sizes.get(name, VIT_PRESETS.get(self.pixels, {}).get(name, default)))

    @property
    def start(self) -> str:
        """How its blocks' weights start, see :func:`antiphase.models.vit.initialise`."""
        return str(self.sizes.get("initial_weights", "uniform"))

    @property
    def setting(self) -> str:
        """Its data, and how its weights start unless uniformly: what a comparison of two models keeps."""
        return self.data + OTHER_START * (self.start != "uniform")

    @property
    def pixels(self) -> int:
        return self.image_size or source_of(self.data).image_size

    @property
    def _schedule(self) -> str:
        return str(self.sizes.get("lambda_schedule", "constant"))

    def content(self) -> dict[str, str]:
        return image_content(self.data, "train")

    def factors(self) -> dict[str, Any]:
        schedule = self._schedule if self._attention.differential else None
        return self.made(self.depth, self._size("dim", 192), schedule, float(self.adversary.get("eps", 0.0)))

    def config(self) -> VitConfig:
        """Return its sizes. A folder's classes are counted when it is read; until then the head has one logit."""
        source = source_of(self.data)
        sizes = {"in_channels": source.channels, "num_classes": source.classes or 1, **self.sizes}
        return configure(attention_of(self.model), self.pixels, sizes)

    def facts(self) -> Iterator[tuple[str, Any]]:
        config = self.config()
        count_parameters(config)  # pyright: ignore[reportArgumentType]
        fields = {"model": config, "data": self.data, "data_fingerprint": "", "seed": self.seed}
        try:
            yield "train", Recipe(**fields | self._recipe)
        except ValidationError as error:
            raise invalid(error, f"{self.label}: ") from None

    @property
    def _recipe(self) -> dict[str, Any]:
        return self.recipe | ({"adversarial": self.adversary} if self.adversary else {})

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame | None:
        how: dict[str, Any] = {"image_size": self.image_size, "progress": lab.progress}
        train = load_data(self.data, split="train", limit=self.limit, **how)
        test = load_data(self.data, split="test", **how)  # for the log
        recipe = make_recipe(self.model, train, self.sizes, **{"data": self.data, "seed": self.seed, **self._recipe})
        train_classifier(recipe, train, test, folder, trackers=lab.track, progress=lab.progress)
        return None


@final
@dataclass(frozen=True, kw_only=True)
class TrainClip(Training):
    """A CLIP or one of its differential variants, trained contrastively (DiffCLIP, Section 4.1).

    Sizes are those of ``configure_clip``; the recipe has fields of :class:`~antiphase.training.recipe.ClipRecipe`.
    """

    variant: str  # a key of ``antiphase.registry.CLIPS``, such as "diffclip-depth" (DiffCLIP*)
    preset: str = "diffclip"  # size and recipe of the paper; "openmoji" for a laptop

    @property
    def series(self) -> str:
        return find_clip(self.variant).label

    @property
    def label(self) -> str:
        return f"{self.series} on {self.data} seed {self.seed}"

    def content(self) -> dict[str, str]:
        """Return what its data are, where a file or a folder lists them; shards go by their names."""
        return {"data": _listed(self.data)} if ":" in self.data and not self.data.startswith("shards:") else {}

    def factors(self) -> dict[str, Any]:
        sizes = CLIP_PRESETS[_SIZES.get(self.preset, "b16")]["vision"] | self.sizes.get("vision", {})
        return self.made(int(sizes["depth"]), int(sizes["dim"]), find_clip(self.variant).schedule)

    def make_recipe(self, fingerprint: str) -> ClipRecipe:
        fields = {"seed": self.seed, **self.recipe}
        return make_clip_recipe(self.variant, self.preset, self.data, fingerprint, self.sizes, **fields)

    def facts(self) -> Iterator[tuple[str, Any]]:
        recipe = self.make_recipe("")
        name = self.data.partition(":")[2].partition("/")[0] or self.data
        yield "clip", recipe.model_copy(update={"data": name})
        yield "clip", {"parameters": count_parameters(recipe.model)}  # pyright: ignore[reportArgumentType]

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame | None:
        """Train, resuming from the state of a killed run; the lab's batch size is that of a GradCache chunk."""
        from antiphase.training.contrastive import train_clip

        pairs = load_pairs(self.data, split="train", limit=self.limit, progress=lab.progress)
        recipe = self.make_recipe(pairs.fingerprint())
        train_clip(recipe, pairs, folder, part=lab.batch_size, trackers=lab.track, progress=lab.progress)
        return None


@lru_cache
def _listed(source: str) -> str:
    return load_pairs(source, split="train", progress=False).fingerprint()[:16]


@lru_cache
def count_parameters(config: VitConfig | ClipConfig) -> int:
    """Return the number of parameters of a model, built without drawing weights: its shapes are checked."""
    with torch.device("meta"):
        model = bare_clip(config) if isinstance(config, ClipConfig) else build_vision(config)
    return sum(weights.numel() for weights in model.parameters())


@final
@dataclass(frozen=True, kw_only=True)
class Untrained:
    """A CLIP with the weights that its training starts from; the training is not run for it."""

    of: TrainClip

    @property
    def label(self) -> str:
        return f"{self.of.label}, untrained"

    def load(self, lab: Lab) -> nn.Module:
        recipe = self.of.make_recipe("")
        model = build_clip(recipe.model, recipe.seed)
        kind = attention_kind(model)
        return with_card(model, ModelCard(self.label, self.label, kind, recipe.seed, model.image_shape, 0))

    def factors(self) -> dict[str, Any]:
        return self.of.factors() | {"series": f"{self.of.series}, untrained"}

    def needed(self) -> tuple[Cell, ...]:
        return ()


@final
@dataclass(frozen=True, kw_only=True)
class Variant:
    """A trained model under a name of its own, with or without an intervention on its attention at test time."""

    model: TrainVit
    series: str = aside("")
    lam: float = 1.0  # factor of λ
    negative: Literal["own", "mean", "uniform"] = "own"  # A2: as trained, its mean, or uniform
    stopped: tuple[interventions.Branch, ...] = ()  # maps without a gradient for the attacker; verdicts are as trained

    def __post_init__(self) -> None:
        if self.negative not in ("own", "mean", "uniform"):
            raise UserError(f"negative {self.negative!r}: expected own, mean or uniform")
        if self.negative != "own" and self.stopped:
            raise UserError(f"negative {self.negative!r} with a stopped gradient: expected one of the two")

    @property
    def label(self) -> str:
        return f"{self.series or self.model.series} seed {self.model.seed}"

    def load(self, lab: Lab) -> nn.Module:
        model = self.model.load(lab)
        if self.lam != 1.0:
            interventions.scale_lambda(model, self.lam)
        if self.negative != "own":
            images = lab.images(self.model.data, "train", _AVERAGED, image_size=self.model.pixels)
            means = interventions.mean_negatives(model, (batch for _, batch, _ in images.batches(256)))
            replacements = means if self.negative == "mean" else interventions.uniform_like(means)
            interventions.replace_negative(model, replacements)
        if self.stopped:
            interventions.stop_gradient(model, self.stopped)
        return with_card(model, replace(card_of(model), name=self.label))

    def factors(self) -> dict[str, Any]:
        return self.model.factors() | {"series": self.series or self.model.series}

    def needed(self) -> tuple[Cell, ...]:
        return (self.model,)
