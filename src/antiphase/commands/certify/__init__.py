"""A certified L2 radius for each image, by randomised smoothing."""

from pathlib import Path

from pydantic import Field

from antiphase.commands import options as fields
from antiphase.commands.command import Command
from antiphase.precision import Precision


class CertifyOptions(fields.Measurement):
    """Certify an L2 radius for each image by randomised smoothing; write rows, summary.json and report.html.

    The same command resumes a killed run. The certificate is one of the smoothed model. A model that was not trained
    with noise certifies little at a large σ: try a small one.

    **Examples**

    antiphase certify specimen:diffvit-0 --against specimen:vit-0 --sigma 0.05 --samples 1000 --limit 100
    antiphase certify runs/diffvit --sigma 0.25 --limit 500
    torchrun --nproc-per-node 4 -m antiphase certify timm:vit_small_patch16_224 --data imagenet --sigma 0.5
    """

    model: fields.OneModel  # pyright: ignore[reportIncompatibleVariableOverride]
    against: fields.Single | None = None
    """Model to compare with, such as the twin with standard attention."""
    classes: fields.Classes = None
    limit: fields.Limit = 500
    sigma: fields.Number = 0.25
    """Standard deviation of the noise, in units of the [0, 1] pixel range."""
    samples: int = Field(100000, ge=1)
    """Noisy copies of each image that bound the radius; 100,000 is customary."""
    select: int = Field(100, ge=1)
    """Noisy copies of each image that choose the class."""
    alpha: float = Field(0.001, gt=0, lt=1)
    """Probability that the radius of an image is too large."""
    estimated: int = Field(0, ge=0)
    """Images whose radius is estimated, too, as margin over Lipschitz constant (sensitivity paper, Appendix B). An
    estimate certifies nothing."""
    precision: Precision = "float32"
    """Precision of the smoothed model; bf16 is faster, but certifies another model."""
    out: fields.Out = Path("antiphase-certify")
    batch_size: int | None = Field(None, ge=1, le=fields.MOST_AT_ONCE)
    """Noisy copies per batch; affects no result. If not given: chosen to fit the device."""


COMMAND = Command("certify", CertifyOptions, f"{__name__}.run:run", f"{__name__}.run:CertifyResult")
