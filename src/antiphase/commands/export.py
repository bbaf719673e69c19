"""What ``antiphase export`` does once its options are read. Imports are local, so that --help is quick."""

from pathlib import Path

from antiphase.errors import UserError


def run_export(spec: str, out: Path | None, layout: str, repository: str | None, *, private: bool) -> None:
    """Load a model and write it, push it, or both."""
    if out is None and repository is None:
        raise UserError("nowhere to write to: give --out DIRECTORY, --push USER/NAME, or both")
    if layout not in ("antiphase", "released"):
        raise UserError(f"layout {layout!r}: expected antiphase or released")
    if repository is None and not private:
        raise UserError("--public: is of a new repository; give --push USER/NAME or leave it out")
    from antiphase.models import load_model, push, write_model

    model = load_model(spec)
    if out is not None:
        print(write_model(model, out, layout=layout))
    if repository is not None:
        print(push(model, repository, private=private))
