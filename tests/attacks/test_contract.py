"""What every registered attack keeps, whoever wrote it. A failure names the step of the recipe that is missing.

``pytest tests/attacks/test_contract.py -k NAME`` tests one attack.
"""

import functools
import inspect
import typing

import pytest
import torch

from antiphase.arguments import unchecked
from antiphase.attacks import Threat, sweep
from antiphase.attacks.catalogue import AttackSpec, find_attack, find_spec, keywords, settings_of
from antiphase.errors import UserError
from antiphase.registry import ATTACKS
from tests.attacks import toys

# as far as an attack has them
SMALL = {"steps": 3, "search_steps": 2, "queries": 12, "targets": 2, "draws": 4, "width": 3}
EPS = {"linf": 0.06, "l2": 0.6, "l0": 60.0}
ORDER = {"linf": torch.inf, "l2": 2, "l0": 0}
COUNT = 37  # more than the 16 rows that the model sees at least
ARRAYS = ("success", "prediction", "label", "distance", "adversarial", "forwards", "backwards")


def missing_steps(spec):
    """Yield a line for each step that the function of an attack lacks, as far as its signature tells."""
    function = spec.attack
    signature = inspect.signature(function)
    parameters = signature.parameters
    if unchecked(function) is function:
        yield "put @validated above it, so that a setting that is unknown or out of range is refused in one line"
    if list(parameters)[:4] != ["model", "images", "labels", "threat"]:
        yield "its first arguments are (model, images, labels, threat), as those of antiphase.attacks.pgd"
    elif parameters["threat"].default is inspect.Parameter.empty:
        yield "give its argument threat the default Threat()"
    if all(one.kind is not one.VAR_KEYWORD for one in parameters.values()):
        yield "let it take **run: Unpack[RunOptions] and pass run to run_search: seed, ids, context, batch size"
    described = inspect.getdoc(function) or ""
    hints = typing.get_type_hints(unchecked(function))
    for name, default in keywords(function).items():
        if parameters[name].default is inspect.Parameter.empty:
            yield f"give its setting {name} a default"
        if name not in hints:
            yield f"annotate its setting {name} with a type: --set {name}=VALUE is read by it (found {default!r})"
        if f"{name}:" not in described and f"{name}`" not in described:
            yield f"describe its setting {name} under Args: in its docstring, from which the reference is made"
    if not spec.label:
        yield "give its AttackSpec a label, which tables and figures print"


def attacked(name, order=None, batch_size=None, model=None, nested="off", norm="linf", **more):
    """Attack in a norm, or in the other where the attack does not know it; return model, images and result."""
    ids = torch.arange(COUNT) if order is None else order
    model, images = model or toys.network(), toys.images(COUNT)[ids]
    small = {setting: SMALL[setting] for setting in keywords(find_spec(name).attack) if setting in SMALL}
    run = {"seed": 3, "ids": ids, "batch_size": batch_size, **more}
    attack = find_attack(name, **small)
    for known in (norm, *(one for one in EPS if one != norm)):
        threat = Threat(known, EPS[known])
        try:
            [result] = sweep(attack, model, images, None, threat, [threat.eps], nested=nested, **run)
        except UserError as error:
            if f"norm {known!r}" not in str(error):
                raise
        else:
            return model, images, result
    raise AssertionError(f"attack {name!r}: knows none of the norms {', '.join(EPS)}; let it know one")


@functools.cache
def attacked_once(name, norm="linf"):
    return attacked(name, norm=norm)


every_attack = pytest.mark.parametrize("name", [name for name, where in ATTACKS.items() if isinstance(where, str)])


@every_attack
def test_its_function_has_all_that_the_recipe_asks_for(name):
    missing = list(missing_steps(find_spec(name)))
    assert not missing, f"attack {name!r}: {'; '.join(missing)}"


def test_what_an_attack_lacks_is_named():
    def tickle(model, images, labels, threat, *, steps, width=3):
        """Return nothing.

        Args:
            steps: their number.
        """

    assert [line.partition(",")[0] for line in missing_steps(AttackSpec(tickle, ""))] == [
        "put @validated above it",
        "give its argument threat the default Threat()",
        "let it take **run: Unpack[RunOptions] and pass run to run_search: seed",
        "give its setting steps a default",
        "annotate its setting steps with a type: --set steps=VALUE is read by it (found None)",
        "annotate its setting width with a type: --set width=VALUE is read by it (found 3)",
        "describe its setting width under Args: in its docstring",
        "give its AttackSpec a label",
    ]
    assert list(missing_steps(AttackSpec(lambda x, y: None, "")))[1].startswith("its first arguments are (model,")


@every_attack
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_verdicts_depend_neither_on_the_batch_nor_on_the_order(name, norm):
    _, _, whole = attacked_once(name, norm)
    order = torch.arange(COUNT).flip(0)
    _, _, parts = attacked(name, order, batch_size=5, norm=norm)
    for array in ARRAYS:
        step = "depends on batch or order: draw by the rows' key, and let no row's step read another's state"
        assert torch.equal(getattr(parts, array)[order.argsort()], getattr(whole, array)), f"{name!r}, {array}: {step}"


@every_attack
def test_a_success_is_a_changed_prediction_within_the_budget(name):
    model, images, result = attacked_once(name)
    assert result.success.any(), f"attack {name!r}: breaks none of {COUNT} images; look at its step"
    assert torch.equal(result.label, model(images).argmax(1))
    fallen, threat = result.success, result.threat
    assert torch.equal(model(result.adversarial).argmax(1)[fallen], result.prediction[fallen])
    assert (result.prediction != result.label)[fallen].all()
    moved = (result.adversarial - images).flatten(1).double()
    length = moved.norm(dim=1, p=ORDER[threat.norm])
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
    mixture, which = toys.Asked(), torch.arange(COUNT) % 3
    _, _, whole = attacked(name, model=mixture, context=which, batch_size=16, nested=nested, precision=precision)
    for number, model in enumerate(mixture.networks):
        rows = (which == number).nonzero()[:, 0]
        _, _, alone = attacked(name, rows, model=model, nested=nested, precision=precision)
        for array in ARRAYS:
            step = "pass the rows to every call of the oracle, which gives the model the context of each"
            assert torch.equal(getattr(whole, array)[rows], getattr(alone, array)), f"{name!r}, {array}: {step}"


@every_attack
def test_all_draws_come_from_the_seed(name):
    _, _, result = attacked_once(name)
    torch.manual_seed(12345)
    before = torch.get_rng_state()
    _, _, again = attacked(name)
    step = "draw all random numbers by antiphase.streams from the rows' key"
    assert torch.equal(torch.get_rng_state(), before), f"attack {name!r}: uses torch's generator; {step}"
    for array in ARRAYS:
        same = torch.equal(getattr(again, array), getattr(result, array))
        assert same, f"attack {name!r}, {array}: another result for the same seed; {step}"


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
        return [{key: options[key] for key in names if options.get(key) is not None} for options in stages]

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
