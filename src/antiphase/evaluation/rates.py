"""Rates, intervals and paired comparisons from one row per attacked image; averages over training seeds.

A row holds ``model``, ``attention`` ("softmax", "differential", "none" or "unknown"), ``seed`` (of the training; may
be null), ``attack``, ``norm``, ``eps`` (of the [0, 1] pixel), ``sample`` (its id), ``label``, ``clean_prediction``,
``prediction`` (of the adversarial image), ``success`` (it differs from the clean one), ``felled_by`` (the attack of an
ensemble that broke it, or null), ``distance``, ``forwards``, ``backwards``, ``attack_seed``.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from antiphase.errors import UserError
from antiphase.statistics import intervals, seeds_by_images
from antiphase.statistics.decisions import decide, mcnemar_exact

MODEL_SCHEMA: dict[str, Any] = {"model": pl.String, "attention": pl.String, "seed": pl.Int64}
_CELL = {"attack": pl.String, "norm": pl.String, "eps": pl.Float64}
_ESTIMATE = dict.fromkeys(("value", "low", "high"), pl.Float64) | {"n": pl.Int64}
ROW_SCHEMA = MODEL_SCHEMA | _CELL | dict.fromkeys(("sample", "label", "clean_prediction", "prediction"), pl.Int64)
ROW_SCHEMA |= {"success": pl.Boolean, "felled_by": pl.String, "distance": pl.Float64}
ROW_SCHEMA |= dict.fromkeys(("forwards", "backwards", "attack_seed"), pl.Int64)
COMPARISON_SCHEMA: dict[str, Any] = dict.fromkeys(("model", "against"), pl.String) | _CELL
COMPARISON_SCHEMA |= dict.fromkeys(("difference", "low", "high", "p_value"), pl.Float64) | {"n": pl.Int64}
Families = Mapping[str, Sequence[str]]  # models that differ in the training seed alone, by the family's name
Pairs = Sequence[tuple[str, str]]  # models, each with the one that it is compared with


def rates(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate the three rates of each model, attack, norm and ε, with 95 % Wilson intervals.

    ``asr`` is broken / all, ``asr_correct`` correctly classified and broken / correctly classified (omitted if there
    is none), ``robust_accuracy`` correctly classified and not broken / all. Models and attacks keep their order.
    """
    _refuse_repeats(rows)
    correct, broken = pl.col("clean_prediction") == pl.col("label"), pl.col("success")
    counts = {
        "asr": (broken, pl.len()),
        "asr_correct": (correct & broken, correct.sum()),
        "robust_accuracy": (correct & ~broken, pl.len()),
    }
    cells = _ordered(rows).group_by("model", *_CELL, maintain_order=True)
    hits_of = pl.concat_list(pl.struct(hits=hits.sum(), n=n) for hits, n in counts.values()).alias("counts")
    numbers = cells.agg(hits_of, metric=pl.lit(list(counts)))
    return _proportions(numbers.explode("metric", "counts").unnest("counts").filter(pl.col("n") > 0))


