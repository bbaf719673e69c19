"""``antiphase look`` from options to files, with small models in the place of checkpoints."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from antiphase.data.decoding import Square
from antiphase.errors import UserError
from antiphase.models import vit
from antiphase.models.card import ModelCard, with_card
from antiphase.models.clip import clip, diffclip
from antiphase.sensitivity.relevance import METHODS, chefer_relevance

VISION = {"image_size": 16, "patch_size": 4, "dim": 16, "depth": 2, "num_heads": 4}
TEXT = {"dim": 12, "depth": 1, "num_heads": 2, "context_length": 13}


@pytest.fixture
def models(monkeypatch):
    """Specifications of models that load at once."""
    known = {"run/clip": (clip, "softmax"), "run/diffclip": (diffclip, "differential"), "other/clip": (clip, "softmax")}
    loaded = {}

    def load_model(spec, *, random_weights=False, seed=0):
        if spec == "specimen:vit":
            return vit(8, dim=8, num_heads=2)
        if spec not in known:
            raise UserError(f"model {spec!r}: neither a directory nor known")
        build, attention = known[spec]
        model = build(vision=VISION, text=TEXT, embed_dim=7)
        card = ModelCard(spec.split("/")[1], spec, attention, 0, model.image_shape, 0)
        loaded[spec] = with_card(model, card)
        return loaded[spec]

    monkeypatch.setattr("antiphase.commands.loading.load_model", load_model)
    return loaded


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with images of two shapes, where the command runs."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for name, (height, width) in {"one": (20, 30), "two": (16, 16)}.items():
        Image.fromarray(generator.integers(0, 256, (height, width, 3), np.uint8)).save(f"{name}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    return tmp_path


def pixels(name):
    whole = torch.from_numpy(np.array(Image.open(f"{name}.png"))).permute(2, 0, 1)
    return Square(16)(whole).float()[None] / 255


def test_figure_and_maps_are_written(folder, models, run_cli):
    code, out, err = run_cli(
        "look",
        "run/diffclip",
        "one.png",
        "two.png",
        "--text",
        "mug",
        "--text",
        "lamp",
        "--against",
        "run/clip",
        "--out",
        "new/figure.png",
        "--quiet",
    )
    assert (code, err) == (0, "")
    assert "new/figure.png" in out
    assert sorted(path.name for path in (folder / "new").iterdir()) == ["figure.html", "figure.json", "figure.png"]
    page = (folder / "new" / "figure.html").read_text()
    assert "Relevance of diffclip and clip: mean correlation" in page
    assert "mean correlation" in out
    with Image.open("new/figure.png") as figure:
        assert figure.width > figure.height / 2 > 100
    stored = json.loads((folder / "new" / "figure.json").read_text())
    assert [model["name"] for model in stored["models"]] == ["diffclip", "clip"]
    assert [model["attention"] for model in stored["models"]] == ["differential", "softmax"]
    assert (stored["texts"], stored["methods"]) == (["mug", "lamp"], ["relevance", "attention"])
    assert len(stored["maps"]) == 2 * 2 * 2 * 2
    for entry in stored["maps"][:8]:
        model = models[f"run/{entry['model']}"]
        x = pixels(["one", "two"][entry["image"]])
        expected = chefer_relevance(model, x, [f"a photo of {entry['text']}"])[0, 0]
        np.testing.assert_allclose(entry["map"], expected, rtol=2e-4, atol=1e-9)
        assert all(float(f"{value:.6g}") == value for row in entry["map"] for value in row)


def test_squashed_images_are_seen_whole(folder, models, run_cli):
    words = ("look", "run/clip", "one.png", "--text", "mug", "--method", "relevance")
    code, _, err = run_cli(*words, "--resize", "squash", "-q")
    assert (code, err) == (0, "")
    stored = json.loads((folder / "look.json").read_text())
    whole = torch.from_numpy(np.array(Image.open("one.png"))).permute(2, 0, 1)
    x = Square(16, squash=True)(whole).float()[None] / 255
    expected = chefer_relevance(models["run/clip"], x, ["a photo of mug"])[0, 0]
    np.testing.assert_allclose(stored["maps"][0]["map"], expected, rtol=2e-4, atol=1e-9)


def test_methods_that_a_model_has_no_map_for_are_left_out(folder, models, run_cli):
    code, _, err = run_cli(
        "look",
        "run/diffclip",
        "two.png",
        "--text",
        "mug",
        "--against",
        "run/clip",
        "--method",
        "attention, negative",
        "--layer",
        "0",
        "--out",
        "figure.png",
        "-q",
    )
    assert code == 0
    assert err.startswith("clip: no column for negative")
    stored = json.loads((folder / "figure.json").read_text())
    shown = [(entry["model"], entry["method"]) for entry in stored["maps"]]
    assert shown == [("diffclip", "attention"), ("clip", "attention"), ("diffclip", "negative")]
    assert [one["model"] for one in stored["left_out"]] == ["clip"]
    expected = METHODS["attention"].maps(models["run/diffclip"], pixels("two"), ["mug"], 0)[0, 0]
    np.testing.assert_allclose(stored["maps"][0]["map"], expected, rtol=1e-4)


def test_models_of_one_name_are_told_apart(folder, models, run_cli):
    code, _, err = run_cli("look", "run/clip,other/clip", "two.png", "--text", "mug", "-q")
    assert (code, err) == (0, "")
    stored = json.loads((folder / "look.json").read_text())
    assert [model["name"] for model in stored["models"]] == ["run/clip", "other/clip"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run/clip", "two.png"], "--text"),
        (["run/clip", "--text", "mug"], "IMAGE"),
        (["run/clip", "two.png", "--text", " "], "text ' '"),
        (["run/clip", "two.png", "--text", "mug", "--prompt", "a photo"], "prompt 'a photo'"),
        (["run/clip", "two.png", "--text", "mug", "--method", "saliency"], "method 'saliency'"),
        (["run/clip", "two.png", "--text", "mug", "--method", "negative"], "method negative"),
        (["run/clip", "two.png", "--text", "mug", "--layer", "0", "--method", "relevance"], "layer 0: only attention"),
        (["run/clip", "two.png", "--text", "mug", "--method", "positive", "--layer", "2"], "layer 2: expected"),
        (["run/clip", "two.png", "--text", "mug", "--out", "figure.svg"], "figure.svg: expected a file"),
        (["run/clip", "two.png", "--text", "mug", "--out", "figure"], "figure: expected a file that ends in .png"),
        (["run/clip", "two.png", "--text", "mug", "--out", "two.png"], "two.png: is one of the images"),
        (["run/clip", "none.png", "--text", "mug"], "none.png"),
        (
            ["run/clip", "broken.png", "--text", "mug"],
            "'broken.png'): give the file of an image, such as a PNG or a JPEG",
        ),
        (["run/clip", "two.png", "--text", "mug", "--method", ","], "method ',': expected at least one"),
        (["run/clip", "two.png", "--text", "mug", "--against", "nowhere"], "nowhere"),
        (["specimen:vit", "two.png", "--text", "mug"], "specimen:vit: look needs a CLIP"),
        (["run/clip", *["two.png"] * 61, "--text", "mug"], "61 rows"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(folder, models, run_cli, arguments, named):
    before = sorted(folder.iterdir())
    code, out, err = run_cli("look", *arguments, "-q")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert named in err
    assert sorted(folder.iterdir()) == before


def test_a_figure_that_cannot_be_drawn_leaves_the_old_one(folder, models, run_cli, monkeypatch):
    (folder / "look.png").write_bytes(b"old")
    monkeypatch.setattr("antiphase.files.json.dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_cli("look", "run/clip", "two.png", "--text", "mug", "-q")
    assert (folder / "look.png").read_bytes() == b"old"
    assert not (folder / "look.json").exists()


def test_the_scale_is_a_choice_that_the_stored_maps_keep(folder, models, run_cli):
    words = ("look", "run/diffclip", "one.png", "--text", "mug", "--scale")
    code, _, err = run_cli(*words, "each", "--out", "one-scale.png")
    assert code == 0, err
    assert json.loads((folder / "one-scale.json").read_text())["scale"] == "each"
    code, _, err = run_cli(*words, "own")
    assert (code, err.count("\n")) == (2, 1)
    assert "'own'" in err


def test_help(run_cli):
    code, out, _ = run_cli("look", "--help")
    assert code == 0
    assert "Examples" in out
    assert all(name in out for name in ("relevance-negative", "--against", "--scale"))


def test_a_folder_in_the_place_of_the_figure_is_refused_before_anything_is_written(folder, models, run_cli):
    (folder / "taken.png").mkdir()
    code, _, err = run_cli("look", "run/diffclip", "one.png", "--text", "mug", "--out", "taken.png", "-q")
    assert (code, err.count("\n")) == (2, 1)
    assert "taken.png: is a folder" in err
    assert not (folder / "taken.json").exists()
