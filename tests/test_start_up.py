"""How much a start imports, and that the table of commands says what the commands say of themselves."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from antiphase.cli.app import app
from antiphase.commands import COMMANDS

COUNT = """
import sys
before = set(sys.modules)
{code}
new = set(sys.modules) - before
print(len(new), sorted({{name.partition(".")[0] for name in new}} & {heavy}), file=sys.stderr)
"""
HEAVY = {"pydantic", "rich", "pygments", "numpy", "torch", "polars", "matplotlib", "scipy"}


def imported(code, heavy=frozenset(HEAVY)):
    text = COUNT.format(code=code, heavy=set(heavy))
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    count, _, names = process.stderr.strip().partition(" ")
    return int(count), names


def called(*words):
    return f"from antiphase import cli; sys.argv = {['antiphase', *words]}\ntry: cli.main()\nexcept SystemExit: pass"


def test_the_help_imports_no_command():
    count, heavy = imported(called("--help"))
    assert heavy == "[]"
    assert count < 250


def test_import_antiphase_imports_next_to_nothing():
    count, heavy = imported("import antiphase")
    assert heavy == "[]"
    assert count < 80


def test_the_help_of_a_command_imports_no_other_command():
    count, heavy = imported(
        called("export", "--help") + "\nassert 'antiphase.studies.command' not in sys.modules",
        HEAVY - {"rich", "pydantic", "pygments"},
    )
    assert heavy == "[]"
    assert count > 250  # pydantic and rich: the count above sees what is imported


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_the_first_of_its_own_help(name):
    command = typer.main.get_command(app).get_command(None, name)
    assert (command.name, command.help.partition("\n")[0]) == (name, COMMANDS[name])


def test_words_are_completed():
    for typed, expected in (("antiphase stu", "study"), ("antiphase study run --prof", "--profile")):
        variables = {"_ANTIPHASE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        process = subprocess.run(
            [Path(sys.executable).with_name("antiphase")], capture_output=True, text=True, env=os.environ | variables
        )
        assert process.stdout.split() == [expected]


def test_verbose_shows_where_a_mistake_was_found(run_cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = logging.getLogger("antiphase").level
    try:
        code, _, err = run_cli("attack", "specimen:vit-99", "-v")
    finally:
        logging.getLogger("antiphase").setLevel(before)
    last = err.splitlines()[-1]
    assert (code, last.startswith("antiphase: specimen 'vit-99'")) == (2, True)
    assert "Traceback" in err
    assert run_cli("attack", "specimen:vit-99") == (2, "", f"{last}\n")


def test_without_a_command_the_help_is_shown(run_cli):
    for words in ((), ("study",)):
        bare, usage = run_cli(*words), run_cli(*words, "--help")
        assert bare == usage
        assert (bare[0], bare[2]) == (0, "")
        assert "Commands" in bare[1]
