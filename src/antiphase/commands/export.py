"""``antiphase export``: a model as safetensors, or on the hub."""

from contextlib import nullcontext
from typing import Annotated, Literal

from pydantic import model_validator

from antiphase.commands.command import Command
from antiphase.commands.options import Directory, Options, Typed
from antiphase.commands.run_folder import run_folder
from antiphase.errors import UserError
from antiphase.terminal import say


class ExportOptions(Options):
    """Write a model as safetensors, for antiphase, another library or DiffCLIP's code, or put it on the hub.

    **Examples**

    antiphase export diffclip:checkpoint_best.pt#lambda_init=0.8 --out models/diffclip
    antiphase export runs/diffclip --layout released --out models/released
    antiphase export runs/clip --layout transformers --out models/clip
    antiphase export runs/diffclip --push somebody/diffclip-openmoji
    """

    model: Annotated[str, Typed(argument=True)]
    """Model: a run directory, diffclip:PATH#lambda_init=0.8, hub:USER/NAME."""
    out: Directory | None = None
    """Directory to write. Either this or --push is needed."""
    layout: Literal["antiphase", "released", "open_clip", "transformers"] = "antiphase"
    """Files to write: ours, those of DiffCLIP's released code, or, for a CLIP with standard attention, those that
    open_clip or transformers load."""
    push: str | None = None
    """Hub repository, USER/NAME, to write to in our layout."""
    public: bool = False
    """Make a new repository public."""

    @model_validator(mode="after")
    def _check(self) -> "ExportOptions":
        if self.out is None and self.push is None:
            raise UserError("nowhere to write to: give --out DIRECTORY, --push USER/NAME, or both")
        if self.push is None and self.public:
            raise UserError("--public: is of a new repository; give --push USER/NAME or leave it out")
        return self


def answer(options: ExportOptions, _: str) -> dict[str, str]:
    """Write the model to every place that the options name, and return the places."""
    from antiphase.models import load_model, push, write_model

    with run_folder(options.out, "export") if options.out else nullcontext():
        model = load_model(options.model)
        places = {}
        if options.out is not None:
            places["out"] = str(write_model(model, options.out, layout=options.layout))
        if options.push is not None:
            places["pushed"] = str(push(model, options.push, private=not options.public))
        say(*places.values(), sep="\n")
        return places


COMMAND = Command("export", ExportOptions, answer)
