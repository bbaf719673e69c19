"""Imports point in one direction: a package uses itself and what stands before it in the list, no more."""

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import antiphase

LAYERS = (
    {"arguments", "errors", "files", "modules", "precision", "processes", "registry", "store", "streams", "terminal"},
    {"statistics"},
    {"attention"},
    {"data"},
    {"models"},
    {"attacks"},
    {"training"},
    {"sensitivity"},
    {"evaluation"},
    {"vlm"},
    {"report", "commands", "studies", "cli"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FRONT_DOOR = {"__init__", "__main__"}  # what a caller meets: they may import everything, nothing imports them
FORBIDDEN = {
    "attention": set(RANK) - {"arguments", "attention", "errors", "files", "registry"},  # the mechanism stands alone
    "statistics": set(RANK) - {"arguments", "errors", "statistics", "streams"},  # pure functions of arrays
}


def violations(root: Path) -> list[str]:
    """Return one line for each import under the package folder ``root`` that points the wrong way."""
    complaints = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if len(parts) == 1 and parts[0] in FRONT_DOOR:
            continue
        for line, target in sorted(_imports(path, root.name, parts)):
            if complaint := _complaint(parts[0], target):
                complaints.append(f"{path.relative_to(root)}:{line}: {complaint}")
    return complaints


def _complaint(package: str, target: str) -> str | None:
    if package not in RANK:
        return f"{package} has no place in the list of layers"
    if target not in RANK:
        return f"imports {target!r} from the package's front door"
    if RANK[target] > RANK[package] or target in FORBIDDEN.get(package, ()):
        return f"{package} imports {target}"
    return None


@functools.cache
def _nodes(path: Path) -> list[ast.stmt]:
    """Return the imports of a file, nested ones too."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return [node for node in tree if isinstance(node, ast.Import | ast.ImportFrom)]


def _imports(path: Path, name: str, parts: tuple[str, ...]) -> set[tuple[int, str]]:
    """Return (line, first name below the package) of every import of the package, nested ones too."""
    here = (name, *parts[:-1])  # the package a relative import starts from
    imports: set[tuple[int, str]] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = list(here[: len(here) - node.level + 1]) if node.level else []
            module = start + (node.module.split(".") if node.module else [])
            modules = [[*module, alias.name] for alias in node.names]
        else:
            continue
        imports |= {(node.lineno, ".".join(m[1:2])) for m in modules if m[0] == name}
    return imports


def test_imports_of_the_package_point_one_way():
    root = Path(antiphase.__file__).parent
    assert violations(root) == []


def test_the_check_sees_the_whole_package():
    root = Path(antiphase.__file__).parent
    seen = {path.relative_to(root).with_suffix("").parts[0] for path in root.rglob("*.py")}
    assert {"attention", "data", "models", "attacks", "report"} <= seen
    assert seen <= set(RANK) | FRONT_DOOR
    loader = root / "models" / "zoo.py"
    assert "errors" in {target for _, target in _imports(loader, root.name, ("models", "zoo"))}


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("models/vit.py", "from antiphase.attacks import pgd", "models imports attacks"),
        ("models/vit.py", "import antiphase.attacks.pgd as pgd", "models imports attacks"),
        ("models/vit.py", "from antiphase import data, attacks", "models imports attacks"),
        ("models/vit.py", "from ..attacks import pgd", "models imports attacks"),
        ("models/vit.py", "from .. import attacks", "models imports attacks"),
        ("models/deep/vit.py", "from ...attacks import pgd", "models imports attacks"),
        ("models/__init__.py", "from ..attacks import pgd", "models imports attacks"),
        ("models/vit.py", "def f():\n    from antiphase.attacks import pgd", "models imports attacks"),
        ("models/vit.py", "if TYPE_CHECKING:\n    from antiphase.cli import main", "models imports cli"),
        ("models/vit.py", "from antiphase import load_model", "imports 'load_model' from"),
        ("models/vit.py", "import antiphase", "imports '' from the package's front door"),
        ("attention/modules.py", "from antiphase.streams import key", "attention imports streams"),
        ("errors.py", "from antiphase.data import digits", "errors imports data"),
        ("tools/x.py", "from antiphase.errors import UserError", "tools has no place in the list"),
    ],
)
def test_the_check_finds_an_import_that_points_the_wrong_way(tmp_path, path, source, complaint):
    module = tmp_path / "antiphase" / path
    module.parent.mkdir(parents=True)
    module.write_text(source)
    (line,) = violations(tmp_path / "antiphase")
    assert line.startswith(f"{path}:{source.count(chr(10)) + 1}: {complaint}")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("models/vit.py", "import torch, antiphasic\nfrom antiphase.models.vit import Block"),
        ("models/vit.py", "from .normalize import Normalize\nfrom . import vit\nfrom ..streams import key"),
        ("models/vit.py", "from antiphase import attention, data, errors"),
        ("attention/modules.py", "from antiphase.attention.functional import combine\nfrom . import lambdas"),
        ("report/runs/page.py", "from antiphase.statistics.intervals import proportion"),
        ("files.py", "from antiphase.errors import UserError"),
        ("__init__.py", "from antiphase.cli import main\nfrom antiphase import attacks"),
        ("__main__.py", "from antiphase.cli import main"),
    ],
)
def test_the_check_lets_pass_what_points_the_right_way(tmp_path, path, source):
    module = tmp_path / "antiphase" / path
    module.parent.mkdir(parents=True)
    module.write_text(source)
    assert violations(tmp_path / "antiphase") == []


def test_help_needs_no_part_of_the_library_and_threads_spin_briefly():
    code = (
        "import os, sys; from antiphase import cli; print(sorted({'torch', 'polars', 'scipy'} & set(sys.modules)));"
        "print(os.environ['GOMP_SPINCOUNT'])"
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=kept)
    assert process.stdout == "[]\n10000\n"


def test_our_own_models_need_neither_timm_nor_torchvision():
    code = (
        "import sys, antiphase as ap; ap.load_model('specimen:vit-0'); "
        "print(sorted({'timm', 'torchvision', 'open_clip', 'matplotlib'} & set(sys.modules))); "
        "print(ap.attacks.pgd.__name__)"  # a part is there when it is asked for
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\npgd\n"


def test_what_the_package_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'attacker'"):
        antiphase.attacker  # noqa: B018 (what it does not have)


def test_every_public_name_of_the_package_and_of_studies_is_there():
    for module in (antiphase, antiphase.studies):
        assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    assert antiphase.training.train_classifier.__name__ == "train_classifier"


def circles(root: Path) -> list[tuple[str, ...]]:
    """Return the groups of modules below ``root`` that import each other, nested imports counted."""
    parts = {path: path.relative_to(root.parent).with_suffix("").parts for path in root.rglob("*.py")}
    names = {path: ".".join(one[:-1] if one[-1] == "__init__" else one) for path, one in parts.items()}
    known = set(names.values())
    imported: dict[str, set[str]] = {}
    for path, name in names.items():
        nodes = _nodes(path)
        targets = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                targets |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        imported[name] = {one for one in targets & known if one != name and not name.startswith(f"{one}.")}
    reached = {name: set(targets) for name, targets in imported.items()}
    for middle in known:  # Warshall's closure
        for targets in reached.values():
            if middle in targets:
                targets |= reached[middle]
    return sorted({tuple(sorted(b for b in reached[a] if a in reached[b])) for a in known if a in reached[a]})


def test_no_modules_import_each_other_in_a_circle():
    cycles = circles(Path(antiphase.__file__).parent)
    assert cycles == []


def test_a_circle_through_a_nested_import_is_found(tmp_path):
    root = tmp_path / "package"
    root.mkdir()
    sources = {
        "__init__": "from package import a",
        "a": "from package.b import c",
        "b": "def f():\n    import package.a",
    }
    for name, source in sources.items():
        (root / f"{name}.py").write_text(source)
    assert circles(root) == [("package.a", "package.b")]
