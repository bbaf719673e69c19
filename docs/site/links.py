"""Pages are read on GitHub and on the site: links between files of the repository, as the site has them."""

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
_GITHUB = "https://github.com/antiphase/antiphase"
_MARKDOWN = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?(?:\s[^)]*)?\))")
_HTML = re.compile(r"""((?:src|srcset|href)=")([^"#:]+)((?:#[^"]*)?")""")
_CODE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)\s*?$|^(?: {4}).*?$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_MOVED = {
    "README.md": "overview.md",
    "docs/notebooks/first.ipynb": "notebook.md",
    "docs/README.md": "index.md",
    "docs": "index.md",
    "dev": "dev/README.md",
}
"""Files and folders of the repository that have another place in the site."""


def of_repository(uri: str) -> str:
    """Return where a page of the site is in the repository.

    >>> of_repository("overview.md"), of_repository("dev/data.md"), of_repository("how-to/clip.md")
    ('README.md', 'dev/data.md', 'docs/how-to/clip.md')
    """
    if uri == "index.md":  # made from README
        return "README.md"
    for path, place in _MOVED.items():
        if place == uri and posixpath.splitext(path)[1]:  # a file, not the folder it stands for
            return path
    return uri if uri.startswith("dev/") else f"docs/{uri}"


def of_site(path: str) -> str | None:
    """Return the place in the site of a file of the repository, None if it has none."""
    if path in _MOVED:
        return _MOVED[path]
    if path.startswith("dev/") and path.endswith(".md"):
        return path
    return path.removeprefix("docs/") if path.startswith("docs/") and Path(ROOT, path).is_file() else None


def moved(text: str, uri: str) -> str:
    """Return a page's text with its links as the site needs them."""
    place = posixpath.dirname(of_repository(uri))

    def link(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if re.match(r"[a-z]+:", target):
            return match.group()
        path = posixpath.normpath(posixpath.join(place, target))
        if (inside := of_site(path)) is not None:
            return before + os.path.relpath(inside, posixpath.dirname(uri) or ".") + after
        if (ROOT / path).exists():
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"{before}{_GITHUB}/{kind}/main/{path}{after}"
        return match.group()

    return _outside_code(text, lambda part: _HTML.sub(link, _MARKDOWN.sub(link, part)))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if index % 2 else change(part) for index, part in enumerate(_CODE.split(text)))
