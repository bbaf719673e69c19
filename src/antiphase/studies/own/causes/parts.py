"""Parts of the difference in ASR between DiffViT and ViT, from stored rows: one value for each training seed and image.

With s the indicator of an image that PGD breaks, and v the same standardised to the clean margins of both twins
(:func:`~antiphase.statistics.intervals.standardised`), the steps of the ladder ViT → norm and factor → λ frozen at 0
→ DiffViT split the difference exactly:

    s_DiffViT − s_ViT = [(s − v)_DiffViT − (s − v)_ViT] + [v_norm − v_ViT] + [v_zero − v_norm] + [v_DiffViT − v_zero]
                         margins                           norm, factor      heads              subtraction

The angle is a part of the last: with d the least perturbation that FAB finds for DiffViT and κ = ‖g‖₁ / ‖g°‖₁
(:mod:`~antiphase.sensitivity.interventions`), an image with d ≤ ε is broken; with the two maps' gradients at a right
angle it would be, to first order, if κ·d ≤ ε. Both indicators are standardised like v.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from antiphase.errors import UserError
from antiphase.sensitivity.interventions import BRANCHES
from antiphase.statistics.intervals import STRATA, Estimate, standardised
from antiphase.statistics.seeds_by_images import crossed_mean
from antiphase.studies.cells import Attack, Margin, TrainVit, Variant
from antiphase.studies.cells.models import Model
from antiphase.studies.estimation import SAMPLE, SEED
from antiphase.studies.papers.robustness.bench import RobustnessBench, bench
from antiphase.studies.spec import Cell, Profile, RowsByTable

Matrix = Float[np.ndarray, "seeds samples"]

TOTAL, MARGINS, NORM, HEADS, SUBTRACTION, ANGLE = (
    "DiffViT − ViT",
    "margins",
    "norm and factor",
    "heads",
    "subtraction",
    "angle",
)
PARTS = (TOTAL, MARGINS, NORM, HEADS, SUBTRACTION, ANGLE)
IN_WORDS = {
    TOTAL: "the whole difference",
    MARGINS: "smaller clean margins: the gap between the two largest logits",
    HEADS: "at equal margins: half as many heads, twice as wide",
    NORM: "at equal margins: the normalisation and scaling of each head",
    SUBTRACTION: "at equal margins: the subtraction",
    ANGLE: "of the subtraction: the angle between the gradients of the two maps",
}
OTHER_ORDER = {
    f"{name}, other order": f"{IN_WORDS[name]}, other order" for name in (HEADS, NORM, SUBTRACTION)
}
AT_MARGINS, AT_LOSS = "at equal margins", "at equal training loss"
TINY = 1e-9  # of a margin, slope or distance, before its logarithm


class Measured:
    """The rows of one data set as matrices of training seeds and images, the seeds that are finished."""

    def __init__(self, rows: RowsByTable, data: str) -> None:
        attacks = rows["attack"].filter(data=data)
        margin, train = (rows[name].filter(data=data) for name in ("margin", "margin-train"))
        pgd, nearest = attacks.filter(attack="pgd"), attacks.filter(attack="fab-t")
        asked = ((pgd, SERIES), (nearest, LADDER), (margin, (*TRAINED, *CHANGED)), (train, TRAINED))
        seeds = [set(frame.filter(series=name)[SEED].to_list()) for frame, names in asked for name in names]
        self.seeds = sorted(set.intersection(*seeds))
        self.pgd, self.nearest, self.margin, self.train = (
            frame.filter(pl.col(SEED).is_in(self.seeds)) for frame, _ in asked
        )

    def broken(self, series: str, eps: float) -> Matrix:
        """Return whether PGD breaks each image."""
        return _matrix(self.pgd.filter((pl.col("eps") - eps).abs() < 1e-9), series, pl.col("success"))

    def correct(self, series: str) -> Matrix:
        """Return whether the clean prediction is right."""
        first = self.pgd.filter(pl.col("eps") == pl.col("eps").min())
        return _matrix(first, series, pl.col("clean_prediction") == pl.col("label"))

    def of(self, series: str, column: str) -> Matrix:
        """Return a column of the margins: ``margin``, ``norm1`` (‖g‖₁), ``positive`` (‖g_1‖₂), …."""
        return _matrix(self.margin, series, pl.col(column))

    def distances(self, series: str) -> Matrix:
        """Return the least perturbation that FAB finds; infinite if none."""
        found = pl.when(pl.col("success")).then(pl.col("distance")).otherwise(np.inf)
        return _matrix(self.nearest, series, found)

    def gains(self, series: str) -> Matrix:
        """Return κ: how much longer the gradient is than with the two maps' parts at a right angle."""
        return _matrix(self.margin, series, pl.col("norm1") / pl.col("right1"))

    def losses(self, series: str) -> Matrix:
        """Return the losses of training images."""
        return _matrix(self.train, series, pl.col("loss"))

    def at_margins(self, series: str, values: Matrix, strata: int = STRATA) -> Matrix:
        """Return values of a model, standardised to the clean margins of both twins."""
        population = [self.of(each, "margin") for each in (VIT, DIFFVIT)]
        return standardised(values, self.of(series, "margin"), population, strata)

    def remaining(self, eps: float, strata: int = STRATA) -> Matrix:
        """Return DiffViT − ViT at equal margins."""
        twins = (
            self.at_margins(each, self.broken(each, eps).astype(float), strata) for each in (DIFFVIT, VIT)
        )
        return next(twins) - next(twins)

    def at_loss(self, eps: float) -> Matrix:
        """Return whether ViT is broken at the training loss of DiffViT of the same seed.

        ASR is interpolated linearly in the loss between ViT and its shorter training, or extrapolated:
        s + w·(s_short − s), w = (L_DiffViT − L) / (L_short − L).
        """
        losses = {series: self.losses(series).mean(1) for series in (VIT, SHORTER, DIFFVIT)}
        gap = losses[SHORTER] - losses[VIT]
        lead = losses[DIFFVIT] - losses[VIT]
        share = np.divide(lead, gap, out=np.zeros_like(gap), where=np.abs(gap) > TINY)
        whole, short = (self.broken(series, eps).astype(float) for series in (VIT, SHORTER))
        return whole + share[:, None] * (short - whole)

    def parts(self, eps: float) -> dict[str, Matrix]:
        """Return the parts of DiffViT − ViT at ε; all but the total and the angle add up to the total."""
        raw = {series: self.broken(series, eps).astype(float) for series in LADDER}
        even = {series: self.at_margins(series, values) for series, values in raw.items()}
        found, gains = self.distances(DIFFVIT), self.gains(DIFFVIT)
        with_angle, without = (
            self.at_margins(DIFFVIT, (each <= eps + 1e-9).astype(float)) for each in (found, found * gains)
        )
        total = raw[DIFFVIT] - raw[VIT]
        return {
            TOTAL: total,
            MARGINS: total - (even[DIFFVIT] - even[VIT]),
            NORM: even[NORMED] - even[VIT],
            HEADS: even[ZERO] - even[NORMED],
            SUBTRACTION: even[DIFFVIT] - even[ZERO],
            ANGLE: with_angle - without,
        }

    def other_order(self, eps: float) -> dict[str, Matrix]:
        """Return the steps at equal margins when heads are merged first, and norm and factor come last."""
        even = {
            series: self.at_margins(series, self.broken(series, eps).astype(float)) for series in OTHER_LADDER
        }
        pairs = zip((HEADS, SUBTRACTION, NORM), OTHER_LADDER, OTHER_LADDER[1:], strict=False)
        return {f"{name}, other order": even[after] - even[before] for name, before, after in pairs}

    def differences(self, eps: float) -> dict[str, Matrix]:
        """Return DiffViT − ViT as measured, at equal margins and at equal training loss."""
        raw = {series: self.broken(series, eps).astype(float) for series in (VIT, DIFFVIT)}
        return {
            "as measured": raw[DIFFVIT] - raw[VIT],
            AT_MARGINS: self.remaining(eps),
            AT_LOSS: raw[DIFFVIT] - self.at_loss(eps),
        }

    def cosines(self, series: str) -> Matrix:
        """Return cosθ between the gradients that reach the image through A1 and through A2 with the same cotangent.

        cosθ = −mean⟨g_1, g_2⟩ / √(mean‖g_1‖²·mean‖g_2‖²) over the images of a seed, linearised in each image; the sign
        is that of the maps' own gradients, since g_2 has the factor −λ.
        """
        inner = self.of(series, "inner")
        squares = [np.square(self.of(series, name)) for name in ("positive", "negative")]
        sizes = [each.mean(1, keepdims=True) for each in squares]
        half = sum(each / size for each, size in zip(squares, sizes, strict=True)) / 2
        return -(inner + inner.mean(1, keepdims=True) * (1.0 - half)) / np.sqrt(sizes[0] * sizes[1])

    def logarithms(self, series: str) -> dict[str, Matrix]:
        """Return ln of the least perturbation d, of the margin m, of ‖g‖₁ and of d in units of m / ‖g‖₁.

        ln d = ln m − ln ‖g‖₁ + ln(d·‖g‖₁ / m). Images that FAB does not break count at the largest distance found.
        """
        distance = self.distances(series)
        most = distance[np.isfinite(distance)].max(initial=TINY)
        logs = [
            np.log(np.maximum(each, TINY))
            for each in (np.minimum(distance, most), self.of(series, "margin"), self.of(series, "norm1"))
        ]
        return dict(zip(LOGARITHMS, (*logs, logs[0] - logs[1] + logs[2]), strict=True))