def clean_accuracy(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate the clean accuracy of each model, in the order of the rows: ``model, value, low, high, n``."""
    images = rows.unique(["model", "sample"], keep="first", maintain_order=True)
    right = pl.col("clean_prediction") == pl.col("label")
    return _proportions(images.group_by("model", maintain_order=True).agg(hits=right.sum(), n=pl.len()))


def _proportions(counts: pl.DataFrame) -> pl.DataFrame:
    numbers = [tuple(vars(intervals.proportion(*row)).values()) for row in counts.select("hits", "n").iter_rows()]
    return counts.drop("hits", "n").hstack(pl.DataFrame(numbers, _ESTIMATE, orient="row"))


def not_above_chance(accuracy: pl.DataFrame, num_classes: Mapping[str, int]) -> list[str]:
    """Return a warning for each model whose :func:`clean_accuracy` is not above chance, 1 / number of classes."""
    return [
        f"{model}: clean accuracy {100 * value:.1f} % [{100 * low:.1f}, {100 * high:.1f}] on {n} images is not above "
        f"chance, {100 / num_classes[model]:.3g} %: check that the model and the data have the same classes"
        for model, value, low, high, n in accuracy.select("model", "value", "low", "high", "n").iter_rows()
        if low <= 1 / num_classes[model]
    ]


def compare(rows: pl.DataFrame, model: str, against: str) -> pl.DataFrame:
    """Compare the ASR of two models on the same images, asr(model) − asr(against), for each attack, norm and ε.

    The interval is Newcombe's for paired proportions, p McNemar's exact one, not corrected for multiple comparisons.
    """
    _refuse_repeats(rows)
    for name in (model, against):
        if name not in rows["model"]:
            known = ", ".join(rows["model"].unique(maintain_order=True))
            raise UserError(f"no rows of model {name!r}: expected one of {known}")
    mine, other = (rows.filter(model=name) for name in (model, against))
    pairs = mine.join(other, on=[*_CELL, "sample"], suffix="_against")
    if not len(pairs) == len(mine) == len(other):
        shared = f"share {len(pairs)} of {len(mine)} and {len(other)} attacked images"
        raise UserError(f"{model!r} and {against!r} {shared}: attack the same images with the same settings")
    results = []
    for key, cell in _ordered(pairs).group_by([*_CELL], maintain_order=True):
        broken = cell["success"].to_numpy(), cell["success_against"].to_numpy()
        *apart, n = vars(intervals.paired_difference(*broken)).values()
        results.append((model, against, *key, *apart, mcnemar_exact(*broken), n))
    return pl.DataFrame(results, COMPARISON_SCHEMA, orient="row")


def with_decisions(comparisons: pl.DataFrame) -> pl.DataFrame:
    """Add a column ``decided`` to differences of ASR, each decided with those at the other ε of its attack."""
    single = "p_value" in comparisons.columns
    sides = ("model", "against") if single else ("family", "against_family")
    comparisons = comparisons.with_row_index("place")
    blocks = [comparisons.clear().with_columns(decided=pl.lit(0, pl.Int64))]
    for _, block in comparisons.group_by(*sides, "attack", "norm", maintain_order=True):
        numbers = block.select("difference", "low", "high", "n").rows()
        p_values = block["p_value"].to_list() if single else None
        signs = decide([intervals.Estimate(*row) for row in numbers], p_values, seeds=1 if single else numbers[0][3])
        blocks.append(block.with_columns(decided=pl.Series(signs, dtype=pl.Int64)))
    return pl.concat(blocks).sort("place").drop("place")


def summarise_rates(rows: pl.DataFrame, cards: Sequence[Mapping[str, Any]], pairs: Pairs) -> dict[str, Any]:
    """Return the content of ``summary.json`` (version 1), ready for JSON; ``pairs`` are (model, against)."""
    summary = {"version": 1, "models": described_models(rows, cards), "results": rates(rows).to_dicts()}
    compared = [line for pair in pairs for line in compare(rows, *pair).drop("norm", "n").to_dicts()]
    return summary | {"comparisons": compared}


def described_models(rows: pl.DataFrame, cards: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the part ``models`` of ``summary.json``: the cards with each model's clean accuracy."""
    accuracy = dict(clean_accuracy(rows).select("model", "value").iter_rows())
    if missing := {card["name"] for card in cards} - accuracy.keys():
        raise UserError(f"no rows of model {min(missing)!r}: expected rows of every model that has a card")
    return [
        {name: card[name] for name in ("name", "attention", "seed")}
        | {"clean_accuracy": accuracy[card["name"]], "lambda": list(card["lambda"])}
        | {name: card[name] for name in ("num_classes", "defended") if card.get(name)}  # to tell chance, and for advice
        for card in cards
    ]


def by_seed(models: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Group the names of models by attention and by name without the seed at its end, under the family's name."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    seeds = {model["name"]: model["seed"] for model in models}
    for model in models:
        name, seed = model["name"], model["seed"]
        stem = name if seed is None else re.sub(rf"[-_]?(seed|s)?[-_]?(?<!\d){seed}$", "", name) or name
        same = groups.setdefault((model["attention"], stem, seed is None), [])
        if seed in map(seeds.get, same):  # not the same models, trained with several seeds
            same = groups.setdefault((model["attention"], name, seed is None), [])
        same.append(name)
    taken = [stem for _, stem, _ in groups] + [model["name"] for model in models]
    return {
        (stem if taken.count(stem) == 1 else f"{stem}, {attention}") if len(names) > 1 else names[0]: names
        for (attention, stem, _), names in groups.items()
    }


def over_seeds(frame: pl.DataFrame, keys: Sequence[str], column: str, within: intervals.Within) -> pl.DataFrame:
    """Average a column over each group of at least two rows, one per seed, with Student's t, cut by ``within``."""
    groups = [(key, group[column]) for key, group in frame.group_by(keys, maintain_order=True) if len(group) > 1]
    means = [(*key, *vars(within(intervals.mean_over_seeds(values.to_list()))).values()) for key, values in groups]
    return pl.DataFrame(means, {**frame.select(keys).schema, **_ESTIMATE}, orient="row")


def family_results(results: pl.DataFrame, families: Families) -> pl.DataFrame:
    """Average each rate over the seeds of each family: ``family, attack, norm, eps, metric, value, low, high, n``."""
    named = results.with_columns(family=_family("model", families))
    return over_seeds(named, ["family", *_CELL, "metric"], "value", intervals.as_share)


def family_comparisons(comparisons: pl.DataFrame, families: Families) -> pl.DataFrame:
    """Average the paired differences of each two families over their pairs, unless two pairs share a model."""
    keys = ["family", "against_family", *_CELL]
    pairs = comparisons.with_columns(family=_family("model", families), against_family=_family("against", families))
    unshared = [pl.col(side).n_unique().over(keys) == pl.len().over(keys) for side in ("model", "against")]
    means = over_seeds(pairs.filter(*unshared), keys, "difference", intervals.as_difference)
    return means.rename({"value": "difference"})


def over_images(rows: pl.DataFrame, pairs: Pairs) -> pl.DataFrame:
    """Average the paired differences of ASR over the pairs, with an interval over the images for these weights.

    For one pair it is Newcombe's; for several, with dᵢ the mean difference at image i, that of
    :func:`~antiphase.statistics.seeds_by_images.crossed_mean`, clipped to [−1, 1]: ``image_low, image_high``.
    """
    if len(pairs) == 1:
        return compare(rows, *pairs[0]).select(*_CELL, image_low="low", image_high="high")
    success = pl.col("success").cast(pl.Float64)
    sides = [(name, sign) for pair in pairs for name, sign in zip(pair, (1.0, -1.0), strict=True)]
    signed = [rows.filter(model=name).select(*_CELL, "sample", signed=sign * success) for name, sign in sides]
    images = pl.concat(signed).group_by(*_CELL, "sample", maintain_order=True).agg(d=pl.sum("signed") / len(pairs))
    spans = []
    for key, block in images.group_by(*_CELL, maintain_order=True):
        span = intervals.as_difference(seeds_by_images.crossed_mean(block["d"].to_numpy()[None]))
        spans.append((*key, span.low, span.high))
    return pl.DataFrame(spans, [*_CELL, "image_low", "image_high"], orient="row")


def _family(column: str, families: Families) -> pl.Expr:
    owner = {model: name for name, models in families.items() for model in models}
    return pl.col(column).replace_strict(owner, return_dtype=pl.String)


def _ordered(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort by model, attack, norm and ε, with models and attacks in the order of their first rows."""
    order = [pl.col(name).cast(pl.Enum(rows[name].unique(maintain_order=True))) for name in ("model", "attack", "norm")]
    return rows.sort(*order, "eps", maintain_order=True)


def _refuse_repeats(rows: pl.DataFrame) -> None:
    key = rows.select("model", *_CELL, "sample")
    if len(repeated := key.filter(key.is_duplicated())):
        model, attack, _, eps, sample = repeated.row(0)
        rows_of = f"rows of sample {sample} for {model}, {attack}, ε = {eps:g}"
        raise UserError(f"duplicate {rows_of}: repeat the run in an empty folder")
