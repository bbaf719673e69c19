"""The cells of CLIPs: what identifies them, that a finished training is known again, and rows that others would get."""

import dataclasses
import io
import json
import tarfile

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from scipy import ndimage

from antiphase.commands.evaluate import EvaluateOptions
from antiphase.commands.evaluate.run import evaluate, load_source
from antiphase.data import load_pairs
from antiphase.data.shards import CC12M
from antiphase.errors import UserError
from antiphase.evaluation import features
from antiphase.evaluation.metrics import ROW_SCHEMA
from antiphase.models import checkpoints, clip, diffclip, load_model, write_model
from antiphase.sensitivity.relevance import chefer_relevance, localise
from antiphase.studies.cells import FACTORS, Evaluate, Relevance, TrainClip, given
from antiphase.studies.cells.evaluate import COMBINED, FEATURES_FOLDER, NEGATIVE, POSITIVE
from antiphase.studies.papers.diffclip.bench import bench, models, released
from antiphase.studies.results import study_rows
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Lab, profile
from antiphase.studies.store import Store, described, identity
from antiphase.training import loop
from antiphase.training.recipe import make_clip_recipe

SMALL = {
    "vision": {"dim": 24, "depth": 1, "num_heads": 2, "patch_size": 16},
    "text": {"dim": 16, "depth": 1, "num_heads": 2},
    "embed_dim": 12,
}
TINY = TrainClip(
    variant="diffclip",
    data="openmoji",
    preset="openmoji",
    limit=24,
    sizes=SMALL,
    recipe={"epochs": 1, "batch_size": 12},
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(Store(tmp_path_factory.mktemp("store")), progress=False)


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """A CLIP and a DiffCLIP that are given."""
    folder = tmp_path_factory.mktemp("models")
    for kind, build in (("CLIP", clip), ("DiffCLIP", diffclip)):
        write_model(build(seed=0, **SMALL), folder / kind)
    return {kind: given(str(folder / kind), kind, trained_on="nothing") for kind in ("CLIP", "DiffCLIP")}


def test_a_training_is_identified_by_what_is_not_at_its_default():
    cell = TrainClip(variant="diffclip-depth", data="openmoji", preset="openmoji", recipe={"precision": "bf16"})
    assert described(cell)["fields"] == {
        "variant": "diffclip-depth",
        "data": "openmoji",
        "preset": "openmoji",
        "recipe": {"precision": "bf16"},
    }
    assert identity(dataclasses.replace(cell, seed=0)) == identity(cell)
    others = [
        dataclasses.replace(cell, **{name: value})
        for name, value in {
            "variant": "clip",
            "data": "noto-emoji",
            "seed": 1,
            "preset": "diffclip",
            "limit": 5,
            "sizes": SMALL,
            "recipe": {"precision": "float32"},
        }.items()
    ]
    assert len({identity(one) for one in [cell, *others]}) == 8


def test_shards_need_not_be_there_to_be_planned():
    cell = TrainClip(variant="diffclip", data=CC12M, seed=2)
    assert described(cell)["fields"] == {"variant": "diffclip", "data": CC12M, "seed": 2}
    assert cell.factors() == {
        "series": "DiffCLIP",
        "trained_on": CC12M,
        "depth": 12,
        "dim": 768,
        "lambda_init": 0.8,
        "train_eps": 0.0,
        "lambda_schedule": "constant",
        "training_seed": 2,
    }


@pytest.mark.thorough
def test_shards_in_the_data_folder_are_trained_on(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path))
    (tmp_path / "cc3m").mkdir()
    emoji = load_pairs("openmoji", progress=False).subset(12)
    for shard in range(2):
        with tarfile.open(tmp_path / f"cc3m/0000{shard}.tar", "w") as archive:
            for index in range(6 * shard, 6 * shard + 6):
                picture = io.BytesIO()
                Image.fromarray(emoji.pixels(index).permute(1, 2, 0).numpy()).save(picture, "PNG")
                for suffix, content in (("png", picture.getvalue()), ("txt", emoji.captions[index][0].encode())):
                    entry = tarfile.TarInfo(f"{index:09d}.{suffix}")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
    cell = dataclasses.replace(TINY, data="shards:cc3m/{00000..00001}.tar", limit=None)
    run_cells([cell], lab)
    (log,) = pl.read_ndjson(lab.store.folder(cell) / loop.METRICS_FILE).to_dicts()
    assert log["loss"] > 0


