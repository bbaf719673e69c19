"""Models of RobustBench: loaded by its package, measured again, and compared with its leaderboard's numbers.

The package is a small one of the same interface; its own could not be installed beside this timm.
"""

import importlib
import json
import sys

import pytest
import torch
from torch import nn

from antiphase.errors import UserError
from antiphase.models.schemes.robustbench import leaderboard
from antiphase.models.zoo import load_model
from tests.data.test_small_sets import write_cifar

SMALL, SPEC = "Small2026_R-18", "robustbench:Small2026_R-18"
HEAD = "| <sub>#</sub> | <sub>Model ID</sub> | <sub>Paper</sub> | <sub>Clean</sub> | <sub>Robust</sub> |"
ROW = "| <sub>**1**</sub> | <sub><sup>**{}**</sup></sub> | <sub>*[A | b](x)*</sub> | <sub>{}%</sub> | <sub>{}%</sub> |"
README = f"""
### CIFAR-10

#### Linf, eps=8/255
{HEAD}
|:---:|---|---|:---:|:---:|
{ROW.format("Good2026", "91.10", "60.5")}
{ROW.format(SMALL, "CLEAN", "HELD")}

#### L2, eps=0.5
{HEAD}
|:---:|---|---|:---:|:---:|
{ROW.format("Far2026", "95.00", "84.25")}

### CIFAR-100

"""
UTILS = """
import torch
def load_model(name, folder, data, threat):
    if name != "Small2026_R-18":
        raise KeyError(name)
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
"""
ENUMS = """
import enum
BenchmarkDataset = enum.Enum("BenchmarkDataset", {"a": "cifar10", "b": "cifar100", "c": "imagenet"})
ThreatModel = enum.Enum("ThreatModel", {"Linf": "Linf", "L2": "L2"})
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install the small package, whose leaderboard has the given accuracies."""

    def install(clean: float = 0.0, robust: float = 0.0) -> None:
        files = {"__init__.py": "", "utils.py": UTILS, "data.py": "get_preprocessing = None\n"}
        files |= {"model_zoo/__init__.py": "", "model_zoo/enums.py": ENUMS}
        for name, text in files.items():
            path = tmp_path / "site" / "robustbench" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        about = tmp_path / "site" / "robustbench-1.1.1.dist-info"
        about.mkdir(exist_ok=True)
        numbers = README.replace("CLEAN", f"{clean:.2f}").replace("HELD", f"{robust:.2f}")
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: robustbench\nVersion: 1.1.1\n\n{numbers}")
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    write_cifar("cifar10", tmp_path / "data", monkeypatch)
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path / "data"))
    yield install
    for name in [name for name in sys.modules if name.partition(".")[0] == "robustbench"]:
        del sys.modules[name]


def test_the_leaderboard_is_read_from_what_the_package_says_of_itself(installed):
    installed(80.0, 12.5)
    one, other = leaderboard(SMALL), leaderboard("cifar10/L2/Far2026")
    assert (one.data, one.norm, one.eps, one.clean, one.robust) == ("cifar10", "linf", 8 / 255, 0.8, 0.125)
    assert (other.norm, other.eps, other.clean, other.robust) == ("l2", 0.5, 0.95, 0.8425)


def test_a_model_is_the_package_s_own(installed):
    installed()
    model = load_model(SPEC)
    torch.manual_seed(0)
    same = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(images), same(images))


@pytest.mark.filterwarnings("ignore:cifar10")
def test_the_leaderboard_is_confirmed_or_not(installed, run_cli):
    installed(0.0, 0.0)  # none of three random images is right
    code, out, err = run_cli("verify", SPEC, "--limit", "3", "--json", "--quiet")
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["confirmed"], answer["numbers"]) == (True, 2)
    assert "RobustBench" in answer["name"]
    installed(99.0, 98.0)
    code, out, _ = run_cli("verify", SPEC, "--limit", "3", "--json", "--quiet")
    assert code == 1
    fields = [one["field"] for one in json.loads(out)["differences"]]
    assert fields == ["clean_accuracy", "robust_accuracy"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("robustbench:Small2026", r"has no model 'Small2026'; did you mean Small2026_R-18\?"),
        ("robustbench:cifar10/L1/Far2026", "expected robustbench:NAME or DATA/THREAT/NAME"),
        ("robustbench:imagenet/Linf/Far2026", "has no model 'Far2026'"),
    ],
)
def test_what_the_leaderboard_lacks_is_one_line(installed, spec, words):
    installed()
    with pytest.raises(UserError, match=words):
        leaderboard(spec.partition(":")[2])


def test_an_unknown_model_is_not_taken_for_a_failed_download(installed):
    installed()
    with pytest.raises(UserError, match="RobustBench has no such model for cifar10 and Linf"):
        load_model("robustbench:Nobody2026")


def test_without_the_package_the_way_to_install_it_is_said():
    with pytest.raises(UserError, match="robustbench is not installed; install it: pip install"):
        leaderboard(SMALL)
    with pytest.raises(UserError, match="robustbench cannot be imported"):
        load_model(SPEC)


def test_a_limit_is_for_robustbench_alone(run_cli, tmp_path):
    code, _, err = run_cli("verify", tmp_path, "--limit", "3")
    assert code == 2
    assert "limit 3: a card says itself how many images it is of" in err
