"""Several attacks in one audit, conditions on robust accuracy, and what is said of the time."""

import json
import os
import time
from datetime import datetime

import numpy as np
import polars as pl
import pytest
import torch

import antiphase as ap
from antiphase.attacks import Threat, pgd, square, sweep
from antiphase.attacks.catalogue import find_attack, most_passes
from antiphase.commands.audit import AuditOptions
from antiphase.commands.audit.run import KeptImages, measure, passes_left, shown_samples, with_images
from antiphase.commands.run_folder import CLOCK, finished, run_folder
from antiphase.data.images import ArrayImages
from antiphase.errors import UserError
from antiphase.models import vit
from antiphase.models.card import ModelCard, with_card
from antiphase.models.checkpoints import save
from antiphase.processes import Process
from antiphase.report.gallery import read_gallery
from tests.attacks import toys
from tests.commands.audits import attack_options, audit, audited

EPS = (0.01, 0.02, 0.03)
COUNT = 23


def _model(seed):
    return with_card(toys.network(seed=seed), ModelCard(f"toy-{seed}", "toy", "softmax", seed, (3, 7, 5), 5))


@pytest.fixture
def data():
    pixels = toys.images(COUNT, seed=2)
    labels = _model(2)(pixels).argmax(1)
    labels[::5] = (labels[::5] + 1) % 5  # some are wrong before the attack
    ids = torch.arange(COUNT) * 3 + 100
    return ArrayImages(name="toy", split="test", class_names=tuple("abcde"), ids=ids, labels=labels, pixels=pixels)


def test_the_worst_case_counts_an_image_as_broken_if_any_attack_breaks_it(tmp_path, data):
    plan = attack_options(EPS, attack=["pgd", "square"], steps=2, queries=30, control=True)
    audit([_model(2)], [_model(4)], data, plan, tmp_path)
    rows = pl.read_parquet(tmp_path / "rows.parquet")
    worst = "worst of pgd, square"
    assert rows["attack"].unique(maintain_order=True).to_list() == [worst, "pgd", "square", "noise"]
    images = data.images(range(COUNT))
    for seed in (2, 4):
        hits = {}
        for name, attack, settings in (("pgd", pgd, {"steps": 2}), ("square", square, {"queries": 30})):
            results = sweep(attack, _model(seed), images, None, Threat(), EPS, settings=settings, ids=data.ids)
            hits[name] = np.array([result.success.numpy() for result in results])
        part = rows.filter(model=f"toy-{seed}").sort("eps", "sample", maintain_order=True)
        broken = part.filter(attack=worst)
        assert broken["success"].to_list() == (hits["pgd"] | hits["square"]).flatten().tolist()
        first = np.where(hits["pgd"], "pgd", np.where(hits["square"], "square", "")).flatten().tolist()
        assert broken["felled_by"].fill_null("").to_list() == first
        forwards = [part.filter(attack=name)["forwards"].to_numpy() for name in ("pgd", "square")]
        assert broken["forwards"].to_list() == sum(forwards).tolist()
    assert 0 < hits["pgd"].mean() != hits["square"].mean()
    result = audited(tmp_path)
    (table,) = result.rate_tables("asr")
    assert [row[0].text for row in table.rows[:4]] == [
        f"toy-2, {name}" for name in ("worst case", "PGD", "Square", "Noise")
    ]
    assert "worst of PGD, Square" in result.headlines()[0].condition
    result.write_report(tmp_path)
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["attack"]["name"] == "pgd,square"
    assert {rates["attack"] for rates in card["models"][0]["rates"]} == {worst, "pgd", "square", "noise"}


def test_settings_go_to_the_attacks_that_have_them():
    plan = attack_options(EPS, attack="pgd,autoattack", steps=3, queries=9, settings={"momentum": "0.5"})
    one, two = (options.ensemble for options in plan.each_attack())
    assert one.stages[0].settings == {"steps": 3, "momentum": 0.5}
    assert [stage.settings.get("queries") for stage in two.stages] == [None, None, None, 9]
    with pytest.raises(UserError, match="none of them has a setting 'width'"):
        attack_options(EPS, attack="pgd,square", width=3).each_attack()


@pytest.mark.parametrize("attack", ["pgd,pgd", "pgd,pdg", ",", ""])
def test_attacks_that_cannot_be_run_are_refused(attack):
    with pytest.raises(UserError, match=r"^attack "):
        attack_options(EPS, attack=attack)


