"""What ``antiphase audit`` and ``attack`` do once their options are read. Imports are local: --help is quick."""

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.commands.parse import parse_eps
from antiphase.errors import UserError
from antiphase.runs.loading import check_compiler, find_device, load_lineup


def run_audit(
    models: list[str], against: list[str], data: str | None, out: Path, quiet: bool, device: str, *, eps: str,
    split: str = "test", limit: int | None = None, random_weights: bool = False, skip_bad: bool = False,
    prompt: str | None = None, classes: Path | None = None, control: bool = False, sense_limit: int = 0, **plan: Any,
) -> None:  # fmt: skip
    """Load models and data, audit them, write the report and print the table."""
    from antiphase.models.card import card_of
    from antiphase.models.zeroshot import ZeroShotClassifier
    from antiphase.report import console_table, write_report
    from antiphase.runs.attack import AttackPlan
    from antiphase.runs.audit import audit
    from antiphase.runs.processes import this_process

    began = time.monotonic()
    chosen = AttackPlan(parse_eps(eps), **plan)
    if control and chosen.attack == "noise":
        raise UserError(
            "--control: the attack is random noise itself; leave it out or choose another --attack"
        )
    if chosen.compile:
        check_compiler(find_device(device))
    ours, twins, images = load_lineup(
        models, against, data, split=split, limit=limit, random_weights=random_weights, skip_bad=skip_bad,
        device=device, progress=not quiet, prompt=prompt, classes=classes,
    )  # fmt: skip
    plain = [card_of(model).spec for model in (*ours, *twins) if not isinstance(model, ZeroShotClassifier)]
    if plain and chosen.settings.get("objective") == "cosine":
        raise UserError(f"objective 'cosine': {plain[0]} is no CLIP; expected cross_entropy, margin or dlr")
    summary = audit(
        ours, twins, images, chosen, out, control=control, sense_limit=sense_limit,
        command=shlex.join(["antiphase", *sys.argv[1:]]), progress=not quiet,
    )  # fmt: skip
    if not this_process().first:
        return
    report = write_report(out)
    Console().print(console_table(summary))
    for at in summary.get("norms", []):
        found = "is not reached" if at["eps"] is None else f"at ε = {at['eps']:.4g} (from {at['low']:.4g})"
        print(f"{at['model']}: ASR of {at['level'] * 100:.0f} % {found}")
    for warning in json.loads((out / "run.json").read_text(encoding="utf-8"))["warnings"]:
        print(f"warning: {warning}")
    print(f"report: {report}   ({time.monotonic() - began:.0f} s)")
