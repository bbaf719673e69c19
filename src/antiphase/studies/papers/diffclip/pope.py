"""Table 3: POPE of a small vision-language model on the image tower of CLIP or DiffCLIP, without and under attack."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from antiphase.data.shards import TITLES
from antiphase.studies import IN_255THS, SAMPLE, Artefact, Check, Profile, RowsByTable, estimates, panels
from antiphase.studies.cells import AttackAnswers, Evaluate, Given, TrainClip, TrainVlm
from antiphase.studies.papers.declarations import Checks
from antiphase.studies.papers.diffclip import bench as towers
from antiphase.studies.papers.diffclip.bench import PAPER
from antiphase.studies.papers.diffclip.evaluations import (
    KEYS,
    MODEL,
    VALUE,
    clustered,
    estimated,
    gains,
    model_table,
    pretraining,
    published,
)
from antiphase.studies.scale import IN_SHORT, clips_in_short
from antiphase.terminal import eps_label
from antiphase.vlm.model import Style
from antiphase.vlm.pope import ALL, SAMPLINGS, answer_rates, pope_values

_CLEAN = "clean"
FALSE_YES = "false yes"


@dataclass(frozen=True)
class VlmBench:
    """The scale of the study."""

    language: str
    preset: str
    captions: str
    instructions: str
    pope: str
    suffix: str = ""
    prompt: Style | None = None
    towers: Mapping[str, Any] = field(default_factory=dict)
    align: Mapping[str, Any] = field(default_factory=dict)
    tune: Mapping[str, Any] = field(default_factory=dict)
    caption_limit: int | None = None
    question_limit: int | None = None
    images: int | None = None
    attacked: int | None = None
    eps_255: tuple[float, ...] = (2, 4)
    steps: int = 100
    seeds: int = 3

    @property
    def eps(self) -> tuple[float, ...]:
        return tuple(eps / 255 for eps in self.eps_255)

    def train(self, tower: TrainClip | Given, seed: int) -> TrainVlm:
        """Return stage 2, which needs stage 1."""
        both: dict[str, Any] = {"seed": seed, "preset": self.preset}
        one = {"limit": self.caption_limit, "recipe": dict(self.align), "language": self.language, **both}
        two = {"limit": self.question_limit, "recipe": dict(self.tune), **both}
        first = TrainVlm(start=tower, data=self.captions, prompt=self.prompt, **one)
        return TrainVlm(start=first, data=self.instructions, **two)

    def measure(self, model: TrainVlm) -> list[Evaluate | AttackAnswers]:
        common: dict[str, Any] = {"model": model, "data": self.pope}
        attack = {"eps": self.eps, "settings": {"steps": self.steps}}
        return [
            Evaluate(**common, task="pope", limit=self.images, protocol={"suffix": self.suffix} if self.suffix else {}),
            AttackAnswers(**common, **attack, limit=self.attacked, suffix=self.suffix),
        ]


BENCHES = PAPER.benches(VlmBench)


def _towers(profile: Profile) -> towers.DiffclipBench:
    return replace(towers.bench(profile), **BENCHES[profile.name].towers)


def models(profile: Profile) -> list[TrainVlm]:
    """Return the models by tower and seed; on a tower that the profile names, each has one seed, the tower's."""
    sizes, base = BENCHES[profile.name], _towers(profile)
    if base.given:
        return [sizes.train(tower, tower.seed) for tower in base.given]
    seeds = profile.seeds_or(sizes.seeds)
    return [sizes.train(base.train(variant, seed), seed) for variant in towers.TWINS for seed in seeds]


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on the page."""
    sizes, base = BENCHES[profile.name], _towers(profile)
    if base.given:
        about = {"models": towers.models_in_words(base.given)}
    else:
        short = clips_in_short([base.train("clip", 0)])
        about = {"towers trained on": TITLES.get(base.main, base.main)}
        about["model of the towers"] = PAPER.settings("trained", bench=base, sets=base.main)["model"]
        about[IN_SHORT] = f"{sizes.language} with the image towers of {short}"
    return about | PAPER.settings("vlm", bench=sizes)


def scores(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each question and metric of :func:`~antiphase.vlm.pope.pope_values`.

    The questions about an image are one sample.
    """
    keys = [*MODEL, "task", "data"]
    named = rows.with_columns(pretraining=pretraining(), task="setting", **{SAMPLE: pl.col("group").cast(pl.String)})
    observed = [
        block.with_columns(data=pl.lit(name), value=pl.Series(values)).select(*keys, SAMPLE, "value")
        for block in named.partition_by([*MODEL, "task"], maintain_order=True)
        for name, values in pope_values(block).items()
    ]
    return clustered(pl.concat(observed), keys)


