"""Compare the preprocessing of every family of transformers, timm and torchvision with the library's own transform.

Prints the table of ``dev/models.md``. No model is built and nothing is downloaded: ``antiphase.models.preprocessing``
compares pixels when it reads a description, and refuses what differs. ``uv run python benchmarks/preprocessing.py``
"""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from antiphase.errors import UserError
from antiphase.models.preprocessing import Preprocessing, of_open_clip, of_processor, of_timm, of_torchvision


def read(reader: Callable[[], Preprocessing]) -> str:
    """Return ``same``, or why the preprocessing is refused."""
    try:
        reader()
    except UserError as error:
        return str(error).partition("cannot be reproduced: ")[2].partition("; load it")[0]
    return "same"


def processors() -> dict[str, Any]:
    """Return the image processor of each family of image classifiers, by its defaults; None if it has none."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as known
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as families

    by_family = {}
    for family in sorted(families):
        kinds = dict(known.get(family) or {})
        name = kinds.get("pil") or kinds.get("torchvision")
        if name == "TimmWrapperImageProcessor":  # has no defaults
            by_family[family] = transformers.TimmWrapperImageProcessor({"input_size": (3, 224, 224)})
        else:
            by_family[family] = getattr(transformers, name)() if name else None
    return by_family


def transformers_table() -> dict[str, str]:
    """Return what is said of each family of transformers."""
    return {
        family: read(lambda p=processor: of_processor(p, 3, "hf")) if processor else "no processor of its own"
        for family, processor in processors().items()
    }


def timm_table() -> dict[str, str]:
    """Return what is said of each set of pretrained weights of timm."""
    import timm
    from timm.data import resolve_data_config

    verdicts, cache = {}, {}
    for name in timm.list_models(pretrained=True):
        settings = resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        key = str({part: settings[part] for part in ("input_size", "interpolation", "crop_pct", "crop_mode")})
        if key not in cache:  # mean and standard deviation are compared once for each way of resizing
            cache[key] = read(lambda settings=settings: of_timm(settings, "timm"))
        verdicts[name] = cache[key]
    return verdicts


def torchvision_table() -> dict[str, str]:
    """Return what is said of each set of weights of torchvision's classifiers."""
    from torchvision import models

    names = models.list_models(module=models)
    weights = ((name, entry) for name in names for entry in models.get_model_weights(name))
    every = {f"{name}.{entry.name}": entry for name, entry in weights if "download.pytorch.org" in entry.url}
    return {name: read(lambda w=entry: of_torchvision(w.transforms(), "torchvision")) for name, entry in every.items()}


def open_clip_table() -> dict[str, str]:
    """Return what is said of each set of pretrained weights of open_clip."""
    import open_clip
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    verdicts, cache = {}, {}
    for name, tag in open_clip.list_pretrained():
        size = (open_clip.get_model_config(name) or {}).get("vision_cfg", {}).get("image_size", 224)
        known = open_clip.get_pretrained_cfg(name, tag)
        settings = merge_preprocess_dict(PreprocessCfg(size=size), known)
        if str(settings) not in cache:
            cache[str(settings)] = read(lambda settings=settings: of_open_clip(settings, "open_clip"))
        verdicts[f"{name}/{tag}"] = cache[str(settings)]
    return verdicts


def main() -> None:
    """Print the counts of each library, and what is refused."""
    warnings.simplefilter("ignore")
    tables = {
        "transformers, families": transformers_table(),
        "timm, weights": timm_table(),
        "torchvision, weights": torchvision_table(),
        "open_clip, weights": open_clip_table(),
    }
    print("| library | same | refused or without | which, and why |\n|---|---|---|---|")
    for library, table in tables.items():
        refused = Counter(reason for reason in table.values() if reason != "same")
        named = [(reason, [name for name, verdict in table.items() if verdict == reason]) for reason in refused]
        why = "; ".join(f"{', '.join(f'`{name}`' for name in names)}: {reason}" for reason, names in named)
        same = sum(verdict == "same" for verdict in table.values())
        print(f"| {library} | {same} | {len(table) - same} | {why} |")


if __name__ == "__main__":
    main()
