"""Adversarial training: what the perturbation is, what the weights learn from it, and exact resume."""

import itertools
import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from antiphase import attacks
from antiphase.attention import outputs_only
from antiphase.data import load_data
from antiphase.data.images import ArrayImages
from antiphase.errors import UserError
from antiphase.files import digest
from antiphase.models import load_model
from antiphase.models.vit import build
from antiphase.streams import generator
from antiphase.training import Recipe, accuracy, loop, make_recipe, train_classifier
from antiphase.training.adversarial import Adversary, perturb, replay, robust_accuracy, start_keys
from tests.attacks import toys
from tests.processes import together

EPS = 3 / 255
VARIANTS = ("pgd", "fast", "free")


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", split="train"), load_data("digits", split="test").subset(150)


@pytest.fixture(scope="module")
def few(digits):
    return digits[0].subset(90), digits[1].subset(40)


def recipe(images, adversary=None, **fields):
    settings = {"epochs": 3, "batch_size": 13, "learning_rate": 2e-3} | fields
    sizes = {"dim": 16, "num_heads": 2, "patch_size": 4}
    return make_recipe("diffvit", images, sizes, data="digits", adversarial=adversary, **settings)


def keys(count, sweep=0):
    return start_keys(0, sweep, torch.arange(count))


def sample(count=11, classes=5, seed=0):
    x = toys.images(count, seed=seed)
    return x, torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


# the perturbation


@pytest.mark.parametrize("variant", ["pgd", "fast"])
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_perturbed_images_are_within_this_updates_eps_and_within_the_pixels_range(variant, share):
    adversary = Adversary(eps=0.3, variant=variant)
    x, y = sample()
    x = (x - 0.35) / 0.3  # from 0 to 1: many pixels are near a bound
    x[0], x[1] = 0.0, 1.0
    moved = perturb(toys.network(), x, y, adversary, share * 0.3, keys(len(x)))
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert (moved - x).abs().max() <= share * 0.3 + 1e-6
    assert (moved - x).abs().max() > 0.99 * share * 0.3
    assert not moved.requires_grad


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 20])
def test_on_a_linear_model_pgd_reaches_the_closed_form_maximum(steps):
    model = toys.Linear(2)
    x, y = sample(classes=2)
    moved = perturb(model, x, y, Adversary(eps=EPS, steps=steps), EPS, keys(len(x)))
    away = model.weight[1 - y] - model.weight[y]
    assert (away.abs() > 1e-6).all()
    torch.testing.assert_close(moved - x, EPS * away.sign().view_as(x), rtol=0, atol=1e-6)
    # CE = log(1 + exp(margin)), and the margin's maximum over the ball is its value + ε·‖w₁ − w₀‖₁
    logits = model(x)
    margin = (logits.gather(1, 1 - y[:, None]) - logits.gather(1, y[:, None]))[:, 0] + EPS * away.abs().sum(1)
    torch.testing.assert_close(F.cross_entropy(model(moved), y, reduction="none"), F.softplus(margin))


def test_fast_is_one_step_of_five_quarters_from_a_random_start():
    model = toys.Linear(2)
    x, y = sample(classes=2)
    direction = (model.weight[1 - y] - model.weight[y]).sign().view_as(x)
    fast = perturb(model, x, y, Adversary(eps=EPS, variant="fast"), EPS, keys(len(x)))
    tiny = Adversary(eps=EPS, variant="fast", step_size=1e-12)
    start = perturb(model, x, y, tiny, EPS, keys(len(x))) - x
    torch.testing.assert_close(fast - x, (start + 1.25 * EPS * direction).clamp(-EPS, EPS), rtol=0, atol=1e-7)
    assert ((fast - x).abs() < 0.9 * EPS).any()  # it does not reach every corner
    uniform = start.flatten() / EPS
    assert uniform.std() == pytest.approx(3**-0.5, abs=0.02)
    assert uniform.abs().max() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("variant", ["pgd", "fast"])
def test_a_samples_perturbation_does_not_depend_on_its_company(variant):
    model, adversary = toys.network(), Adversary(eps=EPS, variant=variant)
    x, y = sample()
    together = perturb(model, x, y, adversary, EPS, keys(len(x)))
    backwards = torch.arange(len(x)).flip(0)
    turned = perturb(model, x[backwards], y[backwards], adversary, EPS, keys(len(x))[backwards])
    assert torch.equal(turned[backwards], together)
    for i in range(3):
        alone = perturb(model, x[i : i + 1], y[i : i + 1], adversary, EPS, keys(len(x))[i : i + 1])
        assert torch.equal(alone[0], together[i])
    assert not torch.equal(perturb(model, x, y, adversary, EPS, keys(len(x), sweep=1)), together)