LOGARITHMS = ("least perturbation d", "margin m", "gradient ‖g‖₁", "d in units of m / ‖g‖₁")


def mean_of(values: Matrix) -> Estimate:
    """Estimate a mean over crossed seeds and images."""
    return crossed_mean(values.astype(float))


def _matrix(rows: pl.DataFrame, series: str, value: pl.Expr) -> Matrix:
    own = rows.filter(series=series).select(SEED, SAMPLE, value=value).sort(SEED, SAMPLE)
    seeds, samples = own[SEED].n_unique(), own[SAMPLE].n_unique()
    if not len(own) or len(own) != seeds * samples or own["value"].null_count():
        raise UserError(f"{series}: not every seed was measured on the same images; run the study again")
    return own["value"].to_numpy().reshape(seeds, samples)


EPS = tuple(eps / 255 for eps in (0.5, 1, 2, 4))
_TRAINING_IMAGES = 10_000  # of the training loss
_SEEDS = 12  # of the laptop profile: 3 gave +4.6 points [−0.1, 9.4] for the difference at 1/255
_NEAREST = 3  # classes that FAB-T steps towards

VIT, DIFFVIT = "ViT", "DiffViT"
NORMED = "ViT, norm and factor"
ZERO = "DiffViT, λ frozen at 0"
BARE = "DiffViT, no norm or factor"
BARE_ZERO = "DiffViT, λ frozen at 0, no norm or factor"
WIDER = "ViT, equal parameters"
NORMAL = {VIT: "ViT, N(0, 0.02)", DIFFVIT: "DiffViT, N(0, 0.02)"}
SHORTER = "ViT, two thirds of the epochs"
LADDER = (VIT, NORMED, ZERO, DIFFVIT)  # each step changes one thing
OTHER_LADDER = (VIT, BARE_ZERO, BARE, DIFFVIT)

