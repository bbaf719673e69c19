"""Pages whose Python runs when the site is built: what it prints and draws is shown below each block."""

import contextlib
import io
import os
import re
from collections.abc import Callable
from typing import Any

import matplotlib
from links import ROOT

from antiphase.studies.report.figures import for_both_schemes, text_svg

_BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def executed(markdown: str, keep: Callable[[bytes], str]) -> str:
    """Run the blocks of a page in order, in one namespace and in the folder of the repository.

    Args:
        markdown: the page. A block that assigns ``figure`` draws; its heading becomes the picture's text.
        keep: stores an SVG and returns its address.

    Returns:
        The page with the output of each block behind it.
    """
    names: dict[str, Any] = {}

    def run(block: re.Match[str]) -> str:
        heading = markdown[: block.start()].rpartition("\n## ")[2].partition("\n")[0]
        names.pop("figure", None)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block[1], f"<{heading}>", "exec"), names)
        shown = block.group()
        if printed.getvalue():
            shown += f"\n```text\n{printed.getvalue()}```\n"
        if "figure" in names:
            with matplotlib.rc_context({"savefig.bbox": "tight"}):
                picture = for_both_schemes(text_svg(names["figure"]))
            shown += f"\n![{heading}]({keep(picture.encode())})\n"
        return shown

    before = os.getcwd()
    os.chdir(ROOT)
    try:
        return _BLOCK.sub(run, markdown)
    finally:
        os.chdir(before)
