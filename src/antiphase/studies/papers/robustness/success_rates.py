"""Figures 2, 3 and 6: ASR of models with and without differential attention, by budget, patch, depth and protocol."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from antiphase.data.sources import source_of
from antiphase.studies import Accuracy, Cell, Check, Profile, RowsByTable, Study, Unit, higher, no_worse, on_average
from antiphase.studies.estimation import ASR, CORRECT, SAMPLE, SEED, difference, estimates, gaps, peak, trend
from antiphase.studies.figures import BY_SEED, IN_255THS, Artefact, Panel, Table, panels, tables
from antiphase.studies.paper_settings import printed_numbers
from antiphase.studies.papers.declarations import Checks, filled
from antiphase.studies.papers.robustness.bench import (
    EPS,
    PAPER,
    attacked_clips,
    bench,
    clip_settings,
    measured,
    slow_study,
    twins,
    vit_and_clip_settings,
    vit_study,
)
from antiphase.studies.scale import titled
from antiphase.terminal import eps_label

_X = pl.col("column").str.strip_suffix("/255").cast(pl.Float64) / 255
PRINTED = printed_numbers("robustness", "figure-2a").with_columns(x=_X)
MANY_CLASSES = "imagenet"  # on which the paper finds the two CLIPs nearly alike
WIDTHS = (2, 4, 8)
CLIP_WIDTHS = {"paper": (8, 16, 32), "laptop": WIDTHS, "smoke": (4, 8)}
RATE = "attack success rate"
DEPTH = pl.format("depth {}", "depth")
_AXES = {"eps": ("ε", IN_255THS, "eps"), "width": ("width in pixels", pl.format("width {}", "width"), "linear")}


def draw_rates(
    rows: RowsByTable, name: str, budget: str, attack: str, prefix: str, paper: pl.DataFrame | None = None
) -> Artefact:
    """Return a panel and a table for each data set: ASR over ``eps`` or ``width``, and the clean accuracy of CLIPs."""
    rates = estimates(rows["attack"], ["data", "series", budget], ASR)
    label, column, scale = _AXES[budget]
    title = f"{attack.partition(' ')[0]}, {{data}}"
    drawn = panels(rates, title, budget, (label, RATE), paper=paper, percent=True, scale=scale)
    shown = tables(rates, f"ASR under {attack}, {{data}}", f"{prefix}-{{data}}", "series", column, paper=paper)
    if prefix.endswith("clip"):
        clean = estimates(rows["accuracy"], ["series", "data"], CORRECT)
        shown += tables(clean, "Clean accuracy, zero-shot", "accuracy-clip", "series", "data")
    return Artefact([PAPER.plot(name, drawn)], shown)


def levels(rows: RowsByTable) -> list[str]:
    """Return two sentences for each data set: ASR at 1/255 and accuracy of both models, and the paper's ASR."""
    attacks = rows["attack"].filter((pl.col("eps") - 1 / 255).abs() < 1e-9)
    printed, source = PRINTED.filter(column="1/255").select("value", "data").row(0)
    paper = {"own": titled(source), "paper": f"{printed:.1%}"}
    sentences = []
    for data in attacks["data"].unique(maintain_order=True):
        rates = {}
        for name, frame, value in (("asr", attacks, ASR), ("clean", rows["accuracy"], CORRECT)):
            means = estimates(frame.filter(data=data), ["series"], value)
            rates[name] = {one: f"{mean:.1%}" for one, mean in means.select("series", "value").iter_rows()}
        if all({"ViT", "DiffViT"} <= set(known) for known in rates.values()):
            words = filled(PAPER.words["notes"]["levels"], data=titled(data), **rates, **paper)
            sentences.append(words.replace("%", " %"))
    return sentences


