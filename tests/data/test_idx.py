import gzip
import struct
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor

from antiphase.data.small_sets import read_idx
from antiphase.errors import UserError


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(1, 7), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_reads_what_was_written_and_agrees_with_torchvision(tmp_path, write_idx, shape, seed):
    array = np.random.default_rng(seed).integers(0, 256, size=shape, dtype=np.uint8)
    path = tmp_path / "a.gz"
    write_idx(path, array)
    assert np.array_equal(read_idx(path), array)
    (tmp_path / "a").write_bytes(gzip.decompress(path.read_bytes()))
    assert np.array_equal(read_idx(path), read_sn3_pascalvincent_tensor(str(tmp_path / "a")))


def test_an_absent_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"absent\.gz is no complete IDX file"):
        read_idx(tmp_path / "absent.gz")


def plain(*shape, kind=8, body=None):
    body = bytes(int(np.prod(shape))) if body is None else body
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + body


# the time of packing would be part of the tests' names, which xdist's workers have to agree on
compress = partial(gzip.compress, mtime=0)
WHOLE = compress(plain(5, 7, body=bytes(range(35))))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "unsigned bytes"),
        (b"plain text", "Not a gzipped file"),
        (WHOLE[:-9], "ended before"),
        (WHOLE[:25] + bytes([WHOLE[25] ^ 255]) + WHOLE[26:], "no complete"),
        (compress(plain(5, 7, kind=13)), "unsigned bytes"),
        (compress(b"\0\0\x08"), "index out of range"),
        (compress(plain(5, 7)[:9]), "no complete"),
        (compress(plain(5, 7)[:-1]), "no complete"),
        (compress(plain(5, 7) + b"\0"), "no complete"),
        (compress(b"\0\0\x08\0"), "no complete"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it(tmp_path, content, reason):
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as caught:
        read_idx(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
