"""Figure 4: Lipschitz estimates of the attention maps, layer by layer, beside λ."""

from collections.abc import Sequence

import polars as pl

from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim, apart, combinations, each_data, higher
from antiphase.studies.estimation import SAMPLE, SEED, difference, estimates, mean, over, share_above, trend
from antiphase.studies.figures import BY_SEED, Artefact, Plot, panels, tables
from antiphase.studies.papers.robustness.bench import (
    all_cells,
    bench,
    clip_models,
    settings,
    twins,
    vit_and_clip_settings,
)
from antiphase.studies.papers.robustness.layer_sensitivity import LAYER_NAME, lambdas
from antiphase.studies.papers.robustness.success_rates import DEPTH
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

VALUE = pl.col("value")
PAPERS, STEEPEST = "sampled maximum", "power iteration"
"""The paper's estimator of Lipschitz constants, and one near the supremum, with which its claims are tested again."""

ESTIMATORS = (PAPERS, "sampled mean", STEEPEST, "gradient ascent")


def of_maps(rows: RowsByTable) -> pl.DataFrame:
    """Return the rows of attention maps; the logits' are left out."""
    return rows["lipschitz"].filter(pl.col("of") == "map")


def in_order(maps: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the estimators that are drawn, in the order of ``ESTIMATORS``."""
    return pl.concat([maps.filter(estimator=name) for name in ESTIMATORS])


def draw_lipschitz(rows: RowsByTable) -> Artefact:
    """Draw a panel for each estimator: the mean over layers, by depth."""
    maps = in_order(of_maps(rows))
    means = estimates(maps, ["data", "estimator", "series", "depth"], VALUE, kind="size")
    means = means.sort("depth", maintain_order=True)
    title = "{estimator}, {data}" if maps["data"].n_unique() > 1 else "{estimator}"
    words = "Local Lipschitz estimate, mean over layers, {estimator}, {data}"
    style = {"percent": False, "digits": 4}
    caption = (
        "Local Lipschitz estimates of the attention maps (L2 to L2, root mean square over heads), averaged over the "
        f"layers. The paper's estimator is the sampled maximum. Bands: 95 % over {over(means)}."
    )
    return Artefact(
        [Plot("figure-3d", caption, panels(means, title, "depth", ("depth", "Lipschitz estimate")))],
        tables(means, words, "lipschitz-{data}-{estimator}", "series", DEPTH, **style),
    )


def _lipschitz_claims(maps: pl.DataFrame) -> list[Claim]:
    depths = sorted(maps["depth"].unique())

    def rises(estimator: str) -> list[Check]:
        rise = trend(maps, "depth", {"series": "DiffViT", "estimator": estimator}, VALUE, "log2")
        return [Check(f"rise of L(DiffViT) from depth {depths[0]} to {depths[-1]}, {estimator}", rise, "")]

    return [
        Claim(
            "lipschitz-rises",
            "Section 5.3, Figure 3(d)",
            "DiffViT's local Lipschitz estimate, averaged over layers, rises with depth (sampled maximum).",
            rises(PAPERS),
        ),
        Claim(
            "lipschitz-rises-truly",
            "Section 5.3, with an estimator near the supremum",
            "DiffViT's local Lipschitz constant, averaged over layers, rises with depth (power iteration).",
            rises(STEEPEST),
        ),
        Claim(
            "lipschitz-above-vit",
            "Section 5.3, Figure 4",
            "At every depth DiffViT's layers have a higher mean Lipschitz estimate than ViT's (sampled maximum).",
            higher(
                maps, "DiffViT", than="ViT", value=VALUE, what="L", unit="", depth=depths, estimator=PAPERS
            ),
        ),
    ]


FIGURE_3D = Study(
    "figure-3d",
    "robustness",
    "Figure 3(d)",
    "Lipschitz estimates by depth",
    """Local Lipschitz estimates averaged over all attention layers, by depth.

The paper (Section 5.3, Figure 3(d)) samples ξ uniformly with ‖ξ‖∞ ≤ 8/255 to estimate the local Lipschitz constant of
equation (4), which is a supremum, and averages "across all layers of each model": "deeper DiffViT models consistently
yield higher per-layer Lipschitz values". So the paper's estimator is read as the largest of the sampled slopes, and
"mean" as the mean over layers (and images); the number of samples is not given (100 here). The mean over ξ is shown
too. Both are far below the supremum: they concentrate on ‖J‖_F/√D. Power iteration (the operator norm at x) and
gradient ascent in the ball come closer to it.
""",
    lambda profile: [bench(profile).sense_of(model, "lipschitz") for model in twins(profile, None)],
    draw_lipschitz,
    lambda rows: each_data(of_maps(rows), _lipschitz_claims),
    settings,
)


MODEL = ["data", "series", "depth", SEED]


def layer_cells(profile: Profile) -> list[Cell]:
    """The cells of Figure 3(d) and the same of the CLIPs' image towers; alignment for λ, as in Figure 5."""
    own = bench(profile)
    both = [*twins(profile, None), *clip_models(profile)]
    differential = [*twins(profile, None, ["diffvit"]), *clip_models(profile, ["diffclip"])]
    return all_cells(
        [own.sense_of(model, "lipschitz") for model in both],
        [own.sense_of(model, "alignment") for model in differential],
    )


def draw_layers(rows: RowsByTable) -> Artefact:
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
    """Return λ of the layer with the largest estimate, less the mean λ over the layers, for each model and image."""
    lam = aligned.group_by(*MODEL, "layer", maintain_order=True).agg(pl.mean("lam"))
    joined = maps.join(lam, on=[*MODEL, "layer"], nulls_equal=True, maintain_order="left")
    steepest = pl.col("lam").sort_by("value", "layer").last()
    return joined.group_by(*MODEL, SAMPLE, maintain_order=True).agg(value=steepest - pl.col("lam").mean())


def layer_claims(rows: RowsByTable) -> list[Claim]:
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
            for claim in _layer_claims(maps.filter(estimator=estimator), rows["alignment"], estimator, *named)
        ],
    )


