"""How often the gradients of the two maps oppose each other, layer by layer.

The paper (Section 5.4, Figure 5): negative alignment, cos(∇A1, ∇A2) < 0, dominates already in one-layer DiffViTs; in
DiffCLIP it is strongest in the first layer. What it differentiates is not defined there; here the cosine is that of the
Jacobians in the Frobenius inner product, at the pixels (by random directions) and at the layer's tokens (exactly).

| profile | models | cost |
|---|---|---|
| paper | 30 DiffViTs, CIFAR-10 and CIFAR-100, and the released DiffCLIP | not run |
| laptop | 15 DiffViTs, DiffCLIP on openmoji | 91 core-minutes, 90 of them training |

antiphase study run figure-5 --profile laptop
"""

import polars as pl

from antiphase.evaluation.statistics import Estimate
from antiphase.studies.artefact import Artefact, Panel, Plot
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import estimates, over
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.clip_bench import clip_models, sense_clip
from antiphase.studies.papers.robustness.show import apart, each_data, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

SITES = ("pixels", "tokens")
BELOW = (pl.col("cross") < 0).cast(pl.Float64)


def cells(profile: Profile) -> list[Cell]:
    """Alignment of every layer of DiffViTs of every depth, and of DiffCLIP, at x and at x + ξ."""
    own = bench(profile)
    vits, clips = twins(profile, own.depths, ["diffvit"]), clip_models(profile, ["diffclip"])
    parts = ("alignment", "alignment-perturbed")
    return all_cells(
        [own.sense_of(model, part) for model in vits for part in parts],
        [sense_clip(profile, model, part) for model in clips for part in parts],
    )


def draw(rows: RowsByTable) -> Artefact:
    """A panel for each data set and site: the share of images and heads below zero, over the layers."""
    shown = rows["alignment"].filter(pl.col("site").is_in(SITES))
    found = estimates(shown, ["data", "site", "series", "depth", "layer"], BELOW)
    found = found.sort("depth", "layer", maintain_order=True, nulls_last=True)
    panels, tables = [], []
    for (data, site), block in found.group_by(["data", "site"], maintain_order=True):
        name = (
            pl.when(pl.col("depth").is_null())
            .then("series")
            .otherwise(pl.format("{}, depth {}", "series", "depth"))
        )
        points = block.select("value", "low", "high", "n", "seeds", series=name, x=pl.col("layer") + 1.0)
        title = f"at the {site}, {data}"
        panels.append(Panel(title, "layer", "share with cos < 0", points, percent=True, level=0.5))
        layer = pl.format("layer {}", pl.col("layer") + 1)
        key = f"alignment-{data}-{site}"
        tables.append(
            table_of(block, name, layer, key, f"Share of images and heads with cos(∇A1, ∇A2) < 0 {title}")
        )
    what = "Share of images and heads for which the gradients of A1 and A2 oppose each other."
    caption = f"{what} Bands: 95 % over {over(found)}."
    return Artefact([Plot("figure-5", caption, tuple(panels))], tables)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that negative alignment dominates."""
    return each_data(rows["alignment"], _claims)


def _claims(aligned: pl.DataFrame) -> list[Claim]:
    vits = aligned.filter(series="DiffViT")
    clip = aligned.filter(pl.col("series") == "DiffCLIP", pl.col("site") == "pixels")
    found = []
    if not vits.is_empty():
        depths = sorted(vits["depth"].drop_nulls().unique())
        found += [
            Claim(
                "opposed-at-depth-1", "Section 5.4, Figure 5",
                "Even in one-layer DiffViTs negative alignment dominates: more than half of images and heads.",
                [_most(vits.filter(depth=1, site=site), f"share below 0 − 50 %, depth 1, {site}") for site in SITES],
            ),
            Claim(
                "opposed-everywhere", "Section 5.4, Figure 5",
                "Negative alignment is structural: it dominates at every depth, over all layers.",
                [
                    _most(vits.filter(depth=depth, site="pixels"), f"share below 0 − 50 %, depth {depth}, pixels")
                    for depth in depths
                ],
            ),
        ]  # fmt: skip
    if not clip.is_empty():
        last = int(clip["layer"].max() or 0)  # type: ignore[arg-type]
        layers = apart(clip, "layer", 0, last, BELOW, {"series": "DiffCLIP"}) if last else None
        found.append(
            Claim(
                "opposed-first-in-diffclip", "Section 5.4, Figure 5",
                "In DiffCLIP negative alignment is stronger in the first layer than in the last.",
                [Check(f"share(layer 1) − share(layer {last + 1}), pixels", layers)],
            )
        )  # fmt: skip
    return found


def _most(block: pl.DataFrame, words: str) -> Check:
    if block.is_empty():
        return Check(words, None)
    one = estimates(block, ["series"], BELOW - 0.5, kind="difference").row(0, named=True)
    return Check(words, Estimate(one["value"], one["low"], one["high"], one["n"]))


study = Study(
    "figure-5",
    "robustness",
    "Figure 5",
    "Negative gradient alignment by layer",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
