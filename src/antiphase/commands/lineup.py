"""Models, their twins and the images that all of them are measured on."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import polars as pl
import torch
from torch import nn

from antiphase import modules, store
from antiphase.commands import loading, run_folder
from antiphase.data import ImageSet, load_data
from antiphase.data.images import described_pixels, resized_images
from antiphase.data.sources import source_of
from antiphase.errors import UserError
from antiphase.files import printable, write_json
from antiphase.models import card as model_card
from antiphase.models.class_names import in_model_order, read_class_names
from antiphase.models.schemes.scheme import named_spec
from antiphase.models.zeroshot import bound, is_dual_encoder
from antiphase.models.zoo import fingerprint
from antiphase.precision import multiplies_bf16
from antiphase.processes import this_process


@dataclass(frozen=True)
class Lineup:
    """Models with their cards, as many twins to compare them with or none, and the images that all are measured on."""

    models: Sequence[nn.Module]
    twins: Sequence[nn.Module]
    data: Any

    def __post_init__(self) -> None:
        loading.check_twins(self.models, self.twins)

    @property
    def everyone(self) -> list[nn.Module]:
        return [*self.models, *self.twins]

    @cached_property
    def names(self) -> list[str]:
        return short_names([model_card.card_of(model) for model in self.everyone])

    @property
    def by_name(self) -> dict[str, nn.Module]:
        return dict(zip(self.names, self.everyone, strict=True))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(model, twin) by name."""
        return list(zip(self.names, self.names[len(self.models) :], strict=False))

    def check_fit(self) -> None:
        for model in self.everyone:
            check_fit(model_card.card_of(model), self.data)

    def ordered(self) -> "tuple[Lineup, list[str]]":
        """Return the same with labels in the order of the models' outputs, which have to fit, and doubts about it."""
        data, notes = in_model_order([model_card.card_of(model) for model in self.everyone], self.data)
        lineup = replace(self, data=data)
        lineup.check_fit()
        return lineup, notes

    def about(self) -> list[dict[str, Any]]:
        """Return what ``summary.json`` says of each model."""
        entries = []
        for name, model in self.by_name.items():
            card, lambdas = model_card.card_of(model), model_card.mean_lambdas(model)
            if isinstance(self.data, ImageSet) and card.attention not in ("softmax", "none"):
                images = self.data.images(range(min(8, len(self.data)))).to(modules.device_of(model))
                lambdas = model_card.mean_lambdas(model, images) or loading.measured_attention(model, images)[1]
            entry = {"name": name, "attention": card.attention, "seed": card.seed}
            if any((card.recipe or {}).get(field) for field in ("adversarial", "defences")):
                entry["defended"] = True  # trained to be less fragile
            entries.append(entry | {"lambda": list(lambdas), "num_classes": card.classes})
        return entries

    def doubts(self) -> list[str]:
        """Return what was assumed, and in what models and twins differ besides their attention."""
        return model_card.doubts_about(self.models, self.twins, self.data)


