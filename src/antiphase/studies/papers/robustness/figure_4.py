"""Lipschitz estimates of the attention maps, layer by layer, beside λ.

The paper (Section 5.3, Figure 4): "In all settings, DA-equipped models exhibit significantly higher Lipschitz estimates
than baselines, with maxima at layers using larger λ. Interestingly, later layers often display lower sensitivity than
earlier ones"; "the wider spread of values in DA models highlights their more variable sensitivity across layers". The
numbers are only drawn. Its estimator is the sampled maximum, see :mod:`~.figure_3d`; the claims are tested with it and
with power iteration. The steepest layer is that of each model and image, and the spread is the standard deviation over
the layers of a model, for each image. The paper does not say at which images the CLIPs are measured; here ImageNet's.

The hub name of the released CLIP is inferred and unverified; ``--baseline FILE`` replaces it.

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100, and the released CLIP and DiffCLIP | not run |
| laptop | those of Figure 3(d); 16 CLIPs, OpenMoji | not run at this size |

antiphase study run figure-4 --profile laptop
"""

import polars as pl

from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import SAMPLE, SEED, estimates, mean, over
from antiphase.studies.figures import Artefact, Panel, Plot, Table
from antiphase.studies.papers.robustness.bench import all_cells, bench, twins
from antiphase.studies.papers.robustness.clip_bench import clip_models, clip_settings, sense_clip
from antiphase.studies.papers.robustness.figure_3d import (
    ESTIMATORS,
    PAPERS,
    STEEPEST,
    VALUE,
    in_order,
    of_maps,
)
from antiphase.studies.papers.robustness.layer_values import lambdas
from antiphase.studies.papers.robustness.show import against, apart, each_data, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

MODEL = ["data", "series", "depth", SEED]


def cells(profile: Profile) -> list[Cell]:
    """The cells of Figure 3(d) and the same of the CLIPs' image towers; alignment for λ, as in Figure 5."""
    own = bench(profile)
    return all_cells(
        [own.sense_of(model, "lipschitz") for model in twins(profile, own.depths)],
        [sense_clip(profile, model, "lipschitz") for model in clip_models(profile)],
        [own.sense_of(model, "alignment") for model in twins(profile, own.depths, ["diffvit"])],
        [sense_clip(profile, model, "alignment") for model in clip_models(profile, ["diffclip"])],
    )


def draw(rows: RowsByTable) -> Artefact:
    """The estimates over the layers for each depth and estimator, and λ over the layers."""
    maps = in_order(of_maps(rows))
    found = estimates(maps, ["data", "depth", "estimator", "series", "layer"], VALUE, kind="size")
    of_data = (found.filter(data=name) for name in found["data"].unique(maintain_order=True))
    found = pl.concat([block.sort("depth", "layer", maintain_order=True) for block in of_data])
    panels, tables = [], []
    for (data, depth, estimator), block in found.group_by(
        ["data", "depth", "estimator"], maintain_order=True
    ):
        where = f"{data}, depth {depth}"
        points = block.select("series", "value", "low", "high", "n", "seeds", x=pl.col("layer") + 1.0)
        if block["layer"].n_unique() > 1:
            panels.append(Panel(f"{where}, {estimator}", "layer", "Lipschitz estimate", points))
        layer = pl.format("layer {}", pl.col("layer") + 1)
        key = f"layers-{data}-{depth}-{estimator}".replace(" ", "-")
        tables.append(
            table_of(
                block,
                pl.col("series"),
                layer,
                key,
                f"Lipschitz estimate by layer, {where}, {estimator}",
                percent=False,
                digits=4,
            )
        )
    caption = (
        "Local Lipschitz estimates of each layer's attention map with respect to the pixels. The paper's estimator is "
        f"the sampled maximum. Bands: 95 % over {over(found)}."
    )
    plots = [Plot("figure-4", caption, tuple(panels), columns=len(ESTIMATORS))] if panels else []
    lam, table = _lambda(rows["alignment"])
    return Artefact([*plots, lam], [*tables, table])


def _lambda(aligned: pl.DataFrame) -> tuple[Plot, Table]:
    """Return λ over the layers, a panel for each data set and a line for each depth, and the same as a table."""
    found = lambdas(aligned).sort("data", "depth", "layer", maintain_order=True)
    found = found.with_columns(name=pl.format("depth {}", "depth"))
    panels = [
        Panel(
            f"λ, {data}",
            "layer",
            "λ",
            block.select("value", "low", "high", "n", "seeds", series="name", x=pl.col("layer") + 1.0),
        )
        for (data,), block in found.group_by("data", maintain_order=True)
    ]
    caption = (
        "λ of differential attention, the mean over heads. The same for every image; bands: 95 % over seeds."
    )
    row, layer = pl.format("{}, {}", "data", "name"), pl.format("layer {}", pl.col("layer") + 1)
    table = table_of(found, row, layer, "lambda-by-layer", "λ by layer", percent=False, digits=3)
    return Plot("figure-4-lambda", caption, tuple(panels)), table


