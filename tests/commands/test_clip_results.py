"""Results of ``evaluate`` and ``look``, of small CLIPs."""

import io
import json
import shutil

import numpy as np
import polars as pl
import pytest
from PIL import Image

import antiphase as ap
from antiphase.errors import UserError
from antiphase.models import clip, diffclip, write_model
from tests.commands.test_evaluate import write_table

SMALL = {
    "vision": {"image_size": 32, "dim": 24, "depth": 1, "num_heads": 2, "patch_size": 16},
    "text": {"dim": 16, "depth": 1, "num_heads": 2},
    "embed_dim": 12,
}


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """A CLIP and a DiffCLIP as files."""
    folder = tmp_path_factory.mktemp("models")
    for kind, build in (("clip", clip), ("diffclip", diffclip)):
        write_model(build(seed=0, **SMALL), folder / kind)
    return str(folder / "clip"), str(folder / "diffclip")


def _other_captions(result):
    """The rows of an evaluation, but for one of retrieval."""
    rows, buffer = result.frame(), io.BytesIO()
    missing = (pl.col("task") == "retrieval") & (pl.col("unit") == pl.col("unit").max().over("task"))
    rows.filter(~missing).write_parquet(buffer)
    return buffer.getvalue()


def test_evaluations_are_compared_like_twins(specs, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path / "data"))
    table = write_table(tmp_path / "set")
    for number, image in enumerate(sorted((tmp_path / "set").rglob("*.jpg"))):
        place = tmp_path / "photos" / ("mug", "lamp")[number % 2] / image.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, place)
    data = f"{table},folder:{tmp_path / 'photos'}"
    options = {"tasks": "zero-shot,retrieval", "templates": "1", "data": data, "quiet": True}
    one, two = (ap.evaluate(spec, **options) for spec in specs)
    assert not (tmp_path / "data" / "features").exists()
    both = ap.evaluate(specs[0], against=specs[1], out=tmp_path / "both", **options)
    differences = one.compare(two)
    assert differences["difference"].to_list() == [row["difference"] for row in both.summary["differences"]]
    assert differences["low"].to_list() == [row["low"] for row in both.summary["differences"]]
    record = json.dumps({name: value for name, value in two.record.items() if name != "sha256"}).encode()
    other = type(two)("evaluate", two.files | {"rows.parquet": _other_captions(two), "run.json": record})
    compared = ap.compare(one, other)
    assert set(compared.frame()["task"]) == {"zero-shot"}
    assert any("not compared" in line and "retrieval" in line for line in compared.warnings)
    assert "R@5" in repr(one)
    assert "clip" in repr(both)
    assert one.plot().axes
    assert "zero-shot, %" in both._repr_html_()
    assert ap.open(tmp_path / "both").frame().equals(both.frame())
    with pytest.raises(UserError, match="evaluate takes the names of data sets"):
        ap.evaluate(specs[0], **{**options, "data": np.zeros(3)})


def test_maps_are_drawn_again_from_a_saved_result(specs, tmp_path):
    generator = np.random.default_rng(0)
    for name in ("one", "two"):
        Image.fromarray(generator.integers(0, 256, (32, 32, 3), np.uint8)).save(tmp_path / f"{name}.png")
    images = [tmp_path / "one.png", tmp_path / "two.png"]
    options = {"text": ["mug", "lamp"], "method": "relevance", "quiet": True}
    one, two = (ap.look(spec, images, **options) for spec in specs)
    assert repr(one) == "<antiphase look: Relevance of clip, for mug, lamp (images: 2)>"
    assert one.frame().shape == (2 * 2, 5)  # images, texts
    again = ap.open(one.save(tmp_path / "saved"))
    assert again.frame().equals(one.frame())
    assert again.plot()._repr_png_() == one.plot()._repr_png_()
    assert "Relevance of clip" in one._repr_html_()
    ap.look(specs[1], images[0], "mug", out=tmp_path / "figure.png", quiet=True)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.json").exists()
    with pytest.raises(UserError, match="got a run of antiphase look; expected two runs that measured"):
        two.compare(one)
