"""What is found by name, and an attack of somebody else's: one file and one line that registers it."""

import importlib
import json
import sys

import polars as pl
import pytest

import antiphase
from antiphase import registry
from antiphase.attacks.catalogue import find_attack
from antiphase.errors import UserError
from antiphase.registry import ATTACKS, find
from tests.commands.audits import attack_options

ATTACK = '''
from antiphase.attacks import fab
from antiphase.attacks.catalogue import AttackSpec


def brighten(model, images, labels, threat, *, steps=2, pull=0.5, **run):
    """Return FAB's verdicts: what the attack does is of no matter here."""
    return fab(model, images, labels, threat, steps=steps, **run)


SPEC = AttackSpec(brighten, "Brighten", {"steps": 3}, nearest=True)
'''


@pytest.fixture
def brighten(tmp_path, monkeypatch):
    (tmp_path / "their_attack.py").write_text(ATTACK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_attack", raising=False)
    monkeypatch.setitem(ATTACKS, "brighten", "their_attack:SPEC")  # the one line


@pytest.fixture
def fresh_cli(monkeypatch):
    """Return the command line as a new process would build it, and leave none of its modules behind."""

    def taken_out():
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("antiphase.cli")}

    before = taken_out()
    monkeypatch.setattr(antiphase, "cli", None, raising=False)
    yield importlib.import_module("antiphase.cli")
    taken_out()
    sys.modules.update(before)


def test_an_attack_is_one_file_and_one_line(brighten):
    (stage,) = find_attack("brighten", pull=0.25).stages
    assert (stage.name, stage.settings, stage.nearest) == ("brighten", {"steps": 3, "pull": 0.25}, True)
    assert attack_options((0.1,), attack="brighten").minimal
    with pytest.raises(UserError, match=r"'brighten' has no setting 'width': expected steps, pull"):
        _ = attack_options((0.1,), attack="brighten", settings={"width": 3}).ensemble


def test_the_command_line_offers_the_attack_and_the_report_names_it(brighten, fresh_cli, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    words = ["attack", "specimen:vit-0", "--attack", "brighten", "--limit", "2", "--out", str(out), "--quiet"]
    monkeypatch.setattr(sys, "argv", ["antiphase", *words])
    with pytest.raises(SystemExit) as stopped:
        fresh_cli.main()
    assert stopped.value.code == 0, capsys.readouterr().err
    assert pl.read_parquet(out / "rows.parquet")["attack"].unique().to_list() == ["brighten"]
    settings = json.loads((out / "run.json").read_text())["settings"]
    assert settings["brighten"] == {"steps": 3, "pull": 0.5}
    page = (out / "report.html").read_text()
    assert "Brighten (L∞)" in page
    assert "steps 3, pull 0.5" in page


def test_a_wrong_choice_lists_the_right_ones(run_cli):
    for command in ("audit", "attack"):
        code, out, err = run_cli(command, "specimen:vit-0", "--attack", "pdg")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"attack 'pdg': expected one of {', '.join(ATTACKS)}" in err


def test_a_table_holds_lines_or_the_things_themselves():
    table = {"digits": "string:digits", "seven": 7}
    assert find(table, "digits", "text") == "0123456789"
    assert find(table, "seven", "number") == 7
    with pytest.raises(UserError, match="number 'eight': expected one of digits, seven"):
        find(table, "eight", "number")


def test_every_line_of_the_registry_leads_somewhere():
    tables = {name: table for name, table in vars(registry).items() if name.isupper() and name != "VITS"}
    assert set(registry.VITS.values()) <= set(registry.ATTENTION)
    assert "ATTACKS" in tables
    for kind, table in tables.items():
        for name in table:
            assert find(table, name, kind) is not None
