"""The command line beside the audit (tests/studies) and training (tests/training)."""

import contextlib
import errno
import json
import os
import re
import signal
import sys
import types

import polars as pl
import pytest
import torch

from antiphase.cli.app import how_typed
from antiphase.commands import COMMANDS, commands_of
from antiphase.commands.audit import AuditOptions
from antiphase.errors import UserError


def test_quickstart_audits_the_specimens_without_a_download(tmp_path, run_cli):
    words = ("quickstart", "--eps", "8/255", "--limit", 4, "--out", tmp_path / "run", "--quiet", "--json")
    code, out, err = run_cli(*words)
    assert code == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert json.loads(out).items() >= summary.items()
    assert [m["name"] for m in summary["models"]] == [f"{kind}-{i}" for kind in ("diffvit", "vit") for i in range(8)]
    assert len(pl.read_parquet(tmp_path / "run" / "rows.parquet")) == 16 * 4
    assert [(c["model"], c["against"]) for c in summary["comparisons"]] == [
        (f"diffvit-{i}", f"vit-{i}") for i in range(8)
    ]
    assert sum(m["clean_accuracy"] for m in summary["models"]) > 0.6 * 16
    page = (tmp_path / "run" / "report.html").read_text()
    assert "8 seeds" in page
    assert 'src="http' not in page


