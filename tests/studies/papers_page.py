"""The rows of hyperparameters in docs/papers.md; ``python tests/studies/papers_page.py`` writes them."""

import re
from pathlib import Path

from antiphase.studies.paper_settings import Line, in_words, printed_settings

PAGE = Path(__file__).parents[2] / "docs/papers.md"
PAPERS = {paper: printed_settings(paper) for paper in ("robustness", "diffclip")}
PLACES = {
    "train": "training/recipe.py",
    "attack": "attacks/catalogue.py",
    "sense": "commands/sense/__init__.py",
    "given": "models.load_model",
    "clip": "training/recipe.py",
    "look": "studies/cells/evaluate.py",
    "align": "vlm/checkpoint.py",
    "tune": "vlm/checkpoint.py",
    "answers": "commands/audit/answers.py",
}
_HEAD = "| in the paper | here | study | status |\n|---|---|---|---|"


def block(paper: str) -> str:
    """Return the table of a paper's hyperparameters: each line once, with the studies that have it."""
    table, studies = PAPERS[paper], dict[Line, list[str]]()
    for name, lines in table.items():
        for line in dict.fromkeys(lines):
            studies.setdefault(line, []).append(name)
    return "\n".join(
        [_HEAD, *(_row(line, _studies(table, line, names)) for line, names in sorted(studies.items(), key=_place))]
    )


def _place(item: tuple[Line, list[str]]) -> tuple[int, str]:
    kinds = [*PLACES, ""]
    kind, _, name = item[0].name.partition(".")
    return kinds.index(kind if kind in PLACES else ""), name


def _studies(table: dict[str, tuple[Line, ...]], line: Line, names: list[str]) -> str:
    """Return the studies that have a line, in few words; "all" are those with a setting of its kind."""
    kind = line.name.partition(".")[0]
    every = [name for name, lines in table.items() if any(one.name.startswith(f"{kind}.") for one in lines)]
    left = [name for name in every if name not in names]
    if not left and len(names) > 1:
        return "all"
    if len(names) > 4 and len(left) <= 2:
        return f"all but {_listed(left)}"
    return _listed(names) if len(names) <= 4 else f"{_listed(names[:2])} and {len(names) - 2} more"


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _row(line: Line, studies: str) -> str:
    kind = line.name.partition(".")[0]
    paper_value = f"{in_words(line.paper)} ({line.source})" if line.paper else "not printed"
    code = f", {line.repository}" if line.repository else ""
    status = f"*declared deviation*: {in_words(line.ours).removesuffix('.')}. {line.why}" if line.ours else "*same*"
    place = PLACES.get(kind, "evaluation/tasks.py")
    return f"| {line.name}: {paper_value}{code} | `{place}` | {studies} | {status} |"


def with_blocks(text: str) -> str:
    """Return the page with both tables in their places."""
    for paper in PAPERS:
        begin, end = f"<!-- {paper} -->\n", f"<!-- /{paper} -->"
        text = re.sub(f"{begin}.*?{end}", lambda _, p=paper, b=begin, e=end: f"{b}{block(p)}\n{e}", text, flags=re.S)
    return text


if __name__ == "__main__":
    PAGE.write_text(with_blocks(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
