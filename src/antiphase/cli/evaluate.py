"""``antiphase evaluate``: what it prints, and its examples."""

from antiphase.cli.app import app, typed_command
from antiphase.cli.command import Answer, command
from antiphase.commands.run_folder import run_folder
from antiphase.runs.options.evaluate import EvaluateOptions
from antiphase.terminal import console, say


@command(app, EvaluateOptions)
def evaluate(options: EvaluateOptions) -> Answer:
    """Measure how much models know: retrieval, zero-shot, linear probe, few-shot, MMVP-VLM, POPE, captions.

    Features are computed once for each model and data set and kept. Numbers come with 95 % intervals over the
    images, captions, episodes or pairs; the spread over seeds is reported separately. With --against, every model is
    compared with its twin on the same images.

    **Examples**

    antiphase evaluate runs/diffclip --against runs/clip

    antiphase evaluate runs/diffclip,runs/clip --tasks retrieval --data openmoji,noto-emoji --captions first

    antiphase evaluate diffclip:cc12m.pt#lambda_init=0.8 --against diffclip:cc12m-clip.pt --data paper

    antiphase evaluate open_clip:ViT-B-32/laion2b_s34b_b79k --tasks zero-shot --data imagenet,imagenet-v2

    antiphase evaluate runs/vlm-diffclip --against runs/vlm-clip --tasks pope --data emoji-pope

    antiphase evaluate specimen:diffvit-0 --against specimen:vit-0 --tasks probe,few-shot --data fashion-mnist
    """
    with run_folder(options.out, "evaluate"):
        from antiphase.processes import this_process
        from antiphase.report.evaluation.page import write_evaluation_page
        from antiphase.report.evaluation.wording import console_tables
        from antiphase.runs.evaluate_run import run

        summary = run(options, typed_command())
        if not this_process().first:
            return None
        page = write_evaluation_page(options.out)
        for table in console_tables(summary):
            console().print(table)
        say(f"report: {page}")
        return summary | {"out": str(options.out), "report": str(page)}
