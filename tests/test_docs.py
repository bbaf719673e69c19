"""The documents: links lead somewhere, commands and options exist, the README is short and agrees with the findings."""

import doctest
import importlib.util
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import typer.main
from PIL import Image

from antiphase import registry
from antiphase.attacks.engine import SPEED_VERSION
from antiphase.cli.app import app
from antiphase.models import clip, diffclip, diffvit, load_model, vit, write_model
from antiphase.models.checkpoints import save
from antiphase.models.zoo import fingerprint
from antiphase.registry import CLIPS, ESTIMATORS
from antiphase.sensitivity import attention_adapters as adapters
from antiphase.studies.paper_settings import entries
from tests import needs

ATTACKS = tuple(registry.ATTACKS)  # the package's own; other tests of the process register more

SMALLER = (  # what the pages do with more images, in tests
    (r"\blimit=\d+", "limit=4"),
    (r"range\((\d\d+|[5-9])\)", "range(4)"),
    (r":500\]", ":4]"),
    (r"samples=1000", "samples=20"),
    (r"\b(epochs|samples)=5\b", r"\1=1"),
    (r"steps=20\b", "steps=2"),
    (r"split=split\)", "split=split, limit=150)"),
    (r"episodes=500", "episodes=20"),
    (r"study run my-study.py --seeds 8", "study run my-study.py --profile smoke"),
    (r"study report my-study.py", "study report my-study.py --profile smoke"),
)
# settings of commands that come last, so that they replace those on the page
FEWER = {
    "train": "--epochs 1 --limit 16",
    "train-clip": "--epochs 1 --limit 16 --batch-size 8",
    "quickstart": "--limit 4",
    "audit": "--limit 4",
    "attack": "--limit 2",
    "transfer": "--limit 2",
    "sense": "--limit 2",
    "certify": "--limit 2 --samples 20",
    "evaluate": "--limit 200 --train-limit 200 --episodes 10 --seeds 1 --iterations 20",
}
BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n+)?"
    r'(?:^```python(?: title="(?P<title>[^\n]*)")?\n(?P<python>.*?)^```'
    r"|(?P<shell>(?:^    (?:antiphase|uv|pip|git|torchrun)\b[^\n]*\n)+))",
    re.MULTILINE | re.DOTALL,
)
BEFORE = {  # what a page's reader has in the file that its blocks go into
    "docs/own-study.md": """
from torch import nn
from antiphase.attacks import pgd
from antiphase.models import vit
from antiphase.studies import Attack, Own, TrainVit, given
seed, model = 0, TrainVit(model="vit", data="digits", seed=0)
def MyTransformer(seed): return vit(32, in_channels=3, num_classes=10)
""",
    "docs/resume.md": """
import antiphase as ap
ap.audit("specimen:diffvit-0", eps="1/255", limit=2, sense_limit=0, out="antiphase-audit", quiet=True)
""",
}
MODEL = """
from antiphase import models

def build(depth=1):
    return models.diffvit(28, depth=depth, dim=16, num_heads=2, num_classes=10, in_channels=1)

def diffvit():
    return build()

def vit():
    return models.vit(28, depth=1, dim=16, num_heads=2, num_classes=10, in_channels=1)
"""
ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = [page for page in PAGES if page.name not in ("CONTRIBUTING.md", "SECURITY.md")]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@pages
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pages
def test_commands_and_their_options_exist(page):
    for line in re.findall(r"^    (?:.* -m )?antiphase (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        command = typer.main.get_command(app)
        words = shlex.split(line, comments=True)
        while hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.get_command(None, words.pop(0))
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


def test_every_command_has_its_line_in_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in typer.main.get_command(app).commands:
        assert re.search(rf"^\| [^|]*`(antiphase )?{name}`[^|]* \|", text, re.M), name


def test_links_of_the_repository_become_links_of_the_site():
    spec = importlib.util.spec_from_file_location("links", ROOT / "docs/site/links.py")
    links = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(links)
    assert doctest.testmod(links).failed == 0
    for uri, before, after in (
        ("overview.md", "[a](docs/data.md#images-with-labels)", "[a](data.md#images-with-labels)"),
        ("index.md", "[a](docs/data.md)", "[a](data.md)"),
        ("data.md", "[a](../README.md)", "[a](overview.md)"),
        ("index.md", '<img src="docs/claims.svg">', '<img src="claims.svg">'),
        ("dev/data.md", "[a](../docs/data.md) `[b](../docs/x.md)`", "[a](../data.md) `[b](../docs/x.md)`"),
        ("data.md", "[a](../dev/README.md), [b](python.md)", "[a](dev/README.md), [b](python.md)"),
        ("dev/README.md", "[a](../docs)", "[a](../index.md)"),
        ("data.md", "[a](notebooks/first.ipynb)", "[a](notebook.md)"),
        ("data.md", "[a](../LICENSE)", "[a](https://github.com/antiphase/antiphase/blob/main/LICENSE)"),
        ("data.md", "[a](https://a.b/c.md)", "[a](https://a.b/c.md)"),
        ("data.md", "[a](nowhere.md)", "[a](nowhere.md)"),  # mkdocs names it
    ):
        assert links.moved(before, uri) == after


def test_every_data_source_is_on_its_page():
    from antiphase.data import CONVERSATION_SOURCES, PAIR_SOURCES, SOURCES

    text = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    names = (*SOURCES, *PAIR_SOURCES, *CONVERSATION_SOURCES)
    assert [name for name in names if f"`{name}`" not in text] == []


def test_citation_and_address_are_of_this_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (site,) = re.findall(r'ANTIPHASE_SITE_URL, "(.*)"', (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert project["urls"]["Documentation"] == site
    assert f"version: {project['version']}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.fixture
def benchmark(script):
    """The script that measures attacks against other libraries'."""
    return script("attacks")


def test_the_table_of_speed_is_of_the_models_and_attacks_of_today(benchmark):
    _, _, rest = benchmark.PAGE.read_text(encoding="utf-8").partition("<!-- speed -->\n")
    shown = rest.partition("<!-- /speed -->")[0]
    if not benchmark.PUBLISHED.exists():
        assert shown == ""
        return
    record = json.loads(benchmark.PUBLISHED.read_text(encoding="utf-8"))
    assert benchmark.changed(record) == [], "measure again: benchmarks/attacks.py --publish"
    assert shown == benchmark.speed_table(record)


def test_a_record_of_speed_is_told_from_one_of_another_model_or_attack(benchmark):
    line = {
        "what": "apgd-ce",
        "model": "specimen:diffvit-0",
        "eps": "2/255",
        "images": 7,
        "seconds": {"ours": 2.0, "pyautoattack": 5.0},
        "standing": {"ours": 0.5, "pyautoattack": 0.51},
        "times faster": {"pyautoattack": 2.5},
    }
    digests = {name: fingerprint(load_model(name)) for name in ("specimen:diffvit-0", "specimen:vit-0")}
    record = {
        "models": digests,
        "measured": [line],
        "versions": {"torch": "2.9", "pyautoattack": "0.2"},
        "hardware": "a CPU",
        "commit": "abc",
        "date": "today",
        "speed version": SPEED_VERSION,
    }
    assert benchmark.changed(record) == []
    assert benchmark.changed(record | {"speed version": 0}) == ["attacks"]
    record["models"] = {name: digests["specimen:diffvit-0"] for name in digests}
    assert benchmark.changed(record) == ["specimen:vit-0"]
    table = benchmark.speed_table(record)
    assert "| diffvit-0 | APGD-CE | 2/255 | 7 | pyautoattack 0.2 | 2.5 | 50.0 % and 51.0 % |" in table
    assert "torch 2.9, commit abc, today" in table


def test_no_speed_is_typed():
    """Figures of speed go out of date with every model and machine: a table is made from what was measured."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").partition("<!-- speed -->")
        text = text[0] + text[2].partition("<!-- /speed -->")[2]
        assert not re.findall(r"[^.]*\d[^.\n]* times (?:as fast|faster)[^.]*", text), page


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.split("|")]
    assert max(map(len, cells)) <= 100
    answers = "\n".join(line for line in findings_block().splitlines() if not line.startswith("<"))
    assert (
        len(re.findall(r"(?<![\w/.])[A-Za-z][\w'-]*", re.sub(r"\]\([^)]*\)", "", answers))) <= 200
    )  # 50 for each question


COUNTED = {  # what pages count, as they write it, and the count of today
    r"(\d+) bundled models": lambda: len(list((ROOT / "src/antiphase/specimens").glob("*vit-*"))),
    r"AutoAttack, (\d+) other attacks or random noise": lambda: len(ATTACKS) - 2,
    r"^\| attacks \| (\d+), AutoAttack \|": lambda: len(ATTACKS) - 2,
    r"one of (\w+) DiffCLIP variants": lambda: len([name for name in CLIPS if name != "clip"]),
    r"constants by (\w+) estimators": lambda: len(ESTIMATORS),
}
WORDS = {"three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}


@pytest.mark.parametrize("pattern", COUNTED)
def test_what_the_pages_count_is_what_there_is(pattern):
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    counts = {
        (page.name, number)
        for page, text in texts.items()
        for number in re.findall(pattern, " ".join(text.split()) if "^" not in pattern else text, re.MULTILINE)
    }
    assert counts, "no page says so any more: take it out of COUNTED"
    for page, number in counts:
        assert int(WORDS.get(number, number)) == COUNTED[pattern](), page


def test_attacks_are_listed_on_the_page_of_commands():
    text = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    listed = text.partition("Attacks: ")[2].partition(". ")[0]
    assert set(re.findall(r"`([\w-]+)`", listed)) == set(ATTACKS)


def findings_block():
    """What README says that came out."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.partition("<!-- findings -->")[2].partition("<!-- /findings -->")[0]


def test_the_findings_count_every_claim_of_the_registers():
    findings = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| claims of .*\n(?:\|.*\n)+", findings, re.MULTILINE)
    _, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    for name, total, *numbers in rows:
        assert int(total) == sum(map(int, numbers)), name
    assert [int(row[1]) for row in rows[:2]] == [len(entries(paper)) for paper in ("robustness", "diffclip")]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The folder of a reader who follows a page: small models, pictures and files under the names of the pages."""
    folder = tmp_path_factory.mktemp("reader")
    runs = folder / "runs"
    for name, build in (("clip", clip), ("diffclip", diffclip)):
        vision = {"image_size": 64, "dim": 24, "depth": 1, "num_heads": 2, "patch_size": 32}
        text = {"dim": 16, "depth": 1, "num_heads": 2}
        write_model(build(seed=0, vision=vision, text=text, embed_dim=12), runs / name)
    sizes = {"depth": 1, "dim": 16, "num_heads": 2, "num_classes": 10}
    for name, build in (("vit", vit), ("diffvit", diffvit)):
        for seed in range(3):
            model = build(8, **sizes)
            save(
                model,
                {"model": model.config.model_dump(mode="json"), "seed": seed, "data": "digits"},
                runs / f"{name}-{seed}",
            )
    shutil.copytree(runs / "vit-0", runs / "mine")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    (folder / "run").mkdir()
    sizes |= {"in_channels": 1}
    for name, build, depth in (
        ("diffvit.pt", diffvit, 1),
        ("vit.pt", vit, 1),
        ("best.pt", diffvit, 1),
        ("run/best.pt", diffvit, 4),
    ):
        torch.save(build(28, **sizes | {"depth": depth}).state_dict(), folder / name)
    for label in range(10):
        (folder / f"PHOTOS/{label}").mkdir(parents=True)
        Image.fromarray(np.full((28, 28), 20 * label, np.uint8)).save(folder / f"PHOTOS/{label}/a.png")
    Image.fromarray(np.full((64, 64, 3), 90, np.uint8)).save(folder / "desk.jpg")
    return folder


def blocks(page):
    """Yield the notes and blocks of code and commands of a page that runs, in their order."""
    text = page.read_text(encoding="utf-8")
    if re.match(r"---\nrun: true\n", text):
        return  # the site runs it when it is built
    for block in BLOCK.finditer(text):
        if not (block["note"] or "").startswith("not run: "):
            yield block


def follow(page, folder, monkeypatch, run_cli=None):
    """Do what a page says, in the order of the page; its commands too if they can be run."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(adapters, "_ADAPTERS", dict(adapters._ADAPTERS))
    name = page.relative_to(ROOT).as_posix()
    names = {"__name__": "page"}
    exec(BEFORE.get(name, ""), names)
    for block in blocks(page):
        need = re.match(r"needs: (\w+)", block["note"] or "")
        if need and getattr(needs, need[1]).args[0]:
            continue
        code = block["python"] or block["shell"]
        for longer, shorter in SMALLER:
            code = re.sub(longer, shorter, code)
        if block["title"]:  # a file to save
            (folder / block["title"]).write_text(code, encoding="utf-8")
        elif block["python"]:
            exec(compile(code, name, "exec"), names)
        elif run_cli is not None:
            for line in code.splitlines():
                _type(line, run_cli)
    return names


def _type(line, run_cli):
    words = shlex.split(re.sub(r"^.*uv run ", "", line), comments=True)
    assert words[0] == "antiphase", f"{line}: say in a comment why it is not run"
    if words[1].startswith("train") and "--out" in words:
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
    more = shlex.split(FEWER.get(words[1], "")) if "--help" not in words else []
    code, _, err = run_cli(*words[1:], *more)
    assert code == 0, f"{line}: {err}"


@pytest.mark.long
@pytest.mark.parametrize(
    "page", [page for page in RUN if any(b["python"] for b in blocks(page))], ids=lambda page: page.name
)
def test_the_python_of_a_page_runs(page, reader, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(reader, tmp_path / "reader")
    names = follow(page, folder, monkeypatch)
    assert len(names) > 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page", [page for page in RUN if any(b["shell"] for b in blocks(page))], ids=lambda page: page.name
)
def test_a_page_runs_with_its_commands(page, reader, tmp_path, monkeypatch, run_cli):
    follow(page, shutil.copytree(reader, tmp_path / "reader"), monkeypatch, run_cli)


@pages
def test_what_is_not_run_says_why(page):
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"^ *```(\w+)", text, re.MULTILINE)) <= {"python"}
    for block in BLOCK.finditer(text):
        assert not block["note"] or re.match(r"(not run: ..........|needs: \w+$)", block["note"]), block["note"]


def test_the_notebook_is_kept_without_outputs_and_installs_what_it_needs():
    path = "docs/notebooks/first.ipynb"
    cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    assert "%pip install" in "".join(code[0]["source"])
    assert f"https://colab.research.google.com/github/antiphase/antiphase/blob/main/{path}" in "".join(
        cells[0]["source"]
    )


def test_the_table_of_defences_is_made_from_what_was_measured(script):
    made = script("defence_strengths")
    record = json.loads(made.PUBLISHED.read_text(encoding="utf-8"))
    assert len(record["rows"]) == 1 + sum(map(len, made.STRENGTHS.values()))
    assert f"<!-- strengths -->\n{made.table(record)}<!-- /strengths -->" in made.PAGE.read_text(encoding="utf-8")


def test_the_strength_of_the_lowest_asr_that_keeps_accuracy_is_chosen(script):
    made = script("defence_strengths")
    rows = {"natural": {"accuracy": 0.8, "asr": 0.3}}
    for name, strengths in made.STRENGTHS.items():
        for strength, accuracy, asr in zip(strengths, (0.81, 0.795, 0.78), (0.25, 0.2, 0.1), strict=True):
            rows[f"{name}={strength:g}"] = {"accuracy": accuracy - 0.05 * (name == "free"), "asr": asr}
    best = made.chosen(rows)
    assert best.pop("free") == made.STRENGTHS["free"][0]  # none keeps it: the weakest
    assert best == {name: strengths[1] for name, strengths in made.STRENGTHS.items() if name != "free"}
