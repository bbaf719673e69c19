"""Which tar files a pattern of shards names, and how many samples they hold."""

import contextlib
import glob
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from webdataset.gopen import gopen_schemes
from webdataset.shardlists import expand_urls
from webdataset.tariterators import base_plus_ext

from antiphase.errors import UserError
from antiphase.files import digest, write_json
from antiphase.progress import progress_bar

IMAGE_SUFFIXES = ("jpg", "png", "webp", "jpeg")
CAPTION_SUFFIX = "txt"
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")  # first bytes of gzip, bzip2, xz
_LEAST_BYTES = 2048  # of a sample: an image and a caption, each a header and a block of 512 bytes


@dataclass(frozen=True)
class Shard:
    """One tar file.

    Attributes:
        name: its base name; with as many folders before it as it takes to tell it from the others.
        place: its path, or a URL that webdataset opens.
        local: whether ``place`` is a path.
    """

    name: str
    place: str
    local: bool


def find_shards(patterns: str | Sequence[str]) -> tuple[Shard, ...]:
    """Return the shards of a pattern or of several, in their order.

    Args:
        patterns: with braces, as in ``cc3m/{00000..00331}.tar``; two patterns may be joined by ``::``. Each
            is a path, a folder (all its ``*.tar``), a path with ``*``, or an http(s), s3, gs, hf or pipe URL.

    Raises:
        UserError: a pattern matches nothing, names a file that is not there or one twice, or is of a kind
            that cannot be opened.
    """
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    shown = ", ".join(map(repr, listed))
    found: list[tuple[str, bool]] = []
    missing: list[str] = []
    for place in (place for pattern in listed for place in _expanded(pattern)):
        if _is_local(place):
            files = _local_files(place)
            found += [(str(file), True) for file in files]
            missing += [] if files else [place]
        else:
            found.append((place, False))
    if not found:
        raise UserError(
            f"no shard matches {shown}: expected tar files of img2dataset's layout, such as "
            "'shards:/data/cc3m/{00000..00331}.tar'"
        )
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(found) + len(missing)} shards of {shown} are not there, the first is "
            f"{missing[0]}: mend the pattern, or fetch them"
        )
    names = _names([place for place, _ in found], shown)
    return tuple(Shard(name, place, local) for name, (place, local) in zip(names, found, strict=True))


def count_samples(name: str, shards: Sequence[Shard], root: Path, *, progress: bool = True) -> int:
    """Return how many samples local shards hold.

    The number is that of img2dataset's ``NNNNN_stats.json`` beside each shard (its ``successes``), else of a
    ``sizes.json`` in its folder (webdataset's: shard name to count), else the members of the tar file are
    counted, once: the counts are kept below ``root/shards`` with the size and the time of each file.

    Sources: img2dataset (https://github.com/rom1504/img2dataset), ``logger.write_stats``; webdataset.

    Args:
        name: the source's name, for messages.
        shards: what to count.
        root: the folder of the data sets.
        progress: show a bar on stderr while members are counted.

    Raises:
        UserError: a shard is remote, a list beside it is damaged or promises more samples than it has room for, or
            there is no sample at all.
    """
    remote = next((shard for shard in shards if not shard.local), None)
    if remote is not None:
        raise UserError(
            f"{name}: the number of samples in {remote.name} is not known before it is read: "
            "give that of all shards together with --samples"
        )
    noted: dict[Path, int] = {}
    by_folder: dict[Path, list[Path]] = {}
    for path in (Path(shard.place).absolute() for shard in shards):
        by_folder.setdefault(path.parent, []).append(path)
    for folder, paths in by_folder.items():
        sizes = _read_counts(folder / "sizes.json", None)
        for path in paths:
            stats = _read_counts(path.with_name(f"{path.stem}_stats.json"), "successes")
            count = stats.get("successes", sizes.get(path.name))
            if count is not None:
                _check_room(name, path, count)
                noted[path] = count
    rest = {folder: [path for path in paths if path not in noted] for folder, paths in by_folder.items()}
    total = sum(noted.values()) + _counted({f: paths for f, paths in rest.items() if paths}, root, progress)
    if not total:
        raise UserError(
            f"{name}: its {len(shards)} shards hold no sample, that is KEY.jpg, .png, .webp or .jpeg with "
            "KEY.txt: name others"
        )
    return total


def _expanded(pattern: str) -> list[str]:
    try:
        return expand_urls(pattern)
    except (AssertionError, ValueError) as error:  # a variable that is not set, unbalanced braces
        raise UserError(f"shards {pattern!r}: {error}: mend the pattern") from error


