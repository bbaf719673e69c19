"""Two results compared: their paired differences, and in what their settings differ."""

import io
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import torch

from antiphase.commands.compare import CompareOptions
from antiphase.commands.lineup import environment_record
from antiphase.commands.result import Result, open_result
from antiphase.errors import UserError
from antiphase.files import replacing
from antiphase.report.page import in_one_line
from antiphase.terminal import eps_label

if TYPE_CHECKING:
    from antiphase.commands.compare.result import CompareResult

# options that affect no result, or that settings have under another name
_NO_SETTING = {"out", "quiet", "device", "batch_size", "cache", "track", "model", "models", "against"}
_NO_SETTING |= {"eps", "seed", "nested", "settings"}


def compare(first: Result | str | Path, second: Result | str | Path) -> "CompareResult":
    """Compare two results as ``antiphase compare`` does, first minus second; ``save`` writes the page.

    Args:
        first: result of a command, or its directory.
        second: result of the same command with other models or settings, or its directory.

    Raises:
        UserError: a directory holds no finished run, or the two share nothing that can be paired.
    """
    return _compared(first, second)


def run(options: CompareOptions, command: str) -> None:
    """Compare the runs and write everything but the page into ``options.out``."""
    result = _compared(options.first, options.second, command, options.record())
    for name, content in result.files.items():
        with replacing(options.out / name) as temporary:
            temporary.write_bytes(content)


def _compared(
    first: Any, second: Any, command: str = "", options: Mapping[str, Any] | None = None
) -> "CompareResult":
    from antiphase.commands.compare.result import CompareResult

    began = time.monotonic()
    runs = [one if isinstance(one, Result) else open_result(one) for one in (first, second)]
    if any(isinstance(one, CompareResult) for one in runs):
        raise UserError("compare: got a comparison; expected two runs that were measured")
    frame = runs[0].compare(runs[1])
    names = [
        one.directory.name if one.directory else which
        for one, which in zip(runs, ("first", "second"), strict=True)
    ]
    if names[0] == names[1]:
        names = [str(one.directory) if one.directory else name for one, name in zip(runs, names, strict=True)]
    records = [
        one.record if "run.json" in one.files else {"settings": one.read_json("study.json")} for one in runs
    ]
    settings = [_settings(record) for record in records]
    summary = {
        "kind": runs[0].kind,
        "runs": names,
        "pairs": frame.select("model", "against").unique(maintain_order=True).rows(),
        "images": [record.get("n") for record in records],
        "differing_settings": [
            {"setting": key, "first": settings[0].get(key), "second": settings[1].get(key)}
            for key in dict.fromkeys([*settings[0], *settings[1]])
            if settings[0].get(key) != settings[1].get(key)
        ],
        "differences": frame.to_dicts(),
    }
    record = {
        "command": command or f"antiphase.compare({names[0]!r}, {names[1]!r})",
        "options": options or {},
        "settings": {"first": names[0], "second": names[1], "command": runs[0].kind},
        "data": records[0].get("data", "images"),
        "data_fingerprint": records[0].get("data_fingerprint", ""),
        "n": records[0]["n"] if isinstance(records[0].get("n"), list) else frame.select(pl.max("n")).item(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 2),
        **environment_record(torch.device("cpu")),
        "warnings": [
            *_left_out(runs, records, frame),
            *(
                f"{name}: {warning}"
                for name, one in zip(names, runs, strict=True)
                for warning in one.warnings
            ),
        ],
    }
    rows = io.BytesIO()
    frame.write_parquet(rows)
    written = {"summary.json": summary, "run.json": record}
    texts = {name: json.dumps(value, indent=2, ensure_ascii=False) + "\n" for name, value in written.items()}
    files = {"differences.parquet": rows.getvalue()} | {name: text.encode() for name, text in texts.items()}
    return CompareResult("compare", files)


def _left_out(runs: Sequence[Result], records: Sequence[Mapping[str, Any]], frame: pl.DataFrame) -> list[str]:
    """Return a line on what no difference is of, since one run lacks it or measured it on other units."""
    tables, lost = [run.frame() for run in runs], list[str]()
    for keys in (["task", "data", "setting"], ["attack"], ["norm"], ["eps"], ["text"]):
        if all({*keys} <= {*each.columns} for each in (*tables, frame)):
            held, compared = (
                {_told(row) for each in some for row in each.select(keys).unique().rows()}
                for some in (tables, [frame])
            )
            lost += sorted(held - compared.union(*(told.split(" − ") for told in compared)))
    models = {name for record in records for name in record.get("models", ())}
    lost += sorted(models - {name.removesuffix(" (other)") for name in (*frame["model"], *frame["against"])})
    lost += (
        sorted({name for run in runs for name in run.tables} - {*frame["part"]})
        if "part" in frame.columns
        else []
    )
    why = "not compared, since one run lacks it or measured it on other units"
    return [f"{why}: {', '.join(lost)}"] if lost else []


def _told(row: tuple[Any, ...]) -> str:
    return ", ".join(
        f"ε = {eps_label(value)}" if isinstance(value, float) else str(value) for value in row if value
    )


def _settings(record: Mapping[str, Any]) -> dict[str, str]:
    """Return what a run was measured with, as text by name."""
    settings = record.get("settings", {})
    flat = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    parts = {name: value for name, value in settings.items() if name not in flat}
    known = _NO_SETTING.union(flat, *parts.values())
    flat |= {f"{name}: {key}": value for name, part in parts.items() for key, value in part.items()}
    flat |= {name: value for name, value in record.get("options", {}).items() if name not in known}
    flat |= {"images": record.get("n"), "data": record.get("data"), "hardware": record.get("hardware")}
    flat |= {f"weights of {name}": value[:12] for name, value in record.get("fingerprints", {}).items()}
    flat |= {f"version of {name}": value for name, value in record.get("versions", {}).items()}
    return {name: str(in_one_line(value)) for name, value in flat.items() if value not in (None, [], {})}
