"""The studies of Section 4.2, of Appendix B and of correlated maps: numbers by hand, verdicts that follow the rows."""

import math
from itertools import product

import numpy as np
import polars as pl
import pytest

from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense.run import sense
from antiphase.data import load_data
from antiphase.models import diffvit, load_model
from antiphase.models.checkpoints import save
from antiphase.sensitivity.depth import branch_changes
from antiphase.studies.cells import TrainClip, Untrained
from antiphase.studies.estimation import estimates
from antiphase.studies.papers.diffclip import maps as map_studies
from antiphase.studies.papers.robustness import theory
from antiphase.studies.store import identity

SEEDS, IMAGES, EPS = 8, 7, (1 / 255, 4 / 255)
KINDS = ("noise", "pgd")


def models(depths):
    for series, size, seed in product(("DiffViT", "ViT"), depths, range(SEEDS)):
        attention = "differential" if series == "DiffViT" else "softmax"
        yield {
            "data": "digits",
            "series": series,
            "attention": attention,
            "depth": size,
            "training_seed": seed,
            "cell": f"{series}-{size}-{seed}",
        }


def paths(alpha=0.5, kept=0.3, gain=1.5, constant=4.0, deeper=1.0):
    """Return rows of both models at depths 1 and 3.

    Args:
        alpha: share of a perturbation that the subtraction leaves in DiffViT.
        kept: share of the signal that it leaves.
        gain: growth of a perturbation in a block.
        constant: operator norm of a block.
        deeper: factor of the gain in each block of DiffViT at depth 3, and its inverse at depth 1.
    """
    draw = np.random.default_rng(0)
    tables = {"depth": [], "branches": [], "attack": []}
    for model in models((1, 3)):
        differs = model["series"] == "DiffViT"
        lean = (deeper if model["depth"] == 3 else 1 / deeper) if differs else 1.0
        for sample in range(IMAGES):
            for kind, eps in product(KINDS, EPS):
                here = model | {"sample": sample, "perturbation": kind, "eps": eps}
                for stage in range(model["depth"] + 1):
                    size = gain * lean * draw.uniform(0.9, 1.1)
                    bound = constant * lean * draw.uniform(0.9, 1.1)
                    tables["depth"].append(here | {"stage": stage, "gain": size, "lipschitz": bound})
                for layer, head in product(range(model["depth"] * differs), range(2)):
                    one, clean = draw.uniform(1, 2, 2)
                    noise = draw.uniform(0.95, 1.05)
                    norms = {"positive": one, "moved": alpha * one * noise}
                    norms |= {"clean_positive": clean, "clean_moved": kept * clean}
                    tables["branches"].append(here | {"layer": layer, "head": head} | norms)
            for eps in EPS:
                success = bool(draw.random() < (0.9 if lean > 1 else 0.1 if lean < 1 else 0.5))
                tables["attack"].append(model | {"sample": sample, "eps": eps, "success": success})
    return {table: pl.DataFrame(rows) for table, rows in tables.items()}


def test_factors_are_geometric_means_over_the_layers():
    rows = paths()
    factors = theory.per_layer(theory.layers(rows))
    where = {"series": "DiffViT", "depth": 3, "training_seed": 1, "sample": 4}
    block = {"perturbation": "pgd", "eps": 4 / 255}
    image_factors = factors.filter(**where, perturbation="PGD, 4/255")
    value = dict(image_factors.select("quantity", "value").iter_rows())
    stages = rows["depth"].filter(**where, **block).filter(pl.col("stage") > 0)
    branches = rows["branches"].filter(**where, **block)
    alphas = []
    for layer in range(3):
        heads = branches.filter(layer=layer)
        alphas.append(math.sqrt((heads["moved"] ** 2).sum() / (heads["positive"] ** 2).sum()))
    assert math.exp(value[theory.ALPHA]) == pytest.approx(np.prod(alphas) ** (1 / 3))
    assert math.exp(value[theory.KEPT]) == pytest.approx(0.3)
    assert math.exp(value[theory.LIPSCHITZ]) == pytest.approx(stages["lipschitz"].product() ** (1 / 3))
    assert value[theory.BOUND] == pytest.approx(value[theory.ALPHA] + value[theory.LIPSCHITZ])
    assert math.exp(3 * value[theory.OBSERVED]) == pytest.approx(stages["gain"].product())
    standard = factors.filter(series="ViT")
    assert not set(standard["quantity"]) & {theory.ALPHA, theory.KEPT}  # 1 by definition, not an estimate
    ends = [standard.filter(quantity=quantity)["value"].to_list() for quantity in (theory.BOUND, theory.LIPSCHITZ)]
    assert ends[0] == ends[1]
    products = theory.by_stage(theory.layers(rows)).filter(**where, perturbation="PGD, 4/255", stage=3)
    whole = dict(products.select("quantity", "value").iter_rows())
    assert whole[theory.BOUND] == pytest.approx(3 * value[theory.BOUND])


