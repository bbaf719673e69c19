"""Attacks as a user runs them: any attack, nested ε, a kill, two processes, and warnings that last."""

import json
import time
import weakref

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from antiphase import store
from antiphase.attacks import Threat, autoattack, carlini_wagner, catalogue, eps_at, pgd, sweep
from antiphase.attacks.autoattack import autoattack_ensemble
from antiphase.attacks.other_libraries import run_foreign
from antiphase.commands.audit import AttackOptions, AuditOptions
from antiphase.commands.audit.run import measure, say_time
from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import diffvit, load_model, vit
from antiphase.models.checkpoints import save
from antiphase.processes import Process
from antiphase.registry import ATTACKS
from tests.commands.audits import attack_options
from tests.processes import Python, python, together

QUICK = {"steps": 4, "queries": 12, "targets": 2}


def _run(directory, factory):
    model = factory(8)
    save(model, {"model": model.config.model_dump(mode="json"), "seed": 0, "data": "digits"}, directory)
    return directory


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    return load_model(str(_run(tmp_path_factory.mktemp("victim") / "diffvit", diffvit)))


def test_default_budgets_of_other_norms_depend_on_the_image_size(tmp_path, run_cli):
    small = AuditOptions(model=("x",), norm="l2").for_images((1, 28, 28))
    assert small.eps == pytest.approx((1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2))
    assert AttackOptions(model=("x",), norm="l1").for_images((3, 32, 32)).eps == (12.0,)
    assert AttackOptions(model=("x",), norm="l2").for_images((3, 224, 224)).eps == (3.0,)
    assert AttackOptions(model=("x",), norm="l2", eps="2").for_images((3, 64, 64)).eps == (2.0,)
    for norm, side in (("l2", 64), ("l1", 224)):
        with pytest.raises(UserError, match=f"norm {norm} has no usual one for {side} pixels a side, give --eps"):
            AttackOptions(model=("x",), norm=norm).for_images((3, side, side))
    with pytest.raises(UserError, match=r"this ε is not attacked; expected one of 0\.5"):
        AttackOptions(model=("x",), norm="l2", fail_under="robust 9% @ 8/255").for_images((1, 28, 28))
    with pytest.raises(UserError, match="norm l0 has no usual one, give --eps"):
        AttackOptions(model=("x",), norm="l0")
    size = ("--limit", "4", "--attack", "pgd", "--steps", "2", "-q")
    assert run_cli("attack", "specimen:vit-0", "--norm", "l2", *size, "--out", tmp_path)[0] == 0
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["options"]["eps"] == [0.5]
    assert pl.read_parquet(tmp_path / "rows.parquet")["eps"].unique().to_list() == [0.5]


def _measure(victim, out, plan, limit=31, process=Process()):  # noqa: B008 (frozen)
    return measure("m", victim, load_data("digits", limit=limit), plan, out, process=process)


@pytest.mark.parametrize("nested", ["up", "off"])
def test_rows_are_the_verdicts_of_the_library(tmp_path, victim, nested):
    eps = (2 / 255, 12 / 255)
    plan = attack_options(eps, attack="autoattack", settings=QUICK, nested=nested, precision="float32")
    rows, _ = _measure(victim, tmp_path, plan, limit=13)
    images = load_data("digits", limit=13).images(range(13))
    ensemble = autoattack_ensemble("standard", 4, 12, 2)
    results = sweep(ensemble, victim, images, None, Threat(), eps, nested=nested)
    assert rows["eps"].unique().sort().to_list() == list(eps)
    for result in results:
        level = rows.filter(eps=result.threat.eps).sort("sample")
        for name in ("success", "prediction", "forwards", "backwards"):
            assert level[name].to_list() == getattr(result, name).tolist(), name
        assert level["felled_by"].is_null().to_list() == (~result.success).tolist()


def test_images_leave_memory_before_the_next_are_read(tmp_path, victim, monkeypatch):
    references, alive = [], []

    def watched(model, images, labels, threat, **run):
        alive.append(sum(reference() is not None for reference in references))
        result = pgd(model, images, labels, threat, steps=2, **run)
        references.extend([weakref.ref(images), weakref.ref(result.adversarial)])
        return result

    monkeypatch.setitem(ATTACKS, "watched", None)  # taken out again afterwards
    catalogue.add_attack("watched", watched)
    monkeypatch.setattr(store, "_SLICE_BYTES", 8 * 4 * 64)
    rows, _ = _measure(victim, tmp_path, attack_options((4 / 255,), attack="watched"))
    assert len(rows) == 31
    assert alive == [0, 0, 0, 0]  # slices of 8


