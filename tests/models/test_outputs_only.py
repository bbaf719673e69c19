"""What a vision transformer leaves out where only its outputs count, and when it must not."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

from antiphase.attacks import Threat, pgd, square
from antiphase.attacks.engine.oracle import Oracle
from antiphase.attention import DifferentialAttention, SoftmaxAttention, outputs_only
from antiphase.attention.modes import is_outputs_only
from antiphase.models.transformer import Block
from antiphase.models.vit import VisionTransformer, initialise

DIM = 24


def _build(attention, depth=1):
    model = VisionTransformer(
        attention, image_size=12, patch_size=2, in_channels=1, dim=DIM, depth=depth, num_classes=4
    )
    initialise(model, seed=0)
    stream = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=stream) * 0.2)
    return model.eval()


def _images(count=5, dtype=torch.float32):
    return torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(2)).to(dtype)


def _standard(layer, **given):
    return SoftmaxAttention(DIM, 4, **given)


def _differential(layer, **given):
    return DifferentialAttention(DIM, 4, **given)


def _both_passes(model, x, keep=None):
    """Return logits and the gradients by the images and by every parameter."""
    x = x.clone().requires_grad_()
    inputs = [x, *model.parameters()]
    logits = model(x, keep)
    return [logits, *torch.autograd.grad(logits.square().sum(), inputs)]


class _Flops(TorchDispatchMode):
    """Counts those of matrix products; torch's own counter hooks all modules, and so sees whole blocks."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        self.total += count(*args, **(kwargs or {}), out_val=out) if count else 0
        return out


def _flops(model, x):
    with _Flops() as counter, torch.no_grad():
        model(x)
    return counter.total


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("make", [_standard, _differential])
@pytest.mark.parametrize("backend", ["auto", "eager", "sdpa"])
def test_logits_and_gradients_are_the_whole_models(make, backend, depth):
    model = _build(lambda layer: make(layer, backend=backend), depth).double()
    x = _images(dtype=torch.float64)
    whole = _both_passes(model, x)
    with outputs_only():
        cut = _both_passes(model, x)
    for ours, expected in zip(cut, whole, strict=True):
        assert_close(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [_standard, _differential])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_in_the_precisions_that_kernels_take(make, dtype, error):
    model, x = _build(make, depth=2), _images()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        whole = _both_passes(model, x)
        with outputs_only():
            cut = _both_passes(model, x)
    for ours, expected in zip(cut[:2], whole[:2], strict=True):  # logits, the images' gradient
        assert (ours - expected).norm() < error * expected.norm()


@pytest.mark.parametrize(
    "changes",
    [
        {"qkv_bias": False},
        {"head_norm": False},
        {"rescale": False},
        {"parameterisation": "scalar"},
        {"parameterisation": "fixed"},
    ],
    ids=str,
)
def test_with_every_part_of_differential_attention(changes):
    model, x = _build(lambda layer: _differential(layer, **changes)).double(), _images(dtype=torch.float64)
    whole = model(x)
    with outputs_only():
        assert_close(model(x), whole, rtol=1e-9, atol=1e-12)


def test_with_some_of_the_patches():
    model, x = _build(_differential).double(), _images(dtype=torch.float64)
    keep = torch.tensor([[0, 5, 35], [1, 2, 3], [9, 8, 7], [30, 20, 10], [4, 0, 1]])
    whole = _both_passes(model, x, keep)
    with outputs_only():
        cut = _both_passes(model, x, keep)
    for ours, expected in zip(cut, whole, strict=True):
        assert_close(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [_standard, _differential])
def test_the_last_block_does_no_more_than_keys_values_and_one_token(make):
    model, x = _build(lambda layer: make(layer, backend="eager"), depth=1), _images()
    two = _build(lambda layer: make(layer, backend="eager"), depth=2)
    whole, deeper = _flops(model, x), _flops(two, x)
    with outputs_only():
        cut, deeper_cut = _flops(model, x), _flops(two, x)
    tokens = 1 + 36
    patches, head, keys_and_values = 36 * 4 * DIM, DIM * 4, tokens * DIM * 2 * DIM
    queries_and_mlp = DIM * DIM + DIM * DIM + 8 * DIM * DIM  # of one token
    maps = 2 * tokens * DIM  # scores and averages of one query
    assert cut == 2 * len(x) * (patches + head + keys_and_values + queries_and_mlp + maps)
    assert cut < 0.3 * whole
    assert deeper_cut - cut == deeper - whole  # the first block of two is whole


def _across_tokens(x):
    return x - x.mean(1, keepdim=True)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1, keepdim=True).expand_as(x)


def _hooked(model):
    model.blocks[-1].mlp.fc1.register_forward_hook(lambda module, args, output: _across_tokens(output))


def _pre_hooked(model):
    model.blocks[-1].attn.proj.register_forward_pre_hook(lambda module, args: (args[0].flip(1),))


def _patched_attention(model):
    attn = model.blocks[-1].attn
    attn.forward = lambda x: x.flip(1)


def _other_attention(model):
    model.blocks[-1].attn = Mean()


def _subclassed_attention(model):
    class Louder(DifferentialAttention):
        def forward(self, x, mask=None):
            return 3 * super().forward(x, mask)

    model.blocks[-1].attn.__class__ = Louder


def _other_mlp(model):
    model.blocks[-1].mlp = Mean()


def _other_norm(model):
    class AcrossTokens(nn.LayerNorm):
        def forward(self, x):
            return super().forward(_across_tokens(x))

    model.blocks[-1].norm2.__class__ = AcrossTokens