def test_version_and_help(run_cli):
    assert run_cli("--version")[1].startswith("antiphase 0.")
    commands = "quickstart audit attack train train-clip train-vlm evaluate export look sense certify"
    for command in commands.split():
        code, out, _ = run_cli(command, "--help")
        assert code == 0
        assert "Examples" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_cuts_no_name_and_breaks_no_word_at_80_columns(run_cli, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    for full, command in commands_of(name).items():
        code, out, _ = run_cli(*full.split(), "--help")
        assert code == 0
        assert "…" not in out.replace(",…", "").replace("…-", "")
        words = set(re.split(r"\s+", out))
        for key, field in command.options.model_fields.items():
            typed = how_typed(field)
            if not typed.argument and key not in command.options.left_out:
                flags = typed.flags or (f"--{key.replace('_', '-')}",)
                names = {name for flag in flags for name in flag.split("/")}
                assert names <= {word.rstrip(",") for word in words}
                assert set((field.description or "").split()) <= words
        assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["frobnicate"], "frobnicate"),
        (["train", "--model", "cnn", "--data", "digits", "--out", "x"], "cnn"),
        (["train", "--model", "vit", "--data", "digitz", "--out", "x"], "digits"),
        (["train", "--model", "vit", "--data", "digits", "--out", "x", "--heads", "3"], "heads"),
        (["train", "--model", "diffvit", "--data", "digits", "--out", "x", "--heads", "1"], "num_heads 1"),
        (["train", "--model", "vit", "--data", "digits", "--out", "x", "--patch-size", "3"], "patch_size 3"),
        (
            ["train", "--model", "vit", "--data", "digits", "--out", "x", "--epochs", "0"],
            "epochs 0: expected an integer of at least 1",
        ),
        (["train", "--model", "vit", "--data", "digits", "--out", "x", "--precision", "int3"], "int3"),
        (["train", "--model", "vit", "--data", "digits"], "--out"),
        (["quickstart", "--eps", "1/255,abc"], "abc"),
        (["quickstart", "--eps", "1e400"], "eps '1e400': expected a finite number"),
        (["sense", "specimen:vit-0", "--radius", "1e400"], "radius '1e400': expected a finite number"),
        (["quickstart", "--eps", "1/255/2"], "eps '1/255/2': expected a finite number or a fraction"),
        (["quickstart", "--eps", "2"], "for 2 of 255 levels, pass 2/255"),
        (["quickstart", "--seed", "9" * 40], "9223372036854775807"),
        (["quickstart", "--out", ""], "'' is no path; expected a directory"),
        (["quickstart", "--out", "x" * 5000], "File name too long"),
        (["quickstart", "--out", "/proc/antiphase"], "'/proc/antiphase': cannot be written"),
        (["audit", "specimen:vit-0", "--batch-size", "9" * 20], "1048576"),
        (["attack", "specimen:vit-0", "--norm", "l2", "--eps", "1e308"], "eps 1e+308: expected at most 1e+06"),
        (["sense", "specimen:vit-0", "--parts", "lipschitz", "--radius", "1e400"], "expected a finite number"),
        (
            ["sense", "specimen:vit-0", "--parts", "lipschitz", "--samples", "1" + "0" * 12, "-q"],
            "samples 1000000000000: expected an integer below 2147483648",
        ),
        (
            ["certify", "specimen:vit-0", "--samples", "1" + "0" * 14, "--limit", "1", "-q"],
            "samples 100000000000000: expected an integer of at least 1 and below 2**31",
        ),
        (["sense", "specimen:vit-0", "--samples", "9"], "--samples: is of lipschitz alone"),
        (["sense", "specimen:vit-0", "--parts", "depth", "--probes", "9"], "--probes: is of alignment and terms alone"),
        (["train", "--model", "vit", "--data", "digits", "--out", "x", "--lambda-init", "0.5"], "no λ"),
        (["train-clip", "--model", "clip", "--data", "openmoji", "--out", "x", "--lambda-init", "1"], "no λ"),
        (["export", "specimen:vit-0", "--out", "x", "--public"], "--public: is of a new repository"),
        (["audit", "specimen:vit-0", "--objective", "cosine", "--limit", "2", "-q"], "vit-0 is no CLIP"),
        (["audit", "specimen:vit-0", "--prompt", "a {}"], "prompt 'a {}': none of the models is a CLIP"),
        (
            ["audit", "specimen:vit-0", "--random-weights"],
            "--random-weights: only timm:, torchvision:, hf: and open_clip:",
        ),
        (
            ["evaluate", "specimen:vit-0", "--random-weights"],
            "--random-weights: only timm:, torchvision:, hf: and open_clip:",
        ),
        (["evaluate", "specimen:vit-0", "--prompt", "a {}"], "templates 'a {}': none of the models is a CLIP"),
        (["attack", "specimen:vit-0", "--attack", "noise", "--control"], "--control: noise is a control itself"),
        (["attack", "specimen:vit-0", "--version", "rand", "--queries", "9"], "queries 9: no stage of"),
        (["attack", "specimen:vit-0", "--device", "meta"], "device 'meta' cannot be used"),
        (["attack", "specimen:vit-0", "--device", "hpu"], "device 'hpu' cannot be used"),
        (["attack", "specimen:vit-0", "--device", "privateuseone"], "device 'privateuseone' cannot be used"),
        (["attack", "specimen:vit-0", "--device", "mkldnn"], "device 'mkldnn' cannot be used"),
        (["attack", "specimen:vit-0", "--device", f"cuda:{10**20}"], "device 'cuda:100000000000000000000' cannot be"),
        (["audit", "x" * 9999], "xxx': no such directory; expected one of"),
        (["export", "specimen:vit-0", "--out", " "], "is no path"),
        (["study", "status", "--store", ""], "'' is no path"),
        (["sense", "specimen:diffvit-0", "--parts", "gradients"], "parts gradients"),
        (["sense", "specimen:diffvit-0", "--probes", "1"], "probes 1"),
        (["sense", "specimen:diffvit-0", "--eps", "2"], "eps 2: expected numbers above 0 and at most 1"),
        (
            ["sense", "specimen:diffvit-0", "--parts", "lipschitz", "--radius", "1/255,2/255"],
            "radius '1/255,2/255': expected a finite number",
        ),
        (
            ["sense", "specimen:diffvit-0", "--against", "specimen:vit-0,specimen:vit-1"],
            "against: 2 twins for 1 model; give one twin for each",
        ),
        (
            ["sense", "timm:resnet10t", "--random-weights", "--data", "random", "--limit", "1", "-q"],
            "no known attention",
        ),
        (["certify", "specimen:diffvit-0", "--sigma", "-1"], "sigma -1.0"),
        (["certify", "specimen:vit-0,specimen:vit-1"], "model 'specimen:vit-0,specimen:vit-1': 2 models; expected one"),
        (["sense", "specimen:vit-0", "--parts", ","], "parts ',': expected at least one"),
        (["audit", "specimen:vit-0", "--eps", "8/255,8/255"], "eps 8/255: given twice"),
        (["study", "run", "table-1", "--rows", "nosuch"], "rows 'nosuch': no such directory"),
        (["audit", "x", "--againts", "y"], "--againts (Possible options: --against); see antiphase audit --help"),
        (["study", "claims", "table-1"], "antiphase-store: holds no cell of these studies"),
        (
            [
                "train",
                "--model",
                "diffvit",
                "--data",
                "digits",
                "--out",
                "x",
                "--lambda-schedule",
                "depth",
                "--lambda-init",
                "0.5",
            ],
            "lambda_init 0.5: has no effect with lambda_schedule depth",
        ),
        (
            ["train-clip", "--model", "diffclip-depth", "--data", "openmoji", "--out", "x", "--lambda-init", "0.5"],
            "lambda_init 0.5: a diffclip-depth has λ_init by depth",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, monkeypatch, run_cli, arguments, named):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_cli(*arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert named in err
    assert len(err) < 1000
    assert not list(tmp_path.iterdir())


def test_a_compiled_search_without_a_compiler_is_one_line(tmp_path, monkeypatch, run_cli):
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, _, err = run_cli("attack", "specimen:vit-0", "--compile", "--device", "cpu", "--out", tmp_path / "x")
    assert (code, err.count("\n")) == (2, 1)
    assert "--compile: no C++ compiler 'no-such-compiler' on the PATH" in err
    assert not list(tmp_path.iterdir())


def test_another_commands_directory_is_refused(tmp_path, run_cli):
    assert run_cli("export", "specimen:vit-0", "--out", tmp_path / "run")[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for command in (
        ["train", "--model", "vit", "--data", "digits"],
        ["sense", "specimen:vit-0"],
        ["quickstart"],
        ["attack", "specimen:vit-0"],
        ["certify", "specimen:vit-0"],
        ["evaluate", "specimen:vit-0"],
        ["train-clip", "--model", "clip", "--data", "openmoji"],
    ):
        code, _, err = run_cli(*command, "--out", tmp_path / "run")
        assert (code, err.count("\n")) == (2, 1)
        assert f"holds a run of antiphase export; give antiphase {command[0]} another directory" in err
    code, _, err = run_cli("study", "run", "table-1", "--profile", "smoke", "--store", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "holds a run of antiphase export" in err
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_a_disk_that_fails_is_one_line(tmp_path, monkeypatch, run_cli):
    def fail(*_args, **_options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("antiphase.models.write_model", fail)
    code, _, err = run_cli("export", "specimen:vit-0", "--out", tmp_path / "run")
    assert (code, err) == (2, "antiphase: writing: Read-only file system; give another path\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ["attack", "specimen:vit-0", "--out"],
        ["evaluate", "specimen:vit-0", "--tasks", "accuracy", "--out"],
        ["study", "report", "figure-2a", "--out"],
        ["study", "status", "figure-2a", "--store"],
    ],
)
def test_a_file_where_a_folder_belongs_is_named(tmp_path, run_cli, command):
    (tmp_path / "taken").write_text("mine")
    code, _, err = run_cli(*command, tmp_path / "taken")
    assert code == 2
    assert err.count("\n") == 1
    assert f"{command[-1].strip('-')} " in err
    assert f"{tmp_path / 'taken'}' is a file" in err
    assert (tmp_path / "taken").read_text() == "mine"


def test_eps_are_numbers_or_fractions():
    def eps(text):
        return AuditOptions(model="specimen:vit-0", eps=text).eps

    assert eps("1/255, 0.5/255,2e-2") == (1 / 255, 0.5 / 255, 0.02)
    assert eps(["1/255", 0.25]) == (1 / 255, 0.25)
    for text in ("", "0.1,", "0.1,,0.2", "1//2", "1/0", "one", "1/255/2", "inf", "1e-999999999", ["0.1", "one"]):
        with pytest.raises(UserError, match="fraction"):
            eps(text)
    with pytest.raises(UserError, match=r"eps tensor\(0.1"):
        eps(torch.tensor(0.1))


def test_an_interrupt_while_modules_load_is_one_line(monkeypatch, run_cli):
    monkeypatch.setitem(sys.modules, "antiphase.cli.app", _Interrupted("app"))
    code, out, err = run_cli("audit")
    assert (code, out, err) == (130, "", "antiphase: interrupted; resume with the same command\n")


@pytest.mark.parametrize("error", [RuntimeError("in C++"), RecursionError(), ImportError("half of a module")])
def test_an_interrupt_that_a_library_turns_into_its_own_error_is_one_line(monkeypatch, run_cli, error):
    def interrupted(**_):
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        raise error

    monkeypatch.setattr("antiphase.cli.app.app", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, out, err = run_cli("audit")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, out, err) == (130, "", "antiphase: interrupted; resume with the same command\n")


class _Interrupted(types.ModuleType):
    """A module whose import is interrupted."""

    def __getattr__(self, name):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "words",
    [
        ("look", "specimen:vit-0", "x.png", "--text", "a\x1b[2J\u202eb", "--out", "\x1b[2J\u202e"),
        ("audit", "specimen:\x1b[31m"),
        ("audit", "./\u2066\x9b2J"),
        ("sense", "specimen:vit-0", "--device", "\x1b]0;x\x07"),
        ("attack", "specimen:vit-0", "--data", "folder:\x1b[2J\u202e"),
        ("study", "show", "\x1b[2J\u202e"),
    ],
)
def test_an_error_reaches_the_terminal_escaped(run_cli, words):
    code, out, err = run_cli(*words)
    assert code == 2
    assert not set("\x1b\x9b\x07\u202e\u2066") & set(out + err)


def test_a_directory_of_any_name_is_written_and_resumed(tmp_path, monkeypatch, run_cli):
    out = "~/lr[0.1]/a?b"
    monkeypatch.chdir(tmp_path)
    words = ("attack", "specimen:vit-0", "--attack", "fgsm", "--limit", "2", "-q", f"--out={out}")
    for _ in range(2):
        code, _, err = run_cli(*words)
        assert (code, err) == (0, "")
    assert (tmp_path / out / "rows.parquet").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("attack", "specimen:vit-0", "--out=caf\udce9"), "is not UTF-8"),
        (("look", "specimen:vit-0", "x.png", "--text", "\udcff"), "is not UTF-8"),
        (("evaluate", "specimen:vit-0", "--prompt", "a {}\udcff"), "is not UTF-8"),
    ],
)
def test_text_that_no_file_can_hold_is_one_line(run_cli, words, why):
    code, out, err = run_cli(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err


@pytest.mark.parametrize("place", ["folder:~nosuchuser/x", "npz:~nosuchuser/x.npz", "parquet:~nosuchuser/x"])
def test_a_home_that_is_not_known_is_one_line(run_cli, place):
    code, out, err = run_cli("attack", "specimen:vit-0", "--data", place)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_machine_without_a_home_is_one_line(monkeypatch, run_cli):
    def unknown(_):
        raise KeyError

    for name in ("HOME", "ANTIPHASE_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    code, out, err = run_cli("attack", "specimen:vit-0", "--limit", "2")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "HOME" in err
    assert "ANTIPHASE_DATA" in err