def test_every_variant_has_its_series_and_factors():
    variants = ("clip", "diffclip", "diffclip-depth", "diffclip-vision")
    cells = [TrainClip(variant=name, data="openmoji", preset="openmoji") for name in variants]
    assert [cell.series for cell in cells] == ["CLIP", "DiffCLIP", "DiffCLIP*", "DiffCLIP†"]
    assert [cell.factors()["lambda_init"] for cell in cells] == [None, 0.8, 0.8, 0.8]
    assert {cell.factors()["depth"] for cell in cells} == {4}
    assert set(cells[0].factors()) == set(FACTORS)
    assert len({cell.label for cell in cells}) == 4


def test_the_laptops_recipe_is_that_of_the_preset_in_bf16():
    expected = make_clip_recipe("diffclip-vision", "openmoji", "emoji", "print", {}, precision="bf16", epochs=8, seed=2)
    (cell,) = [cell for cell in models(profile("laptop"), ["diffclip-vision"]) if cell.seed == 2]
    assert cell.make_recipe("print") == expected
    assert (expected.epochs, expected.batch_size, expected.model.vision.dim) == (8, 256, 192)


def test_the_papers_recipe_is_the_papers():
    recipe = models(profile("paper"))[0].make_recipe("print")
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.weight_decay) == (40, 4096, 5e-4, 0.5)
    assert (recipe.warmup_epochs, recipe.model.vision.dim, recipe.model.text.depth) == (1.0, 768, 12)


def test_a_training_that_lies_in_its_folder_is_finished_at_once(lab, tmp_path, monkeypatch):
    run_cells([TINY], lab)
    first = load_model(str(lab.store.folder(TINY)))
    other = Lab(Store(tmp_path), progress=False)
    other.store.folder(TINY).mkdir(parents=True)
    for name in (checkpoints.RECIPE_FILE, checkpoints.WEIGHTS_FILE, loop.METRICS_FILE):
        content = (lab.store.folder(TINY) / name).read_bytes()
        (other.store.folder(TINY) / name).write_bytes(content)
    monkeypatch.setattr(loop, "_run", lambda *_, **__: pytest.fail("trained again"))
    run_cells([TINY], other)
    assert other.store.done(TINY)
    loaded = other.model(TINY)
    assert loaded.card.name == TINY.label
    assert loaded.card.seed == 0
    for name, values in first.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], values)


@pytest.mark.parametrize(
    ("task", "fields"),
    [
        ("retrieval", {"captions": "first"}),
        ("zero-shot", {"templates": ("1", "7")}),
        ("probe", {"iterations": 2, "seeds": 2}),
        ("few-shot", {"episodes": 7, "seeds": 2}),
    ],
)
def test_rows_are_those_of_the_evaluation_suite(task, fields, lab, twins, tmp_path):
    cell = Evaluate(
        model=twins["DiffCLIP"],
        task=task,
        data="openmoji",
        protocol=fields,
        limit=60,
        train_limit=400 if task in ("probe", "few-shot") else None,
    )
    run_cells([cell], lab)
    rows = lab.store.rows(cell)
    source = load_source("openmoji", "test", 60, 400, task in ("probe", "few-shot"), False, False)
    cache = lab.store.root / FEATURES_FOLDER
    options = EvaluateOptions(models="m", out=tmp_path, cache=cache, quiet=True, **fields)
    evaluate([load_model(twins["DiffCLIP"].spec)], [], [source], options, tasks={task: None})
    expected = pl.read_parquet(tmp_path / "rows.parquet")
    assert rows.select(list(ROW_SCHEMA)).equals(expected.select(list(ROW_SCHEMA)))
    assert (set(rows["task"]), set(rows["data"])) == ({task}, {"openmoji"})


def test_mmvps_rows_tell_their_pattern(lab, twins):
    cell = Evaluate(model=twins["CLIP"], task="mmvp", data="emoji-mmvp")
    run_cells([cell], lab)
    rows = lab.store.rows(cell)
    assert rows.group_by("group", maintain_order=True).agg(pl.first("pattern"), pl.len()).rows() == [
        (0, "Facing right", 15),
        (1, "Skin tone", 15),
        (2, "Woman or man", 15),
    ]
    (told,) = study_rows([cell], lab.store).values()
    assert told.select("series", "trained_on", "task", "data").unique().rows() == [
        ("CLIP", "nothing", "mmvp", "emoji-mmvp")
    ]


