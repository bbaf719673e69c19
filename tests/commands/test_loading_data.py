"""Options of models and images that are loaded for a command."""

import pytest
import torch
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
    result = ap.attack("specimen:vit-0", data=images, attack="noise", eps="1/255", skip_bad=True, quiet=True)
    assert result.frame()["sample"].to_list() == [1]


@pytest.mark.parametrize("option", [{"split": "train"}, {"image_size": 14}, {"resize": "squash"}])
@pytest.mark.parametrize("command", [ap.attack, ap.train])
def test_options_that_images_in_memory_do_not_have_are_refused(command, option):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    with pytest.raises(ap.UserError, match=r"split|not \(1, 14, 14\)|resize squash"):
        command(net, data=ap.load_data("specimen-fashion-mnist", limit=4), quiet=True, **option)
