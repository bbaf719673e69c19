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

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from antiphase.budgets import eps_label
from antiphase.errors import UserError
from antiphase.sensitivity.interventions import BRANCHES
from antiphase.statistics.intervals import STRATA, Estimate, as_difference, as_share, standardised
from antiphase.statistics.seeds_by_images import crossed_mean
from antiphase.studies.cells import Attack, Margin, TrainVit, Variant
from antiphase.studies.cells.models import Model
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim, each_data
from antiphase.studies.estimation import SAMPLE, SEED, over
from antiphase.studies.figures import ESTIMATES, Artefact, Panel, Plot, Table
from antiphase.studies.numbers import signed
from antiphase.studies.papers.robustness.bench import RobustnessBench, bench, settings
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

Matrix = Float[np.ndarray, "seeds samples"]

PARTS = ("DiffViT − ViT", "margins", "norm and factor", "heads", "subtraction", "angle")
TOTAL, MARGINS, NORM, HEADS, SUBTRACTION, ANGLE = PARTS
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
    pgd: dict[str, Any] = {"eps": EPS, "settings": dict(own.pgd), "precision": own.search}  # as on the twins
    fab: dict[str, Any] = {
        "eps": (1.0,),
        "settings": {"steps": own.pgd.get("steps", 20), "targets": _NEAREST},
    }
    made: list[Cell] = []
    for data in own.data:
        test: dict[str, Any] = {"data": data, "limit": own.images}
        train: dict[str, Any] = {"data": data, "limit": own.limit or _TRAINING_IMAGES, "split": "train"}
        train["gradients"] = False
        for seed in profile.seeds_or(_SEEDS if profile.name == "laptop" else len(profile.seeds)):
            models = trained(own, seed, data)
            twins = [model for model in models.values() if isinstance(model, TrainVit)]
            interventions = intervened(next(model for model in twins if model is models[DIFFVIT]))
            others = [model for model in (*models.values(), *interventions.values()) if model not in twins]
            made += [own.attack(model) for model in twins]  # shared with Figure 2(a)
            made += [Attack(model=model, **test, **pgd) for model in others]
            made += [Margin(model=model, **some) for model in models.values() for some in (test, train)]
            made += [Margin(model=interventions[series], gradients=False, **test) for series in CHANGED]
            made += [Attack(model=models[series], attack="fab-t", **test, **fab) for series in LADDER]
    return made


Entry = tuple[str, str, Estimate]

_AT = 1 / 255  # of the first sentence
_SMALL = EPS[:3]
_SHORT = ("ViT", "DiffViT", "ViT, norm", "λ = 0", "no norm", "λ = 0, no norm")
_SHORT += ("ViT, wider", "ViT, N(0, 0.02)", "DiffViT, N(0, 0.02)", "ViT, shorter")
_LIMITS = (
    "The number of strata that margins are divided into is a choice; a table shows others. What is not identified: how "
    "much of another part works through the margin, since a change of the mechanism moves the margins too; one order "
    "of the steps, since norm and factor act on narrow heads here and on wide ones in the other order (table); and the "
    "scale of the logits, which training fixes only roughly: twice the logits are twice the margins at the same ASR. "
    "The part of the angle is to first order, at the clean images."
)


def draw(rows: RowsByTable) -> Artefact:
    """Draw interventions, controls, what remains at equal margins and losses, and the parts of the difference."""
    plots: list[Plot] = []
    sheets: list[Table] = []
    notes: list[str] = []
    sets = rows["attack"]["data"].unique(maintain_order=True).to_list()
    for data in sets:
        measured, of = Measured(rows, data), f", {data}" if len(sets) > 1 else ""
        if not measured.seeds:
            notes.append(f"No training seed is finished yet{of}.")
            continue
        stem = f"causes-{data}" if of else "causes"
        asr = {name: _rates(measured, name) for name in SERIES}
        matched = {name: _rates(measured, name, matched=True) for name in (*TRAINED, *CHANGED)}
        parts, other, even = (
            _points(measured, values, as_difference)
            for values in (measured.parts, measured.other_order, measured.differences)
        )
        plots += _plots(stem, of, asr, matched, parts, even)
        sheets += _tables(measured, stem, of, asr, matched, pl.concat([parts, other]), even)
        notes.append(sentence(parts, of))
    return Artefact(plots, sheets, notes=[*notes, _LIMITS])