def test_the_search_leaves_the_parameters_gradients_alone():
    model, (x, y) = toys.network(), sample()
    perturb(model, x, y, Adversary(eps=EPS), EPS, keys(len(x)))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_replay_gives_weights_and_images_their_gradient_at_once():
    model, (x, y) = toys.Linear(2), sample(classes=2)
    weights = torch.nn.Parameter(model.weight.detach().clone())
    model.weight = weights
    seen, grads = [], []

    def backward(moved):
        loss = F.cross_entropy(model(moved), y)
        loss.backward()
        seen.append(moved.detach().clone())
        return loss.detach()

    def update():
        grads.append(weights.grad)
        weights.grad = None

    adversary = Adversary(eps=EPS, variant="free", step_size=0.5 * EPS)
    loss = replay(backward, update, x, adversary, EPS, keys(len(x)), 3)
    direction = (weights[1 - y] - weights[y]).detach().sign().view_as(x)
    assert len(seen) == 3
    assert len(grads) == 2
    for before, after in itertools.pairwise(seen):
        step = (before + 0.5 * EPS * direction - x).clamp(-EPS, EPS)
        torch.testing.assert_close(after - x, step, rtol=0, atol=1e-6)
    for images, gradient in zip(seen, [*grads, weights.grad], strict=True):
        (expected,) = torch.autograd.grad(F.cross_entropy(model(images), y), weights)
        torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(loss, torch.stack([F.cross_entropy(model(images), y) for images in seen]).mean())


def test_eps_warms_up_in_a_line_and_the_step_with_it():
    adversary = Adversary(eps=0.1, warmup_epochs=2.0)
    budgets = [adversary.eps_at(update, 5) for update in range(20)]
    assert budgets == pytest.approx([0.01 * (update + 1) for update in range(10)] + 10 * [0.1])
    assert Adversary(eps=0.1, warmup_epochs=0).eps_at(0, 5) == 0.1
    assert adversary.step_size_at(0.1) == pytest.approx(0.2 / 3)
    assert adversary.step_size_at(0.01) == pytest.approx(0.02 / 3)
    assert Adversary(eps=0.1, steps=10).step_size_at(0.1) == pytest.approx(0.025)
    assert Adversary(eps=0.1, variant="fast").step_size_at(0.05) == pytest.approx(0.0625)
    assert Adversary(eps=0.1, variant="free").step_size_at(0.05) == pytest.approx(0.05)
    assert Adversary(eps=0.1, step_size=0.03).step_size_at(0.05) == pytest.approx(0.015)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"eps": 0.0}, "eps"),
        ({"eps": 8.0}, "eps"),
        ({"eps": float("nan")}, "eps"),
        ({"eps": 0.1, "variant": "trades"}, "variant"),
        ({"eps": 0.1, "steps": 0}, "steps"),
        ({"eps": 0.1, "step_size": 0.0}, "step_size"),
        ({"eps": 0.1, "warmup_epochs": -1.0}, "warmup_epochs"),
        ({"eps": 0.1, "variant": "fast", "steps": 7}, "steps has no effect on variant fast"),
        ({"eps": 0.1, "replays": 8}, "replays has no effect on variant pgd"),
        ({"eps": 0.1, "norm": "l2"}, "norm"),
    ],
)
def test_a_recipe_names_the_field_of_the_adversary_that_is_wrong(digits, fields, named):
    with pytest.raises(UserError, match=named):
        recipe(digits[0], fields)


# the training


