"""Models trained together, against each trained by itself."""

import json

import pytest
import torch
from safetensors.torch import load_file

from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.training import make_recipe, train_classifier
from antiphase.training.classifier import train_together

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data():
    return load_data("digits", split="train", limit=200, progress=False)


def recipe(data, kind="diffvit", seed=0, start="uniform", epochs=2, **fields):
    sizes = {"depth": 2, "dim": 16, "num_heads": 2, "patch_size": 2, "initial_weights": start}
    about = {"data": "digits", "schedule": "cosine", "warmup_epochs": 0.5, "batch_size": 64}
    return make_recipe(kind, data, sizes, seed=seed, epochs=epochs, **(about | fields))


@pytest.mark.parametrize("kind", ["vit", "diffvit"])
def test_models_trained_together_equal_those_trained_alone(kind, data, tmp_path):
    recipes = [recipe(data, kind, 0), recipe(data, kind, 1, "normal"), recipe(data, kind, 2)]
    folders = [tmp_path / f"together-{place}" for place in range(3)]
    train_together(recipes, data, data, folders, CPU)
    for place, (one, folder) in enumerate(zip(recipes, folders, strict=True)):
        alone = tmp_path / f"alone-{place}"
        log = train_classifier(one, data, data, alone, progress=False)
        mine, theirs = (load_file(where / "model.safetensors") for where in (folder, alone))
        for name, weights in theirs.items():
            own = mine[name]
            if name.endswith(
                "qkv.bias"
            ):  # the keys' bias has no effect, and Adam turns its rounding into steps
                own, weights = (torch.cat([each[:16], each[32:]]) for each in (own, weights))
            assert torch.allclose(own, weights, atol=5e-5), name
        assert json.loads((folder / "recipe.json").read_text()) == json.loads(
            (alone / "recipe.json").read_text()
        )
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        assert last["loss"] == pytest.approx(log[-1]["loss"], abs=1e-5)
        assert train_classifier(one, data, data, folder, progress=False)[-1] == last  # a finished run


@pytest.mark.parametrize(
    ("second", "words"), [({"epochs": 3}, "equal ones"), ({"adversarial": {"eps": 0.01}}, "equal ones")]
)
def test_recipes_that_differ_in_more_are_refused(second, words, data, tmp_path):
    with pytest.raises(UserError, match=words):
        train_together([recipe(data), recipe(data, seed=1, **second)], data, data, [tmp_path, tmp_path], CPU)


def test_augmentation_is_refused(data, tmp_path):
    augmented = [recipe(data, seed=seed, augment="flip-crop") for seed in (0, 1)]
    with pytest.raises(UserError, match="augmentation"):
        train_together(augmented, data, data, [tmp_path, tmp_path], CPU)
