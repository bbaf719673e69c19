"""The study of causes: its models, the parts of the difference on made-up rows, and its first sentence."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import diffvit, vit
from antiphase.statistics.seeds_by_images import crossed_mean
from antiphase.studies.cells import TrainVit, Variant
from antiphase.studies.own.asr_causes import (
    ANGLE,
    AT_LOSS,
    AT_MARGINS,
    CAUSES,
    CHANGED,
    DIFFVIT,
    EPS,
    HEADS,
    LADDER,
    MARGINS,
    NORM,
    NORMAL,
    NORMED,
    SERIES,
    SHORTER,
    SUBTRACTION,
    TOTAL,
    TRAINED,
    VIT,
    WIDER,
    ZERO,
    Measured,
    draw,
    intervened,
    trained,
)
from antiphase.studies.papers.robustness.bench import bench
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Lab, profile
from antiphase.studies.store import Store, identity

SMALL = TrainVit(
    model="diffvit", data="digits", limit=64, sizes={"dim": 8, "num_heads": 2, "patch_size": 4}, recipe={"epochs": 1}
)


def test_a_name_is_no_part_of_a_variants_identity_but_an_intervention_is():
    plain = Variant(model=SMALL, series="a")
    assert identity(plain) == identity(Variant(model=SMALL, series="b"))
    others = [replace(plain, lam=0.5), replace(plain, negative="mean"), replace(plain, stopped=("negative",))]
    assert len({identity(variant) for variant in (plain, *others)}) == 4
    assert identity(Variant(model=SMALL, lam=0.5, stopped=("negative",))) == "e669a3049782cb57"  # what stores call it
    with pytest.raises(UserError, match="negative 'median': expected own, mean or uniform"):
        Variant(model=SMALL, negative="median")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="negative 'mean' with a stopped gradient: expected one of the two"):
        Variant(model=SMALL, negative="mean", stopped=("negative",))


def test_variants_are_loaded_from_the_store_and_leave_the_trained_model_alone(tmp_path):
    lab = Lab(Store(tmp_path), progress=False)
    run_cells([SMALL], lab)
    images = load_data("digits", split="test", limit=4).images(range(4))
    untouched = SMALL.load(lab)(images)
    assert torch.equal(Variant(model=SMALL).load(lab)(images), untouched)
    for series, variant in intervened(SMALL).items():
        model = variant.load(lab)
        assert model.card.name == f"{series} seed 0"
        with torch.no_grad():
            assert torch.equal(model(images), untouched) == bool(variant.stopped)
    assert torch.equal(SMALL.load(lab)(images), untouched)


def test_controls_differ_from_their_twin_in_what_they_say():
    models = trained(bench(profile("laptop")), 3, "fashion-mnist")
    assert set(models) == set(TRAINED)
    plain, twin = models[VIT], models[DIFFVIT]
    cells = {name: model.model if isinstance(model, Variant) else model for name, model in models.items()}
    assert {cell.seed for cell in cells.values()} == {3}
    assert {name for name, cell in cells.items() if cell.recipe == plain.recipe} == set(TRAINED) - {SHORTER}
    assert cells[SHORTER].recipe["epochs"] == 2
    assert cells[ZERO] == replace(twin, sizes={**twin.sizes, "parameterisation": "zero"})
    assert cells[NORMAL[VIT]] == replace(plain, sizes={**plain.sizes, "initial_weights": "normal"})


def test_the_wider_vit_has_the_parameters_of_diffvit_to_a_thousandth():
    models = trained(bench(profile("laptop")), 0, "fashion-mnist")
    counts = {
        name: sum(weights.numel() for weights in build(28, **model.sizes).parameters())
        for name, build, model in (
            (VIT, vit, models[VIT]),
            (DIFFVIT, diffvit, models[DIFFVIT]),
            (WIDER, vit, models[WIDER].model),
        )
    }
    assert (counts[DIFFVIT] - counts[VIT], counts[WIDER] - counts[VIT]) == (96, 129)
    assert abs(counts[WIDER] / counts[DIFFVIT] - 1) < 1e-3


def _rows(steepness, shift, *, seeds=6, images=300, angle=1.0, losses=(0.4, 0.5, 0.45)):
    """Return made-up rows: an image is broken at ε if its margin is below steepness·ε·noise.

    Args:
        steepness: of the models whose name is given; 1 for others.
        shift: of the logarithm of their margins; 0 for others.
        angle: κ of DiffViT.
        losses: of ViT, its shorter training and DiffViT.
    """
    rng = np.random.default_rng(0)
    tables = {"attack": [], "margin": [], "margin-train": []}
    level = rng.normal(size=images)
    for series in SERIES:
        for seed in range(seeds):
            base = {"series": series, "data": "made-up", "training_seed": seed, "cell": f"{series} {seed}"}
            of_seed = shift.get(series, 0.0) + rng.normal(0, 0.05)
            margin = 255 * np.exp(0.5 * level + of_seed + rng.normal(0, 0.2, images)) / 200
            slope = steepness.get(series, 1.0)
            distance = margin / 255 / slope * np.exp(rng.normal(0, 0.3, images))
            samples = pl.DataFrame({"sample": np.arange(images), "label": 0, "clean_prediction": 0})
            for eps in EPS:
                hits = {"attack": pl.lit("pgd"), "eps": pl.lit(eps), "success": pl.Series(distance <= eps)}
                tables["attack"].append(samples.with_columns(**hits, distance=pl.lit(eps), **_literal(base)))
            if series in LADDER:
                fab = {"attack": pl.lit("fab-t"), "eps": pl.lit(1.0), "success": pl.lit(True)}
                tables["attack"].append(samples.with_columns(**fab, distance=pl.Series(distance), **_literal(base)))
            if series in (*TRAINED, *CHANGED):
                kappa = angle if series == DIFFVIT else 1.0
                columns = {"margin": margin, "norm1": np.full(images, slope), "right1": np.full(images, slope / kappa)}
                columns |= {name: np.ones(images) for name in ("positive", "negative", "inner")}
                tables["margin"].append(samples.with_columns(**_columns(columns), **_literal(base)))
                loss = dict(zip((VIT, SHORTER, DIFFVIT), losses, strict=True)).get(series, 0.4)
                tables["margin-train"].append(samples.with_columns(loss=pl.lit(loss), **_literal(base)))
    return {name: pl.concat(frames) for name, frames in tables.items()}


def _columns(columns):
    return {name: pl.Series(values) for name, values in columns.items()}


def _literal(base):
    return {name: pl.lit(value) for name, value in base.items()}


def test_where_only_margins_differ_all_of_the_difference_is_margins():
    measured = Measured(_rows({}, {DIFFVIT: -0.5}))
    parts = {name: crossed_mean(values) for name, values in measured.parts(1 / 255).items()}
    assert parts[TOTAL].low > 0.1
    assert parts[MARGINS].value == pytest.approx(parts[TOTAL].value, abs=0.03)
    for name in (NORM, HEADS, SUBTRACTION):
        assert parts[name].low < 0.01
        assert parts[name].high > -0.01
        assert abs(parts[name].value) < 0.03
    assert parts[ANGLE].value == 0


def test_where_the_mechanism_differs_too_each_part_is_found_where_it_was_put():
    # norm and factor make an image a third steeper, the subtraction makes it that and half as much again
    steepness = {NORMED: 1.3, ZERO: 1.3, DIFFVIT: 2.0}
    measured = Measured(_rows(steepness, {DIFFVIT: -0.3, NORMED: 0.2}, angle=1.2))
    parts = {name: crossed_mean(values) for name, values in measured.parts(1 / 255).items()}
    total = sum(parts[name].value for name in (MARGINS, NORM, HEADS, SUBTRACTION))
    assert total == pytest.approx(parts[TOTAL].value, abs=1e-12)
    even = Measured(_rows(steepness, {}, angle=1.2))  # the same models at one distribution of margins
    for name in (NORM, HEADS, SUBTRACTION):
        assert parts[name].value == pytest.approx(even.parts(1 / 255)[name].mean(), abs=0.06), name
    assert parts[NORM].low > 0.03
    assert parts[SUBTRACTION].low > 0.1
    assert 0.02 < parts[ANGLE].value < parts[SUBTRACTION].value
    others = measured.other_order(1 / 255).values()
    assert sum(part.mean() for part in others) == pytest.approx(total - parts[MARGINS].value)
    differences = measured.differences(1 / 255)
    assert differences[AT_MARGINS].mean() == pytest.approx(
        sum(parts[name].value for name in (NORM, HEADS, SUBTRACTION))
    )


@pytest.mark.parametrize(("losses", "share"), [((0.4, 0.5, 0.45), 0.5), ((0.4, 0.5, 0.4), 0.0), ((0.4, 0.4, 0.5), 0.0)])
def test_asr_at_equal_loss_is_interpolated(losses, share):
    measured = Measured(_rows({SHORTER: 2.0}, {}, losses=losses))
    whole, short = (measured.broken(series, EPS[1]).mean() for series in (VIT, SHORTER))
    expected = (1 - share) * whole + share * short
    assert measured.at_loss(EPS[1]).mean() == pytest.approx(expected)
    remains = measured.differences(EPS[1])[AT_LOSS].mean()
    assert remains == pytest.approx(measured.broken(DIFFVIT, EPS[1]).mean() - expected)


def test_the_least_perturbation_is_the_product_of_its_factors():
    measured = Measured(_rows({DIFFVIT: 2.0}, {}))
    distance, margin, slope, rest = measured.logarithms(DIFFVIT).values()
    assert np.allclose(distance, margin - slope + rest)
    assert np.allclose(np.exp(distance), measured.distances(DIFFVIT))


def test_the_first_sentence_and_the_claims_come_from_the_rows():
    rows = _rows({DIFFVIT: 1.6, ZERO: 1.1}, {DIFFVIT: -0.3}, angle=1.2)
    first, limits = draw(rows).notes
    parts_by_eps = [Measured(rows).parts(eps) for eps in EPS]
    parts = Measured(rows).parts(1 / 255)
    for name in (TOTAL, MARGINS, NORM, HEADS, SUBTRACTION, ANGLE):
        number = f"{100 * np.mean([one[name].mean() for one in parts_by_eps]):+.1f} [".replace("-", "−")
        assert number in first, name
    assert "cos θ is −1.0000 [" in first
    assert "6 training seeds and 300 images" in first
    assert "What is not identified" in limits
    claims = {claim.name: claim for claim in CAUSES.claims(rows)}
    assert claims["subtraction-raises-asr"].verdict != "not run"
    mean, *checks = claims["angle-raises-asr"].checks
    assert [check.decides for check in (mean, *checks)] == [True, False, False, False, False]
    assert checks[1].estimate.value == pytest.approx(parts[ANGLE].mean())
    assert mean.estimate.value == pytest.approx(sum(check.estimate.value for check in checks) / 4)


def test_without_a_finished_seed_the_page_says_so():
    rows = _rows({}, {}, seeds=2, images=20)
    missing = rows["attack"]["series"].eq(NORMED) & rows["attack"]["training_seed"].eq(1)
    one = Measured(rows | {"attack": rows["attack"].filter(~missing)})
    assert one.seeds == [0]
    none = rows | {"attack": rows["attack"].filter(pl.col("series") != NORMED)}
    assert draw(none).notes[0] == "No training seed is finished yet."
    assert {claim.verdict for claim in CAUSES.claims(none)} == {"not run"}
