"""Commands as Python functions, over the same models of options."""

import inspect
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from antiphase.commands import find_command
from antiphase.commands.audit.options import AttackOptions, AuditOptions
from antiphase.commands.certify.options import CertifyOptions
from antiphase.commands.evaluate.options import EvaluateOptions
from antiphase.commands.live_objects import as_text
from antiphase.commands.look.options import LookOptions
from antiphase.commands.options import Options
from antiphase.commands.result import Result, read_result
from antiphase.commands.run_folder import run_folder
from antiphase.commands.sense.options import SenseOptions
from antiphase.commands.train.options import TrainOptions
from antiphase.commands.train_vlm.options import TrainVlmOptions
from antiphase.errors import UserError
from antiphase.processes import this_process
from antiphase.registry import CLIPS
from antiphase.studies.options import RunOptions
from antiphase.terminal import say

Chosen = TypeVar("Chosen", bound=Options)


def audit(model: Any, **options: Any) -> Result:
    """Attack a model, and its twin on the same images, as ``antiphase audit`` does.

    Args:
        model: specification or module, or several.
        **options: fields of :class:`~antiphase.commands.audit.options.AuditOptions`, as text or as values; ``against``
            may hold modules and ``data`` an image set. Without ``out`` nothing is written.

    Raises:
        UserError: an option is not known or not valid, or the audit cannot be run.
    """
    return _command_of("audit", {"model": model, **options})


def attack(model: Any, **options: Any) -> Result:
    """Attack a model, or several, with any attack or ensemble, as ``antiphase attack`` does.

    :mod:`antiphase.attacks` has the attacks themselves, for tensors.

    Args:
        model: specification or module, or several.
        **options: fields of :class:`~antiphase.commands.audit.options.AttackOptions`, as for :func:`audit`.

    Raises:
        UserError: an option is not known or not valid, or the attack cannot be run.
    """
    return _command_of("attack", {"model": model, **options})


def sense(model: Any, **options: Any) -> Result:
    """Measure how sensitive a model's attention is, layer by layer, as ``antiphase sense`` does.

    Args:
        model: specification or module, or several.
        **options: fields of :class:`~antiphase.commands.sense.options.SenseOptions`, as for :func:`audit`.

    Raises:
        UserError: an option is not known or not valid, or a model has no attention that is known.
    """
    return _command_of("sense", {"model": model, **options})


def _command_of(name: str, values: dict[str, Any]) -> Result:
    command = find_command(name)
    return _run(name, command.options, values, command.function())


def certify(model: Any, **options: Any) -> Result:
    """Certify an L2 radius for each image by randomised smoothing, as ``antiphase certify`` does.

    Args:
        model: specification or module.
        **options: fields of :class:`~antiphase.commands.certify.options.CertifyOptions`, as for :func:`audit`.

    Raises:
        UserError: an option is not known or not valid, or models and data do not fit each other.
    """
    return _command_of("certify", {"model": model, **options})


def evaluate(models: Any, **options: Any) -> Result:
    """Measure how much models know, as ``antiphase evaluate`` does.

    Args:
        models: specification or loaded model, or several.
        **options: fields of :class:`~antiphase.commands.evaluate.options.EvaluateOptions`. Without ``out`` and
            ``cache`` features are not kept either.

    Raises:
        UserError: an option is not known or not valid, or models and data allow none of the tasks.
    """
    run = find_command("evaluate").function()

    def work(chosen: EvaluateOptions, command: str) -> None:
        own = (
            chosen
            if options.get("out") is not None or chosen.cache
            else chosen.model_copy(update={"cache": chosen.out / "features"})
        )
        run(own, command)

    if not isinstance(options.get("data", ""), str | list | tuple):
        raise UserError(
            "data: evaluate takes the names of data sets; antiphase.evaluation has the tasks for arrays"
        )
    return _run("evaluate", EvaluateOptions, {"models": models, **options}, work)


def look(model: Any, images: Any, text: Any, **options: Any) -> Result:
    """Compute where a CLIP and its twin look in images for texts, as ``antiphase look`` does.

    Args:
        model: specification or loaded model, or several.
        images: path, or several.
        text: what to look for; several texts in a list.
        **options: fields of :class:`~antiphase.commands.look.options.LookOptions`. With ``out`` the figure and its
            maps are written there, as the command does.

    Raises:
        UserError: an option, a model or an image cannot be used.
    """
    from antiphase.commands.look.run import look as compute

    several = {"images": images, "text": text} | {
        name: options[name] for name in ("mask",) if name in options
    }
    several = {name: (value,) if isinstance(value, str | Path) else value for name, value in several.items()}
    with as_text({"model": model, **options, **several}) as values:
        chosen = LookOptions(**values)
        result = compute(chosen, _command("look", chosen))
    if options.get("out") is not None:
        result.write(chosen.out)
    return result


