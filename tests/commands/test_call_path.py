"""How many of our own functions an image batch passes through on its way to the model."""

import sys
from pathlib import Path

import antiphase
from antiphase.models.vit import VisionTransformer

HOME = str(Path(antiphase.__file__).parent)
MOST = 10


def test_few_functions_lie_between_the_command_and_the_forward_pass_of_the_model(tmp_path, run_cli, monkeypatch):
    paths, plain = [], VisionTransformer.forward

    def forward(self, x):
        if x.requires_grad:  # a step of PGD, not a verdict
            paths.append(_own_frames())
        return plain(self, x)

    monkeypatch.setattr(VisionTransformer, "forward", forward)
    options = ["--limit", 2, "--eps", "8/255", "--steps", 2, "--sense-limit", 0, "--quiet"]
    code, _, errors = run_cli("audit", "specimen:diffvit-0", *options, "--out", tmp_path / "audit")
    assert (code, errors) == (0, "")
    assert paths[0][0] == "__init__.main"
    assert paths[0][-1].startswith("oracle.")
    assert len(paths[0]) <= MOST, " → ".join(paths[0])


def _own_frames() -> list[str]:
    """Return the functions of the package on the stack, outermost first."""
    names, frame = [], sys._getframe()
    while frame is not None:
        if (file := frame.f_code.co_filename).startswith(HOME):
            names.append(f"{Path(file).stem}.{frame.f_code.co_name}")
        frame = frame.f_back
    return names[::-1]
