"""``--json`` on every command, ``--config``, ``antiphase rerun`` and ``antiphase doctor``."""

import json
import shutil

import polars as pl
import pytest
import torch
from PIL import Image

from antiphase.commands import COMMANDS
from antiphase.commands.doctor import run as doctor
from antiphase.commands.rerun import compared
from antiphase.commands.run_folder import CLOCK
from antiphase.commands.sense import SenseOptions
from antiphase.errors import UserError
from antiphase.models import clip, write_model
from tests.vlm.tiny import tiny_language, tiny_tokenizer

SMALL = {
    "vision": {"image_size": 16, "dim": 16, "depth": 1, "num_heads": 2, "patch_size": 8},
    "text": {"dim": 16, "depth": 1, "num_heads": 2},
    "embed_dim": 12,
}
TINY = {
    "audit": "specimen:diffvit-0 --against specimen:vit-0 --limit 3 --eps 1/255 --sense-limit 0 -q --out out",
    "attack": "specimen:vit-0 --attack fgsm --limit 3 -q --out out",
    "sense": "specimen:vit-0 --parts alignment --limit 1 --probes 2 -q --out out",
    "transfer": "specimen:vit-0,specimen:diffvit-0 --steps 2 --limit 3 -q --out out",
    "certify": "specimen:vit-0 --samples 10 --select 5 --limit 2 --sigma 0.1 -q --out out",
    "evaluate": "run --tasks zero-shot --data folder:photos -q --out out --cache features",
    "look": "run photos/test/cat/0.png --text mug -q --out look.png",
    "train": "--model vit --data digits --epochs 1 --limit 20 -q --out out",
    "train-clip": "--model clip --preset openmoji --data csv:pairs.csv --held-out none --batch-size 2 --epochs 1 -q "
    "--out out",
    "train-vlm": "--stage 1 --tower run --language language --data llava:said.json?images=photos --batch-size 2 "
    "--epochs 1 -q --out out",
    "finetune": "run --fare 2/255 --data folder:photos --steps 1 --epochs 1 -q --out out",
    "convert": "specimen:vit-0 --to v2 --out out",
    "export": "specimen:vit-0 --out out",
    "doctor": "",
    "study list": "",
    "study show": "table-1 --profile smoke",
    "study status": "table-1 --profile smoke",
    "study new": "mine",
}
REPEATED = ("attack", "train")  # below, by antiphase rerun
LONGER = {"rerun", "study run", "study rows", "study claims", "study pack", "study report"}  # below
TRIED_ELSEWHERE = {
    "quickstart",
    "verify",
    "leaderboard",
    "compare",
    "check",
}  # test_cli, commands/test_card.py, test_leaderboard.py, test_compare.py, test_check.py


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with images, captions and a small CLIP, where the command runs."""
    monkeypatch.chdir(tmp_path)
    write_model(clip(**SMALL), tmp_path / "run")
    for index, kind in enumerate(("cat", "dog")):
        place = tmp_path / "photos" / "test" / kind
        place.mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (16, 16), (90 * index, 40 * number, 7)).save(place / f"{number}.png")
    shutil.copytree(tmp_path / "photos/test", tmp_path / "photos/train")
    tiny_language().save_pretrained(tmp_path / "language")
    tiny_tokenizer().save_pretrained(tmp_path / "language")
    conversation = [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "a cat"}]
    records = [{"id": n, "image": "test/cat/0.png", "conversations": conversation} for n in range(2)]
    (tmp_path / "said.json").write_text(json.dumps(records))
    (tmp_path / "pairs.csv").write_text("image,caption\nphotos/test/cat/0.png,a cat\nphotos/test/dog/0.png,a dog\n")
    return tmp_path


@pytest.fixture
def answer(run_cli):
    """Run a command with ``--json`` and return what it printed, parsed."""

    def ask(*words):
        code, out, err = run_cli(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return ask


def test_every_command_is_tried():
    assert {name.split()[0] for name in (*TINY, *LONGER, *TRIED_ELSEWHERE)} == set(COMMANDS)


def holds_what_is_stored(value, out):
    """Return whether the JSON value of a command holds the numbers in its directory."""
    stored = [json.loads(path.read_text()) for path in (out / "summary.json", out / "metrics.jsonl") if path.exists()]
    return bool(value) and all(value.items() >= numbers.items() for numbers in stored)


@pytest.mark.parametrize("name", sorted(TINY.keys() - REPEATED))
def test_what_a_command_prints_is_one_json_value(folder, answer, name):
    assert holds_what_is_stored(answer(*name.split(), *TINY[name].split()), folder / "out")


def test_every_command_of_a_study_prints_json(folder, answer):
    size = ("table-1", "--profile", "smoke")
    assert answer("study", "run", *size, "-q") == {"cells": 36, "missing_before": 36, "missing": 0}
    (status,) = answer("study", "status", *size)
    assert (status["done"], status["to_do"], status["seconds"]) == (36, 0, 0)
    rows = answer("study", "rows", *size)["attack"]
    stored = answer("study", "rows", *size, "--table", "attack", "--out", "rows.csv")
    assert (stored["rows"], len(rows)) == (len(pl.read_csv("rows.csv")), len(pl.read_csv("rows.csv")))
    assert {row["success"] for row in rows} <= {True, False}
    assert {study["study"] for study in answer("study", "claims", *size)} == {"table-1"}
    assert answer("study", "pack", *size)["cells_added"] == {"table-1": 36}
    assert answer("study", "report", *size) == {"site": "antiphase-studies/index.html"}


def test_progress_and_mistakes_are_not_in_the_answer(folder, run_cli):
    code, out, err = run_cli("attack", "specimen:vit-0", "--attack", "fgsm", "--limit", "3", "--json")
    assert (code, set(json.loads(out)) >= {"results", "report"}) == (0, True)
    assert "report: " in err
    code, out, err = run_cli("attack", "specimen:vit-9", "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("several", ['"momentum=0.9"', '["momentum=0.9"]'])
def test_a_file_may_have_flags_lists_and_single_values(folder, run_cli, several):
    (folder / "my.toml").write_text(f'attack = ["fgsm", "pgd"]\nset = {several}\nfail-under = "robust 1% @ 1/255"\n')
    words = ("--config", "my.toml", "--eps", "1/255", "--limit", "2", "--steps", "2", "-q", "--out", "out")
    code, _, err = run_cli("attack", "specimen:vit-0", *words)
    assert code == 0, err
    options = json.loads((folder / "out" / "run.json").read_text())["options"]
    assert (options["attack"], options["settings"]) == ("fgsm,pgd", {"momentum": "0.9"})
    assert options["fail_under"] == ["robust 1% @ 1/255"]


def test_options_come_from_a_file_and_what_is_typed_counts_more(folder, run_cli):
    (folder / "my.toml").write_text(
        'model = "specimen:vit-0"\neps = ["1/255", 0.02]\nlimit = 3\nsense-limit = 0\nquiet = true\nnested = "off"\n'
    )
    code, _, err = run_cli("audit", "--config", "my.toml", "--limit", "2", "--out", "out")
    assert code == 0, err
    options = json.loads((folder / "out" / "run.json").read_text())["options"]
    assert options["model"] == ["specimen:vit-0"]
    assert (options["eps"], options["limit"], options["nested"]) == ([1 / 255, 0.02], 2, "off")
    assert pl.read_parquet("out/rows.parquet")["sample"].n_unique() == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read (No such file"),
        ("limit = ", "cannot be read (Invalid value"),
        ("steps = 2\nstep = 2", "'step' is no option; expected some of"),
        ("[audit]\nlimit = 2", "'audit' is no option"),
        ("limit = 0", "limit 0: expected an integer of at least 1"),
        ('eps = ["1/0"]', "eps '1/0'"),
        ('out = ["a", "b"]', "out is a list; expected one value"),
        ("batch_size = 3\nbatch-size = 4", "'batch-size' is given twice, in two spellings; keep one"),
    ],
)
def test_a_file_of_options_that_is_wrong_is_one_line(folder, run_cli, text, message):
    if text is not None:
        (folder / "my.toml").write_text(text)
    code, out, err = run_cli("audit", "specimen:vit-0", "--config", "my.toml", "-q")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize("name", REPEATED)
def test_a_run_is_repeated_with_equal_numbers(folder, answer, run_cli, name):
    assert holds_what_is_stored(answer(name, *TINY[name].split()), folder / "out")
    again = answer("rerun", "out", "-q")
    assert (again["command"], again["out"], again["equal"]) == (name, "out-again", True)
    first, second = (json.loads((folder / run / "run.json").read_text())["options"] for run in ("out", "out-again"))
    assert first | {"out": "out-again"} == second
    code, _, err = run_cli("rerun", "out")
    assert (code, err.count("\n")) == (2, 1)
    assert "holds a finished run; give a new directory with --out" in err


def test_a_killed_repetition_is_resumed_by_the_same_command(folder, answer):
    answer("attack", *TINY["attack"].split())
    assert answer("rerun", "out", "-q")["equal"]
    (folder / "out-again" / CLOCK).write_text("{}")  # as where a kill came before the end
    assert answer("rerun", "out", "-q")["equal"]


def test_a_number_that_differs_is_named(tmp_path):
    rows = pl.DataFrame({"sample": [1, 2, 3], "distance": [0.5, float("nan"), 1.0], "by": ["a", None, "b"]})
    for name, frame in {
        "one": rows,
        "same": rows,
        "other": rows.with_columns(distance=pl.Series([0.5, float("nan"), 1.25]), by=pl.Series(["a", "a", "b"])),
        "short": rows.head(2),
    }.items():
        (tmp_path / name).mkdir()
        frame.write_parquet(tmp_path / name / "rows.parquet")
        (tmp_path / name / "model.safetensors").write_bytes(name.encode()[:1])
    comparisons = {name: compared(tmp_path / "one", tmp_path / name) for name in ("same", "other", "short")}
    assert [one["equal"] for one in comparisons["same"]] == [True, False]  # the weights: "o" and "s"
    assert comparisons["other"][0]["columns"] == {
        "distance": {"rows": 1, "largest_difference": 0.25},
        "by": {"rows": 1, "largest_difference": None},
    }
    assert [one["equal"] for one in comparisons["other"]] == [False, True]
    assert (comparisons["short"][0]["equal"], comparisons["short"][0]["rows"]) == (False, [3, 2])


def test_rows_that_cannot_be_read_are_one_line(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        pl.DataFrame({"sample": [1, 2]}).write_parquet(tmp_path / name / "rows.parquet")
    whole = (tmp_path / "one" / "rows.parquet").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"rows"):
        (tmp_path / "one" / "rows.parquet").write_bytes(damaged)
        for way in (("one", "two"), ("two", "one")):
            with pytest.raises(UserError, match=r"one/rows.parquet: cannot be read \(.*\); expected the directory"):
                compared(*(tmp_path / name for name in way))


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("attack", {"model": ["python:evil.py:f"]}),
        ("audit", {"model": ["specimen:vit-0"], "against": [" python:evil.py:f"]}),
        ("evaluate", {"models": "specimen:vit-0,python:evil.py:f"}),
        ("train-vlm", {"stage": "1", "data": "emoji-objects", "tower": "python:evil.py:f"}),
    ],
)
def test_a_run_is_repeated_with_its_code_only_if_that_is_said(folder, run_cli, command, options):
    (folder / "evil.py").write_text("import os\nos.mkdir('RAN')\ndef f(): raise RuntimeError")
    (folder / "old").mkdir()
    (folder / "old" / ".antiphase").write_text(command)
    (folder / "old" / "run.json").write_text(json.dumps({"options": options}))
    code, out, err = run_cli("rerun", "old")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "run 'old': python:evil.py:f runs code; read that code, then add --run-code" in err
    assert not (folder / "RAN").exists()
    if command == "attack":
        assert run_cli("rerun", "old", "--run-code")[0] == 2
        assert (folder / "RAN").exists()


def test_a_stored_option_that_the_command_has_not_is_refused(folder, run_cli):
    (folder / "old").mkdir()
    (folder / "old" / ".antiphase").write_text("sense")
    record = {"options": {"model": ["specimen:none"], "write_adapter": "elsewhere.py"}}
    (folder / "old" / "run.json").write_text(json.dumps(record))
    code, out, err = run_cli("rerun", "old")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "option 'write_adapter': expected one of" in err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--tasks retrieval --shots 3", "shots"),
        ("--tasks retrieval --seeds 3", "seeds"),  # its default
        ("--tasks few-shot --captions first", "captions"),
        ("--tasks few-shot --objective squared", "objective"),
        ("--tasks retrieval --train-limit 3", "train-limit"),
        ("--tasks zero-shot --suffix x", "suffix"),
        ("--tasks mmvp --data emoji-mmvp --limit 5", "limit"),
        ("--tasks few-shot --data digits --templates 7", "templates"),
        ("--data digits --queries 3 --captions first", "captions"),  # known once the data are loaded
    ],
)
def test_an_option_of_other_tasks_is_refused_if_it_is_typed(folder, run_cli, words, option):
    data = [] if "--data" in words else ["--data", "digits"]
    code, out, err = run_cli("evaluate", "specimen:vit-0", *data, *words.split(), "--out", "other", "-q")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"--{option}: has no effect on " in err
    assert not (folder / "other").exists()


def test_a_file_of_options_may_hold_those_of_other_tasks(folder, answer):
    (folder / "shared.toml").write_text('shots = 2\ncaptions = "first"\n')
    assert answer("evaluate", *TINY["evaluate"].split(), "--config", "shared.toml")["results"]
    assert SenseOptions.from_file({"radius": 0.1}, model="m").radius == 0.1
    with pytest.raises(UserError, match="--radius: is of lipschitz alone"):
        SenseOptions.from_file({"radius": 0.1}, model="m", radius=0.2)


@pytest.mark.parametrize("eps", [".1,.1", "1/255,2/510", "0.5, 1/2", "1,1.0"])
def test_a_budget_given_twice_is_one_line(run_cli, eps):
    code, out, err = run_cli("sense", "specimen:vit-0", "--eps", eps)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "given twice; give each number once" in err


def test_only_a_finished_run_is_repeated(folder, run_cli):
    run_cli("export", "specimen:vit-0", "--out", "out")
    for name, text in (("list", "[1]"), ("nothing", '{"options": null}')):
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(text)
        (folder / name / ".antiphase").write_text("audit")
    for name in ("out", "photos", "nowhere", "list", "nothing"):
        code, out, err = run_cli("rerun", name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"'{name}': no run.json with options in it" in err


def test_the_doctor_says_what_is_there_and_how_to_get_the_rest(tmp_path, monkeypatch, run_cli):
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ANTIPHASE_NATIVE", "0")
    report = doctor.examine()
    assert report["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert report["kernels"] == {"ok": False, "fix": "ANTIPHASE_NATIVE=0"}
    assert report["data"]["digits"] == {"ok": True, "fix": None, "n": 359}
    assert not report["data"]["cifar10"]["ok"]
    assert "put cifar-10-python.tar.gz from https://" in report["data"]["cifar10"]["fix"]
    assert report["devices"][0]["device"] == "cpu"
    assert report["data"]["openmoji"]["ok"] == report["extras"]["openmoji"]["ok"]
    assert not any((tmp_path / "data").glob("*"))  # nothing was downloaded, no empty folder is left

    missing = ["no-such-package", "no-such-package; extra == 'vlm'"]
    monkeypatch.setattr("antiphase.commands.doctor.run.requires", lambda _: missing)
    code, out, _ = run_cli("doctor")
    assert code == 0
    assert "no-such-package" in out
    assert f", {torch.get_num_threads()} threads" in " ".join(out.split())
    assert "pip install 'antiphase[vlm] @ git+https://" in " ".join(out.split())
    assert "ANTIPHASE_NATIVE=0" in out
