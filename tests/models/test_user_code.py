"""A user's own model: what a function of a Python file returns."""

import json
import sys

import polars as pl
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import antiphase as ap
from antiphase.commands.audit import AuditOptions
from antiphase.commands.loading import load_models
from antiphase.errors import UserError
from antiphase.models import load_model
from antiphase.models.schemes.python_code import source_digest
from antiphase.models.zoo import fingerprint
from antiphase.studies.cells.models import given
from antiphase.studies.plan import load_study

LAYERS = """
from torch import nn
WIDTH = {width}
class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)
"""
MODEL = """
import torch
from torch import nn
from own_layers import WIDTH, Mean

class Net(nn.Module):
    def __init__(self, patch=7, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, (28 // patch) ** 2, WIDTH))
        self.head = nn.Sequential(Mean(), nn.Linear(WIDTH, classes))

    def forward(self, images):
        return self.head(self.patches(images).flatten(2).mT + self.positions)

def build(patch=7):
    return Net(patch)

def small():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

def stated():
    net = Net()
    net.image_shape, net.class_names = (1, 28, 28), [f"class {n}" for n in range(10)]
    return net

def own_weights(weights):
    net = Net()
    net.came = weights
    return net

def broken():
    raise KeyError("depth")

def number():
    return 3

def maps():
    return nn.Conv2d(1, 3, 3)

def odd():
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 10))

def not_finite():
    net = Net()
    net.positions.data[0, 0, 0] = float("nan")
    return net

def leaves():
    raise SystemExit(3)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_layers.py").write_text(LAYERS.format(width=8))
    (tmp_path / "net.py").write_text(MODEL)
    return tmp_path


def test_a_function_of_a_file_gives_a_model_whose_images_and_classes_are_found(folder):
    path = list(sys.path)
    model = load_model("python:net.py:build")
    assert sys.path == path
    card = model.card
    assert (card.name, card.image_shape, card.num_classes, card.any_size) == ("build", (1, 28, 28), 10, False)
    assert not model.training
    assert load_model("python:net.py:build?patch=14").positions.shape[1] == 4
    assert load_model("python:net:Net?classes=3").card.num_classes == 3
    assert load_model("python:net.py:small").card.any_size
    assert load_model("python:net.py:stated").card.class_names[9] == "class 9"


def test_an_untrained_model_is_the_same_each_time_and_leaves_the_generator_alone(folder):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two = (load_model("python:net.py:build") for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.positions, two.positions)
    assert fingerprint(one) == fingerprint(two)
    assert not torch.equal(load_model("python:net.py:build", seed=1).positions, one.positions)


def test_code_beside_the_file_counts_and_two_folders_may_use_the_same_names(folder):
    first = fingerprint(load_model("python:net.py:build"))
    content = given("python:net.py:build", "mine").content
    (folder / "own_layers.py").write_text(LAYERS.format(width=8) + "# changed\n")
    assert fingerprint(load_model("python:net.py:build")) != first
    assert given("python:net.py:build", "mine").content != content
    other = folder / "other"
    other.mkdir()
    (other / "own_layers.py").write_text(LAYERS.format(width=5))
    (other / "net.py").write_text(MODEL)
    assert load_model(f"python:{other}/net.py:build").patches.out_channels == 5
    assert load_model("python:net.py:build").patches.out_channels == 8
    (folder / "unused.py").write_text("")
    assert source_digest(folder / "net.py") == load_model("python:net.py:build").card.code


@pytest.mark.parametrize("form", ["plain", "safetensors", "nested, of DataParallel"])
def test_weights_are_loaded(folder, form):
    net = load_model("python:net.py:build", seed=7)
    state = net.state_dict()
    file = folder / ("best.safetensors" if form == "safetensors" else "best.pt")
    if form == "plain":
        torch.save(state, file)
    elif form == "safetensors":
        save_file(state, file)
    else:
        torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}, "epoch": 3}, file)
    content = given(f"python:net.py:build?weights={file}", "mine").content
    assert content != given("python:net.py:build", "mine").content
    loaded = load_model(f"python:net.py:build?weights={file}")
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    assert load_model(f"python:net.py:own_weights?weights={file}").came == str(file)  # its own argument


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("python:none.py:build", "python:none.py:build: no such file or module 'none.py'"),
        ("python:no_such_module:build", "no such file or module 'no_such_module'"),
        ("python:net.py", "expected python:FILE_OR_MODULE:CALLABLE"),
        ("python:net.py:buidl", "no 'buidl' in net; expected a function's name"),
        ("python:net.py:WIDTH", "WIDTH is a int; expected a function"),
        ("python:net.py:build?depth=4", r"raised TypeError: build\(\) got an unexpected keyword argument 'depth'"),
        ("python:net.py:build?depth", "'depth': expected name=value"),
        ("python:net.py:build?depth=1,depth=2", "depth is given twice"),
        ("python:net.py:broken", r"raised KeyError: 'depth' \(net.py, line 3\d\)"),
        ("python:net.py:leaves", r"raised SystemExit: 3 \(net.py, line"),
        ("python:net.py:number", "returned int; expected a torch.nn.Module"),
        ("python:net.py:maps", r"returns a tensor of float32 and shape \(2, 3, 6, 6\).*expected logits"),
        ("python:net.py:odd", r"fails on images of 8 to 512 pixels \(RuntimeError: .*image_shape = "),
        ("python:net.py:not_finite", "'positions' contains NaN"),
        ("python:net.py:build?weights=none.pt", "none.pt: no such file"),
        (
            "python:net.py:build?weights=other.pt",
            r"other.pt: 'patches.weight' has shape \(8, 1, 14, 14\), expected \(8, 1, 7, 7\)",
        ),
        ("python:net.py:build?weights=evil.pt", "evil.pt: cannot be read safely"),
        ("python:syntax.py:build", r"SyntaxError: .* \(syntax.py, line 1\)"),
        ("python:lacks.py:build", r"raised ModuleNotFoundError: No module named 'no_such_thing' \(lacks.py, line 1\)"),
    ],
)
def test_a_mistake_is_one_line(folder, run_cli, spec, named):
    torch.save(load_model("python:net.py:build?patch=14").state_dict(), "other.pt")
    torch.save({"a": Evil()}, "evil.pt")
    (folder / "syntax.py").write_text("def build(:\n")
    (folder / "lacks.py").write_text("import no_such_thing\n")
    with pytest.raises(UserError, match=named) as caught:
        load_model(spec)
    assert "\n" not in str(caught.value)


def test_a_pair_is_audited_at_the_size_of_the_data_and_the_code_is_announced(folder, run_cli):
    code, _, err = run_cli(
        "audit", "python:net.py:build?patch=14,weights=w.pt", "--data", "digits", "--out", folder / "none"
    )
    assert code == 2
    assert err.splitlines() == ["antiphase: runs the code in net.py", "antiphase: w.pt: no such file"]
    words = ("--data", "specimen-fashion-mnist", "--limit", 3, "--eps", "4/255", "--steps", 1, "--sense-limit", 0, "-q")
    code, _, err = run_cli(
        "audit", "python:net.py:build", "--against", "python:net.py:small", *words, "--out", folder / "run"
    )
    assert code == 0, err
    assert pl.read_parquet(folder / "run" / "rows.parquet")["model"].unique().sort().to_list() == ["build", "small"]
    record = json.loads((folder / "run" / "run.json").read_text())
    (model,) = load_models(["python:net.py:build"], torch.device("cpu"))
    assert record["fingerprints"]["build"] == fingerprint(model)


def test_a_comma_within_settings_does_not_end_a_model():
    options = AuditOptions(model="python:a.py:f?x=1,y=2,timm:resnet18", against="python:b.py:g,runs/a=b")
    assert options.model == ("python:a.py:f?x=1,y=2", "timm:resnet18")
    assert options.against == ("python:b.py:g", "runs/a=b")


def test_a_study_imports_a_module_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_the_study.py").write_text("NAME = 'mine'\n")
    (tmp_path / "study.py").write_text(
        "from beside_the_study import NAME\nfrom antiphase.studies import Study\n"
        "study = Study(NAME, 'own', 'Own', 'Own', None, lambda profile: (), lambda rows: None)\n"
    )
    assert load_study(tmp_path / "study.py").name == "mine"


def test_a_module_instance_is_taken_as_it_is(folder):
    (folder / "ready.py").write_text("from net import Net\nnet = Net()\n")
    assert isinstance(load_model("python:ready.py:net"), nn.Module)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ('{"cat": 1, "dog": 0}', ("dog", "cat")),
        ('{0: "cat", 1: "dog"}', ("cat", "dog")),
        ('[("tench", "Tinca"), ("crane",)]', ("tench", "crane")),
        ('["cat"]', "got 1 names; expected 2 names"),
        ("2", "got 2; expected 2 names"),
        ("lambda: 2", "expected 2 names"),
    ],
)
def test_class_names_are_in_the_order_of_the_outputs_or_refused(tmp_path, names, told):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 2))\n"
        f"    net.image_shape, net.class_names = (1, 28, 28), {names}\n"
        "    return net\n"
    )
    spec = f"python:{tmp_path}/net.py:build"
    if isinstance(told, tuple):
        assert load_model(spec).card.class_names == told
        return
    with pytest.raises(UserError, match=told):
        load_model(spec)


def test_a_module_in_memory_tells_its_class_names_as_one_of_a_file_does(tmp_path):
    for kind, colour in (("cat", 0), ("dog", 255)):
        (tmp_path / kind).mkdir()
        Image.new("L", (8, 8), colour).save(tmp_path / kind / "1.png")

    class Bright(nn.Module):
        class_names = ("dog", "cat")

        def forward(self, x):
            bright = x.mean((1, 2, 3))
            return torch.stack([bright, 1 - bright], 1)

    result = ap.attack(Bright(), data=f"folder:{tmp_path}", image_size=8, attack="fgsm", eps=0.01, sense_limit=0)
    assert result.summary["models"][0]["clean_accuracy"] == 1.0
    assert not any("does not store the names" in warning for warning in result.warnings)


@pytest.mark.parametrize("square", ["32", "(32, 32)"])
def test_a_square_that_is_none_is_one_line(tmp_path, square):
    (tmp_path / "dual.py").write_text(
        "import antiphase as ap\n"
        "def build():\n"
        '    model = ap.models.clip("small")\n'
        f"    model.square = {square}\n"
        "    return model\n"
    )
    with pytest.raises(UserError, match="needs an attribute square, such as"):
        load_model(f"python:{tmp_path}/dual.py:build")


def test_a_single_logit_has_the_names_of_two_classes():
    class One(nn.Module):
        class_names = ("no", "yes")

        def forward(self, x):
            return x.mean((1, 2, 3))[:, None] - 0.5

    pixels = torch.tensor([0.1, 0.9])[:, None, None, None].expand(2, 1, 4, 4)
    data = ap.load_data(pixels, torch.tensor([0, 1]), class_names=["no", "yes"])
    result = ap.attack(One(), data=data, attack="fgsm", eps=0.01)
    assert result.summary["models"][0]["clean_accuracy"] == 1.0
