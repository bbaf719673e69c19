"""Image–caption pairs in tar files of img2dataset's layout, as a stream that can be resumed at any step."""

import contextlib
import glob
import itertools
import os
import re
import shlex
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, final
from urllib.parse import urlparse
from urllib.request import url2pathname

import torch
from jaxtyping import UInt8
from torch import Tensor
from webdataset.gopen import gopen, gopen_schemes
from webdataset.shardlists import expand_urls
from webdataset.tariterators import group_by_keys, tar_file_expander

from antiphase.data.archives import CAPTION_SUFFIX, IMAGE_SUFFIXES, TAR_BLOCK, members_by_key, split_dotted
from antiphase.data.decoding import decode_whole, in_threads
from antiphase.data.folders import data_root
from antiphase.data.images import still_there
from antiphase.data.pairs import PairBatch
from antiphase.errors import UserError
from antiphase.files import digest, write_json
from antiphase.progress import progress_bar
from antiphase.reading import parse_json, read_json
from antiphase.streams import generator, key

CC3M, CC12M = "shards:cc3m/{00000..00331}.tar", "shards:cc12m/{00000..01242}.tar"
"""Conceptual Captions, the training sets of the DiffCLIP paper: shards of 10,000 links each, in the data folder."""

TITLES = {CC3M: "CC3M", CC12M: "CC12M"}
"""The names of these sources in the paper."""

# page of the links, columns of the file, which has no header line
_LINKS = {
    CC3M: ("https://ai.google.com/research/ConceptualCaptions/download", r"caption\turl"),
    CC12M: ("https://storage.googleapis.com/conceptual_12m/cc12m.tsv", r"url\tcaption"),
}
BUFFER = 1000  # samples
_READ_AHEAD = 4  # steps
_LANES = (8, 4, 2, 1)
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")  # first bytes of gzip, bzip2, xz
_READ_BYTES = 1 << 20


class Shard(NamedTuple):
    """One tar file."""

    name: str  # its base name, with as many parent folders as needed to be unique
    place: str  # its path, or a URL that webdataset opens
    local: bool  # whether it is a path


class RawSample(NamedTuple):
    """An encoded image with its caption: shard, common prefix of its members, suffix of the image, bytes, text."""

    shard: str
    key: str
    suffix: str
    image: bytes
    caption: str


class _StoppedError(Exception):
    """The consumer has finished."""