def train(model: str, data: str, **options: Any) -> Result:
    """Train a classifier or a CLIP, as ``antiphase train`` and ``antiphase train-clip`` do.

    Without ``out`` the weights are held in memory: ``save`` writes a directory that ``load_model`` takes.

    Args:
        model: kind of model: vit or diffvit for a classifier, clip, diffclip and so on for a CLIP.
        data: source of images, or of image-text pairs for a CLIP.
        **options: fields of :class:`~antiphase.commands.train.options.TrainOptions`, or of
            :class:`~antiphase.commands.train_clip.options.TrainClipOptions` for a CLIP.

    Raises:
        UserError: an option is not known or not valid, or the data do not fit the model.
    """
    values = {"model": model, "data": data, **options}
    return _command_of("train-clip" if model in CLIPS else "train", values)


def train_vlm(stage: int | str, data: str, out: Any, **options: Any) -> Result:
    """Train one stage of a vision-language model, as ``antiphase train-vlm`` does.

    Args:
        stage: 1 or 2.
        data: source of conversations.
        out: directory to write, which ``antiphase.vlm.load_vlm`` takes.
        **options: fields of :class:`~antiphase.commands.train_vlm.options.TrainVlmOptions`.

    Raises:
        UserError: an option is not known or not valid, or the data do not fit the stage.
    """
    return _command_of("train-vlm", {"stage": str(stage), "data": data, "out": out, **options})


def study(names: Any, **options: Any) -> Result:
    """Run every cell of some studies that is not in the store yet, as ``antiphase study run`` does.

    Args:
        names: studies, a paper, a file of your own, or several.
        **options: fields of :class:`~antiphase.studies.options.RunOptions`. Without ``store`` nothing is written, and
            a killed run cannot be resumed.

    Raises:
        UserError: an option is not known or not valid, or a cell fails.
    """
    from antiphase.studies.result import studied
    from antiphase.studies.run import run

    named = (names,) if isinstance(names, str) else names
    with _place(options.get("store"), RunOptions) as store:
        chosen = RunOptions(**{**options, "names": named, "store": store})
        if chosen.dry_run or chosen.executor == "slurm":
            raise UserError(
                "study: dry_run and executor=slurm give no result; use antiphase study run for them"
            )
        tell = _teller(chosen.quiet) or (lambda line: None)
        run(chosen, tell, tell)
        found = studied(chosen)
    return found if options.get("store") is not None else type(found)(found.kind, found.files)


def _run(
    name: str, kind: type[Chosen], values: dict[str, Any], work: Callable[[Chosen, str], object]
) -> Result:
    """Do the work of a command in its directory, or in one that does not stay, and read what it wrote."""
    stored = values.get("out") is not None
    with (
        as_text({key: value for key, value in values.items() if key != "out"}) as text,
        _place(values.get("out"), kind) as out,
    ):
        chosen = kind(**text, out=out)
        with run_folder(chosen.out, name):  # type: ignore[attr-defined]
            work(chosen, _command(name, chosen, () if stored else ("out",)))
            process = this_process()
            process.wait()
            found = read_result(Path(out), name, stored=stored)
            if stored and process.first:
                found.write_report(Path(out))
    return found if stored else _without_place(found, out)


@contextmanager
def _place(out: Any, kind: type[Options]) -> Iterator[Any]:
    """Yield the directory that was given, else a temporary one."""
    if out is not None:
        yield out
        return
    if this_process().count > 1:
        option = "store" if "store" in kind.model_fields else "out"
        raise UserError(f"{option}: is missing; expected a directory that all processes of torchrun share")
    with tempfile.TemporaryDirectory(prefix="antiphase-") as name:
        yield name


def _without_place(found: Result, place: str) -> Result:
    """Drop the temporary directory from the recorded options."""
    if "run.json" not in found.files:
        return found
    record = found.record
    options = record.get("options", {})
    record["options"] = {name: value for name, value in options.items() if not str(value).startswith(place)}
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    return type(found)(found.kind, {**found.files, "run.json": text.encode()})


def _command(name: str, chosen: Options, left_out: tuple[str, ...] = ()) -> str:
    """Return a call as text, for the record."""
    given = chosen.model_dump(mode="json", include=chosen.model_fields_set - set(left_out))
    return f"antiphase.{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def _teller(quiet: bool) -> Callable[[str], None] | None:
    return None if quiet else lambda line: say(line, err=True)


for _function, _options in (
    (audit, AuditOptions),
    (attack, AttackOptions),
    (sense, SenseOptions),
    (certify, CertifyOptions),
    (evaluate, EvaluateOptions),
    (look, LookOptions),
    (train, TrainOptions),
    (train_vlm, TrainVlmOptions),
    (study, RunOptions),
):
    _function.__signature__ = inspect.signature(_options)  # type: ignore[attr-defined]