def test_tasks_share_their_features_whichever_comes_first(lab, twins, monkeypatch):
    shared = {"model": twins["CLIP"], "data": "openmoji", "limit": 40}
    run_cells([Evaluate(task="retrieval", **shared)], lab)
    seen = []
    monkeypatch.setattr(features.FeatureStore, "_batches", lambda self, rows: seen.append(rows) or [rows])
    zero_shot = Evaluate(task="zero-shot", protocol={"templates": ("1",)}, **shared)
    run_cells([zero_shot], lab)
    assert seen == []
    assert len(lab.store.rows(zero_shot)) == 40


def test_an_evaluation_is_identified_by_its_model_task_data_and_protocol(twins):
    cell = Evaluate(model=TINY, task="probe", data="openmoji")
    assert described(cell)["fields"] == {"model": {"identity": identity(TINY)}, "task": "probe", "data": "openmoji"}
    assert cell.needs() == (TINY,)
    fields = {
        "model": twins["CLIP"],
        "task": "few-shot",
        "data": "digits",
        "protocol": {"seeds": 2},
        "limit": 3,
        "train_limit": 3,
        "split": "val",
    }
    others = [dataclasses.replace(cell, **{name: value}) for name, value in fields.items()]
    assert len({identity(one) for one in [cell, *others]}) == 8


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task": "probing"}, "task 'probing': expected one of retrieval"),
        ({"protocol": {"rounds": 3}}, "protocol 'rounds': expected some of captions"),
        (
            {"task": "retrieval", "data": "digits"},
            "retrieval on digits: not possible with these data; expected one of zero-shot",
        ),
        ({"task": "few-shot", "limit": 3}, "few-shot on openmoji"),
    ],
)
def test_what_cannot_be_measured_is_one_line(fields, words, lab, twins, tmp_path):
    cell = Evaluate(**{"model": twins["CLIP"], "task": "zero-shot", "data": "openmoji", **fields})
    with pytest.raises(UserError, match=words) as caught:
        cell.run(lab, tmp_path)
    assert "\n" not in str(caught.value)


def test_relevance_is_that_of_the_image_alone_and_stands_beside_its_pixels(lab, twins):
    cells = [Relevance(model=model, data="openmoji", limit=3) for model in twins.values()]
    run_cells(cells, lab)
    pairs = load_pairs("openmoji", split="test", progress=False).subset(3, 0)
    for cell, kinds in zip(cells, ([COMBINED], [COMBINED, POSITIVE, NEGATIVE]), strict=True):
        rows, model = lab.store.rows(cell), load_model(cell.model.spec)
        assert rows["kind"].to_list() == kinds * 3
        assert rows["sample"].unique(maintain_order=True).to_list() == pairs.ids.tolist()
        for row in rows.filter(kind=COMBINED).iter_rows(named=True):
            index = pairs.ids.tolist().index(row["sample"])
            assert row["text"] == pairs.captions[index][0]
            image = pairs.pixels(index)
            expected = chefer_relevance(model, image[None] / 255, [row["text"]])[0, 0]
            relevance = np.array(row["relevance"]).reshape(row["height"], row["width"])
            assert relevance == pytest.approx(expected.numpy(), rel=1e-5)
            shape = (row["image_height"], row["image_width"], 3)
            shown = np.frombuffer(row["image"], np.uint8).reshape(shape)
            assert np.array_equal(shown, image.permute(1, 2, 0).numpy())
            mask = drawn(image)
            assert row["object_share"] == mask.mean()
            assert (row["pointing_game"], row["average_precision"]) == pytest.approx(localise(relevance, mask))


def drawn(image):
    """Return what no white reaches from the border: nothing of it lies in a white part that touches one."""
    parts, _ = ndimage.label((image == 255).all(0).numpy())
    border = np.concatenate([parts[0], parts[-1], parts[:, 0], parts[:, -1]])
    return ~np.isin(parts, border[border > 0])


def test_images_may_be_asked_about_by_their_class_or_by_the_same_texts(lab, twins):
    by_class = Relevance(model=twins["CLIP"], data="openmoji", limit=2, ask="class", prompt="a picture of {}")
    same = Relevance(model=twins["CLIP"], data="openmoji", limit=2, texts=("a cat", "a flag"))
    run_cells([by_class, same], lab)
    pairs = load_pairs("openmoji", split="test", progress=False).subset(2, 0)
    names = [pairs.class_names[label] for label in pairs.labels.tolist()]
    assert lab.store.rows(by_class)["text"].to_list() == names
    assert lab.store.rows(same)["text"].to_list() == ["a cat", "a flag"] * 2
    model = load_model(twins["CLIP"].spec)
    expected = chefer_relevance(model, pairs.pixels(0)[None] / 255, [f"a picture of {names[0]}"])
    assert lab.store.rows(by_class)["relevance"][0].to_list() == pytest.approx(expected.flatten().tolist(), rel=1e-5)


