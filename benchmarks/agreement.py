"""Our attacks against other libraries', image by image: robust accuracy, images that only one breaks, and who is right.

Both attack the same images of the same model at the same ε with the same budget of steps or queries. An image that only
one breaks is decided by its adversarial image: the model, copied to float64, has to predict another class, within ε.

    uv run python benchmarks/agreement.py --publish        # agreement.json and the table of docs/agreement.md
    uv run python benchmarks/agreement.py --attacks fmn --publish      # adds to a run of the same commit and images
    uv run python benchmarks/agreement.py --images 20 --attacks pgd,square --models specimen:vit-0
    uv run python benchmarks/agreement.py --part many-classes --images 40 --publish    # MALT's targets
    uv run python benchmarks/agreement.py --part verdicts --images 1000 --publish
    uv run python benchmarks/agreement.py --page           # the table again, from the JSON
"""

import argparse
import copy
import functools
import importlib
import importlib.util
import json
import math
import multiprocessing
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from rounds import provenance
from torch import Tensor, nn

import antiphase as ap
from antiphase.attacks import Threat, apgd, autoattack, carlini_wagner, fab, fmn, pgd, square
from antiphase.attacks.engine import search_model
from antiphase.studies.report.findings import replace_marked

PUBLISHED = Path(__file__).with_name("agreement.json")
PAGE = Path(__file__).parents[1] / "docs/agreement.md"
MODELS = "specimen:diffvit-0,python:benchmarks/models.py:cnn,python:benchmarks/models.py:resnet18"
QUERIES = 300
Attack = Callable[[nn.Module, Tensor, Tensor, Threat], Tensor]  # to adversarial images


