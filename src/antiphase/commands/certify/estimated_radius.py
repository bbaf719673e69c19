"""Estimated radii: margin over Lipschitz constant (robustness paper, Appendix B). They certify nothing."""

import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from antiphase.commands.certify import CertifyOptions
from antiphase.commands.lineup import Lineup
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import Part, Rows, rows_of, sense
from antiphase.evaluation.rates import MODEL_SCHEMA
from antiphase.sensitivity.layers import eager_attention
from antiphase.sensitivity.lipschitz import Linearisation, power_iteration
from antiphase.sensitivity.theory import estimated_radius, margins

_RADIUS_SCHEMA = MODEL_SCHEMA | dict.fromkeys(("sample", "prediction"), pl.Int64)
_RADIUS_SCHEMA |= dict.fromkeys(("margin", "lipschitz", "slope"), pl.Float64)
"""``margin`` is m of the predicted class, ``lipschitz`` ‖∂logits/∂x‖₂ by power iteration, ``slope`` ‖∂m/∂x‖₂, exact."""


def margin_slopes(
    model: nn.Module, images: Float[Tensor, "batch *shape"]
) -> tuple[Int64[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return the predicted classes y, the margins m = z_y − max_{j≠y} z_j, and ‖∂m/∂x‖₂, exact by one backward pass."""
    with eager_attention():
        linear = Linearisation(model, images)
        with torch.enable_grad():
            logits = linear.y.detach().requires_grad_()  # also those of a model without a slope
            prediction = logits.argmax(1)
            margin = margins(logits, prediction)
            (cotangent,) = torch.autograd.grad(margin.sum(), logits)
        return prediction, margin.detach(), linear.vjp(cotangent).flatten(1).norm(dim=1)


def _radius_rows(model: nn.Module, images: Tensor, ids: Tensor, options: SenseOptions) -> Rows:
    columns = dict(zip(("prediction", "margin", "slope"), margin_slopes(model, images), strict=True))
    columns |= {"lipschitz": power_iteration(model, images, steps=options.steps, seed=options.seed, ids=ids).value}
    yield rows_of(ids, {name: values[:, None] for name, values in columns.items()})


RADIUS = Part("radius", _RADIUS_SCHEMA, {"steps": "steps", "seed": "seed"}, _radius_rows)


def estimate_radii(lineup: Lineup, options: CertifyOptions) -> pl.DataFrame:
    """Return the rows of ``options.estimated`` images of each model, with the radius m / (√2·L)."""
    sensing = SenseOptions.from_file({"steps": 20, "seed": options.seed}, model=("certify",), quiet=options.quiet)
    place = (lineup.data, sensing, options.out)
    frames = [sense(*named, *place, limit=options.estimated, parts=[RADIUS]) for named in lineup.by_name.items()]
    rows = pl.concat(frame["radius"] for frame in frames)
    margin, constant = (rows[name].to_torch() for name in ("margin", "lipschitz"))
    return rows.with_columns(estimated_radius=estimated_radius(margin, constant, of="logits").numpy())