def test_a_search_for_the_nearest_example_serves_every_eps(tmp_path, victim):
    plan = attack_options((0.1, 0.3, 0.9), norm="l2", attack="fab", settings={"steps": 9})
    rows, _ = _measure(victim, tmp_path, plan)
    assert len(list((tmp_path / "cells").iterdir())) == 1
    largest = rows.filter(eps=0.9)
    for eps in (0.1, 0.3):
        assert rows.filter(eps=eps)["success"].sum() == (largest["distance"] <= eps + 1e-6).sum()


def test_the_norms_at_which_samples_fall(tmp_path, run_cli, victim):
    code, out, err = run_cli(
        "attack",
        victim.card.spec,
        "--attack",
        "carlini-wagner",
        "--norm",
        "l2",
        "--eps",
        "0.2,1",
        "--steps",
        8,
        "--limit",
        7,
        "--out",
        tmp_path,
    )
    assert code == 0, err
    norms = json.loads((tmp_path / "summary.json").read_text())["norms"]
    images = load_data("digits", limit=7, seed=0).images(range(7))
    result = carlini_wagner(victim, images, None, Threat("l2", float("inf")), steps=8)
    for stored, expected in zip(norms, eps_at(result.distance.numpy(), result.success.numpy()), strict=True):
        assert stored["level"] == expected.level
        assert stored["eps"] == pytest.approx(expected.eps, rel=1e-5)
    assert "50%" in out


def test_a_compiled_search_has_cells_of_its_own(tmp_path, victim, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: compiled.append(dynamic) or model)
    for times, more in ((0, {}), (1, {"compile": True}), (1, {"compile": True})):
        _measure(victim, tmp_path, attack_options((8 / 255,), settings={"steps": 2}, **more), limit=5)
        assert len(compiled) == times
    assert len(list((tmp_path / "cells").iterdir())) == 2


def test_noise_of_the_same_size_stands_beside_the_attack(tmp_path, run_cli, victim):
    code, out, err = run_cli(
        "attack",
        victim.card.spec,
        "--attack",
        "pgd",
        "--control",
        "--eps",
        "8/255",
        "--limit",
        19,
        "--steps",
        5,
        "--out",
        tmp_path,
    )
    assert code == 0, err
    assert "PGD" in out
    assert "Noise" in out
    asr = {
        result["attack"]: result["value"]
        for result in json.loads((tmp_path / "summary.json").read_text())["results"]
        if result["metric"] == "asr"
    }
    assert asr["noise"] < asr["pgd"]


@pytest.mark.thorough
def test_two_processes_share_the_images_and_agree_with_one(tmp_path):
    run = _run(tmp_path / "vit", vit)
    arguments = [
        "-m",
        "antiphase",
        "attack",
        str(run),
        "--eps",
        "4/255,8/255",
        "--limit",
        "41",
        "--steps",
        "3",
        "--queries",
        "9",
        "--quiet",
        "--device",
        "cpu",
    ]
    for count, name in ((1, "one"), (2, "two")):
        assert together(count, *arguments, "--out", tmp_path / name).count("report:") == 1
    one, two = (pl.read_parquet(tmp_path / name / "rows.parquet") for name in ("one", "two"))
    assert_frame_equal(one.drop("distance"), two.drop("distance"))
    assert_frame_equal(one.select("distance"), two.select("distance"), abs_tol=1e-6)


@pytest.mark.thorough  # test_cache.py stops the same run, without a signal
def test_a_killed_ensemble_goes_on_and_does_nothing_twice(tmp_path, victim):
    command = [
        "-m",
        "antiphase",
        "attack",
        victim.card.spec,
        "--eps",
        "2/255,8/255",
        "--limit",
        "60",
        "--steps",
        "20",
        "--queries",
        "200",
        "--quiet",
        "--batch-size",
        "16",
        "--out",
    ]
    killed = tmp_path / "killed"
    with Python(*command, killed) as process:
        while process.runs and (
            len(list(killed.glob("cells/*"))) < 2 or len(list(killed.glob("cells/*/*.parquet"))) < 2
        ):
            time.sleep(0.02)
        process.kill()
    assert not (killed / "summary.json").exists()
    kept = {path: path.read_bytes() for path in killed.glob("cells/*/*.parquet")}
    assert kept
    for out in (killed, tmp_path / "whole"):
        python(*command, out)
    first, second = (pl.read_parquet(out / "rows.parquet") for out in (killed, tmp_path / "whole"))
    assert_frame_equal(first, second)


