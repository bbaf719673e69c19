"""``antiphase sense``: what it prints, and its examples."""

import time

from antiphase.cli.app import app, typed_command
from antiphase.cli.command import Answer, command
from antiphase.commands.run_folder import run_folder
from antiphase.runs.options.sense import SenseOptions
from antiphase.terminal import console, say


@command(app, SenseOptions)
def sense(options: SenseOptions) -> Answer:
    """Measure how sensitive a model's attention is, layer by layer: alignment, Lipschitz constants, depth.

    Works with any model that has attention. Attention that is not known is found by what it does. The maps of each
    layer are checked against the module's own output.

    **Examples**

    antiphase sense specimen:diffvit-0 --against specimen:vit-0 --parts alignment,depth,lipschitz

    antiphase sense timm:vit_dwee_patch16_reg1_gap_256 --random-weights --data random --limit 2 --out dwee

    antiphase sense runs/diffvit-4 --against runs/vit-4 --parts alignment --probes 32 --limit 256

    antiphase sense python:model.py:build --write-adapter adapter.py
    """
    if options.write_adapter is not None:
        from antiphase.runs.adapter_skeleton import write_skeleton

        done = write_skeleton(options)
        say(done)
        return {
            "adapter": str(options.write_adapter) if options.write_adapter.exists() else None,
            "said": done,
        }
    with run_folder(options.out, "sense"):
        from antiphase.processes import this_process
        from antiphase.report.runs.sense_page import lipschitz_table, sense_table, write_sense_report
        from antiphase.runs.sense import run

        began = time.monotonic()
        summary = run(options, typed_command(), announce=console(err=True).print)
        if not this_process().first:
            return None
        report = write_sense_report(options.out)
        for part, table in (("alignment", sense_table), ("lipschitz", lipschitz_table)):
            if part in summary:
                console().print(table(summary))
        for warning in summary.get("warnings", []):
            say(f"warning: {warning}")
        say(f"report: {report}   ({time.monotonic() - began:.0f} s)")
        return summary | {"out": str(options.out), "report": str(report)}
