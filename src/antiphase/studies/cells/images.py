"""Measurements of one classifier on images: accuracy, attacks, margins, radii and sensitivity."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import polars as pl
import torch
import torch.nn.functional as F

from antiphase.attacks.catalogue import add_attack, find_spec, settings_of
from antiphase.attacks.engine.oracle import Oracle, logits_of
from antiphase.attacks.pgd import pgd
from antiphase.attacks.result import AttackResult
from antiphase.attacks.sweep import Nesting
from antiphase.attacks.threat import Threat
from antiphase.commands.audit import AuditOptions
from antiphase.commands.audit.run import AGAIN, measure
from antiphase.commands.certify.run import RADIUS
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import sense
from antiphase.sensitivity.interventions import MarginGradients, Margins, margins_of
from antiphase.sensitivity.smoothing import smooth
from antiphase.studies.cells.models import Measurement, Model
from antiphase.studies.cells.training import TrainVit
from antiphase.studies.spec import Cell, Lab
from antiphase.studies.store import WORK_FOLDER


@final
@dataclass(frozen=True, kw_only=True)
class Accuracy(Measurement):
    """Predict in float32, with one row per image."""

    kind = "accuracy"
    limit: int | None = None

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        model, data = self.ready(lab, self.limit)
        oracle = Oracle(model)
        predictions = [oracle.verdict(images.to(oracle.device)).argmax(1).cpu() for _, images, _ in data.batches(256)]
        columns = {"sample": data.ids, "label": data.labels, "prediction": torch.cat(predictions)}
        return pl.DataFrame({name: values.numpy() for name, values in columns.items()})


@final
@dataclass(frozen=True, kw_only=True)
class Attack(Measurement):
    """One attack on one model over several ε, with one row per ε and image.

    The attack is a name of the catalogue, or a function of your own with the signature of
    :func:`antiphase.attacks.pgd`; when its text changes, the cell is another.
    """

    kind = "attack"
    eps: tuple[float, ...]  # in units of the [0, 1] pixel
    limit: int | None = None
    image_size: int | None = None
    attack: str | Callable[..., AttackResult] = "pgd"
    settings: dict[str, Any] = field(default_factory=dict)
    norm: str = "linf"
    nested: Nesting = "up"  # how samples carry over between ε, see :func:`antiphase.attacks.sweep`
    seed: int = 0
    precision: str = "float32"
    prompt: str | None = None  # template of a dual encoder's class prompts

    @property
    def label(self) -> str:
        settings = " ".join(f"{name} {value}" for name, value in self.settings.items())
        return f"{self.name} {settings} on {self.model.label}".replace("  ", " ")

    @property
    def name(self) -> str:
        return self.attack if isinstance(self.attack, str) else self.attack.__name__

    def shipped(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Distances and new classes are read only where an attack looks for the nearest adversarial image."""
        ensemble = self.options().ensemble
        several = len(ensemble.stages) > 1  # then it matters which one broke an image
        unread = () if ensemble.minimal else ("distance", "model", "prediction", *([] if several else ["felled_by"]))
        return rows.drop(unread, strict=False)

    def content(self) -> dict[str, str]:
        """Return what its data are, where they lie in a folder, and what its settings have come to mean."""
        means: dict[str, str] = {}
        if self.precision != "float32":
            means["precision"] = self.precision + AGAIN
        if isinstance(self.attack, str):  # earlier rows were made without what the attack chooses itself
            chosen = find_spec(self.attack).implied(self.settings).keys() - self.settings.keys()
            means |= dict.fromkeys(sorted(chosen), "chosen")
        return means | super().content()

    def factors(self) -> dict[str, Any]:
        # the settings that studies vary
        settings = {name: self.settings.get(name) for name in ("restarts", "width", "steps")}
        return self.model.factors() | settings | {"data": self.setting}

    def options(self) -> AuditOptions:
        if not isinstance(self.attack, str):
            add_attack(self.name, self.attack)
        fields = {name: getattr(self, name) for name in ("eps", "norm", "settings", "nested", "seed", "precision")}
        return AuditOptions(model=("study",), attack=self.name, **fields)

    def facts(self) -> Iterator[tuple[str, Any]]:
        options = self.options()
        yield from super().facts()
        about = {"data": self.data, "images": self.limit, "prompt": self.prompt, "name": options.attack}
        yield "attack", about | options.model_dump(include={"norm", "nested", "seed", "eps"})
        for stage in options.ensemble.stages:
            yield "attack", {"stages": stage.name, **settings_of(stage)}

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        model, images = self.ready(lab, self.limit, self.image_size, self.prompt)
        told = (self.model.label, model, images, self.running(lab), folder / WORK_FOLDER)
        rows, warnings = measure(*told, process=lab.process)
        lab.warnings += warnings
        return rows