def _clip_study(
    part: str,
    budget: str,
    attack: str,
    prefix: str,
    claims: tuple[str, str],
    higher_on_imagenet: tuple[str, str],
    attacks: Callable[[Profile], list[dict[str, Any]]],
) -> Study:
    """Return the study of CLIPs under an attack: a claim for sets of few classes, another for ImageNet."""

    def cells(profile: Profile) -> list[Cell]:
        clips, sizes = attacked_clips(profile), bench(profile)
        made = [sizes.clip_attack(*clip, **how) for clip in clips for how in attacks(profile)]
        return [*made, *(Accuracy(model=one, data=data, limit=sizes.clip_images) for one, data in clips)]

    def checks(rows: RowsByTable) -> Checks:
        frame = rows["attack"]
        levels, names = (frame[column].unique(maintain_order=True).to_list() for column in (budget, "data"))
        few = [name for name in names if name != MANY_CLASSES]
        judge = on_average if budget == "eps" else higher
        made = {claims[0]: []}
        for name in few:
            where: dict[str, Any] = {budget: levels} | ({"data": name} if len(few) > 1 else {})
            made[claims[0]] += judge(frame.filter(data=name), "DiffCLIP", than="CLIP", **where)
        if MANY_CLASSES in names:
            first, second = higher_on_imagenet
            made[claims[1]] = higher(frame, first, than=second, **{budget: levels, "data": MANY_CLASSES})
        return made

    def few_classes(rows: RowsByTable) -> dict[str, str]:
        names = rows["attack"]["data"].unique(maintain_order=True)
        sets = [f"{titled(name)}, {source_of(name).classes}" for name in names if name != MANY_CLASSES]
        return {"few": "; ".join(sets)}

    name = f"figure-2{part}"
    draw = partial(draw_rates, name=name, budget=budget, attack=attack, prefix=prefix)
    return PAPER.study(name, cells, draw, checks, clip_settings, fill=few_classes)


FIGURE_2A = vit_study(
    "figure-2a",
    lambda profile: measured(twins(profile), bench(profile).attack, bench(profile).accuracy),
    lambda rows: replace(draw_rates(rows, "figure-2a", "eps", "PGD", "asr", PRINTED), notes=levels(rows)),
    lambda rows: {"fragile-at-depth-1": on_average(rows["attack"], "DiffViT", than="ViT", eps=EPS)},
)
_SAID = ("clip-fragile-few-classes", "clip-fragile-imagenet")
_TWINS = ("DiffCLIP", "CLIP")
FIGURE_2B = _clip_study("b", "eps", "PGD on the cosine", "asr-clip", _SAID, _TWINS, lambda profile: [{"eps": EPS}])
FIGURE_2C = vit_study(
    "figure-2c",
    lambda profile: measured(
        twins(profile), *(partial(bench(profile).patch, width=width) for width in WIDTHS), bench(profile).accuracy
    ),
    partial(draw_rates, name="figure-2c", budget="width", attack="patches", prefix="patches"),
    lambda rows: {"fragile-to-patches": higher(rows["attack"], "DiffViT", than="ViT", width=WIDTHS)},
)
_PATCH = {"eps": (1.0,), "attack": "patch"}
_SAID_OF_PATCHES = ("clip-fragile-to-patches", "clip-above-on-imagenet")
FIGURE_2D = _clip_study(
    *("d", "width", "patches", "patches-clip", _SAID_OF_PATCHES, ("CLIP", "DiffCLIP")),
    lambda profile: [_PATCH | {"width": width} for width in CLIP_WIDTHS[profile.name]],
)


AT = (1 / 255, 4 / 255)


def _draw_asr(attacks: pl.DataFrame, name: str, attack: str) -> Artefact:
    near = pl.any_horizontal((pl.col("eps") - eps).abs() < 1e-9 for eps in AT)
    rates = estimates(attacks.filter(near), ["data", "eps", "series", "depth"], ASR)
    shown = rates.sort("depth", maintain_order=True).with_columns(budget=IN_255THS)
    title = f"{attack}, ε = {{budget}}, {{data}}"
    drawn = panels(shown, title, "depth", ("depth", RATE), percent=True)
    listed = tables(shown, f"ASR under {title}", f"{name}-{{data}}-{{budget}}", "series", DEPTH)
    listed = [replace(one, name=one.name.removesuffix("/255")) for one in listed]
    return Artefact([PAPER.plot(name, drawn)], listed)


def asr_checks(attacks: pl.DataFrame, key: str) -> Checks:
    """Check what is claimed of depth: of DiffViT alone, and of the twins at 1/255; ``key`` begins the claims' names."""
    depths, small = sorted(attacks["depth"].unique()), AT[0]
    shallow = [depth for depth in depths if depth <= 2]
    fall = f"fitted fall over log2 depth, {depths[0]} to {depths[-1]}, at 1/255"
    highest = "ASR(DiffViT, depth 1) − mean of the deeper ones, at 1/255"
    keys = ["data", "series", "depth", SEED, SAMPLE]
    one, other = (attacks.filter((pl.col("eps") - eps).abs() < 1e-9).with_columns(value=ASR) for eps in AT)
    both = other.join(one.select(*keys, small="value"), on=keys, maintain_order="left")
    fades = _over_depth(both, pl.col("value") - pl.col("small"), f"{fall} − at 4/255, ASR({{}})")
    logs, means = list[Check](), pl.mean("value", "small").over("data", "series", "depth")
    if both.select(pl.min_horizontal(means).min() > 0).item():  # 0 has no logarithm
        logs = _over_depth(both, _log("value") - _log("small"), f"{fall} − at 4/255, ln ASR({{}})", "")
    peaks = peak(attacks, "depth", 1, {"series": "DiffViT", "eps": small}, ASR)
    return {
        f"{key}-falls-with-depth": _over_depth(one, -ASR, f"{fall}, ASR({{}})"),
        f"{key}-highest-at-depth-1": [Check(highest, estimate) for _, estimate in peaks],
        f"{key}-fragile-when-shallow": higher(attacks, "DiffViT", than="ViT", eps=small, depth=shallow),
        f"{key}-robust-when-deep": higher(attacks, "ViT", than="DiffViT", eps=small, depth=depths[-1]),
        f"{key}-fades": [*fades, *(replace(check, decides=False) for check in logs)],
    }