@pytest.mark.parametrize("nested", ["up", "down", "off"])
@pytest.mark.parametrize(("attack", "settings"), [("pgd", {"steps": 3}), ("autoattack", {"steps": 3, "queries": 9})])
def test_kept_images_are_those_of_the_attack(tmp_path, data, attack, settings, nested):
    plan = attack_options(EPS, attack=attack, settings=settings, nested=nested)
    model = _model(2)
    for _ in range(2):  # attacked, then read from disk
        kept = KeptImages(EPS[1], frozenset(data.ids.tolist()))
        rows, _ = measure("m", model, data, plan, tmp_path, process=Process(), kept=kept)
        images = data.images(range(COUNT))
        expected = sweep(plan.ensemble, model, images, None, Threat(), EPS, nested=nested, ids=data.ids)[1]
        by_sample = dict(zip(data.ids.tolist(), expected.adversarial.numpy(), strict=True))
        robust = set(expected.ids[~expected.success].tolist())
        missing = set(by_sample) - {sample for *_, sample in kept.files}
        assert missing <= (robust if nested == "down" else set())  # those that a larger ε left robust
        for (name, told, sample), path in kept.files.items():
            assert (name, told) == ("m", attack)
            assert np.array_equal(np.load(path), by_sample[sample])
        pictures = with_images(rows, ["m"], attack, kept)
        assert len(pictures) == len(kept.files)
        chosen = pictures.filter(pl.col("sample").is_in(shown_samples(pictures)))
        assert (chosen["label"] == chosen["clean_prediction"]).all()
        assert chosen["success"].any()


def test_a_killed_audit_has_the_gallery_of_one_that_was_not(tmp_path, data, monkeypatch):
    plan = attack_options(EPS, attack="pgd,square", steps=2, queries=30, batch_size=4)
    audit([_model(2)], [], data, plan, tmp_path / "whole")
    killed, write = tmp_path / "killed", np.save
    count = iter(range(100))

    def save(file, array):
        if next(count) == 5:
            raise KeyboardInterrupt
        write(file, array)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", save)
        with pytest.raises(KeyboardInterrupt):
            audit([_model(2)], [], data, plan, killed)
    audit([_model(2)], [], data, plan, killed)
    one, two = (read_gallery((out / "gallery.safetensors").read_bytes()) for out in (tmp_path / "whole", killed))
    assert one.sample.tolist() == two.sample.tolist()
    assert np.array_equal(one.adversarial[0], two.adversarial[0])


def test_rows_name_the_file(tmp_path, run_cli):
    from PIL import Image

    for index, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(2):
            Image.new("L", (8, 8), 90 * i + 10 * index).save(tmp_path / "photos" / name / f"{i}.png")
    model = vit(8, num_classes=2)
    save(model, {"model": model.config.model_dump(mode="json"), "seed": 0, "data": "digits"}, tmp_path / "m")
    code, out, err = run_cli(
        *("attack", tmp_path / "m", "--data", f"folder:{tmp_path / 'photos'}"),
        *("--attack", "fgsm", "--eps", "1/255", "--limit", 3, "--out", tmp_path / "o", "--quiet"),
    )
    assert code == 0, err
    rows = pl.read_parquet(tmp_path / "o" / "rows.parquet")
    assert rows.columns[rows.columns.index("sample") + 1] == "file"
    files = ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]
    assert rows["file"].to_list() == [files[sample] for sample in rows["sample"]]
    assert out.index("Robust accuracy") < out.index("changes")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("robust 40", "expected 'robust 40% @ 1/255'"),
        ("robust 140% @ 1/255", "at most 100%"),
        ("robust 40% @ 3/255", "this ε is not attacked; expected one of 1/255, 4/255"),
        ("robust 40% @ 1/0", "this ε is not attacked"),
        ("robust 40%", "does not say at which ε"),
        ("asr 40% @ 1/255", "expected 'robust"),
    ],
)
def test_a_condition_that_is_not_understood_is_refused_before_anything_runs(text, named):
    with pytest.raises(UserError, match=r"^fail-under ") as error:
        AuditOptions(model=("m",), eps="1/255,4/255", fail_under=text)
    assert named in str(error.value)


@pytest.mark.long
def test_a_robust_accuracy_that_is_too_low_ends_with_code_1_and_one_line(tmp_path, run_cli):
    command = ("attack", "specimen:vit-0", "--attack", "fgsm", "--eps", "1/255,8/255", "--limit", 40)
    command += ("--quiet", "--out", tmp_path)
    code, _, err = run_cli(*command, "--fail-under", "robust 5% @ 1/255", "--json")
    assert (code, err.count("antiphase:")) == (0, 0)
    summary = json.loads((tmp_path / "summary.json").read_text())
    (rate,) = (row for row in summary["results"] if row["metric"] == "robust_accuracy" and row["eps"] == 1 / 255)
    between = f"{100 * (rate['low'] + rate['value']) / 2:.2f}%"
    for condition, expected in ((f"robust {between} @ 1/255", 0), (f"robust low {between} @ 1/255", 1)):
        code, out, err = run_cli(*command, "--fail-under", condition, "--fail-under", "robust 0% @ 8/255")
        assert code == expected
        lines = [line for line in err.splitlines() if line.startswith("antiphase:")]
        assert len(lines) == expected
        assert "report:" in out
    assert condition in lines[0]
    code, out, _ = run_cli(*command, "--fail-under", condition, "--json")
    answer = json.loads(out)
    assert (code, len(answer["unmet"])) == (1, 1)
    assert "vit-0 has" in answer["unmet"][0]
    assert answer["unmet"][0].count("[") == 1


