"""The study of variants: its models, the rows that it shares, and what it computes from rows."""

import numpy as np
import polars as pl
import pytest
import torch

from antiphase.models.vit import build
from antiphase.studies.estimation import ASR
from antiphase.studies.own import variants
from antiphase.studies.papers.robustness.bench import bench, twins
from antiphase.studies.spec import profile
from antiphase.studies.store import identity

LAPTOP = profile("laptop")


def test_twins_are_those_of_figure_2a():
    sizes, ours = bench(LAPTOP), {identity(cell) for cell in variants.cells(LAPTOP)}
    shared = {identity(sizes.attack(model)) for model in twins(LAPTOP) if model.seed < variants.SEEDS}
    assert len(shared) == 2 * variants.SEEDS
    assert shared <= ours


def test_v2_without_subtraction_is_a_vit_without_biases():
    config = variants.trained(bench(LAPTOP), variants.ZERO, 0, "fashion-mnist", "uniform").config()
    model, images = build(config, 0).eval(), torch.rand(2, 1, 28, 28)
    attention = model.blocks[0].attn
    x = torch.rand(2, 5, config.dim)
    heads, width = config.num_heads, config.dim // config.num_heads
    q, k, v = attention.qkv(x).split([2 * config.dim, config.dim, config.dim], -1)
    q = q.unflatten(-1, (heads, 2, width))[..., 0, :]  # the queries of A1
    k, v = (part.unflatten(-1, (heads, width)) for part in (k, v))
    plain = torch.nn.functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)))
    assert torch.allclose(attention(x), plain.transpose(1, 2).flatten(2) @ attention.proj.weight.T, atol=1e-6)
    assert not [name for name, _ in attention.named_parameters() if name.endswith("bias")]
    assert model(images).isfinite().all()


def _rows(margins: dict[str, np.ndarray], broken: dict[str, np.ndarray]) -> dict[str, pl.DataFrame]:
    def frame(values: dict[str, np.ndarray], column: str) -> pl.DataFrame:
        return pl.concat(
            pl.DataFrame(
                {"series": name, "training_seed": seed, "sample": list(range(len(row))), column: row, "cell": name}
            )
            for name, matrix in values.items()
            for seed, row in enumerate(matrix)
        )

    return {"margin": frame(margins, "margin"), "attack": frame(broken, "success").with_columns(eps=1 / 255)}


def test_a_difference_that_margins_explain_is_gone_at_equal_margins():
    draws = np.random.default_rng(0)
    margins = {"a": draws.uniform(0, 1, (4, 2000)), "b": draws.uniform(0, 1, (4, 2000)) * 0.8}
    broken = {name: matrix < 0.3 for name, matrix in margins.items()}  # by the margin alone
    rows = _rows(margins, broken)
    raw = {name: matrix.mean() for name, matrix in broken.items()}
    even = variants.at_equal_margins(rows, ("a", "b"))
    even = {name: even.filter(series=name)["value"].mean() for name in "ab"}
    assert raw["b"] - raw["a"] > 0.05
    assert even["b"] == pytest.approx(even["a"], abs=0.015)
    with_more = {**broken, "b": broken["b"] | (draws.uniform(0, 1, (4, 2000)) < 0.2)}
    more = variants.at_equal_margins(_rows(margins, with_more), ("a", "b"))
    assert more.filter(series="b")["value"].mean() - even["a"] > 0.1
    assert more.select(ASR.mean()).item() > 0  # the rows themselves are kept
