"""Two runs compared on what they share: made-up runs whose differences are counted here again."""

import io
import json
import re

import polars as pl
import pytest

import antiphase as ap
from antiphase.errors import UserError
from antiphase.report.page import TITLE
from antiphase.studies.report.site import StudyResult
from tests.commands.conftest import EPS

MODEL = ("vit-0", "softmax", 0, 1.0)
ROBUST = ("robust-0", "softmax", 0, 0.5)


@pytest.fixture
def runs(tmp_path, make_run, make_rows):
    """PGD on 300 images, and APGD on 200 of them at other ε."""
    first = make_run(tmp_path / "pgd", [MODEL], [], rows=make_rows([MODEL]), options={"limit": 300, "out": "pgd"})
    rows = make_rows([ROBUST], eps=(*EPS[2:], 16 / 255), n=200, attack="apgd-ce")
    rows = rows.with_columns(model=pl.lit("vit-0"))
    settings = {"attack": "APGD-CE", "norm": "linf", "attack seed": 0}
    second = make_run(
        tmp_path / "apgd",
        [MODEL],
        [],
        rows=rows,
        settings=settings,
        data_fingerprint="f" * 32,
        options={"limit": 200, "out": "apgd"},
    )
    return first, second


def counted(first, second, eps, flag):
    """The mean of a flag over the shared images, of one run minus the other."""
    rows, others = (
        pl.read_parquet(run / "rows.parquet").filter(eps=eps).with_columns(flag=flag) for run in (first, second)
    )
    both = rows.join(others, on="sample", suffix="_other")
    return len(both), both["flag"].mean() - both["flag_other"].mean()


def test_attacks_are_compared_on_the_images_and_eps_of_both(runs):
    frame = ap.compare(*runs).frame()
    correct = pl.col("clean_prediction") == pl.col("label")
    flags = {"asr": pl.col("success"), "robust_accuracy": correct & ~pl.col("success")}
    for metric, flag in flags.items():
        block = frame.filter(metric=metric)
        assert block["eps"].to_list() == list(EPS[2:])
        assert set(block["attack"]) == {"pgd − apgd-ce"}
        for row in block.iter_rows(named=True):
            n, difference = counted(*runs, row["eps"], flag)
            assert (row["n"], n) == (200, 200)
            assert row["difference"] == pytest.approx(difference)
            assert row["low"] <= difference <= row["high"]
    clean = frame.filter(metric="clean_accuracy").row(0, named=True)
    assert clean["difference"] == pytest.approx(counted(*runs, EPS[2], correct)[1])
    assert frame.filter(metric="asr")["decided"].to_list() == [1, 1, 1]


def test_method_function_and_command_give_the_same_numbers(runs, tmp_path, run_cli):
    first, second = map(ap.open, runs)
    method, comparison = first.compare(second), ap.compare(first, runs[1])
    code, out, _ = run_cli("compare", *runs, "--out", tmp_path / "out", "--json")
    answer = json.loads(out)
    assert code == 0
    assert comparison.frame().equals(method)
    assert pl.read_csv(tmp_path / "out" / "differences.csv").equals(method)
    assert answer["differences"] == comparison.summary["differences"]
    assert ap.open(tmp_path / "out").frame().equals(method)
    assert repr(comparison).startswith("<antiphase compare: ASR, PGD − APGD-CE higher in pgd than in apgd: +")


def test_page_says_what_differs_between_the_runs(runs):
    result = ap.compare(*runs)
    differing = {row["setting"]: (row["first"], row["second"]) for row in result.summary["differing_settings"]}
    assert differing["attack"] == ("pgd", "APGD-CE")
    assert differing["limit"] == ("300", "200")
    assert differing["pgd: steps"] == ("20", None)
    assert differing["SHA-256 of the images"][1] == 12 * "f"
    assert {"attack seed", "norm", "out"} & set(differing) == set()
    folder = result.save(runs[0].parent / "saved")
    page = (folder / "report.html").read_text()
    assert re.search(r'(src|href)="http', page) is None
    assert "What differs between the runs" in page
    assert all((folder / f"differences.{ending}").exists() for ending in ("csv", "svg", "png", "pdf"))
    headline = result.headlines()[0]
    assert headline.lead.startswith("pgd minus apgd, vit-0: paired")
    assert headline.condition == "n = 200"
    assert len(headline.title) <= TITLE
    same = ap.compare(runs[0], runs[0])
    assert same.summary["differing_settings"] == []
    assert same.line().startswith("No difference shown in ASR, PGD: 0.0 points [")


