"""Training: ``antiphase train`` of classifiers, ``train-clip``, ``train-vlm``, and ``finetune`` of a CLIP."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from antiphase.commands import options as fields
from antiphase.commands.command import Command
from antiphase.errors import UserError, shown
from antiphase.registry import CLIPS, DEFENCES, LAMBDAS, SCHEDULES, VARIANTS, VITS

_OF_LAMBDA = ("lambda_init", "lambda_schedule", "parameterisation")
_ADVERSARY = {"adversarial": "eps", "adversarial_warmup": "warmup_epochs", "replays": "replays"}
_ADVERSARY |= {f"adversarial_{name}": name for name in ("variant", "steps", "step_size")}
_OF_STAGE_1 = ("tower", "language", "projector", "projector_start", "merge", "prompt")
_Passes = Annotated[int, Field(ge=1, description="Passes over the data.")]
_Together = Annotated[int, Field(ge=1, le=fields.MOST_AT_ONCE, description="Images per step, over all processes.")]
_Peak = Annotated[float, Field(description="Peak learning rate.")]
_Decay = Annotated[float, Field(description="Weight decay, applied to matrices only.")]
_Stored = Annotated[Literal["float32", "float16"], Field(description="Number format of the stored weights.")]


class TrainingOptions(fields.Options):
    """What every training has."""

    data: str
    out: fields.Out
    limit: int | None = Field(None, ge=1)
    """Train on at most N images, pairs or conversations."""
    precision: Literal["float32", "bf16", "auto"] = "auto"
    """Precision of training; auto takes bf16 where the hardware supports it."""
    track: fields.Track = ()
    seed: fields.Seed = 0
    quiet: fields.Quiet = False


class PresetOptions(TrainingOptions):
    """What every training by a preset has."""

    epochs: int | None = Field(None, ge=1)
    """Passes over the data. If not given: the preset's."""
    batch_size: int | None = Field(None, ge=1, le=fields.MOST_AT_ONCE)
    """Pairs or conversations per step, over all processes. If not given: the preset's."""
    part: int | None = Field(None, ge=1)
    """Pairs or conversations of a process that pass through the model at a time: less memory, same gradient. If not
    given: all; on a processor, 4 conversations."""
    learning_rate: float | None = None
    """Peak learning rate. If not given: the preset's."""
    checkpointing: bool = False
    """Compute each block again in the backward pass: slower, but uses less memory."""


class DefendedOptions(fields.Options):
    """What every training with defences has."""

    defend: Annotated[fields.Words, fields.Typed(metavar="NAME=STRENGTH,…")] = ()
    """Defences, each with its strength, such as map-jacobian=1: docs/defences.md has the names and equations."""

    @property
    def defences(self) -> dict[str, float]:
        strengths: dict[str, float] = {}
        for word in self.defend:
            name, equals, strength = word.partition("=")
            try:
                strengths[name] = float(strength)
            except ValueError:
                equals = ""
            if not equals:
                raise UserError(f"defend {shown(word)}: expected NAME=STRENGTH, such as {next(iter(DEFENCES))}=1")
        if len(strengths) < len(self.defend):
            raise UserError(f"defend {','.join(self.defend)}: expected each name once")
        return strengths


