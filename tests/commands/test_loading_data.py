"""Options of models and images that are loaded for a command."""

import pytest
from PIL import Image

import antiphase as ap


@pytest.mark.parametrize(
    "command",
    [
        ("attack", "specimen:vit-0", "--attack", "noise", "--eps", "1/255"),
        ("audit", "specimen:vit-0", "--eps", "1/255", "--steps", 1),
        ("evaluate", "specimen:vit-0", "--tasks", "probe"),
    ],
)
def test_skip_bad_needs_files(run_cli, tmp_path, command):
    options = ("--data", "specimen-fashion-mnist", "--skip-bad", "--out", tmp_path / "out", "-q")
    code, _, err = run_cli(*command, *options)
    assert (code, err.count("\n")) == (2, 1)
    assert "--skip-bad" in err


def test_skip_bad_is_for_given_image_files_too(tmp_path):
    (tmp_path / "Coat").mkdir()
    Image.new("L", (28, 28)).save(tmp_path / "Coat" / "good.png")
    (tmp_path / "Coat" / "bad.png").write_bytes(b"no image")
    images = ap.load_data(f"folder:{tmp_path}", image_size=28, channels=1)
    found = ap.attack("specimen:vit-0", data=images, attack="noise", eps="1/255", skip_bad=True, quiet=True)
    assert found.frame()["sample"].to_list() == [1]
