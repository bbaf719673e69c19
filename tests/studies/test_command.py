"""``antiphase study`` as a user meets it."""

import json
import re
import shutil

import polars as pl
import pytest

from antiphase.cli import main
from antiphase.files import digest
from antiphase.studies.plan import find_studies
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Lab, profile
from antiphase.studies.store import Store


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr("sys.argv", ["antiphase", "study", *map(str, words)])
        try:
            main()
        except SystemExit as ended:
            return ended.code or 0, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def store(shared_folder):
    """A store with every cell of table-1 under smoke, made once for all workers."""
    (study,) = find_studies(["table-1"])
    table_store = Store(shared_folder / "table-1-store")
    run_cells(study.cells(profile("smoke")), Lab(table_store, progress=False))
    return table_store.root


def test_list_names_both_papers(call):
    code, out, _ = call("list")
    assert code == 0
    assert "table-1" in out
    assert "diffclip-figure-5" in out


def test_run_says_beforehand_if_the_seeds_are_too_few_for_a_verdict(call, tmp_path):
    def told(*words):
        code, _, err = call("run", "table-1", *words, "--dry-run", "--store", tmp_path / "store")
        assert code == 0
        return [line for line in err.splitlines() if "a verdict takes" in line]

    assert told("--profile", "laptop", "--seeds", 3) == ["table-1: 3 training seeds; a verdict takes 8 (--seeds 8)"]
    assert told("--profile", "smoke", "--seeds", 3) == []
    both = told("diffclip-table-2", "diffclip-table-3", "--profile", "laptop")
    assert both == ["diffclip-table-3: 3 training seeds; a verdict takes 8 (--seeds 8)"]


def test_a_damaged_cell_is_named_by_whoever_reads(call, store, tmp_path):
    shutil.copytree(store, tmp_path / "store")
    rows = next((tmp_path / "store" / "cells").glob("attack-*")) / "rows.parquet"
    rows.write_bytes(rows.read_bytes()[:-1])
    common = ("table-1", "--profile", "smoke", "--store", tmp_path / "store")
    for words in (("claims",), ("rows",), ("pack", "--to", tmp_path / "pack"), ("report", "--out", tmp_path / "site")):
        code, _, err = call(words[0], *common, *words[1:])
        assert code == 0
        assert err.splitlines()[0] == f"left out: {rows}: is damaged (its SHA-256 differs from the recorded one)"


def test_a_readme_without_marks_is_refused_before_anything_is_written(call, store, tmp_path):
    files = ("--out", tmp_path / "site", "--markdown", tmp_path / "f.md", "--readme", tmp_path / "README.md")
    code, out, err = call("report", "table-1", "--profile", "smoke", "--store", store, *files)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "README.md: expected a line <!-- findings -->" in err
    assert not list(tmp_path.iterdir())


def test_run_says_what_it_will_do_does_it_and_then_has_nothing_to_do(call, store, tmp_path):
    shutil.copytree(store, tmp_path / "store")
    for table in ("attack", "accuracy"):
        shutil.rmtree(next((tmp_path / "store" / "cells").glob(f"{table}-*")))
    words = ("table-1", "--profile", "smoke", "--store", tmp_path / "store")
    code, _, err = call("run", *words)
    assert code == 0
    assert "36 cells, 2 to make (1 attack, 1 accuracy): about" in err
    assert "[2/2]" in err
    code, _, err = call("run", *words)
    assert code == 0
    assert "36 cells, all there" in err
    code, out, _ = call("status", *words)
    assert code == 0
    assert out.split()[-6:] == ["table-1", "36", "0", "0", "0", "–"]


def test_show_tells_the_papers_numbers_the_cells_and_what_is_there(call, store):
    code, out, _ = call("show", "table-1", "--profile", "smoke", "--store", store)
    assert code == 0
    assert ".8498" in out
    assert "✓ train-" in out
    assert "all there" in out


def test_rows_are_exported(call, store, tmp_path):
    words = ("rows", "table-1", "--profile", "smoke", "--store", store)
    code, out, _ = call(*words)
    assert code == 0
    assert "attack: 288 rows" in out
    code, _, _ = call(*words, "--table", "attack", "--out", tmp_path / "asr.csv")
    assert code == 0
    rows = pl.read_csv(tmp_path / "asr.csv")
    assert len(rows) == 288
    assert {"series", "lambda_init", "training_seed", "eps", "success"} <= set(rows.columns)