def _subclassed_block(model):
    class Shuffled(Block):
        def forward(self, x, mask=None):
            return super().forward(x, mask).flip(1)

    model.blocks[-1].__class__ = Shuffled


def _adapted_projection(model):
    class Adapted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.repeat(1, 1, 3)

    model.blocks[-1].attn.qkv.__class__ = Adapted


def _wrapped_projection(model):
    class Wrapped(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) * 1.5

    model.blocks[-1].attn.qkv = Wrapped(model.blocks[-1].attn.qkv)


def _patched_projection(model):
    qkv = model.blocks[-1].attn.qkv
    plain = qkv.forward
    qkv.forward = lambda x: 2 * plain(x)


def _parametrised_projection(model):
    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    parametrize.register_parametrization(model.blocks[-1].attn.qkv, "weight", Doubled())


def _patched_hidden_layer(model):
    fc1 = model.blocks[-1].mlp.fc1
    plain = fc1.forward
    fc1.forward = lambda x: _across_tokens(plain(x))


def _other_activation(model):
    class Mixing(nn.GELU):
        def forward(self, x):
            return super().forward(_across_tokens(x))

    model.blocks[-1].mlp.act = Mixing()


def _patched_output(model):
    proj = model.blocks[-1].attn.proj
    plain = proj.forward
    proj.forward = lambda x: _across_tokens(plain(x))


@pytest.mark.parametrize(
    "change",
    [
        _wrapped_projection,
        _patched_projection,
        _parametrised_projection,
        _patched_hidden_layer,
        _other_activation,
        _patched_output,
        _hooked,
        _pre_hooked,
        _patched_attention,
        _other_attention,
        _subclassed_attention,
        _other_mlp,
        _other_norm,
        _subclassed_block,
        _adapted_projection,
    ],
)
def test_what_is_watched_or_changed_by_hand_still_counts(change):
    model, x = _build(_differential).double(), _images(dtype=torch.float64)
    untouched = model(x)
    change(model)
    whole = model(x)
    assert (whole - untouched).abs().max() > 1e-3
    with outputs_only():
        assert_close(model(x), whole, rtol=1e-9, atol=1e-12)


def test_hooks_see_every_token():
    model, seen = _build(_differential), []
    model.blocks[-1].mlp.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    with outputs_only():
        model(_images())
    assert seen == [(5, 37, DIM)]


def test_hooks_for_all_modules_count():
    def louder(module, args, output):
        return 1.5 * output if isinstance(module, nn.Linear) and module.out_features == 3 * DIM else None

    model, x = _build(_differential), _images()
    untouched = model(x)
    handle = nn.modules.module.register_module_forward_hook(louder)
    try:
        whole = model(x)
        with outputs_only():
            assert_close(model(x), whole)
    finally:
        handle.remove()
    assert (whole - untouched).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [Block, DifferentialAttention])
def test_classes_changed_by_hand_count(kind, monkeypatch):
    model, x = _build(_differential), _images()
    untouched, plain = model(x), kind.forward
    monkeypatch.setattr(kind, "forward", lambda module, x, mask=None: plain(module, x, mask).flip(1))
    whole = model(x)
    assert (whole - untouched).abs().max() > 1e-3
    with outputs_only():
        assert_close(model(x), whole)


def test_checkpointed_blocks_and_models():
    class Checkpointed(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return checkpoint(self.model, x, use_reentrant=False)

    model, x, threat = _build(_differential), _images(), Threat(eps=0.03)
    expected = pgd(model, x, None, threat, steps=3)
    model.checkpointing = True
    for other in (model, Checkpointed(model)):
        result = pgd(other, x, None, threat, steps=3)
        assert torch.equal(result.adversarial, expected.adversarial)


def test_it_nests_and_ends_with_an_error():
    assert not is_outputs_only()
    with outputs_only():
        with pytest.raises(RuntimeError), outputs_only():
            raise RuntimeError
        assert is_outputs_only()
    assert not is_outputs_only()


def test_a_compiled_model_follows():
    model, x = _build(_differential), _images()
    whole = model(x)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(x), whole)
        with outputs_only():
            assert_close(compiled(x), whole)
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            with outputs_only():
                compiled(x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs  # the depth of nesting is no matter


class Watched(nn.Module):
    """Takes note of whether it is asked for its outputs only."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(is_outputs_only())
        return torch.stack([x.flatten(1).sum(1), 2 * x.flatten(1)[:, 0]], 1)


def test_attacks_search_within_it_and_judge_outside_of_it():
    model, x = Watched(), _images(3)
    oracle = Oracle(model)
    oracle.verdict(x), oracle.logits(x), oracle.in_float32().logits(x), oracle.verdict(x)
    assert model.seen == [False, True, True, False]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_an_attack_finds_what_it_finds_with_the_whole_model(precision, monkeypatch):
    model, x = _build(_differential), _images(40)
    threat = Threat(eps=0.03)
    runs = [
        lambda: pgd(model, x, None, threat, steps=8, precision=precision),
        lambda: square(model, x, None, threat, queries=60, precision=precision, rescale_schedule=False),
    ]
    cut = [run() for run in runs]
    monkeypatch.setattr("antiphase.models.transformer.is_outputs_only", lambda: False)
    whole = [run() for run in runs]
    for ours, expected in zip(cut, whole, strict=True):
        assert 0 < expected.asr < 1
        assert (ours.success != expected.success).sum() <= (0 if precision == "float32" else 1)
