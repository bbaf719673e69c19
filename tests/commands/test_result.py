"""Results of the Python functions: what the commands compute, held in memory, shown, compared, saved and opened."""

import json
import os
import re
import tempfile

import numpy as np
import polars as pl
import pytest
import torch
from scipy import stats
from torch import nn

import antiphase as ap
from antiphase.commands import COMMANDS, find_command
from antiphase.commands.result import Result
from antiphase.errors import UserError

FAST = {"limit": 5, "eps": "4/255,8/255", "attack": "fgsm", "sense_limit": 0, "quiet": True}
SENSED = {"limit": 4, "probes": 4, "parts": "alignment", "quiet": True}
CERTIFIED = {"sigma": 0.05, "samples": 40, "limit": 5, "quiet": True}


@pytest.fixture(scope="module")
def audited():
    return ap.audit("specimen:diffvit-0", against="specimen:vit-0", **FAST)


@pytest.fixture(scope="module")
def others():
    """Two models as one result: what ``audited`` is compared with."""
    return ap.attack("specimen:vit-1,specimen:diffvit-1", **{**FAST, "sense_limit": 0})


def test_a_call_without_out_leaves_nothing_on_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = ap.audit("specimen:vit-0", **FAST)
    assert os.listdir(tmp_path) == []
    assert result.directory is None
    assert str(tmp_path) not in result.files["run.json"].decode()
    assert result.frame().shape == (10, 16)
    with pytest.raises(UserError):
        ap.audit("specimen:vit-0", data="nothing", **FAST)
    assert os.listdir(tmp_path) == []


def test_an_audit_in_one_line_a_picture_and_tables(audited):
    assert repr(audited) == f"<antiphase audit: {audited.headlines()[0].line}>"
    assert repr(audited).endswith("at ε = 4/255 (5 images, L∞ FGSM)>")
    assert audited.plot().axes[0].get_ylabel() == "Attack success rate (%)"
    assert audited.plot()._repr_png_().startswith(b"\x89PNG")
    page = audited._repr_html_()
    assert page.count("<table>") == 2
    assert "data:image/svg+xml;base64," in page
    assert re.search(r"<script|<link|https?://", page) is None
    with pytest.raises(UserError, match="table 'row': expected one of rows"):
        audited.frame("row")


def test_a_saved_result_opens_as_it_was(audited, tmp_path):
    folder = audited.save(tmp_path / "run")
    again = ap.open(folder)
    assert (repr(again), again.summary, again.record) == (repr(audited), audited.summary, audited.record)
    assert again.frame().equals(audited.frame())
    assert (folder / "report.html").exists()
    assert again.directory == folder
    with pytest.raises(UserError, match="holds a run of antiphase audit"):
        ap.sense("specimen:diffvit-0", out=folder, **SENSED)


def test_the_directory_of_a_command_opens(run_cli, tmp_path, audited):
    out = tmp_path / "run"
    arguments = ("--limit", 5, "--eps", "4/255,8/255", "--attack", "fgsm", "--sense-limit", 0, "--out", out, "-q")
    assert run_cli("audit", "specimen:diffvit-0", "--against", "specimen:vit-0", *arguments)[0] == 0
    assert ap.open(out).frame().equals(audited.frame())
    assert ap.open(out).summary == audited.summary


def test_differences_of_asr_are_paired_in_order(audited, others):
    differences = audited.compare(others).filter(metric="asr")
    assert differences.select("model", "against").unique(maintain_order=True).rows() == [
        ("diffvit-0", "vit-1"),
        ("vit-0", "diffvit-1"),
    ]
    for row in differences.iter_rows(named=True):
        one, two = (
            result.frame().filter(model=name, eps=row["eps"])["success"].mean()
            for result, name in ((audited, row["model"]), (others, row["against"]))
        )
        assert row["difference"] == pytest.approx(one - two)
        assert row["low"] <= row["difference"] <= row["high"]
    same = audited.compare(audited)
    assert same["against"].unique(maintain_order=True).to_list() == ["diffvit-0 (other)", "vit-0 (other)"]
    assert set(same["difference"]) == {0.0}


def test_rows_whose_bits_flipped_are_refused(audited, tmp_path):
    out = audited.save(tmp_path / "out")
    content = bytearray((out / "rows.parquet").read_bytes())
    content[100] ^= 1
    (out / "rows.parquet").write_bytes(content)
    with pytest.raises(UserError, match=f"{out}/rows.parquet: cannot be read .it is damaged: its SHA-256 differs"):
        ap.open(out).frame()


def test_what_cannot_be_compared_is_one_line(audited):
    sensed = ap.sense("specimen:diffvit-0", **SENSED)
    single = ap.audit("specimen:vit-1", **FAST)
    digits = ap.audit(Net(), against=Net(), data=ap.load_data("digits", limit=5), **FAST)
    for other, line in (
        (sensed, "got AuditResult and SenseResult; expected two results of the same kind"),
        (single, "2 models and 1, none of the same name; expected as many in both results"),
        (digits, "different images, specimen-fashion-mnist and digits; expected the same data"),
        ("audit", "got AuditResult and str; expected two"),
    ):
        with pytest.raises(UserError, match=line):
            audited.compare(other)