def _is_local(place: str) -> bool:
    scheme = urlparse(place).scheme
    if scheme in gopen_schemes or scheme == "s3":
        return False
    if scheme in ("", "file") or Path(place).exists():
        return True
    raise UserError(
        f"shard {place!r}: nothing here opens {scheme}: URLs: say how with 'pipe:COMMAND', a command that "
        "writes the tar file to its standard output"
    )


def _local_files(place: str) -> list[Path]:
    path = Path(url2pathname(urlparse(place).path)) if place.startswith("file:") else Path(place).expanduser()
    if path.is_dir():
        return sorted(path.glob("*.tar"))
    if path.is_file():
        return [path]
    return [Path(found) for found in sorted(glob.glob(str(path)))] if glob.has_magic(place) else []


def _names(places: list[str], shown: str) -> list[str]:
    """Return the shortest ends of the places that tell all of them apart."""
    ends = [_tar_path(place).split("/") for place in places]
    for depth in range(1, max(map(len, ends)) + 1):
        names = ["/".join(end[-depth:]) for end in ends]
        if len(set(names)) == len(names):
            return names
    twice = next((place for place in places if places.count(place) > 1), None)
    if twice is not None:
        raise UserError(f"shards of {shown}: {twice} is named twice: name it once")
    return places


def _tar_path(place: str) -> str:
    """Return the path of the tar file, without what a URL or a command has around it.

    >>> _tar_path("https://host/a/00003.tar?key=1"), _tar_path("pipe:aws s3 cp s3://b/00003.tar -")
    ('/a/00003.tar', '/00003.tar')
    """
    if place.startswith("pipe:"):
        place = next((word for word in reversed(place.split()) if ".tar" in word), place)
    return urlparse(place).path if urlparse(place).scheme else place


def _read_counts(path: Path, field: str | None) -> dict[str, int]:
    """Return a JSON object of whole numbers, of one field or of all; empty where there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): make it readable") from error
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise TypeError(f"it is a {type(value).__name__}")
        counts = {str(key): value[key] for key in (value if field is None else [field])}
        if any(type(count) is not int or count < 0 for count in counts.values()):
            raise TypeError("a count is no whole number")
    except (ValueError, KeyError, TypeError) as error:
        wanted = f"a field {field!r}" if field else "shard names and counts"
        raise UserError(f"{path} is no JSON object with {wanted} ({error}): mend or delete it") from error
    return counts


def _check_room(name: str, path: Path, count: int) -> None:
    """Refuse a count that a shard is too small for: an epoch of that many samples would read it over and over."""
    with path.open("rb") as file:
        if file.read(8).startswith(COMPRESSED):
            return
    room = path.stat().st_size // _LEAST_BYTES
    if count > room:
        raise UserError(
            f"{name}: {path.name} is said to hold {count:,} samples and has room for at most {room:,}: correct or "
            f"delete {path.stem}_stats.json or sizes.json next to it, or give the number of all samples with --samples"
        )


def _counted(folders: dict[Path, list[Path]], root: Path, progress: bool) -> int:
    total = 0
    progress = progress and bool(folders)
    with progress_bar("Counting samples", sum(map(len, folders.values())), progress) as advance:
        for folder, paths in folders.items():
            kept = root / "shards" / f"{digest(str(folder))[:16]}.json"
            known = _kept_counts(kept)
            before = dict(known)
            for path in paths:
                stamp = [path.stat().st_size, path.stat().st_mtime_ns]
                if known.get(path.name, [])[:2] != stamp:
                    known[path.name] = [*stamp, _count_members(path)]
                total += known[path.name][2]
                advance(1)
            if known != before:
                with contextlib.suppress(OSError):  # no place to keep them: they are counted again next time
                    write_json(kept, {"folder": str(folder), "shards": known})
    return total


def _kept_counts(kept: Path) -> dict[str, Any]:
    try:
        entries = json.loads(kept.read_text(encoding="utf-8"))["shards"].items()
        return {name: entry for name, entry in entries if len(entry) == 3}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # absent, or not ours: count again
        return {}


def _count_members(path: Path) -> int:
    """Return how many keys of a tar file have an image and a caption; only the headers are read."""
    suffixes: dict[str, set[str]] = {}
    last: tuple[str, str] | None = None
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                key, suffix = base_plus_ext(member.name)
                if key is not None and suffix is not None and member.isreg() and member.size:
                    last = key, suffix.lower()
                    suffixes.setdefault(key, set()).add(last[1])
    except Exception:  # tarfile raises many things at a damaged file; the stream names it when it gets there
        if last is not None:  # the member that the end of the file cuts
            suffixes[last[0]].discard(last[1])
    return sum(CAPTION_SUFFIX in found and bool(found & set(IMAGE_SUFFIXES)) for found in suffixes.values())
