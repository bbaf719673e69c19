"""Writes a model as safetensors, or puts it on the hub."""

from contextlib import nullcontext

from antiphase.commands.export.options import ExportOptions
from antiphase.commands.run_folder import run_folder
from antiphase.models import load_model, push, write_model
from antiphase.terminal import say


def run(options: ExportOptions, command: str = "") -> dict[str, str]:
    """Write the model to every place that the options name, and return the places."""
    with run_folder(options.out, "export") if options.out else nullcontext():
        model = load_model(options.model)
        places = {}
        if options.out is not None:
            places["out"] = str(write_model(model, options.out, layout=options.layout))
        if options.push is not None:
            places["pushed"] = str(push(model, options.push, private=not options.public))
        say(*places.values(), sep="\n")
        return places
