"""``sweep`` in memory and ``measure`` on disk give the same verdicts."""

import copy
from dataclasses import replace

import pytest
import torch

from antiphase.attacks import Threat, apgd, catalogue, pgd, sweep
from antiphase.attacks.catalogue import AttackSpec
from antiphase.attacks.sweep import Ensemble, Stage
from antiphase.commands.audit.run import attack_settings, measure
from antiphase.data.images import ArrayImages
from antiphase.errors import UserError
from antiphase.models.card import ModelCard, with_card
from antiphase.processes import Process
from antiphase.registry import ATTACKS
from tests.attacks import toys
from tests.commands.audits import attack_options
from tests.threads import in_threads

EPS = (0.01, 0.015, 0.02, 0.03)
COUNT = 13


@pytest.fixture(scope="module")
def model():
    return with_card(toys.network(), ModelCard("toy", "toy", "softmax", 0, (3, 7, 5), 5))


@pytest.fixture(scope="module")
def data():
    ids = torch.arange(COUNT) * 3 + 100
    labels = torch.zeros(COUNT, dtype=torch.int64)
    return ArrayImages(
        name="toy", split="test", class_names=tuple("abcde"), ids=ids, labels=labels, pixels=toys.images(COUNT, seed=2)
    )


@pytest.fixture(autouse=True)
def with_ensemble(monkeypatch):
    """Add an ensemble of a weak attack, a nearest-example search and a strong attack to the catalogue."""
    stages = tuple(
        catalogue.find_attack(name, **settings).stages[0]
        for name, settings in (("fgsm", {}), ("fab", {"steps": 1, "final_search": False}), ("pgd", {}))
    )
    monkeypatch.setitem(ATTACKS, "mixed", AttackSpec(pgd, "mixed", stages=lambda: Ensemble("mixed", stages)))


def _broken_by(results):
    """Return by ε and sample which stage broke it: the one at this ε, else the one at a smaller ε."""
    seen, levels = {}, []
    for result in results:
        for part in result.stages:
            seen |= {sample: part.attack for sample in part.ids[part.success].tolist()}
        broken = zip(result.ids.tolist(), result.success.tolist(), strict=True)
        levels.append([seen[sample] if success else None for sample, success in broken])
    return levels


def _agree(rows, results):
    assert rows["eps"].unique(maintain_order=True).to_list() == [result.threat.eps for result in results]
    for result, broken_by in zip(results, _broken_by(results), strict=True):
        level = rows.filter(eps=result.threat.eps)
        assert level["sample"].to_list() == result.ids.tolist()
        for name in ("clean_prediction", "prediction", "success", "distance", "forwards", "backwards"):
            assert level[name].to_list() == getattr(result, name).tolist(), name
        assert level["felled_by"].to_list() == broken_by


@pytest.mark.parametrize("nested", ["up", "down", "off"])
@pytest.mark.parametrize(
    ("attack", "settings"),
    [("pgd", {"steps": 3}), ("mixed", {}), ("fab", {"steps": 6})],
    ids=["single", "ensemble", "nearest"],
)
def test_memory_and_disk_agree(tmp_path, model, data, attack, settings, nested):
    plan = attack_options(EPS, attack=attack, settings=settings, nested=nested)
    rows, _ = measure("m", model, data, plan, tmp_path, process=Process())
    images = data.images(range(COUNT))
    results = sweep(plan.ensemble, model, images, None, Threat(), EPS, nested=nested, ids=data.ids)
    _agree(rows, results)
    assert 0 < results[0].asr < results[-1].asr < 1
    if attack == "mixed":
        assert len(set(rows["felled_by"].drop_nulls())) == 3


def test_disk_warns_as_memory_does(tmp_path, model, data, monkeypatch):
    def weak(model, images, labels, threat, **run):
        return pgd(model, images, labels, replace(threat, eps=1e-4), steps=1, **run)

    def fickle(model, images, labels, threat, **run):
        return (pgd if threat.eps == EPS[-2] else weak)(model, images, labels, threat, **run)

    ensemble = Ensemble("two", (Stage("weak", weak), Stage("square", fickle, black_box=True)))
    monkeypatch.setitem(ATTACKS, "two", AttackSpec(pgd, "two", stages=lambda: ensemble))
    plan = attack_options(EPS[-2:], attack="two", nested="off")
    _, warnings = measure("m", model, data, plan, tmp_path, process=Process())
    assert [line[:9] for line in warnings] == ["square, w", "ASR falls"]


class _Killed(Exception):
    pass


class _Counted:
    """Two APGDs; counts what is attacked."""

    def __init__(self):
        self.finished, self.last = [], None

    @property
    def ensemble(self):
        stages = (("early", {"steps": 3, "objective": "dlr"}), ("late", {"steps": 12}))
        return Ensemble("counted", tuple(Stage(name, self._attack(name), settings) for name, settings in stages))

    def _attack(self, name):
        def attack(model, images, labels, threat, *, on_finished=None, **run):
            def told(positions, results):
                on_finished(positions, results)
                indices = positions.tolist()
                self.finished += [(name, run["ids"][i].item(), round(threat.eps, 6)) for i in indices]
                if self.last and len(self.finished) >= self.last:
                    raise _Killed

            finished = told if on_finished else None
            return apgd(model, images, labels, threat, on_finished=finished, **run)

        return attack