def test_models_are_paired_by_name_then_in_their_order(tmp_path, make_run, make_rows):
    kinds = {"a": ["vit-0", "diffvit-0", "x"], "b": ["diffvit-0", "vit-0", "y"], "c": ["diffvit-0"]}
    for run, names in kinds.items():
        models = [(name, "softmax", None, 1.0) for name in names]
        make_run(tmp_path / run, models, [], rows=make_rows(models, n=20, eps=EPS[:1]))
    first, second, third = (ap.open(tmp_path / run) for run in kinds)
    other = "{} (other)".format
    pairs = first.compare(second).select("model", "against").unique(maintain_order=True).rows()
    assert pairs == [("vit-0", other("vit-0")), ("diffvit-0", other("diffvit-0")), ("x", "y")]
    assert set(first.compare(third)["model"]) == {"diffvit-0"}


def test_worst_cases_of_other_attacks_are_compared_as_are_the_attacks_of_both(tmp_path, make_run, make_rows):
    runs = []
    for place, second in enumerate(("square", "apgd-ce")):
        names = (f"worst of pgd, {second}", "pgd", second)
        parts = [make_rows([MODEL], eps=EPS[:1], n=20, attack=name) for name in names]
        runs += [make_run(tmp_path / str(place), [MODEL], [], rows=pl.concat(parts))]
    result = ap.compare(*runs)
    attacks = set(result.frame().filter(metric="asr")["attack"])
    assert attacks == {"pgd", "worst of pgd, square − worst of pgd, apgd-ce"}
    (line,) = [line for line in result.warnings if line.startswith("not compared")]
    assert line.endswith(": apgd-ce, square")


def test_runs_that_share_nothing_are_one_line_and_leave_nothing(tmp_path, make_run, make_rows, run_cli):
    base = make_run(tmp_path / "base", [MODEL], [], rows=make_rows([MODEL], eps=EPS[:1], n=20))
    rows = make_rows([MODEL], eps=(1.0,), norm="l2", n=20)
    runs = {
        "nothing in common: norm linf, eps 0.5/255 and norm l2, eps 1; expected the same norm and an ε": {"rows": rows},
        "different images, fashion-mnist, test (made up) and digits; expected the same data": {
            "data": "digits",
            "data_fingerprint": "0",
        },
        "different images, fashion-mnist, test (made up) and fashion-mnist, test": {
            "rows": make_rows([MODEL], eps=EPS[:1], n=20).with_columns(label=pl.lit(3, pl.Int64)),
            "data_fingerprint": "1",
        },
    }
    for place, (line, changes) in enumerate(runs.items()):
        other = make_run(
            tmp_path / str(place), [MODEL], [], **({"rows": make_rows([MODEL], eps=EPS[:1], n=20)} | changes)
        )
        code, out, err = run_cli("compare", base, other, "--out", tmp_path / "out")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"antiphase: compare: {line}" in err
        assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="no such directory; expected one that a command wrote"):
        ap.compare(base, tmp_path / "nowhere")
    with pytest.raises(UserError, match="got a comparison; expected two runs that were measured"):
        ap.compare(base, ap.compare(base, base))


