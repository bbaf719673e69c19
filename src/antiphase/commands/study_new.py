"""What ``antiphase study new`` does: a copy of the example, under a name of the user's."""

import re
from importlib.resources import files
from pathlib import Path

from antiphase.errors import UserError
from antiphase.files import write_text


def write_study(name: str) -> Path:
    """Write ``NAME.py`` into the current folder and return its path.

    Raises:
        UserError: the name is not one for a file and a study, or the file exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise UserError(f"name {name!r}: expected small letters, digits and '-', such as my-study")
    path = Path(f"{name}.py")
    if path.exists():
        raise UserError(f"{path}: exists; give another name")
    text = files("antiphase.studies").joinpath("example.py").read_text(encoding="utf-8")
    text = text.replace("NAME.py", f"{name}.py").replace('Study("example"', f'Study("{name}"')
    write_text(path, text)
    return path
