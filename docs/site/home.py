"""The home page: one claim and one picture from README's findings, and a report made when the site is built."""

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from links import ROOT

REPORT = "quickstart/report.html"
_IMAGES = 40


def home_page(readme: str) -> str:
    """Return the home page; links are as in README."""
    tagline = re.findall(r"^\*\*(.*?)\*\*$", readme, re.MULTILINE | re.DOTALL)[0].replace("\n", " ")
    findings = readme.partition("<!-- findings -->")[2].partition("<!-- /findings -->")[0]
    question, answer = re.findall(r"^- \*\*(.*?)\*\* (.*)$", findings, re.MULTILINE)[0]
    (picture,) = re.findall(r"<picture>.*</picture>", findings)
    limits = re.findall(r"^Points.*$", findings, re.MULTILINE)[0]
    return f"""---
title: antiphase
description: {tagline}
hide: [navigation, toc]
---
# {tagline}

## {question}

{answer}

{picture}

{limits}

## Try it on your model

    pip install -q uv && uv run antiphase quickstart

in a [clone](docs/install.md) makes the report below. Then [audit your own model in ten minutes](docs/first-audit.md).

<iframe class="report" title="A report of antiphase quickstart" src="{REPORT}" loading="lazy"></iframe>

Made by `antiphase quickstart --limit {_IMAGES}` when this site was built: [open it as a page]({REPORT}).
"""


@functools.cache
def quickstart_report() -> Path:
    """Run quickstart and return its report."""
    folder = Path(tempfile.mkdtemp())
    command = [sys.executable, "-m", "antiphase", "quickstart", "--limit", str(_IMAGES), "--out", str(folder), "-q"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return folder / "report.html"