def _layer_claims(
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
    layer_cells,
    draw_layers,
    layer_claims,
    vit_and_clip_settings,
)


SITES = ("pixels", "tokens")
CLEAN = "at x"
PERTURBED = {"noise": "at x + noise", "pgd": "at x + PGD"}
PLACES = (CLEAN, *PERTURBED.values())
BELOW = (pl.col("cross") < 0).cast(pl.Float64)


def alignment_cells(profile: Profile) -> list[Cell]:
    """Alignment of every layer of DiffViTs of every depth, and of DiffCLIP, at x and at x + ξ."""
    models = [*twins(profile, None, ["diffvit"]), *clip_models(profile, ["diffclip"])]
    parts = ("alignment", "alignment-perturbed")
    return [bench(profile).sense_of(model, part) for model in models for part in parts]


def _placed(rows: RowsByTable) -> pl.DataFrame:
    """Return the rows at x and at x + ξ, with a column ``at`` that says which."""
    clean = rows["alignment"].with_columns(at=pl.lit(CLEAN))
    names = pl.col("perturbation").replace_strict(PERTURBED, return_dtype=pl.String)
    perturbed = rows["alignment-perturbed"].with_columns(at=names)
    return pl.concat([clean, perturbed], how="diagonal_relaxed").filter(pl.col("site").is_in(SITES))


def draw_alignment(rows: RowsByTable) -> Artefact:
    """Draw a panel for each data set, site and place: the share of images and heads below zero, over the layers."""
    shares = estimates(_placed(rows), ["data", "site", "at", "series", "depth", "layer"], BELOW).drop(BY_SEED)
    shares = shares.sort("depth", "layer", maintain_order=True)
    lines = shares.with_columns(series=DEPTH)
    order = pl.col("at").cast(pl.Enum(PLACES)).to_physical()
    sites = lines.select("data", "site").unique(maintain_order=True).with_row_index("_site")
    lines = lines.join(sites, on=["data", "site"], maintain_order="left").sort(
        "_site", order, maintain_order=True
    )
    labels, style = ("layer", "share with cos < 0"), {"percent": True, "level": 0.5}
    drawn = panels(lines, "{at}, by the {site}, {data}", pl.col("layer") + 1, labels, **style)
    words = "Share of images and heads with cos(∇A1, ∇A2) < 0, by the {site}, {data}"
    row = pl.format("{}, {}, {}", "series", DEPTH, "at")
    caption = (
        "Share of images and heads for which the gradients of A1 and A2 oppose each other: at the image x, at x plus "
        "uniform noise, and at x plus the perturbation that PGD finds, both with ‖ξ‖∞ ≤ 8/255. ∇ is by the pixels, "
        "from random directions, or by the layer's tokens, exactly. "
        f"Bands: 95 % over {over(shares)}."
    )
    listed = tables(shares, words, "alignment-{data}-{site}", row, LAYER_NAME)
    return Artefact([Plot("figure-5", caption, drawn, columns=3)], listed)


