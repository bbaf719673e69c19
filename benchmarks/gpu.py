"""What a GPU does with the package, in at most ten minutes: the tests marked ``cuda``, then every line of speed.

    python benchmarks/gpu.py --out gpu                 # writes gpu/tests.txt and gpu/speed.jsonl
    python benchmarks/gpu.py --out gpu --dry-run       # the same steps on the CPU, with few images

Each step is a process of its own with a limit of time; a step that fails does not stop the others. The ViT-B/16 has
random weights: its lines are about time.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent
_MOST_SECONDS, _LEAST_SECONDS = 590, 15  # of all; of a step


def steps(dry_run: bool) -> list[tuple[str, list[str], int]]:
    """Return name, arguments and limit in seconds of each step."""
    device = ["--device", "cpu" if dry_run else "cuda"]
    attacks, attention = str(HERE / "attacks.py"), str(HERE / "attention.py")
    images, queries, rounds = ("20", "20", "1") if dry_run else ("1000", "1000", "3")
    few = ["--images", images, "--queries", queries, *device]
    cnn, resnet = (["--model", f"python:benchmarks/models.py:{name}"] for name in ("cnn", "resnet18"))
    settings = ["tiny"] if dry_run else ["wee", "clip", "tiny"]
    turns = ["--rounds", rounds]
    eps = ["--eps", "8/255"]
    auto = ["--precision", "auto"]
    vit = [str(HERE / "gpu.py"), "--vit-b16", *device, *(["--dry-run"] if dry_run else [])]
    return [
        ("attention", [attention, *settings, "--rounds", rounds + "0" * (not dry_run), *device], 120),
        ("diffvit", [attacks, "pgd", "apgd-ce", "--eps", "2/255,8/255", *turns, *few], 60),
        ("diffvit auto", [attacks, "pgd", "apgd-ce", "fab", "square", *eps, *auto, *few], 90),
        ("cnn", [attacks, "pgd", "apgd-ce", "square", *eps, *turns, *cnn, *few], 60),
        ("cnn auto", [attacks, "pgd", "apgd-ce", "fab", "square", *eps, *auto, *cnn, *few], 60),
        ("cnn compiled", [attacks, "pgd", "apgd-ce", *eps, *auto, "--compile", *cnn, *few], 60),
        ("resnet18 auto", [attacks, "pgd", "apgd-ce", *eps, *auto, *resnet, *few], 60),
        ("autoattack diffvit", [attacks, "autoattack", "--eps", "2/255", *auto, *few], 90),
        ("vit-b16", vit, 150),
    ]


def main() -> None:
    """Run the tests and the steps; write what they print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with few images")
    parser.add_argument("--vit-b16", action="store_true", help=argparse.SUPPRESS)  # a step
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.vit_b16:
        return vit_b16(options.device, options.dry_run)
    options.out.mkdir(parents=True, exist_ok=True)
    name = "CPU" if options.dry_run else torch.cuda.get_device_name(0)
    began_all = time.perf_counter()
    lines = [{"device": name, "torch": torch.__version__}]
    if not options.dry_run:
        tests = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "cuda", "tests/test_cuda.py", "-W", "default"]
        print(run(tests, 240, options.out / "tests.txt")[-3000:], flush=True)
    for step, arguments, limit in steps(options.dry_run):
        began = time.perf_counter()
        limit = min(limit, int(_MOST_SECONDS - (began - began_all)))
        if limit < _LEAST_SECONDS:
            print(f"{step}: left out, the time is over", flush=True)
            continue
        text = run([sys.executable, *arguments], limit, options.out / "last.txt")
        for line in text.splitlines():
            if line.startswith("{"):
                lines.append({"step": step, **json.loads(line)})
                print(line, flush=True)
        if not any(line.get("step") == step for line in lines):
            lines.append({"step": step, "failed": text[-800:]})
            print(step, "failed:", text[-800:], flush=True)
        print(f"{step}: {time.perf_counter() - began:.0f} s", flush=True)
        # after each: the machine may be gone before the last
        (options.out / "speed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return None


def run(command: list[str], limit: int, log: Path) -> str:
    """Return what a command prints within the limit, standard error included."""
    with log.open("w") as file:
        try:
            subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=limit, env=os.environ, check=False)
        except subprocess.TimeoutExpired:
            file.write(f"\nended after {limit} s\n")
    return log.read_text(errors="replace")


def vit_b16(device: str, dry_run: bool) -> None:
    """Time attacks on a random ViT-B/16 against pyautoattack's, a JSON line for each; ends after 100 seconds."""
    import timm
    from pyautoattack import AutoAttack

    import antiphase as ap
    from antiphase.attacks import Threat

    torch.manual_seed(0)
    count, steps, queries = (2, 2, 4) if dry_run else (64, 100, 200)
    images, began_all = torch.rand(count, 3, 224, 224), time.perf_counter()
    model = timm.create_model("vit_base_patch16_224", num_classes=100).eval().requires_grad_(False).to(device)
    images, eps = images.to(device), 1 / 255 / 8
    with torch.no_grad():
        labels = model(images).argmax(1)

    def peer(attack: str) -> float:
        adversary = AutoAttack(model, norm="Linf", eps=eps, seed=0, version="custom", attacks=[attack], device=device)
        if attack == "autoattack":
            adversary.attacks_to_run = ["apgd-ce", "apgd-t", "fab-t", "square"]
        adversary.apgd.n_restarts, adversary.square.n_queries = 1, queries
        if dry_run:
            adversary.apgd.n_iter = adversary.apgd_targeted.n_iter = adversary.fab.n_iter = steps
        _, prediction = adversary.run_standard_evaluation(images, labels, batch_size=count)
        return float((prediction != labels).double().mean())

    def ours(attack: str, precision: str) -> float:
        function, settings = {
            "apgd-ce": (ap.attacks.apgd, {"steps": steps}),
            "square": (ap.attacks.square, {"queries": queries}),
            "autoattack": (ap.attacks.autoattack, {"steps": steps, "queries": queries}),
        }[attack]
        return float(
            function(model, images, labels, Threat(eps=eps), precision=precision, batch_size=count, **settings).asr
        )

    for attack in ("apgd-ce", "square", "autoattack"):
        if time.perf_counter() - began_all > 100:
            print(json.dumps({"what": f"vit-b16 {attack}", "left out": "100 s had passed"}), flush=True)
            continue
        seconds, asr = {}, {}
        for name, work in {
            "antiphase float32": lambda attack=attack: ours(attack, "float32"),
            "antiphase auto": lambda attack=attack: ours(attack, "auto"),
            "pyautoattack": lambda attack=attack: peer(attack),
        }.items():
            began = time.perf_counter()
            asr[name] = work()
            seconds[name] = round(time.perf_counter() - began, 2)
        print(json.dumps({"what": f"vit-b16 {attack}", "seconds": seconds, "asr": asr}), flush=True)


if __name__ == "__main__":
    main()
