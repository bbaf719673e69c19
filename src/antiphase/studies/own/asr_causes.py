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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from antiphase.errors import UserError
from antiphase.sensitivity.interventions import BRANCHES
from antiphase.statistics.intervals import STRATA, Estimate, as_difference, as_share, standardised
from antiphase.statistics.seeds_by_images import crossed_mean
from antiphase.studies import ASR, SAMPLE, SEED, Attack, Check, Margin, TrainVit, Variant, over
from antiphase.studies.cells.models import Model
from antiphase.studies.figures import ESTIMATES, Artefact, Panel, Plot, Table, panels, tables
from antiphase.studies.own.variants import DIFFVIT, PAPER, VIT
from antiphase.studies.papers.declarations import Checks, filled
from antiphase.studies.papers.robustness.bench import RobustnessBench, bench, settings
from antiphase.studies.report.words import signed
from antiphase.studies.spec import Cell, Profile, RowsByTable
from antiphase.terminal import eps_label

Matrix = Float[np.ndarray, "seeds samples"]

EPS = tuple(eps / 255 for eps in (0.5, 1, 2, 4))
_TRAINING_IMAGES = 10_000  # of the training loss
_SEEDS = 12  # of the laptop profile: 3 gave +4.6 points [−0.1, 9.4] for the difference at 1/255
_NEAREST = 3  # classes that FAB-T steps towards

NORMED = "ViT, norm and factor"
ZERO = "DiffViT, λ frozen at 0"
BARE = "DiffViT, no norm or factor"
BARE_ZERO = "DiffViT, λ frozen at 0, no norm or factor"
WIDER = "ViT, equal parameters"
NORMAL = {VIT: "ViT, N(0, 0.02)", DIFFVIT: "DiffViT, N(0, 0.02)"}
SHORTER = "ViT, two thirds of the epochs"
LADDER = (VIT, NORMED, ZERO, DIFFVIT)  # each step changes one thing
OTHER_LADDER = (VIT, BARE_ZERO, BARE, DIFFVIT)
STEPS = tuple(dict.fromkeys(LADDER + OTHER_LADDER))

MEAN, UNIFORM = "A2 = mean over images", "A2 = uniform"
STOPPED = {
    "A2's gradient stopped": (BRANCHES[1],),
    "A1's gradient stopped": (BRANCHES[0],),
    "both gradients stopped": BRANCHES,
}
SCALED = {f"λ × {factor:g}": factor for factor in (0.0, 0.25, 0.5, 0.75, 1.25)}  # × 1 is the trained model

TRAINED = {VIT: VIT, DIFFVIT: DIFFVIT, NORMED: "ViT, norm", ZERO: "λ = 0", BARE: "no norm"}
TRAINED |= {BARE_ZERO: "λ = 0, no norm", WIDER: "ViT, wider"}
TRAINED |= {name: name for name in NORMAL.values()} | {SHORTER: "ViT, shorter"}
"""The trained models, and what they are called below bars."""

CHANGED = (*SCALED, MEAN, UNIFORM)  # interventions that change clean predictions
SERIES = (*TRAINED, *CHANGED, *STOPPED)

PARTS = ("DiffViT − ViT", "margins", "norm and factor", "heads", "subtraction", "angle")
TOTAL, MARGINS, NORM, HEADS, SUBTRACTION, ANGLE = PARTS
AT_MARGINS, AT_LOSS = "at equal margins", "at equal training loss"
LOGARITHMS = ("least perturbation d", "margin m", "gradient ‖g‖₁", "d in units of m / ‖g‖₁")
ON_AVERAGE = "mean over ε"
TINY = 1e-9  # of a margin, slope or distance, before its logarithm


