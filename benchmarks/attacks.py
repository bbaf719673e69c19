r"""Speed of the attacks against other libraries: ratios of times, taken side by side in one run.

Every attack is given the same model, images, threat and budget. Rounds alternate between the libraries, so
that a busy machine slows both; the ratio is that of the fastest rounds. The others are development
dependencies: pyautoattack, foolbox; torchattacks where installed. Our search asks the model for its logits only
(``antiphase.attention.outputs_only``), the others call it as anybody would; --outputs-only lets them do the same.

    uv run python benchmarks/attacks.py --publish              # attacks.json and the table of docs/commands.md
    uv run python benchmarks/attacks.py                        # everything, about an hour on 2 cores
    uv run python benchmarks/attacks.py apgd-ce pgd --images 100
    uv run python benchmarks/attacks.py autoattack --eps 8/255 --precision bf16
    uv run python benchmarks/attacks.py pgd apgd-ce fab square --images 100 --eps 8/255 --queries 300 \
        --model python:benchmarks/models.py:cnn --clock cpu
"""

import argparse
import contextlib
import importlib.util
import json
import time
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from rounds import provenance
from torch import Tensor, nn

import antiphase as ap
from antiphase.attacks import Threat, apgd, autoattack, fab, pgd, square, sweep
from antiphase.attacks.autoattack import autoattack_ensemble
from antiphase.attacks.engine import SPEED_VERSION
from antiphase.attention import outputs_only
from antiphase.files import digest
from antiphase.models.zoo import fingerprint
from antiphase.processes import keep_freed_memory
from antiphase.studies.report.findings import replace_marked

PUBLISHED = Path(__file__).with_name("attacks.json")
PAGE = Path(__file__).parents[1] / "docs/commands.md"
CNN = "python:benchmarks/models.py:cnn"
SHOWN = tuple(  # what the page shows: command lines of this script
    [*words.split(), "--precision", "auto", "--clock", "cpu"]
    for words in (
        "pgd apgd-ce --images 100 --rounds 3",
        f"pgd apgd-ce --images 100 --rounds 2 --eps 8/255 --model {CNN}",
        f"fab --images 50 --eps 8/255 --model {CNN}",
        f"square --images 100 --eps 8/255 --queries 300 --model {CNN}",
        f"autoattack --images 40 --eps 8/255 --queries 300 --model {CNN}",
        "pgd apgd-ce --images 50 --rounds 2 --eps 8/255 --model python:benchmarks/models.py:resnet18",
        "pgd apgd-ce --images 50 --rounds 2 --eps 2/255 --model python:benchmarks/models.py:vit_tiny",
    )
)
TITLES = {"pgd": "PGD-20", "apgd-ce": "APGD-CE", "fab": "FAB", "square": "Square", "autoattack": "AutoAttack"}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Timed = Callable[[], float]  # does the work; returns the robust accuracy or the share that stands


def main() -> None:
    """Run the chosen comparisons and print one JSON line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=list(COMPARISONS), help=", ".join(COMPARISONS))
    parser.add_argument("--model", default="specimen:diffvit-0")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--eps", default="2/255,8/255")
    parser.add_argument("--precision", default="float32", help="of our search: auto, float32 or bf16")
    parser.add_argument("--compile", action="store_true", help="our search through torch.compile, warmed up first")
    parser.add_argument(
        "--outputs-only", action="store_true", help="let the others too leave out what the logits do not depend on"
    )
    parser.add_argument("--data", default="specimen-fashion-mnist")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: CPU time, which other work disturbs less")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--publish", action="store_true", help=f"the comparisons of docs/commands.md, into {PUBLISHED.name}"
    )
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    if options.publish:
        publish(parser)
    else:
        measure(options)


def publish(parser: argparse.ArgumentParser) -> None:
    """Measure what the page shows, write it as JSON, and put the table into the page."""
    lines = [line for words in SHOWN for line in measure(parser.parse_args(words))]
    record = provenance({}, ("pyautoattack", "foolbox", "torchattacks"))
    record |= {"models": {line["model"]: digest_of(line["model"]) for line in lines}}
    record |= {"speed version": SPEED_VERSION, "measured": lines}
    PUBLISHED.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    replace_marked(PAGE, "speed", speed_table(record))


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the chosen comparisons; return one line for each."""
    model = ap.load_model(options.model).eval().requires_grad_(False).to(options.device)
    data = ap.data.load_data(options.data, limit=options.images, seed=0)
    images = data.images(range(len(data))).to(options.device)
    with torch.no_grad():
        labels = model(images).argmax(1)  # of both: the clean prediction
    if options.compile:
        began = time.perf_counter()
        autoattack(
            model,
            images[:40],
            labels[:40],
            Threat(eps=1 / 255),
            steps=3,
            queries=20,
            precision=options.precision,
            compile=True,
        )
        print(json.dumps({"compiled in": round(time.perf_counter() - began, 1)}), flush=True)
    lines = []
    for name in options.what:
        for eps in [float(Fraction(text)) for text in options.eps.split(",")]:
            compare, single = COMPARISONS[name]
            with outputs_only() if options.outputs_only else contextlib.nullcontext():
                lines.append(run(name, compare(model, images, labels, eps, options), eps, options))
            if single:
                break
    return lines


