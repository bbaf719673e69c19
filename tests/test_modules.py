"""Models of every kind as they come: their device, evaluation mode, weights and failures."""

import copy
import warnings
from collections import namedtuple

import pytest
import torch
from torch import nn

import antiphase as ap
from antiphase.attacks import Threat, fab, pgd, square
from antiphase.errors import UserError
from antiphase.models.card import attention_kind
from antiphase.modules import device_of, differentiable, evaluating, running, to_evaluation
from tests.attacks import toys

THREAT = Threat(eps=0.02)
Output = namedtuple("Output", "logits")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(60, 5))


def exported(batch=16, **options):
    return torch.export.export(network().eval(), (toys.images(batch),), **options).module()


def scripted(freeze=False):
    with warnings.catch_warnings(action="ignore"):  # of what torch deprecates
        module = torch.jit.script(network().eval())
        return torch.jit.freeze(module) if freeze else module


def traced():
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.trace(network().eval(), toys.images(2))


def made_in_inference_mode():
    with torch.inference_mode():
        return network()


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", toys.Linear(5).weight.detach().clone())

    def forward(self, images):
        return images.flatten(1) @ self.weight.T


class Stubborn(nn.Module):
    """Is in training mode and refuses any other, but has no layer to which that matters."""

    def __init__(self):
        super().__init__()
        self.inner = toys.Linear(5)

    def train(self, mode=True):
        raise NotImplementedError("has one mode")

    def forward(self, images):
        return self.inner(images)


DYNAMIC = {"dynamic_shapes": ({0: torch.export.Dim("batch", min=2, max=512)},)}


@pytest.mark.parametrize(
    "make",
    [exported, lambda: exported(**DYNAMIC), scripted, lambda: scripted(freeze=True), traced, made_in_inference_mode],
)
def test_special_module_is_attacked_like_the_plain_one(make):
    images = toys.images(16)
    result = pgd(make(), images, None, THREAT, steps=3)
    expected = pgd(network(), images, None, THREAT, steps=3)
    assert torch.equal(result.success, expected.success)
    torch.testing.assert_close(result.adversarial, expected.adversarial)


@pytest.mark.parametrize("attack", [pgd, fab, square])
def test_finished_result_survives_a_module_that_refuses_its_mode(attack):
    budget = {"queries": 5} if attack is square else {"steps": 2}
    model = Stubborn()
    result = attack(model, toys.images(3), None, THREAT, **budget)
    assert torch.equal(result.adversarial, attack(model.inner, toys.images(3), None, THREAT, **budget).adversarial)
    assert model.training
    assert model.inner.training


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(5)), r"1\.weight is lazy .* call it on a batch"),
        (lambda: network().to("meta"), r"0\.weight is on the meta device.*to_empty"),
        (
            lambda: network().half(),
            r"torch\.float32 for weights of torch\.float16: convert it with model\.to\(torch\.float32\)",
        ),
        (lambda: network().bfloat16(), r"weights of torch\.bfloat16: convert it with model\.to\(torch\.float32\)"),
        (lambda: network().double(), r"model\.to\(torch\.float32\), or the images with images\.to\(torch\.float64\)"),
        (lambda: lambda images: (images, None), r"returned a tuple .* logits of shape \(16, classes\)"),
        (lambda: lambda images: {"logits": images}, "returned a dict"),
        (lambda: lambda images: Output(images), "returned a Output"),
        (lambda: lambda images: images.flatten(1)[:, 0], r"returned \(16,\)"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, 5)), r"fails on images of shape \(3, 7, 5\) \(RuntimeError"),
        (lambda: exported(3), r"Guard failed.*dynamic_shapes"),
    ],
)
def test_unusable_model_is_one_line_and_keeps_its_mode(make, says):
    model = make()
    with pytest.raises(UserError, match=says) as raised:
        pgd(model, toys.images(3), None, THREAT, steps=1)
    assert "\n" not in str(raised.value)
    assert not isinstance(model, nn.Module) or model.training


@pytest.mark.parametrize(
    ("make", "device"), [(Buffers, "cpu"), (network, "cpu"), (nn.Flatten, "cuda:3"), (lambda: len, "cuda:3")]
)
def test_device_of_any_callable(make, device):
    assert device_of(make(), "cuda:3") == torch.device(device)