def plainly_trained(plan, images):
    """Train as the recipe says, in the most obvious way."""
    model, adversary = build(plan.model, plan.seed), plan.adversarial
    optimizer = torch.optim.Adam(model.parameters(), lr=plan.learning_rate, fused=True)
    losses, updates, sweep = [], -(-len(images) // plan.batch_size), 0
    while len(losses) < plan.epochs * updates:
        order = torch.randperm(len(images), generator=generator(plan.seed, "order", sweep))
        for batch in order.split(plan.batch_size):
            x, y = images.images(batch), images.labels[batch]
            if len(losses) == plan.epochs * updates:
                break
            left = updates - len(losses) % updates  # of this epoch
            batch_keys = start_keys(plan.seed, sweep, images.ids[batch])
            eps = adversary.eps_at(len(losses), updates)
            still = Adversary(eps=adversary.eps, step_size=1e-20, steps=1)
            moved = perturb(model, x, y, still, eps, batch_keys)
            if adversary.variant != "free":
                moved = perturb(model, x, y, adversary, eps, batch_keys)
            for _ in range(min(left, adversary.updates_per_batch)):
                moved.requires_grad_(True)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(moved), y, reduction="sum") / len(y)
                loss.backward()
                step = adversary.step_size_at(eps) * moved.grad.sign()
                optimizer.step()
                losses.append(loss.item())
                moved = (moved.detach() + step).clamp(x - eps, x + eps).clamp(0, 1)
        sweep += 1
    return model.state_dict(), losses


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_weights_are_those_of_the_obvious_loop(tmp_path, few, variant):
    plan = recipe(few[0], Adversary(eps=0.2, variant=variant), seed=5)
    log = train_classifier(plan, *few, tmp_path, progress=False)
    with outputs_only():  # the same operations, so that the bits agree
        expected, losses = plainly_trained(plan, few[0])
    weights = load_file(tmp_path / "model.safetensors")
    assert len(losses) == 3 * 7  # free has as many updates as the others, of fewer minibatches
    for name in weights:
        assert torch.equal(weights[name], expected[name]), name
    first = sum(losses[:4]) / 8 + sum(losses[4:7]) / 6 if variant == "free" else sum(losses[:7]) / 7
    assert log[0]["loss"] == pytest.approx(first, rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(("variant", "stop"), [("pgd", 3), ("fast", 9), ("free", 9)])
def test_a_run_that_breaks_off_goes_on_to_the_same_weights(tmp_path, few, monkeypatch, variant, stop):
    adversary = Adversary(eps=0.1, variant=variant, **({"replays": 2} if variant == "free" else {}))
    plan = recipe(few[0], adversary, augment="flip-crop", schedule="cosine", warmup_epochs=1.0, epochs=4)
    whole = train_classifier(plan, *few, tmp_path / "whole", progress=False)
    step, clock, taken = loop._step, itertools.count(step=10), []

    def breaks_off(*arguments):
        if len(taken) == stop:
            raise KeyboardInterrupt
        taken.append(arguments)
        return step(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "_step", breaks_off)
        patched.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # each step is saved
        with pytest.raises(KeyboardInterrupt):
            train_classifier(plan, *few, tmp_path / "broken", progress=False)
    assert (tmp_path / "broken" / "state.safetensors").exists()
    monkeypatch.setattr(loop, "_step", lambda *arguments: taken.append(arguments) or step(*arguments))
    again = train_classifier(plan, *few, tmp_path / "broken", progress=False)
    assert 4 * (4 if variant == "free" else 7) <= len(taken) < stop + 4 * (4 if variant == "free" else 7)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("broken", "whole"))
    assert all(torch.equal(first[name], second[name]) for name in first.keys() | second.keys())
    without = [[{k: v for k, v in row.items() if k != "images_per_second"} for row in log] for log in (again, whole)]
    assert without[0] == without[1]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["pgd", "free"])
def test_two_processes_train_nearly_the_weights_of_one(tmp_path, variant):
    settings = (
        f"-m antiphase train --model diffvit --data digits --quiet --epochs 2 --limit 150 --batch-size 31 --dim 16 "
        f"--precision float32 --adversarial 8/255 --adversarial-variant {variant} --out"
    ).split()
    for count, name in ((1, "one"), (2, "two")):
        together(count, *settings, tmp_path / name)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name in one:
        if not name.endswith("qkv.bias"):  # a bias of the keys changes no map: Adam makes whole steps of its rounding
            torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_adversarial_training_makes_a_model_more_robust_than_its_natural_twin(tmp_path, digits):
    eps, scores = 12 / 255, {}
    small = (digits[0].subset(600), digits[1])
    for name, adversary in (("natural", None), ("robust", Adversary(eps=eps, steps=2))):
        plan = recipe(small[0], adversary, epochs=12, batch_size=50, learning_rate=5e-3)
        log = train_classifier(plan, *small, tmp_path / name, progress=False)
        model = load_model(str(tmp_path / name))
        scores[name] = robust_accuracy(model, digits[1], eps)
        assert accuracy(model, digits[1]) == log[-1]["accuracy"] > 0.7
        assert log[-1].get("robust_accuracy") == (scores[name] if adversary else None)
    assert scores["robust"] > scores["natural"] + 0.1


