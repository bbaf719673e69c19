"""One model of options, three readings: the command line, the Python function, the stored record."""

import contextlib
import json
from typing import Annotated

import polars as pl
import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

import antiphase as ap
from antiphase.cli.app import how_typed, register
from antiphase.commands.audit import AttackOptions, AuditOptions, QuickstartOptions
from antiphase.commands.certify import CertifyOptions
from antiphase.commands.command import Command
from antiphase.commands.convert import ExportOptions
from antiphase.commands.evaluate import EvaluateOptions
from antiphase.commands.lineup import load_lineup
from antiphase.commands.look import LookOptions
from antiphase.commands.options import Options
from antiphase.commands.sense import SenseOptions
from antiphase.commands.train import TrainClipOptions, TrainOptions
from antiphase.errors import UserError
from antiphase.studies import options as studies

MODELS = (
    QuickstartOptions,
    AuditOptions,
    AttackOptions,
    SenseOptions,
    CertifyOptions,
    EvaluateOptions,
    LookOptions,
    TrainOptions,
    TrainClipOptions,
    ExportOptions,
    studies.ListOptions,
    studies.StudyOptions,
    studies.AnyStudyOptions,
    studies.RunOptions,
    studies.RowsOptions,
    studies.ClaimsOptions,
    studies.ReportOptions,
    studies.NewOptions,
)


@pytest.mark.parametrize("given", [{"limit": True}, {"seed": False}, {"eps": [True]}, {"batch_size": True}])
def test_true_and_false_are_no_numbers(given):
    with pytest.raises(UserError, match=rf"{next(iter(given))} .*: expected no true or false"):
        AuditOptions(model="specimen:vit-0", **given)


def test_an_audit_in_python_and_on_the_command_line_give_the_same_rows_and_record(tmp_path, run_cli):
    code, _, err = run_cli(
        "audit",
        "specimen:vit-0",
        "--limit",
        3,
        "--eps",
        "4/255,8/255",
        "--steps",
        2,
        "--sense-limit",
        0,
        "--nested",
        "down",
        "--out",
        tmp_path / "a",
        "-q",
    )
    assert code == 0, err
    result = ap.audit(
        "specimen:vit-0",
        limit=3,
        eps=(4 / 255, 8 / 255),
        steps=2,
        sense_limit=0,
        nested="down",
        out=tmp_path / "b",
        quiet=True,
    )
    rows = [pl.read_parquet(tmp_path / run / "rows.parquet") for run in "ab"]
    assert len(rows[0]) == 6
    assert rows[0].equals(rows[1])
    records = [json.loads((tmp_path / run / "run.json").read_text()) for run in "ab"]
    stored = [AuditOptions(**record["options"]) for record in records]
    assert stored[0].model_copy(update={"out": stored[1].out}) == stored[1]
    assert (stored[1].steps, stored[1].nested, stored[1].eps) == (2, "down", (4 / 255, 8 / 255))
    assert result.summary == json.loads((tmp_path / "b" / "summary.json").read_text())
    assert records[1]["command"].startswith("antiphase.audit(model=['specimen:vit-0'], ")


class Wider(AuditOptions):
    """An audit with one option more, written once."""

    patience: Annotated[int | None, Field(ge=2, description="Steps without progress.")] = None


def test_a_new_option_is_one_field(monkeypatch):
    seen = []
    app = typer.Typer()
    register(app, Command("audit", Wider, lambda options, typed: seen.append(options)))
    run = CliRunner().invoke
    monkeypatch.setenv("COLUMNS", "200")
    assert "Steps without progress." in run(app, ["--help"]).output
    assert run(app, ["specimen:vit-0", "--patience", "3", "--eps", "1/255"]).exit_code == 0
    assert seen == [Wider(model="specimen:vit-0", patience=3, eps=1 / 255)]
    assert Wider(**seen[0].record()) == seen[0]
    assert seen[0].record()["patience"] == 3
    assert seen[0].model_fields_set == {"model", "patience", "eps"}
    assert isinstance(run(app, ["specimen:vit-0", "--patience", "1"]).exception, UserError)
    with pytest.raises(UserError, match="patience 1: expected an integer of at least 2"):
        Wider(model="specimen:vit-0", patience=1)


