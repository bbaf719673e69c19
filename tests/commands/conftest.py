"""A made-up run: numbers drawn from a formula and a seed, so that a page can be drawn without any model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from antiphase.commands.run_folder import MARKER
from antiphase.evaluation.rates import ROW_SCHEMA, summarise_rates
from antiphase.files import write_json
from antiphase.report.gallery import AttackGallery, write_gallery
from tests.commands.audits import report

EPS = (0.5 / 255, 1 / 255, 2 / 255, 4 / 255, 8 / 255)
CLASSES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def made_up_rows(
    models: Sequence[tuple[str, str, int | None, float]],
    eps: Sequence[float] = EPS,
    n: int = 300,
    attack: str = "pgd",
    norm: str = "linf",
) -> pl.DataFrame:
    """Models as (name, attention, seed, fragility): an image falls where fragility·ε passes its threshold."""
    hardness = np.random.default_rng(7).exponential(1.0, n)
    cells = []
    for place, (name, attention, seed, fragility) in enumerate(models):
        generator = np.random.default_rng([11, place])
        threshold = hardness * generator.lognormal(0.0, 0.4, n)
        labels = np.arange(n) % 10
        clean = np.where(generator.random(n) < 0.85, labels, (labels + 1) % 10)
        for e in eps:
            flipped = threshold < fragility * e * 255 / 8
            columns = {
                "model": name,
                "attention": attention,
                "seed": seed,
                "attack": attack,
                "norm": norm,
                "eps": e,
                "sample": np.arange(n),
                "label": labels,
                "clean_prediction": clean,
                "prediction": np.where(flipped, (clean + 3) % 10, clean),
                "success": flipped,
                "felled_by": [attack if fell else None for fell in flipped],
                "distance": e,
                "forwards": 21,
                "backwards": 20,
                "attack_seed": 0,
            }
            cells.append(pl.DataFrame(columns, schema=ROW_SCHEMA))
    return pl.concat(cells)


def made_up_gallery(models: Sequence[str], channels: int = 1, side: int = 28, eps: float = 2 / 255) -> AttackGallery:
    samples = 5
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    radius = np.linspace(0.45, 0.95, samples)[:, None, None, None]
    rings = np.clip(0.9 - np.abs(np.hypot(x, y)[None, None] - radius) * 2, 0, 1)
    clean = np.repeat(rings, channels, axis=1).astype(np.float32)
    generator = np.random.default_rng(5)
    labels = np.arange(samples)
    signs = [generator.choice([-1, 0, 1], clean.shape).astype(np.float32) for _ in models]
    return AttackGallery(
        eps=eps,
        models=tuple(models),
        class_names=CLASSES,
        sample=np.arange(samples) * 17,
        label=labels,
        clean=clean,
        adversarial=np.stack([np.clip(clean + eps * sign, 0, 1) for sign in signs]),
        clean_prediction=np.stack([labels for _ in models]),
        prediction=np.stack([np.where(labels % (m + 2) == 0, labels, (labels + 3) % 10) for m in range(len(models))]),
    )


def made_up_run(
    directory: Path,
    models: Sequence[tuple[str, str, int | None, float]],
    pairs: Sequence[tuple[str, str]],
    *,
    rows: pl.DataFrame | None = None,
    gallery: AttackGallery | None = None,
    depth: int = 1,
    **changes: Any,
) -> Path:
    rows = made_up_rows(models) if rows is None else rows
    cards = [
        {
            "name": name,
            "attention": attention,
            "seed": seed,
            "lambda": [0.79 - 0.05 * layer for layer in range(depth)] if attention == "differential" else [],
        }
        for name, attention, seed, _ in models
    ]
    directory.mkdir(parents=True, exist_ok=True)
    rows.write_parquet(directory / "rows.parquet")
    (directory / MARKER).write_text("audit\n")
    write_json(directory / "summary.json", summarise_rates(rows, cards, pairs))
    run = {
        "command": "antiphase audit specimen:diffvit-0 --against specimen:vit-0 --eps 0.5/255,1/255,2/255",
        "options": {"split": "test", "eps": rows["eps"].unique().to_list()},
        "settings": {"attack": "pgd", "norm": "linf", "pgd": {"steps": 20, "step_size": "ε/4"}, "attack seed": 0},
        "models": {card["name"]: f"specimen:{card['name']}" for card in cards},
        "fingerprints": {card["name"]: f"{index:x}" * 64 for index, card in enumerate(cards)},
        "architectures": {card["name"]: {} for card in cards},
        "data": "fashion-mnist, test (made up)",
        "data_fingerprint": "9f86d081884c7d659a2feaa0c55ad015" * 2,
        "n": rows["sample"].n_unique(),
        "seconds": 41.7,
        "date": "2026-11-27T12:00:00+00:00",
        "hardware": "2 CPU cores, no GPU",
        "versions": {"antiphase": "0.1.0", "torch": "2.8.0", "python": "3.11.7"},
        "warnings": [],
    }
    write_json(directory / "run.json", run | changes)
    if gallery is not None:
        write_gallery(directory / "gallery.safetensors", gallery)
    return directory


TWINS = [("diffvit-0", "differential", 0, 2.0), ("vit-0", "softmax", 0, 1.0)]
SEEDS = [
    (f"{stem}-{seed}", attention, seed, fragility * (1 + 0.1 * seed))
    for stem, attention, fragility in (("diffvit", "differential", 2.0), ("vit", "softmax", 1.0))
    for seed in range(3)
]


def _twins(directory: Path) -> Path:
    gallery = made_up_gallery(["diffvit-0", "vit-0"])
    return made_up_run(directory, TWINS, [("diffvit-0", "vit-0")], gallery=gallery)


def _seeds(directory: Path) -> Path:
    pairs = [(f"diffvit-{seed}", f"vit-{seed}") for seed in range(3)]
    return made_up_run(directory, SEEDS, pairs, depth=3)


def _alone(directory: Path) -> Path:
    rows = made_up_rows(TWINS[1:], eps=(2 / 255,), n=53)
    return made_up_run(directory, TWINS[1:], [], rows=rows)


@pytest.fixture
def twins(tmp_path: Path) -> Path:
    """One pair with a gallery."""
    return _twins(tmp_path / "twins")


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    """Three pairs of training seeds."""
    return _seeds(tmp_path / "seeds")


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """One model without a twin, without a gallery, at one ε."""
    return _alone(tmp_path / "alone")


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of the three runs, drawn once; not to be changed."""
    runs = {"twins": _twins, "seeds": _seeds, "alone": _alone}
    return {name: report(make(tmp_path_factory.mktemp(name) / "run")) for name, make in runs.items()}


@pytest.fixture
def make_run() -> Callable[..., Path]:
    return made_up_run


@pytest.fixture
def make_rows() -> Callable[..., pl.DataFrame]:
    return made_up_rows


@pytest.fixture
def make_gallery() -> Callable[..., AttackGallery]:
    return made_up_gallery