def alignment_claims(rows: RowsByTable) -> list[Claim]:
    """Claim that negative alignment dominates, at the paper's x + ξ and, apart from it, at x."""
    places = tuple(PERTURBED.values())
    return each_data(
        _placed(rows),
        lambda own: [
            *_alignment_claims(own, places, "", "Section 5.4, Figure 5", "At x + ξ"),
            *_alignment_claims(own, (CLEAN,), "-at-x", NOT_IN_PAPER, "At x"),
        ],
    )


def _alignment_claims(
    aligned: pl.DataFrame, places: Sequence[str], suffix: str, source: str, where: str
) -> list[Claim]:
    vits = aligned.filter(series="DiffViT")
    clip = aligned.filter(pl.col("series") == "DiffCLIP", pl.col("site") == "pixels")
    made = []
    if not vits.is_empty():
        depths = sorted(vits["depth"].drop_nulls().unique())
        dominates = {
            "opposed-at-depth-1": (
                f"{where}, negative alignment dominates even in one-layer DiffViTs: over half of images and heads.",
                {"at": places, "site": SITES, "depth": 1},
            ),
            "opposed-everywhere": (
                f"{where}, negative alignment is structural: it dominates at every depth, over all layers.",
                {"at": places, "site": "pixels", "depth": depths},
            ),
        }
        for name, (words, levels) in dominates.items():
            checks = [
                Check(
                    f"share below 0 − 50 %, depth {one['depth']}, {one['site']}, {one['at']}",
                    share_above(vits, one, BELOW, 0.5),
                )
                for one in combinations(levels)
            ]
            made.append(Claim(f"{name}{suffix}", source, words, checks))
    if not clip.is_empty():
        last = int(clip["layer"].max() or 0)  # type: ignore[arg-type]
        what = f"share(layer 1) − share(layer {last + 1}), pixels"
        if last:
            checks = apart(clip, "layer", 0, last, BELOW, what, "points", at=places)
        else:
            checks = [Check(f"{what}, {place}", None) for place in places]
        words = f"{where}, negative alignment in DiffCLIP is stronger in the first layer than in the last."
        made.append(Claim(f"opposed-first-in-diffclip{suffix}", source, words, checks))
    return made


FIGURE_5 = Study(
    "figure-5",
    "robustness",
    "Figure 5",
    "Negative gradient alignment by layer",
    """How often the gradients of the two maps oppose each other, layer by layer, at x and at perturbed images x + ξ.

The paper (Section 5.4, Figure 5): "For perturbations ξ bounded by ‖ξ‖ ≤ 8/255, we compute cosine similarity between
gradients ∇_ξ A1 and ∇_ξ A2, and record the frequency of cos < 0." Negative alignment dominates already in one-layer
DiffViTs; in DiffCLIP it is strongest in the first layer. The CLIPs are
measured at images of ImageNet; the paper does not name any. The text leaves open

- what is differentiated, as a map is no scalar: here the cosine is that of the Jacobians of the maps in the Frobenius
  inner product, at the pixels (by random directions) and at the layer's tokens (exactly), for each image and head;
- where: here at x, at x + uniform noise, and at x + ξ found by PGD, both with ‖ξ‖∞ ≤ 8/255 (the last two are the
  paper's ξ, and its claims are tested there; x is shown for comparison). Derivatives by ξ and by x are the same.
""",
    alignment_cells,
    draw_alignment,
    alignment_claims,
    lambda profile: vit_and_clip_settings(profile, ["diffclip"]),
)
