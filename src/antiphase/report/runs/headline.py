"""The headline of a report: the answer first, then its number with the interval, then the condition.

A headline compares two models (or two families, averaged over their training seeds) under the first attack of the run,
and quotes one ε. It depends on which differences are decided, see :mod:`antiphase.statistics.decisions`:

- If some are, the title says on which side of zero they lie. The quoted ε is the one of them nearest to the middle of
  the list (the smaller of two), not the one with the largest difference.
- If none is, the title says what is not decided, and the quoted ε is the middle one (the lower of two).

The sentences below list, for every attack, the ε at which the difference is decided.
"""

import re
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import polars as pl

from antiphase.budgets import eps_label
from antiphase.report.runs.stored import StoredRun
from antiphase.report.words import (
    attack_condition,
    attack_label,
    p_text,
    percent,
    percent_range,
    points_interval,
)
from antiphase.statistics.decisions import LEAST_SEEDS
from antiphase.statistics.intervals import as_share, mean_over_seeds


@dataclass(frozen=True)
class Rate:
    """The rate of one model or family, formatted."""

    name: str
    color: str
    percent: str
    interval: str


@dataclass(frozen=True)
class Headline:
    """A title, the sentences below it, and the rates that they quote, in percent."""

    title: str
    lead: str
    eps: str
    rates: tuple[Rate, ...]


def headlines(run: StoredRun) -> list[Headline]:
    """State what the run shows, one headline for each pair of models or families.

    Pairs of the same two families are averaged over their training seeds and get Student's t interval over the seeds;
    a single pair gets its paired interval.
    """
    owner = {model: family.name for family in run.families for model in family.models}
    means = run.mean_comparisons
    found = [
        _of_families(run, str(family), str(against), frame.rename({"value": "difference"}))
        for (family, against), frame in means.group_by(["family", "against_family"], maintain_order=True)
    ]
    averaged = set(means.select("family", "against_family").rows())
    for (model, against), frame in run.comparisons.group_by(["model", "against"], maintain_order=True):
        if (owner[str(model)], owner[str(against)]) not in averaged:
            found.append(_of_models(run, str(model), str(against), frame))
    return found or [_without_twin(run)]


def _of_models(run: StoredRun, model: str, against: str, frame: pl.DataFrame) -> Headline:
    own = frame.filter(_first_attack(run))
    at = _quoted(own)
    rates = tuple(_rate(run, name, (name,), at["eps"]) for name in (model, against))
    accuracy = dict(run.accuracy.select("model", "value").iter_rows())
    lead = (
        f"The attack changes {rates[0].percent} % of the predictions of {model} and {rates[1].percent} % of "
        f"{against} (exact McNemar {p_text(at['p_value'])}). {_elsewhere(frame)}"
        f"Their clean accuracies are {percent(accuracy[model])} % and {percent(accuracy[against])} %."
    )
    title = _title(model, against, own, f"{at['n']:,} images, {_condition(run)}")
    return Headline(title, lead, eps_label(at["eps"]), rates)


def _of_families(run: StoredRun, family: str, against: str, frame: pl.DataFrame) -> Headline:
    own = frame.filter(_first_attack(run))
    at = _quoted(own)
    members = {group.name: group.models for group in run.families}
    sides = zip(
        *((a, b) for a, b in run.pairs if a in members[family] and b in members[against]), strict=True
    )
    paired = dict(zip((family, against), sides, strict=True))
    rates = tuple(_rate(run, name, models, at["eps"]) for name, models in paired.items())
    clean = [
        percent(fmean(run.accuracy.filter(pl.col("model").is_in(models))["value"].to_list()))
        for models in paired.values()
    ]
    lead = (
        f"The attack changes on average {rates[0].percent} % of the predictions of {family} and "
        f"{rates[1].percent} % of {against}. The interval is Student’s t over the training seeds; over the images, "
        f"with the weights held fixed, it is {points_interval(at['difference'], at['image_low'], at['image_high'])}. "
        f"{_too_few(at['n'])}{_elsewhere(frame)}Their mean clean accuracies are {clean[0]} % and {clean[1]} %."
    )
    title = _title(
        family, against, own, f"{at['n']} seeds, {run.accuracy['n'].max():,} images, {_condition(run)}"
    )
    return Headline(title, lead, eps_label(at["eps"]), rates)


