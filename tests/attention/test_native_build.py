"""Building the kernels: once, whole or not at all, and what is said where they cannot be had."""

import logging
import stat
import sys

import pytest
import torch

from antiphase.attention import differential_attention
from antiphase.attention.backends import native
from tests import needs
from tests.processes import together


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Return a function that puts a shell script in the compiler's place; it counts its calls in ``calls``."""

    def put(script):
        path = tmp_path / "cxx"
        path.write_text(f'#!/bin/sh\necho >> "{tmp_path}/calls"\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", str(path))
        return tmp_path / "calls"

    return put


@pytest.fixture
def asked_anew():
    native.kernels.cache_clear()
    yield
    native.kernels.cache_clear()


# the script that stands in for a compiler writes what follows -o
_WRITES = 'while [ "$1" != -o ]; do shift; done; echo built > "$2"'


def test_what_is_there_is_not_built_again(tmp_path, compiler):
    calls = compiler(_WRITES)
    first, second = (native.library(tmp_path / "kept") for _ in range(2))
    assert first == second
    assert first.read_text() == "built\n"
    assert len(calls.read_text()) == 1


def test_another_torch_or_source_is_another_file(tmp_path, compiler, monkeypatch):
    compiler(_WRITES)
    names = [native.library(tmp_path)]
    monkeypatch.setattr(torch, "__version__", "9.9")
    names.append(native.library(tmp_path))
    changed = tmp_path / "kernels.cpp"
    changed.write_text("// another")
    monkeypatch.setattr(native, "_SOURCES", [changed])
    names.append(native.library(tmp_path))
    monkeypatch.setattr(native, "_CPU", tmp_path / "cpuinfo")
    for flags in ("avx512f", "avx512f avx512_bf16"):  # a home that several kinds of machine share
        native._CPU.write_text(f"flags: {flags}")
        names.append(native.library(tmp_path))
    assert len(set(names)) == 4
    assert names[2] in names[3:]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'a.cpp:1: error: no such thing' >&2; echo 'more error' >&2; exit 1", "failed: a.cpp:1: error: no such"),
        ("exit 3", "failed: no message"),
        (r"printf 'error: \344\n' >&2; exit 1", "failed: error: \ufffd"),
        (f"{_WRITES}; kill -9 $$", "failed: no message"),
    ],
)
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path, compiler, script, message):
    compiler(script)
    with pytest.raises(native.CannotBuildError, match=message):
        native.library(tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path, compiler):
    compiler(_WRITES)
    (tmp_path / "file").write_text("")
    with pytest.raises(native.CannotBuildError, match=r"cannot write to .*file/kept .*; XDG_CACHE_HOME may name"):
        native.library(tmp_path / "file" / "kept")


def test_no_home_is_said(tmp_path, compiler, monkeypatch):
    compiler(_WRITES)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(native.Path, "home", homeless)
    with pytest.raises(native.CannotBuildError, match="no home directory; XDG_CACHE_HOME may name a folder"):
        native.library()


def test_the_users_cache_is_where_they_are_kept(tmp_path, compiler, monkeypatch):
    compiler(_WRITES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert native.library().parent == tmp_path / "cache" / "antiphase" / "native"


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (lambda m: m.setenv("ANTIPHASE_NATIVE", "0"), "ANTIPHASE_NATIVE=0"),
        (lambda m: m.setattr(sys, "platform", "darwin"), "this is darwin"),
        (lambda m: m.setattr(native.platform, "machine", lambda: "aarch64"), "on aarch64"),
        (lambda m: m.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2"), "torch sees AVX2"),
        (lambda m: (m.setenv("PATH", ""), m.delenv("CXX", raising=False)), "no C++ compiler"),
    ],
)
def test_where_there_are_none_others_answer_and_the_log_says_why(monkeypatch, caplog, asked_anew, inputs, patch, why):
    monkeypatch.setattr(native.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    patch(monkeypatch)
    with caplog.at_level(logging.INFO, "antiphase"):
        assert native.kernels() is None
    assert len(caplog.messages) == 1
    assert why in caplog.messages[0]
    assert differential_attention(*inputs, 0.8).shape == (1, 2, 70, 6)
    with pytest.raises(ValueError, match=r"backend 'native' for torch\.float32"):
        differential_attention(*inputs, 0.8, backend="native")


@pytest.fixture
def inputs():
    return [torch.ones(1, 2, 70, 4)] * 4 + [torch.ones(1, 2, 70, 6)]


@needs.native_kernels
# one does not build, one builds what cannot be loaded
@pytest.mark.parametrize("script", ["echo 'error: no' >&2; exit 1", _WRITES])
def test_a_compiler_that_fails_is_a_warning_and_others_answer(
    tmp_path, monkeypatch, compiler, asked_anew, inputs, script
):
    calls = compiler(script)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.warns(RuntimeWarning, match="no native kernels for attention, which is slower without"):
        out = differential_attention(*inputs, 0.8)
    torch.testing.assert_close(out, torch.full((1, 2, 70, 6), 0.2))
    differential_attention(*inputs, 0.8)
    assert len(calls.read_text()) == 1


@pytest.mark.thorough
@needs.native_kernels
def test_processes_that_build_at_once_do_not_meet(tmp_path, compiler):
    built = native.library()
    compiler(f'while [ "$1" != -o ]; do shift; done; sleep 0.5; cp "{built}" "$2"')
    program = (
        "import warnings; warnings.simplefilter('error')\n"
        "from antiphase.attention.backends.native import kernels; assert kernels()"
    )
    together(2, "-c", program, XDG_CACHE_HOME=str(tmp_path))
    assert len(list((tmp_path / "antiphase" / "native").iterdir())) == 1
