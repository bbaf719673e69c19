"""Whether DiffViT is more fragile where attention has more to do: more tokens, a wider model, a longer training."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import polars as pl

from antiphase.studies import IN_255THS, Artefact, Check, Table, TrainVit, apart, higher, on_average, panels, tables
from antiphase.studies.estimation import ASR, CORRECT, difference, estimates, gaps, trend
from antiphase.studies.own.variants import DIFFVIT, PAPER, STARTS, VIT, seeds_of, shown_settings, trained
from antiphase.studies.papers.declarations import Checks
from antiphase.studies.papers.robustness import layers, success_rates, theory
from antiphase.studies.papers.robustness.bench import EPS, RobustnessBench, bench, measured
from antiphase.studies.papers.robustness.tables import eps_checks
from antiphase.studies.scale import IN_SHORT, vits_in_short
from antiphase.studies.spec import Cell, Profile, RowsByTable

LARGER = {VIT: "larger ViT", DIFFVIT: "larger DiffViT"}
RECIPE = {"epochs": 10, "learning_rate": 2e-3, "warmup_epochs": 1}
"""Chosen by the accuracy on 5,000 training images that one DiffViT did not learn: 87.1 % after 8 epochs at this
rate. Two epochs were added, before any attack."""


def larger(
    sizes: RobustnessBench, series: str, seed: int, data: str, start: str, times: int = 2, depth: int = 1
) -> TrainVit:
    """Return the training of a model some times as wide; on the images of a laptop, with 49 patches in place of 16."""
    model = trained(sizes, series, seed, data, start)
    wider = {**model.sizes, "dim": times * model.config().dim, "patch_size": 4, "depth": depth}
    called = {1: f"{series}, patches of 4", 2: LARGER[series]}.get(times, f"{series}, {times} times as wide")
    return replace(model, called=called, sizes=wider, recipe={**model.recipe, **RECIPE})


def _changes(profile: Profile) -> dict[str, Any]:
    """Return the fields of the bench that differ for models twice as wide."""
    sizes, recipe = bench(profile), dict(RECIPE)
    model = larger(sizes, VIT, 0, sizes.data[0], "uniform")
    changed = {name: model.sizes[name] for name in ("dim", "patch_size")}
    epochs = dict.fromkeys(sizes.data, recipe.pop("epochs"))
    return {"sizes": {**sizes.sizes, **changed}, "recipe": {**sizes.recipe, **recipe}, "epochs": epochs}


def larger_bench(profile: Profile) -> RobustnessBench:
    """Return the bench of the larger models."""
    return replace(bench(profile), **_changes(profile))


def larger_settings(profile: Profile) -> dict[str, str]:
    """Return the settings of a study of larger models, as its page shows them."""
    return shown_settings(profile, **_changes(profile))


def cells(profile: Profile) -> list[Cell]:
    """Return PGD over ε and accuracy of the larger models, and PGD on those of the other studies."""
    sizes, made = bench(profile), list[Cell]()
    for data, seed, start, series in product(sizes.data, seeds_of(profile), STARTS, LARGER):
        model = larger(sizes, series, seed, data, start)
        made += [sizes.attack(trained(sizes, series, seed, data, start)), sizes.attack(model), sizes.accuracy(model)]
    return made


def draw(rows: RowsByTable) -> Artefact:
    """Draw ASR over ε by initial weights; tables of ASR, of the differences, and of accuracy."""
    attacks = rows["attack"]
    rates = estimates(attacks, ["data", "series", "eps"], ASR)
    drawn = panels(rates, "{data}", "eps", ("ε", "attack success rate"), scale="eps", percent=True)
    listed = tables(rates, "ASR under PGD, {data}", "larger-vits-{data}", "series", IN_255THS)
    apart = estimates(_gaps(attacks), ["data", "series", "eps"], pl.col("value"), "difference")
    listed += tables(apart, "Difference in ASR, {data}", "larger-vits-gap-{data}", "series", IN_255THS)
    clean = estimates(rows["accuracy"], ["series", "data"], CORRECT)
    listed += tables(clean, "Clean accuracy", "larger-vits-accuracy", "series", "data")
    return Artefact([PAPER.plot("larger-vits", drawn)], listed)


def _gaps(attacks: pl.DataFrame) -> pl.DataFrame:
    pairs = [(DIFFVIT, VIT), (LARGER[DIFFVIT], LARGER[VIT])]
    return pl.concat(gaps(attacks, *pair).with_columns(series=pl.lit(" − ".join(pair))) for pair in pairs)


def checks(rows: RowsByTable) -> Checks:
    """Check that the larger DiffViT has the higher ASR, and that it is further above ViT's than the smaller one's."""
    apart = _gaps(rows["attack"])
    small, large = apart["series"].unique(maintain_order=True)
    grows = difference(apart, {"series": large}, {"series": small}, pl.col("value"))
    fragile = on_average(rows["attack"], LARGER[DIFFVIT], than=LARGER[VIT], eps=EPS)
    return {"larger-fragile": fragile, "larger-gap": [Check(f"({large}) − ({small}), ASR, mean over ε", grows)]}


_study = partial(PAPER.study, settings=larger_settings, by_data=True)
LARGER_VITS = _study(
    "larger-vits",
    cells,
    draw,
    checks,
    settings=lambda profile: larger_settings(profile) | {"smaller models": "those of Figure 2(a)"},
)


def _each(
    profile: Profile, starts: Sequence[str] = STARTS, times: Sequence[int] = (2,), depths: Sequence[int] = (1,)
) -> list[TrainVit]:
    """Return the larger twins of every seed, from both initial weights unless named."""
    sizes = bench(profile)
    every = product(sizes.data, starts, seeds_of(profile), times, depths, LARGER)
    return [larger(sizes, series, seed, data, start, *size) for data, start, seed, *size, series in every]


def _as_twins(rows: RowsByTable) -> dict[str, pl.DataFrame]:
    """Return rows whose models have the names that the studies of the paper give to theirs."""
    series = pl.col("series").str.strip_prefix("larger ").str.split(", ").list.first()
    return {table: frame.with_columns(series=series) for table, frame in rows.items()}


def _attack_cells(profile: Profile) -> list[Cell]:
    """Return AutoAttack on as many images as PGD, patches of each width, and Carlini and Wagner's attack."""
    sizes = bench(profile)
    strong = partial(replace(sizes, few=sizes.images).attack, eps=success_rates.AT, attack="autoattack")
    patches = (partial(sizes.patch, width=width) for width in success_rates.WIDTHS)
    return measured(_each(profile), strong, sizes.nearest, *patches)


