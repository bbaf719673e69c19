"""Files of a run that cannot be read end in one line that names them."""

import os

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from torch import nn

import antiphase as ap
from antiphase.commands.audit.run import _read
from antiphase.commands.result import read_result
from antiphase.errors import UserError


def test_a_damaged_image_that_was_kept_is_named(tmp_path):
    path = tmp_path / "3.npy"
    np.save(path, np.zeros((1, 4, 4)))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match=r"3\.npy: cannot be read"):
        _read(str(path))


def test_rows_of_sense_that_lack_a_column_are_named(tmp_path, run_cli):
    out = tmp_path / "sense"
    words = ("--limit", 2, "--parts", "alignment", "--probes", 2, "--quiet", "--out", out)
    assert run_cli("sense", "specimen:vit-0", *words)[0] == 0
    pl.read_parquet(out / "alignment.parquet").drop("cross").write_parquet(out / "alignment.parquet")
    with pytest.raises(UserError, match=r"alignment\.parquet"):
        read_result(out, "sense").sections()


def test_rows_of_images_that_have_changed_are_measured_again(tmp_path):
    for label, value in (("a", 0), ("b", 255)):
        (tmp_path / "images" / label).mkdir(parents=True)
        Image.new("L", (28, 28), value).save(tmp_path / "images" / label / "0.bmp")
    options = {"data": f"folder:{tmp_path / 'images'}", "attack": "noise", "eps": "1/255", "out": tmp_path / "out"}
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    model[2].weight.data[:] = torch.tensor([[0.0], [1.0]])
    model[2].bias.data[:] = torch.tensor([1.5, 0.0])  # class 1 is bright
    first = ap.attack(model, **options).frame()
    for label, value in (("a", 255), ("b", 0)):
        path = tmp_path / "images" / label / "0.bmp"
        Image.new("L", (28, 28), value).save(path)
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    again = ap.attack(model, **options).frame()
    assert first["clean_prediction"].to_list() == again["clean_prediction"].to_list()[::-1]
