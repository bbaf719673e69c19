"""How much models know: retrieval, zero-shot, linear probe, few-shot, MMVP-VLM, POPE and captions."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from antiphase.commands import options as fields
from antiphase.commands.command import Command
from antiphase.precision import Precision
from antiphase.registry import TASKS

_Objectives = tuple[Literal["norm", "squared"], ...]
Objectives = Annotated[
    _Objectives, BeforeValidator(fields.read_words), AfterValidator(fields.at_least_one), fields.Typed(text=",".join)
]


class EvaluateOptions(fields.Options):
    """Measure how much models know: retrieval, zero-shot, linear probe, few-shot, MMVP-VLM, POPE, captions.

    Features are computed once for each model and data set and kept. Numbers come with 95 % intervals over the
    images, captions, episodes or pairs; the spread over seeds is reported separately. With --against, every model is
    compared with its twin on the same images.

    **Examples**

    antiphase evaluate runs/diffclip --against runs/clip
    antiphase evaluate runs/diffclip,runs/clip --tasks retrieval --data openmoji,noto-emoji --captions first
    antiphase evaluate diffclip:cc12m.pt#lambda_init=0.8 --against diffclip:cc12m-clip.pt --data paper
    antiphase evaluate open_clip:ViT-B-32/laion2b_s34b_b79k --tasks zero-shot --data imagenet,imagenet-v2
    antiphase evaluate runs/vlm-diffclip --against runs/vlm-clip --tasks pope --data emoji-pope
    antiphase evaluate specimen:diffvit-0 --against specimen:vit-0 --tasks probe,few-shot --data fashion-mnist
    """

    models: fields.Model
    against: fields.Against = ()
    tasks: fields.Words = Field(
        (),
        description=f"Tasks, separated by commas: {', '.join(TASKS)}. probe:DATA restricts "
        "a task to one data set. If not given: all tasks that the models and the data allow.",
    )
    data: fields.Words = ()
    """Data sets, separated by commas, such as openmoji, digits, fashion-mnist, imagenet, imagenet-v2, flickr30k,
    coco-karpathy, folder:PATH, csv:PATH, wds:PATH, mmvp, emoji-mmvp, pope, emoji-pope, and more in docs/data.md; paper
    stands for the DiffCLIP paper's data sets of each task. If not given: openmoji."""
    split: fields.Split = "test"
    resize: fields.Resize = None
    limit: Annotated[int | None, fields.Typed(metavar="N"), Field(ge=1)] = None
    """Measure at most N images of the split; --train-limit is for those to learn from."""
    train_limit: Annotated[int | None, fields.Typed(metavar="N"), Field(ge=1)] = None
    """Learn from at most N images of the train split, for the probe and few-shot; --limit is for those measured."""
    templates: fields.Words = ()
    """Prompt ensembles for zero-shot, separated by commas: 80, 7, 1, own (the prompts that come with the data), or a
    file with one template per line. If not given: own where the data have prompts, else 80 and 7."""
    prompt: tuple[fields.Unicode, ...] = ()
    """Prompt template of your own, with {} for the class name; repeat to average over several."""
    captions: Literal["all", "first"] = "all"
    """Captions of an image that count in retrieval: all, as in CLIP_benchmark, or the first."""
    features: Literal["raw", "projected"] = "raw"
    """Features of the probe and of few-shot: before the projection (raw) or after it."""
    objective: Objectives = ("norm",)
    """Penalty of the probe: norm (not squared: DiffCLIP's code), squared (scikit-learn), or norm,squared."""
    seeds: int = Field(3, ge=1)
    """Number of random seeds of the probe and of few-shot."""
    episodes: int = Field(5000, ge=1)
    """Few-shot episodes per seed."""
    ways: int = Field(5, ge=2)
    """Classes per episode."""
    shots: int = Field(5, ge=1)
    """Support images per class of an episode."""
    queries: int = Field(6, ge=1)
    """Query images per class of an episode; fewer if the class has fewer."""
    suffix: fields.Suffix = ""
    iterations: int = Field(1000, ge=1)
    """Maximum number of L-BFGS iterations of the probe."""
    out: fields.Out = Path("antiphase-evaluate")
    cache: fields.Directory | None = None
    """Directory in which features are kept for later runs. If not given: features/ in the data directory."""
    random_weights: fields.RandomWeights = False
    skip_bad: fields.SkipBad = False
    batch_size: int = Field(256, ge=1, le=fields.MOST_AT_ONCE)
    """Images per batch; affects results by rounding only."""
    precision: Precision = "float32"
    """Precision of the features; bf16 is faster. Questions are answered in float32."""
    device: fields.Device = "auto"
    quiet: fields.Quiet = False


COMMAND = Command("evaluate", EvaluateOptions, f"{__name__}.run:run", f"{__name__}.result:EvaluateResult")
