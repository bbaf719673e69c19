"""Models, data sets and protocols shared by the studies of the DiffCLIP paper, for each profile.

``paper``: CC3M (about 2.3 million pairs) and CC12M (7.9 million) as img2dataset's shards, named as it names them, below
the data folder; ViT-B/16 and the recipe of Section 4.1: 40 epochs of batches of 4,096, AdamW at 5e-4, weight decay .5,
one epoch of warm-up; nine probe sets, three of retrieval, ImageNet and four shifts of it, MMVP-VLM. The paper trains
each model once; this trains three seeds, about 10 A100-days each on CC12M (Section 5.2). With ``--models`` trained
checkpoints are measured instead, such as the authors' pair (``--models released``).

``laptop``: OpenMoji's drawings with their names, models of 192 × 4 layers (``TRAINING_PRESETS["openmoji"]``). Test
images show concepts that no training image shows. Noto's emoji of the same concepts, by another artist, stand for a
shift of distribution, ``emoji-mmvp`` for MMVP-VLM. ``smoke``: a tiny model of 32 pairs, for tests.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from antiphase.data.shards import CC3M, CC12M, TITLES
from antiphase.data.sources import IMAGENET_SETS, PROBE_SETS
from antiphase.studies.cells.evaluate import Evaluate
from antiphase.studies.cells.models import Given
from antiphase.studies.cells.relevance import Relevance
from antiphase.studies.cells.training import TrainClip
from antiphase.studies.claims import Claim
from antiphase.studies.figures import Artefact
from antiphase.studies.papers.diffclip.released import given_models, listed
from antiphase.studies.scale import IN_SHORT, clips_in_short
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

TWINS = ("clip", "diffclip")
VARIANTS = ("clip", "diffclip", "diffclip-depth", "diffclip-vision")


@dataclass(frozen=True)
class DiffclipBench:
    """The scale of all studies of the paper."""

    trained_on: tuple[str, ...]
    main: str
    preset: str
    probed: tuple[str, ...]
    retrieved: tuple[str, ...]
    home: str
    shifted: tuple[str, ...]
    alike: str
    looked_at: Mapping[str, Any]
    looks: int
    asked: tuple[str, str]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    pairs: int | None = None
    images: int | None = None
    learned: int | None = None
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    given: tuple[Given, ...] = ()
    seeds: int = 3

    def train(self, variant: str, seed: int, data: str | None = None) -> TrainClip:
        """Return a training; on the main set unless given."""
        return TrainClip(
            variant=variant,
            data=data or self.main,
            seed=seed,
            preset=self.preset,
            limit=self.pairs,
            sizes=dict(self.sizes),
            recipe=dict(self.recipe),
        )

    def evaluate(self, model: TrainClip | Given, task: str, data: str) -> Evaluate:
        """Return a task on a data set."""
        return Evaluate(
            model=model,
            task=task,
            data=data,
            protocol=dict(self.protocols.get(task, {})),
            limit=None if task == "mmvp" else self.images,
            train_limit=self.learned if task in ("probe", "few-shot") else None,
        )

    def look(self, model: TrainClip | Given) -> list[Relevance]:
        """Return the maps of a model for the objects of every image, and for Figure 2's queries in two images."""
        return [
            Relevance(model=model, limit=self.looks, ask="objects", **self.looked_at),
            Relevance(model=model, limit=2, texts=self.asked, **self.looked_at),
        ]