@pytest.mark.parametrize(
    ("planted", "name", "verdict"),
    [
        ({"alpha": 0.5}, "subtraction-removes", "holds"),
        ({"alpha": 1.2}, "subtraction-removes", "contradicted"),
        ({"alpha": 0.5, "kept": 0.8}, "noise-before-signal", "holds"),
        ({"alpha": 0.5, "kept": 0.3}, "noise-before-signal", "contradicted"),
        ({"constant": 1.0}, "attenuated", "holds"),
        ({"constant": 4.0}, "attenuated", "contradicted"),
        ({"constant": 4.0}, "bound-holds", "holds"),
        ({"constant": 1.0}, "bound-holds", "contradicted"),
        ({"deeper": 0.5}, "growth-crosses", "holds"),
        ({"deeper": 2.0}, "growth-crosses", "contradicted"),
        ({"alpha": 0.9, "deeper": 0.5}, "bound-crosses", "holds"),
    ],
)
def test_verdicts_follow_what_is_planted(planted, name, verdict):
    verdicts = {claim.name: claim.verdict for claim in theory.THEORY_DEPTH.claims(paths(**planted))}
    assert verdicts[name] == verdict


def test_a_crossover_is_read_off_the_family_of_models():
    crossing, same = (
        theory.crossovers(rows, theory.per_layer(theory.layers(rows)))
        for rows in (paths(alpha=0.9, deeper=0.5), paths(alpha=0.9, deeper=2.0))
    )
    assert crossing["Crossover predicted by equation (5), PGD, 1/255"] == "depth 3"
    assert crossing["Crossover seen in the growth, uniform noise, 1/255"] == "depth 3"
    assert set(same.values()) == {"none among depths 1, 3"}
    assert any("success rate" in title for title in crossing)


def radius_rows(ratio=0.5):
    """Return rows of one-layer models; DiffViT's Lipschitz constant is 1 / ratio times ViT's."""
    draw = np.random.default_rng(1)
    tables = {"radius": [], "alignment": [], "attack": []}
    for model in models((1,)):
        differs = model["series"] == "DiffViT"
        for sample in range(IMAGES):
            here = model | {"sample": sample}
            constant = draw.uniform(2.0, 2.2) / (ratio if differs else 1.0)
            tables["radius"].append(here | {"margin": draw.uniform(1.0, 1.1), "lipschitz": constant, "slope": constant})
            cross = -0.5 if differs else 0.0
            tables["alignment"].append(
                here
                | {"layer": 0, "head": 0, "site": "pixels", "lam": 0.8, "first": draw.uniform(1.0, 1.1)}
                | {"second": 1.0 * differs, "cross": cross}
            )
            tables["attack"].append(here | {"prediction": 1, "clean_prediction": 0, "distance": 0.4})
    return {table: pl.DataFrame(rows) for table, rows in tables.items()}


def test_the_ratio_of_radii_follows_what_is_planted():
    ratios = theory.ratios(radius_rows(0.5))
    means = estimates(ratios, ["quantity"], theory.VALUE, kind="number")
    value = dict(means.select("quantity", "value").iter_rows())
    assert value[theory.MEASURED] == pytest.approx(0.5, rel=0.05)
    assert value[theory.CONSTANT] == pytest.approx(2.0, rel=0.05)
    assert value[theory.CORRECTED] == pytest.approx(1 / math.sqrt(1 + 0.64 + 0.8), rel=0.05)
    assert value[theory.PRINTED] == pytest.approx(1 / (math.sqrt(1.64) + 0.8), rel=0.05)
    verdicts = {
        ratio: {claim.name: claim.verdict for claim in theory.THEORY_RADIUS.claims(radius_rows(ratio))}
        for ratio in (0.3, 2.0)
    }
    for name in ("theorem-5-as-printed", "theorem-5-corrected"):
        assert (verdicts[0.3][name], verdicts[2.0][name]) == ("contradicted", "holds")
    assert (verdicts[0.3]["da-shrinks-the-radius"], verdicts[2.0]["da-shrinks-the-radius"]) == ("holds", "contradicted")