def load_lineup(options: Any) -> Lineup:
    """Load models, their twins and the images: those that were asked for, else those the first was trained for."""
    seeds = getattr(options, "seeds", ())
    models, twins = seeded(options.model, seeds), seeded(options.against, seeds)
    loading.check_twins(models, twins)
    loaded = loading.load_models([*models, *twins], loading.find_device(options.device), options.random_weights)
    if seeds and len({*map(fingerprint, loaded)}) < len(loaded):
        names = ", ".join(model_card.card_of(model).name for model in loaded)
        raise UserError(f"seeds: of {names}, two have the same weights; name each one's own, as in runs/vit-{{seed}}")
    if options.prompt is not None and not any(map(is_dual_encoder, loaded)):
        raise UserError(f"prompt {options.prompt!r}: none of the models is a CLIP; leave out --prompt")
    card = model_card.card_of(loaded[0])
    usual = {"specimen": "specimen-fashion-mnist"}.get(card.spec.partition(":")[0])
    if (source := usual or (card.recipe or {}).get("data") if options.data is None else options.data) is None:
        raise UserError(f"{card.spec} says nothing of its data: give --data, for example --data folder:PATH")
    noise = source == "random"
    how = {"limit": options.limit, "seed": 0, "progress": not options.quiet, "skip_bad": options.skip_bad}
    image_size = options.image_size
    if (images := loading.live_object(source)) is not None:
        images = load_data(images, split=options.split, image_size=image_size, **how)
    else:
        size, channels = model_card.size_for(loaded)
        if size and image_size not in (None, size):
            raise UserError(f"image_size {image_size}: {card.spec} takes images of {size} pixels; leave it out")
        how |= {"num_classes": (card.classes or source_of(source).classes) if noise else None}
        size = size or image_size or (card.image_shape[1] if noise else None)
        images = load_data(source, split=options.split, image_size=size, channels=channels, **how)
    model_card.settle_size(loaded, images.image_shape)
    if noise:
        model_card.square_of(loaded[0])  # refuses a model whose images are not square
    images = model_card.with_own_pixels(images, loaded)  # the preprocessing travels with the model
    if options.resize:
        images = resized_images(images, options.resize)
    if (file := getattr(options, "classes", None)) is not None:
        if noise or any(map(is_dual_encoder, loaded)):
            why = "a CLIP takes the data's own class names, random images have none"
            raise UserError(f"--classes: {why}; leave it out")
        for model in loaded:
            names = read_class_names(file, model_card.card_of(model).classes)
            model_card.with_card(model, replace(model_card.card_of(model), class_names=names))
    loaded = [bound(model, images, options.prompt) for model in loaded]
    return Lineup(loaded[: len(models)], loaded[len(models) :], images)