def test_claims_are_printed_and_written_as_json(call, store):
    words = ("claims", "table-1", "table-3", "--profile", "smoke", "--store", store)
    code, out, _ = call(*words)
    assert code == 0
    assert "not judged (smoke)" in " ".join(out.split())
    assert not {"holds", "fails", "undecided"} & set(out.split())
    code, out, _ = call(*words, "--json")
    studies = {study["study"]: study for study in json.loads(out)}
    assert studies["table-1"]["claims"][0]["name"] == "asr-peaks"
    assert studies["table-3"]["done"] == 4  # attack and accuracy of the natural DiffViTs, which are table 1's, too


def test_report_writes_a_site_and_markdown(call, store, tmp_path):
    words = ("report", "table-1", "--profile", "smoke", "--store", store)
    code, _, _ = call(*words, "--out", tmp_path / "site", "--markdown", tmp_path / "n.md")
    assert code == 0
    assert (tmp_path / "site" / "index.html").exists()
    assert (tmp_path / "site" / "robustness-table-1.html").exists()
    markdown = (tmp_path / "n.md").read_text()
    assert "(n/robustness-table-1.md)" in markdown
    markdown = (tmp_path / "n" / "robustness-table-1.md").read_text()
    assert "| λ_init |" in markdown
    page = (tmp_path / "site" / "robustness-table-1.html").read_text()
    for text in (markdown, page):
        assert "not judged (smoke)" in text
        assert "training seeds: 1" in text
        assert "for one training seed" in text


def test_rows_that_ship_say_what_the_store_said(call, store, tmp_path, monkeypatch):
    words = ("table-1", "--profile", "smoke")
    code, out, _ = call("pack", *words, "--store", store, "--to", tmp_path / "results")
    assert (code, out) == (0, f"table-1: 36 cells added to {tmp_path / 'results'}\n")
    made = {}
    for name, place in (("store", ("--store", store)), ("pack", ("--rows", tmp_path / "results"))):
        out = tmp_path / name
        code, _, err = call("report", *words, *place, "--out", out / "site", "--markdown", out / "findings.md")
        assert code == 0, err
        made[name] = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert made["store"] == made["pack"]
    for command in ("claims", "rows"):
        code, out, err = call(command, *words, "--rows", tmp_path / "results")
        assert code == 0, err
        with monkeypatch.context() as there:  # results/ is read where there is no store, as in a clone
            there.chdir(tmp_path)
            assert call(command, *words) == (0, out, "there is no antiphase-store here: rows are read from results\n")
    code, _, err = call("run", *words, "--rows", tmp_path / "results", "--store", tmp_path / "elsewhere")
    assert code == 0
    assert "36 cells, all there" in err
    assert not list((tmp_path / "elsewhere").glob("cells/*"))


def test_rows_of_an_older_schema_get_one_line(call, store, tmp_path):
    shutil.copytree(store, tmp_path / "old")
    for path in (tmp_path / "old" / "cells").glob("attack-*/rows.parquet"):
        pl.read_parquet(path).drop("success").write_parquet(path)
        record = json.loads((path.parent / "done.json").read_text())
        record["files"] = {"rows.parquet": digest(path.read_bytes())}
        (path.parent / "done.json").write_text(json.dumps(record))
    words = ("table-1", "--profile", "smoke", "--store", tmp_path / "old")
    for command in (("claims",), ("report", "--out", tmp_path / "site")):
        code, _, err = call(command[0], *words, *command[1:])
        assert (code, err.count("\n")) == (2, 1)
        assert "the stored rows are of an older schema and lack a column" in err
        assert "success" in err