def main() -> None:
    """Attack, and print or publish a line for each attack, model and ε."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--part", choices=PARTS, default="measured", help="what to measure")
    parser.add_argument("--publish", action="store_true", help=f"write {PUBLISHED.name} and the page")
    parser.add_argument(
        "--page", action="store_true", help=f"write the page from {PUBLISHED.name}, and measure nothing"
    )
    options = parser.parse_args()
    if not options.page:
        lines = list(PARTS[options.part][0](options))
        record = json.loads(PUBLISHED.read_text(encoding="utf-8")) if PUBLISHED.exists() else {}
        made = provenance({}, ("pyautoattack", "foolbox", "torchattacks", "adv_lib")) | {"images": options.images}
        before = record.get(options.part, {"lines": []})
        # a run that has published has changed the JSON, which adds a +
        about = [{**one, "commit": str(one.get("commit")).rstrip("+")} for one in (made, before)]
        same = all(about[1].get(key) == value for key, value in about[0].items())
        kept = [line for line in before["lines"] if same and _subject(line) not in map(_subject, lines)]
        record[options.part] = {**made, "lines": kept + lines}
        if options.publish:
            PUBLISHED.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.publish or options.page:
        for part, text in page(json.loads(PUBLISHED.read_text(encoding="utf-8"))).items():
            replace_marked(PAGE, part, text)


def _subject(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a line is about: all but what was measured."""
    return tuple(line.get(key) for key in ("model", "attack", "library", "norm", "eps", "search", "classes", "version"))


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a line for each model, attack and threat."""
    data = ap.data.load_data("specimen-fashion-mnist", limit=options.images, seed=0)
    images = data.images(range(len(data)))
    for name in options.models.split(","):
        model = ap.load_model(name).eval().requires_grad_(False)
        exact = copy.deepcopy(model).double()
        with torch.no_grad():
            label = model(images).argmax(1)
        for attack, library, threats, ours, peer in COMPARISONS:
            if attack not in options.attacks.split(",") or importlib.util.find_spec(library) is None:
                continue
            for threat in threats:
                adversarial = [one(model, images, label, threat).detach() for one in (ours, peer)]
                with torch.no_grad():
                    broken = [model(x).argmax(1) != label for x in adversarial]
                    broken = [flips & threat.allows(x, images) for flips, x in zip(broken, adversarial, strict=True)]
                    sound = [_in_float64(exact, x, images, label, threat) for x in adversarial]
                only = [broken[0] & ~broken[1], broken[1] & ~broken[0]]
                line = {"model": name, "attack": attack, "library": library, "norm": threat.norm, "eps": threat.eps}
                line |= {"robust": [1 - float(flips.double().mean()) for flips in broken]}
                line |= {"only": [int(one.sum()) for one in only]}
                line |= {"right": [int((one & true).sum()) for one, true in zip(only, sound, strict=True)]}
                print(json.dumps(line, ensure_ascii=False), flush=True)
                yield line


def _in_float64(model: nn.Module, x: Tensor, images: Tensor, label: Tensor, threat: Threat) -> Tensor:
    """Return whether an image is adversarial in a model of float64."""
    return (model(x.double()).argmax(1) != label) & threat.allows(x.double(), images.double())


def table(record: Mapping[str, Any]) -> str:
    """Return the record as a table in Markdown, with a sentence below it."""
    head = ("attack", "norm, ε", "model", "compared with", "robust accuracy, ours and theirs", "broken by one only")
    rows = [head, ("---",) * len(head)]
    order = {attack: place for place, attack in enumerate(ATTACKS)}
    keys = ("library", "norm", "eps", "model")
    for line in sorted(record["lines"], key=lambda line: (order[line["attack"]], *(line[key] for key in keys))):
        version = record["versions"].get(line["library"], "")
        robust = " and ".join(f"{100 * share:.1f} %" for share in line["robust"])
        only = ", ".join(
            f"{who} {count} ({right} confirmed)" if count else f"{who} 0"
            for who, count, right in zip(("ours", "theirs"), line["only"], line["right"], strict=True)
        )
        eps = f"{line['eps'] * 255:g}/255" if line["norm"] == "linf" else f"{line['eps']:g}"
        norm = {"linf": "L∞", "l2": "L2", "l1": "L1", "l0": "L0"}[line["norm"]]
        model = line["model"].rpartition(":")[2]
        rows.append((line["attack"], f"{norm}, {eps}", model, f"{line['library']} {version}".strip(), robust, only))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    only = [sum(line["only"][who] for line in record["lines"]) for who in (0, 1)]
    right = [sum(line["right"][who] for line in record["lines"]) for who in (0, 1)]
    about = (
        f"{record['images']} images each; Square with {QUERIES} queries. Of all {len(record['lines'])} "
        f"lines, only ours breaks {only[0]} images ({right[0]} confirmed in float64), only the other library {only[1]} "
        f"({right[1]} confirmed). {_made(record)}"
    )
    return "\n".join([*lines, "", about, ""])


def _made(record: Mapping[str, Any]) -> str:
    return f"torch {record['versions']['torch']}, commit {record['commit']}, {record['date']}."


def model_of_patterns(classes: int, count: int) -> tuple[nn.Module, torch.Tensor]:
    """Return a small CNN trained for some seconds to tell noisy patterns apart, and images that it gets right."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        patterns = F.interpolate(torch.randn(classes, 1, 6, 6), size=16, mode="bicubic")

        def draw(label: torch.Tensor) -> torch.Tensor:
            return (0.5 + 0.1 * patterns[label] + 0.1 * torch.randn(len(label), 1, 16, 16)).clamp(0, 1)

        layers = [nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        model = nn.Sequential(*layers, nn.Linear(64 * 16, classes))
        optimizer = torch.optim.Adam(model.parameters(), 2e-3)
        for _ in range(400):
            label = torch.randint(classes, (128,))
            optimizer.zero_grad()
            F.cross_entropy(model(draw(label)), label).backward()
            optimizer.step()
        label = torch.randint(classes, (3 * count,))
        images = draw(label)
        with torch.no_grad():
            return model.eval(), images[model(images).argmax(1) == label][:count]


def many_classes(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what AutoAttack breaks with the targets of the standard version and with MALT's, and its passes."""
    for classes in (100, 1000):
        model, images = model_of_patterns(classes, options.images)
        asr = {k: pgd(model, images, None, Threat(eps=k / 1000), steps=10).asr for k in range(4, 60, 8)}
        eps = min(asr, key=lambda k: abs(asr[k] - 0.4)) / 1000
        for version in ("standard", "malt"):
            began = time.process_time()
            result = autoattack(model, images, None, Threat(eps=eps), version=version, queries=QUERIES)
            passes = {part.attack: int((part.forwards + part.backwards).sum()) for part in result.stages}
            line = {"classes": classes, "eps": eps, "version": version, "broken": int(result.success.sum())}
            line |= {"felled": result.settings["felled"], "passes": passes}
            line |= {"seconds": round(time.process_time() - began, 1)}
            print(json.dumps(line), flush=True)
            yield line


def many_classes_table(record: Mapping[str, Any]) -> str:
    """Return the table of :func:`many_classes`."""
    stages = ("apgd-ce", "apgd-t", "fab-t", "square")
    rows = [("classes, ε", "version", "broken", "passes", *(f"{one}: broken, passes" for one in stages), "CPU time")]
    rows.append(("---",) * len(rows[0]))
    for line in record["lines"]:
        cells = (f"{line['felled'].get(one, 0)}, {line['passes'].get(one, 0):,}" for one in stages)
        where, total = f"{line['classes']}, {line['eps']:g}", f"{sum(line['passes'].values()):,}"
        rows.append((where, line["version"], str(line["broken"]), total, *cells, f"{line['seconds']:.0f} s"))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    about = f"{record['images']} images that the model gets right; passes are forward and backward. {_made(record)}"
    return "\n".join([*lines, "", about, ""])


def verdicts(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield how many verdicts of PGD differ from those of float32 in the model itself, in batches of 128."""
    for name in options.models.split(","):
        first = None
        for way, how in WAYS.items():
            order = torch.arange(options.images)
            if way == "reverse order":
                order = order.flip(0)
            parts = order.chunk(2) if way == "two processes" else [order]
            work = [(name, options.images, part.tolist(), how) for part in parts]
            if len(parts) > 1:
                with ProcessPoolExecutor(len(parts), multiprocessing.get_context("spawn")) as pool:
                    broken = torch.cat([torch.tensor(part) for part in pool.map(_broken, work)])
            else:
                broken = torch.tensor(_broken(work[0]))
            broken = broken[order.argsort()]
            first = broken if first is None else first
            line = {"model": name, "search": way, "broken": int(broken.sum()), "differ": int((broken != first).sum())}
            print(json.dumps(line), flush=True)
            yield line


_loaded = functools.cache(ap.load_model)


def _broken(work: tuple[str, int, list[int], dict[str, Any]]) -> list[bool]:
    """Return which of some images PGD breaks."""
    name, count, rows, how = work
    data = ap.data.load_data("specimen-fashion-mnist", limit=count, seed=0)
    model = _loaded(name).eval().requires_grad_(False)
    search_model._chosen.clear()
    how, copied = {"precision": "float32"} | how, how.get("copied", True)
    how.pop("copied", None)
    with mock.patch.object(search_model, "_convolutional", return_value=copied):
        result = pgd(model, data.images(rows), None, Threat(eps=4 / 255), ids=data.ids[rows], **how)
    return result.success.tolist()


def lost_and_gained(line: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many images only the first search of the model breaks, and how many only this one."""
    more = line["broken"] - next(one["broken"] for one in lines if one["model"] == line["model"])
    return (line["differ"] - more) // 2, (line["differ"] + more) // 2


def verdicts_table(record: Mapping[str, Any]) -> str:
    """Return the table of :func:`verdicts`."""
    rows = [("model", "search", "broken", "lost", "gained"), ("---",) * 5]
    for line in record["lines"]:
        lost, gained = lost_and_gained(line, record["lines"])
        model = line["model"].rpartition(":")[2]
        rows.append((model, line["search"], str(line["broken"]), str(lost), str(gained)))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", f"PGD-20, 4/255, {record['images']:,} images. {_made(record)}", ""])


def page(record: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands between the marks of the page."""
    return {part: PARTS[part][1](content) for part, content in record.items()}


def _official(name: str) -> Attack:
    def attack(model: nn.Module, images: Tensor, label: Tensor, threat: Threat) -> Tensor:
        from pyautoattack import AutoAttack

        norm = {"linf": "Linf", "l2": "L2", "l1": "L1"}[threat.norm]
        adversary = AutoAttack(model, norm=norm, eps=threat.eps, seed=0, version="standard", device="cpu")
        if name != "autoattack":
            adversary.attacks_to_run = [name]
        adversary.apgd.n_restarts, adversary.square.n_queries = 1, QUERIES
        return adversary.run_standard_evaluation(images, label, batch_size=250)[0]

    return attack


def _foolbox(make: Callable[[Any, Threat], Any]) -> Attack:
    def attack(model: nn.Module, images: Tensor, label: Tensor, threat: Threat) -> Tensor:
        import foolbox

        victim = foolbox.PyTorchModel(model, bounds=(0, 1))
        return make(foolbox.attacks, threat)(victim, images, label, epsilons=threat.eps)[1]

    return attack


def _torchattacks_pgd(model: nn.Module, images: Tensor, label: Tensor, threat: Threat) -> Tensor:
    attack = importlib.import_module("torchattacks").PGD(model, eps=threat.eps, alpha=threat.eps / 4, steps=20)
    return attack(images, label)


def _adv_lib(name: str, **settings: Any) -> Attack:
    def attack(model: nn.Module, images: Tensor, label: Tensor, threat: Threat) -> Tensor:
        sys.modules.setdefault("visdom", types.ModuleType("visdom"))  # which it imports for plots
        about = {"norm": {"linf": math.inf, "l2": 2, "l1": 1, "l0": 0}[threat.norm]} if name == "fmn" else {}
        return getattr(importlib.import_module("adv_lib.attacks"), name)(model, images, label, **about, **settings)

    return attack


def _ours(attack: Callable[..., Any], **settings: Any) -> Attack:
    def run(model: nn.Module, images: Tensor, label: Tensor, threat: Threat) -> Tensor:
        return attack(model, images, label, threat, **settings).adversarial

    return run


LINF = (Threat("linf", 2 / 255), Threat("linf", 8 / 255))
L2, L1 = (Threat("l2", 0.15), Threat("l2", 0.5)), (Threat("l1", 0.75), Threat("l1", 3.0))
# attack, the other library, the threats, ours and theirs
_CW = _ours(carlini_wagner, steps=100, search_steps=5)
COMPARISONS: list[tuple[str, str, tuple[Threat, ...], Attack, Attack]] = [
    (
        "pgd",
        "foolbox",
        LINF,
        _ours(pgd, steps=20),
        _foolbox(lambda attacks, threat: attacks.LinfPGD(steps=20, abs_stepsize=threat.eps / 4)),
    ),
    (
        "pgd",
        "foolbox",
        L2,
        _ours(pgd, steps=20),
        _foolbox(lambda attacks, threat: attacks.L2PGD(steps=20, abs_stepsize=threat.eps / 4)),
    ),
    ("pgd", "torchattacks", LINF, _ours(pgd, steps=20), _torchattacks_pgd),
    ("apgd-ce", "pyautoattack", LINF + L2 + L1, _ours(apgd), _official("apgd-ce")),
    ("apgd-t", "pyautoattack", LINF, _ours(apgd, targets=9), _official("apgd-t")),
    ("fab-t", "pyautoattack", LINF, _ours(fab, targets=9, final_search=False), _official("fab-t")),
    (
        "square",
        "pyautoattack",
        LINF + L2 + L1,
        _ours(square, queries=QUERIES, rescale_schedule=False),
        _official("square"),
    ),
    ("autoattack", "pyautoattack", LINF[1:], _ours(autoattack, queries=QUERIES), _official("autoattack")),
    (
        "carlini-wagner",
        "foolbox",
        L2,
        _CW,
        _foolbox(lambda attacks, _: attacks.L2CarliniWagnerAttack(5, 100, stepsize=0.01)),
    ),
    ("carlini-wagner", "adv_lib", L2, _CW, _adv_lib("carlini_wagner_l2", binary_search_steps=5, max_iterations=100)),
    (
        "fmn",
        "adv_lib",
        LINF + L2 + L1 + (Threat("l0", 2.0), Threat("l0", 10.0)),
        _ours(fmn),
        _adv_lib("fmn", steps=100),
    ),
]
ATTACKS = [*dict.fromkeys(one[0] for one in COMPARISONS)]

PARTS = {
    "measured": (measure, table),
    "many-classes": (many_classes, many_classes_table),
    "verdicts": (verdicts, verdicts_table),
}
WAYS: dict[str, dict[str, Any]] = {
    "float32, the model itself": {"copied": False},
    "float32, copies allowed": {},
    "auto": {"precision": "auto"},
    "bf16": {"copied": False, "precision": "bf16"},
    "batches of 48": {"batch_size": 48},
    "reverse order": {},
    "two processes": {},
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