def run(name: str, contestants: dict[str, Timed], eps: float, options: argparse.Namespace) -> dict[str, Any]:
    """Time every contestant in turn; print and return the ratios to ours."""
    seconds: dict[str, float] = {}
    standing: dict[str, float] = {}
    clock = CLOCKS[options.clock]
    for _ in range(options.rounds):
        for who, work in contestants.items():
            began = clock()
            standing[who] = work()
            seconds[who] = min(seconds.get(who, float("inf")), clock() - began)
    ours = next(iter(contestants))
    line: dict[str, Any] = {
        "what": name,
        "model": options.model,
        "device": options.device,
        "clock": options.clock,
        "eps": f"{eps * 255:g}/255",
        "images": options.images,
        "data": options.data,
        "rounds": options.rounds,
        "precision": options.precision,
        "queries": options.queries,
        "threads": torch.get_num_threads(),
        "seconds": {who: round(value, 2) for who, value in seconds.items()},
        "standing": {who: round(value, 4) for who, value in standing.items()},
        "times faster": {who: round(value / seconds[ours], 2) for who, value in seconds.items() if who != ours},
    }
    print(json.dumps(line, ensure_ascii=False), flush=True)
    return line


def speed_table(record: Mapping[str, Any]) -> str:
    """Return the table of a record of ``--publish`` in Markdown, with what it was measured with below."""
    head = ("model", "attack", "ε", "images", "compared with", "times as fast", "robust accuracy, both")
    rows = [head, ("---",) * len(head)]
    for line in record["measured"]:
        ours, *_ = line["seconds"]
        queries = f", {line['queries']:,} queries" if line["what"] in ("square", "autoattack") else ""
        for who, times in line["times faster"].items():
            left = " and ".join(f"{100 * line['standing'][side]:.1f} %" for side in (ours, who))
            version = record["versions"].get(who, "")
            rows.append(
                (
                    line["model"].rpartition(":")[2],
                    TITLES.get(line["what"], line["what"]) + queries,
                    line["eps"],
                    str(line["images"]),
                    f"{who} {version}".strip(),
                    f"{times:.1f}",
                    left,
                )
            )
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    models = ", ".join(f"`{name}`" for name in record["models"])
    about = (
        f"Ratio of the CPU times of the fastest rounds, ours with `--precision auto`. Models: {models}. On "
        f"{record['hardware']}; torch {record['versions']['torch']}, commit {record['commit']}, {record['date']}."
    )
    return "\n".join([*lines, "", about, ""])


def changed(record: Mapping[str, Any]) -> list[str]:
    """Return what is no longer what was measured: models, by weights or code, and the attacks, by their version."""
    models = [name for name, digest in record["models"].items() if digest_of(name) != digest]
    return models + ["attacks"] * (record["speed version"] != SPEED_VERSION)


def digest_of(name: str) -> str:
    """Return the SHA-256 of a model's weights and code; of the file of one that is trained when it is loaded."""
    if not name.startswith("python:"):
        return fingerprint(ap.load_model(name))
    return digest((PAGE.parents[1] / name.split(":")[1]).read_bytes())


def ours_name(options: argparse.Namespace) -> str:
    """Name our own contestant."""
    return f"antiphase {options.precision}{' compiled' if options.compile else ''}"


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _official(
    model: nn.Module, images: Tensor, labels: Tensor, eps: float, queries: int, attacks: list[str] | None = None
) -> float:
    """Run pyautoattack's standard version, or some of its attacks with one restart; return what stands."""
    from pyautoattack import AutoAttack

    given: dict[str, Any] = {"version": "custom", "attacks": attacks} if attacks else {"version": "standard"}
    adversary = AutoAttack(model, norm="Linf", eps=eps, seed=0, device=images.device, **given)
    adversary.apgd.n_restarts = adversary.fab.n_restarts = 1
    adversary.square.n_queries = queries
    _, prediction = adversary.run_standard_evaluation(images, labels, batch_size=250)
    return float((prediction == labels).double().mean())


