"""Released twins: what timm's registry tells of them, whose weights are measured, and the page of made-up rows."""

import polars as pl
import pytest

from antiphase.errors import UserError
from antiphase.studies.cells import Given
from antiphase.studies.context import Lab
from antiphase.studies.own import released_twins as study
from antiphase.studies.run import run_cells
from antiphase.studies.spec import profile
from antiphase.studies.store import Store


@pytest.mark.parametrize("name", ["dwee", "dpwee"])
def test_pairs_of_one_recipe_differ_in_nothing_that_the_registry_tells(name):
    assert study.note_of(study.TIMM[name]).endswith("tag sbb_in1k, input 3×256×256, preprocessing, shapes")


def test_the_pair_without_a_twin_is_warned_of():
    note = study.note_of(study.TIMM["dlittle"])
    assert "differ in more than their attention: tags of the weights sbb_nadamuon_in1k and sbb_in1k" in note
    assert "shape of reg_token differs" in note


def test_weights_that_timm_lacks_are_refused():
    with pytest.raises(
        UserError, match=r"no such weights; expected one of vit_wee_patch16_reg1_gap_256\.sbb_in1k"
    ):
        study.card_of_name("vit_wee_patch16_reg1_gap_256.sbb_nadamuon_in1k")


def test_weights_below_the_data_folder_replace_those_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path))
    (tmp_path / "released-twins").mkdir()
    file = tmp_path / "released-twins" / f"{study.TIMM['dwee'][1]}.safetensors"
    file.touch()
    specs = [model.spec for model in study.models(profile("paper"))]
    assert specs[:2] == [f"timm:{study.TIMM['dwee'][0]}", f"timm:{study.TIMM['dwee'][1]}@{file}"]
    assert [spec.partition(":")[0] for spec in specs] == ["timm"] * 6 + ["diffclip"] * 2


def test_a_smoke_run_has_random_weights_and_its_page_says_so():
    models = study.models(profile("smoke"))
    assert all(model.random_weights for model in models if isinstance(model, Given))
    assert study.settings(profile("smoke"))["weights"].startswith("random, on noise")
    assert study.settings(profile("paper"))["weights"] == "as released"


@pytest.mark.filterwarnings("ignore:class names")  # of noise
def test_rows_of_a_pair_are_drawn_and_checked(tmp_path):
    cells = study.cells(profile("smoke"))
    cells = [cell for cell in cells if cell.model.factors()["series"] in study.PAIRS["diffclip"]]
    store = Store(tmp_path)
    run_cells(cells, Lab(store, progress=False), lambda _: None)
    rows = {}
    for cell in cells:
        frame = store.rows(cell)
        rows[cell.table] = (
            pl.concat([rows[cell.table], frame], how="diagonal") if cell.table in rows else frame
        )
    shown = study.draw(rows)
    assert {panel.title for panel in shown.plots[0].panels} == {"diffclip, pgd", "diffclip, autoattack"}
    assert {"lam", "cosine", "accuracy"} < {table.name for table in shown.tables}
    decisive = [check for check in study.checks(rows)["diffclip-fragile"] if check.decides]
    assert all(check.estimate is not None for check in decisive)
    assert len(decisive) == 2
