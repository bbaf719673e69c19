"""A λ, a differential attention and a data source of one's own: each is one thing and one line that registers it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from antiphase.attention import AttentionMaps, combine, softmax_maps
from antiphase.commands.lineup import Lineup
from antiphase.commands.sense import SenseOptions
from antiphase.commands.sense import run as sense
from antiphase.commands.train import TrainClipOptions
from antiphase.data import ArrayImages, load_data, sources
from antiphase.data.sources import Source
from antiphase.errors import UserError
from antiphase.models import diffvit, load_model
from antiphase.models.card import attention_kind, layer_lambdas, mean_lambdas
from antiphase.models.clip import ClipVariant, diffclip
from antiphase.models.transformer import AttentionSpec
from antiphase.models.vit import build, configure
from antiphase.registry import ATTENTION, CLIPS, LAMBDAS, VITS
from antiphase.sensitivity import attention_maps
from antiphase.sensitivity.maps import attention_layers
from antiphase.studies.cells import TrainClip, TrainVit
from antiphase.studies.paper_settings import facts_of
from antiphase.training import make_recipe, train_classifier
from antiphase.training.recipe import make_clip_recipe
from tests.commands.audits import attack_options, audit

SIZES = {"dim": 16, "num_heads": 4, "depth": 2, "patch_size": 4}


class TokenLambda(nn.Module):
    """λ = 2·λ_init·σ(w·x) for each head and query."""

    reads_tokens = True

    def __init__(self, dim, heads, lambda_init):
        super().__init__()
        self.lambda_init = lambda_init
        self.gate = nn.Linear(dim, heads)

    def draw_parameters(self, stream):
        with torch.no_grad():
            self.gate.weight.normal_(0.0, 0.3, generator=stream("gate.weight"))
            self.gate.bias.fill_(0.1)

    def forward(self, x):
        return 2 * self.lambda_init * self.gate(x).sigmoid().transpose(1, 2)


class SharedQueryAttention(nn.Module):
    """Differential attention whose two maps have the same queries; each map has keys of its own."""

    def __init__(self, dim, heads, lam):
        super().__init__()
        self.num_diff_heads = heads
        self.qkv = nn.Linear(dim, 4 * dim)
        self.lam = lam
        self.proj = nn.Linear(dim, dim)

    def parts(self, projected):
        q, k1, k2, v = (x.unflatten(-1, (self.num_diff_heads, -1)).transpose(1, 2) for x in projected.chunk(4, -1))
        return (q, q), (k1, k2), v

    def maps(self, x, mask=None):
        (q1, q2), (k1, k2), _ = self.parts(self.qkv(x))
        return AttentionMaps(softmax_maps(q1, k1, mask), softmax_maps(q2, k2, mask), self.lam())

    def finish(self, heads):
        return self.proj(heads.transpose(1, 2).flatten(2))

    def forward(self, x, mask=None):
        v = self.parts(self.qkv(x))[2]
        return self.finish(self.maps(x, mask).combined @ v)


SHARED = AttentionSpec(
    "shared queries",
    differential=True,
    make=lambda config, layer: SharedQueryAttention(
        config.dim, config.num_heads // 2, LAMBDAS["token"](None, 0.5) if config.parameterisation == "token" else Own()
    ),
)


class Own(nn.Module):
    """λ = 0.8 + c."""

    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.ones(()))

    def draw_parameters(self, stream):
        nn.init.zeros_(self.c)

    def forward(self):
        return 0.8 + self.c


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(LAMBDAS, "token", lambda sizes, init: TokenLambda(sizes.dim, sizes.num_diff_heads, init))
    monkeypatch.setitem(ATTENTION, "shared", f"{__name__}:SHARED")
    monkeypatch.setitem(VITS, "sharedvit", "shared")


@pytest.fixture
def digits():
    return load_data("digits", split="train", limit=32)


def _trained(kind, images, folder, **fields):
    """Train for two steps; return the model as it is loaded again."""
    recipe = make_recipe(kind, images, SIZES | fields, data="digits", epochs=2, batch_size=32, learning_rate=0.01)
    train_classifier(recipe, images, images, folder)
    return load_model(str(folder))


def _rebuilt(model, pixels):
    """Check that each layer's output is rebuilt from its maps, which are the module's own; return the layers."""
    layers = list(attention_layers(model, pixels))  # compares the rebuilt output with the module's own
    assert len(layers) == SIZES["depth"]
    for layer, module in zip(layers, (block.attn for block in model.blocks), strict=True):
        maps = module.maps(layer.tokens)
        assert_close(layer.maps.combined, maps.combined)
        assert_close(maps.combined, combine(maps.positive, maps.negative, maps.lam))
    return layers


def test_a_lambda_of_ones_own_is_trained_taken_apart_and_stored(digits, tmp_path):
    model = _trained("diffvit", digits, tmp_path / "run", parameterisation="token")
    pixels = digits.images(range(3))
    start = diffvit(8, seed=0, parameterisation="token", in_channels=1, num_classes=10, **SIZES)
    gate = model.blocks[0].attn.lam.gate.weight
    assert 0 < (gate - start.blocks[0].attn.lam.gate.weight).abs().max() < 0.1  # two steps of 0.01
    layers = _rebuilt(model, pixels)
    assert [layer.lam.shape for layer in layers] == [(3, 2, 5)] * 2  # two heads, four patches and the class token
    rows = attention_maps(model, pixels)[layers[0].name].combined.sum(-1)
    assert_close(rows, 1 - layers[0].lam)
    means = mean_lambdas(model, pixels)
    assert means == pytest.approx([float(layer.lam.mean()) for layer in layers])
    assert [lam.shape for lam in layer_lambdas(model, pixels)] == [(3, 2, 5)] * 2
    assert mean_lambdas(model) == []  # without tokens there is no λ


def test_the_first_token_alone_has_its_own_lambda():
    model = diffvit(8, parameterisation="token", **SIZES).eval()
    attention, x = model.blocks[0].attn, torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
    assert_close(attention(x, queries=1), attention(x)[:, :1])


def test_it_draws_its_own_weights_by_the_seed_and_the_name():
    one, two = (diffvit(8, seed=1, parameterisation="token", depth=2).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    weights = [one[f"blocks.{layer}.attn.lam.gate.weight"] for layer in range(2)]
    assert not torch.equal(*weights)
    assert weights[0].std() == pytest.approx(0.3, rel=0.3)
    assert one["blocks.0.attn.lam.gate.bias"].unique().item() == pytest.approx(0.1)


def test_a_lambda_that_cannot_draw_its_weights_is_refused(monkeypatch):
    monkeypatch.delattr(TokenLambda, "draw_parameters")
    with pytest.raises(TypeError, match=r"lam.gate.weight: .* give it draw_parameters\(stream\)"):
        diffvit(8, parameterisation="token")


def test_it_fits_a_dual_encoder():
    sizes = {"dim": 16, "depth": 1, "num_heads": 4}
    model = diffclip(
        vision=sizes | {"image_size": 8, "patch_size": 4, "parameterisation": "token"},
        text=sizes | {"context_length": 8},
        embed_dim=8,
        attention="differential",
    ).eval()
    texts = torch.tensor([[49406, 320, 49407]])
    lambdas = layer_lambdas(model, torch.rand(1, 3, 8, 8), texts)
    assert [lam.shape for lam in lambdas] == [(1, 2, 5), ()]


def test_an_attention_of_ones_own_is_trained_taken_apart_and_stored(digits, tmp_path):
    model = _trained("sharedvit", digits, tmp_path / "run")
    assert model.card.recipe["model"]["attention"] == "shared"
    assert attention_kind(model) == "differential"
    start = build(configure("shared", 8, SIZES))
    assert start.blocks[0].attn.lam.c == 0  # drawn by itself, where it is made as 1
    assert model.blocks[0].attn.lam.c != 0  # trained
    layers = _rebuilt(model, digits.images(range(3)))
    for branch, name in ((layers[0].positive, "positive"), (layers[0].negative, "negative")):
        x = layers[0].tokens.detach().requires_grad_()
        attention_map = getattr(model.blocks[0].attn.maps(x), name)
        upstream = torch.randn(attention_map.shape, generator=torch.Generator().manual_seed(0))
        (expected,) = torch.autograd.grad((attention_map * upstream).sum(), x)
        assert_close(branch.vjp(upstream).sum(1), expected)  # its closed form knows the projections
    assert [lam.item() for lam in layer_lambdas(model)] == [layer.lam.item() for layer in layers]


def test_an_attention_of_ones_own_is_a_choice_of_the_command_line(tmp_path, run_cli):
    sizes = ["--dim", 16, "--heads", 4, "--depth", 1, "--patch-size", 4, "--limit", 16]
    words = ["--data", "digits", "--epochs", 1, *sizes, "--lambda-init", 0.8, "-q", "--out"]
    code, _, errors = run_cli("train", "--model", "sharedvit", *words, tmp_path / "run")
    assert (code, errors) == (0, "")
    assert isinstance(load_model(str(tmp_path / "run")).blocks[0].attn, SharedQueryAttention)
    code, _, errors = run_cli("train", "--model", "convnet", *words, tmp_path / "none")
    assert code == 2
    assert f"model 'convnet': expected one of {', '.join(VITS)}, or a model" in errors


def test_a_lambda_of_ones_own_is_a_choice_of_the_command_line(tmp_path, run_cli):
    sizes = ["--dim", 16, "--heads", 4, "--depth", 1, "--patch-size", 4, "--limit", 16]
    words = ["--data", "digits", "--epochs", 1, *sizes, "-q", "--parameterisation"]
    run = tmp_path / "run"
    code, _, errors = run_cli("train", "--model", "diffvit", *words, "token", "--out", run)
    assert (code, errors) == (0, "")
    assert isinstance(load_model(str(run)).blocks[0].attn.lam, TokenLambda)
    for model, kind, line in (
        ("diffvit", "matrix", f"'matrix': expected one of {', '.join(LAMBDAS)}"),
        ("vit", "token", ": a vit has no λ; leave it out or train a diffvit"),
    ):
        code, _, errors = run_cli("train", "--model", model, *words, kind, "--out", tmp_path / "none")
        assert (code, errors.count("\n")) == (2, 1)
        assert line in errors


def test_a_clip_variant_of_ones_own_is_an_entry_in_the_registry(monkeypatch):
    variant = ClipVariant("CLIP, shared queries", {"towers": "vision", "attention": "shared"})
    monkeypatch.setitem(CLIPS, "shared-vision", variant)
    options = TrainClipOptions(model="shared-vision", data="openmoji", out="run", lambda_init=0.8)
    model = make_clip_recipe(options.model, "openmoji", options.data, "0", options.chosen("init", "lambda_init")).model
    assert (model.vision.attention, model.text.attention) == ("shared", "softmax")
    cell = TrainClip(variant="shared-vision", data="openmoji", preset="openmoji")
    assert (cell.series, cell.factors()["lambda_schedule"]) == ("CLIP, shared queries", "constant")


def test_its_alignment_is_measured_like_any_other(digits, tmp_path):
    model = _trained("sharedvit", digits, tmp_path / "run")
    out = tmp_path / "sense"
    out.mkdir()
    options = SenseOptions(model=("m",), probes=2, eps=(4 / 255,), out=out, quiet=True)
    summary = sense.run(options, lineup=Lineup([model], [], digits.subset(2)))
    assert summary["models"][0]["attention"] == "differential"
    assert summary["models"][0]["lambda"] == mean_lambdas(model)


def test_a_lambda_for_each_query_weighs_a_head_by_its_mean_over_the_queries(digits):
    model = diffvit(8, parameterisation="token", **SIZES).eval()
    (layer, *_) = attention_layers(model, digits.images(range(2)))
    assert_close(layer.weight, layer.lam.mean(-1))
    with pytest.raises(UserError, match="λ differs from query to query; expected `lambda_of`"):
        replace(layer, lambda_of=None).subtracted  # noqa: B018 (it raises)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"parameterisation": "matrix"}, f"parameterisation 'matrix': expected one of {', '.join(LAMBDAS)}, token"),
        ({"attention": "x"}, "attention 'x': not an option here"),
    ],
)
def test_what_is_not_registered_is_named(fields, message):
    with pytest.raises(UserError, match=message):
        diffvit(8, **fields)


def test_a_model_that_no_attention_belongs_to_is_named(digits):
    with pytest.raises(UserError, match=f"model 'convnet': expected {' or '.join(VITS)}"):
        make_recipe("convnet", digits, {}, data="digits")


def _stripes(split):
    """Return images of 12 pixels whose class is the row that is bright."""
    labels = torch.arange(24) % 3
    pixels = torch.zeros(24, 3, 12, 12)
    pixels[torch.arange(24), :, labels] = 1.0
    names = ("top", "middle", "bottom")
    return ArrayImages(
        name="stripes", split=split, class_names=names, ids=torch.arange(24), labels=labels, pixels=pixels
    )


@pytest.fixture
def stripes(monkeypatch):
    source = Source("stripes", _stripes, image_size=12, classes=3, train_images=24)
    monkeypatch.setitem(sources._SOURCES, "stripes", source)
    return load_data("stripes")


def test_a_source_of_ones_own_is_trained_and_audited_on(stripes, tmp_path):
    recipe = make_recipe("vit", stripes, SIZES, data="stripes", epochs=1, batch_size=8)
    train_classifier(recipe, stripes, stripes, tmp_path / "run")
    model = load_model(str(tmp_path / "run"))
    assert model.image_shape == (3, 12, 12)
    audit([model], [], stripes.subset(4), attack_options((0.1,)), tmp_path / "audit")
    assert (tmp_path / "audit" / "rows.parquet").is_file()


def test_a_study_plans_with_the_facts_of_its_source(stripes):
    cell = TrainVit(model="vit", data="stripes", sizes=SIZES, recipe={"epochs": 2})
    assert cell.pixels == 12
    assert ("train.data", "stripes") in list(facts_of(cell))


def test_a_study_on_unknown_data_is_refused():
    with pytest.raises(UserError, match="unknown data source 'digit'"):
        list(facts_of(TrainVit(model="vit", data="digit", image_size=8, sizes=SIZES)))


@pytest.mark.parametrize(("name", "split"), [("digits", "train"), ("specimen-fashion-mnist", "test")])
def test_the_facts_of_a_source_are_those_of_its_images(name, split):
    images, source = load_data(name, split=split), sources.source_of(name)
    assert images.image_shape == (source.channels, source.image_size, source.image_size)
    assert len(images.class_names) == source.classes
    assert source.train_images in (None, len(images))
