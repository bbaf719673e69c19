"""Figure 5: how often the gradients of the two maps oppose each other, layer by layer, at x and at x + ξ."""

from collections.abc import Sequence

import polars as pl

from antiphase.studies.checks import apart, combinations, each_data
from antiphase.studies.claims import NOT_IN_PAPER, Check, Claim
from antiphase.studies.estimation import estimates, over, share_above
from antiphase.studies.figures import BY_SEED, Artefact, Plot, panels, tables
from antiphase.studies.papers.robustness.bench import bench, clip_models, twins, vit_and_clip_settings
from antiphase.studies.papers.robustness.figure_3 import DEPTH
from antiphase.studies.papers.robustness.layer_sensitivity import LAYER_NAME
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

SITES = ("pixels", "tokens")
CLEAN = "at x"
PERTURBED = {"noise": "at x + noise", "pgd": "at x + PGD"}
PLACES = (CLEAN, *PERTURBED.values())
BELOW = (pl.col("cross") < 0).cast(pl.Float64)


def cells(profile: Profile) -> list[Cell]:
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


def draw(rows: RowsByTable) -> Artefact:
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


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that negative alignment dominates, at the paper's x + ξ and, apart from it, at x."""
    places = tuple(PERTURBED.values())
    return each_data(
        _placed(rows),
        lambda own: [
            *_claims(own, places, "", "Section 5.4, Figure 5", "At x + ξ"),
            *_claims(own, (CLEAN,), "-at-x", NOT_IN_PAPER, "At x"),
        ],
    )


def _claims(
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
    cells,
    draw,
    claims,
    lambda profile: vit_and_clip_settings(profile, ["diffclip"]),
)