def _draw_attacks(rows: RowsByTable) -> Artefact:
    attacks = _as_twins(rows)["attack"]
    strong, patches = (attacks.filter(attack=name) for name in ("autoattack", "patch"))
    rates = estimates(strong, ["data", "series", "eps"], ASR)
    listed = tables(rates, "ASR under AutoAttack, {data}", "larger-autoattack-{data}", "series", IN_255THS)
    rates = estimates(patches, ["data", "series", "width"], ASR)
    width = pl.format("width {}", "width")
    listed += tables(rates, "ASR under patches, {data}", "larger-patches-{data}", "series", width)
    means = estimates(_distances(rows), ["data", "series"], pl.col("reach"), kind="size")
    title = "Mean L2 distance under Carlini and Wagner's attack"
    return Artefact([], listed + tables(means, title, "larger-cw", "series", "data", percent=False, digits=3))


def _distances(rows: RowsByTable) -> pl.DataFrame:
    return success_rates.reaching({"attack": _as_twins(rows)["attack"].filter(attack="carlini-wagner")})


def _attack_checks(rows: RowsByTable) -> Checks:
    attacks = _as_twins(rows)["attack"]
    words = f"mean L2 distance({VIT}) − mean L2 distance({DIFFVIT})"
    return {
        "autoattack": on_average(attacks.filter(attack="autoattack"), DIFFVIT, than=VIT, eps=success_rates.AT),
        "patches": higher(attacks.filter(attack="patch"), DIFFVIT, than=VIT, width=success_rates.WIDTHS),
        "cw": apart(_distances(rows), "series", VIT, DIFFVIT, pl.col("reach"), words),
    }


LARGER_ATTACKS = _study(
    "larger-attacks",
    _attack_cells,
    _draw_attacks,
    _attack_checks,
    settings=lambda profile: larger_settings(profile) | {"images under AutoAttack": str(bench(profile).images)},
)


