"""Options that several commands share, each with its words."""

import os
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from antiphase.errors import UserError
from antiphase.registry import ATTACKS, choices


def directory(text: str | Path) -> Path:
    """Return the path of a directory, there or not."""
    if not str(text).strip() or "\0" in str(text):
        raise typer.BadParameter(f"{str(text)!r} is no path; expected a directory")
    if os.path.isfile(text):  # never raises, unlike Path.is_file
        raise typer.BadParameter(f"Directory '{text}' is a file.")
    return Path(text)


def refuse_unused(
    context: typer.Context, wanted: Collection[str], users: Mapping[str, Collection[str]]
) -> None:
    """Refuse the options on the command line that only parts use which are not asked for.

    Args:
        context: of the command.
        wanted: the parts asked for.
        users: by the name of an option, the parts that use it.

    Raises:
        UserError: naming the option.
    """
    for name, parts in users.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and not set(parts) & set(wanted):
            option = name.replace("_", "-")
            raise UserError(
                f"--{option}: is of {' and '.join(parts)} alone; add it to --parts or leave --{option} out"
            )


EPS = "0.5/255,1/255,2/255,4/255,8/255"
Eps = Annotated[
    str, typer.Option(help="Budgets in units of the [0, 1] pixel, separated by commas; fractions are fine.")
]
Out = Annotated[
    Path,
    typer.Option(
        parser=directory, metavar="DIRECTORY", help="Directory to write; resume with the same command."
    ),
]
Seed = Annotated[int, typer.Option(help="Random seed, 0 to 2**63 - 1.", min=0, max=2**63 - 1)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
Models = Annotated[
    str,
    typer.Argument(
        help="Model, or several separated by commas: specimen:diffvit-0, a run directory, timm:NAME."
    ),
]
Against = Annotated[str | None, typer.Option(help="The twin to compare with; several, one for each model.")]
Split = Annotated[str, typer.Option(help="Which part of the source.")]
Limit = Annotated[int | None, typer.Option(help="At most so many images.", min=1)]
Norm = Annotated[str, typer.Option(help="linf or l2.")]
AttackChoice = choices("AttackChoice", ATTACKS)
AttackName = Annotated[AttackChoice, typer.Option("--attack", help="Attack to run.")]
Steps = Annotated[int | None, typer.Option(help="Steps of the attack; PGD takes 20 of ε/4.", min=1)]
Restarts = Annotated[int | None, typer.Option(help="Tries of a sample that stands.", min=1)]


class Nested(StrEnum):
    """How samples carry over from one ε to the next."""

    UP = "up"
    DOWN = "down"
    OFF = "off"


Nesting = Annotated[
    Nested,
    typer.Option(
        help="up: a sample broken at one ε counts as broken at every larger one. down: start at the largest ε and "
        "retry only the broken samples at the next smaller one; faster if most samples are robust. off: attack "
        "every ε independently."
    ),
]
Independent = Annotated[bool, typer.Option("--independent", hidden=True)]  # the older name of --nested off
Control = Annotated[
    bool, typer.Option("--control", help="Also add random noise of the same ε, to compare the attack with.")
]
SearchPrecision = Annotated[
    str, typer.Option(help="Of the search: float32, or bf16 (faster); verdicts are float32.")
]
Compiled = Annotated[
    bool, typer.Option("--compile", help="Search through torch.compile, which needs a C++ compiler on a CPU.")
]
DataSource = Annotated[
    str | None, typer.Option(help="Source of images; the model's own test images where not given.")
]
Classes = Annotated[
    Path | None,
    typer.Option(
        help="Text file that names the data's classes in the order of the model's outputs, one a line, a blank line "
        "for a class that the data lack. Where not given, classes are matched by the names that the model stores."
    ),
]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights", help="Build timm: and open_clip: models without a download.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images that cannot be read, and count them.")
]
MOST_AT_ONCE = 2**20  # of images in a batch: far more than fit in memory
BatchSize = Annotated[
    int | None, typer.Option(help="Images in a batch; affects no result.", min=1, max=MOST_AT_ONCE)
]
Prompt = Annotated[
    str | None,
    typer.Option(
        help="Template of a CLIP's class prompts, {} for the name; the data's own texts, or 'a photo of {}', where "
        "not given."
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        help="What PGD, FGSM, APGD, Square or a patch maximises: cross_entropy, margin or dlr; or cosine, for a CLIP: "
        "away from the image's own prompt."
    ),
]
PatchWidth = Annotated[int | None, typer.Option(help="Patch: side of the square in pixels.", min=1)]
