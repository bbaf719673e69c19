"""``antiphase look``: what it draws and prints, and its examples."""

from antiphase.cli.app import app, typed_command
from antiphase.cli.command import Answer, command
from antiphase.runs.options.look import LookOptions
from antiphase.terminal import console, say


@command(app, LookOptions)
def look(options: LookOptions) -> Answer:
    """Draw where a CLIP and its twin look in images for a text, side by side.

    Relevance after Chefer et al. (ICCV 2021), for any model whose image tower has a class token; differential
    attention enters with its sign. With masks: the pointing game and the mask average precision, which need no
    threshold.

    **Examples**

    antiphase look runs/diffclip --against runs/clip desk.jpg --text mug --text lamp --out desk.png

    antiphase look diffclip:checkpoint.pt#lambda_init=0.8 photo.jpg --text dog --method attention,positive,negative

    antiphase look open_clip:ViT-B-16/openai a.jpg b.jpg --text dog --mask a-dog.png --mask b-dog.png --out dogs.pdf
    """
    from antiphase.files import replacing
    from antiphase.report.runs.look import check_rows, check_suffix, figure_bytes, looked_figure
    from antiphase.report.runs.look_table import mask_table
    from antiphase.runs.look import run

    check_suffix(options.out)
    check_rows(len(options.images), len(options.text))
    found = run(options, typed_command())
    figure = looked_figure(found)
    data = figure_bytes(figure, options.out)
    with replacing(options.out) as temporary:  # both files or none
        temporary.write_bytes(data)
        maps = found.write(options.out)
    for one in found.stored["left_out"]:
        say(f"{one['model']}: no column for {one['method']} ({one['why']})", err=True)
    if rows := found.stored["metrics"]:
        console().print(mask_table(rows))
    say(f"figure: {options.out}   maps: {maps}")
    written = {"figure": str(options.out), "maps": str(maps)}
    return {key: value for key, value in found.stored.items() if key != "maps"} | written