def trainings(scale: RobustnessBench, seed: int, data: str) -> dict[str, TrainVit]:
    """Return the trainings by series; the twins are those of the other studies."""

    def train(kind: str, **sizes: Any) -> TrainVit:
        return scale.train(kind, seed, data, **sizes)

    vit, bare = train("vit"), {"head_norm": False, "rescale": False}
    one_unit = 4.0 + 1.5 / scale.sizes.get("dim", 192)  # one hidden unit more in the MLP of each block
    made = {VIT: vit, DIFFVIT: train("diffvit"), NORMED: train("vit-norm"), BARE: train("diffvit", **bare)}
    made |= {ZERO: train("diffvit", parameterisation="zero"), WIDER: train("vit", mlp_ratio=one_unit)}
    made[BARE_ZERO] = train("diffvit", parameterisation="zero", **bare)
    made |= {NORMAL[twin]: train(kind, initial_weights="normal") for twin, kind in ((VIT, "vit"), (DIFFVIT, "diffvit"))}
    shorter = {**vit.recipe, "epochs": max(1, round(vit.recipe["epochs"] * 2 / 3))}
    return made | {SHORTER: replace(vit, recipe=shorter)}


def trained(scale: RobustnessBench, seed: int, data: str) -> dict[str, Model]:
    """Return the trained models by series, the controls under names of their own."""
    models = trainings(scale, seed, data)
    return {one: model if one in (VIT, DIFFVIT) else Variant(model=model, series=one) for one, model in models.items()}


def intervened(model: TrainVit) -> dict[str, Variant]:
    """Return a trained DiffViT under every intervention, by series."""
    variants = {series: Variant(model=model, lam=factor) for series, factor in SCALED.items()}
    variants |= {MEAN: Variant(model=model, negative="mean"), UNIFORM: Variant(model=model, negative="uniform")}
    variants |= {series: Variant(model=model, stopped=branches) for series, branches in STOPPED.items()}
    return {series: replace(variant, series=series) for series, variant in variants.items()}


def nearest(sizes: RobustnessBench, model: Model, data: str) -> Attack:
    """Return FAB-T, for the least perturbation of each test image."""
    # without the final search, which the rows that ship were made without: distances are 0.5 % longer
    how = {"steps": sizes.attacks.get("pgd", {}).get("steps", 20), "targets": _NEAREST, "final_search": False}
    return Attack(model=model, data=data, limit=sizes.images, attack="fab-t", eps=(1.0,), settings=how)


def cells(profile: Profile) -> list[Cell]:
    """PGD and margins of every model, the least perturbation of the ladder's, training losses."""
    sizes, made = bench(profile), list[Cell]()
    settings = dict(sizes.attacks.get("pgd", {}))
    pgd: dict[str, Any] = {"eps": EPS, "settings": settings, "precision": sizes.search}  # as on the twins
    for data in sizes.data:
        test: dict[str, Any] = {"data": data, "limit": sizes.images}
        images = {"split": "train", "limit": sizes.limit or _TRAINING_IMAGES, "gradients": False}
        train: dict[str, Any] = {"data": data, **images}
        for seed in profile.seeds_or(_SEEDS if profile.name == "laptop" else len(profile.seeds)):
            models = trained(sizes, seed, data)
            twins = [model for model in models.values() if isinstance(model, TrainVit)]
            interventions = intervened(twins[1])
            others = [model for model in (*models.values(), *interventions.values()) if model not in twins]
            made += [sizes.attack(model) for model in twins]  # shared with Figure 2(a)
            made += [Attack(model=model, **test, **pgd) for model in others]
            made += [Margin(model=model, **some) for model in models.values() for some in (test, train)]
            made += [Margin(model=interventions[series], gradients=False, **test) for series in CHANGED]
            made += [nearest(sizes, models[series], data) for series in LADDER]
    return made