@pytest.mark.parametrize("eps", [0.005, 0.01])
def test_robust_accuracy_is_that_of_the_attack(eps):
    model = toys.network()
    x, y = sample(150)
    predicted = model(x).argmax(1)
    y = torch.where(torch.arange(150) % 4 > 0, predicted, y)  # most are right to begin with
    names = tuple("abcde")
    data = ArrayImages(name="toy", split="test", class_names=names, ids=torch.arange(150) * 3 + 1, labels=y, pixels=x)
    robust = robust_accuracy(model, data, eps, seed=4)
    threat = attacks.Threat(eps=eps)
    result = attacks.pgd(model, x, y, threat, steps=10, seed=4, ids=data.ids)
    assert robust == pytest.approx(1 - result.asr, abs=1e-9)
    assert 0.02 < robust < float((predicted == y).double().mean()) - 0.05
    assert robust_accuracy(model, data, 0.3) == 0


# what a recipe is


NATURAL = {
    "model": {
        "attention": "differential",
        "image_size": 28,
        "patch_size": 4,
        "in_channels": 1,
        "dim": 192,
        "depth": 1,
        "num_heads": 6,
        "num_classes": 10,
        "mlp_ratio": 4.0,
        "mean": [0.286],
        "std": [0.353],
        "lambda_init": 0.8,
        "lambda_schedule": "constant",
        "parameterisation": "vector",
        "head_norm": True,
        "rescale": True,
        "norm_eps": 1e-6,
    },
    "data": "fashion-mnist",
    "data_fingerprint": "0a73535d266375c022583865ec8536828c1d0d912f04f835c14c146b8b59e808",
    "seed": 0,
    "epochs": 8,
    "batch_size": 128,
    "optimizer": "adam",
    "learning_rate": 0.0005,
    "weight_decay": 0.0,
    "schedule": "cosine",
    "warmup_epochs": 0.0,
    "augment": "none",
    "precision": "bf16",
    "store": "float16",
}


def test_an_adversarial_recipe_is_written_whole_and_read_again():
    plan = Recipe.model_validate(NATURAL | {"adversarial": {"eps": 0.1, "variant": "free", "replays": 8}})
    fields = json.loads(plan.model_dump_json())
    assert fields["adversarial"] == {
        "eps": 0.1,
        "variant": "free",
        "steps": 3,
        "step_size": None,
        "warmup_epochs": 1.0,
        "replays": 8,
    }
    natural = Recipe.model_validate(NATURAL).model_dump(mode="json")
    assert fields | {"adversarial": None} == natural
    assert Recipe.model_validate(fields) == plan
    assert digest(plan.model_dump_json()) != digest(Recipe.model_validate(NATURAL).model_dump_json())


def test_a_natural_and_an_adversarial_run_do_not_go_on_in_each_others_directory(tmp_path, few):
    plans = {"natural": recipe(few[0], epochs=1), "adversarial": recipe(few[0], Adversary(eps=0.1), epochs=1)}
    for name, plan in plans.items():
        log = train_classifier(plan, *few, tmp_path / name, progress=False)
        assert train_classifier(plan, *few, tmp_path / name, progress=False) == log  # finished
        assert ("robust_accuracy" in log[0]) == (name == "adversarial")
    for name, other in (("natural", "adversarial"), ("adversarial", "natural")):
        with pytest.raises(UserError, match="contains a run that differs"):
            train_classifier(plans[name], *few, tmp_path / other, progress=False)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--adversarial one", "one"),
        ("--adversarial 0", "adversarial.eps 0.0"),
        ("--adversarial 8", "adversarial.eps 8.0"),
        ("--adversarial 1/255,2/255", "1/255,2/255"),
        ("--adversarial 1/255 --adversarial-variant trades", "trades"),
        ("--adversarial 1/255 --adversarial-steps 0", "adversarial_steps 0: expected an integer of at least 1"),
        ("--adversarial 1/255 --adversarial-step-size -1/255", "step_size"),
        ("--adversarial 1/255 --adversarial-warmup -1", "adversarial_warmup -1: expected a number of at least 0"),
        ("--adversarial 1/255 --adversarial-variant fast --adversarial-steps 7", "steps has no effect on variant fast"),
        ("--adversarial 1/255 --replays 8", "replays has no effect on variant pgd"),
        ("--adversarial-steps 7", "give --adversarial"),
        ("--replays 4", "give --adversarial"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, monkeypatch, run_cli, options, named):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_cli("train", "--model", "vit", "--data", "digits", "--out", "x", *options.split())
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert named in err
    assert not list(tmp_path.iterdir())