_BENCHES = {
    "paper": DiffclipBench(
        trained_on=(CC3M, CC12M),
        main=CC12M,
        preset="diffclip",
        recipe={"precision": "bf16"},
        probed=PROBE_SETS,
        retrieved=("flickr30k", "flickr8k", "coco-karpathy"),
        home=IMAGENET_SETS[0],
        shifted=IMAGENET_SETS[1:],
        alike="mmvp",
        looks=200,
        looked_at={"data": "coco-objects", "prompt": "a photo of {}"},
        asked=("dog", "potted plant"),
    ),
    "laptop": DiffclipBench(
        trained_on=("openmoji",),
        main="openmoji",
        preset="openmoji",
        recipe={"precision": "bf16"},
        probed=("openmoji", "noto-emoji"),
        retrieved=("openmoji", "noto-emoji"),
        home="openmoji",
        shifted=("noto-emoji",),
        alike="emoji-mmvp",
        looked_at={"data": "emoji-scenes"},
        looks=200,
        seeds=8,
        asked=("black heart", "flag: Libya"),
        protocols={
            "retrieval": {"captions": "first"},
            "probe": {"iterations": 200},
            "few-shot": {"episodes": 2000},
        },
    ),
    "smoke": DiffclipBench(
        trained_on=("openmoji",),
        main="openmoji",
        preset="openmoji",
        pairs=32,
        recipe={"epochs": 1, "batch_size": 16, "warmup_epochs": 0.0},
        sizes={
            "vision": {"dim": 16, "depth": 1, "num_heads": 2, "patch_size": 16},
            "text": {"dim": 16, "depth": 1, "num_heads": 2},
            "embed_dim": 16,
        },
        probed=("openmoji",),
        retrieved=("openmoji",),
        home="openmoji",
        shifted=("digits",),
        alike="emoji-mmvp",
        looked_at={"data": "emoji-scenes"},
        looks=3,
        seeds=1,
        asked=("black heart", "flag: Libya"),
        images=120,
        learned=400,
        protocols={
            "zero-shot": {"templates": ("1",)},
            "probe": {"iterations": 2, "seeds": 2},
            "few-shot": {"episodes": 10, "seeds": 2},
        },
    ),
}

SHIFTED = frozenset(name for bench in _BENCHES.values() for name in bench.shifted)
"""Sets on which classes are told apart under a shift, under any profile."""


def bench(profile: Profile) -> DiffclipBench:
    """Return the bench of a profile, with the models that the profile names."""
    return replace(_BENCHES[profile.name], given=tuple(given_models(profile)))


def models(
    profile: Profile, variants: Sequence[str] = TWINS, sets: Sequence[str] | None = None
) -> list[TrainClip | Given]:
    """Return the models by training set, variant and seed, or those that the profile names."""
    own = bench(profile)
    every = own.trained_on if sets is None else sets
    seeds = profile.seeds_or(own.seeds)
    trained = [own.train(variant, seed, one) for one in every for variant in variants for seed in seeds]
    return list(own.given) or list(trained)


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings shown on the pages."""
    own = bench(profile)
    size = {
        "diffclip": "ViT-B/16, text 12 × 512",
        "openmoji": "192 wide, image 4 layers of patches of 8, text 3",
    }
    trained = {
        "trained on": ", ".join(TITLES.get(name, name) for name in own.trained_on),
        "model": size[own.preset] if not own.sizes else "tiny",
        "training": ", ".join(
            f"{name} {value}" for name, value in {"preset": own.preset, **own.recipe}.items()
        ),
        IN_SHORT: clips_in_short([own.train("clip", 0, data) for data in own.trained_on]),
    }
    shown = {
        **({"models": listed(own.given)} if own.given else trained),
        "zero-shot": f"{own.home}; shifted: {', '.join(own.shifted)}",
        "probe and few-shot": ", ".join(own.probed),
        "retrieval": f"{', '.join(own.retrieved)}, R@5",
        "features of probes": "before the projection",
    }
    for task, fields in own.protocols.items():
        shown[f"protocol of {task}"] = ", ".join(f"{name} {value}" for name, value in fields.items())
    return shown


def diffclip_study(
    label: str,
    title: str,
    text: str,
    cells: Callable[[Profile], Sequence[Cell]],
    draw: Callable[[RowsByTable], Artefact],
    claims: Callable[[RowsByTable], Sequence[Claim]],
    settings: Callable[[Profile], Mapping[str, str]] = settings,
    **more: Any,
) -> Study:
    """Return a study of the paper under the name of its table or figure."""
    name = f"diffclip-{label.lower().replace(' ', '-')}"
    return Study(name, "diffclip", label, title, text, cells, draw, claims, settings, **more)