class Measured:
    """The rows of a data set as matrices of training seeds and images, the seeds that are finished.

    Without rows of training losses they are those of the two ladders alone, with the least perturbation of DiffViT.
    """

    def __init__(self, rows: RowsByTable) -> None:
        pgd, nearest = (rows["attack"].filter(attack=name) for name in ("pgd", "fab-t"))
        needed = {"pgd": (pgd, STEPS), "nearest": (nearest, (DIFFVIT,)), "margin": (rows["margin"], STEPS)}
        if "margin-train" in rows:
            needed = {"pgd": (pgd, SERIES), "nearest": (nearest, LADDER), "train": (rows["margin-train"], (*TRAINED,))}
            needed["margin"] = (rows["margin"], (*TRAINED, *CHANGED))
        seeds = [set(frame.filter(series=name)[SEED].to_list()) for frame, names in needed.values() for name in names]
        self.seeds = sorted(set.intersection(*seeds))
        kept = {table: frame.filter(pl.col(SEED).is_in(self.seeds)) for table, (frame, _) in needed.items()}
        self.rows = {table: frame.partition_by("series", as_dict=True) for table, frame in kept.items()}
        known = TRAINED if "train" in kept and self.seeds else ()
        self.losses = {name: self._matrix("train", name, pl.col("loss")) for name in known}

    def _matrix(self, table: str, series: str, value: pl.Expr, which: pl.Expr | bool = True) -> Matrix:
        values = pl.DataFrame(schema=[SEED, SAMPLE, "value"])
        if (rows := self.rows[table].get((series,))) is not None:
            values = rows.lazy().filter(which).select(SEED, SAMPLE, value=value).sort(SEED, SAMPLE).collect()
        seeds, samples = values[SEED].n_unique(), values[SAMPLE].n_unique()
        if not len(values) or len(values) != seeds * samples or values["value"].null_count():
            raise UserError(f"{series}: not every seed was measured on the same images; run the study again")
        return values["value"].to_numpy().reshape(seeds, samples)

    def broken(self, series: str, eps: float) -> Matrix:
        return self._matrix("pgd", series, ASR, (pl.col("eps") - eps).abs() < 1e-9)

    def correct(self, series: str) -> Matrix:
        right = pl.col("clean_prediction") == pl.col("label")
        return self._matrix("pgd", series, right, pl.col("eps") == pl.col("eps").min())

    def of(self, series: str, column: str) -> Matrix:
        """Return a column of the margins: ``margin``, ``norm1`` (‖g‖₁), ``positive`` (‖g_1‖₂), …."""
        return self._matrix("margin", series, pl.col(column))

    def distances(self, series: str) -> Matrix:
        distance = pl.when(pl.col("success")).then(pl.col("distance")).otherwise(np.inf)
        return self._matrix("nearest", series, distance)

    def gains(self, series: str) -> Matrix:
        """Return κ: how much longer the gradient is than with the two maps' parts at a right angle."""
        return self._matrix("margin", series, pl.col("norm1") / pl.col("right1"))

    def at_margins(self, series: str, values: Matrix, strata: int = STRATA) -> Matrix:
        population = [self.of(twin, "margin") for twin in (VIT, DIFFVIT)]
        return standardised(values, self.of(series, "margin"), population, strata)

    def even(self, series: str, eps: float, strata: int = STRATA) -> Matrix:
        """Return whether each image is broken, standardised to the clean margins of both twins."""
        return self.at_margins(series, self.broken(series, eps), strata)

    def at_loss(self, eps: float) -> Matrix:
        """Return whether ViT is broken at the training loss of DiffViT of the same seed.

        ASR is interpolated linearly in the loss between ViT and its shorter training, or extrapolated:
        s + w·(s_short − s), w = (L_DiffViT − L) / (L_short − L).
        """
        loss, shorter, diffvit = (self.losses[series].mean(1) for series in (VIT, SHORTER, DIFFVIT))
        gap = shorter - loss
        share = np.divide(diffvit - loss, gap, out=np.zeros_like(gap), where=np.abs(gap) > TINY)
        whole, short = (self.broken(series, eps) for series in (VIT, SHORTER))
        return whole + share[:, None] * (short - whole)

    def parts(self, eps: float) -> dict[str, Matrix]:
        """Return the parts of DiffViT − ViT at ε; all but the total and the angle add up to the total."""
        vit, normed, zero, diffvit = (self.even(series, eps) for series in LADDER)
        distance, gains = self.distances(DIFFVIT), self.gains(DIFFVIT)
        reached = [(reach <= eps + 1e-9).astype(float) for reach in (distance, distance * gains)]
        with_angle, without = (self.at_margins(DIFFVIT, values) for values in reached)
        total = self.broken(DIFFVIT, eps) - self.broken(VIT, eps)
        shares = (total, total - (diffvit - vit), normed - vit, zero - normed, diffvit - zero, with_angle - without)
        return dict(zip(PARTS, shares, strict=True))

    def other_order(self, eps: float) -> dict[str, Matrix]:
        even = [self.even(series, eps) for series in OTHER_LADDER]
        steps = zip((HEADS, SUBTRACTION, NORM), even, even[1:], strict=False)
        return {f"{name}, other order": after - before for name, before, after in steps}

    def differences(self, eps: float) -> dict[str, Matrix]:
        broken = self.broken(DIFFVIT, eps)
        gaps = {"as measured": broken - self.broken(VIT, eps)}
        gaps[AT_MARGINS] = self.even(DIFFVIT, eps) - self.even(VIT, eps)
        return gaps | ({AT_LOSS: broken - self.at_loss(eps)} if self.losses else {})

    def cosines(self, series: str) -> Matrix:
        """Return cosθ between the gradients that reach the image through A1 and through A2 with the same cotangent.

        cosθ = −mean⟨g_1, g_2⟩ / √(mean‖g_1‖²·mean‖g_2‖²) over the images of a seed, linearised in each image; the sign
        is that of the maps' own gradients, since g_2 has the factor −λ.
        """
        inner = self.of(series, "inner")
        squares = np.stack([np.square(self.of(series, name)) for name in ("positive", "negative")])
        sizes = squares.mean(2, keepdims=True)
        return -(inner + inner.mean(1, keepdims=True) * (1.0 - (squares / sizes).sum(0) / 2)) / np.sqrt(sizes.prod(0))

    def logarithms(self, series: str) -> dict[str, Matrix]:
        """Return ln of the least perturbation d, of the margin m, of ‖g‖₁ and of d in units of m / ‖g‖₁.

        ln d = ln m − ln ‖g‖₁ + ln(d·‖g‖₁ / m). Images that FAB does not break count at the largest distance found.
        """
        distance = self.distances(series)
        least = np.minimum(distance, distance[np.isfinite(distance)].max(initial=TINY))
        d, m, slope = map(_log, (least, self.of(series, "margin"), self.of(series, "norm1")))
        return dict(zip(LOGARITHMS, (d, m, slope, d - m + slope), strict=True))