def seeded(specs: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """Return a specification for each training seed: ``{seed}`` in a name is replaced, and each states its seed."""
    if not seeds or not specs:
        return [*specs]
    if len(specs) == 1:
        specs = [specs[0].replace("{seed}", str(seed)) for seed in seeds]
    if len(specs) != len(seeds):
        raise UserError(f"seeds: {len(seeds)} for {len(specs)} models; give one for each model, or one model")
    pairs = zip(specs, seeds, strict=True)
    return [spec if named_spec(spec).seed is not None else f"{spec}@seed={seed}" for spec, seed in pairs]


def short_names(cards: Sequence[model_card.ModelCard]) -> list[str]:
    """Return short names where they tell the models apart; else with the seed at their end, or specifications."""
    plain, specs = [card.name for card in cards], [card.spec.replace("@seed=", "-") for card in cards]
    seeds = ["" if card.seed is None or card.name.endswith(str(card.seed)) else card.seed for card in cards]
    seeded = [f"{name}-{seed}".removesuffix("-") for name, seed in zip(plain, seeds, strict=True)]
    for names in (plain, seeded, specs):
        if len(set(names)) == len(names):
            return names
    raise UserError(f"{cards[0].spec}: the same model is named twice; expected different ones")


def check_fit(card: model_card.ModelCard, data: ImageSet) -> None:
    """Refuse images whose shape or number of classes a model does not take."""
    if card.image_shape != data.image_shape:
        why = f"takes images of shape {card.image_shape}, {data.name} gives {data.image_shape}"
    elif len(data) and int(data.labels.max()) >= card.classes:
        why = f"tells {card.classes} classes apart, {data.name} has {len(data.class_names)}"
    else:
        return
    raise UserError(f"{card.spec} {why}; give data that fits with --data")


def _architecture(model: nn.Module) -> dict[str, Any]:
    inner: Any = model
    while type(inner).__module__.startswith("antiphase.models.") and hasattr(inner, "model"):
        inner = inner.model
    return {"architecture": type(inner).__name__, "parameters": sum(tensor.numel() for tensor in model.parameters())}


def environment_record(device: torch.device) -> dict[str, Any]:
    """Return what hardware and which libraries a result was made with."""
    cpu = torch.cpu.get_capabilities().get("cpu_name", platform.processor())
    lacking = "" if multiplies_bf16(torch.device("cpu")) else "no bf16, "
    on_cpu = f"{cpu}, {lacking}{torch.get_num_threads()} threads"
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu
    return {"hardware": hardware, "versions": {name: version(name) for name in ("antiphase", "torch", "timm", "numpy")}}


def described(
    rows: pl.DataFrame, schema: dict[str, Any], name: str, model: nn.Module, data: ImageSet | None = None, **shared: Any
) -> pl.DataFrame:
    """Return rows with the columns of a schema: what they share is added, and the true labels of the data."""
    card = model_card.card_of(model)
    shared = {"model": name, "attention": card.attention, "seed": card.seed} | shared
    if data is not None:
        labels = pl.DataFrame({"sample": data.ids.numpy(), "label": data.labels.numpy()})
        rows = rows.join(labels, on="sample", maintain_order="left")
    columns = [pl.lit(value, schema[column]).alias(column) for column, value in shared.items()]
    return rows.with_columns(columns).select(*schema).cast(dict[Any, Any](schema))


def write_run(
    lineup: Lineup,
    options: Any,
    summary: Mapping[str, Any],
    frames: Mapping[str, pl.DataFrame | None],
    settings: dict[str, Any],
    warnings: list[str],
    command: str,
    began: float,
    **record: Any,
) -> None:
    """Write the tables of a finished run, ``run.json`` and ``summary.json`` into ``options.out``, in one process.

    A table that is None may lie there from an earlier run, and is removed; ``record`` replaces parts of ``run.json``.
    """
    if not this_process().first:
        return
    out, data, digests = options.out, lineup.data, dict[str, str]()
    # of an earlier run, which ends here; what was filled in by hand in a card stays, if there is to be another
    for old in ("summary.json", "run.json", *["card.json"] * bool(getattr(options, "questions", None))):
        (out / old).unlink(missing_ok=True)
    for name, frame in frames.items():
        if frame is None:
            (out / f"{name}.parquet").unlink(missing_ok=True)
        else:
            files = getattr(data, "files", None)
            if files is not None and "sample" in frame.columns:  # the samples are files
                named = pl.DataFrame({"sample": data.ids.numpy(), "file": list(map(printable, files))})
                before = frame.columns[: frame.columns.index("sample") + 1]
                frame = frame.join(named, on="sample", how="left", maintain_order="left")
                frame = frame.select(*before, "file", pl.exclude(*before, "file"))
            store.write_frame(out / f"{name}.parquet", frame)
            digests[f"{name}.parquet"] = hashlib.sha256((out / f"{name}.parquet").read_bytes()).hexdigest()
    models = lineup.by_name
    cards = {name: model_card.card_of(model) for name, model in models.items()}
    preprocessing = {name: asdict(card.preprocessing) for name, card in cards.items() if card.preprocessing}
    about = {"command": command, "options": options.record(), "settings": settings}
    about |= {"models": {name: card.spec for name, card in cards.items()}}
    about |= {"fingerprints": {name: fingerprint(model) for name, model in models.items()}}
    about |= {"preprocessing": preprocessing} if preprocessing else {}
    about |= {"images": described_pixels(data)} if isinstance(data, ImageSet) and hasattr(options, "resize") else {}
    about |= {"architectures": {name: _architecture(model) for name, model in models.items()}}
    about |= {"data": data.name, "data_fingerprint": data.fingerprint(), "n": len(data)}
    about |= run_folder.finished(out, began) | environment_record(modules.device_of(lineup.models[0]))
    about |= {"warnings": warnings, "sha256": digests}
    write_json(out / "run.json", about | record)
    write_json(out / "summary.json", summary)
