"""``antiphase certify``: what it prints, and its examples."""

import time

from antiphase.cli.app import app, typed_command
from antiphase.cli.command import Answer, command
from antiphase.commands.run_folder import run_folder
from antiphase.runs.options.certify import CertifyOptions
from antiphase.terminal import console, say


@command(app, CertifyOptions)
def certify(options: CertifyOptions) -> Answer:
    """Certify an L2 radius for each image by randomised smoothing; write rows, summary.json and report.html.

    The same command resumes a killed run. The certificate is one of
    the smoothed model. A model that was not trained with noise certifies little at a large σ: try a small one.

    For comparison the radii of the model itself are estimated as margin over Lipschitz constant (robustness paper,
    Appendix B), and against a twin their ratio is shown next to what equation (6) predicts. Estimates certify nothing.

    **Examples**

    antiphase certify specimen:diffvit-0 --against specimen:vit-0 --sigma 0.05 --samples 1000 --limit 100

    antiphase certify runs/diffvit --sigma 0.25 --limit 500

    torchrun --nproc-per-node 4 -m antiphase certify timm:vit_small_patch16_224 --data imagenet --sigma 0.5
    """
    with run_folder(options.out, "certify"):
        from antiphase.processes import this_process
        from antiphase.report.runs.certified import certificate_table
        from antiphase.report.runs.certified_page import write_certified_report
        from antiphase.report.runs.estimated import estimated_tables
        from antiphase.runs.certify import run

        began = time.monotonic()
        _, summary = run(options, typed_command())
        if not this_process().first:
            return None
        report = write_certified_report(options.out)
        tables = estimated_tables(summary["estimated"]) if "estimated" in summary else []
        console().print(certificate_table(summary), *tables)
        if note := summary.get("estimated", {}).get("note"):
            say(f"note: {note}")
        for warning in summary["warnings"]:
            say(f"warning: {warning}")
        say(f"report: {report}   ({time.monotonic() - began:.0f} s)")
        return summary | {"out": str(options.out), "report": str(report)}
