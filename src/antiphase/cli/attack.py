"""``antiphase quickstart``, ``audit`` and ``attack``: what they print, and their examples."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphase.cli.app import app, typed_command
from antiphase.cli.command import Answer, command
from antiphase.commands.run_folder import run_folder
from antiphase.commands.train.options import TrainOptions
from antiphase.reading import read_json
from antiphase.runs.options.attack import AttackOptions, AuditOptions, QuickstartOptions
from antiphase.terminal import console, say

if TYPE_CHECKING:
    from antiphase.runs.attack_pope import PopeAttack
    from antiphase.runs.audit import Audit

_PAIRS = 8  # fewer training seeds decide nothing


@command(app, QuickstartOptions)
def quickstart(options: QuickstartOptions) -> Answer:
    """Audit the small models that come with the package on images of Fashion-MNIST that come with it too.

    No download, no training: eight ViTs and their differential twins under PGD at four budgets.

    **Examples**

    antiphase quickstart

    antiphase quickstart --eps 1/255,2/255 --limit 1000 --out my-run

    antiphase quickstart --train
    """
    models, against = (tuple(f"specimen:{kind}-{i}" for i in range(_PAIRS)) for kind in ("diffvit", "vit"))
    with run_folder(options.out, "quickstart"):
        if options.train:
            models, against = (_train("diffvit", options),), (_train("vit", options),)
        return _show(_loaded(options.audit(models, against)).run(), options.out)


def _train(kind: str, options: QuickstartOptions) -> str:
    """Train a small model and return its directory."""
    from antiphase.commands.train.run import run

    out, epochs = options.out / kind, options.epochs or 3
    say(f"training {kind} for {epochs} epochs into {out}", err=True)
    run(
        TrainOptions(
            model=kind, data="fashion-mnist", out=out, epochs=epochs, seed=options.seed, quiet=options.quiet
        )
    )
    return str(out)


@command(app, AuditOptions)
def audit(options: AuditOptions) -> Answer:
    """Attack a model, and its twin on the same images; write rows, summary.json, report.html and a card.

    The card, ``card.json`` and ``CARD.md``, is for publishing: ``antiphase verify`` checks it.

    **Examples**

    antiphase audit specimen:diffvit-0 --against specimen:vit-0

    antiphase audit runs/diffvit --against runs/vit --eps 1/255,4/255 --limit 500

    antiphase audit runs/diffclip --against runs/clip --data openmoji --objective cosine

    antiphase audit runs/vlm-diffclip --against runs/vlm-clip --data emoji-pope --attack apgd-ce --eps 2/255,4/255

    antiphase audit timm:vit_tiny_patch16_224 --random-weights --data random --limit 8

    antiphase audit timm:vit_small_patch16_224 --data folder:PHOTOS --skip-bad
    """
    with run_folder(options.out, "audit"):
        return _show(_loaded(options).run(), options.out)


@command(app, AttackOptions)
def attack(options: AttackOptions) -> Answer:
    """Attack a model, or several, with any attack or ensemble; write rows, summary.json and report.html.

    The same command resumes a killed attack. Under torchrun the processes share the images.

    **Examples**

    antiphase attack specimen:diffvit-0 --attack autoattack --eps 1/255 --limit 100

    antiphase attack specimen:vit-0 --attack patch --width 6 --eps 1

    antiphase attack runs/vit --attack carlini-wagner --norm l2 --eps 0.5,1

    torchrun --nproc-per-node 4 -m antiphase attack timm:vit_small_patch16_224 --data imagenet --eps 1/255
    """
    with run_folder(options.out, "attack"):
        return _show(_loaded(options).run(), options.out)


def _loaded(options: AuditOptions) -> "Audit | PopeAttack":
    """Load what the options name."""
    from antiphase.runs.audit import prepare

    return prepare(options, typed_command())


def _show(summary: dict[str, Any], out: Path) -> Answer:
    """Draw the report, print the table and return summary and report."""
    from antiphase.processes import this_process
    from antiphase.report.card.writer import write_card
    from antiphase.report.runs.console import console_report
    from antiphase.report.runs.page import write_report
    from antiphase.report.runs.stored import read_run

    if not this_process().first:
        return None
    report, card = write_report(out), write_card(out)
    if "pope" in summary:
        from antiphase.report.runs.pope_page import console_table

        console().print(console_table(summary["pope"]))
    else:
        console().print(console_report(read_run(out)))
    for at in summary.get("norms", []):
        found = "is not reached" if at["eps"] is None else f"at ε = {at['eps']:.4g} (from {at['low']:.4g})"
        say(f"{at['model']}: ASR of {at['level'] * 100:.0f} % {found}")
    record = read_json(out / "run.json")
    for warning in record["warnings"]:
        say(f"warning: {warning}")
    say(f"report: {report}   ({record['seconds']:.0f} s)")
    paths = {"out": str(out), "report": str(report)} | ({} if card is None else {"card": str(card)})
    return summary | {"warnings": record["warnings"]} | paths