def sentence(parts: pl.DataFrame, of: str = "") -> str:
    """Return how the difference in ASR at 1/255 falls into parts, in one sentence."""
    own = parts.filter((pl.col("x") - _AT).abs() < 1e-9)
    words = {}
    for row in own.iter_rows(named=True):
        value, interval = signed(Estimate(row["value"], row["low"], row["high"], row["n"]), "points")
        words[row["series"]] = f"{value.removesuffix(' points')} {interval}"
    return (
        f"In a study of its own, of one-layer models{of} ({over(own)}; PGD at {eps_label(_AT)}), the ASR of DiffViT "
        f"minus that of ViT is {words[TOTAL]} points: {words[MARGINS]} from smaller clean margins (the gap between the "
        f"two largest logits); and at equal margins, {words[HEADS]} from half as many heads of twice the width, "
        f"{words[NORM]} from the normalisation and scaling of each head, and {words[SUBTRACTION]} from the "
        f"subtraction, of which {words[ANGLE]} from the angle between the gradients of the two maps."
    )


def _rates(found: Measured, series: str, *, matched: bool = False) -> pl.DataFrame:
    """Return ASR by ε, as measured or standardised to the margins of the twins."""

    def values(eps: float) -> dict[str, Matrix]:
        broken = found.broken(series, eps)
        return {series: found.at_margins(series, broken.astype(float)) if matched else broken}

    return _points(found, values, as_share)


def _points(
    found: Measured, values: Callable[[float], Mapping[str, Matrix]], within: Callable[[Estimate], Estimate]
) -> pl.DataFrame:
    """Return the estimates of several series at every ε: ``series``, ``x`` and those of ``ESTIMATES``."""
    rows = []
    for eps in EPS:
        for series, matrix in values(eps).items():
            one = within(mean_of(matrix))
            rows.append((series, eps, one.value, one.low, one.high, one.n, len(found.seeds)))
    return pl.DataFrame(rows, {"series": pl.String, "x": pl.Float64, **ESTIMATES}, orient="row")


def _plots(
    stem: str,
    of: str,
    asr: Mapping[str, pl.DataFrame],
    matched: Mapping[str, pl.DataFrame],
    parts: pl.DataFrame,
    even: pl.DataFrame,
) -> list[Plot]:
    bands = f"95 % over {over(parts)}."
    rate, difference = "attack success rate", "difference in ASR"
    place = pl.col("series").replace_strict({name: float(number) for number, name in enumerate(PARTS)})
    other_maps = {DIFFVIT: "as trained", **{name: name for name in (MEAN, UNIFORM, *STOPPED)}}
    ladder = {"kind": "bar", "ticks": PARTS, "percent": True, "level": 0.0}
    shown = {
        "lambda": (
            "ASR of trained DiffViTs under PGD with λ times a factor, as measured and standardised "
            f"to the clean margins of both twins. Away from 1, clean accuracy falls (table). Bands: {bands}",
            Panel(f"as measured{of}", "factor of λ", rate, _by_factor(asr), percent=True),
            Panel(f"at equal margins{of}", "factor of λ", rate, _by_factor(matched), percent=True),
        ),
        "maps": (
            "ASR of trained DiffViTs under PGD with another A2, and against an attacker whose gradient "
            "passes some maps by; the verdicts are then those of the trained model. With another A2, clean accuracy "
            f"falls as well (table). Intervals: {bands}",
            _bars(asr, other_maps, of),
        ),
        "controls": (
            "ASR of the twins and of trained controls under PGD: ViT with norm and factor, DiffViT "
            "with λ frozen at 0 or without norm and factor, ViT with one more hidden unit, other initial weights, ViT "
            f"trained for two thirds of the epochs. Intervals: {bands}",
            _bars(asr, dict(zip(TRAINED, _SHORT, strict=True)), of),
        ),
        "remaining": (
            "ASR of DiffViT minus that of ViT: as measured, with both standardised to the clean "
            f"margins of both, and with ViT at DiffViT's training loss. Bands: {bands}",
            Panel(f"DiffViT − ViT{of}", "ε", difference, even, scale="eps", percent=True, level=0.0),
        ),
        "parts": (
            "Parts of the difference in ASR, DiffViT minus ViT; margins, norm and factor, heads and "
            f"subtraction add up to it, and the angle is a part of the subtraction. Intervals: {bands}",
            Panel(f"DiffViT − ViT{of}", "", difference, _placed(parts, place), **ladder),
        ),
    }
    return [Plot(f"{stem}-{name}", caption, tuple(drawn)) for name, (caption, *drawn) in shown.items()]


