"""The ratio of estimated radii of DiffViT and ViT, measured and by equation (6), per training seed and image."""

import polars as pl
import torch

from antiphase.sensitivity.theorem_ratios import RADIUS_PARTS, RATIOS, layer_parts, radius_parts
from antiphase.sensitivity.theory import estimated_radius
from antiphase.statistics.intervals import linearised
from antiphase.studies.estimation import SAMPLE, SEED
from antiphase.studies.spec import RowsByTable

MARGIN, LIPSCHITZ, MEASURED = "Δm", "L ratio", "measured"
CORRECTED, PRINTED = "equation (6), corrected", "equation (6), as printed"
_NAMES = {
    "margin": MARGIN,
    "constant": LIPSCHITZ,
    "measured": MEASURED,
    "corrected": CORRECTED,
    "printed": PRINTED,
}
QUANTITIES = tuple(_NAMES.values())
VALUE = pl.col("value")
_TWINS = ["data", "depth", SEED]


def ratios(rows: RowsByTable) -> pl.DataFrame:
    """Return Δm, L_DA / L_base and the ratio of radii, measured and by each layer, linearised in each image.

    Returns:
        Columns ``data, depth, training_seed, layer, sample, quantity, value``.
    """
    radius, aligned = rows["radius"], rows["alignment"]
    found = []
    for key, own in radius.filter(series="DiffViT").group_by(_TWINS, maintain_order=True):
        same = [pl.col(name) == value for name, value in zip(_TWINS, key, strict=True)]
        twin, (one, two) = (
            radius.filter(*same, series="ViT"),
            (aligned.filter(*same, series=s) for s in ("DiffViT", "ViT")),
        )
        if twin.is_empty() or one.is_empty() or two.is_empty():
            continue
        parts = radius_parts(layer_parts(one, two), own, twin)
        for (layer,), block in parts.group_by("layer", maintain_order=True):
            numbers = block.select(RADIUS_PARTS).to_numpy()
            found += [
                pl.DataFrame(
                    {SAMPLE: block[SAMPLE], "value": linearised(numbers, RATIOS[name])}
                ).with_columns(
                    *(pl.lit(each).alias(column) for column, each in zip(_TWINS, key, strict=True)),
                    layer=pl.lit(layer),
                    quantity=pl.lit(quantity),
                )
                for name, quantity in _NAMES.items()
            ]
    columns = [*_TWINS, "layer", SAMPLE, "quantity", "value"]
    if not found:
        types = {"data": pl.String, "quantity": pl.String, "value": pl.Float64}
        return pl.DataFrame(schema={name: types.get(name, pl.Int64) for name in columns})
    return pl.concat(found).select(columns)


def beyond(rows: RowsByTable) -> pl.DataFrame:
    """Return whether CW found an adversarial example within the estimated radius of each image.

    Returns:
        Columns ``data, series, depth, training_seed, sample, radius`` (as printed, of the logits, of the margin) and
        ``value``, 0 or 1.
    """
    keys = ["data", "series", "depth", SEED, SAMPLE]
    attacked = rows["attack"].select(
        *keys, distance=pl.when(pl.col("prediction") != pl.col("clean_prediction")).then("distance")
    )
    both = rows["radius"].join(attacked, on=keys, maintain_order="left")  # images that were attacked
    margin, constant, slope = (
        torch.tensor(both[name].to_numpy()) for name in ("margin", "lipschitz", "slope")
    )
    radii = {
        "m / L, as printed": estimated_radius(margin, constant, of="margin"),
        "m / (√2·L)": estimated_radius(margin, constant, of="logits"),
        "m / ‖∂m/∂x‖": estimated_radius(margin, slope, of="margin"),
    }
    near = [both.with_columns(radius=pl.lit(name), reach=radius.numpy()) for name, radius in radii.items()]
    value = (pl.col("reach") > pl.col("distance")).fill_null(value=False).cast(pl.Float64)
    return pl.concat(near).select(*keys, "radius", value=value)
