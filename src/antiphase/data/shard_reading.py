"""Read one shard as a stream of raw samples with webdataset; unusable samples are reported and skipped."""

import contextlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from webdataset.gopen import gopen, gopen_schemes
from webdataset.tariterators import group_by_keys, tar_file_expander

from antiphase.data.shard_files import CAPTION_SUFFIX, COMPRESSED, IMAGE_SUFFIXES, Shard, split_dotted

_READ = 1 << 20  # bytes
_BLOCK = 512  # of a tar file, bytes


@dataclass(frozen=True, slots=True)
class RawSample:
    """An encoded image with its caption.

    Attributes:
        shard: name of the shard.
        key: common prefix of the sample's members.
        suffix: suffix of the image file, without the dot.
        image: bytes of the image file.
        caption: stripped text, not empty.
    """

    shard: str
    key: str
    suffix: str
    image: bytes
    caption: str


def read_shard(shard: Shard, report: Callable[[str], None]) -> Iterator[RawSample]:
    """Yield a shard's samples in order.

    Samples without an image or a caption are skipped, as is everything after damaged data; no exception is raised.

    Args:
        shard: shard to read.
        report: called with one line for each thing that is skipped.
    """
    damage: list[str] = []

    def note(error: Exception) -> bool:
        reason = _reason(error)
        if "duplicate file name" in reason:
            report(f"{shard.name}: {reason.partition(':')[0]} is in it twice, the first is taken")
        else:
            damage.append(reason)
        return True

    try:
        stream = _TarStream(gopen(_address(shard.place)))
    except Exception as error:  # openers of URLs may raise anything
        report(f"{shard.name} cannot be opened ({_reason(error)})")
        return
    last = lacking = None
    try:
        files = tar_file_expander([{"url": shard.name, "stream": stream}], handler=note)
        for key, members in _samples(group_by_keys(files, handler=note)):
            suffix = next((suffix for suffix in IMAGE_SUFFIXES if suffix in members), None)
            caption = members.get(CAPTION_SUFFIX, b"").decode(errors="replace").strip()
            if lacking:
                report(lacking)
            lacking = None
            if suffix and caption:
                last = key
                yield RawSample(shard.name, key, suffix, members[suffix], caption)
            else:
                lacks = [] if suffix else [f"image (.{', .'.join(IMAGE_SUFFIXES)})"]
                lacks += [] if caption else [f"caption (.{CAPTION_SUFFIX})"]
                lacking = f"{shard.name}: {key} has no {' and no '.join(lacks)}"
        if not damage or not stream.started:  # a command's exit code is more informative than "empty file"
            stream.finish()
    except Exception as error:
        note(error)
    finally:
        with contextlib.suppress(Exception):  # an interrupted command may fail
            stream.close()
    if damage:
        reason = damage[0] if stream.started else damage[-1]
        where = f"after {last}" if last else "from its start"
        report(f"{shard.name} is cut short or damaged {where} ({reason}): the rest of it is left out")
    elif lacking:  # in a damaged shard this is the truncated sample
        report(lacking)


def _samples(groups: Iterable[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the members of each sample."""
    for group in groups:
        members = {suffix: content for suffix, content in group.items() if not suffix.startswith("__")}
        for key, own in split_dotted(group["__key__"], members).items():
            yield key.encode(errors="surrogateescape").decode(errors="replace"), own


class _TarStream:
    """A byte stream that checks the end of a tar file: zero blocks, followed by nothing.

    Python's tarfile takes a truncated file or an invalid header for the end.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._first = self._last = self._ready = b""
        self._place = 0

    @property
    def started(self) -> bool:
        return bool(self._first)

    def read(self, size: int) -> bytes:
        if len(self._ready) - self._place < size:  # large reads, since each one releases Python's lock
            self._ready = self._ready[self._place :] + self._stream.read(_READ)
            self._place = 0
        data = self._ready[self._place : self._place + size]
        self._place += len(data)
        self._first = self._first or data[:8]
        self._last = (self._last + data[-_BLOCK:])[-_BLOCK:]
        return data

    def finish(self) -> None:
        """Read the rest; OSError if the tar file did not end properly."""
        plain = not self._first.startswith(COMPRESSED)
        while rest := self.read(_READ):
            if plain and rest.strip(b"\0"):
                raise OSError("a header is damaged")
        if plain and self._last.strip(b"\0"):
            raise OSError("it has no end mark")
        self._stream.close()  # raises if the command failed

    def close(self) -> None:
        self._stream.close()


def _address(place: str) -> str:
    """Return a URL that webdataset can open; s3 URLs are read through the AWS command line.

    >>> _address("s3://bucket/00000.tar"), _address("gs://bucket/00000.tar")
    ('pipe:aws s3 cp s3://bucket/00000.tar -', 'gs://bucket/00000.tar')
    """
    if place.startswith("s3://") and "s3" not in gopen_schemes:
        return f"pipe:aws s3 cp {shlex.quote(place)} -"
    return place


def _reason(error: Exception) -> str:
    """Return an error's message without the arguments that webdataset appends."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error.args[0] if error.args else "").partition(" @ ")[0].split())
    command = re.match(r"\(+\[?['\"]([^'\" ]+).*: exit (-?\d+) ", text)  # what webdataset's Pipe raises
    if command:
        return f"{command[1]} ended with exit code {command[2]}"
    return text or type(error).__name__
