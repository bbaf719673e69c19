"""What ``antiphase evaluate`` does once its options are read. Imports are local, so that --help is quick."""

import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from antiphase.commands.evaluation_data import asked, left_out, load_source
from antiphase.errors import UserError
from antiphase.runs.loading import find_device, load_models

if TYPE_CHECKING:
    from antiphase.runs.tasks import Protocol


def run_evaluation(
    models: list[str], against: list[str], tasks: list[str], data: list[str], out: Path, *, split: str,
    limit: int | None, train_limit: int | None, protocol: "Protocol", random_weights: bool, skip_bad: bool,
    cache: Path | None, batch_size: int, precision: str, device: str, quiet: bool,
) -> None:  # fmt: skip
    """Load models and data, measure, write rows, summary and report, and print the tables."""
    from antiphase.data.root import data_root
    from antiphase.models.zeroshot import is_dual_encoder
    from antiphase.report.evaluation.page import write_evaluation_page
    from antiphase.report.evaluation.wording import console_tables
    from antiphase.runs.evaluate import evaluate_models
    from antiphase.runs.features import FeatureStore
    from antiphase.runs.processes import this_process

    wanted, names = asked(tasks, data)
    if precision not in ("float32", "bf16"):
        raise UserError(f"precision {precision!r}: expected float32 or bf16")
    if against and len(against) != len(models):
        raise UserError(f"{len(models)} models against {len(against)}: expected a twin for each")
    place = find_device(device)
    process = this_process()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = load_models([*models, *against], place, random_weights)
        if protocol.templates and not any(map(is_dual_encoder, loaded)):
            raise UserError(
                f"templates {', '.join(map(repr, protocol.templates))}: none of the models is a CLIP; leave out "
                "--templates and --prompt"
            )
        learned = None if wanted is None else not {"probe", "few-shot"}.isdisjoint(wanted)
        sources = [
            load_source(name, split, limit, train_limit, learned, skip_bad, not quiet) for name in names
        ]
    doubts = list(dict.fromkeys(str(one.message) for one in said if one.category is UserWarning))
    doubts += [line for source in sources for line in left_out(source)]
    for line in doubts if process.first else ():
        print(f"antiphase: {line}", file=sys.stderr)
    store = FeatureStore(
        cache or data_root() / "features", batch_size=batch_size, precision=_precision(precision), progress=not quiet,
        process=process,
    )  # fmt: skip
    summary = evaluate_models(
        loaded[: len(models)], loaded[len(models) :], sources, out, store, tasks=wanted, doubts=doubts,
        protocol=protocol, command=shlex.join(["antiphase", *sys.argv[1:]]),
    )  # fmt: skip
    if not store.process.first:
        return
    page = write_evaluation_page(out)
    console = Console()
    for table in console_tables(summary):
        console.print(table)
    print(f"report: {page}")


def make_protocol(
    templates: list[str], captions: str, space: str, objectives: list[str], **numbers: int
) -> "Protocol":
    """Return the protocol that the options describe; ``numbers`` are the other fields.

    Raises:
        UserError: a word that is none of those expected.
    """
    from antiphase.runs.tasks import Protocol

    if captions not in ("all", "first"):
        raise UserError(f"captions {captions!r}: expected all or first")
    if space not in ("raw", "projected"):
        raise UserError(f"features {space!r}: expected raw (before the projection) or projected")
    if not objectives:
        raise UserError("objective: expected norm, squared or both")
    for objective in objectives:
        if objective not in ("norm", "squared"):
            raise UserError(f"objective {objective!r}: expected norm or squared")
    return Protocol(
        templates=tuple(dict.fromkeys(templates)), captions=captions, space=space,  # type: ignore[arg-type]
        objectives=tuple(dict.fromkeys(objectives)), **numbers,  # type: ignore[arg-type]
    )  # fmt: skip


def _precision(name: str) -> Literal["float32", "bf16"]:
    return "bf16" if name == "bf16" else "float32"
