"""How often the gradients of the two maps oppose each other, layer by layer, at x and at perturbed images x + ξ.

The paper (Section 5.4, Figure 5): "For perturbations ξ bounded by ‖ξ‖ ≤ 8/255, we compute cosine similarity between
gradients ∇_ξ A1 and ∇_ξ A2, and record the frequency of cos < 0." Negative alignment dominates already in one-layer
DiffViTs; in DiffCLIP it is strongest in the first layer. The CLIPs are
measured at images of ImageNet; the paper does not name any. The text leaves open

- what is differentiated, as a map is no scalar: here the cosine is that of the Jacobians of the maps in the Frobenius
  inner product, at the pixels (by random directions) and at the layer's tokens (exactly), for each image and head;
- where: here at x, at x + uniform noise, and at x + ξ found by PGD, both with ‖ξ‖∞ ≤ 8/255 (the last two are the
  paper's ξ, and its claims are tested there; x is shown for comparison). Derivatives by ξ and by x are the same.

| profile | models | cost |
|---|---|---|
| paper | 30 DiffViTs, CIFAR-10 and CIFAR-100, and the released DiffCLIP | not run |
| laptop | 62 DiffViTs, Fashion-MNIST; 8 DiffCLIPs, OpenMoji | not run at this size |

antiphase study run figure-5 --profile laptop
"""

from collections.abc import Sequence

import polars as pl

from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import estimates, over, share_above
from antiphase.studies.figures import Artefact, Panel, Plot
from antiphase.studies.papers.robustness.bench import all_cells, bench, twins
from antiphase.studies.papers.robustness.clip_bench import clip_models, clip_settings, sense_clip
from antiphase.studies.papers.robustness.show import apart, each_data, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

SITES = ("pixels", "tokens")
CLEAN = "at x"
PERTURBED = {"noise": "at x + noise", "pgd": "at x + PGD"}
PLACES = (CLEAN, *PERTURBED.values())
BELOW = (pl.col("cross") < 0).cast(pl.Float64)
_SITES_SAID = "∇ is by the pixels, from random directions, or by the layer's tokens, exactly."


def cells(profile: Profile) -> list[Cell]:
    """Alignment of every layer of DiffViTs of every depth, and of DiffCLIP, at x and at x + ξ."""
    own = bench(profile)
    vits, clips = twins(profile, own.depths, ["diffvit"]), clip_models(profile, ["diffclip"])
    parts = ("alignment", "alignment-perturbed")
    return all_cells(
        [own.sense_of(model, part) for model in vits for part in parts],
        [sense_clip(profile, model, part) for model in clips for part in parts],
    )


def _placed(rows: RowsByTable) -> pl.DataFrame:
    """Return the rows at x and at x + ξ, with a column ``at`` that says which."""
    clean = rows["alignment"].with_columns(at=pl.lit(CLEAN))
    names = pl.col("perturbation").replace_strict(PERTURBED, return_dtype=pl.String)
    perturbed = rows["alignment-perturbed"].with_columns(at=names)
    return pl.concat([clean, perturbed], how="diagonal_relaxed").filter(pl.col("site").is_in(SITES))


def draw(rows: RowsByTable) -> Artefact:
    """A panel for each data set, site and place: the share of images and heads below zero, over the layers."""
    found = estimates(_placed(rows), ["data", "site", "at", "series", "depth", "layer"], BELOW)
    found = found.sort("depth", "layer", maintain_order=True)
    depth = pl.format("depth {}", "depth")
    panels, tables = [], []
    for (data, site), block in found.group_by(["data", "site"], maintain_order=True):
        for at in PLACES:
            points = block.filter(at=at).select(
                "value", "low", "high", "n", "seeds", series=depth, x=pl.col("layer") + 1.0
            )
            title = f"{at}, by the {site}, {data}"
            panels.append(Panel(title, "layer", "share with cos < 0", points, percent=True, level=0.5))
        row, layer = (
            pl.format("{}, {}, {}", "series", depth, "at"),
            pl.format("layer {}", pl.col("layer") + 1),
        )
        words = f"Share of images and heads with cos(∇A1, ∇A2) < 0, by the {site}, {data}"
        tables.append(table_of(block, row, layer, f"alignment-{data}-{site}", words))
    caption = (
        "Share of images and heads for which the gradients of A1 and A2 oppose each other: at the image x, at x plus "
        f"uniform noise, and at x plus the perturbation that PGD finds, both with ‖ξ‖∞ ≤ 8/255. {_SITES_SAID} "
        f"Bands: 95 % over {over(found)}."
    )
    return Artefact([Plot("figure-5", caption, tuple(panels), columns=3)], tables)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that negative alignment dominates, at the paper's x + ξ and, apart from it, at x."""
    return each_data(_placed(rows), _claims)


def _claims(aligned: pl.DataFrame) -> list[Claim]:
    places = (
        (tuple(PERTURBED.values()), "", "Section 5.4, Figure 5"),
        ((CLEAN,), "-at-x", "not in the paper"),
    )
    return [claim for where, suffix, source in places for claim in _claims_at(aligned, where, suffix, source)]


def _claims_at(aligned: pl.DataFrame, places: Sequence[str], suffix: str, source: str) -> list[Claim]:
    vits = aligned.filter(series="DiffViT")
    clip = aligned.filter(pl.col("series") == "DiffCLIP", pl.col("site") == "pixels")
    found, where = [], "At x" if suffix else "At x + ξ"
    if not vits.is_empty():
        depths = sorted(vits["depth"].drop_nulls().unique())
        dominates = {
            "opposed-at-depth-1": (
                f"{where}, negative alignment dominates even in one-layer DiffViTs: over half of images and heads.",
                [(1, site, at) for at in places for site in SITES],
            ),
            "opposed-everywhere": (
                f"{where}, negative alignment is structural: it dominates at every depth, over all layers.",
                [(depth, "pixels", at) for at in places for depth in depths],
            ),
        }
        for name, (words, which) in dominates.items():
            checks = [
                Check(
                    f"share below 0 − 50 %, depth {depth}, {site}, {at}",
                    share_above(vits, {"depth": depth, "site": site, "at": at}, BELOW, 0.5),
                )
                for depth, site, at in which
            ]
            found.append(Claim(f"{name}{suffix}", source, words, checks))
    if not clip.is_empty():
        last = int(clip["layer"].max() or 0)  # type: ignore[arg-type]
        checks = []
        for at in places:
            layers = (
                apart(clip.filter(at=at), "layer", 0, last, BELOW, {"series": "DiffCLIP"}) if last else None
            )
            checks.append(Check(f"share(layer 1) − share(layer {last + 1}), pixels, {at}", layers))
        words = f"{where}, negative alignment in DiffCLIP is stronger in the first layer than in the last."
        found.append(Claim(f"opposed-first-in-diffclip{suffix}", source, words, checks))
    return found


study = Study(
    "figure-5",
    "robustness",
    "Figure 5",
    "Negative gradient alignment by layer",
    __doc__,
    cells,
    draw,
    claims,
    lambda profile: clip_settings(profile, ["diffclip"]),
)
