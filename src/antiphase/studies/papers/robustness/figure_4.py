"""Figure 4: Lipschitz estimates of the attention maps, layer by layer, beside λ."""

import polars as pl

from antiphase.studies.checks import apart, each_data
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import SAMPLE, SEED, difference, estimates, mean, over
from antiphase.studies.figures import BY_SEED, Artefact, Plot, panels, tables
from antiphase.studies.papers.robustness.bench import (
    all_cells,
    bench,
    clip_models,
    twins,
    vit_and_clip_settings,
)
from antiphase.studies.papers.robustness.figure_3 import (
    DEPTH,
    ESTIMATORS,
    PAPERS,
    STEEPEST,
    VALUE,
    in_order,
    of_maps,
)
from antiphase.studies.papers.robustness.layer_sensitivity import LAYER_NAME, lambdas
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

MODEL = ["data", "series", "depth", SEED]


def cells(profile: Profile) -> list[Cell]:
    """The cells of Figure 3(d) and the same of the CLIPs' image towers; alignment for λ, as in Figure 5."""
    own = bench(profile)
    both = [*twins(profile, None), *clip_models(profile)]
    differential = [*twins(profile, None, ["diffvit"]), *clip_models(profile, ["diffclip"])]
    return all_cells(
        [own.sense_of(model, "lipschitz") for model in both],
        [own.sense_of(model, "alignment") for model in differential],
    )


def draw(rows: RowsByTable) -> Artefact:
    """Draw the estimates over the layers for each depth and estimator, and λ over the layers."""
    maps = in_order(of_maps(rows))
    means = estimates(maps, ["data", "depth", "estimator", "series", "layer"], VALUE, kind="size").drop(
        BY_SEED
    )
    of_data = (means.filter(data=name) for name in means["data"].unique(maintain_order=True))
    means = pl.concat([block.sort("depth", "layer", maintain_order=True) for block in of_data])
    several = means.filter(pl.col("layer").n_unique().over("data", "depth", "estimator") > 1)
    where, number = "{data}, depth {depth}, {estimator}", pl.col("layer") + 1
    drawn = panels(several, where, number, ("layer", "Lipschitz estimate"))
    title, name = f"Lipschitz estimate by layer, {where}", "layers-{data}-{depth}-{estimator}"
    listed = tables(means, title, name, "series", LAYER_NAME, percent=False, digits=4)
    caption = (
        "Local Lipschitz estimates of each layer's attention map with respect to the pixels. The paper's estimator is "
        f"the sampled maximum. Bands: 95 % over {over(means)}."
    )
    plots = [Plot("figure-4", caption, drawn, columns=len(ESTIMATORS))] if drawn else []
    lam = lambdas(rows["alignment"]).sort("data", "depth", "layer", maintain_order=True).drop(BY_SEED)
    lam = lam.with_columns(series=DEPTH)
    caption = (
        "λ of differential attention, the mean over heads. The same for every image; bands: 95 % over seeds."
    )
    plots.append(Plot("figure-4-lambda", caption, panels(lam, "λ, {data}", number, ("layer", "λ"))))
    row, style = pl.format("{}, {}", "data", "series"), {"percent": False, "digits": 3}
    listed += tables(lam, "λ by layer", "lambda-by-layer", row, LAYER_NAME, **style)
    return Artefact(plots, listed)


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
    steepest = pl.col("lam").sort_by("value", "layer").last()
    return joined.group_by(*MODEL, SAMPLE, maintain_order=True).agg(value=steepest - pl.col("lam").mean())


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that differential attention is steeper, most so where λ is large, and more spread over the layers."""
    tested = {
        PAPERS: ("", "Section 5.3, Figure 4"),
        STEEPEST: ("-truly", "Section 5.3, with an estimator near the supremum"),
    }
    return each_data(
        of_maps(rows),
        lambda maps: [
            claim
            for estimator, named in tested.items()
            for claim in _claims(maps.filter(estimator=estimator), rows["alignment"], estimator, *named)
        ],
    )


def _claims(
    maps: pl.DataFrame, aligned: pl.DataFrame, estimator: str, suffix: str, source: str
) -> list[Claim]:
    spreads, differential = spread(maps), maps.filter(pl.col("series").is_in(["DiffViT", "DiffCLIP"]))
    excesses = excess(differential, aligned)
    steeper, wider, larger = [], [], []
    for (series, depth), own in differential.group_by("series", "depth", maintain_order=True):
        base, words = str(series).removeprefix("Diff"), f", depth {depth}" if series == "DiffViT" else ""
        where = pl.col("depth").eq_missing(pl.lit(depth, pl.Int64))
        pair = ({"series": series}, {"series": base}, VALUE)
        steeper.append(Check(f"L({series}) − L({base}){words}", difference(maps.filter(where), *pair), ""))
        if own["layer"].n_unique() > 1:
            wide = difference(spreads.filter(where), *pair)
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
            _calmer(differential.filter(series="DiffViT")),
        ),
    }
    return [
        Claim(f"{name}{suffix}", source, f"{words} ({estimator}).", checks)
        for name, (words, checks) in statements.items()
        if checks
    ]


def _calmer(vits: pl.DataFrame) -> list[Check]:
    if vits.is_empty():
        return []
    deep = vits.filter(depth=vits["depth"].max())
    last = int(deep["layer"].max() or 0)  # type: ignore[arg-type]
    return apart(deep, "layer", 0, last, VALUE, f"L(layer 1) − L(layer {last + 1})")


FIGURE_4 = Study(
    "figure-4",
    "robustness",
    "Figure 4",
    "Lipschitz estimates by layer",
    """Lipschitz estimates of the attention maps, layer by layer, beside λ.

The paper (Section 5.3, Figure 4): "In all settings, DA-equipped models exhibit significantly higher Lipschitz estimates
than baselines, with maxima at layers using larger λ. Interestingly, later layers often display lower sensitivity than
earlier ones"; "the wider spread of values in DA models highlights their more variable sensitivity across layers". The
numbers are only drawn. Its estimator is the sampled maximum, see Figure 3(d); the claims are tested with it and with
power iteration. The steepest layer is that of each model and image, and the spread is the standard deviation over the
layers of a model, for each image. The paper does not say at which images the CLIPs are measured; here ImageNet's.

The hub name of the released CLIP is inferred and unverified; ``--baseline FILE`` replaces it.
""",
    cells,
    draw,
    claims,
    vit_and_clip_settings,
)