def _log(column: str) -> pl.Expr:
    """Return values whose mean is the logarithm of a mean at each depth, to first order: log m + v/m − 1."""
    mean = pl.mean(column).over("data", "series", "depth")
    return mean.log() + pl.col(column) / mean - 1


def _over_depth(rows: pl.DataFrame, value: pl.Expr, words: str, unit: Unit = "points") -> list[Check]:
    """Return the check of a trend of DiffViT over depth, and ViT's beside it."""
    trends = {kind: trend(rows, "depth", {"series": kind}, value, "log2") for kind in ("DiffViT", "ViT")}
    return [Check(words.format(kind), one, unit, decides=kind == "DiffViT") for kind, one in trends.items()]


def at_each_depth(attacks: pl.DataFrame, prefix: str = "asr") -> tuple[tuple[Panel, ...], list[Table]]:
    """Return a panel and a table of ASR over ε for each data set and depth."""
    rates = estimates(attacks, ["data", "depth", "series", "eps"], ASR).sort("depth", maintain_order=True)
    drawn = panels(rates, "{data}, depth {depth}", "eps", ("ε", RATE), percent=True, scale="eps")
    title, name = "ASR under PGD with depth {depth}, {data}", prefix + "-{data}-{depth}"
    return drawn, tables(rates, title, name, "series", IN_255THS)


def draw_by_depth(attacks: pl.DataFrame) -> Artefact:
    """Draw ASR over ε at each depth, and over depth at two ε."""
    (drawn, listed), over_depth = at_each_depth(attacks), _draw_asr(attacks, "figure-3a", "PGD")
    plot = PAPER.plot("asr-by-depth", drawn, columns=attacks["data"].n_unique())  # a row for each depth
    return Artefact([plot, *over_depth.plots], [*listed, *over_depth.tables])


def depth_checks(attacks: pl.DataFrame) -> Checks:
    """Check that DiffViT is the more fragile one at each depth, and less so the deeper the models."""
    depths = sorted(attacks["depth"].unique())
    words = f"fitted fall of ASR(DiffViT) − ASR(ViT) over log2 depth, {depths[0]} to {depths[-1]}, {{}}"
    places: dict[str, dict[str, Any]] = {"mean over ε": {}} | {f"at {eps_label(eps)}": {"eps": eps} for eps in EPS}
    differences, narrows = gaps(attacks), -pl.col("value")
    falls = [
        Check(words.format(place), trend(differences, "depth", where, narrows, "log2"), decides=not where)
        for place, where in places.items()
    ]
    means = ((depth, on_average(attacks, "DiffViT", than="ViT", eps=EPS, depth=depth)[0]) for depth in depths)
    by_depth = [replace(mean, what=f"ASR(DiffViT) − ASR(ViT), mean over ε, depth {depth}") for depth, mean in means]
    return {"fragile-at-each-depth": by_depth, "gap-falls-with-depth": falls}


FIGURE_3A = vit_study(
    "figure-3a",
    lambda profile: measured(twins(profile, None), bench(profile).attack, bench(profile).accuracy),
    lambda rows: draw_by_depth(rows["attack"]),
    lambda rows: {**asr_checks(rows["attack"], "pgd"), **depth_checks(rows["attack"])},
)
FIGURE_3B = slow_study(
    "figure-3b",
    lambda profile: measured(twins(profile, None), partial(bench(profile).attack, eps=AT, attack="autoattack")),
    lambda rows: _draw_asr(rows["attack"], "figure-3b", "AutoAttack"),
    lambda rows: asr_checks(rows["attack"], "autoattack"),
)


