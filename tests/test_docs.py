"""The documents: links lead somewhere, commands and options exist, the README is short and agrees with the findings."""

import doctest
import importlib.util
import json
import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import typer.main
from PIL import Image

from antiphase.cli.app import app
from antiphase.models import clip, diffclip, write_model
from antiphase.sensitivity import adapters

SMALLER = {  # what the pages do with more images, in tests
    "limit=200": "limit=4", "limit=50": "limit=4", "limit=20": "limit=8", "limit=8": "limit=8", "limit=2": "limit=2",
    "range(500)": "range(20)", ":500]": ":20]", "range(30)": "range(2)", "range(20)": "range(8)",
}  # fmt: skip
VERDICTS = ("holds", "contradicted", "absent", "undecided")
ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@pages
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pages
def test_commands_and_their_options_exist(page):
    for line in re.findall(
        r"^    (?:.* -m )?antiphase (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE
    ):
        command = typer.main.get_command(app)
        words = shlex.split(line, comments=True)
        while hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


def test_every_command_has_its_line_in_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in typer.main.get_command(app).commands:
        assert f"| `antiphase {name}` |" in text


def test_links_of_the_repository_become_links_of_the_site():
    spec = importlib.util.spec_from_file_location("links", ROOT / "docs/site/links.py")
    links = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(links)
    assert doctest.testmod(links).failed == 0
    for uri, before, after in (
        ("index.md", "[a](docs/data.md#images-with-labels)", "[a](data.md#images-with-labels)"),
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


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.split("|")]
    assert max(map(len, cells)) <= 100


def test_the_readme_counts_claims_as_the_findings_do():
    findings = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    counts = {
        verdict: findings.count(f"| **{verdict}**") - findings.count(f"| **{verdict}** (too few")
        for verdict in VERDICTS
    }
    told, found = re.findall(r"[^.\n]*, [^.,]* claims? tested: [^.]*\.", findings), Counter()
    for verdicts in told:
        words = re.findall(r"(\d+) (?:is |are |claims? a difference that is )?(\w+)", verdicts.split(":")[1])
        found.update({re.sub(r"^hold$", "holds", verdict): int(count) for count, verdict in words})
    assert found == {verdict: count for verdict, count in counts.items() if count}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert told
    assert all(each.strip() in readme for each in told)


def test_the_python_of_the_readme_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(code.replace("50", "4"), names)
    assert len(names["result"].success) == 4
    assert capsys.readouterr().out.startswith(str(names["result"].asr))


@pytest.mark.parametrize(
    "page",
    [
        "first-audit", "own-attention", "own-attack", "resume",
        "concepts/alignment", "concepts/lipschitz", "concepts/intervals",
    ],
)  # fmt: skip
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(adapters, "_ADAPTERS", dict(adapters._ADAPTERS))
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    names = {"__name__": "page"}
    for title, code in re.findall(r'^```python(?: title="(.*)")?\n(.*?)^```', text, re.MULTILINE | re.DOTALL):
        if title:  # a file to save
            (tmp_path / title).write_text(code, encoding="utf-8")
            continue
        code = re.sub(r"\blimit=\d+|range\(\d\d+\)|:500\]", lambda found: SMALLER[found.group()], code)
        exec(compile(code, page, "exec"), names)
    assert len(names) > 3


def test_the_notebook_is_kept_without_outputs_and_installs_what_it_needs():
    path = "docs/notebooks/first.ipynb"
    cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    assert "%pip install" in "".join(code[0]["source"])
    assert f"https://colab.research.google.com/github/antiphase/antiphase/blob/main/{path}" in "".join(
        cells[0]["source"]
    )


def test_the_commands_as_functions_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, build in (("clip", clip), ("diffclip", diffclip)):
        vision = {"image_size": 32, "dim": 24, "depth": 1, "num_heads": 2, "patch_size": 16}
        text = {"dim": 16, "depth": 1, "num_heads": 2}
        write_model(build(seed=0, vision=vision, text=text, embed_dim=12), tmp_path / "runs" / name)
    Image.fromarray(np.full((32, 32, 3), 90, np.uint8)).save("desk.jpg")
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page.partition("## Attacks\n")[0], re.DOTALL)
    code = re.sub(r"limit=\d+", "limit=4", "".join(blocks)).replace("samples=1000", "samples=20")
    code = code.replace("epochs=5", "epochs=1")
    names = {}
    exec(code.replace("range(20)", "range(4)").replace("steps=20", "steps=2"), names)
    assert names["result"].frame().shape[0] == 2 * 2 * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["desk.jpg", "my-audit", "runs"]