def test_json_has_no_nan():
    app = typer.Typer()
    answer = {"a": [float("nan"), (float("inf"), 0.5)], "b": True, "é\udce9": 1}
    register(app, Command("audit", Wider, lambda options, typed: answer))
    printed = CliRunner().invoke(app, ["specimen:vit-0", "--json"]).stdout
    assert "".join(printed.split()) == '{"a":[null,[null,0.5]],"b":true,"\\u00e9\\udce9":1}'


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"norm": "l3"}, "norm 'l3': expected linf, l2, l1 or l0"),
        ({"nested": "sideways"}, "nested 'sideways': expected up, down or off"),
        ({"eps": "1/0"}, "eps '1/0': expected a finite number or a fraction such as 1/255"),
        ({"limit": 0}, "limit 0: expected an integer of at least 1"),
        ({"model": ()}, "model (): expected at least one"),
        ({"out": " "}, "out ' ': ' ' is no path; expected a directory"),
        ({"out": "x/" * 2000}, "out 'x/x/x"),
        ({"epsilon": 1}, "option 'epsilon': expected one of model, data, split, "),
    ],
)
def test_a_wrong_value_is_one_line_that_lists_the_right_ones(options, line):
    with pytest.raises(UserError) as caught:
        AuditOptions(**({"model": "specimen:vit-0"} | options))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_audit_options_read_settings_of_the_attack_by_its_signature():
    options = AuditOptions(model="specimen:vit-0", eps="1/255", steps=3, settings=["momentum=0.5"])
    assert options.ensemble.stages[0].settings == {"momentum": 0.5, "steps": 3}


def test_audit_options_refuse_a_setting_that_the_attack_does_not_have():
    options = AuditOptions(model="specimen:vit-0", settings={"momentun": "0.5"})
    with pytest.raises(UserError, match=r"no setting 'momentun'.*momentum"):
        _ = options.ensemble


def test_a_missing_value_is_named():
    with pytest.raises(UserError, match="model: is missing"):
        AuditOptions()


@pytest.mark.parametrize("options", MODELS)
def test_every_default_can_be_typed_and_every_option_has_words(options: type[Options]):
    for name, field in options.model_fields.items():
        if name in options.left_out:
            continue
        assert field.description
        assert field.description.endswith(".")
        text = how_typed(field).text
        if text is None or field.is_required() or field.default in (None, ()):
            continue
        read = options.__pydantic_validator__.validate_assignment
        typed = read(options.model_construct(), name, text(field.default))
        assert getattr(typed, name) == field.default


def test_evaluate_tells_its_two_limits_apart():
    words = {name: EvaluateOptions.model_fields[name].description or "" for name in ("limit", "train_limit")}
    assert "--train-limit" in words["limit"]
    assert "--limit" in words["train_limit"]


@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        (["audit"], ["linf | l2", "up | down | off", "carlini-wagner"]),
        (["evaluate"], ["all | first", "raw | projected"]),
        (["study", "run"], ["smoke | laptop | paper"]),
        (["train-clip"], ["matched | released", "slip_exact"]),
    ],
)
def test_help_shows_the_choices(run_cli, arguments, choices):
    code, out, _ = run_cli(*arguments, "--help")
    assert code == 0
    assert [choice for choice in choices if choice not in out] == []


VALUES = (
    -1,
    0,
    1.5,
    10**12,
    2**63,
    10**400,
    -(10**30),
    float("nan"),
    True,
    "x",
    "",
    "\0",
    "1e999999999",
    [],
    [[]],
    {},
    {"a": 1},
    [None],
    [1, "x"],
    object(),
    b"x",
    (1,),
    "1/0",
)


@pytest.mark.parametrize("options", MODELS)
def test_values_of_any_type_are_valid_or_a_user_error(options):
    usual = {"model": "specimen:vit-0", "data": "digits", "out": "/tmp/none", "stage": "1"}
    required = {name: usual.get(name, "x") for name, field in options.model_fields.items() if field.is_required()}
    for name in options.model_fields:
        for value in VALUES:
            with contextlib.suppress(UserError):
                options(**{**required, name: value})


@pytest.mark.parametrize(
    ("field", "value"), [("epochs", 2 * 10**15), ("dim", 2**63), ("limit", 10**20), ("heads", 10**400), ("seed", 2**63)]
)
def test_integers_too_large_to_compute_with_are_refused(field, value):
    with pytest.raises(UserError, match=f"{field} .*: expected an integer of at most"):
        TrainOptions(model="vit", data="digits", out="/tmp/none", **{field: value})


def test_a_folder_whose_name_has_a_comma_is_one_model(tmp_path):
    (tmp_path / "lr=0.1,wd=0").mkdir()
    assert AuditOptions(model=str(tmp_path / "lr=0.1,wd=0")).model == (str(tmp_path / "lr=0.1,wd=0"),)


@pytest.mark.parametrize("empty", ["", " ", ","])
def test_an_empty_model_is_no_missing_one(empty):
    with pytest.raises(UserError, match="expected a model; leave the option out for none"):
        AuditOptions(model="specimen:vit-0", against=empty)


def test_empty_data_are_not_the_usual_ones():
    with pytest.raises(UserError, match="''"):
        load_lineup(AuditOptions(model="specimen:vit-0", data="", quiet=True))


def test_a_comma_belongs_to_the_settings_behind_a_question_mark_alone():
    text = "python:net.py:build?depth=4, width=8, lr=1/a,runs/b,lr=2"
    assert AuditOptions(model=text).model == ("python:net.py:build?depth=4,width=8,lr=1/a", "runs/b", "lr=2")
