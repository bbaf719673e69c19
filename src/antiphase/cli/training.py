"""``antiphase train``: what it prints, and its examples."""

import os

from antiphase.cli.app import app, typed_command
from antiphase.cli.command import Answer, command
from antiphase.runs.folders import run_folder
from antiphase.runs.options.training import TrainOptions


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
    with run_folder(options.out, "train"):
        from antiphase.runs.train import run

        last = run(options, typed_command())[-1]
    if os.environ.get("RANK", "0") != "0":
        return None
    robust = f", {last['robust_accuracy']:.4f} under PGD," if options.adversarial else ""
    print(f"accuracy {last['accuracy']:.4f}{robust} after {last['epoch']} epochs; {options.out}")
    return last | {"out": str(options.out)}
