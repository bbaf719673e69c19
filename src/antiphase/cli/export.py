"""``antiphase export``: what it does and prints, and its examples."""

from contextlib import nullcontext

from antiphase.cli.app import app
from antiphase.cli.command import Answer, command
from antiphase.commands.run_folder import run_folder
from antiphase.runs.options.export import ExportOptions
from antiphase.terminal import say


@command(app, ExportOptions)
def export(options: ExportOptions) -> Answer:
    """Write a model as safetensors, in our layout or the released one, or put it on the hub.

    **Examples**

    antiphase export diffclip:checkpoint_best.pt#lambda_init=0.8 --out models/diffclip

    antiphase export runs/diffclip --layout released --out models/released

    antiphase export runs/diffclip --push somebody/diffclip-openmoji
    """
    with run_folder(options.out, "export") if options.out else nullcontext():
        from antiphase.models import load_model, push, write_model

        model = load_model(options.model)
        found = {}
        if options.out is not None:
            found["out"] = str(write_model(model, options.out, layout=options.layout))
        if options.push is not None:
            found["pushed"] = str(push(model, options.push, private=not options.public))
        say(*found.values(), sep="\n")
        return found
