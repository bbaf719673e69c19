"""The CLIPs whose image towers stand beside the ViTs in Figures 4 and 5."""

from collections.abc import Sequence

from antiphase.studies.cells import Given, Sense
from antiphase.studies.cells.clip import TrainClip
from antiphase.studies.papers.diffclip.bench import TWINS, models, released
from antiphase.studies.papers.robustness.bench import bench
from antiphase.studies.spec import Profile

_SERIES = {"clip": "CLIP", "diffclip": "DiffCLIP"}


def clip_models(profile: Profile, variants: Sequence[str] = TWINS) -> list[TrainClip | Given]:
    """Return the released CLIPs under ``paper``, those of openmoji otherwise."""
    if profile.name == "paper":
        return [model for model in released() if model.series in {_SERIES[variant] for variant in variants}]
    return list(models(profile, variants, main=True))


def sense_clip(profile: Profile, model: TrainClip | Given, part: str) -> Sense:
    """Return a measurement of a CLIP's image tower: on ImageNet under ``paper``, on openmoji otherwise."""
    own = bench(profile)
    data = "imagenet" if profile.name == "paper" else "openmoji"
    return Sense(model=model, data=data, part=part, limit=own.probed, settings=dict(own.sense))
