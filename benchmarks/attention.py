"""What differential attention costs: whole models over their standard twins, paired within one run.

The twin has the same sizes and standard attention, in two forms: ``sdpa``, torch's fused attention, which is what
every library runs, and ``standard``, whatever this package takes to be quickest there. The models take turns, pass by
pass, so that what slows the machine slows all; a ratio is the median over the rounds, with its 95 % bootstrap interval,
and that of the fastest rounds. ``--memory`` measures the peak of resident memory over a training step of AdamW
instead, each model in a process of its own.

    uv run python benchmarks/attention.py                            # both settings and precisions, 10 minutes
    uv run python benchmarks/attention.py wee --precision bf16 --rounds 20
    uv run python benchmarks/attention.py --memory
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from rounds import provenance, ratio, take_turns
from torch import Tensor, nn

from antiphase.models import clip, diffclip, diffvit, vit
from antiphase.processes import keep_freed_memory

WEE = {"patch_size": 16, "in_channels": 3, "dim": 256, "depth": 14, "num_heads": 4, "num_classes": 1000}
TINY = {"depth": 4}  # Fashion-MNIST, 28 pixels in patches of 4: what studies and attacks run
# name: (batch, standard twin, differential model)
SETTINGS: dict[str, tuple[int, Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "wee": (16, lambda: vit(256, **WEE), lambda: diffvit(256, **WEE)),
    "b16-v2": (8, lambda: vit(224), lambda: diffvit(224, variant="v2")),
    "clip": (8, lambda: clip("b16"), lambda: diffclip("b16", init="released")),
    "tiny": (128, lambda: vit(28, **TINY), lambda: diffvit(28, **TINY)),
}
FORMS = ("differential", "standard", "sdpa")


def main() -> None:
    """Measure what is asked for and print a JSON line for each setting, precision and pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("settings", nargs="*", default=["wee", "clip"], help=", ".join(SETTINGS))
    parser.add_argument("--precision", default="float32,bf16")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--memory", action="store_true", help="peak memory of a training step instead of times")
    parser.add_argument("--only", choices=FORMS, help=argparse.SUPPRESS)  # the child of --memory
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    torch.set_num_threads(options.threads)
    for setting in options.settings:
        for precision in options.precision.split(","):
            if options.only:
                print(peak_of_a_step(*build(setting, options.only, precision, options.device)))
            elif options.memory:
                show(setting, precision, "peak MB of a training step", memory(setting, precision, options))
            else:
                times(setting, precision, options)


def build(setting: str, form: str, precision: str, device: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model with random weights and a batch of noise."""
    batch, twin, differential = SETTINGS[setting]
    model = differential() if form == "differential" else twin()
    if form == "sdpa":
        for module in model.modules():
            if hasattr(module, "backend"):
                module.backend = "sdpa"  # pyright: ignore[reportAttributeAccessIssue]
    dtype = {"float32": torch.float32, "bf16": torch.bfloat16}[precision]
    draw = torch.Generator().manual_seed(0)
    size = {"wee": (3, 256, 256), "tiny": (1, 28, 28)}.get(setting, (3, 224, 224))
    inputs = [torch.rand(batch, *size, generator=draw).to(device, dtype)]
    if setting == "clip":
        texts = torch.randint(1, 49_000, (batch, 77), generator=draw)
        texts[:, -1] = 49_407
        inputs.append(texts.to(device))
    return model.to(device, dtype).train(), tuple(inputs)


def outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """Return a number that depends on everything the model computes."""
    if len(inputs) == 1:
        return model(*inputs).float().square().mean()
    images, texts = model.encode_image(inputs[0]), model.encode_text(inputs[1])  # pyright: ignore[reportCallIssue]
    return (images.float() @ texts.float().T).square().mean()


def times(setting: str, precision: str, options: argparse.Namespace) -> None:
    """Time forward passes and training passes (forward and backward) of all forms in turn."""
    built = {form: build(setting, form, precision, options.device) for form in FORMS}

    def forward(form: str) -> None:
        with torch.no_grad():
            outputs(*built[form])
        finish()

    def both(form: str) -> None:
        model, inputs = built[form]
        outputs(model, inputs).backward()
        model.zero_grad()
        finish()

    def finish() -> None:
        if options.device != "cpu":
            torch.cuda.synchronize()

    for title, once in (("forward", forward), ("forward + backward", both)):
        show(setting, precision, title, take_turns({form: partial(once, form) for form in FORMS}, options.rounds))


def show(setting: str, precision: str, quantity: str, values: dict[str, list[float]]) -> None:
    """Print one line: medians, ratios of the differential model to either form of its twin."""
    medians = {form: round(float(np.median(series)), 4) for form, series in values.items()}
    ratios = {form: ratio(values["differential"], values[form]) for form in FORMS[1:]}
    print(
        json.dumps(
            {"setting": setting, "precision": precision, "what": quantity, "median": medians, "ratio": ratios}
            | provenance()
        )
    )
    sys.stdout.flush()


def memory(setting: str, precision: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the peak of each form's training step in MB, from three processes each."""
    command = [sys.executable, __file__, setting, "--precision", precision, "--device", options.device]
    threads = ["--threads", str(options.threads)]
    return {
        form: [
            float(subprocess.run([*command, *threads, "--only", form], check=True, capture_output=True).stdout)
            for _ in range(3)
        ]
        for form in FORMS
    }


def peak_of_a_step(model: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Return the most memory, in MB, that is held during a training step beyond what the process began with."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):  # the second has the optimizer's state
        outputs(model, inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
    if inputs[0].is_cuda:
        return torch.cuda.max_memory_allocated() / 1e6
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is counted anew
    outputs(model, inputs).backward()
    optimizer.step()
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


if __name__ == "__main__":
    main()