def _layer_checks(rows: RowsByTable) -> Checks:
    claims = layers.sensitivity_checks(_as_twins(rows))
    del claims["cancels-more-when-deep"]  # all have one layer
    return claims


LARGER_LAYERS = _study(
    "larger-layers",
    lambda profile: layers.sensitivity_cells(bench(profile), _each(profile)),
    lambda rows: layers.draw_sensitivity(_as_twins(rows)),
    _layer_checks,
)
LARGER_RADIUS = _study(
    "larger-radius",
    lambda profile: theory.radius_cells(bench(profile), _each(profile)),
    lambda rows: Artefact([], theory.draw_radii(_as_twins(rows)).tables),  # of one depth: no lines
    lambda rows: theory.radius_checks(_as_twins(rows)),
)

TIMES = (1, 2, 3)  # as wide as the models of the other studies: 64, 128 and 192 on a laptop
DEPTHS = (1, 4)


def _by_size(profile: Profile, **which: Any) -> list[Cell]:
    """Return PGD and accuracy of larger twins of several sizes."""
    return measured(_each(profile, **which), bench(profile).attack, bench(profile).accuracy)


def _settings_of(profile: Profile, **which: Any) -> dict[str, str]:
    return larger_settings(profile) | {IN_SHORT: vits_in_short(_each(profile, **which))}


def _clean(rows: RowsByTable, factor: str, label: str, name: str) -> list[Table]:
    kind = pl.format(f"{{}}, {label} {{}}", "series", factor)
    clean = estimates(_as_twins(rows)["accuracy"].with_columns(series=kind), ["series", "data"], CORRECT)
    return tables(clean, "Clean accuracy", f"{name}-accuracy", "series", "data")


def _draw_widths(rows: RowsByTable) -> Artefact:
    attacks = _as_twins(rows)["attack"].with_columns(series=pl.format("{}, width {}", "series", "dim"))
    rates = estimates(attacks, ["data", "series", "eps"], ASR)
    listed = tables(rates, "ASR under PGD, {data}", "larger-width-{data}", "series", IN_255THS)
    return Artefact([], listed + _clean(rows, "dim", "width", "larger-width"))


def _width_checks(rows: RowsByTable) -> Checks:
    attacks = _as_twins(rows)["attack"]
    widths, apart = sorted(attacks["dim"].unique()), gaps(attacks)
    claims = {"fragile": on_average(attacks, DIFFVIT, than=VIT, eps=EPS, dim=widths[-1])}
    for name, least in {"gap-grows-from-128": widths[-2:][0], "gap-grows-with-width": widths[0]}.items():
        words = f"fitted rise of ASR({DIFFVIT}) − ASR({VIT}) over log2 width, {least} to {widths[-1]}, mean over ε"
        rise = trend(apart.filter(pl.col("dim") >= least), "dim", {}, pl.col("value"), scale="log2")
        claims[name] = [Check(words, rise)]
    return claims


LARGER_WIDTH = _study(
    "larger-width",
    lambda profile: _by_size(profile, starts=["uniform"], times=TIMES),
    _draw_widths,
    _width_checks,
    settings=lambda p: _settings_of(p, starts=["uniform"], times=TIMES) | {"widths": "1, 2 and 3 times Figure 2(a)'s"},
)


def _draw_depths(rows: RowsByTable) -> Artefact:
    drawn, listed = success_rates.at_each_depth(_as_twins(rows)["attack"], "larger-depth")
    return Artefact([PAPER.plot("larger-depth", drawn)], listed + _clean(rows, "depth", "depth", "larger-depth"))


def _depth_checks(rows: RowsByTable) -> Checks:
    attacks = _as_twins(rows)["attack"]
    return {**success_rates.depth_checks(attacks), **eps_checks(attacks.filter(depth=DEPTHS[-1]))}


LARGER_DEPTH = _study(
    "larger-depth",
    lambda profile: _by_size(profile, depths=DEPTHS),
    _draw_depths,
    _depth_checks,
    settings=lambda profile: _settings_of(profile, depths=DEPTHS) | {"depths": " and ".join(map(str, DEPTHS))},
)