def _log(values: Matrix) -> Matrix:
    return np.log(np.maximum(values, TINY))


def _mean(values: Matrix) -> Estimate:
    return crossed_mean(values.astype(float))


def _geometric(logarithms: Matrix, scale: float = 1.0) -> Estimate:
    one = _mean(logarithms)
    value, low, high = (scale * math.exp(end) for end in (one.value, one.low, one.high))
    return Estimate(value, low, high, one.n)


Entry = tuple[str, str, Estimate]


def _frame(measured: Measured, entries: Iterable[Entry]) -> pl.DataFrame:
    seeds, schema = len(measured.seeds), {"series": pl.String, "column": pl.String} | ESTIMATES
    rows = [(series, column, one.value, one.low, one.high, one.n, seeds) for series, column, one in entries]
    return pl.DataFrame(rows, schema, orient="row")


def _by_eps(
    measured: Measured,
    values: Callable[[float], Mapping[str, Matrix]],
    within: Callable[[Estimate], Estimate] = as_difference,
) -> pl.DataFrame:
    """Return the estimates of several series at every ε, which is the column in words and in ``eps``."""
    frames = []
    for eps in EPS:
        entries = [(name, eps_label(eps), within(_mean(matrix))) for name, matrix in values(eps).items()]
        frames.append(_frame(measured, entries).with_columns(eps=pl.lit(eps)))
    return pl.concat(frames)