def _without_twin(run: StoredRun) -> Headline:
    model = run.models[0]["name"]
    frame = run.results.filter(_first_attack(run), pl.col("model") == model, pl.col("metric") == "asr")
    at = _middle(frame)
    rate = _rate(run, model, (model,), at["eps"])
    label = attack_label(*run.results.select("attack", "norm").row(0))
    title = f"{label} changes {rate.percent} % of the predictions of {model} at ε = {eps_label(at['eps'])}"
    lead = (
        f"95 % interval {rate.interval} %, from {at['n']:,} images. This run compares no "
        "two models, so it does not show the effect of the attention."
    )
    return Headline(title, lead, eps_label(at["eps"]), (rate,))


def _title(model: str, against: str, frame: pl.DataFrame, condition: str) -> str:
    at = _quoted(frame)
    more, less = _decided(frame, 1), _decided(frame, -1)
    if "p_value" not in frame.columns and at["n"] < LEAST_SEEDS:
        answer = (
            f"{at['n']} training seeds leave undecided whether {model} is broken more often than {against}"
        )
    elif not more and not less:
        answer = f"No difference shown between {model} and {against}"
    elif more and less:
        answer = (
            f"{model} is broken more often than {against} at {len(more)} of {len(frame)} ε, "
            f"less often at {len(less)}"
        )
    else:
        answer = f"{model} is broken {'more' if more else 'less'} often than {against}"
    number = points_interval(at["difference"], at["low"], at["high"])
    return f"{answer}: {number} at ε = {eps_label(at['eps'])} ({condition})"


def _too_few(seeds: int) -> str:
    return "" if seeds >= LEAST_SEEDS else f"Fewer than {LEAST_SEEDS} training seeds decide nothing. "


def _elsewhere(frame: pl.DataFrame) -> str:
    """List for every attack the ε at which the difference is decided; return nothing if there is only one ε."""
    if len(frame) == 1:
        return ""
    blocks = frame.group_by(["attack", "norm"], maintain_order=True)
    said = [
        f"Under {attack_label(str(attack), str(norm))} the difference {_signs(block)}."
        for (attack, norm), block in blocks
    ]
    return f"{' '.join(said)} Decisions are corrected for the number of ε (Holm), intervals and p-values are not. "


def _signs(frame: pl.DataFrame) -> str:
    said = [
        f"{side} zero at {len(eps)} of {len(frame)} ε ({', '.join(map(eps_label, eps))})"
        for side, eps in (("above", _decided(frame, 1)), ("below", _decided(frame, -1)))
        if eps
    ]
    return f"lies {' and '.join(said)}" if said else f"is undecided at all {len(frame)} ε"


def _decided(frame: pl.DataFrame, sign: int) -> list[float]:
    return frame.filter(decided=sign)["eps"].sort().to_list()


def _quoted(frame: pl.DataFrame) -> dict[str, Any]:
    """Return the row of the ε that a headline quotes."""
    rows = frame.sort("eps").rows(named=True)
    middle = (len(rows) - 1) // 2
    decided = [at for at, row in enumerate(rows) if row["decided"]]
    return rows[min(decided, key=lambda at: abs(at - middle), default=middle)]


def _middle(frame: pl.DataFrame) -> dict[str, Any]:
    return frame.sort("eps").row((len(frame) - 1) // 2, named=True)


def _first_attack(run: StoredRun) -> pl.Expr:
    attack, norm = run.results.select("attack", "norm").row(0)
    return (pl.col("attack") == attack) & (pl.col("norm") == norm)


def _condition(run: StoredRun) -> str:
    attack, norm = run.results.select("attack", "norm").row(0)
    return attack_condition(attack, norm, _steps(run.run["settings"], attack))


def _steps(settings: dict[str, Any], attack: str) -> int | None:
    """Return the number of steps of an attack; runs stored before November 2026 have its settings as a text."""
    own = settings.get(attack, settings)
    if isinstance(own, str):
        found = re.search(r"\bsteps (\d+)", own)
        return int(found[1]) if found else None
    return own.get("steps")


def _rate(run: StoredRun, name: str, models: tuple[str, ...], eps: float) -> Rate:
    """Return the attack success rate of a model, or its mean over the models of a family."""
    here = _first_attack(run) & (pl.col("metric") == "asr") & (pl.col("eps") == eps)
    rows = {row["model"]: row for row in run.results.filter(here).iter_rows(named=True)}
    color = next(family.color for family in run.families if name in (family.name, *family.models))
    if len(models) == 1:
        own = rows[models[0]]
        return Rate(name, color, percent(own["value"]), percent_range(own["low"], own["high"]))
    mean = as_share(mean_over_seeds([rows[model]["value"] for model in models]))
    return Rate(name, color, percent(mean.value), percent_range(mean.low, mean.high))
