"""``antiphase train-vlm``: what it prints, and its examples."""

from antiphase.cli.app import app
from antiphase.cli.command import Answer, command
from antiphase.cli.training import trained
from antiphase.runs.options.vlm_training import TrainVlmOptions


@command(app, TrainVlmOptions)
def train_vlm(options: TrainVlmOptions) -> Answer:
    """Train a small vision-language model on an image tower, in two stages, as DiffCLIP does.

    The same command resumes a killed run, which ends with the weights of an uninterrupted one. Under
    torchrun the processes share the batch, and the gradient is that of the whole batch.

    **Examples**

    antiphase train-vlm --stage 1 --tower runs/diffclip --data emoji-objects --limit 1200 --preset emoji
    --out runs/vlm-1

    antiphase train-vlm --stage 2 --pretrained runs/vlm-1 --data emoji-objects --limit 800 --preset emoji
    --out runs/vlm

    antiphase train-vlm --stage 1 --tower runs/diffclip --data "llava:blip_laion_cc_sbu_558k.json?images=llava"
    --out runs/vlm-1

    antiphase train-vlm --stage 2 --pretrained runs/vlm-1 --data "llava:llava_v1_5_mix665k.json?images=data"
    --out runs/vlm
    """
    return trained(options, "train-vlm")
