"""The Triton kernels through Triton's real compiler, which needs no GPU: the interpreter is more forgiving."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

COMPILE = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from antiphase.attention import triton_kernels
from antiphase.attention.triton_attention import choose_blocks

for case in sys.argv[1:]:
    name, mask, width, keys = case.split()
    width, keys, kernel = int(width), int(keys), getattr(triton_kernels, name)
    blocks = choose_blocks(width, 2 * width, 2, keys, over_keys=name == "key_gradient_kernel")
    constants = dict(
        WIDTH=width, VALUE_WIDTH=2 * width, PADDED=width, VALUE_PADDED=2 * width, QUERIES=blocks.queries,
        KEYS=blocks.keys, ADDITIVE=mask == "*bf16", WHOLE=keys <= blocks.keys,
        lam_stride=1, heads=1,  # Triton makes a constant of every 1 it is given
    )
    if mask == "none":
        constants["mask"] = None
    types = {x: "*bf16" for x in kernel.arg_names} | dict.fromkeys(("lam", "norms", "delta"), "*fp32")
    types |= dict.fromkeys(("blocks", "plane", "queries", "keys"), "i32") | {"scale": "fp32", "mask": mask}
    types |= {"strides": (("i64", "i32", "i32"),) * 9, "mask_strides": ("i32",) * 4}
    types |= dict.fromkeys(constants, "constexpr")
    places = {(i,): constants[x] for i, x in enumerate(kernel.arg_names) if x in constants}
    source = ASTSource(kernel, {x: types[x] for x in kernel.arg_names}, places)
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    print(compile(source, target=GPUTarget("cuda", 80, 32), options=options).metadata.shared)
"""
CASES = (
    "forward_kernel none 64 197",
    "query_gradient_kernel *bf16 64 1024",
    "key_gradient_kernel *u8 128 1024",
)


def test_the_kernels_compile_and_fit_the_shared_memory_of_a_small_gpu(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-c", COMPILE, *CASES],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    sizes = [int(line) for line in found.stdout.split()]
    assert len(sizes) == len(CASES)
    assert all(0 < size <= 99 * 1024 for size in sizes)
