"""The CLIPs that Figures 4 and 5 measure next to the ViTs, and that Figures 2(b) and 2(d) attack."""

from collections.abc import Sequence

from antiphase.models.clip import find_clip
from antiphase.studies.cells import Given, Sense
from antiphase.studies.cells.training import TrainClip
from antiphase.studies.papers.diffclip import bench as diffclip
from antiphase.studies.papers.diffclip.released import listed, released
from antiphase.studies.papers.robustness.bench import bench
from antiphase.studies.papers.robustness.bench import settings as bench_settings
from antiphase.studies.spec import Profile


def clip_models(profile: Profile, variants: Sequence[str] = diffclip.TWINS) -> list[TrainClip | Given]:
    """Return the released CLIPs under ``paper``, those of openmoji otherwise, or those that the profile names.

    Of named models, ``variants`` without ``"clip"`` selects those with differential attention.
    """
    own = diffclip.bench(profile)
    if own.given:
        return [
            one for one in own.given if "clip" in variants or one.factors().get("lambda_init") is not None
        ]
    if profile.name == "paper":
        return [
            one
            for one in released(profile)
            if one.series in {find_clip(variant).label for variant in variants}
        ]
    return diffclip.models(profile, variants, [own.main])


def clip_settings(profile: Profile, variants: Sequence[str] = diffclip.TWINS) -> dict[str, str]:
    """Return the settings shown on a page of ViTs and CLIPs."""
    given = [one for one in clip_models(profile, variants) if isinstance(one, Given)]
    return bench_settings(profile) | ({"CLIPs": listed(given)} if given else {})


def sense_clip(profile: Profile, model: TrainClip | Given, part: str) -> Sense:
    """Return a measurement of a CLIP's image tower: on ImageNet under ``paper``, on openmoji otherwise."""
    own = bench(profile)
    data = "imagenet" if profile.name == "paper" else "openmoji"
    return Sense(model=model, data=data, part=part, limit=own.probed, settings=dict(own.sense))
