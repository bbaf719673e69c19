"""Docstrings as mkdocstrings reads them: Sphinx's roles become links, doctests become blocks of code."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):`(~?)([^`]+)`")
_DOCTEST = re.compile(r"^( *)>>> .*?(?=\n *\n|\Z)", re.MULTILINE | re.DOTALL)


def linked(text: str) -> str:
    """Return text in which each role is a link where the object has a place in the reference, and code elsewhere.

    >>> linked("see :func:`~antiphase.attacks.pgd`")
    'see <autoref optional identifier="antiphase.attacks.pgd"><code>pgd</code></autoref>'
    """

    def link(match: re.Match[str]) -> str:
        short, target = match.groups()
        shown = target.rpartition(".")[2] if short else target
        return f'<autoref optional identifier="{target}"><code>{shown}</code></autoref>'

    return _ROLE.sub(link, text)


def fenced(text: str) -> str:
    """Return text in which each doctest is a fenced block of code."""
    return _DOCTEST.sub(lambda match: f"{match[1]}```pycon\n{match.group()}\n{match[1]}```", text)


class Docstrings(griffe.Extension):
    """Change every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(linked(obj.docstring.value))