def reaching(rows: RowsByTable) -> pl.DataFrame:
    """Set the distance of robust images to the largest distance found on the data set, a lower bound."""
    attacks = rows["attack"].with_columns(found=pl.col("prediction") != pl.col("clean_prediction"))
    most = pl.when("found").then("distance").max().over("data")
    return attacks.with_columns(reach=pl.when("found").then("distance").otherwise(most.fill_null(0.0)))


def _draw_distances(rows: RowsByTable) -> Artefact:
    attacks = reaching(rows)
    drawn, listed = list[Panel](), list[Table]()
    style: dict[str, Any] = {"percent": False, "digits": 3}
    for (data,), block in attacks.group_by("data", maintain_order=True):
        for kind in ("DiffViT", "ViT"):
            subset, curves = block.filter(series=kind), []
            for reach in np.linspace(0.0, float(subset["reach"].quantile(0.99) or 1.0), 25).tolist():
                within = (pl.col("found") & (pl.col("distance") <= reach)).cast(pl.Float64)
                curves.append(estimates(subset, ["depth"], within).with_columns(x=pl.lit(reach)))
            # without the seeds: too many lines to tell apart
            points = pl.concat(curves).sort("depth", maintain_order=True).drop(BY_SEED).with_columns(series=DEPTH)
            drawn += panels(points, f"{kind}, {data}", "x", ("L2 distance", RATE), percent=True)
        means = estimates(block, ["data", "series", "depth"], pl.col("reach"), kind="size")
        means = means.sort("depth", maintain_order=True)
        drawn += panels(means, "mean distance, {data}", "depth", ("depth", "L2 distance"))
        listed += tables(means, "Mean L2 distance, {data}", "cw-mean-{data}", "series", DEPTH, **style)
        if len(farthest := _farthest(block).with_columns(data=pl.lit(data))):
            title = "L2 distance at which ASR reaches 100 %: mean over seeds, {data}"
            about = {"brackets": "least and largest", **style}
            listed += tables(farthest, title, "cw-all-{data}", "series", DEPTH, **about)
    lost = 1.0 - float(attacks["found"].cast(pl.Float64).mean() or 0.0)  # type: ignore[arg-type]
    return Artefact([PAPER.plot("figure-3c", drawn, lost=f"{lost * 100:.1f}")], listed)


def _farthest(block: pl.DataFrame) -> pl.DataFrame:
    """Return the distance at which every image is broken: the largest over images, averaged over seeds."""
    some = block.filter(pl.col("found").all().over("series", "depth"))  # undefined if an image is robust
    far = some.group_by(["series", "depth", SEED], maintain_order=True).agg(pl.max("reach"), n=pl.len())
    ends = {"value": pl.mean("reach"), "low": pl.min("reach"), "high": pl.max("reach")}
    numbers = {"n": pl.first("n").cast(pl.Int64), "seeds": pl.len().cast(pl.Int64)}
    mean = far.group_by(["series", "depth"], maintain_order=True).agg(**ends, **numbers)
    return mean.sort("depth", maintain_order=True)


def _distance_checks(rows: RowsByTable) -> Checks:
    attacks = reaching(rows)
    depths = sorted(attacks["depth"].unique())

    def rises(among: Sequence[int]) -> list[Check]:
        words = f"fitted rise over log2 depth, {among[0]} to {among[-1]}, mean L2({{}})"
        return _over_depth(attacks.filter(pl.col("depth").is_in(among)), pl.col("reach"), words, "")

    deeper = depths[1:] if len(depths) > 2 else depths
    return {"cw-needs-more-when-deep": rises(depths), "cw-needs-more-at-each-depth": rises(deeper)}


FIGURE_3C = slow_study(
    "figure-3c",
    lambda profile: measured(twins(profile, None), bench(profile).nearest),
    _draw_distances,
    _distance_checks,
)


RESTARTS = 3
PROTOCOLS: list[dict[str, Any]] = [{"seed": 0}, {"seed": 1}, {"seed": 2}, {"restarts": RESTARTS}]
AVERAGE, WORST = "average of runs", f"worst of {RESTARTS} restarts"
_EQUAL = 0.01  # our reading of "equal or higher": at most 1 point lower
_IS_VIT = pl.col("series").is_in(["ViT", "DiffViT"])
_BY_PROTOCOL = pl.format("{}, {}", "series", "protocol")
_RUN = ["data", "series", "depth", SEED]  # what runs of one model share


