"""Arguments of public functions: what is accepted, and one line for what is not."""

import importlib
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int64
from pydantic import BaseModel
from torch import Tensor, nn

from antiphase import attacks, attention, evaluation, models, sensitivity, training
from antiphase.arguments import ANY_NUMBER, UNIQUE, UNIT_RANGE, Count, Positive, Seed, validated
from antiphase.data import load_data
from antiphase.errors import UserError


@validated
def public(
    images: Annotated[Float[Tensor, "samples 2 *shape"], UNIT_RANGE],
    labels: Int64[Tensor, " samples"] | None = None,
    *,
    ids: Annotated[Int64[Tensor, " samples"], UNIQUE] | None = None,
    steps: Count = 1,
    seed: Seed = 0,
    step_size: Positive | None = None,
    ratio: Annotated[float, ANY_NUMBER] = 1.0,
    norm: Literal["linf", "l2"] = "linf",
    flag: bool = False,
    names: Sequence[str] = (),
    pairs: Mapping[int, tuple[float, float]] | None = None,
    model: Callable[..., Any] = len,
    anything: Any = None,
) -> dict[str, Any]:
    return {"steps": steps, "step_size": step_size, "ratio": ratio}


def refused(function, *args, **kwargs):
    """Return the one line with which a call is refused."""
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    line = str(caught.value)
    assert "\n" not in line
    return line


IMAGES = torch.full((3, 2, 4, 4), 0.5)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        *(
            ("steps", value, f"{value!r}: expected an integer of at least 1 and below 2**31")
            for value in (0, 1.5, "a", None, True)
        ),
        ("steps", math.nan, "nan: expected an integer of at least 1"),
        ("steps", 2**64, "18446744073709551616: expected an integer of at least 1 and below 2**31"),
        ("steps", torch.tensor(3), "of shape () and torch.int64: expected an integer of at least 1"),
        *(("seed", value, f"{value!r}: expected an integer from 0 to 2**63 - 1") for value in (-1, 1.5, 2**63)),
        ("step_size", 0, "0: expected a number above 0"),
        ("step_size", math.inf, "inf: expected a finite number above 0"),
        ("step_size", "1", "'1': expected a number above 0 or None"),
        ("ratio", True, "True: expected a number"),
        ("ratio", 10**400, ": expected a number"),
        ("norm", "l1", "'l1': expected 'linf' or 'l2'"),
        ("norm", [], "of type list: expected 'linf' or 'l2'"),
        ("flag", 1, "1: expected True or False"),
        ("names", "cat", "'cat': expected a list, each text"),
        ("names", ["cat", 3], "of type list: expected a list, each text"),
        ("names", np.array("cat"), "of type ndarray, shape () and <U3: expected a list, each text"),
        ("pairs", {1: (0.0, "b")}, "of type dict: expected a mapping or None"),
        ("pairs", {1: (0.0,)}, "of type dict: expected a mapping or None"),
        ("model", 3, "3: expected a callable"),
        ("labels", torch.arange(2), "of shape (2,) and torch.int64: expected one per sample, (3,), as in images"),
        (
            "labels",
            torch.ones(3),
            "of shape (3,) and torch.float32: expected a torch tensor of int64 and shape (samples) or None",
        ),
        (
            "ids",
            torch.tensor([0, 1, 1]),
            "of shape (3,) and torch.int64: expected a torch tensor of int64 and shape (samples) without duplicates",
        ),
        (
            "images",
            IMAGES * 255,
            "with values from 127.5 to 127.5: expected a torch tensor of float and shape "
            "(samples, 2, …) and values in [0, 1]",
        ),
        (
            "images",
            IMAGES * math.nan,
            "with values from nan to nan: expected a torch tensor of float and shape "
            "(samples, 2, …) and values in [0, 1]",
        ),
        *(
            ("images", value, "expected a torch tensor of float and shape (samples, 2, …)")
            for value in (IMAGES.byte(), IMAGES[:, :1], IMAGES.numpy(), torch.tensor(0.5), None)
        ),
    ],
)
def test_validated_names_the_argument_that_does_not_fit(name, value, line):
    assert line in refused(public, **({"images": IMAGES} | {name: value}))


def test_validated_names_a_number_of_more_digits_than_python_prints():
    assert refused(public, IMAGES, steps=10**5000) == "steps <int>: expected an integer of at least 1 and below 2**31"