def test_evaluating_restores_the_mode_of_every_part():
    model = network()
    model[1].eval()
    modes = [part.training for part in model.modules()]
    with evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model.modules()] == modes


def test_evaluating_restores_through_train_of_the_module():
    class Merging(nn.Module):  # as low-rank adapters that merge their weights for evaluation
        merged = False

        def train(self, mode=True):
            self.merged = not mode
            return super().train(mode)

    model = nn.Sequential(Merging())
    with evaluating(model):
        assert model[0].merged
    assert not model[0].merged


def test_to_evaluation_reaches_the_parts_behind_an_exported_program():
    model = nn.Sequential(exported(), nn.Dropout())
    assert not to_evaluation(model)[1].training
    assert not model.training


def test_differentiable_copies_only_what_has_no_gradients():
    plain = network()
    assert differentiable(plain) is plain
    made = made_in_inference_mode()
    copied = differentiable(made)
    assert copied is not made
    assert not any(weight.is_inference() for weight in copied.state_dict().values())
    assert all(map(torch.equal, copied.state_dict().values(), plain.state_dict().values()))


def test_running_keeps_the_lines_of_user_errors():
    with pytest.raises(UserError, match=r"^mine$"), running(network(), toys.images(1)):
        raise UserError("mine")


class InPlace(nn.Module):
    """Changes what it is given before it looks at it, or a copy of that."""

    image_shape = (1, 28, 28)

    def __init__(self, inner, change, copies):
        super().__init__()
        self.inner, self.change, self.copies = inner, change, copies

    def forward(self, images):
        images = images.clone() if self.copies else images
        self.change(images)
        return self.inner(images)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.sub_(0.5).div_(0.5),
        lambda x: x.clamp_(0.4, 0.6),
        lambda x: x.mul_(1.5),
        lambda x: x.__setitem__((slice(None), 0), 0.5),
    ],
)
@pytest.mark.parametrize("attack", [pgd, fab])
def test_model_that_writes_to_its_images_is_attacked_like_one_that_copies_them(change, attack):
    images = toys.images(5)
    before, results = images.clone(), []
    for copies in (False, True):
        model = InPlace(toys.network(), change, copies)
        results.append(attack(model, images, None, THREAT, steps=3, passes=2))
    assert torch.equal(results[0].adversarial, results[1].adversarial)
    assert torch.equal(images, before)


def test_model_that_writes_to_its_images_is_measured_and_certified_like_one_that_copies_them():
    data = ap.load_data("specimen-fashion-mnist", limit=2)
    inner = ap.load_model("specimen:diffvit-0")
    tables, certified = [], []
    for copies in (False, True):
        model = InPlace(copy.deepcopy(inner), lambda x: x.sub_(0.25).mul_(1.5), copies)
        sensed = ap.sense(
            model,
            data=data,
            parts=("alignment", "lipschitz", "depth"),
            samples=2,
            steps=2,
            points=1,
            probes=2,
            limit=1,
            lipschitz_limit=1,
            quiet=True,
        )
        tables.append([sensed.frame(part) for part in ("alignment", "lipschitz", "depth")])
        certified.append(ap.certify(model, data=data, sigma=0.1, samples=20, select=5, limit=1, quiet=True).frame())
    assert all(one.equals(two) for one, two in zip(*tables, strict=True))
    assert certified[0].equals(certified[1])


@pytest.mark.parametrize("make", [Buffers, made_in_inference_mode, scripted])
def test_audit_takes_special_modules(make):
    images = toys.images(4, (3, 7, 5))
    model = make()
    data = ap.load_data((images, torch.arange(4) % 5))
    audit = ap.audit(model, data=data, eps="4/255", steps=2, quiet=True)
    assert len(audit.frame()) == 4
    assert model.training == (make is not scripted)


@pytest.mark.parametrize("kind", ["scripted", "exported"])
def test_attention_in_a_graph_is_unknown(kind):
    model = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    inputs = torch.rand(2, 3, 8)
    if kind == "exported":
        graph = torch.export.export(model, (inputs,)).module()
    else:
        with warnings.catch_warnings(action="ignore"):
            graph = torch.jit.trace(model, inputs)
    assert attention_kind(graph) == "unknown"
    assert attention_kind(exported()) == "none"