MEAN, UNIFORM = "A2 = mean over images", "A2 = uniform"
STOPPED = {
    "A2's gradient stopped": (BRANCHES[1],),
    "A1's gradient stopped": (BRANCHES[0],),
    "both gradients stopped": BRANCHES,
}
SCALED = {f"λ × {factor:g}": factor for factor in (0.0, 0.25, 0.5, 0.75, 1.25)}  # × 1 is the trained model

TRAINED = (VIT, DIFFVIT, NORMED, ZERO, BARE, BARE_ZERO, WIDER, *NORMAL.values(), SHORTER)
CHANGED = (*SCALED, MEAN, UNIFORM)  # interventions that change clean predictions
SERIES = (*TRAINED, *CHANGED, *STOPPED)


def trained(own: RobustnessBench, seed: int, data: str) -> dict[str, Model]:
    """Return the trained models by series; the twins are those of the other studies."""

    def train(kind: str, **sizes: Any) -> TrainVit:
        return own.train(kind, seed, data, **sizes)

    vit, bare = train("vit"), {"head_norm": False, "rescale": False}
    one_unit = 4.0 + 1.5 / own.sizes.get("dim", 192)  # one hidden unit more in the MLP of each block
    epochs = max(1, round(vit.recipe["epochs"] * 2 / 3))
    controls: dict[str, TrainVit] = {
        NORMED: train("vit-norm"),
        ZERO: train("diffvit", parameterisation="zero"),
        BARE: train("diffvit", **bare),
        BARE_ZERO: train("diffvit", parameterisation="zero", **bare),
        WIDER: train("vit", mlp_ratio=one_unit),
        NORMAL[VIT]: train("vit", initial_weights="normal"),
        NORMAL[DIFFVIT]: train("diffvit", initial_weights="normal"),
        SHORTER: replace(vit, recipe={**vit.recipe, "epochs": epochs}),
    }
    named = {series: Variant(model=model, series=series) for series, model in controls.items()}
    return {VIT: vit, DIFFVIT: train("diffvit"), **named}