class TrainOptions(DefendedOptions, TrainingOptions):
    """Train a ViT, a DiffViT or any other classifier by the sensitivity paper's recipe (Adam, 5e-4, batches of 128).

    A model of your own or of another library is trained as it comes, from the weights that it has; --out then takes
    its place wherever a model is given. The same command resumes a killed run, which ends with the weights of an
    uninterrupted one. Under torchrun the processes share the batch. With --adversarial, each epoch also reports the
    accuracy under PGD at that ε.

    **Examples**

    antiphase train --model diffvit --data digits --epochs 20 --out runs/diffvit
    antiphase train --model vit --data cifar10 --depth 4 --augment flip-crop --out runs/vit-4
    antiphase train --model diffvit --variant v2 --data fashion-mnist --out runs/diffvit-v2
    antiphase train --model diffvit --data cifar10 --adversarial 0.5/255 --out runs/diffvit-robust
    antiphase train --model diffvit --data digits --defend map-jacobian=1,ema=0.99 --out runs/diffvit-smooth
    antiphase train --model python:mymodel.py:build --data folder:PHOTOS --adversarial 1/255 --out runs/mine
    torchrun --nproc-per-node 2 -m antiphase train --model vit --data imagenet --out runs/b16
    """

    model: Annotated[str, fields.Typed(metavar=" | ".join((*VITS, "MODEL")))]
    """Kind of model: standard attention, differential attention, or standard attention with a DiffViT's norm after each
    head (vit-norm). Or any classifier, as for antiphase audit: python:FILE:CALLABLE, timm:NAME, a run directory."""
    variant: Annotated[str | None, fields.Typed(choices=VARIANTS)] = None
    """DiffViT: variant of differential attention, of which docs/variants.md has the equations. If not given: v1."""
    ratio: int | None = Field(None, ge=1)
    """DiffViT, grouped and gated: heads that share one subtracted map. If not given: 4, or the next smaller divisor."""
    data: str
    """Source of images with a train split, such as digits, cifar10 or folder:PATH; docs/data.md has all."""
    held_out: str | None = None
    """Source whose test split gives the accuracy after each epoch, or none. If not given: --data."""
    skip_bad: fields.SkipBad = False
    random_weights: fields.RandomWeights = False
    new_head: bool = False
    """Replace the last layer of a model of another library, or of your own, by a new one for the data's classes."""
    epochs: _Passes = 100
    depth: int | None = Field(None, ge=1)
    """Number of blocks. If not given: by the image size."""
    dim: int | None = Field(None, ge=1)
    """Width of the tokens. If not given: by the image size."""
    heads: int | None = Field(None, ge=1)
    """Heads of the standard twin; a DiffViT has half as many."""
    patch_size: int | None = Field(None, ge=1)
    """Side of a patch in pixels. If not given: by the image size."""
    lambda_init: float | None = None
    """DiffViT: initial λ. If not given: 0.8."""
    lambda_schedule: Annotated[str | None, fields.Typed(choices=SCHEDULES)] = None
    """DiffViT: initial λ of each layer: the same, or 0.8 − 0.6·exp(−0.3·layer). If not given: constant."""
    parameterisation: Annotated[str | None, fields.Typed(choices=LAMBDAS)] = None
    """DiffViT: what λ is computed from: four vectors a layer as in the paper (vector), two numbers a head (scalar),
    λ_init alone (fixed), 0 (zero) or each token (gate). If not given: the variant's, vector for v1."""
    image_size: fields.ImageSize = None
    resize: fields.Resize = None
    batch_size: _Together = 128
    optimizer: Literal["adam", "adamw"] = "adam"
    """Optimizer."""
    learning_rate: _Peak = 0.0005
    weight_decay: _Decay = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    """Schedule of the learning rate."""
    warmup_epochs: float = 0.0
    """Epochs of linear warm-up."""
    augment: Literal["none", "flip-crop"] = "none"
    """Augmentation of the images."""
    adversarial: fields.OptionalNumber = None
    """Train on images perturbed by up to this ε, in units of the [0, 1] pixel range, such as 1/255."""
    adversarial_variant: Literal["pgd", "fast", "free"] | None = None
    """Adversarial training: PGD, fast (one step) or free (repeated minibatches). If not given: pgd."""
    adversarial_steps: int | None = Field(None, ge=1)
    """Steps of pgd. If not given: 3."""
    adversarial_step_size: fields.OptionalNumber = None
    """Step size, in the units of ε. If not given: max(ε/4, 2·ε/steps) for pgd, 1.25·ε for fast, ε for free."""
    adversarial_warmup: float | None = Field(None, ge=0)
    """Epochs over which ε rises from 0. If not given: 1."""
    replays: int | None = Field(None, ge=1)
    """Uses of each minibatch by free. If not given: 4."""
    store: _Stored = "float32"

    def model_post_init(self, context: Any, /) -> None:
        if self.model not in VITS:
            self._check_other()
        elif self.random_weights or self.new_head:
            name = "random_weights" if self.random_weights else "new_head"
            raise UserError(f"{name}: a {self.model} begins with random weights anyway; leave it out")
        elif of_lambda := list(self.chosen("variant", "ratio", *_OF_LAMBDA)):
            from antiphase.models.transformer import attention_of, attention_spec

            if not attention_spec(attention_of(self.model)).differential:
                raise UserError(f"{of_lambda[0]}: a {self.model} has no λ; leave it out or train a diffvit")
        if self.lambda_init is not None and self.lambda_schedule == "depth":
            why = "has no effect with lambda_schedule depth; leave one of them out"
            raise UserError(f"lambda_init {self.lambda_init:g}: {why}")
        if self.adversarial is None:
            for name, value in self.chosen(*_ADVERSARY).items():
                raise UserError(f"{name} {value}: needs an ε; give --adversarial too, such as 1/255")
        if self.defences:
            from antiphase.training.defences import check_defences

            check_defences(self.defences, None, self.adversarial is not None)

    def _check_other(self) -> None:
        if self.model in CLIPS:
            raise UserError(f"model {shown(self.model)}: is trained by antiphase train-clip")
        if not re.search(r"[:/=]", self.model) and not os.path.isdir(self.model):
            known = f"{', '.join(VITS)}, or a model such as python:FILE:CALLABLE or a run directory"
            raise UserError(f"model {shown(self.model)}: expected one of {known}")
        for name, value in self.model_part.items():
            fix = "leave it out: its own code or name says so, as in python:FILE:CALLABLE?depth=4"
            raise UserError(f"{name} {value}: is of {', '.join(VITS)}, not of {self.model}; {fix}")

    @property
    def model_part(self) -> dict[str, Any]:
        sizes = self.chosen("variant", "ratio", "depth", "dim", "patch_size", *_OF_LAMBDA)
        return sizes if self.heads is None else {"num_heads": self.heads, **sizes}

    @property
    def adversary(self) -> dict[str, Any]:
        return {_ADVERSARY[name]: value for name, value in self.chosen(*_ADVERSARY).items()}


