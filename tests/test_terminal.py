"""What others wrote reaches a terminal as text, never as a command to it."""

import io
import sys
import warnings

import pytest
from rich.table import Table
from rich.text import Text

from antiphase.terminal import console, prepare_streams, progress_bar, safe, say, status_bar

HOSTILE = "a\x1b[2Jb\u202ec\u2066d\x07"
SHOWN = r"a\x1b[2Jb\u202ec\u2066d\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE, SHOWN),
        ("caf\udce9 \ud800", r"caf\xe9 \ud800"),
        ("\x9b31m\r\u200f\u2028\x7f", r"\x9b31m\x0d\u200f\u2028\x7f"),
        ("two\nlines\tε λ 👩‍🚀 שלום", "two\nlines\tε λ 👩‍🚀 שלום"),
    ],
)
def test_what_a_terminal_obeys_is_escaped(text, shown):
    assert safe(text) == shown
    assert safe(shown) == shown


def test_words_and_tables_are_printed_escaped(capsys):
    table = Table(HOSTILE)
    table.add_row(f"[/b]{HOSTILE}:smile:")
    table.add_row(Text(HOSTILE))
    say(HOSTILE, 1, sep="|")
    console().print(table)
    console(err=True).print(HOSTILE)
    printed, error = capsys.readouterr()
    assert printed.startswith(f"{SHOWN}|1\n")
    assert f"[/b]{SHOWN}:smile:" in printed
    assert error == f"{SHOWN}\n"
    assert not set("\x1b\u202e\u2066\x07") & set(printed)


def test_a_progress_bar_shows_its_title_escaped(monkeypatch):
    drawn = io.StringIO()
    monkeypatch.setattr(drawn, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", drawn)
    with status_bar(f"[/b]{HOSTILE}", 2, shown=True) as (show, write):
        show(1, HOSTILE)
        write(HOSTILE)
    assert SHOWN in drawn.getvalue()
    assert all(mark not in drawn.getvalue() for mark in ("\x1b[2J", "\u202e", "\u2066", "\x07"))


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1"])
def test_an_encoding_without_a_character_shows_its_escape(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    prepare_streams()
    say("ε = 1/255 │")
    sys.stdout.flush()
    assert raw.getvalue() == b"\\u03b5 = 1/255 \\u2502\n"


def test_python_warnings_are_escaped(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    prepare_streams()
    assert SHOWN in warnings.formatwarning(UserWarning(HOSTILE), UserWarning, "file.py", 1)


def test_a_closed_output_is_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    prepare_streams()
    say("nobody reads this")
    sys.stdout.close()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_gone_in_the_end_and_lines_stay(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with status_bar("vit pgd", 4, shown=True) as (show, write):
        for done in (0, 1, 2, 3, 4, 9):
            show(done, f"ASR {done / 4:.3f}")
        write("epoch 1/1")
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


def test_without_a_terminal_a_line_says_how_far_the_work_is(monkeypatch, capsys):
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr("antiphase.terminal.time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("antiphase.terminal._last_line", {})
    with status_bar("vit pgd", 200, shown=True) as (show, _):
        show(50, "9 broken")
        show(100, "19 broken")
    assert capsys.readouterr().err == "vit pgd: 100 of 200, 19 broken, after 1 min 20 s, about 1 min 20 s left\n"
    with status_bar("vit pgd", 200, shown=False) as (show, _):
        show(200, "19 broken")
    assert capsys.readouterr().err == ""