@final
@dataclass(frozen=True)
class ShardStream:
    """Pairs from tar files in img2dataset's layout: KEY.jpg, .png, .webp or .jpeg, KEY.txt, optionally KEY.json.

    The shards are distributed over ``lanes``. Every batch takes the same number of samples from each lane, and the
    process of rank r reads the lanes r, r + world, …, so that a batch does not depend on the number of processes.
    Within a lane the shards are permuted and samples pass through a shuffle buffer, both keyed by (seed, epoch, lane,
    pass); a lane that ends before the epoch starts again. An epoch has ``samples // batch_size`` steps: if lanes have
    different sizes, it omits a few samples of the longer ones and repeats some of the shorter ones.

    Sources: img2dataset (https://github.com/rom1504/img2dataset) for the layout; webdataset to read it.

    Attributes:
        samples: samples per epoch.
        lanes: number of lanes, at most the number of shards; affects the batches.
        buffer: size of each lane's shuffle buffer, in samples; affects the batches.
    """

    name: str
    shards: tuple[Shard, ...]
    samples: int
    lanes: int
    buffer: int = BUFFER

    def __post_init__(self) -> None:
        for label, value in (("samples", self.samples), ("buffer", self.buffer)):
            if value < 1:
                raise UserError(f"{self.name}: {label} {value}: expected an integer of at least 1")
        if not 1 <= self.lanes <= len(self.shards):
            raise UserError(f"{self.name}: lanes {self.lanes}: expected 1 to {len(self.shards)}, its shards")

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of whole batches per epoch."""
        if not 1 <= batch_size <= self.samples:
            expected = f"expected 1 to {self.samples}, the samples of {self.name}"
            raise UserError(f"batch size {batch_size}: {expected}")
        if batch_size % self.lanes:
            expected = f"expected a multiple of {self.lanes}, the lanes of {self.name}"
            fix = f"use {max(batch_size // self.lanes, 1) * self.lanes}"
            fix += f", or --lanes {_divisor(batch_size, self.lanes)}"
            raise UserError(f"batch size {batch_size}: {expected}: {fix}")
        return self.samples // batch_size

    def batches(
        self, batch_size: int, *, seed: int, epoch: int, first: int = 0, rank: int = 0, world: int = 1
    ) -> Iterator[PairBatch]:
        """Yield this process's share of each batch, see :class:`~antiphase.data.pairs.PairSource`.

        Steps before ``first`` are read but not decoded. ``bad`` lists broken images, each of which makes the batch
        smaller by one, and unusable entries of the shards, which are replaced by the next sample.
        """
        steps = self.steps_per_epoch(batch_size)
        if self.lanes % world:
            lanes = f"a multiple of {world} that divides the batch size {batch_size} and is at most"
            fix = f"use {_divisor(self.lanes, world)} processes, or --lanes with {lanes} {len(self.shards)}"
            fix += ", the number of shards"
            raise UserError(f"{self.name}: {world} processes cannot share {self.lanes} lanes evenly: {fix}")
        numbers = range(rank, self.lanes, world)
        return self._batches(numbers, batch_size, range(min(first, steps), steps), seed, epoch)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the shards' names and sizes (or URLs), samples, lanes and buffer."""
        with still_there(self.name):
            lines = [
                f"{Path(shard.place).stat().st_size} {shard.name}" if shard.local else shard.place
                for shard in self.shards
            ]
        return digest("shards", f"{self.samples} {self.lanes} {self.buffer}", *lines)

    def _batches(
        self, numbers: range, batch_size: int, steps: range, seed: int, epoch: int
    ) -> Iterator[PairBatch]:
        size = batch_size // self.lanes
        bad_of_steps: deque[list[str]] = deque()

        def samples() -> Iterator[RawSample]:
            with contextlib.closing(self._read_ahead(numbers, size, steps, seed, epoch)) as chunks:
                for chunk, bad in chunks:
                    bad_of_steps.append(bad)
                    yield from chunk

        decoded = in_threads(_decoded, samples(), ahead=2 * size * len(numbers))
        while outcomes := list(itertools.islice(decoded, size * len(numbers))):
            good = [(sample, pixels) for sample, pixels in outcomes if isinstance(pixels, Tensor)]
            bad = bad_of_steps.popleft() + [line for _, line in outcomes if isinstance(line, str)]
            ids = [key("shard", sample.shard, sample.key) for sample, _ in good]
            yield PairBatch(
                torch.tensor(ids, dtype=torch.int64),
                [pixels for _, pixels in good],
                [(sample.caption,) for sample, _ in good],
                batch_size,
                tuple(bad),
            )

    def _read_ahead(
        self, numbers: range, size: int, steps: range, seed: int, epoch: int
    ) -> Generator[tuple[list[RawSample], list[str]], None, None]:
        """Yield samples and unusable entries of each step, lane by lane, while one thread reads the next few steps."""
        stop = threading.Event()
        bad: list[str] = []
        lanes = [self._lane(number, seed, epoch, bad, stop) for number in numbers]
        pool = ThreadPoolExecutor(1)

        def read(step: int) -> tuple[list[RawSample], list[str]]:
            if step == steps.start:
                for lane in lanes:
                    deque(itertools.islice(lane, size * step), maxlen=0)
                bad.clear()
            chunk = [sample for lane in lanes for sample in itertools.islice(lane, size)]
            lines = bad.copy()
            bad.clear()
            return chunk, lines

        try:
            waiting = deque(pool.submit(read, step) for step in steps[:_READ_AHEAD])
            for step in steps:
                yield waiting.popleft().result()
                if step + _READ_AHEAD in steps:
                    waiting.append(pool.submit(read, step + _READ_AHEAD))
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            for lane in lanes:
                lane.close()

    def _lane(
        self, number: int, seed: int, epoch: int, bad: list[str], stop: threading.Event
    ) -> Generator[RawSample, None, None]:
        """Yield the samples of repeated passes over a lane's shards, each in its own order, until ``stop`` is set."""
        shards = self.shards[number :: self.lanes]

        def raw(order: Sequence[int]) -> Iterator[RawSample]:
            for row in order:
                for sample in read_shard(shards[row], bad.append):
                    if stop.is_set():
                        raise _StoppedError
                    yield sample

        for turn in itertools.count():
            keys = (number, epoch, turn)
            order = torch.randperm(len(shards), generator=generator(seed, "shards", *keys)).tolist()
            empty = True
            for sample in shuffled(raw(order), self.buffer, generator(seed, "shard buffer", *keys)):
                empty = False
                yield sample
            if empty:
                reason = f"the first is {shards[0].name}" + (f"; {bad[-1]}" if bad else "")
                fault = f"lane {number} has no usable sample in its {len(shards)} shards, {reason}"
                raise UserError(f"{self.name}: {fault}: repair or remove these shards, or use fewer lanes")


