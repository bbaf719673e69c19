"""Training a vision-language model, one stage a cell. The trainer, seconds to import, is imported where it runs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import polars as pl

from antiphase.attacks.catalogue import settings_of
from antiphase.commands.audit import AuditOptions
from antiphase.commands.evaluate.run import load_source
from antiphase.data.conversations import load_conversations, query_settings
from antiphase.errors import UserError
from antiphase.studies.cells.models import Given, Measurement, facts_of_given
from antiphase.studies.cells.training import TrainClip, Training
from antiphase.studies.spec import Cell, Lab
from antiphase.studies.store import WORK_FOLDER
from antiphase.vlm.model import Style
from antiphase.vlm.pope import PopeSet

if TYPE_CHECKING:
    from antiphase.vlm import VlmConfig
    from antiphase.vlm.checkpoint import VlmRecipe


@final
@dataclass(frozen=True, kw_only=True)
class TrainVlm(Training):
    """One stage of a vision-language model's training, as ``antiphase train-vlm``.

    Stage 1 starts from a CLIP, whose image tower sees, and trains the projector; stage 2 starts from the cell of stage
    1, whose language and prompt it has, and trains the language model, too. The recipe has fields of ``VlmRecipe``, the
    data are conversations; when the files of a folder change, the cell stays the same.
    """

    version: ClassVar[int] = 4  # to be raised with a preset that changes
    start: "TrainClip | Given | TrainVlm"
    language: str = "smollm2"  # see ``load_language``
    prompt: Style | None = None  # conversation format, see :class:`~antiphase.vlm.Prompt`
    preset: str = "diffclip"  # recipe of the paper; "emoji" for a laptop

    @property
    def stage(self) -> int:
        """1 for the projector alone, 2 with the language model."""
        return 2 if isinstance(self.start, TrainVlm) else 1

    @property
    def tower(self) -> TrainClip | Given:
        return self.start.tower if isinstance(self.start, TrainVlm) else self.start

    @property
    def label(self) -> str:
        return f"stage {self.stage}, seed {self.seed}, on {self.tower.label}"

    def needs(self) -> tuple[Cell, ...]:
        return self.start.needed()

    @property
    def series(self) -> str:
        return self.tower.series

    def factors(self) -> dict[str, Any]:
        return self.tower.factors() | {"training_seed": self.seed}

    def make_recipe(self, config: "VlmConfig", fingerprint: str, source: str | None = None) -> "VlmRecipe":
        from antiphase.vlm.checkpoint import make_vlm_recipe

        fields = {"seed": self.seed, "data": self.data, "data_fingerprint": fingerprint, **self.recipe}
        return make_vlm_recipe(self.stage, self.preset, config, pretrained_sha256=source, **fields)

    def facts(self) -> Iterator[tuple[str, Any]]:
        from antiphase.vlm import VlmConfig
        from antiphase.vlm.checkpoint import MERGE, SCHEDULE
        from antiphase.vlm.model import HIDDEN_STATE

        style: dict[str, Any] = {"language": self.language, "prompt": self.prompt or "chat"}
        none: dict[str, Any] = {"tower_spec": "", "tower": {}, "tower_sha256": "", "language_sha256": ""}
        config = VlmConfig(merge=MERGE[self.preset], **none, **style)
        recipe = self.make_recipe(config, "")
        plain, _, query = self.data.partition("?")
        name = plain.partition(":")[2].rpartition("/")[2] or plain
        only = query_settings(query).get("only", "")
        used = dict(recipe) | {"model": "", "data": f"{name}, {only}" if only else name, "schedule": SCHEDULE}
        if self.stage == 2:
            order = "those without an image, then drawn" if recipe.text_first else "drawn"
            yield "tune", used | {"trained": "projector, language model", "order": order}
            return
        yield "align", used | style | {"trained": "projector", "hidden_state": HIDDEN_STATE}
        yield "align", {"projector": config.projector}
        yield from facts_of_given(self.start)
        if isinstance(self.start, TrainClip):
            image = self.start.make_recipe("").model.vision
            yield "align", {"positions": (image.image_size // image.patch_size // config.merge) ** 2}

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame | None:
        """Train, resuming from the state of a killed run; the lab's batch size is that of a part of a step."""
        from antiphase.vlm.checkpoint import MERGE, aligned, assemble
        from antiphase.vlm.training import train_vlm

        data = load_conversations(self.data, stage=self.stage, limit=self.limit, seed=self.seed)
        if isinstance(self.start, TrainVlm):
            config, vlm, source = aligned(lab.store.folder(self.start))
            config = config.model_copy(update={"tuned": True})
        else:
            how = {"style": self.prompt, "merge": MERGE[self.preset], "seed": self.seed}
            config, vlm = assemble(self.start.load(lab), self.start.label, self.language, **how)
            source = None
        recipe = self.make_recipe(config, data.fingerprint(), source)
        train_vlm(recipe, vlm, data, folder, part=lab.batch_size, trackers=lab.track, progress=lab.progress)
        return None


@final
@dataclass(frozen=True, kw_only=True)
class AttackAnswers(Measurement):
    """An attack on a vision-language model's answers, as ``antiphase attack`` with POPE's questions."""

    kind = "answers"
    eps: tuple[float, ...]  # in units of the [0, 1] pixel
    limit: int | None = None
    suffix: str = ""
    attack: str = "apgd-ce"
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def label(self) -> str:
        return f"{self.attack} on answers of {self.model.label}"

    def content(self) -> dict[str, str]:
        return {"data": self._pope(progress=False).fingerprint()[:16]} if ":" in self.data else {}

    def options(self) -> AuditOptions:
        names = ("eps", "attack", "settings", "seed")
        return AuditOptions(model=("study",), **{name: getattr(self, name) for name in names})

    def facts(self) -> Iterator[tuple[str, Any]]:
        options = self.options()
        about = {"data": self.data, "suffix": self.suffix, "attack": options.attack, "images": self.limit}
        yield "answers", about | {"eps": options.eps}
        yield from (("answers", {"steps": settings_of(stage)["steps"]}) for stage in options.ensemble.stages)

    def run(self, lab: Lab, folder: Path) -> pl.DataFrame:
        """Attack; the samplings that ask a question are joined by commas."""
        from antiphase.commands.audit.answers import attack_answers

        told = (self.model.label, lab.model(self.model), self._pope(lab.progress))
        rows, warnings = attack_answers(*told, self.running(lab), folder / WORK_FOLDER)
        lab.warnings += warnings
        return rows.with_columns(pl.col("samplings").list.join(","))

    def _pope(self, progress: bool) -> PopeSet:
        data = load_source(self.data, self.split, self.limit, None, False, False, progress).test
        if not isinstance(data, PopeSet):
            raise UserError(f"{self.data}: no questions of POPE; expected pope, pope:FOLDER or emoji-pope")
        return data.followed_by(self.suffix)
