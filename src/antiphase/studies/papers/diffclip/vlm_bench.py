"""Vision-language models on the towers of the DiffCLIP studies, for each profile.

``paper``: Qwen2.5-0.5B-Instruct on the towers trained on CC12M, or on those of ``--models``. LLaVA's files lie in the
data folder: ``blip_laion_cc_sbu_558k.json`` with its images in ``LLaVA-Pretrain``, ``llava_v1_5_mix665k.json`` with
COCO's below ``LLaVA-Tuning/coco``, and POPE's three files. As with TinyLLaVA's scripts for Qwen, conversations have
LLaVA's format and POPE's questions LLaVA's suffix. It has never been run. ``laptop``: SmolLM2-135M-Instruct on the
towers of the other studies, with captions of and questions about ``emoji-objects``; smaller budgets, too, since all
answers of a model that was tried changed at 2/255. ``smoke``: a language model of random weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from antiphase.budgets import eps_label
from antiphase.studies.cells.answers import AttackAnswers
from antiphase.studies.cells.evaluate import Evaluate
from antiphase.studies.cells.models import Given
from antiphase.studies.cells.training import TrainClip
from antiphase.studies.cells.vlm import TrainVlm
from antiphase.studies.papers.diffclip import bench as towers
from antiphase.studies.scale import IN_SHORT
from antiphase.studies.spec import Profile
from antiphase.vlm.prompt import Style


@dataclass(frozen=True)
class VlmBench:
    """The scale of the study.

    Attributes:
        language: language model.
        preset: of both stages.
        captions: conversations of stage 1.
        instructions: conversations of stage 2.
        pope: questions.
        suffix: follows every question of POPE.
        prompt: conversation format; None: the tokenizer's chat template.
        towers: what differs from the towers of the other studies, as fields of ``DiffclipBench``.
        align: settings of stage 1 that differ from the preset.
        tune: those of stage 2.
        caption_limit: conversations of stage 1 at most.
        question_limit: conversations of stage 2 at most.
        images: of POPE at most.
        attacked: images whose questions are attacked.
        eps: budgets of the attack.
        steps: of the attack.
        seeds: trainings of each model, unless the user asks for another number.
    """

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