def test_validated_takes_what_fits_and_turns_numpys_numbers_into_pythons():
    arguments = public(
        IMAGES,
        torch.arange(3),
        ids=torch.tensor([2, 0, 1]),
        steps=np.int64(3),
        seed=2**63 - 1,
        ratio=math.nan,
        step_size=np.float32(0.5),
        names=np.array(["a", "b"]),
        pairs={1: (0, 0.5)},
        anything=object(),
    )
    assert type(arguments["steps"]) is int
    assert type(arguments["step_size"]) is float
    assert math.isnan(arguments["ratio"])


def test_validated_leaves_missing_and_unknown_arguments_to_python():
    with pytest.raises(TypeError, match=r"public\(\) missing 1 required positional argument: 'images'"):
        public()
    with pytest.raises(TypeError, match=r"public\(\) got an unexpected keyword argument 'step'"):
        public(IMAGES, step=3)


PARTS = ("attacks", "attention", "data", "evaluation", "models", "sensitivity", "training", "vlm")
UNCHECKED = {"outputs_only"}  # has no arguments


@pytest.mark.parametrize("part", PARTS)
def test_every_public_function_is_validated(part):
    module = importlib.import_module(f"antiphase.{part}")
    functions = [function for name in module.__all__ if inspect.isfunction(function := getattr(module, name))]
    assert [one.__name__ for one in functions if not hasattr(one, "__wrapped__")] in ([], sorted(UNCHECKED))


@pytest.mark.parametrize(
    "fields", [{"eps": 2.0}, {"eps": True}, {"eps": 0.1, "steps": 0}, {"eps": 0.1, "speed": 1}, {}]
)
def test_models_of_fields_are_refused_in_one_line(fields):
    assert issubclass(training.Adversary, BaseModel)
    refused(training.Adversary, **fields)


NET = nn.Sequential(nn.Flatten(), nn.Linear(32, 4)).eval()
VIT = models.diffvit(8, depth=1, dim=8, num_heads=2, patch_size=4, in_channels=2, num_classes=3).eval()
CLIP = models.diffclip(
    vision={"image_size": 16, "patch_size": 8, "dim": 8, "depth": 1, "num_heads": 2},
    text={"dim": 8, "depth": 1, "num_heads": 2, "context_length": 8},
    embed_dim=4,
).eval()
LABELS = torch.arange(3)
SQUARE = torch.rand(2, 3, 16, 16)
POINTS = torch.rand(2, 5)
KEYS = torch.arange(6).reshape(3, 2)
RUN = {"labels": LABELS, "seed": 0, "ids": LABELS, "batch_size": 2, "early_stop": True, "passes": 1}
FEATURES = {"features": torch.rand(6, 3), "labels": torch.arange(6) % 2, "num_classes": 2, "cost": 1.0}
DATA = load_data("digits", limit=8)


def curve(x):
    return torch.tanh(x @ torch.linspace(-1, 1, 10).reshape(5, 2))


