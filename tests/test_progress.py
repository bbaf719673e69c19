"""Progress bars: on a terminal, and nowhere else."""

import io
import sys

import pytest

from antiphase.terminal import progress_bar, status_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_gone_in_the_end_and_lines_stay(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with status_bar("vit pgd", 4, shown=True) as bar:
        for done in (0, 1, 2, 3, 4, 9):
            bar.show(done, f"ASR {done / 4:.3f}")
        bar.say("epoch 1/1")
    drawn = sys.stderr.getvalue()
    assert "vit pgd" in drawn
    assert "epoch 1/1\n" in drawn
    assert "0/4" in drawn  # at most ten times a second
    assert drawn.rpartition("\r")[2].strip() == ""  # the line is cleared


def test_in_a_notebook_a_bar_is_drawn(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with progress_bar("maps", 3, shown=True) as advance:
        advance(3)
    assert "maps" in capsys.readouterr().err


@pytest.mark.parametrize("shown", [True, False])
def test_elsewhere_nothing_is_written_but_to_a_terminal(shown, capsys):
    with progress_bar("maps", 3, shown) as advance:
        advance(3)
    assert "".join(capsys.readouterr()) == ""
