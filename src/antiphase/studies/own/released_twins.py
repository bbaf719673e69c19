"""Released twins: timm's and DiffCLIP's pairs of one recipe at ImageNet scale, under attack and taken apart."""

import importlib
from dataclasses import replace
from functools import lru_cache
from typing import Any

import polars as pl
import torch
from torch import nn

from antiphase.data.folders import data_root
from antiphase.errors import UserError
from antiphase.models import ModelCard, clip, diffclip
from antiphase.models.card import twin_doubts
from antiphase.models.preprocessing import of_timm
from antiphase.studies.cells import Accuracy, Attack, Given, Own, Sense, given
from antiphase.studies.claims import on_average
from antiphase.studies.estimation import ASR, CORRECT, estimates
from antiphase.studies.figures import IN_255THS, Artefact, panels, tables
from antiphase.studies.own.variants import PAPER
from antiphase.studies.papers.declarations import Checks
from antiphase.studies.papers.diffclip.bench import released
from antiphase.studies.papers.robustness.layers import cosine
from antiphase.studies.spec import Cell, Profile, RowsByTable

EPS = tuple(eps / 255 for eps in (0.5, 1, 2, 4))
_DLITTLE = "vit_dlittle_patch16_reg1_gap_256.sbb_nadamuon_in1k"
TIMM = {  # the differential model and its standard twin; of dlittle no twin has its tag
    "dwee": ("vit_dwee_patch16_reg1_gap_256.sbb_in1k", "vit_wee_patch16_reg1_gap_256.sbb_in1k"),
    "dpwee": ("vit_dpwee_patch16_reg1_gap_256.sbb_in1k", "vit_pwee_patch16_reg1_gap_256.sbb_in1k"),
    "dlittle": (_DLITTLE, "vit_little_patch16_reg4_gap_256.sbb_in1k"),
}
PAIRS = {name: (name, name.removeprefix("d")) for name in TIMM} | {"diffclip": ("DiffCLIP", "CLIP")}

# images for accuracy (None: all), PGD, AutoAttack and alignment, and the settings of the last three
_SIZES = {
    "paper": ("imagenet", None, 5000, 1000, 256, {}, {"version": "standard"}, {}),
    "laptop": ("imagenet", 1000, 50, 50, 16, {}, {"version": "standard"}, {"probes": 8}),
    "smoke": ("random", 2, 2, 2, 2, {"steps": 1}, {"steps": 1, "queries": 1}, {"probes": 2}),
}


def card_of_name(name: str) -> ModelCard:
    """Return what timm's registry says of the weights ``ARCHITECTURE.TAG``; nothing is downloaded."""
    timm: Any = importlib.import_module("timm")
    spec, (architecture, _, tag) = f"timm:{name}", name.partition(".")
    if name not in timm.list_pretrained(f"{architecture}*"):
        known = ", ".join(timm.list_pretrained(f"{architecture}*")) or "none of this architecture"
        raise UserError(f"{spec}: timm {timm.__version__} has no such weights; expected one of {known}")
    settings = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    used = of_timm(settings, spec)
    return ModelCard(name, spec, "unknown", None, used.image_shape, 1000, preprocessing=used, tag=tag)


@lru_cache
def note_of(pair: tuple[str, str]) -> str:
    """Return in what twins of timm differ by its registry, and in shapes of weights outside the blocks."""
    timm: Any = importlib.import_module("timm")
    cards = [card_of_name(name) for name in pair]
    with torch.device("meta"):
        states = [timm.create_model(name).state_dict() for name in pair]
    one, two = ({name: x.shape for name, x in state.items() if "blocks." not in name} for state in states)
    unequal = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    doubts = [*twin_doubts(*cards), *(f"shape of {name} differs" for name in unequal)]
    size = "×".join(map(str, cards[0].image_shape))
    return "; ".join(doubts) or f"as its twin {pair[1]}: tag {cards[0].tag}, input {size}, preprocessing, shapes"


def _clip(seed: int) -> nn.Module:
    return clip("small", seed=seed)


def _diffclip(seed: int) -> nn.Module:
    return diffclip("small", seed=seed)