def test_passes_left_count_what_is_not_on_disk(tmp_path, data):
    plan = attack_options(EPS, attack="pgd", steps=7)
    model = _model(2)
    assert passes_left("m", model, data, plan, tmp_path, 5) == (3 * COUNT * 7, 3 * COUNT * 7)
    rows, _ = measure("m", model, data, plan.model_copy(update={"eps": EPS[:1]}), tmp_path, process=Process())
    robust = COUNT - int(rows["success"].sum())
    assert 0 < robust < COUNT
    assert passes_left("m", model, data, plan, tmp_path, 5) == (2 * robust * 7, 2 * robust * 7)
    measure("m", model, data, plan, tmp_path, process=Process())
    assert passes_left("m", model, data, plan, tmp_path, 5) == (0, 0)


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        ("pgd", {"steps": 4, "restarts": 2}),
        ("apgd-t", {"steps": 4, "targets": 3}),
        ("fab", {"steps": 4}),
        ("square", {"queries": 30}),
    ],
)
def test_no_attack_takes_many_more_passes_than_said(data, attack, settings):
    ensemble = find_attack(attack, **settings)
    stage = ensemble.stages[0]
    forwards, backwards = most_passes(stage, 5)
    images = data.images(range(COUNT))
    result = stage.attack(_model(2), images, None, Threat(eps=1e-4), **stage.settings)
    taken = result.forwards[~result.success].max(), result.backwards[~result.success].max()
    assert 0.6 * forwards <= taken[0] <= 1.5 * forwards + 10
    assert 0.6 * backwards <= taken[1] <= 1.3 * backwards + 6


def test_the_time_before_a_kill_counts_with_the_same_options_only(tmp_path):
    options, out = attack_options(EPS), tmp_path / "run"

    def kill(chosen, file):
        with run_folder(out, "audit", chosen):
            assert finished(out, time.monotonic())["seconds"] < 5
            (out / file).write_text("kept")
            os.utime(out / file, (time.time() + 30, time.time() + 30))
            raise KeyboardInterrupt

    for chosen, file in ((attack_options(EPS[:1]), "one"), (options, "two")):
        with pytest.raises(KeyboardInterrupt):
            kill(chosen, file)
    with run_folder(out, "audit", options.model_copy(update={"batch_size": 3})):
        end = finished(out, time.monotonic() - 7)
        assert end["seconds"] == pytest.approx(37, abs=5)
        assert datetime.fromisoformat(end["date"]).timestamp() == pytest.approx(time.time(), abs=5)
    assert finished(out, time.monotonic())["seconds"] < 5
    assert not (out / CLOCK).exists()


def test_a_control_that_is_named_first_is_no_worst_case(tmp_path, data):
    plan = attack_options((0.02,), attack="noise,pgd", steps=2, fail_under=("robust 1% @ 0.02",))
    assert plan.names == ["pgd", "noise"]
    audit([_model(2)], [], data, plan, tmp_path)
    assert pl.read_parquet(tmp_path / "rows.parquet")["attack"].unique(maintain_order=True).to_list() == [
        "pgd",
        "noise",
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"norm": "l1", "attack": ["apgd-ce", "pgd"]}, "norm 'l1': PGD knows"),
        ({"norm": "l1", "attack": "apgd-ce", "control": True}, "norm 'l1': noise knows"),
        ({"norm": "l0", "attack": "autoattack"}, "norm 'l0': APGD knows"),
        ({"attack": ["square", "patch"], "width": 40}, "patch width 40: "),
    ],
)
def test_what_a_later_attack_does_not_know_is_refused_before_the_first(tmp_path, data, options, told):
    model, images = _model(0), []
    model.register_forward_pre_hook(lambda module, inputs: images.append(len(inputs[0])))
    with pytest.raises(UserError, match=told):
        ap.audit(model, data=data, eps=1.0, steps=2, out=tmp_path / "out", sense_limit=0, quiet=True, **options)
    assert sum(images) < COUNT  # those that attention is looked for with