def _by_factor(rates: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    factors = {**SCALED, DIFFVIT: 1.0}
    ordered = sorted(factors, key=lambda name: factors[name])
    return pl.concat(_placed(rates[name], pl.lit(factors[name])) for name in ordered)


def _bars(asr: Mapping[str, pl.DataFrame], names: Mapping[str, str], of: str) -> Panel:
    """Return a panel with a group of bars for each model, at 1/255 and 2/255."""
    shown = [_placed(asr[name], pl.lit(float(at))) for at, name in enumerate(names)]
    points = pl.concat(shown).filter(pl.col("series").is_in([eps_label(eps) for eps in EPS[1:3]]))
    title = f"1/255 and 2/255{of}"
    return Panel(
        title, "", "attack success rate", points, kind="bar", ticks=tuple(names.values()), percent=True
    )


def _placed(points: pl.DataFrame, place: pl.Expr) -> pl.DataFrame:
    """Return points whose series are the ε, at the given places."""
    return points.select(*ESTIMATES, series=pl.col("x").map_elements(eps_label, pl.String), x=place).select(
        "series", "x", *ESTIMATES
    )


def _tables(
    found: Measured,
    stem: str,
    of: str,
    asr: Mapping[str, pl.DataFrame],
    matched: Mapping[str, pl.DataFrame],
    parts: pl.DataFrame,
    even: pl.DataFrame,
) -> list[Table]:
    """Return the tables of one data set."""
    seeds = len(found.seeds)
    # with a stopped gradient, clean predictions are the trained model's
    accuracy = [
        (name, "clean accuracy", as_share(mean_of(found.correct(name))))
        for name in asr
        if name not in STOPPED
    ]
    by_model = pl.concat([_cells(accuracy, seeds), *(_by_eps(block) for block in asr.values())])
    order = pl.col("row").replace_strict({name: number for number, name in enumerate(asr)})
    words = parts.with_columns(pl.col("series").replace(IN_WORDS | OTHER_ORDER))
    plain = {"percent": False, "digits": 3}
    shown = {
        "parts": (
            "Parts of the difference in ASR between one-layer models, DiffViT − ViT",
            "part",
            _by_eps(words),
            {},
        ),
        "remaining": ("Difference in ASR, DiffViT − ViT", "compared", _by_eps(even), {}),
        "strata": (
            "Difference in ASR at equal margins, DiffViT − ViT, by number of strata",
            "strata",
            _cells(_by_strata(found), seeds),
            {},
        ),
        "asr": ("Clean accuracy and ASR", "model", by_model.sort(order, maintain_order=True), {}),
        "matched": (
            "ASR standardised to the clean margins of ViT and DiffViT",
            "model",
            pl.concat(_by_eps(block) for block in matched.values()),
            {},
        ),
        "distance": (
            "Least perturbation d = c·m / ‖g‖₁ and its factors, geometric means",
            "model",
            _cells(_distances(found), seeds),
            plain | {"digits": 2},
        ),
        "training": (
            "Training loss, clean margin and gradient",
            "model",
            _cells(_training(found), seeds),
            plain,
        ),
        "angle": (
            "Gradients through both maps; κ = ‖g‖₁ / ‖g°‖₁",
            "model",
            _cells(_angles(found), seeds),
            plain,
        ),
    }
    return [
        Table(f"{stem}-{name}", f"{title}{of}", index, block, **style)
        for name, (title, index, block, style) in shown.items()
    ]


def _by_strata(found: Measured) -> Iterable[Entry]:
    """Yield what remains at equal margins for other numbers of strata than the usual one, and for that."""
    for strata in (STRATA // 4, STRATA // 2, STRATA, 2 * STRATA, 4 * STRATA):
        for eps in EPS:
            yield str(strata), eps_label(eps), as_difference(mean_of(found.remaining(eps, strata)))


def _by_eps(points: pl.DataFrame) -> pl.DataFrame:
    column = pl.col("x").map_elements(eps_label, pl.String)
    return points.select(*ESTIMATES, row=pl.col("series"), column=column, paper=pl.lit(None, pl.Float64))


def _cells(found: Iterable[Entry], seeds: int) -> pl.DataFrame:
    rows = [(one.value, one.low, one.high, one.n, seeds, row, column, None) for row, column, one in found]
    return pl.DataFrame(
        rows, {**ESTIMATES, "row": pl.String, "column": pl.String, "paper": pl.Float64}, orient="row"
    )


def _geometric(logarithms: np.ndarray, scale: float = 1.0) -> Estimate:
    """Estimate a geometric mean from logarithms."""
    one = mean_of(logarithms)
    value, low, high = (scale * math.exp(end) for end in (one.value, one.low, one.high))
    return Estimate(value, low, high, one.n)


def _distances(found: Measured) -> Iterable[Entry]:
    """Yield the least perturbation and its factors for the ladder, and their ratio between the twins."""
    logs = {series: found.logarithms(series) for series in LADDER}
    for series, own in logs.items():
        for name in LOGARITHMS:
            first = name == LOGARITHMS[0]
            yield series, f"{name}, 255ths" if first else name, _geometric(own[name], 255.0 if first else 1.0)
    for name in LOGARITHMS:
        column = f"{name}, 255ths" if name == LOGARITHMS[0] else name
        yield "DiffViT / ViT", column, _geometric(logs[DIFFVIT][name] - logs[VIT][name])


def _training(found: Measured) -> Iterable[Entry]:
    for series in TRAINED:
        yield series, "training loss", mean_of(found.losses(series))
        yield series, "margin m", _geometric(np.log(np.maximum(found.of(series, "margin"), TINY)))
        yield series, "gradient ‖g‖₁", _geometric(np.log(np.maximum(found.of(series, "norm1"), TINY)))


def _angles(found: Measured) -> Iterable[Entry]:
    for series in (DIFFVIT, BARE, NORMAL[DIFFVIT]):
        for name, column in (("‖g_1‖₂", "positive"), ("‖g_2‖₂", "negative")):
            yield series, name, _geometric(np.log(np.maximum(found.of(series, column), TINY)))
        yield series, "cosθ", mean_of(found.cosines(series))
        yield series, "κ", _geometric(np.log(found.gains(series)))


def claims(rows: RowsByTable) -> list[Claim]:
    """Claims about each cause: the paper's explanation, and the alternatives to it."""
    return each_data(rows["attack"], lambda attacks: _claims(Measured(rows, attacks["data"][0])))


def _claims(found: Measured) -> list[Claim]:
    def at_each_eps(what: str, values: Callable[[float], np.ndarray]) -> list[Check]:
        def estimate(eps: float) -> Estimate | None:
            return mean_of(values(eps)) if found.seeds else None

        return [Check(f"{what} at {eps_label(eps)}", estimate(eps)) for eps in _SMALL]

    def above(first: str, second: str) -> list[Check]:
        def values(eps: float) -> np.ndarray:
            return found.broken(first, eps).astype(float) - found.broken(second, eps)

        return at_each_eps(f"ASR({first}) − ASR({second})", values)

    def part(name: str) -> list[Check]:
        return at_each_eps(f"part: {name},", lambda eps: found.parts(eps)[name])

    def remains(name: str) -> list[Check]:
        return at_each_eps(f"ASR(DiffViT) − ASR(ViT), {name},", lambda eps: found.differences(eps)[name])

    without_a2, without_a1, _ = STOPPED
    statements = {
        "subtraction-raises-asr": (
            "Section 4.1",
            "Between models with the same norm, factor and heads, the subtraction raises the ASR.",
            above(DIFFVIT, ZERO),
        ),
        "subtraction-raises-asr-bare": (
            "Section 4.1",
            "Between models without norm and factor, too, the subtraction raises the ASR.",
            above(BARE, BARE_ZERO),
        ),
        "fragile-at-equal-margins": (
            NOT_IN_PAPER,
            "At equal clean margins, the subtraction raises the ASR.",
            part(SUBTRACTION),
        ),
        "angle-raises-asr": (
            "Section 4.1, Theorem 1",
            "Opposed gradients of the two maps, the paper's explanation, raise the ASR of DiffViT.",
            part(ANGLE),
        ),
        "gradient-of-a2": (
            "Section 4.1",
            "Without the gradient through A2 the attacker succeeds less often than without that through A1.",
            above(without_a1, without_a2),
        ),
        "margins-raise-asr": (
            NOT_IN_PAPER,
            "Smaller clean margins are part of DiffViT's higher ASR.",
            part(MARGINS),
        ),
        "remains-at-equal-margins": (
            NOT_IN_PAPER,
            "At equal clean margins, DiffViT has a higher ASR than ViT.",
            remains(AT_MARGINS),
        ),
        "remains-at-equal-loss": (
            NOT_IN_PAPER,
            "At equal training loss, DiffViT has a higher ASR than ViT.",
            remains(AT_LOSS),
        ),
        "norm-raises-asr": (
            NOT_IN_PAPER,
            "The normalisation of each head and its factor 1 − λ_init alone raise the ASR of ViT.",
            above(NORMED, VIT),
        ),
        "parameters-raise-asr": (
            NOT_IN_PAPER,
            "A ViT with DiffViT's number of parameters has a higher ASR than ViT.",
            above(WIDER, VIT),
        ),
        "other-initial-weights": (
            NOT_IN_PAPER,
            "With blocks that start from N(0, 0.02), too, DiffViT has a higher ASR than ViT.",
            above(NORMAL[DIFFVIT], NORMAL[VIT]),
        ),
    }
    return [
        Claim(name, source, words, checks, paper="robustness" if source != NOT_IN_PAPER else "")
        for name, (source, words, checks) in statements.items()
    ]


CAUSES = Study(
    "causes",
    "own",
    "Causes",
    "Where the higher ASR of DiffViT comes from",
    """How much of DiffViT's higher ASR comes from the subtraction, and how much from its company.

The paper attributes it to the subtraction: the gradients of the two maps point in opposite directions (Section 4).
DiffViT differs from ViT in more than that. Each head passes an RMSNorm and the factor 1 − λ_init. Heads are merged in
pairs: half as many heads with values twice as wide, and with λ = 0 one narrow map each. Training ends at another loss
with other clean margins, and smaller margins alone raise the ASR. Three comparisons:

- interventions on trained DiffViTs: λ times 0 to 1.25; A2 replaced by its mean over 1,000 training images or by uniform
  attention; an attacker whose gradient passes A1 or A2 by;
- trained controls: λ frozen at 0, no norm or factor, ViT with norm and factor, one more hidden unit for ViT (+129
  weights on the laptop, where DiffViT has +96 of 50,000), and blocks that start from N(0, 0.02), like timm's, instead
  of uniform within ±1/√fan_in;
- standardisation: ASR at one distribution of clean margins, and at one training loss.

The least perturbation d of an image is that of FAB-T (20 steps, 3 classes). With m the clean margin and g its gradient
by the image, d = c·m / ‖g‖₁, and c = 1 for a linear model.
""",
    cells,
    draw,
    claims,
    settings,
)