def models(profile: Profile) -> list[Given | Own]:
    """Return all twins, with weights of the hub or of ``released-twins/NAME.safetensors`` below the data folder."""
    smoke, twins = profile.name == "smoke", list[Any]()
    for name, pair in TIMM.items():
        note = note_of(pair)
        for series, weights in zip(PAIRS[name], pair, strict=True):
            file = data_root() / "released-twins" / f"{weights}.safetensors"
            spec = f"timm:{weights}" + (f"@{file}" if file.is_file() and not smoke else "")
            twins.append(replace(given(spec, series, note=note * (series == name)), random_weights=smoke))
    if not smoke:
        return [*twins, *released()]
    small = {"image_shape": (3, 64, 64), "num_classes": 10}
    return [*twins, Own(build=_diffclip, series="DiffCLIP", **small), Own(build=_clip, series="CLIP", **small)]


def cells(profile: Profile) -> list[Cell]:
    """Return accuracy, PGD over ε, AutoAttack and alignment, which has λ, of every model."""
    data, images, pgd, few, aligned, *settings = _SIZES[profile.name]
    eps, made = EPS[1:2] if profile.name == "smoke" else EPS, list[Cell]()
    for model in models(profile):
        on: dict[str, Any] = {"model": model, "data": data}
        made.append(Accuracy(**on, limit=images))
        made.append(Attack(**on, eps=eps, limit=pgd, settings=settings[0]))
        made.append(Attack(**on, eps=eps, limit=few, attack="autoattack", settings=settings[1]))
        made.append(Sense(**on, part="alignment", limit=aligned, settings=settings[2]))
    return made


def draw(rows: RowsByTable) -> Artefact:
    """Draw ASR over ε by pair and attack; tables of accuracy, alignment and λ by layer."""
    names = {series: name for name, pair in PAIRS.items() for series in pair}
    frames = {key: frame.with_columns(pair=pl.col("series").replace(names)) for key, frame in rows.items()}
    rates = estimates(frames["attack"], ["pair", "attack", "series", "eps"], ASR)
    shown = panels(rates, "{pair}, {attack}", "eps", ("ε", "attack success rate"), scale="eps", percent=True)
    listed = tables(rates, "ASR, {pair}, {attack}", "asr-{pair}-{attack}", "series", IN_255THS)
    clean = estimates(frames["accuracy"], ["pair", "series", "data"], CORRECT)
    listed += tables(clean, "Clean accuracy", "accuracy", "series", "data")
    layers = frames["alignment"].filter(attention="differential", site="pixels")
    by_layer = layers.group_by("series", "cell", "training_seed", "sample", "layer", maintain_order=True).agg(
        pl.mean("lam", "cross", "first", "second")
    )
    by_layer = by_layer.with_columns(cosine=cosine().over("series", "layer"))
    for title, column in (("λ", "lam"), ("cosθ of the two maps' gradients at the pixels", "cosine")):
        values = estimates(by_layer, ["series", "layer"], pl.col(column), "number")
        listed += tables(values, title, column, "series", pl.format("layer {}", pl.col("layer") + 1), percent=False)
    notes = [PAPER.words["notes"]["random"]] if "random" in rows["accuracy"]["data"] else []
    return Artefact([PAPER.plot("asr", shown)], listed, notes=notes)


def checks(rows: RowsByTable) -> Checks:
    """Check in each pair whether the differential twin is broken more often, by attack."""
    kinds = {attack: rows["attack"].filter(attack=attack) for attack in ("pgd", "autoattack")}
    return {
        f"{name}-fragile": [
            check for attack, some in kinds.items() for check in on_average(some, one, than=two, eps=EPS, attack=attack)
        ]
        for name, (one, two) in PAIRS.items()
    }


def settings(profile: Profile) -> dict[str, str]:
    """Return the settings of the page: whose weights, how many images, and in what twins differ."""
    data, *limits = _SIZES[profile.name][:5]
    notes = {f"twins {name}": note_of(pair) for name, pair in TIMM.items()}
    return PAPER.settings("released-twins", data=data, limits=limits) | notes


RELEASED_TWINS = PAPER.study("released-twins", cells, draw, checks, settings)