def test_an_attack_within_the_radius_refutes_it():
    outcomes = theory.beyond(radius_rows(1.0))  # m / L is about 0.5, CW's example at 0.4
    shares = dict(outcomes.group_by("radius").agg(pl.mean("value")).iter_rows())
    assert shares == {"m / L, as printed": 1.0, "m / (√2·L)": 0.0, "m / ‖∂m/∂x‖": 1.0}
    robust = radius_rows(1.0)
    robust["attack"] = robust["attack"].with_columns(prediction=pl.lit(0))
    assert theory.beyond(robust)["value"].sum() == 0


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Rows of the branches of an untrained DiffViT, with the model and the images."""
    folder = tmp_path_factory.mktemp("branches")
    model = diffvit(8, patch_size=4, dim=20, depth=2, num_heads=4)
    save(model, {"model": model.config.model_dump(mode="json"), "seed": 0, "data": "digits"}, folder / "model")
    loaded, data = load_model(str(folder / "model")), load_data("digits", limit=3, seed=0)

    def measure(out, batch_size):
        options = SenseOptions.from_file(
            {"eps": (8 / 255,)}, model=("m",), parts=("branches",), batch_size=batch_size, quiet=True
        )
        return sense("m", loaded, data, options, folder / out)["branches"]

    return loaded, data, measure


def test_rows_of_the_branches_are_those_of_the_library_whatever_the_batch(measured):
    model, data, measure = measured
    rows, again = measure("one", 3), measure("other", 1)
    assert len(rows) == 3 * 2 * 2 * 2  # images, perturbations, layers, heads
    keys = ["perturbation", "layer", "sample", "head"]
    assert rows.sort(keys)["moved"].to_list() == pytest.approx(again.sort(keys)["moved"].to_list(), rel=1e-4)
    images = data.images(range(3))
    clean = list(branch_changes(model, images, images + 0.01))
    for layer, change in enumerate(clean):
        heads = rows.filter(layer=layer, perturbation="noise", sample=int(data.ids[1])).sort("head")
        assert heads["clean_correlation"].to_list() == pytest.approx(change.clean_correlation[1].tolist(), rel=1e-5)
        assert heads["clean_moved"].to_list() == pytest.approx(change.clean_moved[1].tolist(), rel=1e-5)


def test_correlations_are_taken_once_for_the_clean_image():
    draw = np.random.default_rng(0)
    rows = [
        {
            "series": series,
            "training_seed": seed,
            "cell": f"{series}{seed}",
            "layer": layer,
            "head": 0,
            "sample": sample,
            "perturbation": kind,
            "eps": eps,
            "clean_correlation": 0.1 * layer,
            "correlation": 0.5,
            "change_correlation": (0.3 if series == map_studies.TRAINED else -0.3) + draw.uniform(-0.01, 0.01),
        }
        for series in (map_studies.TRAINED, map_studies.UNTRAINED)
        for seed, layer, sample, kind, eps in product(range(SEEDS), range(2), range(5), KINDS, map_studies.NOISE)
    ]
    values = map_studies.values({"branches": pl.DataFrame(rows)})
    clean = values.filter(input="clean", series="DiffCLIP")
    assert len(clean) == SEEDS * 2 * 5
    assert set(values["input"]) == {"clean", "noise 8/255", "noise 64/255", "PGD 8/255", "PGD 64/255"}
    claims = {
        claim.name: claim.verdict for claim in map_studies.MAP_CORRELATION.claims({"branches": pl.DataFrame(rows)})
    }
    assert claims["noise-is-shared"] == "holds"
    assert claims["training-shares-noise"] == "holds"


def test_the_untrained_model_is_the_start_of_its_training(tmp_path):
    from antiphase.models.clip import build_clip

    sizes = {"vision": {"dim": 16, "depth": 1, "num_heads": 2, "patch_size": 16}, "embed_dim": 16}
    training = TrainClip(variant="diffclip", data="openmoji", seed=3, preset="openmoji", sizes=sizes)
    untrained = Untrained(of=training)
    model = untrained.load(None)  # type: ignore[arg-type]  # its weights are drawn, nothing is read
    start = build_clip(training.make_recipe("").model, 3)
    assert all((one == two).all() for one, two in zip(model.parameters(), start.parameters(), strict=True))
    assert untrained.needed() == ()
    assert untrained.factors()["series"] == "DiffCLIP, untrained"
    assert identity(untrained) != identity(training)