CALLS = {
    attacks.pgd: {
        "model": NET,
        "images": IMAGES,
        "threat": attacks.Threat(),
        **RUN,
        "steps": 1,
        "step_size": 0.1,
        "schedule": "linear",
        "restarts": 1,
        "random_start": True,
        "momentum": 0.5,
        "objective": "margin",
    },
    attacks.apgd: {"model": NET, "images": IMAGES, **RUN, "steps": 1, "targets": 1, "rho": 0.5, "momentum": 0.5},
    attacks.fab: {"model": NET, "images": IMAGES, **RUN, "steps": 1, "targets": 1, "eta": 1.05, "beta": 0.9},
    attacks.square: {"model": NET, "images": IMAGES, **RUN, "queries": 1, "p_init": 0.5, "objective": "margin"},
    attacks.noise: {"model": NET, "images": IMAGES, **RUN, "draws": 1},
    attacks.patch_pgd: {"model": NET, "images": IMAGES, **RUN, "width": 2, "steps": 1, "step_size": 0.1},
    attacks.eps_at: {"distance": np.ones(3), "success": np.ones(3, bool), "levels": (0.5,), "confidence": 0.9},
    sensitivity.smooth: {
        "model": NET,
        "images": IMAGES,
        "sigma": 0.25,
        "select": 2,
        "samples": 10,
        "alpha": 0.01,
        "seed": 0,
        "ids": LABELS,
        "batch_size": 8,
        "precision": "float32",
        "progress": "",
    },
    sensitivity.power_iteration: {"f": curve, "x": POINTS, "steps": 1, "seed": 0, "tolerance": 0.1},
    sensitivity.uniform_sampling: {"f": curve, "x": POINTS, "eps": 0.1, "samples": 1, "seed": 0},
    sensitivity.local_maximum: {"f": curve, "x": POINTS, "eps": 0.1, "points": 1, "steps": 1, "seed": 0},
    sensitivity.gradient_ascent: {"f": curve, "x": POINTS, "eps": 0.1, "steps": 1},
    sensitivity.stage_norms: {
        "model": VIT,
        "images": IMAGES.expand(3, 2, 4, 4).repeat(1, 1, 2, 2),
        "steps": 1,
        "seed": 0,
        "ids": LABELS,
    },
    sensitivity.attention_maps: {"model": VIT, "inputs": torch.rand(3, 2, 8, 8), "graph": False},
    sensitivity.attention_map: {"model": CLIP, "images": SQUARE, "part": "positive", "layer": 0},
    sensitivity.chefer_relevance: {"model": CLIP, "images": SQUARE, "texts": ["cat"], "part": "negative", "start": 0},
    sensitivity.random_directions: {"images": IMAGES, "keys": KEYS},
    sensitivity.margins: {"logits": torch.rand(3, 4), "labels": LABELS},
    sensitivity.radius_ratio: {"margin_ratio": 1.0, "gamma": 1.0, "lam": 0.5, "rho": 1.0, "cosine": 0.0},
    evaluation.fit_probe: {**FEATURES, "objective": "squared", "max_iter": 1},
    evaluation.draw_episodes: {
        "train_labels": torch.arange(8) % 2,
        "test_labels": torch.arange(8) % 2,
        "ways": 2,
        "episodes": 1,
        "shots": 1,
        "queries": 1,
        "seed": 0,
    },
    evaluation.ranks: {
        "queries": torch.rand(2, 3),
        "candidates": torch.rand(3, 3),
        "owners": LABELS,
        "wanted": torch.arange(2),
    },
    evaluation.class_prompts: {"ensemble": "1", "class_names": ["cat"], "own": None},
    attention.softmax_maps: {"q": torch.rand(2, 3, 4), "k": torch.rand(2, 3, 4)},
    attention.DifferentialAttention: {"dim": 8, "num_heads": 2, "lambda_init": 0.8, "backend": "eager"},
    models.diffvit: {"image_size": 8, "seed": 0, "dim": 8, "num_heads": 2, "lambda_init": 0.8, "head_norm": True},
    models.load_model: {"spec": "specimen:vit-0", "random_weights": False, "seed": 0},
    training.accuracy: {"model": nn.Flatten(), "data": DATA, "device": "cpu"},
    training.make_recipe: {"kind": "vit", "images": DATA, "model_fields": {}, "data": "digits", "seed": 0},
}
HOSTILE = (None, "a", -1, 0, 1.5, math.nan, math.inf, True, 2**64, [], {}, torch.ones(4, dtype=torch.bool))


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_public_functions_refuse_hostile_arguments_in_one_line(function):
    good = CALLS[function]
    function(**good)
    for name in good:
        refused(function, **(good | {name: object()}))
        for value in HOSTILE:
            try:
                function(**(good | {name: value}))
            except UserError as error:
                assert "\n" not in str(error)  # noqa: PT017 (what is accepted may also be right)


@pytest.mark.parametrize(
    "call",
    [
        lambda seed: attacks.pgd(NET, IMAGES, LABELS, steps=1, seed=seed),
        lambda seed: attacks.sweep(attacks.fgsm, NET, IMAGES, LABELS, attacks.Threat(), [0.1], seed=seed),
        lambda seed: attacks.run_foreign(lambda model, x, y: x, NET, IMAGES, LABELS, attacks.Threat(), seed=seed),
        lambda seed: sensitivity.gradient_ascent(curve, POINTS, 0.1, seed=seed),
        lambda seed: evaluation.train_probe(torch.rand(6, 3), torch.arange(6) % 2, None, 2, seed=seed),
        lambda seed: models.clip(seed=seed),
        lambda seed: models.build(VIT.config, seed),
        lambda seed: training.robust_accuracy(NET, DATA, 0.1, seed=seed),
    ],
)
@pytest.mark.parametrize("seed", [-1, 1.5, "a", None, math.nan, True, 2**63, 2**64])
def test_public_functions_reject_seeds_that_are_none(call, seed):
    assert refused(call, seed).endswith(": expected an integer from 0 to 2**63 - 1")


def test_an_unknown_device_is_named():
    assert "device 'gpu': expected" in refused(training.accuracy, NET, DATA, "gpu")


def test_validated_functions_keep_their_name_and_signature():
    assert isinstance(attacks.pgd, types.FunctionType)
    assert attacks.pgd.__name__ == "pgd"
    assert "steps" in inspect.signature(attacks.pgd).parameters
