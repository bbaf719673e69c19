"""Margin-over-Lipschitz radii of a model and its twin, and what equation (6) predicts of their ratio."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.commands.certify.options import CertifyOptions
from antiphase.commands.lineup import Lineup
from antiphase.commands.sense.options import SenseOptions
from antiphase.commands.sense.run import ABOUT_SCHEMA, BATCH_SIZE, Part, Rows, entries, rows_of, sense
from antiphase.data import ImageSet
from antiphase.errors import UserError
from antiphase.models.card import card_of
from antiphase.processes import Process, this_process
from antiphase.sensitivity.layer_estimates import layer_parts, radius_parts, radius_ratios
from antiphase.sensitivity.layers import eager_attention
from antiphase.sensitivity.lipschitz import Linearisation, power_iteration
from antiphase.sensitivity.theory import estimated_radius, margins
from antiphase.statistics.intervals import as_size, jackknife
from antiphase.store import write_frame

STEPS = 20  # of power iteration
RADIUS_SCHEMA = ABOUT_SCHEMA | dict.fromkeys(("sample", "label", "prediction"), pl.Int64)
RADIUS_SCHEMA |= dict.fromkeys(("margin", "lipschitz", "slope"), pl.Float64)
"""``margin`` is m of the predicted class, ``lipschitz`` ‖∂logits/∂x‖₂ by power iteration, ``slope`` ‖∂m/∂x‖₂, exact."""


def margin_slopes(
    model: nn.Module, images: Float[Tensor, "batch *shape"]
) -> tuple[Int64[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return the predicted classes y, the margins m = z_y − max_{j≠y} z_j, and ‖∂m/∂x‖₂, exact by one backward pass.

    Appendix B takes the margin of the true class, whose radius is not positive if the prediction is wrong.
    """
    with eager_attention():
        linear = Linearisation(model, images)
        with torch.enable_grad():
            prediction = linear.y.argmax(1)
            margin = margins(linear.y, prediction)
            (cotangent,) = torch.autograd.grad(margin.sum(), linear.y, retain_graph=True)
        return prediction, margin.detach(), linear.vjp(cotangent).flatten(1).norm(dim=1)


def measure_radii(
    name: str,
    model: nn.Module,
    data: ImageSet,
    out: Path,
    *,
    process: Process,
    progress: bool,
    limit: int | None = None,
    **how: int,
) -> pl.DataFrame:
    """Measure margin and local Lipschitz constant of each image not on disk yet; ``how``: steps, seed, batch_size."""
    labels = dict(zip(data.ids.tolist(), data.labels.tolist(), strict=True))

    def rows(model: nn.Module, images: Tensor, ids: Tensor, options: SenseOptions) -> Rows:
        constant = power_iteration(model, images, steps=options.steps, seed=options.seed, ids=ids).value
        columns = dict(zip(("prediction", "margin", "slope"), margin_slopes(model, images), strict=True))
        columns |= {"lipschitz": constant, "label": torch.tensor([labels[sample] for sample in ids.tolist()])}
        yield rows_of(ids, {name: values[:, None] for name, values in columns.items()})

    part = Part("radius", RADIUS_SCHEMA, {"steps": "steps", "seed": "seed"}, rows)
    options = SenseOptions.from_file(how, model=("radius",), quiet=not progress)
    return sense(name, model, data, options, out, limit=limit, process=process, parts=[part])["radius"]


def estimate_radii(lineup: Lineup, options: CertifyOptions) -> dict[str, Any]:
    """Estimate each image's radius as margin over Lipschitz constant; write ``estimated.parquet``, return the summary.

    Nothing is certified: the constants are lower bounds. A ``note`` says why equation (6) does not apply.
    """
    out, limit, seed, process = options.out, options.estimated, options.seed, this_process()
    how: dict[str, Any] = {"process": process, "progress": not options.quiet, "limit": limit}
    how |= {"steps": STEPS, "seed": seed, "batch_size": BATCH_SIZE}
    models = lineup.by_name.items()
    rows = [measure_radii(*named, lineup.data, out, **how) for named in models]
    if process.first:
        write_frame(out / "estimated.parquet", pl.concat(rows))
    summary: dict[str, Any] = {
        "settings": {"images": len(rows[0]), "steps": STEPS, "norms": "L2 → L2"},
        "models": [{"name": name, **_means(own)} for name, own in zip(lineup.names, rows, strict=True)],
    }
    if len(rows) < 2:
        return summary
    if [card_of(model).attention for model in lineup.everyone] != ["differential", "softmax"]:
        note = "equation (6) is about a differential model against standard attention"
        return summary | {"ratios": _ratios(None, *rows), "note": note}
    asked = {"parts": ("alignment",), "probes": 16, "seed": seed, "quiet": options.quiet}
    sensing = SenseOptions(model=("certify",), **asked)
    try:
        aligned = [sense(*named, lineup.data, sensing, out, limit=limit)["alignment"] for named in models]
        if len({own["layer"].n_unique() for own in aligned}) > 1:
            raise UserError("the models have different numbers of attention layers")
        return summary | {"ratios": _ratios(layer_parts(*aligned), *rows)}
    except UserError as error:
        return summary | {"ratios": _ratios(None, *rows), "note": f"equation (6) is not evaluated: {error}"}


def _ratios(layers: pl.DataFrame | None, own: pl.DataFrame, base: pl.DataFrame) -> list[dict[str, Any]]:
    usable = [rows.filter(pl.col("margin") > 0, pl.col("lipschitz") > 0) for rows in (own, base)]
    predicted = layers is not None
    if layers is None:
        layers = own.select("sample", layer=pl.lit(0), first=1.0, second=1.0, cross=0.0, base=1.0)
    parts = radius_parts(layers, *usable).drop_nulls()
    if parts.is_empty():
        return []
    ratios = radius_ratios(parts)
    measured = pl.col("metric").is_in(["margin", "constant", "measured"])
    return entries(ratios if predicted else ratios.filter(measured))


def _means(rows: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Return means over the images; margin and radius of an image that is classified wrongly count as 0."""
    names = ("margin", "lipschitz", "slope")
    margin, constant, slope = (torch.tensor(rows[name].to_numpy()) for name in names)
    margin = margin * torch.tensor((rows["prediction"] == rows["label"]).to_numpy())
    values = {
        "margin": margin,
        "constant": constant,
        "printed": estimated_radius(margin, constant, of="margin"),
        "radius": estimated_radius(margin, constant, of="logits"),
        "nearest": estimated_radius(margin, slope, of="margin"),
    }
    means = (jackknife(value.numpy()[:, None], lambda mean: mean[..., 0]) for value in values.values())
    lines = entries(pl.DataFrame([asdict(as_size(mean)) for mean in means]))
    return dict(zip(values, lines, strict=True))
