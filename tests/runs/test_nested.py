"""``sweep`` in memory and ``measure`` on disk give the same verdicts."""

from dataclasses import replace

import pytest
import torch

from antiphase.attacks import Threat, catalogue, pgd, sweep
from antiphase.attacks.ensemble import Ensemble, Stage
from antiphase.data.images import ArrayImages
from antiphase.models.card import ModelCard, with_card
from antiphase.runs.attack import AttackPlan, measure
from antiphase.runs.processes import Shard
from tests.attacks import toys

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
        name="toy",
        split="test",
        class_names=tuple("abcde"),
        ids=ids,
        labels=labels,
        pixels=toys.images(COUNT, seed=2),
    )


@pytest.fixture(autouse=True)
def with_ensemble(monkeypatch):
    """Add an ensemble of a weak attack, a nearest-example search and a strong attack to the catalogue."""
    stages = tuple(
        catalogue.find_attack(name, **settings).stages[0]
        for name, settings in (("fgsm", {}), ("fab", {"steps": 1}), ("pgd", {}))
    )
    monkeypatch.setitem(catalogue.CATALOGUE, "mixed", lambda: Ensemble("mixed", stages))


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


@pytest.mark.parametrize("nested", [True, False], ids=["up", "off"])
@pytest.mark.parametrize(
    ("attack", "settings"),
    [("pgd", {"steps": 3}), ("mixed", {}), ("fab", {"steps": 6})],
    ids=["single", "ensemble", "nearest"],
)
def test_memory_and_disk_agree(tmp_path, model, data, attack, settings, nested):
    plan = AttackPlan(EPS, attack=attack, settings=settings, nested=nested)
    rows, _ = measure("m", model, data, plan, tmp_path, shard=Shard(), progress=False)
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

    ensemble = Ensemble("two", (Stage("weak", weak), Stage("square", fickle)))
    monkeypatch.setitem(catalogue.CATALOGUE, "two", lambda: ensemble)
    plan = AttackPlan(EPS[-2:], attack="two", nested=False)
    _, warnings = measure("m", model, data, plan, tmp_path, shard=Shard(), progress=False)
    assert [line[:9] for line in warnings] == ["Square, w", "ASR falls"]
