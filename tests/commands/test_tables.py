import io
import json

import polars as pl
import pytest
from rich.console import Console

from antiphase.evaluation.rates import compare, rates
from tests.commands.audits import audited


def printed(directory, width=80):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    for part in audited(directory).console():
        console.print(part)
    return console.file.getvalue()


@pytest.mark.parametrize("run", ["twins", "alone"])
def test_console_shows_every_rate_and_difference_in_80_columns(run, request):
    directory = request.getfixturevalue(run)
    summary = json.loads((directory / "summary.json").read_text())
    text = printed(directory)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for model in summary["models"]:
        assert model["name"] in text
        assert f"{100 * model['clean_accuracy']:.1f}" in text
    for result in summary["results"]:
        if result["metric"] == "asr":
            assert f"{100 * result['value']:.1f}" in text
            assert f"{100 * result['low']:.1f}–{100 * result['high']:.1f}" in text
    for comparison in summary["comparisons"]:
        assert f"{100 * comparison['difference']:+.1f}".replace("-", "−") in text


def test_console_shows_families_by_their_means_with_the_answer_first(seeds):
    text, run = printed(seeds), audited(seeds)
    assert text.startswith("Undecided between diffvit and vit: ")
    assert "(3 seeds," in " ".join(text.split())
    assert "mean of 3" in text
    for mean in (*run.mean_rates.filter(metric="asr").iter_rows(named=True),):
        assert f"{100 * mean['value']:.1f}" in text
        assert f"{100 * mean['low']:.1f}–{100 * mean['high']:.1f}" in text
    for mean in run.mean_comparisons.iter_rows(named=True):
        assert f"{100 * mean['value']:+.1f}".replace("-", "−") in text


def test_console_spreads_many_eps_over_blocks(tmp_path, make_run, make_rows):
    models = [("one", "softmax", 0, 1.0)]
    rows = make_rows(models, eps=[k / 255 for k in range(1, 12)], n=31)
    text = printed(make_run(tmp_path, models, [], rows=rows))
    assert max(map(len, text.splitlines())) <= 80
    assert all(f" {k}/255" in text for k in range(1, 12))
    assert text.count("PGD (L∞)") == 2  # in the title and above the first block


def test_console_takes_markup_in_a_name_for_text(tmp_path, make_run, make_rows):
    models = [("[red]a[/red]", "softmax", 0, 1.0)]
    assert "[red]a[/red]" in printed(make_run(tmp_path, models, [], rows=make_rows(models, n=31)))


def test_rate_sheet_holds_each_models_rates_in_order(twins):
    run = audited(twins)
    (sheet,) = run.rate_tables("robust_accuracy")
    assert sheet.columns == ("model", "0.5/255", "1/255", "2/255", "4/255", "8/255")
    assert [row[0].text for row in sheet.rows] == ["diffvit-0", "vit-0"]
    expected = rates(pl.read_parquet(twins / "rows.parquet")).filter(
        (pl.col("model") == "vit-0") & (pl.col("metric") == "robust_accuracy")
    )
    assert [cell.text for cell in sheet.rows[1][1:]] == [f"{100 * value:.1f}" for value in expected["value"]]
    assert pl.read_csv(io.StringIO(sheet.csv))["value"][5:].to_list() == expected["value"].to_list()


def test_means_over_seeds_stand_below_their_models(seeds):
    (sheet,) = audited(seeds).rate_tables("asr")
    kinds = [row[0].kind for row in sheet.rows]
    assert kinds == ["member", "member", "member", "mean"] * 2
    assert sheet.rows[3][0].text == "diffvit, mean of 3"
    first = [float(row[1].text) for row in sheet.rows[:3]]
    assert float(sheet.rows[3][1].text) == pytest.approx(sum(first) / 3, abs=0.1)


def test_difference_sheet_marks_what_is_not_told_from_zero(tmp_path, make_run, make_rows):
    models = [("a", "softmax", None, 1.0), ("b", "softmax", None, 1.0), ("c", "differential", None, 4.0)]
    rows = make_rows(models)
    run = audited(make_run(tmp_path, models, [("a", "b"), ("c", "b")], rows=rows))
    (sheet,) = run.difference_tables()
    for pair, row in zip([("a", "b"), ("c", "b")], sheet.rows, strict=True):
        for entry, cell in zip(compare(rows, *pair).iter_rows(named=True), row[1:], strict=True):
            assert (cell.kind == "undecided") == (entry["low"] <= 0 <= entry["high"])
    assert {cell.kind for row in sheet.rows for cell in row[1:]} == {"", "undecided"}


def test_several_attacks_have_a_sheet_each(tmp_path, make_run, make_rows):
    models = [("a", "softmax", None, 1.0), ("b", "differential", None, 2.0)]
    rows = pl.concat([make_rows(models), make_rows(models, eps=(0.5, 1.0), norm="l2")])
    run = audited(make_run(tmp_path, models, [("b", "a")], rows=rows))
    for sheets in (run.rate_tables("asr"), run.difference_tables()):
        assert [sheet.title for sheet in sheets] == ["PGD (L∞)", "PGD (L2)"]
        assert [len(sheet.columns) for sheet in sheets] == [6, 3]
        assert len({sheet.name for sheet in sheets}) == 2


def test_lambda_sheet_pads_shallower_models_and_may_be_absent(tmp_path, twins, make_run, alone):
    assert audited(alone).lambda_tables() == []
    summary = json.loads((twins / "summary.json").read_text())
    summary["models"][1]["lambda"] = [0.1, 0.2, 0.3]
    (twins / "summary.json").write_text(json.dumps(summary))
    (sheet,) = audited(twins).lambda_tables()
    assert [cell.text for cell in sheet.rows[0]] == ["diffvit-0", "0.790", "–", "–"]
    assert [cell.text for cell in sheet.rows[1]] == ["vit-0", "0.100", "0.200", "0.300"]


def test_models_sheet_counts_each_image_once(twins):
    sheet = audited(twins).models_table()
    table = pl.read_csv(io.StringIO(sheet.csv))
    assert table["n"].to_list() == [300, 300]
    assert [row[3].text for row in sheet.rows] == [f"{100 * value:.1f}" for value in table["value"]]