def test_differences_of_alignment_are_over_the_samples():
    one, two = (ap.sense(f"specimen:diffvit-{seed}", **SENSED) for seed in (0, 1))
    differences = one.compare(two)
    values = [
        {(row["site"], row["layer"], row["metric"]): row["value"] for row in result.summary["alignment"]}
        for result in (one, two)
    ]
    assert len(differences) > 10
    for row in differences.iter_rows(named=True):
        place = (row["site"], row["layer"], row["metric"])
        assert row["difference"] == pytest.approx(values[0][place] - values[1][place], abs=1e-12)
    # a share is a mean, so that the jackknife is the paired t interval
    row = differences.filter(site="pixels", metric="below").row(0, named=True)
    by_sample = [
        result.frame()
        .filter(site="pixels", layer=row["layer"])
        .group_by("sample")
        .agg((pl.col("cross") < 0).mean())
        .sort("sample")["cross"]
        .to_numpy()
        for result in (one, two)
    ]
    apart = by_sample[0] - by_sample[1]
    half = stats.t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / np.sqrt(len(apart))
    assert (row["low"], row["high"]) == pytest.approx((apart.mean() - half, apart.mean() + half))
    assert "Undecided whether A1 and A2 oppose in" in repr(one)
    assert one.plot().axes
    assert "Alignment at the pixels" in one._repr_html_()


def test_certificates_are_compared_radius_by_radius():
    one, two = (ap.certify(f"specimen:diffvit-{seed}", **CERTIFIED) for seed in (0, 1))
    differences = one.compare(two)
    frames = [result.frame().with_columns(right=pl.col("prediction") == pl.col("label")) for result in (one, two)]
    assert len(differences) > 2
    for row in differences.iter_rows(named=True):
        accuracies = [(frame["right"] & (frame["radius"] >= row["radius"])).mean() for frame in frames]
        assert row["difference"] == pytest.approx(accuracies[0] - accuracies[1])
    assert "smoothed with σ = 0.05" in repr(one)
    assert "Certified accuracy" in one._repr_html_()
    wider = ap.certify("specimen:diffvit-1", **{**CERTIFIED, "sigma": 0.1})
    both = one.compare(wider)
    assert {0.025, 0.05} <= set(both["radius"])
    for row in both.iter_rows(named=True):
        accuracies = [
            ((rows["prediction"] == rows["label"]) & (rows["radius"] >= row["radius"])).mean()
            for rows in (one.frame(), wider.frame())
        ]
        assert row["difference"] == pytest.approx(accuracies[0] - accuracies[1])


def test_a_training_without_out_has_the_weights_of_one_with_it(tmp_path):
    options = {"epochs": 1, "limit": 64, "depth": 1, "dim": 16, "heads": 2, "patch_size": 4, "quiet": True}
    training = ap.train("diffvit", "digits", **options)
    stored = ap.train("diffvit", "digits", out=tmp_path / "a", **options)
    assert "model.safetensors" not in stored.files
    for result, name in ((training, "b"), (ap.open(tmp_path / "a"), "c")):
        saved = result.save(tmp_path / name)
        assert (saved / "model.safetensors").read_bytes() == (tmp_path / "a" / "model.safetensors").read_bytes()
    assert ap.load_model(str(tmp_path / "b")).card.attention == "differential"
    assert training.frame()["epoch"].to_list() == [1]
    assert re.fullmatch(r"<antiphase train: loss [\d.]+, accuracy [\d.]+ after 1 epoch>", repr(training))
    assert len(training.plot().axes) == 2
    assert "accuracy" in training._repr_html_()


def test_a_study_is_held_as_packed_rows(tmp_path):
    study = ap.study("figure-2a", profile="smoke", quiet=True)
    stored = ap.study("figure-2a", profile="smoke", store=tmp_path / "store", quiet=True)
    assert study.directory is None
    opened = [ap.open(tmp_path / "store"), ap.open(study.save(tmp_path / "saved"))]
    shown = "<antiphase study run: figure-2a under profile smoke: 8 of 8 cells; claims: not judged (smoke) 1>"
    assert [repr(result) for result in (study, stored, *opened)] == [shown] * 4
    rows = study.frame("attack-pgd")
    assert all(result.frame("attack-pgd").equals(rows) for result in opened)
    assert study.frame()["claim"].unique().to_list() == ["fragile-at-depth-1"]
    assert study.plot().axes
    assert "Understanding Sensitivity" in study._repr_html_()
    assert (tmp_path / "saved" / "index.html").exists()
    (tmp_path / "saved" / "study.json").unlink()  # as antiphase study pack leaves it
    assert repr(ap.open(tmp_path / "saved")) == shown


