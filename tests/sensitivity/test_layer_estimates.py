"""Tables of sensitivity: against frames computed by hand, and laws that hold in any frame."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from antiphase.sensitivity import amplification
from antiphase.sensitivity.layer_estimates import (
    ALIGNMENT_SCHEMA,
    DEPTH_SCHEMA,
    alignment,
    cancellation,
    explanation,
    means,
    prediction_error,
)
from antiphase.statistics.intervals import mean_over_seeds

T = 12.706204736  # Student's t at .975 and one degree of freedom


def row(first, second=0.0, cross=0.0, **more):
    about = {
        "model": "diff",
        "attention": "differential",
        "seed": 0,
        "sample": 0,
        "layer": 0,
        "name": "blocks.0.attn",
        "head": 0,
        "site": "pixels",
        "probes": 3,
        "lam": 0.5,
        "moved": None,
        "low": -0.1,
        "high": 0.1,
    }
    return about | {"first": first, "second": second, "cross": cross} | more


def frame(rows):
    return pl.DataFrame(rows, schema=ALIGNMENT_SCHEMA)


def twin(first, **more):
    about = {"model": "std", "attention": "softmax", "lam": 0.0, "low": None, "high": None}
    return row(first, **about | more)


def by_hand():
    """Two samples of two heads; λ = ½, so that ‖J1 − λ·J2‖² is 1, 4½, 4½ and 11."""
    return frame(
        [
            row(1.0, 4.0, 1.0, sample=0, head=0, low=-0.3, high=-0.1),
            row(3.0, 2.0, -1.0, sample=0, head=1, low=0.1, high=0.3),
            row(5.0, 6.0, 2.0, sample=1, head=0),
            row(7.0, 4.0, -3.0, sample=1, head=1, low=-0.3, high=-0.1),
        ]
    )


def numbers(table, **where):
    return {line["metric"]: line for line in table.filter(**where).iter_rows(named=True)}


def test_the_rows_of_unknown_attention_say_whether_it_has_two_maps():
    one, two = (alignment(frame([row(1.0, second, attention="unknown")])) for second in (0.0, 4.0))
    assert set(one["metric"]) == {"norm"}
    assert {"norm", "cosine", "rho"} < set(two["metric"])


def test_alignment_by_hand():
    lines = numbers(alignment(by_hand()))
    expected = {
        "norm": math.sqrt(21 / 4),
        "cosine": -1 / 16,
        "rho": 1.0,
        "amplification": math.sqrt(21 / 16),
        "negative": 0.5,
        "positive": 0.25,
        "undecided": 0.25,
        "below": 0.5,
    }
    assert {metric: line["value"] for metric, line in lines.items()} == pytest.approx(expected)
    assert {line["n"] for line in lines.values()} == {2}  # samples, not rows
    one, two = 0.0, -1 / math.sqrt(12 * 10)  # cosθ of either sample alone
    half = T * abs(one - two) / 2
    assert lines["cosine"]["low"] == pytest.approx(-1 / 16 - half)
    assert lines["cosine"]["high"] == pytest.approx(-1 / 16 + half)
    assert lines["negative"]["high"] == pytest.approx(0.5)  # both samples say ½


def test_layers_sites_and_models_are_kept_apart():
    rows = by_hand()
    other = rows.with_columns(first=pl.col("first") * 9.0)
    parts = {
        "model": other.with_columns(model=pl.lit("other")),
        "site": other.with_columns(site=pl.lit("tokens")),
        "layer": other.with_columns(layer=pl.lit(1, pl.Int64)),
    }
    for column, part in parts.items():
        table = alignment(pl.concat([rows, part]))
        assert_frame_equal(table.filter(pl.col(column) == rows[column][0]), alignment(rows))
        assert_frame_equal(table.filter(pl.col(column) == part[column][0]), alignment(part))


def test_standard_attention_has_a_norm_only():
    table = alignment(frame([twin(4.0, head=0), twin(12.0, head=1), twin(1.0, sample=1)]))
    assert table["metric"].to_list() == ["norm"]
    assert table["value"][0] == pytest.approx(math.sqrt((8.0 + 1.0) / 2))  # heads first, then samples


def test_exact_inner_products_decide_every_sign():
    rows = [row(1.0, 1.0, c, sample=i, low=c, high=c, probes=0) for i, c in enumerate((-0.2, -0.1, 0.3))]
    lines = numbers(alignment(frame(rows)))
    shares = [lines[sign]["value"] for sign in ("negative", "positive", "undecided")]
    assert shares == pytest.approx([2 / 3, 1 / 3, 0.0])


gradients = st.lists(
    st.tuples(*[st.floats(0.1, 3.0), st.floats(-3.0, 3.0), st.floats(0.1, 3.0), st.floats(-3.0, 3.0)]),
    min_size=2,
    max_size=12,
)


def made(pairs, lam, heads=2):
    """Return rows of gradients in the plane, and the standard twin's with one head more."""
    differential, standard = [], []
    for index, (a, b, c, d) in enumerate(pairs):
        place = {"sample": index // heads, "head": index % heads}
        # J1 = (a, b) and J2 = (d, c): neither is zero
        first, second, cross = a * a + b * b, d * d + c * c, a * d + b * c
        moved = (a - lam * d) ** 2 + (b - lam * c) ** 2
        differential.append(row(first, second, cross, lam=lam, moved=moved, **place))
        standard += [twin(a * c, **place), twin(1.0 + b * b, **place | {"head": heads + index % heads})]
    return frame(differential + standard)


@given(gradients, st.floats(0.0, 2.0))
def test_a_shared_lambda_amplifies_as_theorem_1_says(pairs, lam):
    lines = numbers(alignment(made(pairs, lam)), model="diff")
    predicted = amplification(lam, lines["rho"]["value"], lines["cosine"]["value"])
    assert lines["amplification"]["value"] == pytest.approx(predicted, rel=1e-9, abs=1e-6)


@given(gradients, st.floats(0.0, 0.9))
def test_the_three_logarithms_add_up(pairs, lam):
    rows = made(pairs, lam)
    lines = numbers(explanation(rows, [("diff", "std")]))
    parts = [lines[part]["value"] for part in ("by_gamma", "by_rho", "by_cosine")]
    assert sum(parts) == pytest.approx(lines["relative"]["value"], rel=1e-9, abs=1e-9)
    norms = alignment(rows).filter(metric="norm")
    norm, base = (norms.filter(model=name)["value"][0] for name in ("diff", "std"))
    assert lines["relative"]["value"] == pytest.approx(math.log(norm / base), rel=1e-9, abs=1e-9)
    assert lines["by_gamma"]["value"] == pytest.approx(math.log(lines["gamma"]["value"]), rel=1e-9, abs=1e-9)


def test_explanation_by_hand_takes_the_samples_that_both_have():
    rows = [row(4.0, 8.0, -3.0), twin(1.0), twin(3.0, head=1), row(900.0, 1.0, 0.0, sample=1), twin(5.0, sample=2)]
    lines = numbers(explanation(frame(rows), [("diff", "std")]))
    # λ²‖J2‖² = 2, ‖J1 − λ·J2‖² = 4 + 2 + 3, and the twin's mean square is 2
    expected = {
        "gamma": math.sqrt(2.0),
        "relative": math.log(9 / 2) / 2,
        "by_gamma": math.log(2) / 2,
        "by_rho": math.log(1.5) / 2,
        "by_cosine": math.log(9 / 6) / 2,
    }
    assert {metric: line["value"] for metric, line in lines.items()} == pytest.approx(expected)
    ends = {metric: (line["low"], line["high"], line["n"]) for metric, line in lines.items()}
    assert ends.pop("gamma") == (0.0, math.inf, 1)  # a ratio of norms
    assert set(ends.values()) == {(-math.inf, math.inf, 1)}


@given(gradients, st.floats(0.0, 0.9), st.floats(0.0, 0.3))
def test_the_prediction_is_right_and_an_error_of_it_is_seen(pairs, lam, error):
    rows = made(pairs, lam)
    cancelled = (pl.col("moved") < 1e-6) & (pl.col("attention") == "differential")  # nothing left to divide by
    rows = rows.filter(~cancelled)
    assert prediction_error(rows) < 1e-6
    if "diff" in rows["model"]:
        off = rows.with_columns(moved=pl.col("moved") / (1 + error) ** 2)
        assert prediction_error(off) == pytest.approx(error, abs=1e-6)


def test_closed_forms_and_standard_attention_have_nothing_to_predict():
    assert prediction_error(by_hand()) == 0.0
    assert prediction_error(frame([twin(4.0, moved=4.0)])) == 0.0


def test_means_by_hand_and_as_student_has_them():
    schema = {"model": pl.String, "stage": pl.Int64, "gain": pl.Float64, "moved": pl.Float64}
    values = [0.35, 0.31, 0.36, 0.4]
    rows = pl.DataFrame(
        [("a", 0, value, None) for value in values] + [("a", 1, 3.0, 5.0), ("a", 1, 4.0, None)], schema, orient="row"
    )
    table = means(rows, ["model", "stage"], ["gain", "moved"])
    assert table.columns == ["model", "stage", "metric", "value", "low", "high", "n"]
    reference = mean_over_seeds(values)
    expected = [
        ("a", 0, "gain", reference.value, reference.low, reference.high, 4),
        # 3.5 ± T/2 reaches below 0: on the log scale then
        ("a", 1, "gain", 3.5, 3.5 * math.exp(-T / 7), 3.5 * math.exp(T / 7), 2),
        ("a", 1, "moved", 5.0, 0.0, math.inf, 1),
    ]
    for line, other in zip(table.rows(), expected, strict=True):
        assert line[:3] == other[:3]
        assert line[3:] == pytest.approx(other[3:])


def travelled(positive, negative, moved, **more):
    about = {
        "model": "diff",
        "attention": "differential",
        "seed": 0,
        "sample": 0,
        "perturbation": "pgd",
        "eps": 0.1,
        "stage": 1,
        "name": "blocks.0",
        "length": 1.0,
        "gain": 1.0,
        "lipschitz": 1.0,
        "alpha": 1.0,
    }
    return about | {"positive": positive, "negative": negative, "moved": moved} | more


def test_cancellation_by_hand():
    rows = pl.DataFrame(
        [
            travelled(3.0, 4.0, 1.0),
            travelled(6.0, 8.0, 13.0, sample=1),
            travelled(3.0, 4.0, 5.0, stage=2),  # at a right angle
            travelled(None, None, None, stage=0),  # the embedding has no maps
            travelled(2.0, 0.0, 2.0, model="std", attention="softmax"),
        ],
        schema=DEPTH_SCHEMA,
    )
    table = cancellation(rows)
    assert table.select("model", "perturbation", "eps", "stage", "metric", "n").rows() == [
        ("diff", "pgd", 0.1, 1, "cancellation", 2),
        ("diff", "pgd", 0.1, 2, "cancellation", 1),
    ]
    # sums of squares before the ratio: (1 + 169) / (25 + 100)
    assert table["value"].to_list() == pytest.approx([math.sqrt(170 / 125), 1.0])
    half = T * abs(1.0 / 5.0 - 13.0 / 10.0) / 2
    ratio = math.sqrt(170 / 125)  # ± half reaches below 0
    assert table["high"][0] == pytest.approx(ratio * math.exp(half / ratio))


def test_the_order_of_rows_changes_nothing():
    generator = np.random.default_rng(3)
    pairs = [tuple(generator.uniform(0.1, 3.0, 4)) for _ in range(14)]
    rows = pl.concat([made(pairs, 0.7), made(pairs, 0.4).with_columns(layer=pl.lit(1, pl.Int64))])
    shuffled = rows.sample(fraction=1.0, shuffle=True, seed=5)
    assert shuffled["sample"].to_list() != rows["sample"].to_list()
    tables = (
        alignment,
        lambda rows: explanation(rows, [("diff", "std")]),
        lambda rows: means(rows, ["model", "layer"], ["first", "cross", "moved"]),
    )
    for table in tables:
        keys = [name for name in ("model", "against", "site", "layer") if name in table(rows).columns]
        assert_frame_equal(table(shuffled).sort(keys, maintain_order=True), table(rows).sort(keys, maintain_order=True))
    assert prediction_error(shuffled) == prediction_error(rows)


def test_a_gradient_of_nothing_is_undecided():
    rows = frame([row(1.0, 0.0, 0.0, low=math.nan, high=math.nan), row(1.0, 1.0, 0.5, sample=1, low=0.4, high=0.6)])
    lines = numbers(alignment(rows))
    assert (lines["undecided"]["value"], lines["positive"]["value"]) == (0.5, 0.5)


def test_only_a_standard_twin_explains():
    other = [row(2.0, 1.0, 0.1, model="other", sample=sample) for sample in (0, 1)]
    rows = pl.concat([by_hand(), frame(other), frame([twin(2.0, sample=sample) for sample in (0, 1)])])
    assert explanation(rows, [("diff", "other"), ("std", "diff")]).is_empty()
    assert set(explanation(rows, [("diff", "std"), ("diff", "other")])["against"]) == {"std"}