@pytest.mark.long
def test_a_study_of_ones_own(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call("new", "my-study")
    assert (code, out.strip()) == (0, "my-study.py")
    words = ("my-study.py", "--profile", "smoke")
    code, _, err = call("run", *words)
    assert code == 0, err
    assert "all there" not in err
    code, out, _ = call("claims", *words)
    assert code == 0
    assert "my expectation" in out
    code, out, err = call("report", *words, "--tables", "latex")
    assert (code, "index.html" in err) == (0, True)
    assert out.startswith(r"\begin{table}")
    assert "my expectation" in out
    page = (tmp_path / "antiphase-studies" / "own-my-study.html").read_text()
    assert "margin_pgd" in page
    assert "About this study</h2>" in page
    assert "The paper</h2>" not in page
    path = tmp_path / "my-study.py"
    path.write_text(path.read_text().replace('objective="margin"', 'objective="dlr"'))
    code, _, err = call("run", *words)
    assert code == 0
    assert "4 to make (4 attack)" in err  # the attack's text changed: its cells run again, no training does
    code, _, err = call("new", "my-study")
    assert (code, err) == (2, "antiphase: my-study.py: exists; give another name\n")


def test_dry_run_checks_the_paper_profile(call, store):
    code, out, _ = call("run", "table-3", "--profile", "paper", "--dry-run", "--store", store)
    assert code == 0
    assert re.search(r"  setting +ours +paper +verdict\n", out)
    assert re.search(r"  train.adversarial_eps_255 +0.25, 0.5, 1 +0.25, 0.5, 1 +same\n", out)
    assert re.search(r"  attack.steps +20 +– +declared deviation\n", out)
    assert "differs" not in out


def test_cells_that_fail_for_the_same_reason_are_one_line_with_what_to_do(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path / "data"))
    code, _, err = call("run", "diffclip-table-2", "--profile", "paper", "--store", tmp_path / "store")
    assert code == 2
    head, small, large, rest = err.splitlines()[-4:]
    assert head == "antiphase: 60 cells failed"
    for line, name in ((small, "cc3m"), (large, "cc12m")):
        assert line.startswith(f"  - CLIP on shards:{name}/")
        assert "seed 0 and 5 more: no shard matches" in line
        assert f"img2dataset --url_list {name}.tsv" in line
    assert rest.endswith(" and 47 more: needs a cell that failed")
    assert err.count("for the same reason") == 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "tabel-1"), "study 'tabel-1': unknown; list them with antiphase study list"),
        (("run", "table-1", "--profile", "large"), "profile 'large': expected smoke, laptop or paper"),
        (("run", "nowhere.py"), "nowhere.py: no such file; create one with antiphase study new NAME"),
        (("rows", "table-1", "--profile", "paper"), "table-1: no rows in antiphase-store under profile paper"),
        (("report", "table-1", "--profile", "paper"), "antiphase-store: holds no cell of these studies"),
        (("claims", "table-1"), "antiphase-store: holds no cell of these studies"),
        (("pack", "table-1", "--profile", "paper"), "antiphase-store: holds no finished cell of these studies"),
        (("claims", "table-1", "--rows", "nowhere"), "rows 'nowhere': no such directory; expected one written by"),
        (("run", "broken.py"), "broken.py: SyntaxError: "),
        (("run", "raises.py"), "raises.py: raised ZeroDivisionError: division by zero (raises.py, line 2)"),
        (("run", "figure-2a", "--profile", "smoke", "--device", "nonsense"), "device 'nonsense' cannot be used"),
        (("run", "figure-2a", "--profile", "smoke", "--dry-run", "--device", "cuda:99"), "device 'cuda:99' cannot be"),
        (("report", "table-1", "--profile", "smoke", "--markdown", "."), ".: is no file; expected the name of"),
        (("new", "My Study"), "name 'My Study': expected small letters"),
    ],
)
def test_a_mistake_gets_one_line(call, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("study =")
    (tmp_path / "raises.py").write_text("\nstudy = 1 / 0")
    code, _, err = call(*words)
    assert code == 2
    assert err.count("\n") <= 2  # a plan may stand before it
    assert message in err


def test_the_next_command_is_what_one_types(call, tmp_path):
    words = ("table-1", "--profile", "smoke", "--store", tmp_path / "my store")
    code, _, err = call("report", *words)
    assert (code, err.count("\n")) == (2, 1)
    again = f"antiphase study run table-1 --profile smoke --store '{tmp_path / 'my store'}' makes them"
    assert again in err
    code, _, err = call("rows", *words)
    assert (code, err.count("\n"), again in err) == (2, 1, True)
    code, _, err = call("run", *words, "-q")
    assert code == 0
    assert f"antiphase study report table-1 --profile smoke --store '{tmp_path / 'my store'}' draws them" in err


def test_rows_are_shown_with_all_columns(call, store):
    code, out, _ = call("rows", "table-1", "--profile", "smoke", "--store", store, "--table", "attack")
    assert code == 0
    columns = re.findall(r"^  (\w+): ", out, re.MULTILINE)
    assert {"eps", "success", "sample", "norm"} <= set(columns)