def shuffled(samples: Iterator[RawSample], buffer: int, random: torch.Generator) -> Iterator[RawSample]:
    """Shuffle the samples with a buffer of the given size."""
    held: list[RawSample] = []
    for sample in samples:
        if len(held) < buffer:
            held.append(sample)
            continue
        place = int(torch.randint(buffer, (1,), generator=random))
        yield held[place]
        held[place] = sample
    for place in torch.randperm(len(held), generator=random).tolist():
        yield held[place]


def open_shards(
    pattern: str,
    *,
    samples: int | None = None,
    lanes: int | None = None,
    buffer: int = BUFFER,
    root: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> ShardStream:
    """Open a stream of the shards of :func:`find_shards`.

    If not given, ``samples`` per epoch are those of :func:`count_samples`, and ``lanes`` the largest of 1, 2, 4 and 8
    that is at most the number of shards. ``progress`` shows a bar on stderr while samples are counted.
    """
    name, shards = f"shards:{pattern}", find_shards(pattern, data_root(root))
    if samples is None:
        samples = count_samples(name, shards, data_root(root), progress=progress)
    if lanes is None:
        lanes = next(count for count in _LANES if count <= len(shards))
    return ShardStream(name, shards, samples, lanes, buffer)


def _decoded(sample: RawSample) -> tuple[RawSample, UInt8[Tensor, "3 height width"] | str]:
    """Return the sample with its pixels, or with the line that says why it has none."""
    file = f"{sample.key}.{sample.suffix}"
    try:
        return sample, decode_whole(sample.image, file)
    except UserError as error:
        reason = str(error.__cause__).partition(" <_io")[0]  # Pillow names the address of the bytes
        return sample, f"{sample.shard}: {file} cannot be read as an image ({' '.join(reason.split())})"


def _divisor(whole: int, most: int) -> int:
    """Return the largest divisor of ``whole`` that is at most ``most``."""
    return next(part for part in range(min(whole, most), 0, -1) if whole % part == 0)


def read_shard(shard: Shard, report: Callable[[str], None]) -> Iterator[RawSample]:
    """Yield a shard's usable samples up to damaged data; ``report`` gets one line for each thing that is skipped."""
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
        groups = group_by_keys(files, handler=note)
        for name, members in itertools.chain.from_iterable(map(_samples, groups)):
            suffix = next((suffix for suffix in IMAGE_SUFFIXES if suffix in members), None)
            caption = members.get(CAPTION_SUFFIX, b"").decode(errors="replace").strip()
            if lacking:
                report(lacking)
            lacking = None
            if suffix and caption:
                last = name
                yield RawSample(shard.name, name, suffix, members[suffix], caption)
            else:
                lacks = [] if suffix else [f"image (.{', .'.join(IMAGE_SUFFIXES)})"]
                lacks += [] if caption else [f"caption (.{CAPTION_SUFFIX})"]
                lacking = f"{shard.name}: {name} has no {' and no '.join(lacks)}"
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


def _samples(group: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    members = {suffix: content for suffix, content in group.items() if not suffix.startswith("__")}
    for name, kinds in split_dotted(group["__key__"], members).items():
        yield name.encode(errors="surrogateescape").decode(errors="replace"), kinds


class _TarStream:
    """A byte stream that checks that a tar file ends in zero blocks; tarfile takes a damaged header for the end."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._first = self._last = self._ready = b""
        self._place = 0

    @property
    def started(self) -> bool:
        return bool(self._first)

    def read(self, size: int) -> bytes:
        if len(self._ready) - self._place < size:  # large reads, since each one releases Python's lock
            self._ready = self._ready[self._place :] + self._stream.read(_READ_BYTES)
            self._place = 0
        data = self._ready[self._place : self._place + size]
        self._place += len(data)
        self._first = self._first or data[:8]
        self._last = (self._last + data[-TAR_BLOCK:])[-TAR_BLOCK:]
        return data

    def finish(self) -> None:
        """Read the rest; OSError if the tar file did not end properly."""
        plain = not self._first.startswith(_COMPRESSED)
        while rest := self.read(_READ_BYTES):
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


def find_shards(pattern: str, root: Path | None = None) -> tuple[Shard, ...]:
    """Return the shards of a pattern in order, such as ``cc3m/{00000..00331}.tar``; ``::`` joins several.

    It is a path, a folder (all its ``*.tar``), a path with ``*``, or an http(s), s3, gs, hf or pipe URL. Relative
    paths are searched for in the working directory; if it has none of them, in the data folder ``root``.
    """
    try:
        places = expand_urls(pattern)
    except (AssertionError, ValueError) as error:  # unset variable, unbalanced braces
        raise UserError(f"shards {pattern!r}: {error}: correct the pattern") from error
    existing, missing = _existing(places, Path())
    if root is not None and not any(local for _, local in existing):
        existing, missing = _existing(places, root)
    advice = how_to_get(pattern, str(root or "."))
    if not existing:
        relative = any(_is_local(place) and not Path(place).expanduser().is_absolute() for place in places)
        where = f" in {Path.cwd()} or {root}" if relative and root is not None else ""
        expected = "expected tar files of img2dataset, such as 'shards:/data/cc3m/{00000..00331}.tar'"
        raise UserError(f"no shard matches {pattern!r}{where}: {advice or expected}")
    if missing:
        fault = f"{len(missing)} of the {len(existing) + len(missing)} shards of {pattern!r} are missing"
        fix = advice or "correct the pattern, or download them"
        raise UserError(f"{fault}, the first is {missing[0]}: {fix}")
    names = _names([place for place, _ in existing], pattern)
    return tuple(Shard(name, *shard) for name, shard in zip(names, existing, strict=True))


def how_to_get(pattern: str, root: str) -> str | None:
    r"""Return the commands that download a set whose shards are missing; None for other patterns.

    The shorter side is resized to 224 pixels (DiffCLIP, Section 4.1); img2dataset's default adds a border instead.

    >>> how_to_get("cc3m/{00000..00331}.tar", "data").partition(";")[0]
    'to get CC3M, save the links of https://ai.google.com/research/ConceptualCaptions/download as cc3m.tsv'
    """
    if (source := f"shards:{pattern}") not in _LINKS:
        return None
    (page, columns), title, name = _LINKS[source], TITLES[source], TITLES[source].lower()
    return (
        f"to get {title}, save the links of {page} as {name}.tsv; then sed -i '1s/^/{columns}\\n/' {name}.tsv; "
        f"img2dataset --url_list {name}.tsv --input_format tsv --url_col url --caption_col caption --output_format "
        f"webdataset --output_folder {root}/{name} --resize_mode keep_ratio --image_size 224 --processes_count 16 "
        "--thread_count 64"
    )


def _existing(places: Sequence[str], base: Path) -> tuple[list[tuple[str, bool]], list[str]]:
    """Return the files and URLs, with whether each is a file, and the paths below ``base`` that have none."""
    existing: list[tuple[str, bool]] = []
    missing: list[str] = []
    for place in places:
        if not _is_local(place):
            existing.append((place, False))
            continue
        is_url = place.startswith("file:")
        path = Path(url2pathname(urlparse(place).path)) if is_url else base / Path(place).expanduser()
        pattern = str(path / "*.tar" if path.is_dir() else path)
        files = [str(path)] if path.is_file() else filter(os.path.isfile, sorted(glob.glob(pattern)))
        files = [(file, True) for file in files]
        existing += files
        missing += [] if files else [str(path)]
    return existing, missing


def _is_local(place: str) -> bool:
    scheme = urlparse(place).scheme
    if scheme in gopen_schemes or scheme == "s3":
        return False
    if scheme in ("", "file") or Path(place).exists():
        return True
    raise UserError(f"shard {place!r}: {scheme}: URLs are not supported: use 'pipe:COMMAND' that writes it")


def _names(places: list[str], pattern: str) -> list[str]:
    """Return the shortest unique suffixes of the paths."""
    ends = [_tar_path(place).split("/") for place in places]
    for depth in range(1, max(map(len, ends)) + 1):
        names = ["/".join(end[-depth:]) for end in ends]
        if len(set(names)) == len(names):
            return names
    if twice := [place for place in places if places.count(place) > 1]:
        raise UserError(f"shards of {pattern!r}: duplicate {twice[0]}: give each shard once")
    return places


def _tar_path(place: str) -> str:
    """Return the path of the tar file in a URL or command.

    >>> _tar_path("https://host/a/00003.tar?key=1"), _tar_path("pipe:aws s3 cp s3://b/00003.tar -")
    ('/a/00003.tar', '/00003.tar')
    """
    if place.startswith("pipe:"):
        place = next((word for word in reversed(place.split()) if ".tar" in word), place)
    return urlparse(place).path if urlparse(place).scheme else place


def count_samples(name: str, shards: Sequence[Shard], root: Path, *, progress: bool = True) -> int:
    """Return the number of samples in local shards.

    It is read from img2dataset's ``NNNNN_stats.json`` (``successes``), or webdataset's ``sizes.json`` (shard name to
    count), or the members are counted, and ``root/shards`` keeps the count.
    """
    if remote := [shard.name for shard in shards if not shard.local]:
        unknown = f"the number of samples in {remote[0]} is unknown, because it is remote"
        raise UserError(f"{name}: {unknown}: give the total of all shards with --samples")
    total = 0
    uncounted: dict[Path, list[Path]] = {}
    folder_counts = cache(lambda folder: _read_counts(folder / "sizes.json", None))
    for path in (Path(shard.place).absolute() for shard in shards):
        stats = _read_counts(path.with_name(f"{path.stem}_stats.json"), "successes")
        count = stats.get("successes", folder_counts(path.parent).get(path.name))
        if count is None:
            uncounted.setdefault(path.parent, []).append(path)
        total += count or 0
    tars = sum(map(len, uncounted.values()))
    with progress_bar("Counting samples", tars, progress and bool(tars)) as advance:
        for folder, paths in uncounted.items():
            total += _counted(folder, paths, root, advance)
    if not total:
        expected = "expected KEY.jpg, .png, .webp or .jpeg with KEY.txt"
        raise UserError(f"{name}: no samples in its {len(shards)} shards: {expected}")
    return total


def _read_counts(path: Path, field: str | None) -> dict[str, int]:
    """Read counts from a JSON object, of one field or of all; empty if there is no file."""
    if not path.exists():
        return {}
    expected = f"a field {field!r}" if field else "shard names and counts"
    fix = f"expected a JSON object with {expected}: correct or delete it"
    value = read_json(path, fix=fix)
    counts = value if field is None else {field: value.get(field)}
    if any(type(count) is not int or count < 0 for count in counts.values()):
        raise UserError(f"{path}: a count is not a non-negative integer; {fix}")
    return counts


def _counted(folder: Path, paths: Sequence[Path], root: Path, advance: Callable[[float], None]) -> int:
    """Return the samples in the shards of a folder; what was counted before is kept below ``root``."""
    kept = root / "shards" / f"{digest(str(folder))[:16]}.json"
    try:
        entries = parse_json(kept.read_text(encoding="utf-8"))["shards"].items()
        known = {name: entry for name, entry in entries if len(entry) == 3}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing or invalid: count again
        known = {}
    before = dict(known)
    for path in paths:
        stamp = [path.stat().st_size, path.stat().st_mtime_ns]
        if known.get(path.name, [])[:2] != stamp:
            known[path.name] = [*stamp, _count_members(path)]
        advance(1)
    if known != before:
        with contextlib.suppress(OSError):  # the cache is optional
            write_json(kept, {"folder": str(folder), "shards": known})
    return sum(known[path.name][2] for path in paths)


def _count_members(path: Path) -> int:
    """Count the keys of a tar file that have an image and a caption, reading only headers."""
    names: list[str] = []
    try:
        with tarfile.open(path) as archive:
            names += (member.name for member in archive if member.isreg() and member.size)
    except Exception:  # damaged file; reported when the stream reaches it
        del names[-1:]  # the last member is truncated
    samples = members_by_key(names).values()
    return sum(CAPTION_SUFFIX in kinds and bool(kinds.keys() & set(IMAGE_SUFFIXES)) for kinds in samples)