def test_an_image_is_asked_for_its_objects_and_maps_are_scored_on_the_one_that_is_named(lab, twins):
    scenes = load_pairs("emoji-scenes", split="test", progress=False)
    cell = Relevance(model=twins["CLIP"], data="emoji-scenes", limit=2, ask="objects")
    query_cell = dataclasses.replace(cell, texts=scenes.captions[3])
    run_cells([cell, query_cell], lab)
    rows = lab.store.rows(cell)
    chosen = scenes.subset(2, 0)
    assert rows["text"].to_list() == [name for two in chosen.captions for name in two]
    for index, row in enumerate(rows.iter_rows(named=True)):
        mask, other_mask = (chosen.objects[index // 2][place].mask() for place in (index % 2, 1 - index % 2))
        relevance = np.array(row["relevance"]).reshape(row["height"], row["width"])
        assert row["object_share"] == mask.mean()
        assert row["average_precision"] == pytest.approx(localise(relevance, mask)[1])
        fine = np.array(Image.fromarray(relevance).resize((64, 64), Image.Resampling.BILINEAR))
        assert row["prefers_own"] == (fine[mask].mean() > fine[other_mask].mean())
    rows = lab.store.rows(query_cell)
    assert rows["sample"].unique().to_list() == [3]  # the only image that shows both
    assert rows["text"].to_list() == list(scenes.captions[3])
    (table,) = study_rows([cell, query_cell], lab.store).values()
    assert table["asked"].unique(maintain_order=True).to_list() == [None, ", ".join(scenes.captions[3])]


def test_masks_are_cut_to_the_square_that_the_model_sees(lab, twins, tmp_path, monkeypatch):
    wide = np.full((20, 50, 3), 255, np.uint8)
    wide[5:15, 15:25] = 0
    wide[:, 45:] = 9  # outside the square
    Image.fromarray(wide).save(tmp_path / "000000000001.jpg")
    corners = ([15, 5, 25, 5, 25, 15, 15, 15], [45, 0, 50, 0, 50, 20, 45, 20])
    notes = [
        {"id": index, "image_id": 1, "category_id": index, "iscrowd": 0, "area": 100, "segmentation": [points]}
        for index, points in enumerate(corners)
    ]
    annotations = {
        "images": [{"id": 1, "file_name": "000000000001.jpg", "height": 20, "width": 50}],
        "annotations": notes,
        "categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
    }
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances_val2014.json").write_text(json.dumps(annotations))
    (tmp_path / "val2014").mkdir()
    (tmp_path / "000000000001.jpg").rename(tmp_path / "val2014" / "000000000001.jpg")
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path))
    cell = Relevance(model=twins["CLIP"], data="coco-objects", limit=1, ask="objects")
    run_cells([cell], lab)
    rows = lab.store.rows(cell)
    assert rows["text"].to_list() == ["cat", "dog"]
    assert rows["object_share"].to_list() == [pytest.approx(100 / 400), None]  # the dog is cut off
    assert rows["prefers_own"].to_list() == [None, None]
    row = rows.row(0, named=True)
    relevance, mask = np.array(row["relevance"]).reshape(row["height"], row["width"]), np.zeros((20, 20), bool)
    mask[5:15, :10] = True
    assert row["average_precision"] == pytest.approx(localise(relevance, mask)[1])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ask": "objects"}, "ask 'objects' on openmoji: its images have none; expected ask 'caption'"),
        ({"data": "emoji-scenes", "texts": ("a", "b")}, "texts on emoji-scenes: no image shows a and b"),
        ({"kinds": ("heat",)}, "kind 'heat': expected some of relevance"),
        ({"prompt": "a photo"}, "prompt 'a photo': expected {}"),
    ],
)
def test_maps_that_cannot_be_drawn_are_one_line(fields, words, lab, twins, tmp_path):
    with pytest.raises(UserError, match=words):
        Relevance(**{"model": twins["CLIP"], "data": "openmoji", "limit": 1, **fields}).run(lab, tmp_path)


def test_the_released_checkpoints_are_told_apart_without_being_there():
    one, two = released()
    assert (one.series, two.series) == ("CLIP", "DiffCLIP")
    assert two.spec.endswith("#lambda_init=0.8")
    cells = [bench(profile("paper")).evaluate(model, "zero-shot", "imagenet") for model in (one, two)]
    assert identity(cells[0]) != identity(cells[1])
    assert cells[0].factors()["trained_on"] == CC12M