class TrainClipOptions(DefendedOptions, PresetOptions):
    """Train a CLIP or a DiffCLIP on images with captions, by DiffCLIP's recipe.

    The same command resumes a killed run, which ends with the weights of an uninterrupted one. Under
    torchrun the processes share the batch, and the gradient is that of the whole batch.

    **Examples**

    antiphase train-clip --model diffclip --data openmoji --preset openmoji --out runs/diffclip
    antiphase train-clip --model clip --data csv:photos.csv --preset openmoji --dim 256 --depth 6 --image-size 96
    --out runs/clip-96
    antiphase train-clip --model clip --data "shards:cc3m/{00000..00331}.tar" --out runs/clip
    torchrun --nproc-per-node 8 -m antiphase train-clip --model diffclip --part 256 --compile
    --data "shards:pipe:aws s3 cp s3://bucket/cc12m/{00000..01242}.tar -" --samples 10000000 --out runs/cc12m
    """

    model: Annotated[str, fields.Typed(choices=CLIPS)]
    """Kind of model: diffclip-depth is DiffCLIP* (λ_init rises with depth), diffclip-vision is DiffCLIP† (differential
    attention in the image tower only), diffclip-text has it in the text tower only."""
    variant: Annotated[str | None, fields.Typed(choices=VARIANTS)] = None
    """DiffCLIP: variant of differential attention, of which docs/variants.md has the equations. If not given: v1."""
    data: str
    """Source of image-text pairs: openmoji, emoji-objects, shards:PATTERN, coco, csv:PATH, and more in docs/data.md."""
    preset: Literal["diffclip", "openmoji"] = "diffclip"
    """Recipe: the papers' (ViT-B/16 at 224 pixels), or a laptop's for OpenMoji (64 pixels)."""
    from_run: Annotated[fields.Directory | None, fields.Typed(flags=("--from",), metavar="RUN")] = None
    """Run directory of a CLIP of this kind to start from: its weights and sizes. If not given: random weights."""
    skip_bad: fields.SkipBad = False
    held_out: fields.Words = ()
    """Sources whose test split is evaluated after each epoch, separated by commas, or none. If not given: --data."""
    samples: int | None = Field(None, ge=1)
    """Samples per epoch, for shards that do not state their size."""
    lanes: int | None = Field(None, ge=1)
    """Streams of shards, a multiple of the number of processes. If not given: 8, or as many as the shards allow."""
    limit: int | None = Field(None, ge=2)
    """Train on at most N pairs."""
    warmup_epochs: float | None = None
    """Epochs of linear warm-up. If not given: the preset's."""
    weight_decay: float | None = None
    """Weight decay, applied to matrices only. If not given: the preset's."""
    loss: Literal["clip", "siglip", "slip_exact"] = "clip"
    """Loss; slip_exact is SLIP's code on several GPUs, where the keys of other processes have no gradient."""
    init: Literal["matched", "released"] = "matched"
    """Initial weights: the same for both twins, or as in the released pair."""
    lambda_init: float | None = None
    """DiffCLIP: λ_init of the constant schedule. If not given: 0.8."""
    dim: int | None = Field(None, ge=1)
    """Width of the tokens in both towers, with heads as wide as the preset's. If not given: the preset's."""
    depth: int | None = Field(None, ge=1)
    """Number of blocks in each tower. If not given: the preset's."""
    image_size: int | None = Field(None, ge=1)
    """Side of the images in pixels, a multiple of the preset's patches. If not given: the preset's."""
    patch_dropout: float = 0.0
    """Fraction of patches that are left out in training."""
    compile: bool = False
    """Run the towers under torch.compile."""

    def model_post_init(self, context: Any, /) -> None:
        if self.defences:
            from antiphase.training.defences import check_defences

            check_defences(self.defences, None, adversarial=False, clip=True)
        given = [*self.chosen("variant", "lambda_init", "dim", "depth", "image_size"), *["init"] * self.typed("init")]
        if self.from_run is not None and given:
            raise UserError(f"{given[0]}: is that of {self.from_run}, which --from names; leave it out")
        if self.variant is not None or self.lambda_init is not None:
            from antiphase.models.clip import find_clip

            if (schedule := find_clip(self.model).schedule) is None and self.variant is not None:
                raise UserError(f"variant {self.variant}: a {self.model} subtracts no map; leave it out")
            if self.lambda_init is not None and schedule != "constant":
                why = f"a {self.model} has {'no λ' if schedule is None else 'λ_init by depth'}"
                raise UserError(f"lambda_init {self.lambda_init:g}: {why}; leave out --lambda-init or train a diffclip")