def _autoattack(
    model: nn.Module, images: Tensor, labels: Tensor, eps: float, options: argparse.Namespace
) -> dict[str, Timed]:
    def ours(precision: str) -> Timed:
        return lambda: (
            1
            - autoattack(
                model,
                images,
                labels,
                Threat(eps=eps),
                queries=options.queries,
                precision=precision,
                compile=options.compile,
            ).asr
        )

    return {
        ours_name(options): ours(options.precision),
        "pyautoattack": lambda: _official(model, images, labels, eps, options.queries),
    }


def _apgd(
    model: nn.Module, images: Tensor, labels: Tensor, eps: float, options: argparse.Namespace
) -> dict[str, Timed]:
    return {
        ours_name(options): lambda: (
            1 - apgd(model, images, labels, Threat(eps=eps), precision=options.precision, compile=options.compile).asr
        ),
        "pyautoattack": lambda: _official(model, images, labels, eps, options.queries, ["apgd-ce"]),
    }


def _fab(model: nn.Module, images: Tensor, labels: Tensor, eps: float, options: argparse.Namespace) -> dict[str, Timed]:
    return {
        ours_name(options): lambda: (
            1 - fab(model, images, labels, Threat(eps=eps), precision=options.precision, compile=options.compile).asr
        ),
        "pyautoattack": lambda: _official(model, images, labels, eps, options.queries, ["fab"]),
    }


def _square(
    model: nn.Module, images: Tensor, labels: Tensor, eps: float, options: argparse.Namespace
) -> dict[str, Timed]:
    def torchattacks_square() -> float:
        import torchattacks

        attack = torchattacks.Square(model, eps=eps, n_queries=options.queries, loss="margin", seed=0)
        with torch.no_grad():
            return float((model(attack(images, labels)).argmax(1) == labels).double().mean())

    contestants: dict[str, Timed] = {
        ours_name(options): lambda: (
            1
            - square(
                model,
                images,
                labels,
                Threat(eps=eps),
                queries=options.queries,
                precision=options.precision,
                compile=options.compile,
            ).asr
        ),
        "pyautoattack": lambda: _official(model, images, labels, eps, options.queries, ["square"]),
    }
    if _installed("torchattacks"):
        contestants["torchattacks"] = torchattacks_square
    return contestants


def _pgd(model: nn.Module, images: Tensor, labels: Tensor, eps: float, options: argparse.Namespace) -> dict[str, Timed]:
    def foolbox_pgd() -> float:
        import foolbox

        victim = foolbox.PyTorchModel(model, bounds=(0, 1))
        attack = foolbox.attacks.LinfPGD(steps=20, abs_stepsize=eps / 4)
        _, _, fell = attack(victim, images, labels, epsilons=eps)
        return 1 - float(fell.double().mean())

    def torchattacks_pgd() -> float:
        import torchattacks

        adversarial = torchattacks.PGD(model, eps=eps, alpha=eps / 4, steps=20)(images, labels)
        with torch.no_grad():
            return float((model(adversarial).argmax(1) == labels).double().mean())

    contestants: dict[str, Timed] = {
        ours_name(options): lambda: (
            1 - pgd(model, images, labels, Threat(eps=eps), precision=options.precision, compile=options.compile).asr
        ),
        "foolbox": foolbox_pgd,
    }
    if _installed("torchattacks"):
        contestants["torchattacks"] = torchattacks_pgd
    return contestants


def _sweep(
    model: nn.Module, images: Tensor, labels: Tensor, eps: float, options: argparse.Namespace
) -> dict[str, Timed]:
    budgets = [k / 255 for k in (0.5, 1, 2, 4, 8)]
    ensemble = autoattack_ensemble("standard", steps=100, queries=500)

    def ours(nested: Any) -> Timed:
        def work() -> float:
            results = sweep(
                ensemble,
                model,
                images,
                labels,
                Threat(),
                budgets,
                nested=nested,
                precision=options.precision,
                compile=options.compile,
            )
            return sum(1 - result.asr for result in results) / len(results)

        return work

    return {"nested up": ours(True), "nested down": ours("down"), "five separate runs": ours(False)}


COMPARISONS: dict[str, tuple[Callable[..., dict[str, Timed]], bool]] = {
    "apgd-ce": (_apgd, False),
    "pgd": (_pgd, False),
    "fab": (_fab, False),
    "square": (_square, False),
    "autoattack": (_autoattack, False),
    "sweep": (_sweep, True),
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