def test_what_is_on_disk_is_not_attacked_again(tmp_path, victim):
    plan = attack_options((4 / 255,), attack="autoattack", settings=QUICK)
    rows, _ = _measure(victim, tmp_path, plan)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/*.parquet")}
    again, _ = _measure(victim, tmp_path, plan)
    assert_frame_equal(rows, again)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/*.parquet")}


def test_warnings_outlast_the_run_that_gave_them(tmp_path, victim):
    class Quantised(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.card = victim, victim.card

        def forward(self, x):
            return self.model((x * 8).round() / 8)

    plan = attack_options((4 / 255,))
    _, first = _measure(Quantised(), tmp_path, plan)
    _, again = _measure(Quantised(), tmp_path, plan)
    assert first == again
    assert "gradients were zero" in first[0]


def test_bf16_search_counts_only_what_float32_confirms(victim):
    images = load_data("digits", limit=31).images(range(31))
    result = autoattack(victim, images, None, Threat(eps=8 / 255), precision="bf16", **QUICK)
    assert torch.equal(victim(result.adversarial).argmax(1) != result.label, result.success)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--attack", "autoatack"], "autoatack"),
        (["--attack", "fgsm", "--steps", "3"], "no setting 'steps'"),
        (["--attack", "patch", "--width", "9", "--eps", "1"], "patch width 9"),
        (["--version", "2019"], "2019"),
        (["--eps", "abc"], "abc"),
        (["--eps", "-1/255"], "eps -1/255: expected a positive number"),
        (["--precision", "int4"], "int4"),
        (["--attack", "carlini-wagner"], "l2"),
        (["--attack", "pgd", "--objective", "crossentropy"], "crossentropy"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, run_cli, victim, arguments, named):
    code, out, err = run_cli("attack", victim.card.spec, *arguments, "--limit", 3, "--quiet", "--out", tmp_path / "o")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert named in err
    assert not (tmp_path / "o" / "summary.json").exists()


def test_a_foreign_attack_has_rows_like_our_own(tmp_path, victim, monkeypatch, capsys):
    monkeypatch.setitem(ATTACKS, "their-own", None)  # taken out again afterwards

    def sign_step(model, images, labels):
        images = images.requires_grad_(True)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        return (images + 0.03 * torch.autograd.grad(loss, images)[0].sign()).clamp(0, 1)

    def foreign(model, images, labels, threat, **run):
        return run_foreign(sign_step, model, images, labels, threat, **run)

    catalogue.add_attack("their-own", foreign)
    options = attack_options((4 / 255, 8 / 255), attack="their-own")
    timed = options.model_copy(update={"quiet": False})
    say_time([("m", victim, timed, load_data("digits", limit=31))], tmp_path / "timed")
    assert "how long the attacks take is unknown: their-own" in capsys.readouterr().err
    rows, _ = _measure(victim, tmp_path, options)
    assert len(rows) == 2 * 31
    success = rows.group_by("eps", maintain_order=True).agg(pl.col("success").sum())["success"]
    assert success[0] == 0  # further than 4/255
    assert success[1] > 0


def test_an_attack_in_l0_counts_changed_values(run_cli, tmp_path):
    words = ("attack", "specimen:vit-0", "--attack", "fmn", "--norm", "l0", "--steps", 10, "--limit", 3, "-q")
    out = tmp_path / "out"
    code, _, error = run_cli(*words, "--out", out)
    assert (code, error.strip()) == (2, "antiphase: eps: is missing; norm l0 has no usual one, give --eps")
    code, _, error = run_cli(*words, "--eps", 0.5, "--out", out)
    message = "antiphase: eps 0.5: allows no change in norm 'l0'; expected a number of values, at least 1"
    assert (code, error.strip()) == (2, message)
    code, _, error = run_cli(*words, "--eps", 5, "--out", out)
    assert code == 0, error
    distances = pl.read_parquet(out / "rows.parquet").filter(success=True)["distance"]
    assert len(distances)
    assert (distances == distances.round()).all()
