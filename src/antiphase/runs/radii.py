"""Margin and local Lipschitz constant of each image: rows on disk as they come, shared among processes."""

from pathlib import Path

import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.data import ImageSet
from antiphase.models.card import card_of
from antiphase.models.zoo import fingerprint
from antiphase.modules import device_of
from antiphase.processes import Process
from antiphase.progress import progress_bar
from antiphase.sensitivity.layers import eager_attention
from antiphase.sensitivity.lipschitz import Linearisation, power_iteration
from antiphase.sensitivity.theory import margins
from antiphase.store import Cache

CELL_VERSION = 1  # raise it when the same settings come to mean another measurement
_CELL_SCHEMA = {
    "sample": pl.Int64,
    "label": pl.Int64,
    "prediction": pl.Int64,
    "margin": pl.Float64,
    "lipschitz": pl.Float64,
    "slope": pl.Float64,
}
RADIUS_SCHEMA = {"model": pl.String, "attention": pl.String, "seed": pl.Int64} | _CELL_SCHEMA
"""``margin`` is m of the predicted class, ``lipschitz`` ‖∂logits/∂x‖₂ by power iteration, ``slope`` ‖∂m/∂x‖₂, exact."""


def margin_slopes(
    model: nn.Module, images: Float[Tensor, "batch *shape"]
) -> tuple[Int64[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return the predicted classes y, the margins m = z_y − max_{j≠y} z_j, at least 0, and ‖∂m/∂x‖₂.

    The last is the Lipschitz constant of the margin for ever smaller perturbations: one backward pass, exact. Appendix
    B takes the margin of the true class, whose radius is not positive if the prediction is wrong.
    """
    with eager_attention():
        at = Linearisation(model, images)
        with torch.enable_grad():
            prediction = at.y.argmax(1)
            margin = margins(at.y, prediction)
            (cotangent,) = torch.autograd.grad(margin.sum(), at.y, retain_graph=True)
        return prediction, margin.detach(), at.vjp(cotangent).flatten(1).norm(dim=1)


def measure_radii(
    name: str,
    model: nn.Module,
    data: ImageSet,
    out: Path,
    *,
    steps: int,
    seed: int,
    process: Process,
    batch_size: int,
    progress: bool,
    limit: int | None = None,
) -> pl.DataFrame:
    """Measure every image that is not on disk yet; return the rows.

    Args:
        name: of the model in the rows.
        model: a loaded classifier, with its card.
        data: images and labels.
        out: run directory; cells lie under ``cells/``.
        steps: steps of power iteration, at least 1.
        seed: random seed of its start.
        process: measures its share of the images.
        batch_size: images at once; affects no result.
        progress: whether to show a progress bar on stderr.
        limit: at most this many of the images.
    """
    device = device_of(model)
    what = {
        "version": CELL_VERSION,
        "part": "radius",
        "model": fingerprint(model),
        "data": data.fingerprint(),
        "steps": steps,
        "seed": seed,
    }
    wanted = data.ids.tolist()[:limit]
    cache = Cache(out, {name: what}, _CELL_SCHEMA, [(name, sample) for sample in wanted], process)
    with (
        progress_bar(f"{name} radius", len(cache.mine), progress and process.first) as advance,
        cache.filling(batch_size) as batches,
    ):
        for at in batches:
            images, ids = data.images(at).to(device), data.ids[at]
            prediction, margin, slope = margin_slopes(model, images)
            constant = power_iteration(model, images, steps=steps, seed=seed, ids=ids).value
            columns = {
                "sample": ids,
                "label": data.labels[at],
                "prediction": prediction,
                "margin": margin,
                "lipschitz": constant,
                "slope": slope,
            }
            rows = {column: values.cpu().numpy() for column, values in columns.items()}
            cache.journals[name].append(pl.DataFrame(rows, schema=_CELL_SCHEMA))
            advance(len(at))
    card = card_of(model)
    about = {"model": name, "attention": card.attention, "seed": card.seed}
    rows = cache.collect()[name].filter(pl.col("sample").is_in(wanted))
    named = rows.with_columns(
        pl.lit(value, RADIUS_SCHEMA[column]).alias(column) for column, value in about.items()
    )
    return named.select(*RADIUS_SCHEMA).sort("sample")