def test_a_damaged_file_is_named_with_its_directory(runs, tmp_path, run_cli):
    one, other = runs
    for name, content, why in (
        ("run.json", "{}", "has no 'command': expected the file of a finished run; run it again"),
        ("run.json", '{"n": ', "cannot be read ("),
        ("rows.parquet", "PAR1", "cannot be read ("),
    ):
        kept = (other / name).read_bytes()
        (other / name).write_text(content)
        code, out, err = run_cli("compare", one, other, "--out", tmp_path / "out")
        (other / name).write_bytes(kept)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{other / name}: {why}" in err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("run.json", {"settings": []}),
        ("run.json", {"options": None}),
        ("run.json", {"fingerprints": ["a"]}),
        ("run.json", {"versions": 5}),
        ("run.json", {"warnings": 5}),
        ("summary.json", {"models": 5}),
        ("summary.json", {"models": [5]}),
        ("summary.json", {"models": [{"attention": "none"}]}),
    ],
)
def test_a_field_of_another_type_is_named(runs, name, changed):
    one, other = runs
    (other / name).write_text(json.dumps(json.loads((other / name).read_text()) | changed))
    (key,) = changed
    with pytest.raises(UserError, match=f"{name}: {key} .*: expected what a run writes; repeat it"):
        ap.compare(one, other)


def test_other_images_in_memory_are_not_paired(runs):
    one, other = runs
    for run, digit in ((one, "1"), (other, "2")):
        record = json.loads((run / "run.json").read_text()) | {"data": "array", "data_fingerprint": digit * 64}
        (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="compare: different images, array and array"):
        ap.compare(one, other)


def _training(folder, losses, **options):
    """The directory of a made-up training."""
    folder.mkdir()
    (folder / ".antiphase").write_text("train\n")
    (folder / "recipe.json").write_text("{}")
    epochs = [{"epoch": epoch, "loss": loss, "accuracy": 0.5} for epoch, loss in enumerate(losses, 1)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(epoch)}\n" for epoch in epochs))
    record = {"command": "antiphase train", "options": options, "hardware": "none", "versions": {}}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_trainings_are_compared_after_the_last_epoch_of_both(tmp_path, run_cli):
    one = _training(tmp_path / "one", [1.5, 0.75, 0.5], learning_rate=1e-3)
    two = _training(tmp_path / "two", [1.0, 0.5], learning_rate=1e-4)
    code, out, err = run_cli("compare", one, two, "--out", tmp_path / "out")
    assert code == 0, err
    assert "Loss, epoch 2, one minus two: 0.250 (no interval)" in " ".join(out.split())
    result = ap.open(tmp_path / "out")
    assert result.frame()["decided"].to_list() == [0, 0]
    assert [row["setting"] for row in result.summary["differing_settings"]] == ["learning_rate"]
    assert "none is decided" in (tmp_path / "out/report.html").read_text()


def test_studies_are_compared_claim_by_claim():
    runs = []
    for value, verdict in ((0.25, "holds"), (0.125, "undecided")):
        claims = {"study": "s", "claim": "fragile", "check": "1/255", "verdict": verdict, "value": value}
        buffer = io.BytesIO()
        pl.DataFrame([claims]).write_parquet(buffer)
        choice = {"names": ["s"], "profile": "laptop" if verdict == "holds" else "smoke"}
        files = {"cells.parquet": b"", "study.json": json.dumps(choice).encode()}
        runs += [StudyResult("study run", files | {"claims.parquet": buffer.getvalue()})]
    result = ap.compare(*runs)
    (row,) = result.frame().rows(named=True)
    assert (row["metric"], row["difference"]) == ("s: fragile, 1/255 (holds and undecided)", 0.125)
    assert [line["setting"] for line in result.summary["differing_settings"]] == ["profile"]
    assert "undecided), first minus second: 0.125 (no interval)" in result.line()


def test_of_trainings_that_differ_in_model_or_seed_that_is_said(tmp_path):
    runs = [
        _training(tmp_path / f"{place}", [1.0, 0.5], model=model, seed=seed)
        for place, (model, seed) in enumerate([("vit", 0), ("vit", 1), ("diffvit", 0)])
    ]
    for other, expected in ((runs[1], "seed"), (runs[2], "model")):
        assert [row["setting"] for row in ap.compare(runs[0], other).summary["differing_settings"]] == [expected]
