"""Table 3: POPE of a small vision-language model on the image tower of CLIP or DiffCLIP, without and under attack.

Models by profile. ``paper``: Qwen2.5-0.5B-Instruct on the towers trained on CC12M, or on those of ``--models``. LLaVA's
files lie in the data folder: ``blip_laion_cc_sbu_558k.json`` with its images in ``LLaVA-Pretrain``,
``llava_v1_5_mix665k.json`` with COCO's below ``LLaVA-Tuning/coco``, and POPE's three files. As with TinyLLaVA's scripts
for Qwen, conversations have LLaVA's format and POPE's questions LLaVA's suffix. It has never been run. ``laptop``:
SmolLM2-135M-Instruct on the towers of the other studies, with captions of and questions about ``emoji-objects``;
smaller budgets, too, since all answers of a model that was tried changed at 2/255. ``smoke``: a language model of
random weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from antiphase.budgets import eps_label
from antiphase.data.shards import TITLES
from antiphase.studies.cells import AttackAnswers, Evaluate, Given, TrainClip, TrainVlm
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim
from antiphase.studies.estimation import SAMPLE, SEED, estimates, over
from antiphase.studies.figures import IN_255THS, Artefact, Plot, panels
from antiphase.studies.papers.diffclip import bench as towers
from antiphase.studies.papers.diffclip.bench import diffclip_study
from antiphase.studies.papers.diffclip.paper_tables import (
    KEYS,
    VALUE,
    clustered,
    estimated,
    gains,
    model_table,
    published,
)
from antiphase.studies.scale import IN_SHORT
from antiphase.studies.spec import Profile, RowsByTable
from antiphase.vlm.model import Style
from antiphase.vlm.pope import ALL, SAMPLINGS, answer_rates, pope_values

_MODEL = ["pretraining", "series", SEED]
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
    eps: tuple[float, ...] = (2 / 255, 4 / 255)
    steps: int = 100
    seeds: int = 3

    def train(self, tower: TrainClip | Given, seed: int) -> TrainVlm:
        """Return stage 2, which needs stage 1."""
        first = TrainVlm(
            start=tower,
            data=self.captions,
            seed=seed,
            language=self.language,
            prompt=self.prompt,
            preset=self.preset,
            limit=self.caption_limit,
            recipe=dict(self.align),
        )
        return TrainVlm(
            start=first,
            data=self.instructions,
            seed=seed,
            preset=self.preset,
            limit=self.question_limit,
            recipe=dict(self.tune),
        )

    def measure(self, model: TrainVlm) -> list[Evaluate | AttackAnswers]:
        """Return POPE without and under attack."""
        protocol = {"suffix": self.suffix} if self.suffix else {}
        return [
            Evaluate(model=model, task="pope", data=self.pope, limit=self.images, protocol=protocol),
            AttackAnswers(
                model=model,
                data=self.pope,
                eps=self.eps,
                limit=self.attacked,
                suffix=self.suffix,
                settings={"steps": self.steps},
            ),
        ]


_BENCHES = {
    "paper": VlmBench(
        language="Qwen/Qwen2.5-0.5B-Instruct",
        preset="diffclip",
        captions="llava:blip_laion_cc_sbu_558k.json?images=LLaVA-Pretrain",
        instructions="llava:llava_v1_5_mix665k.json?images=LLaVA-Tuning&only=coco/",
        pope="pope",
        suffix="Answer the question using a single word or phrase.",
        prompt="llava",
        align={"precision": "bf16"},
        tune={"precision": "bf16"},
        attacked=100,
    ),
    "laptop": VlmBench(
        language="smollm2",
        preset="emoji",
        captions="emoji-objects",
        instructions="emoji-objects",
        pope="emoji-pope",
        align={"precision": "bf16"},
        tune={"precision": "bf16"},
        caption_limit=1200,
        question_limit=800,
        images=100,
        attacked=20,
        eps=(0.5 / 255, 1 / 255, 2 / 255, 4 / 255),
        steps=10,
    ),
    "smoke": VlmBench(
        language="tiny",
        preset="emoji",
        captions="emoji-objects",
        instructions="emoji-objects",
        pope="emoji-pope",
        towers={
            "sizes": {
                "vision": {"dim": 16, "depth": 2, "num_heads": 2, "patch_size": 16},
                "text": {"dim": 16, "depth": 1, "num_heads": 2},
                "embed_dim": 16,
            }
        },
        align={"batch_size": 4},
        tune={"batch_size": 4},
        caption_limit=8,
        question_limit=8,
        images=2,
        attacked=2,
        steps=1,
        seeds=1,
    ),
}


def bench(profile: Profile) -> VlmBench:
    """Return the bench of a profile."""
    return _BENCHES[profile.name]


def models(profile: Profile) -> list[TrainVlm]:
    """Return the models by tower and seed; on a tower that the profile names, each has one seed, the tower's."""
    own, base = bench(profile), towers.bench(profile)
    if base.given:
        return [own.train(tower, tower.seed) for tower in base.given]
    base = replace(base, **own.towers)
    seeds = profile.seeds_or(own.seeds)
    return [own.train(base.train(variant, seed), seed) for variant in towers.TWINS for seed in seeds]


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on the page."""
    own, base = bench(profile), towers.bench(profile)
    base = replace(base, **own.towers)
    shown = towers.settings(profile)
    found = (
        {"models": shown["models"]}
        if base.given
        else {
            "towers trained on": towers.TITLES.get(base.main, base.main),
            "model of the towers": shown["model"],
        }
    )
    short = f"{own.language} with the image towers of {shown[IN_SHORT]}" if IN_SHORT in shown else ""
    return (
        found
        | ({IN_SHORT: short} if short else {})
        | {
            "language model": own.language,
            "conversations": own.prompt or "chat template",
            "stage 1": _stage(own.captions, own.caption_limit, own.preset, own.align),
            "stage 2": _stage(own.instructions, own.question_limit, own.preset, own.tune),
            "questions": f"{own.pope}, {'all' if own.images is None else own.images} images"
            + (f", followed by “{own.suffix}”" if own.suffix else ""),
            "attack": f"APGD on the answer's first token, {own.steps} steps, "
            f"{', '.join(map(eps_label, own.eps))}, {own.attacked} images",
        }
    )


def _stage(data: str, limit: int | None, preset: str, recipe: Mapping[str, Any]) -> str:
    some = f", {limit:,} conversations" if limit else ""
    fields = "".join(f", {name} {value}" for name, value in recipe.items())
    return f"{data}{some}, preset {preset}{fields}"


def scores(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each question and metric of :func:`~antiphase.vlm.pope.pope_values`.

    The questions about an image are one sample.

    Returns:
        Columns ``pretraining, series, training_seed, task`` (the sampling), ``data`` (the metric), ``sample, value``.
    """
    blocks = []
    for key, block in _pretrained(rows).group_by([*_MODEL, "setting"], maintain_order=True):
        fields = dict(zip([*_MODEL, "task"], key, strict=True))
        constant = [pl.lit(value).alias(column) for column, value in fields.items()]
        for name, values in pope_values(block).items():
            frame = pl.DataFrame({SAMPLE: block["group"].cast(pl.String), "value": values})
            blocks.append(frame.select(*constant, pl.lit(name).alias("data"), SAMPLE, "value"))
    return clustered(pl.concat(blocks), [*_MODEL, "task", "data"])


