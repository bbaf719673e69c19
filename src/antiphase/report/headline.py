"""The finding in words, as strong as its intervals allow and no stronger."""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import polars as pl

from antiphase.report.stored import StoredRun
from antiphase.report.wording import (
    attack_label,
    eps_label,
    p_text,
    percent,
    percent_range,
    points,
    points_range,
)


@dataclass(frozen=True)
class Rate:
    """One model's or family's rate, written out."""

    name: str
    color: str
    percent: str
    interval: str


@dataclass(frozen=True)
class Headline:
    """One sentence, the sentences that carry its numbers, and the rates that it is about, in percent."""

    title: str
    lead: str
    eps: str
    rates: tuple[Rate, ...]


def headlines(run: StoredRun) -> list[Headline]:
    """State what the first attack of the run shows, one headline for each two models that were compared.

    Pairs that stand for training seeds of the same two families are averaged, and the interval is that over
    the seeds; a single pair has its paired interval. The quoted ε is the middle one of the list (the lower of
    two), so that it cannot be chosen after the fact.
    """
    first = run.results.row(0, named=True)
    mine = (pl.col("attack") == first["attack"]) & (pl.col("norm") == first["norm"])
    attack = attack_label(first["attack"], first["norm"])
    owner = {model: family.name for family in run.families for model in family.models}

    means = run.mean_comparisons.filter(mine)
    found = [
        _of_families(run, attack, mine, str(family), str(against), frame.rename({"value": "difference"}))
        for (family, against), frame in means.group_by(["family", "against_family"], maintain_order=True)
    ]
    averaged = set(means.select("family", "against_family").rows())
    comparisons = run.comparisons.filter(mine)
    for (model, against), frame in comparisons.group_by(["model", "against"], maintain_order=True):
        if (owner[str(model)], owner[str(against)]) not in averaged:
            found.append(_of_models(run, attack, mine, str(model), str(against), frame))
    return found or [_without_twin(run, attack, mine)]


def _of_models(
    run: StoredRun, attack: str, mine: pl.Expr, model: str, against: str, frame: pl.DataFrame
) -> Headline:
    at = _middle(frame)
    rates = tuple(_rate(run, run.results.filter(mine), "model", name, at["eps"]) for name in (model, against))
    accuracy = dict(run.accuracy.select("model", "value").iter_rows())
    lead = (
        f"{_at_middle(frame)}, {attack} changes {rates[0].percent}% of {at['n']:,} predictions of {model} "
        f"and {rates[1].percent}% of {against}’s: a difference of {points(at['difference'])} points (95% "
        f"interval {points_range(at['low'], at['high'])}; exact McNemar {p_text(at['p_value'])}). "
        f"On clean images they are right in {percent(accuracy[model])}% and {percent(accuracy[against])}%."
    )
    return Headline(_title(model, against, frame), lead, eps_label(at["eps"]), rates)


def _of_families(
    run: StoredRun, attack: str, mine: pl.Expr, family: str, against: str, frame: pl.DataFrame
) -> Headline:
    at = _middle(frame)
    means = run.mean_results.filter(mine)
    rates = tuple(_rate(run, means, "family", name, at["eps"]) for name in (family, against))
    images = run.accuracy["n"].max()
    clean = {
        group.name: fmean(run.accuracy.filter(pl.col("model").is_in(group.models))["value"].to_list())
        for group in run.families
    }
    lead = (
        f"{_at_middle(frame)}, {attack} changes on average {rates[0].percent}% of the predictions of "
        f"{family} and {rates[1].percent}% of {against}’s: a difference of {points(at['difference'])} points "
        f"over {at['n']} pairs of training seeds, each pair on the same {images:,} images (95% intervals: "
        f"{points_range(at['image_low'], at['image_high'])} over the images, for these weights; "
        f"{points_range(at['low'], at['high'])} over the seeds, Student’s t). "
        f"On clean images they are right in {percent(clean[family])}% and {percent(clean[against])}%."
    )
    return Headline(_title(family, against, frame), lead, eps_label(at["eps"]), rates)


def _without_twin(run: StoredRun, attack: str, mine: pl.Expr) -> Headline:
    model = run.models[0]["name"]
    frame = run.results.filter(mine & (pl.col("model") == model) & (pl.col("metric") == "asr"))
    at = _middle(frame)
    rate = _rate(run, frame, "model", model, at["eps"])
    title = f"{attack} changes {rate.percent}% of {model}’s predictions at ε = {eps_label(at['eps'])}"
    lead = (
        f"95% interval {rate.interval}, from {at['n']:,} images. No two models were "
        "compared in this run, so nothing here tells what the attention contributes."
    )
    return Headline(title, lead, eps_label(at["eps"]), (rate,))


def _title(model: str, against: str, frame: pl.DataFrame) -> str:
    """Count at how many ε the interval lies off zero, and on which side."""
    total = len(frame)
    more, less = int((frame["low"] > 0).sum()), int((frame["high"] < 0).sum())
    at_one = f"at ε = {eps_label(frame['eps'][0])}"
    if not more and not less:
        return f"{model} and {against} cannot be told apart {'at any ε tried' if total > 1 else at_one}"
    if more and less:
        return f"{model} breaks more often than {against} at {more} of {total} ε, less often at {less}"
    often = "more" if more else "less"
    where = at_one if total == 1 else "at every ε tried"
    if more + less < total:
        where = f"at {more + less} of {total} ε; at the others the interval includes zero"
    return f"{model} breaks {often} often than {against} {where}"


def _middle(frame: pl.DataFrame) -> dict[str, Any]:
    return frame.sort("eps").row((len(frame) - 1) // 2, named=True)


def _at_middle(frame: pl.DataFrame) -> str:
    place = f", the middle of the {len(frame)} that were tried" if len(frame) > 2 else ""
    return f"At ε = {eps_label(_middle(frame)['eps'])}{place}"


def _rate(run: StoredRun, frame: pl.DataFrame, column: str, name: str, eps: float) -> Rate:
    asr = (pl.col("metric") == "asr") & (pl.col(column) == name) & (pl.col("eps") == eps)
    entry = frame.row(by_predicate=asr, named=True)
    color = next(family.color for family in run.families if name in (family.name, *family.models))
    return Rate(name, color, percent(entry["value"]), percent_range(entry["low"], entry["high"]))
