"""Where bf16 is computed, and where float32 takes its place."""

import pytest
import torch

from antiphase.precision import EMULATE, autocast, multiplies_bf16
from tests.processes import python

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("able", "emulate", "dtype"),
    [
        ({"avx512_bf16": True}, "0", torch.bfloat16),
        ({"amx_bf16": True}, "0", torch.bfloat16),
        ({"avx2": True}, "0", torch.float32),
        ({"avx2": True}, "1", torch.bfloat16),
    ],
)
def test_a_processor_without_bf16_computes_it_in_float32(monkeypatch, able, emulate, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    monkeypatch.setenv(EMULATE, emulate)
    x = torch.randn(3, 4)
    with autocast(CPU, "bf16"):
        assert (x @ x.T).dtype == dtype
    with autocast(CPU, "float32"):
        assert (x @ x.T).dtype == torch.float32
    assert multiplies_bf16(CPU) == ("avx2" not in able)


NORMED = """
import torch, warnings
from antiphase.precision import autocast
warnings.simplefilter("error")
with autocast(torch.device("cpu"), "bf16"):
    print(torch.nn.RMSNorm(3)(torch.ones(2, 3, dtype=torch.bfloat16)))
"""


def test_a_norm_in_bf16_warns_of_nothing():
    assert "tensor" in python("-c", NORMED, **{EMULATE: "1"})  # torch warns once in a process
