"""``antiphase train``: what it prints, and its examples."""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from antiphase.cli.app import app, typed_command
from antiphase.cli.command import Answer, command
from antiphase.commands.run_folder import run_folder
from antiphase.runs.options.training import TrainOptions
from antiphase.terminal import say


@command(app, TrainOptions)
def train(options: TrainOptions) -> Answer:
    """Train a ViT or a DiffViT by the robustness paper's recipe (Adam, 5e-4, batches of 128).

    The same command resumes a killed run, which ends with the weights of an uninterrupted one.
    Under torchrun the processes share the batch. With --adversarial, each epoch also reports the
    accuracy under PGD at that ε.

    **Examples**

    antiphase train --model diffvit --data digits --epochs 20 --out runs/diffvit

    antiphase train --model vit --data cifar10 --depth 4 --augment flip-crop --out runs/vit-4

    antiphase train --model diffvit --data cifar10 --adversarial 0.5/255 --out runs/diffvit-robust

    torchrun --nproc-per-node 2 -m antiphase train --model vit --data imagenet --out runs/b16
    """
    return trained(options, "train", _accuracy)


def _accuracy(last: dict[str, Any]) -> str:
    robust = f", {last['robust_accuracy']:.4f} under PGD," if "robust_accuracy" in last else ""
    return f"accuracy {last['accuracy']:.4f}{robust}"


def trained(
    options: Any, name: str, said: Callable[[dict[str, Any]], str] = lambda last: f"loss {last['loss']:.4f}"
) -> Answer:
    """Run a training and print its outcome.

    Args:
        options: of the training.
        name: of the command; ``runs`` has a module for it.
        said: the outcome in words, from the last epoch's metrics.
    """
    with run_folder(options.out, name):
        run = import_module(f"antiphase.runs.{name.replace('-', '_')}").run
        last = run(options, typed_command())[-1]
    if os.environ.get("RANK", "0") != "0":
        return None
    say(f"{said(last)} after {last['epoch']} epoch{'s' * (last['epoch'] > 1)}; {options.out}")
    return last | {"out": str(options.out)}
