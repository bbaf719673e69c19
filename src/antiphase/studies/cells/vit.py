"""Training a ViT or a DiffViT."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, final

import polars as pl
from torch import nn

from antiphase.budgets import eps_label
from antiphase.data import load_data
from antiphase.data.sources import source_of
from antiphase.errors import UserError
from antiphase.models.card import card_of, with_card
from antiphase.models.transformer import AttentionSpec, attention_of, attention_spec
from antiphase.models.vit import PRESETS
from antiphase.models.zoo import load_model
from antiphase.studies.cells.models import image_content, transformer_work
from antiphase.studies.lab import Lab
from antiphase.studies.spec import Cell
from antiphase.training import make_recipe, train_classifier

_TRAIN_IMAGES = 100_000  # assumed by the plan for data whose number only reading tells


@final
@dataclass(frozen=True, kw_only=True)
class TrainVit(Cell):
    """A ViT or DiffViT, trained by cross-entropy or adversarially (robustness paper, Appendix C.1, D.2).

    Attributes:
        model: a key of ``antiphase.registry.VITS``, such as ``"diffvit"``.
        data: source with a train split.
        seed: random seed of the weights and the order of samples.
        limit: at most this many training images.
        image_size: size of images from files, in pixels.
        sizes: model settings that differ from the preset: ``depth``, ``dim``, ``lambda_init``, ….
        recipe: settings that differ from :class:`~antiphase.training.recipe.Recipe`: ``epochs``, ``schedule``, ….
        adversary: settings of adversarial training, including ``eps``; empty for natural training.

    Raises:
        UserError: The model is unknown, or the adversary has no ε.
    """

    version: ClassVar[int] = 1
    model: str
    data: str
    seed: int = 0
    limit: int | None = None
    image_size: int | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    adversary: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        attention_of(self.model)  # refuses a model that does not exist
        if self.adversary and "eps" not in self.adversary:
            raise UserError(f"adversary {self.adversary}: expected a field eps, such as 1/255")

    @property
    def _attention(self) -> AttentionSpec:
        return attention_spec(attention_of(self.model))

    @property
    def table(self) -> str:
        return "train"

    @property
    def series(self) -> str:
        return self._attention.label

    @property
    def label(self) -> str:
        words = [self.series, f"depth {self.depth}"]
        words += [f"λ {self.sizes['lambda_init']:g}"] if "lambda_init" in self.sizes else []
        words += [f"λ by {self._schedule}"] if self._schedule != "constant" else []
        words += [f"trained at ε {eps_label(float(self.adversary.get('eps', 0)))}"] if self.adversary else []
        return " ".join([*words, f"seed {self.seed}"])

    @property
    def depth(self) -> int:
        return int(self._size("depth", 1))

    def _size(self, name: str, default: int) -> int:
        return int(self.sizes.get(name, PRESETS.get(self.pixels, {}).get(name, default)))

    @property
    def pixels(self) -> int:
        """Height and width of its images."""
        return self.image_size or source_of(self.data).image_size

    @property
    def _schedule(self) -> str:
        return str(self.sizes.get("lambda_schedule", "constant"))

    def needs(self) -> tuple[Cell, ...]:
        return ()

    def needed(self) -> tuple[Cell, ...]:
        return (self,)

    def content(self) -> dict[str, str]:
        return image_content(self.data, "train")

    def factors(self) -> dict[str, Any]:
        return {
            "series": self.series,
            "trained_on": self.data,
            "depth": self.depth,
            "lambda_init": float(self.sizes.get("lambda_init", 0.8))
            if self._attention.differential
            else None,
            "lambda_schedule": self._schedule if self._attention.differential else None,
            "train_eps": float(self.adversary.get("eps", 0.0)),
            "training_seed": self.seed,
        }

    def forward_work(self) -> float:
        return transformer_work(self.pixels, self._size("patch_size", 16), self._size("dim", 768), self.depth)

    def work(self) -> float:
        """Return the operations of the training: three forward passes' worth for each image and step."""
        images = min(self.limit or 10**9, source_of(self.data).train_images or _TRAIN_IMAGES)
        inner = {"pgd": int(self.adversary.get("steps", 3)), "fast": 1, "free": 0}
        passes = 1 + (inner.get(self.adversary.get("variant", "pgd"), 3) if self.adversary else 0)
        return 3.0 * self.forward_work() * images * int(self.recipe.get("epochs", 100)) * passes

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame | None:
        """Train, resuming from the state of a killed run."""
        train = load_data(
            self.data, split="train", image_size=self.image_size, limit=self.limit, progress=lab.progress
        )
        held_out = load_data(self.data, split="test", image_size=self.image_size, progress=lab.progress)
        fields = dict(self.recipe) | ({"adversarial": self.adversary} if self.adversary else {})
        recipe = make_recipe(self.model, train, self.sizes, data=self.data, seed=self.seed, **fields)
        train_classifier(recipe, train, held_out, folder, trackers=lab.track, progress=lab.progress)
        return None

    def load(self, lab: Lab) -> nn.Module:
        model = load_model(str(lab.store.folder(self)))
        card = card_of(model)
        return with_card(model, replace(card, name=self.label, seed=self.seed))