class TrainVlmOptions(PresetOptions):
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

    stage: Literal["1", "2"]
    """Stage: 1 trains the projector on captions, 2 also the language model on conversations."""
    data: str
    """Source of conversations: emoji-objects or llava:JSON?images=DIR."""
    tower: str | None = None
    """Model whose image tower sees: a run directory of train-clip, open_clip:NAME/TAG, diffclip:PATH and so on. With
    --pretrained: that model's."""
    language: str | None = None
    """Language model: smollm2, a name on the Hugging Face hub, a directory of save_pretrained, or tiny (random weights,
    to try out a pipeline). If not given: smollm2."""
    pretrained: Path | None = None
    """Directory of stage 1, from which stage 2 starts."""
    preset: Literal["diffclip", "emoji"] = "diffclip"
    """Recipe: DiffCLIP's, or a laptop's for emoji scenes."""
    projector: Literal["linear", "mlp2x"] | None = None
    """Kind of projector. If not given: linear."""
    projector_start: Literal["default", "captions"] | None = None
    """Weights with which stage 1 begins: PyTorch's default, or fitted so that image tokens resemble the words of the
    captions (linear projectors only). If not given: the preset's."""
    text_first: Annotated[bool | None, fields.Typed(flags=("--text-first/--no-text-first",))] = None
    """Begin the first epoch of stage 2 with the conversations that have no image. If not given: the preset's."""
    merge: int | None = Field(None, ge=1)
    """Side of the squares of image tokens that become one position. If not given: the preset's."""
    prompt: Literal["chat", "llava"] | None = None
    """Conversation format: the tokenizer's chat template, or LLaVA 1.5's. If not given: chat if there is one."""
    lora: int | None = Field(None, ge=1)
    """Rank of LoRA adapters: stage 2 trains them in place of the language model's weights."""
    warmup: float | None = None
    """Share of the steps with linear warm-up. If not given: 0.03."""
    store: Literal["float32", "bfloat16"] = "float32"
    """Type in which a language model that was trained is stored."""

    def model_post_init(self, context: Any, /) -> None:
        if self.pretrained is not None:
            self._refuse(_OF_STAGE_1, "--pretrained has one; leave out --{}")
            if self.stage == "1":
                raise UserError("pretrained: stage 1 starts from a tower; give --tower, or --stage 2")
        elif self.tower is None:
            raise UserError("tower: is missing; expected --tower, or --pretrained with stage 1's directory")
        if self.stage == "1":
            self._refuse(("text_first", "lora"), "is of stage 2; leave out --{}, or use --stage 2")

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        for name, value in self.chosen(*names).items():
            option = name.replace("_", "-")
            raise UserError(f"{option} {value}: {why.format(option)}")