def hallucinations(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the share of yes to absent objects of each image: the hallucination rate, without and under attack."""
    named = rows.with_columns(pretraining=pretraining(), samplings=pl.col("samplings").str.split(","))
    named = named.with_columns(model=pl.format("{}/{}/{}", *MODEL))
    rates = answer_rates(named).filter(metric=FALSE_YES)
    budget = pl.when(pl.col("eps") > 0).then(IN_255THS).otherwise(pl.lit(_CLEAN))
    return rates.join(named.select("model", *MODEL).unique(), on="model", maintain_order="left").select(
        *MODEL, task="sampling", data=budget, value="value", **{SAMPLE: pl.col("image").cast(pl.String)}
    )


def rises(observed: pl.DataFrame) -> pl.DataFrame:
    """Return how much each image's hallucination rate rises from no attack to each budget."""
    keys = [*MODEL, "task", SAMPLE]
    before = observed.filter(data=_CLEAN).select(*keys, before="value")
    under = observed.filter(pl.col("data") != _CLEAN).join(before, on=keys, maintain_order="left")
    return under.with_columns(value=pl.col("value") - pl.col("before")).drop("before")


def draw(rows: RowsByTable) -> Artefact:
    """Show a table for each sampling, and the hallucination rate by budget as a table and as bars."""
    means, paper = estimated(scores(rows["evaluate"])), published("table-3")
    name, words, listed = "diffclip-table-3", "Yes to absent objects, ", []
    for sampling in SAMPLINGS:
        listed += model_table(f"{name}-{sampling}", f"POPE, {sampling}", means.filter(task=sampling), paper, digits=2)
    observed = hallucinations(rows["answers"]).filter(task=ALL)
    rates, rise = estimated(observed), estimates(rises(observed), KEYS, VALUE, "difference")
    listed += model_table(f"{name}-attacked", f"{words}by budget of the attack", rates, paper)
    listed += model_table(f"{name}-rise", f"{words}difference to the clean images", rise, paper)
    ticks = rates["data"].unique(maintain_order=True).to_list()
    place = pl.col("data").replace_strict({tick: float(number) for number, tick in enumerate(ticks)})
    title, labels = "towers trained on {pretraining}", ("ε", "yes to absent objects")
    drawn = panels(rates, title, place, labels, kind="bar", ticks=tuple(ticks), percent=True)
    return Artefact([PAPER.plot(f"{name}-attacked", drawn)], listed)


def _checks(rows: RowsByTable) -> Checks:
    observed, rise = scores(rows["evaluate"]), rises(hallucinations(rows["answers"]))

    def better(*metrics: str) -> list[Check]:
        return [check for name in metrics for check in gains(observed, SAMPLINGS, data=name, told=True)]

    return {
        "pope-accuracy": better("accuracy"),
        "pope-every-metric": better("accuracy", "precision", "recall"),
        "pope-f1": better("F1"),
        "hallucinations-under-attack": gains(rise, [ALL], data=_smallest(rows)["smallest"], told=True),
    }


def _smallest(rows: RowsByTable) -> dict[str, str]:
    return {"smallest": eps_label(rows["answers"]["eps"].min())}  # type: ignore[arg-type]


TABLE_3 = PAPER.study(
    "diffclip-table-3",
    lambda profile: [cell for model in models(profile) for cell in BENCHES[profile.name].measure(model)],
    draw,
    _checks,
    settings,
    fill=_smallest,
)
