"""``antiphase export``: what it does and prints, and its examples."""

from contextlib import nullcontext

from antiphase.cli.app import app
from antiphase.cli.command import command
from antiphase.runs.folders import run_folder
from antiphase.runs.options.export import ExportOptions


@command(app, ExportOptions)
def export(options: ExportOptions) -> None:
    """Write a model as safetensors, in our layout or the released one, or put it on the hub.

    **Examples**

    antiphase export diffclip:checkpoint_best.pt#lambda_init=0.8 --out models/diffclip

    antiphase export runs/diffclip --layout released --out models/released

    antiphase export runs/diffclip --push somebody/diffclip-openmoji
    """
    with run_folder(options.out, "export") if options.out else nullcontext():
        from antiphase.models import load_model, push, write_model

        model = load_model(options.model)
        if options.out is not None:
            print(write_model(model, options.out, layout=options.layout))
        if options.push is not None:
            print(push(model, options.push, private=not options.public))