class FinetuneOptions(TrainingOptions):
    """Fine-tune the image tower of a CLIP by FARE: a perturbed image keeps the embedding of the clean one.

    No labels and no texts are used; the text tower stays as it is. Steps and rates are those of the authors (Schlarmann
    et al., 2024). The same command resumes a killed run. Under torchrun the processes share the batch.

    **Examples**

    antiphase finetune runs/diffclip --fare 2/255 --data openmoji --epochs 5 --out runs/diffclip-fare
    antiphase finetune diffclip:hammh0a/DiffCLIP_ViTB16_CC12M#lambda_init=0.8 --fare 4/255 --data imagenet --out runs/4
    """

    model: fields.OneModel
    fare: fields.Number
    """Largest change of a pixel, in units of the [0, 1] range; fractions such as 2/255 are accepted."""
    data: str
    """Source of images with a train split, such as imagenet, openmoji or folder:PATH; docs/data.md has all."""
    epochs: _Passes = 2
    batch_size: _Together = 128
    steps: int = Field(10, ge=1)
    """Steps of PGD for each image, of 1/255."""
    learning_rate: _Peak = 1e-5
    weight_decay: _Decay = 1e-4
    warmup: float = Field(0.07, ge=0, le=1)
    """Share of the steps with linear warm-up."""
    store: _Stored = "float32"


_OPTIONS = {"train": TrainOptions, "train-clip": TrainClipOptions, "train-vlm": TrainVlmOptions}
_OPTIONS |= {"finetune": FinetuneOptions}
_RUN, _RESULT = "antiphase.commands.train.run:run", "antiphase.commands.train.run:TrainingResult"
COMMANDS = {name: Command(name, options, _RUN, _RESULT) for name, options in _OPTIONS.items()}