def hallucinations(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the share of yes to absent objects of each image: the hallucination rate, without and under attack."""
    named = _pretrained(rows).with_columns(
        model=pl.format("{}/{}/{}", *_MODEL), samplings=pl.col("samplings").str.split(",")
    )
    rates = answer_rates(named).filter(metric=FALSE_YES)
    models = named.select("model", *_MODEL).unique()
    budget = pl.when(pl.col("eps") > 0).then(IN_255THS).otherwise(pl.lit(_CLEAN))
    return rates.join(models, on="model", maintain_order="left").select(
        *_MODEL, task="sampling", data=budget, value="value", **{SAMPLE: pl.col("image").cast(pl.String)}
    )


def rises(observed: pl.DataFrame) -> pl.DataFrame:
    """Return how much each image's hallucination rate rises from no attack to each budget."""
    keys = [*_MODEL, "task", SAMPLE]
    before = observed.filter(data=_CLEAN).select(*keys, before="value")
    under = observed.filter(pl.col("data") != _CLEAN).join(before, on=keys, maintain_order="left")
    return under.with_columns(value=pl.col("value") - pl.col("before")).drop("before")


def _pretrained(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pretraining=pl.col("trained_on").fill_null("released").replace(TITLES))


def draw(rows: RowsByTable) -> Artefact:
    """Show a table for each sampling, and the hallucination rate by budget as a table and as bars."""
    means, paper = estimated(scores(rows["evaluate"])), published("table-3")
    name, words, listed = "diffclip-table-3", "Yes to absent objects, ", []
    for sampling in SAMPLINGS:
        shown = means.filter(task=sampling)
        listed += model_table(f"{name}-{sampling}", f"POPE, {sampling}", shown, paper, digits=2)
    observed = hallucinations(rows["answers"]).filter(task=ALL)
    rates, rise = estimated(observed), estimates(rises(observed), KEYS, VALUE, "difference")
    listed += model_table(f"{name}-attacked", f"{words}by budget of the attack", rates, paper)
    listed += model_table(f"{name}-rise", f"{words}difference to the clean images", rise, paper)
    words = (
        "Share of yes to questions about absent objects, by budget of the attack. "
        f"Intervals: 95 % over {over(rates, samples='images')}."
    )
    ticks = rates["data"].unique(maintain_order=True).to_list()
    place = pl.col("data").replace_strict({tick: float(at) for at, tick in enumerate(ticks)})
    style = {"kind": "bar", "ticks": tuple(ticks), "percent": True}
    title = "towers trained on {pretraining}"
    drawn = panels(rates, title, place, ("ε", "yes to absent objects"), **style)
    return Artefact([Plot(f"{name}-attacked", words, drawn)], listed)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that DiffCLIP is better in every metric, and that its hallucination rate rises more under attack."""
    observed, source = scores(rows["evaluate"]), "Section 5.1, Table 3"
    rise = rises(hallucinations(rows["answers"]))
    smallest = eps_label(rows["answers"]["eps"].min())  # type: ignore[arg-type]
    on, all_three = "On a DiffCLIP tower", "on POPE {} higher, on all three samplings."

    def better(*metrics: str) -> list[Check]:
        return [check for name in metrics for check in gains(observed, SAMPLINGS, data=name, told=True)]

    more = f"Under APGD at {smallest} the share of yes to absent objects rises more on a DiffCLIP tower."
    accuracy = f"{on} the accuracy {all_three.format('is')}"
    every = f"{on} accuracy, precision and recall {all_three.format('are')}"
    under_attack = gains(rise, [ALL], data=smallest, told=True)
    return [
        Claim("pope-accuracy", source, accuracy, better("accuracy")),
        Claim("pope-every-metric", source, every, better("accuracy", "precision", "recall")),
        Claim("pope-f1", NOT_IN_PAPER, f"{on} F1 {all_three.format('is')}", better("F1")),
        Claim("hallucinations-under-attack", NOT_IN_PAPER, more, under_attack),
    ]


TABLE_3 = diffclip_study(
    "Table 3",
    "POPE on a DiffCLIP tower",
    """POPE of a small vision-language model on the image tower of CLIP or DiffCLIP, without and under attack.

The paper (Section 5.1, Table 3; percent, one training each) puts towers trained on CC12M into a model of TinyLLaVA's
kind: Qwen2.5-0.5B-Instruct, a linear projector, two stages of training. It says that DiffCLIP consistently outperforms
CLIP across all metrics of POPE.

By these numbers both models answer yes to nearly every question: half of the right answers are yes, so always yes has
an accuracy of 50 %. They are no target. Two of the nine gains are 0 as printed. F1, the share of yes and AUC are added
here; AUC, of the probability of yes, does not depend on where a model draws the line between yes and no.
The tokens of an image are those before the tower's last block, without the class token, as in TinyLLaVA's code.

Not in the paper: the hallucination rate, which is the share of yes to absent objects, under APGD on the answer at 2/255
and 4/255, with 100 steps under the profile paper. The claim is that the rate rises more for the DiffCLIP tower. It was
written before any run, for the two smallest budgets; since seed 0 of the profile laptop, whose rates were 98 to 100 %
for both models from 1/255 on, it is judged at the smallest alone. Three training seeds give intervals, but no verdict:
that takes eight (``--seeds 8``).
""",
    lambda profile: [cell for model in models(profile) for cell in bench(profile).measure(model)],
    draw,
    claims,
    settings,
)
