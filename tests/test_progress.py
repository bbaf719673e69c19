"""Progress bars: on a terminal, and in a notebook."""

import pytest
from rich.console import Console

from antiphase.progress import progress_bar, status_bar, stderr_console


@pytest.fixture
def in_notebook(monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)


def test_in_a_notebook_a_bar_is_text_that_is_gone_in_the_end(in_notebook, capsys):
    assert Console().is_jupyter
    assert not stderr_console().is_jupyter
    with status_bar("vit pgd", 4, shown=True) as bar:
        for done in range(5):
            bar.show(done, f"ASR {done / 4:.3f}")
        bar.say("epoch 1/1")
    out, err = capsys.readouterr()
    assert out == ""  # what rich would fill with an empty output
    assert "vit pgd" in err
    assert "epoch 1/1\n" in err
    assert "0/4" in err  # at most ten times a second
    assert err.rpartition("\r")[2].strip() == ""  # the line is cleared


@pytest.mark.parametrize("shown", [True, False])
def test_elsewhere_nothing_is_written_but_to_a_terminal(shown, capsys):
    with progress_bar("maps", 3, shown) as advance:
        advance(3)
    assert "".join(capsys.readouterr()) == ""
