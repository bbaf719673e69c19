"""The notebook as a page of the site."""

import json
import re
from pathlib import Path

_BADGE = re.compile(r"\[!\[([^\]]*)\]\([^)]*\)\]\(([^)]*)\)")  # a picture from another host


def notebook_page(path: Path) -> str:
    """Return a notebook's cells as Markdown: text as it is, code in blocks."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = [
        f"```python\n{text}\n```" if cell["cell_type"] == "code" else text
        for cell in cells
        if (text := "".join(cell["source"]).strip())
    ]
    return _BADGE.sub(r"[\1](\2)", "\n\n".join(texts)) + "\n"