def draw(rows: RowsByTable) -> Artefact:
    """Draw interventions, controls, what remains at equal margins and losses, and the parts of the difference."""
    plots, sheets, notes = list[Plot](), list[Table](), list[str]()
    sets = rows["attack"]["data"].unique(maintain_order=True).to_list()
    for data in sets:
        measured = Measured({name: frame.filter(data=data) for name, frame in rows.items()})
        suffix = f", {data}" if len(sets) > 1 else ""
        if not measured.seeds:
            notes.append(f"No training seed is finished yet{suffix}.")
            continue
        stem = f"causes-{data}" if suffix else "causes"
        both = in_both_orders(measured)
        plots += _plots(measured, suffix, stem, both)
        sheets += parts_tables(both, suffix, stem) + _tables(measured, suffix, stem)
        notes.append(_sentence(measured, both, suffix))
    return Artefact(plots, sheets, notes=[*notes, PAPER.words["notes"]["limits"]])


def _rates(measured: Measured, names: Iterable[str], *, matched: bool = False) -> pl.DataFrame:
    rate = measured.even if matched else measured.broken
    return pl.concat(_by_eps(measured, lambda eps, name=name: {name: rate(name, eps)}, as_share) for name in names)


def _at(data: pl.DataFrame, places: Mapping[str, float], title: str, x: str, y: str, **style: Any) -> tuple[Panel, ...]:
    place = pl.col("series").replace_strict(places, return_dtype=pl.Float64)
    some = data.with_columns(x=place, series="column").sort("x", maintain_order=True)
    return panels(some, title, "x", (x, y), percent=True, **style)


def parts_panels(parts: pl.DataFrame, title: str) -> tuple[Panel, ...]:
    """Return bars of the parts of the difference at every ε, by the first order of the steps."""
    first = parts.filter(pl.col("series").is_in(PARTS), pl.col("column") != ON_AVERAGE)
    style: dict[str, Any] = {"kind": "bar", "ticks": PARTS, "level": 0.0}
    return _at(first, _placed(PARTS), title, "", "difference in ASR", **style)


def in_both_orders(measured: Measured) -> pl.DataFrame:
    """Return the parts of the difference at every ε and on average, by both orders of the steps."""
    by_eps = {eps: measured.parts(eps) | measured.other_order(eps) for eps in EPS}
    means = {name: np.mean([parts[name] for parts in by_eps.values()], axis=0) for name in by_eps[EPS[0]]}
    entries = [(name, ON_AVERAGE, as_difference(_mean(matrix))) for name, matrix in means.items()]
    return pl.concat([_by_eps(measured, by_eps.__getitem__), _frame(measured, entries)], how="diagonal")


def parts_tables(parts: pl.DataFrame, suffix: str, stem: str) -> list[Table]:
    """Return the table of the parts of the difference."""
    named = parts.with_columns(pl.col("series").replace(PAPER.words["parts"]))
    return tables(named, PAPER.words["tables"]["parts"] + suffix, f"{stem}-parts", "series", "column", index="part")


