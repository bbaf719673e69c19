"""A copy of the example study under a name of the user's."""

from importlib.resources import files
from pathlib import Path

from antiphase.errors import UserError
from antiphase.files import write_text


def write_study(name: str) -> Path:
    """Write ``NAME.py`` into the current folder and return its path.

    Raises:
        UserError: the file exists.
    """
    path = Path(f"{name}.py")
    if path.exists():
        raise UserError(f"{path}: exists; give another name")
    text = files("antiphase.studies").joinpath("example.py").read_text(encoding="utf-8")
    text = text.replace("NAME.py", f"{name}.py").replace('Study("example"', f'Study("{name}"')
    write_text(path, text)
    return path
