"""Commands as Python functions, over the same models of options.

``model`` and ``against`` are specifications or modules, one or several, or a dictionary of them by name, and ``data``
may be an image set; all other options are those of the command, as text or as values. Without ``out`` nothing is
written to disk; with it, the same call resumes a killed run. Every function raises a ``UserError`` for an option that
is not known or not valid, and for models and data that cannot be loaded or do not fit each other.
"""

import inspect
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from antiphase import registry, terminal
from antiphase.commands import find_command
from antiphase.commands.loading import as_text
from antiphase.commands.options import Options
from antiphase.commands.result import Result, in_files
from antiphase.errors import UserError
from antiphase.processes import this_process


def audit(model: Any, **options: Any) -> Result:
    """Attack a model, and its twin on the same images, as ``antiphase audit`` does."""
    return _run("audit", {"model": model, **options})


def attack(model: Any, **options: Any) -> Result:
    """Attack a model as ``antiphase attack`` does; :mod:`antiphase.attacks` has the attacks for tensors."""
    return _run("attack", {"model": model, **options})


def transfer(model: Any, **options: Any) -> Result:
    """Show the adversarial images of each of several models to all others, as ``antiphase transfer`` does."""
    return _run("transfer", {"model": model, **options})


def sense(model: Any, **options: Any) -> Result:
    """Measure how sensitive a model's attention is, layer by layer, as ``antiphase sense`` does."""
    return _run("sense", {"model": model, **options})


def certify(model: Any, **options: Any) -> Result:
    """Certify an L2 radius for each image by randomised smoothing, as ``antiphase certify`` does."""
    return _run("certify", {"model": model, **options})


def evaluate(models: Any, **options: Any) -> Result:
    """Measure how much models know, as ``antiphase evaluate`` does; without ``out``, features are not kept either."""
    return _run("evaluate", {"models": models, **options})


def look(model: Any, images: Any, text: Any, **options: Any) -> Result:
    """Compute where a CLIP and its twin look in images for texts; with ``out``, write what ``antiphase look`` does."""
    from antiphase.commands.look.run import look as compute

    kind = find_command("look").options
    with as_text({"model": model, "images": images, "text": text, **options}, kind.model_fields) as values:
        chosen = kind(**values)
        result = compute(chosen, _call("look", chosen))  # type: ignore[arg-type]
    if options.get("out") is not None:
        result.write(chosen.out)  # type: ignore[attr-defined]
    return result


def train(model: Any, data: Any, **options: Any) -> Result:
    """Train a classifier or a CLIP, as ``antiphase train`` and ``train-clip`` do.

    A module is trained in place. ``data`` and ``held_out`` may be image sets, or what ``load_data`` takes. Without
    ``out`` the weights are held in memory: ``save`` writes a directory that ``load_model`` takes.
    """
    clip = isinstance(model, str) and model in registry.CLIPS
    return _run("train-clip" if clip else "train", {"model": model, "data": data, **options})


def train_vlm(stage: int | str, data: str, out: Any, **options: Any) -> Result:
    """Train one stage of a vision-language model into a directory that ``antiphase.vlm.load_vlm`` takes."""
    return _run("train-vlm", {"stage": stage, "data": data, "out": out, **options})


def finetune(model: Any, fare: Any, data: Any, **options: Any) -> Result:
    """Fine-tune the image tower of a CLIP by FARE; without ``out`` the weights are held in memory, as by ``train``."""
    return _run("finetune", {"model": model, "fare": fare, "data": data, **options})


def study(names: Any, **options: Any) -> Result:
    """Run every cell of some studies that is not in the store yet, as ``antiphase study run`` does.

    Without ``store`` nothing is written, and a killed run cannot be resumed.
    """
    from antiphase.studies.report.site import studied
    from antiphase.studies.run import run

    kind, named = find_command("study run").options, (names,) if isinstance(names, str) else names
    with _place("store", options.get("store")) as store:
        chosen: Any = kind(**{**options, "names": named, "store": store})
        if chosen.dry_run:
            raise UserError("study: dry_run gives no result; use antiphase study run --dry-run")
        tell = (lambda _: None) if chosen.quiet else partial(terminal.say, err=True)
        run(chosen, tell, tell)
        result = studied(chosen)
    return result if options.get("store") is not None else type(result)(result.kind, result.files)


def _run(name: str, values: dict[str, Any]) -> Result:
    """Do the work of a command in its directory, or in one that does not stay, and read what it wrote."""
    command, stored = find_command(name), values.get("out") is not None
    fields, split = command.options.model_fields, "train" if name in ("train", "finetune") else "test"
    with as_text(values, fields, split) as text, _place("out", values.get("out")) as out:
        temporary = {} if stored else {"out": out}
        if not stored and "cache" in fields and "cache" not in text:
            temporary["cache"] = f"{out}/features"
        chosen = command.options(**text | {"out": out} | temporary)
        result = command.measure(chosen, _call(name, chosen, temporary), stored=stored)
    if stored or "run.json" not in result.files:
        return result
    record = result.record
    for option in temporary:
        record.get("options", {}).pop(option, None)
    return type(result)(result.kind, {**result.files, **in_files({"run": record})})


@contextmanager
def _place(option: str, path: Any) -> Iterator[Any]:
    if path is not None:
        yield path
        return
    if this_process().count > 1:
        raise UserError(f"{option}: is missing; expected a directory that all processes of torchrun share")
    with tempfile.TemporaryDirectory(prefix="antiphase-") as name:
        yield name


def _call(name: str, chosen: Options, left_out: Collection[str] = ()) -> str:
    options = chosen.model_dump(mode="json", include=chosen.model_fields_set - {*left_out})
    return f"antiphase.{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


for _function in (audit, attack, transfer, sense, certify, evaluate, look, train, train_vlm, finetune):
    _options = find_command(_function.__name__.replace("_", "-")).options
    _function.__signature__ = inspect.signature(_options)  # type: ignore[attr-defined]
study.__signature__ = inspect.signature(find_command("study run").options)  # type: ignore[attr-defined]
