import contextlib
import io
import json
import re
import zlib

import polars as pl
import pytest
from matplotlib.mathtext import MathTextParser
from rich.console import Console

from antiphase.errors import UserError
from antiphase.evaluation.rates import compare, rates
from antiphase.report.table import Field, OnConsole, Table, table_text
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
            assert f"[{100 * result['low']:.1f}, {100 * result['high']:.1f}]" in text
    for comparison in summary["comparisons"]:
        assert f"{100 * comparison['difference']:+.1f}".replace("-", "−") in text


def test_console_shows_families_by_their_means_with_the_answer_first(seeds):
    text, run = printed(seeds), audited(seeds)
    assert text.startswith("Undecided between diffvit and vit: ")
    assert "(3 seeds," in " ".join(text.split())
    assert "mean of 3" in text
    for mean in (*run.mean_rates.filter(metric="asr").iter_rows(named=True),):
        assert f"{100 * mean['value']:.1f}" in text
        assert f"[{100 * mean['low']:.1f}, {100 * mean['high']:.1f}]" in text
    for mean in run.mean_comparisons.iter_rows(named=True):
        assert f"{100 * mean['difference']:+.1f}".replace("-", "−") in text


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


def unescaped(text):
    """What LaTeX would show of a cell, for the characters of our tables."""
    symbols = {r"$\varepsilon$": "ε", r"$\lambda$": "λ", "$-$": "−", r"$\infty$": "∞", "--": "–", "$<$": "<"}
    for source, shown in symbols.items():
        text = text.strip().replace(source, shown)
    text = re.sub(r"\\scriptsize |\\textbf\{(.*)\}$", r"\1", text.replace("{[}", "["))
    return re.sub(r"\\([&%$#_{}])", r"\1", text).strip()


@pytest.mark.parametrize("run", ["twins", "seeds", "alone"])
def test_latex_has_every_field_of_a_table_between_rules(run, request):
    result = audited(request.getfixturevalue(run))
    for name in result.table_names:
        table, text = result._on_page[name], result.table(name, "latex")
        lines = text.splitlines()
        assert text.count("{") == text.count("}")
        for math in re.findall(r"\$[^$]*\$", text):
            MathTextParser("agg").parse(math)
        columns = re.search(r"begin\{tabular\}\{([lr]+)\}", text)[1]
        assert len(columns) == len(table.columns)
        rules = [lines.index(f"\\{rule}rule") for rule in ("top", "mid", "bottom")]
        body = [line.removesuffix(r" \\").split("&") for line in lines[rules[1] + 1 : rules[2]]]
        assert {len(cells) for cells in body} == {len(table.columns)}
        shown = iter([unescaped(cell) for cell in cells] for cells in body)
        for row in table.rows:
            assert next(shown) == [field.text for field in row]
            for depth in range(max(len(field.notes) for field in row)):
                assert next(shown) == [(*field.notes, *[""] * 9)[depth] for field in row]


def test_long_words_are_paragraphs_of_a_line_of_latex():
    row = (
        Field("word " * 30, kind="name"),
        Field("holds", kind="verdict"),
        Field("1.5"),
        Field("so " * 60, kind="word"),
    )
    text = table_text(Table("t", "t", ("claim", "verdict", "n", "estimate"), (row,), ""), "latex")
    sides = re.search(r"begin{tabular}{(.*)}\n", text)[1]
    assert re.fullmatch(r"p{0\.(\d\d)\\linewidth}lrp{0\.(\d\d)\\linewidth}", sides)
    assert 0.6 < sum(map(float, re.findall(r"0\.\d\d", sides))) < 0.8
    short = tuple(Field(text, kind=kind) for text, kind in (("a", "name"), ("b", "word"), ("1", "")))
    assert "{tabular}{llr}" in table_text(Table("t", "t", ("a", "b", "c"), (short,), ""), "latex")


def test_what_latex_would_obey_is_escaped():
    table = Table("a", "50 % of a_b & {c}", ("model", r"\input"), ((Field("[x]#1"), Field("~^$")),), "")
    text = table_text(table, "latex")
    assert r"\caption{50 \% of a\_b \& \{c\}}" in text
    degrees = Table("a", "J₁ at 90°", ("a",), ((Field("1"),),), "")
    assert r"\caption{J$_1$ at 90$^\circ$}" in table_text(degrees, "latex")
    assert r"model & \textbackslash{}input \\" in text
    assert r"{[}x]\#1 & \textasciitilde{}\textasciicircum{}\$ \\" in text


def test_names_are_broken_after_separators_and_no_other_word_is(capsys):
    names = ["timm:vit_small_patch16_224.augreg_in21k_ft_in1k − timm:deit3_base_patch16", "a somewhat longer name"]
    rows = tuple(
        (Field(name, kind="name"), Field("x" * 9, kind="word"), *[Field("12.3", ("[10.1, 14.9]",))] * 7)
        for name in names
    )
    table = Table("a", "", ("model", "kind", *map(str, range(7))), rows, "")
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(OnConsole(table))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("[10.1, 14.9]") == 14
    assert text.count("xxxxxxxxx") >= 2
    first = [line[1:40].split("  ")[0] for line in text.splitlines()]
    assert names[0].replace(" ", "") in "".join(part.replace(" ", "") for part in first)


def test_tables_of_a_finished_run_are_printed_as_text(seeds, run_cli, capsys):
    result = audited(seeds)
    for form, start in (("latex", r"\begin{table}"), ("markdown", "| model |"), ("csv", "model,")):
        assert result.table("models", form).startswith(start)
    assert result.table(form="latex").count(r"\begin{table}") == len(result.table_names)
    with pytest.raises(UserError, match="table 'modells': expected one of asr-pgd-linf"):
        result.table("modells")
    with pytest.raises(UserError, match="table 'tex': expected one of csv, latex, markdown"):
        result.table("models", "tex")


def test_table_option_prints_tables_alone_or_in_json(seeds, tmp_path, run_cli):
    words = ("compare", seeds, seeds, "--out", tmp_path / "out")
    code, out, err = run_cli(*words, "--tables", "latex")
    assert code == 0
    assert out.startswith(r"\begin{table}")
    assert "report: " in err
    answer = json.loads(run_cli(*words, "--tables", "csv", "--json")[1])
    assert set(answer["tables"]) >= {"clean-accuracy"}
    assert pl.read_csv(io.StringIO(answer["tables"]["clean-accuracy"]))["difference"].to_list() == [0.0] * 6
    code, out, err = run_cli(*words[:-1], tmp_path / "new", "--tables", "word")
    assert (code, out) == (2, "")
    assert "table 'word': expected one of csv, latex, markdown" in err
    assert not (tmp_path / "new").exists()


def test_pdfs_have_no_type_3_fonts(twins):
    audited(twins).write_report(twins)
    content = (twins / "asr.pdf").read_bytes()
    streams = re.findall(rb"stream\r?\n(.*?)endstream", content, re.DOTALL)
    objects = [content]
    for stream in streams:
        with contextlib.suppress(zlib.error):
            objects.append(zlib.decompress(stream))
    text = b"".join(objects)
    assert b"/TrueType" in text or b"/CIDFontType2" in text
    assert b"/Type3" not in text
