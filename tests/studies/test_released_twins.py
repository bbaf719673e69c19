"""Released twins: what timm's registry tells of them, whose weights are measured, and the page of made-up rows."""

import polars as pl
import pytest

from antiphase.errors import UserError
from antiphase.studies.cells import Given
from antiphase.studies.own import released_twins as study
from antiphase.studies.spec import profile


@pytest.mark.parametrize("name", ["dwee", "dpwee"])
def test_pairs_of_one_recipe_differ_in_nothing_that_the_registry_tells(name):
    note = study.note_of(study.TIMM[name])
    assert note.startswith(f"as its twin {study.TIMM[name][1]}: tag sbb_in1k, ")
    assert "256" in note


def test_the_pair_without_a_twin_is_warned_of():
    note = study.note_of(study.TIMM["dlittle"])
    assert "differ in more than their attention: tags of the weights sbb_nadamuon_in1k and sbb_in1k" in note
    assert "shape of reg_token differs" in note


def test_weights_that_timm_lacks_are_refused():
    with pytest.raises(UserError, match=r"no such weights; expected one of vit_wee_patch16_reg1_gap_256\.sbb_in1k"):
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
    assert study.settings(profile("smoke"))["weights"] == "random, on noise"
    assert study.settings(profile("paper"))["weights"] == "as released"


def made_up():
    """Rows of the pair of CLIPs, of which DiffCLIP is broken on 3 of 4 images and CLIP on 1; λ is 0.5 and 0.7."""
    rows = {"attack": [], "accuracy": [], "alignment": []}
    for series, broken in (("DiffCLIP", 3), ("CLIP", 1)):
        about = {"series": series, "training_seed": 0, "data": "imagenet"}
        kind = "differential" if series == "DiffCLIP" else "softmax"
        for sample in range(4):
            one = about | {"sample": sample, "cell": series}
            rows["accuracy"].append(one | {"label": 0, "prediction": 0})
            rows["attack"] += [
                one | {"attack": attack, "eps": eps, "success": sample < broken, "cell": series + attack}
                for attack in ("pgd", "autoattack")
                for eps in study.EPS
            ]
            parts = {
                "site": "pixels",
                "attention": kind,
                "head": 0,
                # of images of short gradients too: ⟨J1, J2⟩ is averaged before it is divided
                "first": (1.0, 3.0, 5.0, 7.0)[sample],
                "second": 1.0,
                "cross": (0.5, -0.5, -1.0, -3.0)[sample],
            }
            rows["alignment"] += [one | parts | {"layer": layer, "lam": 0.5 + 0.2 * layer} for layer in (0, 1)]
    return {table: pl.DataFrame(records) for table, records in rows.items()}


def test_rows_of_a_pair_are_drawn_and_checked():
    shown = study.draw(made_up())
    assert not shown.notes
    random = {table: frame.with_columns(data=pl.lit("random")) for table, frame in made_up().items()}
    assert study.draw(random).notes[0].startswith("Weights and images are random")
    panels = {panel.title: panel.points for panel in shown.plots[0].panels}
    assert panels.keys() == {"diffclip, pgd", "diffclip, autoattack"}
    assert set(panels["diffclip, pgd"].filter(series="DiffCLIP")["value"]) == {0.75}
    tables = {table.name: table.cells for table in shown.tables}
    assert tables["lam"]["value"].to_list() == pytest.approx([0.5, 0.7])
    assert tables["cosine"]["value"].to_list() == pytest.approx([-0.5, -0.5])
    assert tables["accuracy"]["value"].to_list() == [1.0, 1.0]
    decisive = [check for check in study.checks(made_up())["diffclip-fragile"] if check.decides]
    assert [check.estimate.value for check in decisive] == pytest.approx([0.5, 0.5])
