"""antiphase measures how fragile differential attention is, and helps to build models that are not.

>>> import antiphase as ap
>>> model = ap.load_model("specimen:diffvit-0")
>>> data = ap.data.load_data("specimen-fashion-mnist", limit=20)
>>> result = ap.attacks.pgd(model, data.images(range(20)), None, ap.attacks.Threat(eps=8 / 255))
>>> result.success.shape
torch.Size([20])
"""

import os

# MKL picks its kernels by the shape of a product; strict reproducibility makes a row's rounding independent of
# the rows beside it, on which "same verdicts whatever the batch size" rests. Read at the first matrix product.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

from antiphase import attacks, attention, data, models, sensitivity
from antiphase.errors import UserError
from antiphase.models import load_model

__all__ = ["UserError", "attacks", "attention", "data", "load_model", "models", "sensitivity"]