def _plots(measured: Measured, suffix: str, stem: str, parts: pl.DataFrame) -> list[Plot]:
    rate, difference, minus = "attack success rate", "difference in ASR", "DiffViT − ViT"
    factors = SCALED | {DIFFVIT: 1.0}

    def at(frame: pl.DataFrame, places: Mapping[str, float], title: str, x: str, **style: Any) -> tuple[Panel, ...]:
        return _at(frame, places, f"{title}{suffix}", x, rate, **style)

    def bars(names: Mapping[str, str]) -> Any:
        asr = _rates(measured, names).filter(pl.col("eps").is_in(EPS[1:3]))
        return at(asr, _placed(names), "1/255 and 2/255", "", kind="bar", ticks=tuple(names.values()))

    remaining, style = _by_eps(measured, measured.differences), {"percent": True, "level": 0.0}
    drawn = {
        "lambda": [
            *at(_rates(measured, factors), factors, "as measured", "factor of λ"),
            *at(_rates(measured, factors, matched=True), factors, AT_MARGINS, "factor of λ"),
        ],
        "maps": bars({DIFFVIT: "as trained"} | {name: name for name in (MEAN, UNIFORM, *STOPPED)}),
        "controls": bars(TRAINED),
        "remaining": panels(remaining, f"{minus}{suffix}", "eps", ("ε", difference), scale="eps", **style),
        "parts": parts_panels(parts, f"{minus}{suffix}"),
    }
    return [PAPER.plot(f"{stem}-{name}", some, caption=name) for name, some in drawn.items()]


def _placed(names: Iterable[str]) -> dict[str, float]:
    return {name: float(number) for number, name in enumerate(names)}


