"""The gradient of a whole batch, whatever the parts and processes: against plain autograd and slow loops."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from safetensors.torch import load_file

from antiphase.training.contrastive import accumulate, feature_gradients
from tests.processes import together
from tests.training.tiny_pairs import COUNT, gradients, model_of, share_of


def plain_loss(model, kind, rows):
    """The loss by its formula, with one graph over everything."""
    share = share_of()
    image, text = model(share.images[rows].to(model.logit_scale.dtype) / 255, share.tokens[rows])
    logits = model.logit_scale.exp() * F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).T
    if kind == "siglip":
        signs = 2 * torch.eye(len(logits)) - 1
        return -F.logsigmoid(signs * (logits + model.logit_bias)).sum() / len(logits)
    labels = torch.arange(len(logits))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def close(values, expected, share=1e-5):
    assert values.keys() == expected.keys()
    for name in expected:
        size = float(expected[name].abs().max())
        torch.testing.assert_close(values[name], expected[name], rtol=0, atol=share * size + 1e-9, msg=name)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("part", [None, 1, 4, COUNT, 100])
def test_parts_give_the_gradient_of_the_whole(kind, part):
    model = model_of(kind)
    loss = plain_loss(model, kind, slice(None))
    loss.backward()
    expected = gradients(model)
    model.zero_grad()
    total = accumulate(model, share_of(), Accelerator(cpu=True), kind=kind, precision="float32", part=part)
    torch.testing.assert_close(total, loss.detach())
    close(gradients(model), expected)


def test_places_of_bad_samples_take_no_part():
    # in float64, since the terms of λ's gradient cancel: float32 gives it to about 1e-5 (dev/attention-backends.md)
    model, valid = model_of("clip").double(), torch.ones(COUNT, dtype=torch.bool)
    valid[[2, 7]] = False
    twin = copy.deepcopy(model)
    plain_loss(twin, "clip", valid.nonzero().squeeze(1)).backward()
    accumulate(model, share_of(valid), Accelerator(cpu=True), kind="clip", precision="float32", part=3)
    close(gradients(model), gradients(twin), share=1e-11)


def test_a_batch_of_bad_samples_alone_moves_nothing():
    model = model_of("siglip")
    share = share_of(torch.zeros(COUNT, dtype=torch.bool))
    assert float(accumulate(model, share, Accelerator(cpu=True), kind="siglip", precision="float32", part=4)) == 0
    assert all(not gradient.any() for gradient in gradients(model).values())


def test_memory_grows_with_the_part_and_not_with_the_batch():
    def peak(part):
        total, largest = 0, 0

        class Kept:
            def __init__(self, tensor):
                nonlocal total, largest
                self.tensor, self.size = tensor, tensor.numel() * tensor.element_size()
                if tensor.untyped_storage().data_ptr() in weights:  # the same for every batch
                    self.size = 0
                total += self.size
                largest = max(largest, total)

            def __del__(self):
                nonlocal total
                total -= self.size

        model = model_of("clip")
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            accumulate(model, share_of(), Accelerator(cpu=True), kind="clip", precision="float32", part=part)
        return largest

    whole, one, two = peak(None), peak(1), peak(2)
    assert one < 0.25 * whole
    assert two < 2.1 * one


def test_slip_exact_is_the_gradient_of_slips_code_on_two_devices():
    draw = torch.Generator().manual_seed(0)
    image, text = (torch.randn(6, 5, generator=draw, dtype=torch.float32) for _ in range(2))
    scale = torch.tensor(2.0)
    exact = feature_gradients(image, text, scale, None, "slip_exact")
    totals = [torch.zeros_like(image), torch.zeros_like(text)]
    for device in range(2):  # each has three pairs; what it gathers of the others and itself has no gradient
        rows = slice(3 * device, 3 * device + 3)
        leaves = [side[rows].clone().requires_grad_() for side in (image, text)]
        mine = [F.normalize(side, dim=-1) for side in leaves]
        every = [F.normalize(side, dim=-1) for side in (image, text)]
        labels = torch.arange(3) + 3 * device
        loss = sum(F.cross_entropy(scale.exp() * mine[one] @ every[1 - one].T, labels) for one in (0, 1)) / 2
        for total, gradient in zip(totals, torch.autograd.grad(loss, leaves), strict=True):
            total[rows] += gradient / 2  # the mean over the devices
    torch.testing.assert_close(exact.image, totals[0])
    torch.testing.assert_close(exact.text, totals[1])
    full = feature_gradients(image, text, scale, None, "clip")
    assert (full.image - exact.image).abs().max() > 0.01


WORKER = """
import sys
import torch
from safetensors.torch import save_file
from antiphase.training.contrastive import Share, accumulate
from antiphase.processes import start_processes
sys.path.insert(0, sys.argv[3])
from tiny_pairs import gradients, model_of, share_of

accelerator = start_processes()
world, rank, whole = accelerator.num_processes, accelerator.process_index, share_of()
valid = torch.ones(12, dtype=torch.bool)
valid[11] = False  # eleven samples on two processes: one place stays empty
images = torch.cat([whole.images, torch.zeros_like(whole.images[:1])])[rank::world]
tokens = torch.cat([whole.tokens, whole.tokens[:1]])[rank::world]
model = model_of(sys.argv[1])
share = Share(images, tokens, valid[rank::world], None, 12)
accumulate(model, share, accelerator, kind=sys.argv[1], precision="float32", part=4)
save_file(gradients(model), f"{sys.argv[2]}/{rank}.safetensors")
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["clip", pytest.param("siglip", marks=pytest.mark.thorough)])
def test_two_processes_have_the_gradient_of_one(tmp_path, kind):
    model = model_of(kind)
    plain_loss(model, kind, slice(None)).backward()
    (tmp_path / "worker.py").write_text(WORKER)
    together(2, tmp_path / "worker.py", kind, tmp_path, Path(__file__).parent)
    for rank in range(2):
        close(load_file(tmp_path / f"{rank}.safetensors"), gradients(model))
