"""Training a CLIP or one of its differential variants. The trainer, seconds to import, is imported where it runs."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import polars as pl
from torch import nn
from webdataset.shardlists import expand_urls

from antiphase.data import load_pairs
from antiphase.models.card import card_of, with_card
from antiphase.models.clip_factories import PRESETS, find_clip
from antiphase.models.zoo import load_model
from antiphase.studies.cells.models import transformer_work
from antiphase.studies.lab import Lab
from antiphase.studies.spec import Cell

if TYPE_CHECKING:
    from antiphase.training.recipe import ClipRecipe

# for the plan alone: size and epochs of a preset; training pairs, of shards 7,000 each
_PRESETS = {"diffclip": ("b16", 40), "openmoji": ("small", 12)}
_PAIRS = {
    "openmoji": 3_400,
    "noto-emoji": 3_400,
    "emoji-objects": 6_000,
    "coco": 82_783,
    "coco-karpathy": 113_287,
    "flickr30k": 29_000,
}
_SHARD = 7_000


@final
@dataclass(frozen=True, kw_only=True)
class TrainClip(Cell):
    """A CLIP, trained contrastively (DiffCLIP, Section 4.1).

    Attributes:
        variant: a key of ``antiphase.registry.CLIPS``, such as ``"diffclip-depth"`` (DiffCLIP*).
        data: source of pairs with a train split.
        seed: random seed of the weights and the order of samples.
        preset: ``"diffclip"`` (size and recipe of the paper) or ``"openmoji"`` (for a laptop).
        limit: at most this many pairs.
        sizes: model settings that differ from the preset, see ``configure_clip``.
        recipe: recipe settings that differ, see :class:`~antiphase.training.recipe.ClipRecipe`.
    """

    version: ClassVar[int] = 1
    variant: str
    data: str
    seed: int = 0
    preset: str = "diffclip"
    limit: int | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return "train"

    @property
    def series(self) -> str:
        return find_clip(self.variant).label

    @property
    def label(self) -> str:
        return f"{self.series} on {self.data} seed {self.seed}"

    def needs(self) -> tuple[Cell, ...]:
        return ()

    def needed(self) -> tuple[Cell, ...]:
        return (self,)

    def content(self) -> dict[str, str]:
        """Return what its data are, where a file or a folder lists them; shards go by their names."""
        listed = ":" in self.data and not self.data.startswith("shards:")
        return {"data": _listed(self.data)} if listed else {}

    def factors(self) -> dict[str, Any]:
        schedule = find_clip(self.variant).schedule
        return {
            "series": self.series,
            "trained_on": self.data,
            "depth": self._size("vision", "depth"),
            "lambda_init": float(self.sizes.get("lambda_init", 0.8)) if schedule else None,
            "lambda_schedule": schedule,
            "train_eps": 0.0,
            "training_seed": self.seed,
        }

    def _size(self, tower: str, name: str) -> int:
        preset, _ = _PRESETS.get(self.preset, ("b16", 0))
        return int(self.sizes.get(tower, {}).get(name, PRESETS[preset][tower][name]))

    def forward_work(self) -> float:
        return transformer_work(
            *(self._size("vision", name) for name in ("image_size", "patch_size", "dim", "depth"))
        )

    def work(self) -> float:
        """Return the operations of the training: three forward passes' worth for each image and its caption."""
        shards = self.data.startswith("shards:")
        pairs = _shard_count(self.data) * _SHARD if shards else _PAIRS.get(self.data, 100_000)
        caption = 16 * 24.0 * self._size("text", "depth") * self._size("text", "dim") ** 2  # of 16 tokens
        epochs = int(self.recipe.get("epochs", _PRESETS.get(self.preset, ("", 1))[1]))
        return 3.0 * (self.forward_work() + caption) * min(self.limit or pairs, pairs) * epochs

    def make_recipe(self, fingerprint: str) -> "ClipRecipe":
        """Return the recipe of the training on pairs of this fingerprint.

        Raises:
            UserError: A variant, preset or setting is unknown.
        """
        from antiphase.training.recipe import make_clip_recipe

        fields = {"seed": self.seed, **self.recipe}
        return make_clip_recipe(self.variant, self.preset, self.data, fingerprint, self.sizes, **fields)

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame | None:
        """Train, resuming from the state of a killed run; the lab's batch size is that of a GradCache chunk."""
        from antiphase.training.contrastive import train_clip

        pairs = load_pairs(self.data, split="train", limit=self.limit, progress=lab.progress)
        train_clip(
            self.make_recipe(pairs.fingerprint()),
            pairs,
            folder,
            part=lab.batch_size,
            trackers=lab.track,
            progress=lab.progress,
        )
        return None

    def load(self, lab: Lab) -> nn.Module:
        model = load_model(str(lab.store.folder(self)))
        return with_card(model, replace(card_of(model), name=self.label, seed=self.seed))


@lru_cache
def _listed(source: str) -> str:
    return load_pairs(source, split="train", progress=False).fingerprint()[:16]


def _shard_count(source: str) -> int:
    return sum(len(expand_urls(pattern)) for pattern in source.partition(":")[2].split("::"))