def spread(maps: pl.DataFrame) -> pl.DataFrame:
    """Return the standard deviation of an estimate over the layers, for each model and image."""
    return maps.group_by(*MODEL, SAMPLE, maintain_order=True).agg(value=VALUE.std(ddof=0))


def excess(maps: pl.DataFrame, aligned: pl.DataFrame) -> pl.DataFrame:
    """Return λ of the layer with the largest estimate, less the mean λ over the layers, for each model and image.

    Args:
        maps: rows of Lipschitz estimates of one estimator, of models with differential attention.
        aligned: rows of alignment of the same models, which have λ.
    """
    lam = aligned.group_by(*MODEL, "layer", maintain_order=True).agg(pl.mean("lam"))
    joined = maps.join(lam, on=[*MODEL, "layer"], nulls_equal=True, maintain_order="left")
    at = pl.col("lam").sort_by("value", "layer").last()
    return joined.group_by(*MODEL, SAMPLE, maintain_order=True).agg(value=at - pl.col("lam").mean())


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that differential attention is steeper, most so where λ is large, and more spread over the layers."""
    return each_data(of_maps(rows), lambda maps: _claims(maps, rows["alignment"]))


def _claims(maps: pl.DataFrame, aligned: pl.DataFrame) -> list[Claim]:
    tested = (
        (PAPERS, "", "Section 5.3, Figure 4"),
        (STEEPEST, "-truly", "Section 5.3, with an estimator near the supremum"),
    )
    return [
        claim
        for estimator, suffix, source in tested
        for claim in _claims_by(maps.filter(estimator=estimator), aligned, estimator, suffix, source)
    ]


def _claims_by(
    maps: pl.DataFrame, aligned: pl.DataFrame, estimator: str, suffix: str, source: str
) -> list[Claim]:
    spreads, differential = spread(maps), maps.filter(pl.col("series").is_in(["DiffViT", "DiffCLIP"]))
    excesses = excess(differential, aligned)
    steeper, wider, larger = [], [], []
    for (series, depth), own in differential.group_by("series", "depth", maintain_order=True):
        base, words = str(series).removeprefix("Diff"), f", depth {depth}" if series == "DiffViT" else ""
        where = pl.col("depth").eq_missing(pl.lit(depth, pl.Int64))
        pair = (str(series), base)
        steeper.append(
            Check(f"L({series}) − L({base}){words}", against(maps.filter(where), *pair, VALUE), "")
        )
        if own["layer"].n_unique() > 1:
            wide = against(spreads.filter(where), *pair, VALUE)
            wider.append(Check(f"spread(L, {series}) − spread(L, {base}){words}", wide, ""))
            most = mean(excesses.filter(where, series=series), {}, VALUE)
            larger.append(Check(f"λ(steepest layer of {series}) − mean λ{words}", most, ""))
    statements = {
        "da-is-steeper": (
            "In all settings, models with differential attention have higher Lipschitz estimates",
            steeper,
        ),
        "steepest-where-lambda-is-large": ("The steepest layers are those of larger λ", larger),
        "da-is-more-spread": ("With differential attention the estimates spread more over the layers", wider),
        "later-layers-are-calmer": (
            "In the deepest DiffViT the last layer is less sensitive than the first",
            _calmer(differential),
        ),
    }
    return [
        Claim(f"{name}{suffix}", source, f"{words} ({estimator}).", checks)
        for name, (words, checks) in statements.items()
        if checks
    ]


def _calmer(differential: pl.DataFrame) -> list[Check]:
    vits = differential.filter(series="DiffViT")
    if vits.is_empty():
        return []
    deep = vits.filter(depth=vits["depth"].max())
    last = int(deep["layer"].max() or 0)  # type: ignore[arg-type]
    return [Check(f"L(layer 1) − L(layer {last + 1})", apart(deep, "layer", 0, last, VALUE, {}), "")]


study = Study(
    "figure-4",
    "robustness",
    "Figure 4",
    "Lipschitz estimates by layer",
    __doc__,
    cells,
    draw,
    claims,
    clip_settings,
)
