"""docs/papers.md: every file, study and public name in it exists, and its hyperparameters are the transcribed ones."""

import importlib
import re
import shlex

import pytest
import typer.main

from antiphase.cli.app import app
from antiphase.studies.plan import known_studies
from tests.studies.papers_page import PAGE, with_blocks

SOURCE = PAGE.parents[1] / "src/antiphase"
STATUS = ("*same*", "*declared deviation*: ", "*corrected*: ")
TEXT = PAGE.read_text(encoding="utf-8")


def tables():
    """Yield heading and rows of every table with a status, as dictionaries by column."""
    for heading, body in re.findall(r"^### (.*?)\n\n(.*?)(?=\n##|\Z)", TEXT, re.DOTALL | re.MULTILINE):
        lines = [line for line in body.splitlines() if line.startswith("|")]
        columns = cells(lines[0])
        yield heading, [dict(zip(columns, cells(line), strict=True)) for line in lines[2:]]


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


ROWS = [(heading, row) for heading, rows in tables() for row in rows]
rows = pytest.mark.parametrize(
    ("heading", "row"), ROWS, ids=lambda it: it["in the paper"][:40] if isinstance(it, dict) else ""
)


def names(text):
    return re.findall(r"`([^`]+)`", text)


def exists(name):
    """Return whether a file, a command with its options, or a public name is there."""
    if name.startswith("antiphase "):
        command, words = typer.main.get_command(app), shlex.split(name)[1:]
        while hasattr(command, "commands"):
            command = command.get_command(None, words.pop(0))
        known = {option for parameter in command.params for option in parameter.opts}
        return {word for word in words if word.startswith("-")} <= known
    if name.endswith(".py"):
        return any((folder / name).is_file() for folder in (SOURCE, SOURCE / "studies/papers"))
    parts = f"antiphase.{name}".split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            if part.startswith("_") or not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


@rows
def test_what_a_row_names_exists(heading, row):
    assert [name for name in names(row.get("here", "")) if not exists(name)] == []
    assert [name for name in names(row["study"]) if name not in known_studies()] == []
    assert row["status"].startswith(STATUS), row


def test_what_does_not_exist_is_noticed():
    assert not exists("studies/nowhere.py")
    assert not exists("sensitivity.nothing")
    assert not exists("sensitivity.nothing.amplification")
    assert not exists("antiphase certify --nothing")
    assert exists("sensitivity.amplification")
    assert exists("antiphase certify --sigma")


def test_hyperparameters_are_the_transcribed_ones():
    """If it fails: python tests/studies/papers_page.py."""
    assert with_blocks(TEXT) == TEXT


def test_every_study_is_on_the_page():
    named = {name for heading, row in ROWS if heading != "Hyperparameters" for name in names(row["study"])}
    papers = {name for name, study in known_studies().items() if study.paper in ("robustness", "diffclip")}
    assert papers <= named


def test_rows_are_short():
    long = [line for line in TEXT.splitlines() if len(line) > 240]
    assert long == []