def _tables(measured: Measured, suffix: str, stem: str) -> list[Table]:
    # clean predictions of the others are the trained model's
    known = [name for name in SERIES if name not in STOPPED]
    accuracy = [(name, "clean accuracy", as_share(_mean(measured.correct(name)))) for name in known]
    by_model = pl.concat([_frame(measured, accuracy), _rates(measured, SERIES)], how="diagonal")
    order = pl.col("series").replace_strict(_placed(SERIES))
    counts = (STRATA // 4, STRATA // 2, STRATA, 2 * STRATA, 4 * STRATA)
    by_strata = (lambda eps, n=n: {str(n): measured.even(DIFFVIT, eps, n) - measured.even(VIT, eps, n)} for n in counts)
    training, maps = ("training loss", "margin m", "gradient ‖g‖₁"), ("‖g_1‖₂", "‖g_2‖₂", "cosθ", "κ")
    both_maps = (DIFFVIT, BARE, NORMAL[DIFFVIT])
    numbers: dict[str, Any] = {"percent": False, "digits": 3}
    shown: dict[str, tuple[pl.DataFrame, str, dict[str, Any]]] = {
        "remaining": (_by_eps(measured, measured.differences), "compared", {}),
        "strata": (pl.concat(_by_eps(measured, even) for even in by_strata), "strata", {}),
        "asr": (by_model.sort(order, maintain_order=True), "model", {}),
        "matched": (_rates(measured, (*TRAINED, *CHANGED), matched=True), "model", {}),
        "distance": (_frame(measured, _distances(measured)), "model", numbers | {"digits": 2}),
        "training": (_frame(measured, _quantities(measured, TRAINED, *training)), "model", numbers),
        "angle": (_frame(measured, _quantities(measured, both_maps, *maps)), "model", numbers),
    }
    made, titles = [], PAPER.words["tables"]
    for name, (frame, index, style) in shown.items():
        made += tables(frame, titles[name] + suffix, f"{stem}-{name}", "series", "column", index=index, **style)
    return made


def _sentence(measured: Measured, parts: pl.DataFrame, suffix: str) -> str:
    """Return how the difference in ASR, its mean over ε, falls into parts, by both orders of the steps, in words."""
    means, words = parts.filter(column=ON_AVERAGE), {}
    for series, *numbers in means.select("series", "value", "low", "high", "n").iter_rows():
        value, interval = signed(Estimate(*numbers), "points")
        words[series] = f"{value.removesuffix(' points')} {interval}"
    starts = {"uniform": DIFFVIT, "normal": NORMAL[DIFFVIT]}
    cosines = {start: " ".join(signed(_mean(measured.cosines(name)), "")) for start, name in starts.items()}
    return filled(PAPER.words["notes"]["parts"], parts=words, of=suffix, over=over(means), **cosines)


_GEOMETRIC = {"margin m": "margin", "gradient ‖g‖₁": "norm1", "‖g_1‖₂": "positive", "‖g_2‖₂": "negative"}


def _distances(measured: Measured) -> Iterator[Entry]:
    """Yield the least perturbation and its factors for the ladder, and their ratio between the twins."""
    logs = {series: measured.logarithms(series) for series in LADDER}
    logs["DiffViT / ViT"] = {name: logs[DIFFVIT][name] - logs[VIT][name] for name in LOGARITHMS}
    for series, values in logs.items():
        for name, scale in zip(LOGARITHMS, (1.0 if "/" in series else 255.0, 1.0, 1.0, 1.0), strict=True):
            yield series, name + ", 255ths" * (name == LOGARITHMS[0]), _geometric(values[name], scale)


def _quantities(measured: Measured, models: Iterable[str], *names: str) -> Iterator[Entry]:
    """Yield quantities of some models by name: geometric means of margins and gradients, and means of others."""
    estimators: dict[str, Callable[[str], Estimate]] = {
        "training loss": lambda series: _mean(measured.losses[series]),
        "cosθ": lambda series: _mean(measured.cosines(series)),
        "κ": lambda series: _geometric(np.log(measured.gains(series))),
    }
    for name, column in _GEOMETRIC.items():
        estimators[name] = lambda series, column=column: _geometric(_log(measured.of(series, column)))
    return ((series, name, estimators[name](series)) for series in models for name in names)


def _at_each_eps(measured: Measured, words: str, values: Callable[[float], Matrix]) -> list[Check]:
    matrices = [values(eps).astype(float) for eps in EPS] if measured.seeds else []
    mean, *by_eps = map(_mean, [np.mean(matrices, axis=0), *matrices]) if matrices else [None] * (1 + len(EPS))
    beside = [Check(f"{words} at {eps_label(eps)}", one, decides=False) for eps, one in zip(EPS, by_eps, strict=True)]
    return [Check(f"{words} mean over ε", mean), *beside]


def _higher(measured: Measured, first: str, second: str) -> list[Check]:
    words = f"ASR({first}) − ASR({second})"
    return _at_each_eps(measured, words, lambda eps: measured.broken(first, eps) - measured.broken(second, eps))


def _remains(measured: Measured, name: str) -> list[Check]:
    return _at_each_eps(measured, f"ASR(DiffViT) − ASR(ViT), {name},", lambda eps: measured.differences(eps)[name])


def ladder_checks(measured: Measured) -> dict[str, list[Check]]:
    """Check what each step of the two ladders does, and the parts of the difference."""

    def part(name: str) -> list[Check]:
        return _at_each_eps(measured, f"part: {name},", lambda eps: measured.parts(eps)[name])

    return {
        "raises-asr": _higher(measured, DIFFVIT, VIT),
        "subtraction-raises-asr": _higher(measured, DIFFVIT, ZERO),
        "subtraction-raises-asr-bare": _higher(measured, BARE, BARE_ZERO),
        "heads-raise-asr": _higher(measured, BARE_ZERO, VIT),
        "no-subtraction-is-fragile": _higher(measured, ZERO, VIT),
        "fragile-at-equal-margins": part(SUBTRACTION),
        "angle-raises-asr": part(ANGLE),
        "margins-raise-asr": part(MARGINS),
        "remains-at-equal-margins": _remains(measured, AT_MARGINS),
        "norm-raises-asr": _higher(measured, NORMED, VIT),
    }


def checks(rows: RowsByTable) -> Checks:
    """Check each cause: the paper's explanation, and the alternatives to it."""
    measured = Measured(rows)
    without_a2, without_a1, _ = STOPPED
    return ladder_checks(measured) | {
        "gradient-of-a2": _higher(measured, without_a1, without_a2),
        "remains-at-equal-loss": _remains(measured, AT_LOSS),
        "parameters-raise-asr": _higher(measured, WIDER, VIT),
        "other-initial-weights": _higher(measured, NORMAL[DIFFVIT], NORMAL[VIT]),
    }


CAUSES = PAPER.study("causes", cells, draw, checks, partial(settings, depths=(1,)), by_data=True)
