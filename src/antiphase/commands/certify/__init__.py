"""A certified L2 radius for each image, by randomised smoothing."""

from antiphase.commands.certify.options import CertifyOptions
from antiphase.commands.command import Command

COMMAND = Command(
    "certify",
    CertifyOptions,
    "antiphase.commands.certify.run:run",
    "antiphase.commands.certify.result:CertifyResult",
)