def _restart_cells(profile: Profile) -> list[Cell]:
    sizes, clips = bench(profile), attacked_clips(profile)
    made = [sizes.attack(model, **protocol) for model in twins(profile, None) for protocol in PROTOCOLS]
    return [*made, *(sizes.clip_attack(*clip, EPS, **protocol) for clip in clips for protocol in PROTOCOLS)]


def by_protocol(rows: RowsByTable) -> pl.DataFrame:
    """Return a row for each protocol, model, ε and image: ``success`` is the share of runs, ``cell`` lists them."""
    grouped = _of_one_training(rows).group_by(["protocol", *_RUN, "eps", "sample"], maintain_order=True)
    return grouped.agg(pl.col("success").cast(pl.Float64).mean(), pl.col("cell").unique().sort())


def _of_one_training(rows: RowsByTable) -> pl.DataFrame:
    """Return the runs whose clean predictions are those of the run with restarts, and their ``protocol``.

    A model may have been trained again between two runs: one recipe and seed give other weights on another processor.
    """
    protocol = pl.when(pl.col("restarts").is_null()).then(pl.lit(AVERAGE)).otherwise(pl.lit(WORST))
    named = rows["attack"].with_columns(protocol=protocol)
    clean = named.filter(protocol=WORST).select(*_RUN, "eps", "sample", known="clean_prediction")
    both = named.join(clean, on=[*_RUN, "eps", "sample"], how="left", nulls_equal=True, maintain_order="left")
    same = (pl.col("known").is_null() | (pl.col("known") == pl.col("clean_prediction"))).all().over(*_RUN, "cell")
    return both.filter(same).drop("known")


def _draw_restarts(rows: RowsByTable) -> Artefact:
    attacks = by_protocol(rows)
    rates = estimates(attacks, ["data", "series", "depth", "protocol", "eps"], ASR).drop(BY_SEED)
    rates = rates.sort("depth", "protocol", maintain_order=True)
    kind = pl.when(_IS_VIT.any().over("data")).then(pl.lit("PGD, depth 1")).otherwise(pl.lit("PGD"))
    shallow = rates.filter(~_IS_VIT | (pl.col("depth") == 1)).with_columns(kind=kind, series=_BY_PROTOCOL)
    drawn = panels(shallow, "{kind}, {data}", "eps", ("ε", RATE), scale="eps", percent=True)
    model = pl.when(_IS_VIT).then(pl.format("{}, depth {}", "series", "depth")).otherwise("series")
    row, title = pl.format("{}, {}", model, "protocol"), "ASR under PGD by protocol, {data}"
    named = attacks.filter(_IS_VIT).with_columns(series=_BY_PROTOCOL)
    plots = [PAPER.plot("figure-6", drawn), *_draw_asr(named, "figure-6-depth", "PGD").plots]
    every, kept = (cells.n_unique() for cells in (rows["attack"]["cell"], attacks["cell"].explode()))
    notes = [filled(PAPER.words["notes"]["other-trainings"], left_out=every - kept, runs=every)] * (kept < every)
    return Artefact(plots, tables(rates, title, "restarts-{data}", row, IN_255THS), notes=notes)


def _restart_checks(rows: RowsByTable) -> Checks:
    attacks = by_protocol(rows)
    worst = attacks.filter(protocol=WORST)
    raised = []
    for series, depth in attacks.select("series", "depth").unique(maintain_order=True).iter_rows():
        known = f", depth {depth}" if series in ("ViT", "DiffViT") else ""
        one, three = ({"series": series, "protocol": protocol} for protocol in (AVERAGE, WORST))
        estimate = difference(attacks.filter(pl.col("depth").eq_missing(depth)), three, one, ASR)
        raised.append(Check(f"ASR({series}{known}, {WORST}) − ASR({AVERAGE})", estimate))
    if (vits := worst.filter(_IS_VIT)).is_empty():
        clips = higher(worst, "DiffCLIP", than="CLIP", eps=EPS)
        return {"restarts-raise-asr": raised, "clip-fragile-with-restarts": [no_worse(one, _EQUAL) for one in clips]}
    shallow, small = ([eps for eps in EPS if eps <= most / 255] for most in (2, 1))
    depths = sorted(vits["depth"].unique())
    return {
        "restarts-raise-asr": raised,
        "fragile-with-restarts": higher(vits, "DiffViT", than="ViT", eps=shallow, depth=1),
        "fragile-with-restarts-everywhere": higher(vits, "DiffViT", than="ViT", depth=depths, eps=small),
        **asr_checks(vits, "pgd-with-restarts"),
    }


FIGURE_6 = slow_study("figure-6", _restart_cells, _draw_restarts, _restart_checks, vit_and_clip_settings)
