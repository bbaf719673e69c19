"""Defences: values against dense Jacobians and the papers' equations, gradients against finite differences."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.func import jacrev

import antiphase as ap
from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import ModelCard, diffvit, vit
from antiphase.models.card import twin_doubts
from antiphase.registry import DEFENCES, find
from antiphase.training import classifier, loop, make_recipe, train_classifier
from antiphase.training.contrastive import prepare, train_clip
from antiphase.training.defences import EVERY, Step, check_defences, defended_loss, share_of_time
from antiphase.training.defences.weights import adversarial_weights, averaged, keep_average
from tests.training.tiny_pairs import tiny_pairs, tiny_recipe

SIZES = {"dim": 8, "depth": 1, "num_heads": 2, "patch_size": 4, "num_classes": 3}
IMAGES = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
PERTURBED = (IMAGES + 0.05 * torch.randn(IMAGES.shape, generator=torch.Generator().manual_seed(2))).clamp(0, 1)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def model_of(kind=diffvit, **sizes):
    model = kind(8, seed=3, **SIZES | sizes).double()
    with torch.no_grad():  # maps that are not flat
        for name, weight in model.named_parameters():
            if name.endswith("qkv.weight"):
                weight.mul_(2.0)
    return model


def step_of(model, **fields):
    return Step(model, PERTURBED, IMAGES, LABELS, model, **fields)


def value(name, model):
    one = find(DEFENCES, name, "defence")
    step = step_of(model)
    return one.term(step, 0.7) if one.acts_on == "whole loss" else one.term(step)


TERMS = [name for name in DEFENCES if find(DEFENCES, name, "defence").term]
OF_MAPS = [name for name in DEFENCES if find(DEFENCES, name, "defence").needs in ("maps", "two maps")]


@pytest.mark.parametrize("variant", ["v1", "v2", "grouped", "gated", "dint"])
@pytest.mark.parametrize("name", TERMS)
def test_gradients_agree_with_finite_differences(name, variant):
    model = model_of(variant=variant)
    # a penalty on maps holds the tokens fixed, which the first layer's projection and λ do not change
    trained = [w for n, w in model.named_parameters() if name not in OF_MAPS or "qkv" in n or "lam" in n]
    gradients = torch.autograd.grad(value(name, model), trained, allow_unused=True)
    draws = torch.Generator().manual_seed(0)
    ways = [torch.randn(w.shape, generator=draws, dtype=w.dtype) for w in trained]
    slope = sum(float((g * way).sum()) for g, way in zip(gradients, ways, strict=True) if g is not None)
    ends = []
    for size in (1e-6, -1e-6):
        with torch.no_grad():
            for weight, way in zip(trained, ways, strict=True):
                weight.add_(way, alpha=size)
        ends.append(float(value(name, model).detach()))
        with torch.no_grad():
            for weight, way in zip(trained, ways, strict=True):
                weight.sub_(way, alpha=size)
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-8)
    if name not in ("alignment", "lambda-rho"):  # which are 0 where nothing is wrong
        assert slope != 0


@pytest.mark.parametrize("kind", [vit, diffvit])
def test_the_map_penalty_is_the_dense_jacobians(kind):
    model = model_of(kind)
    step = step_of(model)
    (module, tokens, _) = step.layers[0]
    probe = step.probe(0, step.maps[0][0].combined)
    jacobian = jacrev(lambda x: module.maps(x).combined)(tokens.detach())
    pulled = torch.einsum("bhij,bhijcnd->cnd", probe, jacobian)
    assert value("map-jacobian", model).item() == pytest.approx(
        float(pulled.detach().square().sum() / len(tokens)), rel=1e-9
    )


def test_the_hinge_and_the_cap_are_the_dense_jacobians():
    model = model_of()
    step = step_of(model)
    (module, tokens, _) = step.layers[0]
    maps = step.maps[0][0]
    probe = step.probe(0, maps.positive)
    one, two = (
        torch.einsum("bhij,bhijcnd->cnd", probe, jacrev(lambda x, i=i: module.maps(x)[i])(tokens.detach()))
        for i in (0, 1)
    )
    one, two = one.detach(), two.detach()
    hinge = max(0.0, -float((one * two).sum()) / len(tokens))
    assert value("alignment", model).item() == pytest.approx(hinge, rel=1e-9)
    cap = max(0.0, float(maps.lam.detach().abs().mean() * two.norm() / one.norm()) - 0.5) ** 2
    assert cap > 0
    assert value("lambda-rho", model).item() == pytest.approx(cap, rel=1e-9)


def test_the_hinge_punishes_opposed_gradients():
    model = model_of()
    with torch.no_grad():  # the keys of A2 are those of A1 with the other sign, the queries are equal
        queries, keys, _ = model.blocks[0].attn.qkv.weight.chunk(3)
        queries[4:] = queries[:4]
        keys[4:] = -keys[:4]
        biases = model.blocks[0].attn.qkv.bias.chunk(3)
        biases[0][4:], biases[1][4:] = biases[0][:4], -biases[1][:4]
    assert value("alignment", model) > 0


@pytest.mark.parametrize("name", OF_MAPS)
@pytest.mark.parametrize("flat", [slice(0, 4), slice(4, 8)])
def test_gradients_are_finite_where_a_map_is_constant(name, flat):
    model = model_of()
    with torch.no_grad():
        for part in (*model.blocks[0].attn.qkv.weight.chunk(3)[:2], *model.blocks[0].attn.qkv.bias.chunk(3)[:2]):
            part[flat] = 0.0
    value(name, model).backward()
    assert all(w.grad is None or bool(w.grad.isfinite().all()) for w in model.parameters())


def test_jasmin_bounds_the_softmax_jacobian():
    step = step_of(model_of())
    rows = step.maps[0][0].positive.detach().flatten(0, 2)
    norms = torch.linalg.matrix_norm(torch.diag_embed(rows) - rows[:, :, None] * rows[:, None], 2)
    largest = rows.sort(descending=True).values
    bounds = largest[:, 0] * (1 - largest[:, 0] + largest[:, 1])
    assert (norms <= bounds + 1e-12).all()
    both = torch.cat([bounds, _bounds(step.maps[0][0].negative.detach().flatten(0, 2))])
    assert value("jasmin", step.model).item() == pytest.approx(float(both.log().mean()), rel=1e-9)


def _bounds(rows):
    largest = rows.sort(descending=True).values
    return largest[:, 0] * (1 - largest[:, 0] + largest[:, 1])


def test_trades_and_mart_are_the_equations():
    model = model_of()
    clean, perturbed = model(IMAGES).softmax(1).tolist(), model(PERTURBED).softmax(1).tolist()
    trades, mart = 0.0, 0.0
    for p, q, y in zip(clean, perturbed, LABELS.tolist(), strict=True):
        divergence = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        trades += (-math.log(p[y]) + 0.7 * divergence) / len(clean)
        others = max(b for k, b in enumerate(q) if k != y)
        mart += (-math.log(q[y]) - math.log(1.0001 - others) + 0.7 * divergence * (1 - p[y])) / len(clean)
    assert value("trades", model).item() == pytest.approx(trades, rel=1e-9)
    assert value("mart", model).item() == pytest.approx(mart, rel=1e-9)


def test_input_gradient_is_the_dense_one():
    model = model_of()
    slopes = jacrev(lambda x: F.cross_entropy(model(x), LABELS, reduction="sum"))(PERTURBED)
    assert value("input-gradient", model).item() == pytest.approx(float(slopes.detach().square().sum() / 6), rel=1e-9)


def test_strengths_weigh_what_is_added():
    model = model_of()
    plain = F.cross_entropy(model(PERTURBED), LABELS)
    loss = defended_loss(step_of(model), {"input-gradient": 2.0}, warm=0.5)
    assert (loss - plain).item() == pytest.approx(value("input-gradient", model).item(), rel=1e-9)
    # penalties on maps are computed at every second step, and count twice there
    assert torch.equal(defended_loss(step_of(model, number=1), {"jasmin": 2.0}), plain)
    assert (defended_loss(step_of(model), {"jasmin": 2.0}) - plain).item() == pytest.approx(
        4 * value("jasmin", model).item(), rel=1e-9
    )


@pytest.mark.parametrize(
    ("strengths", "kind", "adversarial", "message"),
    [
        ({"jacobian": 1.0}, diffvit, False, "defence 'jacobian': expected one of map-jacobian"),
        ({"jasmin": -1.0}, diffvit, False, "defend jasmin=-1: expected a finite number of at least 0"),
        ({"jasmin": math.nan}, diffvit, False, "defend jasmin=nan: expected a finite number"),
        ({"trades": 6.0}, diffvit, False, "defend trades: learns from perturbed images; give --adversarial"),
        ({"trades": 6.0, "mart": 5.0}, diffvit, True, "defend trades, mart: each is a whole loss"),
        ({"alignment": 1.0}, vit, False, "defend alignment: this model has no differential attention"),
    ],
)
def test_what_a_model_cannot_have_is_refused(strengths, kind, adversarial, message):
    with pytest.raises(UserError, match=message):
        check_defences(strengths, model_of(kind), adversarial)
    if "this model" in message:
        with pytest.raises(UserError, match="no attention whose maps can be seen"):
            check_defences({"jasmin": 1.0}, torch.nn.Linear(2, 2), adversarial)


def trained(out, defences=None, **fields):
    images = load_data("digits", split="train", progress=False).subset(48)
    sizes = {name: size for name, size in SIZES.items() if name != "num_classes"}
    recipe = make_recipe("diffvit", images, sizes, data="some", epochs=2, batch_size=20, defences=defences, **fields)
    log = train_classifier(recipe, images, images, out, progress=False)
    return load_file(out / "model.safetensors"), log


def equal(one, two):
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("name", [name for name in DEFENCES if name not in ("trades", "mart")])
def test_strength_0_trains_the_same_weights_and_another_does_not(name, tmp_path):
    plain, _ = trained(tmp_path / "plain")
    zero, _ = trained(tmp_path / "zero", {name: 0.0})
    some, log = trained(tmp_path / "some", {name: 0.9 if name == "ema" else 50.0 if name != "awp" else 0.5})
    assert equal(plain, zero)
    if name != "lambda-rho":  # whose term is 0 here
        assert not equal(plain, some)
    assert (name in log[-1]) == (find(DEFENCES, name, "defence").term is not None)


@pytest.mark.parametrize(
    "fields",
    [
        {"defences": {"jasmin": 1.0, "input-gradient": 1.0}},
        {"adversarial": {"eps": 0.1, "steps": 2}},
        {"adversarial": {"eps": 0.1, "steps": 1}, "defences": {"trades": 1.0}},
        {},
    ],
)
def test_a_process_without_images_of_the_last_batch_adds_nothing(tmp_path, monkeypatch, fields):
    images = load_data("digits", split="train", progress=False).subset(21)  # 20 and 1: the second process has 10 and 0
    sizes = {name: size for name, size in SIZES.items() if name != "num_classes"}
    recipe = make_recipe("diffvit", images, sizes, data="some", epochs=1, batch_size=20, **fields)
    second = SimpleNamespace(process_index=1, num_processes=2, device=torch.device("cpu"))
    second.prepare, second.backward = lambda *parts: parts, lambda loss: loss.backward()
    monkeypatch.setattr(loop, "train", lambda recipe, out, begin, **_: begin(second))
    task = train_classifier(recipe, images, None, tmp_path)
    losses, calls = [], []
    task.model.register_forward_hook(lambda *_: calls.append(len(losses)))
    for loss, _ in task.gradients(0, 0):
        losses.append(float(loss))
    assert math.isfinite(losses[0])
    assert calls.count(0) == calls.count(1) or "jasmin" in fields.get("defences", {})  # all processes exchange alike
    assert losses[1:] == [0.0]
    assert all(bool(w.grad.isfinite().all()) for w in task.model.parameters() if w.grad is not None)


def test_free_replays_follow_the_gradient_at_the_moved_weights_alone(tmp_path, monkeypatch):
    slopes = []

    def replay(learn, update, images, *rest):
        x = images.clone().requires_grad_()
        loss = learn(x)
        slopes.append(x.grad)
        return loss

    monkeypatch.setattr(classifier.adversarial, "replay", replay)
    for number, defences in enumerate(({"ema": 0.9}, {"ema": 0.9, "awp": 1e-9})):
        trained(tmp_path / f"{number}", defences, adversarial={"eps": 0.1, "variant": "free", "replays": 2})
    torch.testing.assert_close(slopes[0], slopes[len(slopes) // 2])


def test_trades_learns_from_both_images(tmp_path):
    adversarial = {"eps": 0.1, "steps": 1}
    weights = [
        trained(tmp_path / f"{number}", defences, adversarial=adversarial)[0]
        for number, defences in enumerate(({}, {"trades": 6.0}, {"mart": 5.0}))
    ]
    assert not any(equal(one, two) for one, two in zip(weights, [*weights[1:], weights[0]], strict=True))


def test_the_average_is_that_of_the_weights_after_each_step():
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    keep_average(optimizer, 0.75)
    seen = []
    for slope in (1.0, -2.0, 0.5):
        weight.grad = torch.tensor([slope])
        optimizer.step()
        seen.append(weight.item())
    expected = seen[0]
    for value in seen[1:]:
        expected = 0.75 * expected + 0.25 * value
    with averaged(optimizer):
        assert weight.item() == pytest.approx(expected)
    assert weight.item() == seen[-1]


def test_adversarial_weights_move_each_matrix_up_and_back():
    model = torch.nn.Linear(3, 2)
    before = [weight.detach().clone() for weight in model.parameters()]
    model(torch.rand(5, 3)).square().sum().backward()
    slope = model.weight.grad.clone()
    with adversarial_weights(model, 0.1):
        moved = model.weight.detach() - before[0]
        assert float(moved.norm()) == pytest.approx(0.1 * float(before[0].norm()), rel=1e-5)
        assert float((moved * slope).sum()) == pytest.approx(float(moved.norm() * slope.norm()), rel=1e-5)
        assert torch.equal(model.bias, before[1])
        assert model.weight.grad is None
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"defend": "map-jacobian"}, "defend 'map-jacobian': expected NAME=STRENGTH, such as map-jacobian=1"),
        ({"defend": "jasmin=1,jasmin=2"}, "expected each name once"),
        ({"defend": {"jasmin": -1}}, "defend jasmin=-1: expected a finite number"),
        ({"defend": "ema=1"}, "defend ema=1: expected at least 0, below 1"),
        ({"defend": "mart=5"}, "defend mart: learns from perturbed images"),
        ({"defend": "alignment=1", "model": "vit"}, "this model has no differential attention"),
    ],
)
def test_the_command_refuses_in_one_line(options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        ap.train(**{"model": "diffvit", "data": "digits", "out": tmp_path / "run", "limit": 20, "epochs": 1} | options)
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_twins_of_unequal_defences_are_warned_of():
    recipes = [{"epochs": 1, "data": "digits"} | more for more in ({"defences": {"jasmin": 1.0}}, {})]
    cards = [ModelCard(f"m{index}", f"m{index}", "none", 0, (1, 8, 8), 10, one) for index, one in enumerate(recipes)]
    (doubt,) = twin_doubts(*cards)
    assert doubt.endswith("recipes defences (jasmin 1.0) and defences none")


def clip_step(tmp_path, monkeypatch, **fields):
    """Return the first step's gradients in a CLIP's training, the image tower before it, its images, and the log."""
    seen = {}

    def look(task, step, gradients):
        if not seen:
            seen["model"] = copy.deepcopy(task.model)
            task.model.zero_grad()
            loss, count = next(gradients)
            seen["gradients"] = {
                name: w.grad.clone() for name, w in task.model.named_parameters() if w.grad is not None
            }
            return loss, count
        return next(gradients)

    monkeypatch.setattr(loop, "_step", look)
    recipe, pairs = tiny_recipe("diffclip", epochs=1, **fields), tiny_pairs()
    log = train_clip(recipe, pairs, tmp_path, progress=False)
    batch = next(pairs.batches(8, seed=0, epoch=0))
    share = prepare(recipe, seen["model"], 8, 0, batch)
    return seen["gradients"], seen["model"].visual, share.images / 255, log


@pytest.mark.parametrize("name", OF_MAPS)
def test_a_clip_learns_from_the_penalty_on_its_image_towers_maps(name, tmp_path, monkeypatch):
    plain, *_ = clip_step(tmp_path / "plain", monkeypatch)
    defended, visual, images, log = clip_step(tmp_path / "defended", monkeypatch, defences={name: 0.5})
    step = Step(visual, images, images, torch.zeros(len(images), dtype=torch.int64), visual, 0, 0)
    penalty = find(DEFENCES, name, "defence").term(step)
    # twice, since it is left out of every second step; of two steps in an epoch the first has half the strength
    weights = {f"visual.{key}": weight for key, weight in visual.named_parameters()}
    grads = torch.autograd.grad(2 * 0.5 * 0.5 * penalty, [*weights.values()], allow_unused=True)
    added = dict(zip(weights, grads, strict=True))
    for key, gradient in plain.items():
        more = added.get(key)
        expected = gradient if more is None else gradient + more
        torch.testing.assert_close(defended[key], expected, rtol=1e-4, atol=1e-6)
    assert any(bool(one.abs().sum() > 0) for one in grads if one is not None)
    assert math.isfinite(log[-1][name])


def test_a_clip_with_strength_0_has_the_same_weights(tmp_path):
    for name, defences in (("plain", None), ("zero", {"map-jacobian": 0.0}), ("some", {"map-jacobian": 1.0})):
        train_clip(tiny_recipe(defences=defences), tiny_pairs(), tmp_path / name, progress=False)
    plain, zero, some = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "zero", "some"))
    assert all(torch.equal(plain[key], zero[key]) for key in plain)
    assert not all(torch.equal(plain[key], some[key]) for key in plain)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("diffclip", "--defend", "ema=0.9"), "is of classifiers; expected one of map-jacobian, "),
        (("diffclip", "--defend", "trades=1"), "is of classifiers"),
        (("diffclip", "--defend", "map-jacobian=nan"), "expected a finite number"),
        (("clip", "--defend", "alignment=1"), "no differential attention"),
    ],
)
def test_train_clip_refuses_in_one_line(words, message, tmp_path, run_cli):
    data = ("--data", "openmoji", "--preset", "openmoji", "--limit", "40", "--batch-size", "8")
    code, _, err = run_cli("train-clip", "--model", *words, *data, "--out", tmp_path / "run")
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_the_log_has_the_share_of_the_time(tmp_path):
    images = load_data("digits", split="train").subset(64)
    fields = {"epochs": 1, "batch_size": 32, "precision": "float32", "data": "digits"}
    recipe = make_recipe("diffvit", images, {"dim": 8, "depth": 1, "num_heads": 2}, defences={"jasmin": 1.0}, **fields)
    (row,) = train_classifier(recipe, images, None, tmp_path, progress=False)
    assert 0.0 <= row["defence_time"] < 1.0
    begun = []

    def begin(number):  # of a penalty that takes as long as the step itself, about half
        begun.append(number)
        return step_of(model_of(), number=number)

    assert 0.0 < share_of_time(begin, {"input-gradient": 1.0}) < 1.0
    assert begun == [*range(2 * EVERY)] * 2
