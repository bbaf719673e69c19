"""What every registered attack keeps, whoever wrote it."""

import functools

import pytest
import torch

from antiphase.attacks import Threat, sweep
from antiphase.attacks.catalogue import find_attack, find_spec, keywords, settings_of
from antiphase.errors import UserError
from antiphase.registry import ATTACKS
from tests.attacks import toys

# as far as an attack has them
SMALL = {"steps": 3, "search_steps": 2, "queries": 12, "targets": 2, "draws": 4, "width": 3}
EPS = {"linf": 0.06, "l2": 0.6}
COUNT = 37  # more than the 16 rows that the model sees at least
ARRAYS = ("success", "prediction", "label", "distance", "adversarial", "forwards", "backwards")


def attacked(name, order=None, batch_size=None, model=None, nested="off", norm="linf", **more):
    """Attack in a norm, or in the other where the attack does not know it; return model, images and result."""
    ids = torch.arange(COUNT) if order is None else order
    model, images = model or toys.network(), toys.images(COUNT)[ids]
    small = {setting: SMALL[setting] for setting in keywords(find_spec(name).attack) if setting in SMALL}
    run = {"seed": 3, "ids": ids, "batch_size": batch_size, **more}
    norm = {"carlini-wagner": "l2", "patch": "linf"}.get(name, norm)
    threat = Threat(norm, EPS[norm])
    [result] = sweep(
        find_attack(name, **small), model, images, None, threat, [threat.eps], nested=nested, **run
    )
    return model, images, result


@functools.cache
def attacked_once(name, norm="linf"):
    return attacked(name, norm=norm)


every_attack = pytest.mark.parametrize(
    "name", [name for name, where in ATTACKS.items() if isinstance(where, str)]
)


@every_attack
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_verdicts_depend_neither_on_the_batch_nor_on_the_order(name, norm):
    _, _, whole = attacked_once(name, norm)
    order = torch.arange(COUNT).flip(0)
    _, _, parts = attacked(name, order, batch_size=5, norm=norm)
    for array in ARRAYS:
        assert torch.equal(getattr(parts, array)[order.argsort()], getattr(whole, array)), array


@every_attack
def test_a_success_is_a_changed_prediction_within_the_budget(name):
    model, images, result = attacked_once(name)
    assert result.success.any()
    assert torch.equal(result.label, model(images).argmax(1))
    fallen, threat = result.success, result.threat
    assert torch.equal(model(result.adversarial).argmax(1)[fallen], result.prediction[fallen])
    assert (result.prediction != result.label)[fallen].all()
    moved = (result.adversarial - images).flatten(1).double()
    length = moved.norm(dim=1, p=torch.inf if threat.norm == "linf" else 2)
    assert (length[fallen] <= threat.eps + 1e-6).all()
    assert torch.allclose(length, result.distance.double(), atol=1e-6)
    assert result.adversarial.min() >= 0
    assert result.adversarial.max() <= 1


@pytest.mark.parametrize(
    ("name", "nested", "precision"),
    [
        *((name, "off", "float32") for name, where in ATTACKS.items() if isinstance(where, str)),
        *(
            (name, nested, precision)
            for name in ("fab-t", "square", "autoattack")
            for nested, precision in (("down", "float32"), ("up", "bf16"))
        ),
    ],
)
def test_each_image_keeps_its_context(name, nested, precision):
    asked, which = toys.Asked(), torch.arange(COUNT) % 3
    _, _, whole = attacked(
        name, model=asked, context=which, batch_size=16, nested=nested, precision=precision
    )
    for number, model in enumerate(asked.each):
        own = (which == number).nonzero()[:, 0]
        _, _, alone = attacked(name, own, model=model, nested=nested, precision=precision)
        for array in ARRAYS:
            assert torch.equal(getattr(whole, array)[own], getattr(alone, array)), array


@every_attack
def test_all_draws_come_from_the_seed(name):
    _, _, result = attacked_once(name)
    torch.manual_seed(12345)
    before = torch.get_rng_state()
    _, _, again = attacked(name)
    assert torch.equal(torch.get_rng_state(), before)
    for array in ARRAYS:
        assert torch.equal(getattr(again, array), getattr(result, array)), array


@every_attack
def test_an_unknown_keyword_is_named(name):
    with pytest.raises(TypeError, match="unexpected keyword argument 'stepsize'"):
        find_spec(name).attack(toys.network(size=297), toys.images(2, (3, 9, 11)), None, stepsize=0.1)


@every_attack
def test_an_unknown_setting_is_named_with_those_there_are(name):
    with pytest.raises(UserError, match=f"attack '{name}' has no setting 'stepsize': expected"):
        find_attack(name, stepsize=0.1)


@every_attack
def test_what_is_known_of_an_attack_is_told(name):
    spec = find_spec(name)
    assert spec.label
    assert find_attack(name).stages
    for stage in find_attack(name).stages:
        assert settings_of(stage).keys() >= stage.settings.keys()


def test_the_search_reaches_as_far_as_its_settings_say():
    def effort(name, **settings):
        names = ("steps", "queries", "restarts", "targets", "passes")
        stages = [settings_of(stage) | stage.settings for stage in find_attack(name, **settings).stages]
        return [{key: own[key] for key in names if own.get(key) is not None} for own in stages]

    apgd_ce, apgd_t = {"steps": 100, "restarts": 1}, {"steps": 100, "restarts": 1, "targets": 9}
    square = {"queries": 5_000, "restarts": 1}
    assert effort("fgsm") == [{}]
    assert effort("pgd") == [{"steps": 20, "restarts": 1}]
    assert (effort("apgd-ce"), effort("apgd-t")) == ([apgd_ce], [apgd_t])
    assert effort("autoattack") == [apgd_ce, apgd_t, apgd_t, square]
    assert effort("pgd", steps=7, restarts=3) == [{"steps": 7, "restarts": 3}]
    assert effort("autoattack", version="rand") == 2 * [apgd_ce | {"passes": 20}]


@pytest.mark.parametrize(
    ("name", "settings", "shown"),
    [
        ("pgd", {}, {"steps": 20, "step_size": "ε/4"}),
        ("pgd", {"step_size": 0.1}, {"step_size": 0.1}),
        ("apgd-ce", {}, {"objective": "cross_entropy", "targets": None}),
        ("apgd-ce", {"targets": 2}, {"objective": "dlr", "targets": 2}),
        ("apgd-dlr", {}, {"objective": "dlr"}),
        ("apgd-t", {}, {"objective": "dlr", "targets": 9}),
        ("square", {}, {"queries": 5_000, "rescale_schedule": False}),
        ("square", {"queries": 100}, {"queries": 100, "rescale_schedule": True}),
        ("pgd", {"objective": toys.least}, {"objective": "least"}),
    ],
)
def test_settings_are_data_with_the_defaults_filled_in(name, settings, shown):
    (stage,) = find_attack(name, **settings).stages
    assert shown.items() <= settings_of(stage).items()


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (torch.zeros(4), r"context of shape \(4,\): expected one row per sample, \(5, …\)"),
        ([0] * 5, "context of type list: expected a torch tensor"),
    ],
)
def test_a_context_that_does_not_fit_is_told(context, message):
    with pytest.raises(UserError, match=message):
        find_spec("pgd").attack(toys.Asked(), toys.images(5), None, Threat("linf", 0.1), context=context)