class Net(nn.Module):
    """A model that says nothing of itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10, bias=False)
        nn.init.eye_(self.linear.weight)
        self.dropout = nn.Dropout(0.5)

    def forward(self, images):
        return self.linear(self.dropout(images.flatten(1)))


def test_a_module_and_images_as_objects_are_audited_like_specifications():
    images = ap.load_data("specimen-fashion-mnist")
    given = ap.audit(ap.load_model("specimen:vit-0"), data=images, **FAST)
    named = ap.audit("specimen:vit-0", **FAST)
    assert given.frame().equals(named.frame())
    assert given.record["models"] == named.record["models"]


def test_a_module_without_a_card_is_left_as_it_was():
    images, net = ap.load_data("digits", limit=20), Net().train()
    result = ap.audit(net, against=Net(), data=images, **FAST)
    assert result.frame()["model"].unique(maintain_order=True).to_list() == ["Net", "Net-2"]
    assert net.training
    assert net.dropout.training
    assert not hasattr(net, "card")
    assert result.frame().equals(ap.audit(net, against=Net(), data=images, **FAST).frame())  # dropout was off
    with torch.no_grad():
        clean = net.eval()(images.subset(5, 0).images(range(5))).argmax(1)
    assert result.frame().filter(model="Net", eps=4 / 255)["clean_prediction"].to_list() == clean.tolist()


@pytest.mark.parametrize(
    ("model", "options", "line"),
    [
        (Net(), {}, "model Net: says nothing of its images; give data=, as the name of a source or as images"),
        (Net(), {"data": "specimen"}, "model Net: fails on an image of specimen-fashion-mnist of shape (1, 28, 28)"),
        (nn.Flatten(0), {"data": "digits"}, "model Flatten: returns (64,) for one image; expected logits"),
        (3, {}, "model: got a int; expected a specification, a training or a torch.nn.Module"),
        ("specimen:vit-0", {"epsilon": 1}, "option 'epsilon': expected one of model, data, split"),
        ("given:Net", {"data": "digits"}, "given:Net: was an object of another Python session"),
    ],
)
def test_what_cannot_be_used_is_one_line(model, options, line):
    names = {"specimen": "specimen-fashion-mnist", "digits": "digits"}
    if "data" in options:
        options = {"data": ap.load_data(names[options["data"]], limit=2)}
    with pytest.raises(UserError) as caught:
        ap.audit(model, quiet=True, **options)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_opened_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        ap.open(tmp_path / "nowhere")
    with pytest.raises(
        UserError, match="holds no run that is known; expected a directory written by antiphase quickstart, audit"
    ):
        ap.open(tmp_path)
    (tmp_path / ".antiphase").write_text("audit\n")
    with pytest.raises(UserError, match=r"has no rows.parquet; the run is not finished"):
        ap.open(tmp_path)


def test_processes_of_torchrun_need_a_directory_that_they_share(monkeypatch):
    monkeypatch.setattr("antiphase.commands.python.this_process", lambda: type("Two", (), {"count": 2})())
    with pytest.raises(UserError, match="out: is missing; expected a directory that all processes"):
        ap.audit("specimen:vit-0", **FAST)


@pytest.mark.parametrize("name", [*(name for name in COMMANDS if name != "study"), "study run"])
def test_every_command_is_there_with_its_result(name):
    command = find_command(name)
    if command.result:
        assert issubclass(command.result_type(), Result)


def test_the_package_lists_its_functions():
    assert {"audit", "attack", "sense", "certify", "evaluate", "look", "train", "study", "open"} <= set(dir(ap))
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", ap.__version__)
    assert [name for name in dir(ap) if getattr(ap, name, None) is None] == []


def test_what_is_saved_over_another_result_is_alone(tmp_path, audited):
    sensed = ap.audit("specimen:diffvit-1", **{**FAST, "sense_limit": 2})
    sensed.save(tmp_path / "run")
    assert (tmp_path / "run" / "alignment.parquet").exists()
    audited.save(tmp_path / "run")
    again = ap.open(tmp_path / "run")
    assert set(again.files) - {"card.json"} == set(audited.files) - {"card.json"}
    assert again.table_names == audited.table_names
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    card["models"][0] |= {"venue": "ICLR 2026"}
    (tmp_path / "run" / "card.json").write_text(json.dumps(card))
    audited.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "card.json").read_text())["models"][0]["venue"] == "ICLR 2026"


def test_the_json_of_an_audit_has_its_warnings(tmp_path, run_cli):
    words = ("--limit", "5", "--attack", "fgsm", "--sense-limit", "0", "--json", "-q", "--out", tmp_path)
    code, out, _ = run_cli("audit", "specimen:vit-0", "--against", "specimen:diffvit-1", *words)
    assert code == 0
    assert json.loads(out)["warnings"] == json.loads((tmp_path / "run.json").read_text())["warnings"]