@final
@dataclass(frozen=True, kw_only=True)
class Margin(Measurement):
    """Margins, gradients and losses on clean images, see :mod:`antiphase.sensitivity.interventions`."""

    limit: int | None = None
    gradients: bool = True

    @property
    def table(self) -> str:
        return "margin" if self.split == "test" else f"margin-{self.split}"

    @property
    def shipped_bits(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 12 if self.split == "test" else 5  # of a mean over thousands

    def shipped(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Of training images only the loss is used, and of it the mean."""
        return rows.drop(["loss"] if self.split == "test" else Margins._fields, strict=False)

    @property
    def label(self) -> str:
        return f"margins of {self.model.label}, {self.split} images"

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        model, data = self.ready(lab, self.limit)
        measure = MarginGradients(model) if self.gradients else None
        frames = []
        for _, images, labels in data.batches(250):
            images, labels = images.to(lab.device), labels.to(lab.device)
            with torch.no_grad():
                logits = model(images)
            loss = F.cross_entropy(logits, labels, reduction="none")
            parts = {"loss": loss} | (measure(images) if measure else margins_of(logits))._asdict()
            none = torch.full_like(loss, torch.nan)
            columns = {name: none if part is None else part for name, part in parts.items()}
            frames.append(pl.DataFrame({name: part.double().cpu().numpy() for name, part in columns.items()}))
        about = pl.DataFrame({"sample": data.ids.numpy(), "label": data.labels.numpy()})
        return about.hstack(pl.concat(frames)).with_columns(pl.col(pl.Float64).fill_nan(None))


@final
@dataclass(frozen=True, kw_only=True)
class Radius(Measurement):
    """What margin-over-Lipschitz radii are made of (sensitivity paper, Appendix B)."""

    kind = "radius"
    shipped_bits = 12
    limit: int
    steps: int = 20
    seed: int = 0

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        model, images = self.ready(lab, self.limit)
        how = {"steps": self.steps, "seed": self.seed, "batch_size": lab.batch_size}
        options = SenseOptions.from_file(how, model=("study",), quiet=not lab.progress)
        told = (self.model.label, model, images, options, folder / WORK_FOLDER)
        rows = sense(*told, process=lab.process, parts=[RADIUS])["radius"]
        labels = pl.DataFrame({"sample": images.ids.numpy(), "label": images.labels.numpy()})
        return rows.join(labels, on="sample", maintain_order="left")


@final
@dataclass(frozen=True, kw_only=True)
class Certified(Measurement):
    """Radii that randomised smoothing certifies, see :mod:`antiphase.sensitivity.smoothing`; 0 where it abstains."""

    kind = "certified"
    limit: int
    sigma: float
    samples: int
    seed: int = 0

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        model, data = self.ready(lab, self.limit)
        how: dict[str, Any] = {"sigma": self.sigma, "samples": self.samples, "seed": self.seed}
        result = smooth(model, data.images(range(len(data))), ids=data.ids, progress=self.label * lab.progress, **how)
        columns = {"sample": data.ids, "label": data.labels, "prediction": result.prediction, "radius": result.radius}
        return pl.DataFrame({name: values.numpy() for name, values in columns.items()})


@final
@dataclass(frozen=True, kw_only=True)
class Transfer(Measurement):
    """What a model makes of images that PGD made on another model, with one row per image."""

    kind = "transfer"
    surrogate: Model
    eps: float
    limit: int
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def label(self) -> str:
        return f"transfer from {self.surrogate.label} to {self.model.label}"

    def needs(self) -> tuple[Cell, ...]:
        return self.surrogate.needed() + self.model.needed()

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        made_on, data = replace(self, model=self.surrogate).ready(lab, self.limit)
        images = data.images(range(len(data)))
        told = {"ids": data.ids, "seed": self.seed, "progress": self.label * lab.progress, "early_stop": False}
        made = pgd(made_on, images, None, Threat(eps=self.eps), **self.settings, **told)
        model, _ = self.ready(lab, self.limit)
        clean, after = (logits_of(model, shown).argmax(1) for shown in (images, made.adversarial))
        columns = {"sample": data.ids, "label": data.labels, "clean_prediction": clean, "prediction": after}
        frame = pl.DataFrame({name: values.numpy() for name, values in columns.items()})
        return frame.with_columns(eps=pl.lit(self.eps), success=pl.col("prediction") != pl.col("clean_prediction"))


def opposed(rows: pl.DataFrame) -> pl.Expr:
    """Return whether the inner product of the maps' gradients is below 0; rows that ship have only this at tokens."""
    known = ["opposed"] if "opposed" in rows.columns else []
    return pl.coalesce(*known, pl.col("cross") < 0).alias("opposed")


def _but(rows: pl.DataFrame, read: pl.Expr, unread: Sequence[str]) -> pl.DataFrame:
    """Leave columns out where they are not read; rows that have shipped already may lack some."""
    return rows.with_columns(pl.when(read).then(name).alias(name) for name in unread if name in rows.columns)


_RENAMED = {"eps": "radius", "travel": "eps"}


@final
@dataclass(frozen=True, kw_only=True)
class Sense(Measurement):
    """One of the measurements of :mod:`antiphase.commands.sense.run` on one model."""

    shipped_bits = 9
    part: str  # "alignment", "alignment-perturbed", "lipschitz", "depth" or "branches"
    limit: int
    settings: dict[str, Any] = field(default_factory=dict)  # what differs from the defaults of ``SenseOptions``

    @property
    def table(self) -> str:
        return self.part

    def shipped(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Of tokens and perturbed images only which gradients are opposed is read, of branches of ViTs the sizes."""
        rows = rows.drop("alpha", "length", "low", "high", strict=False)
        if self.part == "branches" and isinstance(self.model, TrainVit):
            return rows.drop("correlation", "clean_correlation", "change_correlation", "negative", strict=False)
        if self.part == "depth":  # what is left of a perturbation is read at the smallest ε
            return _but(rows, pl.col("eps") == pl.col("eps").min(), ("moved", "positive", "negative"))
        if self.part.startswith("alignment"):
            rows = rows.filter(pl.col("site") != "loss").with_columns(opposed(rows))
            read = pl.col("site") == "pixels" if self.part == "alignment" else pl.lit(value=False)
            return _but(rows, read, ("first", "second", "cross", "moved"))
        return rows

    def options(self) -> SenseOptions:
        # stored cells have other names for two of them
        settings = {_RENAMED.get(name, name): value for name, value in self.settings.items()}
        return SenseOptions.from_file({"lipschitz_limit": self.limit, **settings}, model=("study",), parts=(self.part,))

    def facts(self) -> Iterator[tuple[str, Any]]:
        options = self.options()
        stored = {option: name for name, option in _RENAMED.items()}
        names = ("probes", "radius", "samples", "steps", "points", "eps", "lipschitz_limit", "seed")
        yield from super().facts()
        yield "sense", {"part": self.part, "data": self.data, "images": self.limit}
        yield "sense", {stored.get(name, name): getattr(options, name) for name in names}

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        model, images = self.ready(lab, self.limit)
        told = (self.model.label, model, images, self.running(lab), folder / WORK_FOLDER)
        return sense(*told, limit=self.limit, process=lab.process)[self.part]
