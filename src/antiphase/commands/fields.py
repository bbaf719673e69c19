"""Fields that several commands share, each with its help text and its range."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from antiphase.commands.options import (
    Typed,
    at_least_one,
    directory,
    each_once,
    eps_text,
    in_unicode,
    read_eps,
    read_models,
    read_one_eps,
    read_words,
)
from antiphase.precision import Precision

MOST_AT_ONCE = 2**20  # of images in a batch: far more than fit in memory

# kinds of values
Words = Annotated[tuple[str, ...], BeforeValidator(read_words), Typed(text=",".join, metavar="A,B,…")]
Models = Annotated[tuple[str, ...], BeforeValidator(read_models), Typed(text=",".join, metavar="MODEL,…")]
Numbers = Annotated[
    tuple[float, ...],
    BeforeValidator(read_eps),
    AfterValidator(each_once),
    Typed(text=eps_text, metavar="X,…"),
]
Number = Annotated[float, BeforeValidator(read_one_eps), Typed(text=eps_text)]
OptionalNumber = Annotated[float | None, BeforeValidator(read_one_eps), Typed(text=eps_text)]
Unicode = Annotated[str, AfterValidator(in_unicode)]
Directory = Annotated[Path, BeforeValidator(directory), Typed(metavar="DIRECTORY")]

# models
_FORMS = (
    "specimen:diffvit-0, a run directory, python:FILE:CALLABLE (runs your code), timm:NAME, torchvision:NAME, "
    "hf:ORG/NAME or hf:DIRECTORY, open_clip:NAME/TAG, diffclip:PATH, hub:USER/NAME."
)
Model = Annotated[
    Models,
    AfterValidator(at_least_one),
    Typed(argument=True),
    Field(description=f"Model, or several separated by commas: {_FORMS}"),
]


def _one(spec: str) -> str:
    if len(found := read_models(spec)) > 1:
        raise ValueError(f"{len(found)} models; expected one")
    return spec


Single = Annotated[str, AfterValidator(_one), Typed(metavar="MODEL")]
OneModel = Annotated[Single, Typed(argument=True), Field(description=f"Model: {_FORMS}")]
Against = Annotated[
    Models,
    Field(
        description="Model to compare with, such as the twin with standard attention; several separated by commas, one "
        "for each model."
    ),
]
RandomWeights = Annotated[
    bool,
    Field(
        description="Build timm:, torchvision:, hf: and open_clip: models with random weights, without a download."
    ),
]
Prompt = Annotated[
    Unicode | None,
    Field(
        description="Template of a CLIP's class prompts, with {} for the class name. If not given: the data's own "
        "prompts, or 'a photo of {}'."
    ),
]

# images
Data = Annotated[
    str | None,
    Field(
        description="Source of images, such as digits, fashion-mnist, folder:PATH or npz:FILE, and more in "
        "docs/data.md. If not given: the test images of the model's own data."
    ),
]
Classes = Annotated[
    Path | None,
    Field(
        description="Text file with the data's class names in the order of the model's outputs, one per line; a blank "
        "line stands for a class missing from the data. If not given: classes are matched by the names stored with the "
        "model."
    ),
]
Split = Annotated[str, Field(description="Split of the data: test, train or another that the source has.")]
Limit = Annotated[int | None, Typed(metavar="N"), Field(ge=1, description="Use at most N images.")]
SkipBad = Annotated[bool, Field(description="Leave out images that cannot be read, and count them.")]

# questions
Suffix = Annotated[
    Unicode,
    Field(
        description="Put behind every question to a vision-language model, on a line of its own. LLaVA's 'Answer "
        "the question using a single word or phrase.' is one."
    ),
]

# the run
Out = Annotated[Directory, Field(description="Directory to write. The same command resumes a killed run.")]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1, description="Random seed.")]
BatchSize = Annotated[
    int | None,
    Field(
        ge=1,
        le=MOST_AT_ONCE,
        description="Images per batch; affects no result. If not given: chosen to fit the device.",
    ),
]
Device = Annotated[str, Field(description="Device: auto, cpu, cuda, cuda:1 and so on.")]
Quiet = Annotated[bool, Typed(flags=("--quiet", "-q")), Field(description="Show no progress bars.")]

Track = Annotated[
    Words,
    Field(
        description="Experiment trackers that get loss, accuracy, learning rate and λ by layer, separated by commas: "
        "tensorboard, wandb, mlflow or another that accelerate supports. Affects no result."
    ),
]

# attacks
Norm = Annotated[Literal["linf", "l2"], Field(description="Norm of the perturbation.")]
SearchPrecision = Annotated[
    Precision,
    Field(
        description="Precision of the search; bf16 is faster on a GPU. Every success is confirmed in float32."
    ),
]
Compile = Annotated[
    bool,
    Field(
        description="Run the search on the model compiled by torch.compile, which needs a C++ compiler on a CPU."
    ),
]
