"""Models written anew: ``antiphase convert``, as differential ones, and ``antiphase export``, as they are."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from antiphase import registry, terminal
from antiphase.commands.command import Command
from antiphase.commands.options import Directory, OneModel, Options, RandomWeights, Seed, Typed
from antiphase.commands.run_folder import run_folder
from antiphase.errors import UserError


class ConvertOptions(Options):
    """Make a differential model that starts from the outputs of a ViT or CLIP with standard attention.

    It is written as a run directory, which antiphase train --model DIR trains on. λ starts at 0 and is learned, or,
    where it is σ(x·W), at ½ with both maps equal. A part of the model that cannot be converted exactly is named.

    **Examples**

    antiphase convert runs/vit --to diffvit --out runs/diffvit
    antiphase convert timm:vit_base_patch16_224.augreg2_in21k_ft_in1k --to v2 --out runs/b16-v2
    """

    model: OneModel
    to: Annotated[str, Typed(choices=("diffvit", *registry.VARIANTS))]
    """diffvit, v2, grouped or gated. diffvit gives each head a second map and V1's λ. v1 and dint are refused."""
    out: Directory
    """Directory to write."""
    ratio: int | None = Field(None, ge=1)
    """Heads that share one subtracted map. If not given: 1, for grouped the largest divisor of the heads up to 4."""
    towers: Literal["both", "vision", "text"] = "both"
    """Towers of a CLIP that get differential attention."""
    random_weights: RandomWeights = False
    seed: Seed = 0


def convert(model: Any, to: str, *, out: str | Path | None = None, **options: Any) -> Any:
    """Return a model with standard attention as a differential one with the same outputs.

    ``model`` is a specification or a loaded model, ``options`` are the command's. With ``out`` the new model is written
    as a run directory and loaded from there. See :func:`antiphase.models.convert.converted`.
    """
    from antiphase.models import load_model, write_model
    from antiphase.models.convert import converted

    named = isinstance(model, str)
    given: Any = {"model": model if named else "given", "to": to, "out": out or ".", **options}
    chosen = ConvertOptions(**given)
    with run_folder(chosen.out, "convert") if out is not None else nullcontext():
        if named:
            model = load_model(model, random_weights=chosen.random_weights, seed=chosen.seed)
        new = converted(model, to, ratio=chosen.ratio, towers=chosen.towers, seed=chosen.seed)
        if out is None:
            return new
        write_model(new, chosen.out)
    return load_model(str(chosen.out))


def answer_convert(options: ConvertOptions, _: str) -> dict[str, Any]:
    """Write the converted model; return where it is and from what it was made."""
    convert(**options.model_dump())
    terminal.say(f"{options.out}: {options.model} with {options.to} attention and the same outputs")
    return options.record()


class ExportOptions(Options):
    """Write a model as safetensors, for antiphase, another library or DiffCLIP's code, or put it on the hub.

    **Examples**

    antiphase export diffclip:checkpoint_best.pt#lambda_init=0.8 --out models/diffclip
    antiphase export runs/diffclip --layout released --out models/released
    antiphase export runs/clip --layout open_clip --out models/clip
    antiphase export runs/diffclip --push somebody/diffclip-openmoji
    """

    model: Annotated[str, Typed(argument=True)]
    """Model: a run directory, diffclip:PATH#lambda_init=0.8, hub:USER/NAME."""
    out: Directory | None = None
    """Directory to write. Either this or --push is needed."""
    layout: Literal["antiphase", "released", "open_clip"] = "antiphase"
    """Files to write: ours, those of DiffCLIP's released code, or open_clip's, for a CLIP with standard attention."""
    push: str | None = None
    """Hub repository, USER/NAME, to write to in our layout."""
    public: bool = False
    """Make a new repository public."""

    def model_post_init(self, context: Any, /) -> None:
        if self.out is None and self.push is None:
            raise UserError("nowhere to write to: give --out DIRECTORY, --push USER/NAME, or both")
        if self.push is None and self.public:
            raise UserError("--public: is of a new repository; give --push USER/NAME or leave it out")


def answer_export(options: ExportOptions, _: str) -> dict[str, str]:
    """Write the model to every place that the options name, and return the places."""
    from antiphase.models import load_model, push, write_model

    with run_folder(options.out, "export") if options.out else nullcontext():
        model = load_model(options.model)
        places = {}
        if options.out is not None:
            places["out"] = str(write_model(model, options.out, layout=options.layout))
        if options.push is not None:
            places["pushed"] = str(push(model, options.push, private=not options.public))
        terminal.say(*places.values(), sep="\n")
        return places


COMMANDS = {
    "convert": Command("convert", ConvertOptions, answer_convert),
    "export": Command("export", ExportOptions, answer_export),
}