def intervened(model: TrainVit) -> dict[str, Variant]:
    """Return a trained DiffViT under every intervention, by series."""
    found = {series: Variant(model=model, lam=factor) for series, factor in SCALED.items()}
    found |= {MEAN: Variant(model=model, negative="mean"), UNIFORM: Variant(model=model, negative="uniform")}
    found |= {series: Variant(model=model, stopped=branches) for series, branches in STOPPED.items()}
    return {series: replace(variant, series=series) for series, variant in found.items()}


def cells(profile: Profile) -> list[Cell]:
    """PGD and margins of every model, the least perturbation of the ladder's, training losses."""
    own = bench(profile)
    found: list[Cell] = []
    for data in own.data:
        for seed in profile.seeds_or(_SEEDS if profile.name == "laptop" else len(profile.seeds)):
            models = trained(own, seed, data)
            twin = models[DIFFVIT]
            assert isinstance(twin, TrainVit)
            twins = [model for model in models.values() if isinstance(model, TrainVit)]
            found += [own.attack(model) for model in twins]  # shared with Figure 2(a)
            interventions = intervened(twin)
            others = [model for model in (*models.values(), *interventions.values()) if model not in twins]
            found += [_attack(own, model, data) for model in others]
            for model in models.values():
                found.append(Margin(model=model, data=data, limit=own.images))
                found.append(
                    Margin(
                        model=model,
                        data=data,
                        limit=own.limit or _TRAINING_IMAGES,
                        split="train",
                        gradients=False,
                    )
                )
            found += [
                Margin(model=interventions[series], data=data, limit=own.images, gradients=False)
                for series in CHANGED
            ]
            settings = {"steps": own.pgd.get("steps", 20), "targets": _NEAREST}
            found += [
                Attack(
                    model=models[series],
                    data=data,
                    eps=(1.0,),
                    limit=own.images,
                    attack="fab-t",
                    settings=settings,
                )
                for series in LADDER
            ]
    return found


def _attack(own: RobustnessBench, model: Model, data: str) -> Attack:
    """Return PGD as on the twins, at the study's ε."""
    return Attack(
        model=model, data=data, eps=EPS, limit=own.images, settings=dict(own.pgd), precision=own.search
    )