@pytest.fixture
def counted(monkeypatch):
    attacks = _Counted()
    monkeypatch.setitem(ATTACKS, "counted", AttackSpec(pgd, "counted", stages=lambda: attacks.ensemble))
    return attacks


def test_down_resumes_in_the_middle_of_a_call(tmp_path, model, data, counted):
    plan = attack_options(EPS, attack="counted", nested="down", batch_size=2)
    images = data.images(range(COUNT))
    expected = sweep(counted.ensemble, model, images, None, Threat(), EPS, nested="down", ids=data.ids)
    measure("m", model, data, plan, tmp_path / "whole", process=Process())
    whole, counted.finished = counted.finished, []
    counted.last = len(whole) - 2
    with pytest.raises(_Killed):
        measure("m", model, data, plan, tmp_path / "killed", process=Process())
    assert len(counted.finished) < len(whole)
    counted.last = None
    rows, _ = measure("m", model, data, plan, tmp_path / "killed", process=Process())
    assert sorted(counted.finished) == sorted(set(whole))  # nothing twice
    _agree(rows, expected)


def test_up_and_down_share_rows_but_not_verdicts(tmp_path, model, data, counted):
    images = data.images(range(COUNT))
    for nested in ("down", "up", "down"):
        expected = sweep(counted.ensemble, model, images, None, Threat(), EPS, nested=nested, ids=data.ids)
        rows, _ = measure(
            "m", model, data, attack_options(EPS, attack="counted", nested=nested), tmp_path, process=Process()
        )
        _agree(rows, expected)
    assert len(counted.finished) == len(set(counted.finished))
    assert len(list((tmp_path / "cells").iterdir())) == 2 * len(EPS)


def test_two_processes_share_a_run_down(tmp_path, model, data, counted):
    plan = attack_options(EPS, attack="counted", nested="down")

    def run(process):
        replica = with_card(copy.deepcopy(model), model.card)
        return measure("m", replica, data, plan, tmp_path, process=process)[0]

    both = in_threads(2, run)
    images = data.images(range(COUNT))
    expected = sweep(counted.ensemble, model, images, None, Threat(), EPS, nested="down", ids=data.ids)
    for rows in both:
        _agree(rows, expected)
    assert len(counted.finished) == len(set(counted.finished))


def test_the_warnings_of_every_call_last(tmp_path, model, data, monkeypatch):
    calls = []

    def warns(model, images, labels, threat, *, share, **run):
        calls.append(f"call {len(calls)}")
        result = pgd(model, images, labels, replace(threat, eps=share * threat.eps), **run)
        return replace(result, warnings=(calls[-1],))

    stages = (Stage("weak", warns, {"share": 0.5}), Stage("strong", warns, {"share": 1}))
    monkeypatch.setitem(ATTACKS, "two", AttackSpec(pgd, "two", stages=lambda: Ensemble("two", stages)))
    plan = attack_options(EPS, attack="two", nested="down")
    for _ in range(2):
        _, warnings = measure("m", model, data, plan, tmp_path, process=Process())
        assert sorted(warnings) == sorted(calls)
    assert len(calls) == len(list((tmp_path / "cells").iterdir()))  # a call of an attack is of one ε


@pytest.mark.parametrize("nested", ["sideways", True, False])
def test_a_nesting_that_does_not_exist(nested):
    with pytest.raises(UserError, match=f"nested {nested!r}: expected up, down or off"):
        attack_options((0.1,), nested=nested)


@pytest.mark.parametrize(("nested", "budgets"), [("up", "nested up"), ("down", "nested down"), ("off", "independent")])
def test_the_record_says_how_budgets_are_run(nested, budgets):
    assert attack_settings(attack_options(EPS, nested=nested))["budgets"].startswith(budgets)


def test_the_page_says_how_an_ensemble_breaks_images(tmp_path, run_cli):
    given = ["--steps", 2, "--queries", 3, "--eps", "8/255,16/255", "--limit", 2, "-q", "--out", tmp_path]
    code, _, errors = run_cli("attack", "specimen:vit-0", *given)
    assert (code, errors) == (0, "")
    page = (tmp_path / "report.html").read_text()
    assert '<section id="broken">' in page
    assert "counts as broken at every larger ε" in page


@pytest.mark.parametrize("command", ["attack", "audit"])
def test_a_wrong_choice_lists_the_right_ones(run_cli, command):
    code, out, errors = run_cli(command, "specimen:vit-0", "--nested", "sideways")
    assert (code, out) == (2, "")
    for word in ("sideways", "up", "down", "off"):
        assert word in errors
