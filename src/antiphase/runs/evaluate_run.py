"""An evaluation by its options: models and data are loaded, then measured."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

from antiphase.commands.loading import check_twins, find_device, load_models
from antiphase.data import FileImages, ImageSet
from antiphase.data.folders import data_root
from antiphase.errors import UserError
from antiphase.evaluation.features import FeatureStore
from antiphase.evaluation.tasks import EvaluationTask, Protocol, find_task
from antiphase.models.card import doubts_about, settle_size
from antiphase.models.zeroshot import is_dual_encoder
from antiphase.processes import this_process
from antiphase.runs.evaluate import evaluate_models, fits
from antiphase.runs.evaluation_sources import asked, left_out, load_source
from antiphase.runs.options.evaluate import EvaluateOptions
from antiphase.terminal import say

_FIELDS = {
    "prompt": "templates",
    "features": "space",
    "objective": "objectives",
}  # of the protocol, by option
_WHOLE = {"mmvp", "emoji-mmvp"}  # data that are always whole


def run(options: EvaluateOptions, command: str = "") -> dict[str, Any]:
    """Load models and data, measure, and write rows, summary and record; return the summary.

    Args:
        options: of the evaluation.
        command: for the record.

    Raises:
        UserError: models or data cannot be loaded, or do not allow what was asked for.
    """
    protocol, progress = _protocol(options), not options.quiet
    wanted, names = asked(options.tasks, options.data)
    models, against = options.models, options.against
    check_twins(models, against)
    if wanted is not None:
        _check_use(options, [find_task(task) for task in wanted], names)
    place, process = find_device(options.device), this_process()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = load_models([*models, *against], place, options.random_weights, answering=True)
        if protocol.templates and not any(map(is_dual_encoder, loaded)):
            raise UserError(
                f"templates {', '.join(map(repr, protocol.templates))}: none of the models is a CLIP; leave out "
                "--templates and --prompt"
            )
        learned = None if wanted is None else any(find_task(task).learns for task in wanted)
        sources = [
            load_source(
                name, options.split, options.limit, options.train_limit, learned, options.skip_bad, progress
            )
            for name in names
        ]
    if options.skip_bad and not any(isinstance(source.test, FileImages) for source in sources):
        raise UserError(f"--skip-bad: {', '.join(names)}: no labelled image files; leave it out")
    if wanted is None:
        able = {task: find_task(task) for source in sources for task in source.tasks()}
        _check_use(
            options, [task for task in able.values() if any(fits(task, model) for model in loaded)], names
        )
    for source in sources:
        if isinstance(source.test, ImageSet):
            settle_size(loaded, source.test.image_shape)
            break
    doubts = list(dict.fromkeys(str(one.message) for one in said if one.category is UserWarning))
    doubts += doubts_about(loaded[: len(models)], loaded[len(models) :])
    doubts += [line for source in sources for line in left_out(source)]
    for line in doubts if process.first else ():
        say(f"antiphase: {line}", err=True)
    store = FeatureStore(
        options.cache or data_root() / "features",
        batch_size=options.batch_size,
        precision=options.precision,
        progress=progress,
        process=process,
    )
    return evaluate_models(
        loaded[: len(models)],
        loaded[len(models) :],
        sources,
        options.out,
        store,
        tasks=wanted,
        doubts=doubts,
        protocol=protocol,
        command=command,
        options=options.record(),
    )


def _check_use(options: EvaluateOptions, tasks: Sequence[EvaluationTask], data: Sequence[str]) -> None:
    """Refuse options that were typed and have no effect."""
    used = {field for task in tasks for field in (*task.fields, *task.resolves)}
    fields = {each.name: each.name for each in dataclasses.fields(Protocol)} | _FIELDS
    idle = {
        name for name, field in fields.items() if field not in used and name in EvaluateOptions.model_fields
    }
    idle |= set() if any(task.learns for task in tasks) else {"train_limit"}
    kinds = {name.partition(":")[0] for name in data}
    idle |= {"split", "skip_bad"} if kinds <= {*_WHOLE, "pope", "emoji-pope"} else set()
    idle |= {"limit"} if kinds <= _WHOLE else set()
    for name in sorted(filter(options.typed, idle)):
        of = ", ".join(task.name for task in tasks)
        raise UserError(
            f"--{name.replace('_', '-')}: has no effect on {of} of {', '.join(data)}; leave it out"
        )


def _protocol(options: EvaluateOptions) -> Protocol:
    own = ("\n".join(options.prompt),) if options.prompt else ()
    return Protocol(
        templates=tuple(dict.fromkeys((*options.templates, *own))),
        captions=options.captions,
        space=options.features,
        objectives=tuple(dict.fromkeys(options.objective)),
        iterations=options.iterations,
        seeds=options.seeds,
        episodes=options.episodes,
        ways=options.ways,
        shots=options.shots,
        queries=options.queries,
        suffix=options.suffix,
    )
