"""Lipschitz estimates of the attention maps, layer by layer.

The paper (Section 5.3, Figure 4): in all settings models with differential attention have the higher estimates, with
maxima where λ is large; later layers are often less sensitive than earlier ones.

| profile | models | cost |
|---|---|---|
| paper | 60, CIFAR-10 and CIFAR-100, and the released CLIP and DiffCLIP | not run |
| laptop | those of Figure 3(d), CLIP and DiffCLIP on openmoji | 167 core-minutes, 157 of them training |

antiphase study run figure-4 --profile laptop
"""

import polars as pl

from antiphase.studies.artefact import Artefact, Panel, Plot
from antiphase.studies.claims import Check, Claim
from antiphase.studies.estimation import estimates, over
from antiphase.studies.papers.robustness.bench import all_cells, bench, settings, twins
from antiphase.studies.papers.robustness.clip_bench import clip_models, sense_clip
from antiphase.studies.papers.robustness.figure_3d import ESTIMATORS, VALUE, of_maps
from antiphase.studies.papers.robustness.show import against, apart, each_data, table_of
from antiphase.studies.spec import Cell, Profile, RowsByTable, Study

_SHOWN = ("sampled mean", "power iteration")


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
    """A panel for each depth and estimator: the estimate over the layers."""
    maps = of_maps(rows).filter(pl.col("estimator").is_in(_SHOWN))
    found = estimates(maps, ["data", "depth", "estimator", "series", "layer"], VALUE, kind="size")
    found = found.sort("depth", "layer", maintain_order=True, nulls_last=True)
    panels, tables = [], []
    for (data, depth, estimator), block in found.group_by(
        ["data", "depth", "estimator"], maintain_order=True
    ):
        where = f"{data}, depth {depth}" if depth is not None else str(data)
        points = block.select("series", "value", "low", "high", "n", "seeds", x=pl.col("layer") + 1.0)
        if block["layer"].n_unique() > 1:
            panels.append(Panel(f"{where}, {estimator}", "layer", "Lipschitz estimate", points))
        layer = pl.format("layer {}", pl.col("layer") + 1)
        key = f"layers-{data}-{depth}-{estimator}".replace(" ", "-")
        tables.append(
            table_of(block, pl.col("series"), layer, key, f"Lipschitz estimate by layer, {where}, {estimator}",
                     percent=False, digits=4)
        )  # fmt: skip
    caption = (
        "Local Lipschitz estimates of each layer's attention map with respect to the pixels. "
        f"Bands: 95 % over {over(found)}."
    )
    return Artefact([Plot("figure-4", caption, tuple(panels))], tables)


def claims(rows: RowsByTable) -> list[Claim]:
    """Claim that differential attention is more sensitive, and later layers less so."""
    return each_data(of_maps(rows), _claims)


def _claims(maps: pl.DataFrame) -> list[Claim]:
    clips = maps.filter(pl.col("series").is_in(["CLIP", "DiffCLIP"]))
    vits = maps.filter(pl.col("series").is_in(["ViT", "DiffViT"]))
    depths = sorted(vits["depth"].drop_nulls().unique())

    def above(estimator: str) -> list[Check]:
        found = [
            Check(
                f"L(DiffViT) − L(ViT), depth {depth}, {estimator}",
                against(vits, "DiffViT", "ViT", VALUE, depth=depth, estimator=estimator), "",
            )
            for depth in depths
        ]  # fmt: skip
        if not clips.is_empty():
            clip = against(clips, "DiffCLIP", "CLIP", VALUE, estimator=estimator)
            found.append(Check(f"L(DiffCLIP) − L(CLIP), {estimator}", clip, ""))
        return found

    found = [
        Claim(
            "da-is-steeper", "Section 5.3, Figure 4",
            "In all settings, models with differential attention have higher Lipschitz estimates (sampled mean).",
            above(ESTIMATORS[0]),
        ),
        Claim(
            "da-is-steeper-truly", "Section 5.3, with an estimator that reaches the supremum",
            "In all settings, differential attention has the higher local Lipschitz constants (power iteration).",
            above("power iteration"),
        ),
    ]  # fmt: skip
    if depths:
        deep = vits.filter(depth=depths[-1])
        last = int(deep["layer"].max() or 0)  # type: ignore[arg-type]
        calmer = apart(deep, "layer", 0, last, VALUE, {"series": "DiffViT", "estimator": ESTIMATORS[0]})
        found.append(
            Claim(
                "later-layers-are-calmer", "Section 5.3, Figure 4",
                "In the deepest DiffViT the last layer is less sensitive than the first (sampled mean).",
                [Check(f"L(layer 1) − L(layer {last + 1})", calmer, "")],
            )
        )  # fmt: skip
    return found


study = Study(
    "figure-4",
    "robustness",
    "Figure 4",
    "Lipschitz estimates by layer",
    __doc__,
    cells,
    draw,
    claims,
    settings,
)
