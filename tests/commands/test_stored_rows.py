"""Files of a run that cannot be read end in one line that names them."""

import numpy as np
import polars as pl
import pytest

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
