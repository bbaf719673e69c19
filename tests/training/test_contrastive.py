"""Contrastive training: resume after a kill, bad samples, the recipe, what the log holds."""

import itertools
import json
import math
import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torchvision.transforms.v2 import functional as v2

from antiphase import convert
from antiphase.data.shards import open_shards
from antiphase.errors import UserError
from antiphase.evaluation.retrieval import encoder_numbers
from antiphase.models import clip, load_model
from antiphase.models.clip import build_clip
from antiphase.streams import key, sample_keys, uniform
from antiphase.training.contrastive import BAD_SAMPLES_FILE, _crop_box, clip_optimizer, random_crops, train_clip
from antiphase.training.recipe import MAX_LOGIT_SCALE, clip_learning_rate, make_clip_recipe
from tests.processes import KILLS_ITSELF, Python, python, together
from tests.training.tiny_pairs import TINY, WORDS, tiny_pairs, tiny_recipe, write_shard


def test_a_run_leaves_a_model_that_loads_and_a_log(tmp_path):
    pairs = tiny_pairs()
    recipe = tiny_recipe()
    log = train_clip(recipe, pairs, tmp_path, evaluate=lambda model: encoder_numbers(model, pairs), progress=False)
    assert [row["epoch"] for row in log] == [1, 2]
    assert {"loss", "logit_scale", "lambda", "image R@1", "text R@5", "zero-shot"} <= log[-1].keys()
    assert len(log[-1]["lambda"]) == 2
    model = load_model(str(tmp_path))
    assert model.card.attention == "differential"
    assert model.card.num_classes == 0
    assert model.encode_text(["a mug"]).shape == (1, 12)
    assert encoder_numbers(model, pairs)["image R@5"] == log[-1]["image R@5"]
    assert train_clip(recipe, pairs, tmp_path, progress=False) == log  # finished: nothing is done again
    with pytest.raises(UserError, match="differs in seed"):
        train_clip(tiny_recipe(seed=1), pairs, tmp_path, progress=False)


def test_a_model_learns_its_training_pairs(tmp_path):
    pairs = tiny_pairs(side=16)  # whole images: of noise, a part says nothing
    plan = {"epochs": 60, "batch_size": 23, "learning_rate": 5e-3, "weight_decay": 0.0, "crop": (1, 1)}
    recipe = tiny_recipe(pairs=pairs, captions="first", **plan)
    train_clip(recipe, pairs, tmp_path, progress=False)
    recalls = encoder_numbers(load_model(str(tmp_path)), pairs, captions="first")
    assert recalls["image R@1"] > 0.6  # the second captions, of one word, several images share


@pytest.mark.parametrize("change", [{"part": 3}, {"checkpointing": True}], ids=["in parts", "with checkpointing"])
def test_how_the_gradient_is_made_changes_no_weight_but_by_rounding(tmp_path, change):
    pairs, recipe = tiny_pairs(), tiny_recipe(patch_dropout=0.5)
    plain = train_clip(recipe, pairs, tmp_path / "plain", progress=False)
    changed = train_clip(recipe, pairs, tmp_path / "changed", progress=False, **change)
    # Adam turns rounding of a vanishing gradient into a whole step, so weights are no measure; the loss is
    assert [row["loss"] for row in changed] == pytest.approx([row["loss"] for row in plain], rel=1e-4)


@pytest.mark.slow
def test_compiled_towers_learn_the_same(tmp_path):
    pairs, recipe = tiny_pairs(), tiny_recipe()
    train_clip(recipe, pairs, tmp_path / "plain", progress=False)
    train_clip(recipe, pairs, tmp_path / "compiled", compiled=True, progress=False)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "compiled"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)


def test_a_run_starts_from_the_weights_of_another(tmp_path, run_cli):
    write_shard(tmp_path / "a.tar", ["a mug", "a lamp"] * 4)
    words = ("train-clip", "--model", "diffclip", "--data", f"shards:{tmp_path / 'a.tar'}", "--samples", 8)
    words += (
        "--preset",
        "openmoji",
        "--dim",
        64,
        "--depth",
        1,
        "--batch-size",
        4,
        "--epochs",
        1,
        "--warmup-epochs",
        0,
        "-q",
        "--out",
    )
    small = words[: words.index("--dim")] + words[words.index("--batch-size") :]
    start = ("--from", tmp_path / "first")
    assert run_cli(*words, tmp_path / "first")[0] == 0
    code, _, err = run_cli(*small, tmp_path / "second", *start, "--learning-rate", 1e-12)
    assert code == 0, err
    first, second = (load_file(tmp_path / run / "model.safetensors") for run in ("first", "second"))
    assert all(torch.allclose(first[name], second[name], rtol=0, atol=1e-4) for name in first)
    for changes, line in {
        (*words, tmp_path / "x", *start): "dim: is that of",
        (*small, tmp_path / "x", *start, "--model", "clip"): "is no clip; give the --model of its attention",
        (*small, tmp_path / "x", *start, "--init", "released"): "init: is that of",
        (*small, tmp_path / "second"): "differs in",
    }.items():
        code, _, err = run_cli(*changes)
        assert (code, err.count("\n")) == (2, 1)
        assert line in err


def test_a_converted_clip_is_trained_on_as_a_diffclip(tmp_path, run_cli):
    write_shard(tmp_path / "a.tar", ["a mug", "a lamp"] * 4)
    sizes = {"vision": {"dim": 24, "depth": 1, "num_heads": 2, "patch_size": 16}, "embed_dim": 12}
    source = clip(**sizes, text={"dim": 16, "depth": 1, "num_heads": 2})
    new = convert(source, "v2", out=tmp_path / "v2")
    words = ("train-clip", "--data", f"shards:{tmp_path / 'a.tar'}", "--samples", 8, "--batch-size", 4)
    words += ("--epochs", 1, "--warmup-epochs", 0, "--learning-rate", 1e-12, "-q", "--from", tmp_path / "v2")
    code, _, err = run_cli(*words, "--model", "diffclip", "--out", tmp_path / "run")
    assert code == 0, err
    assert load_model(str(tmp_path / "run")).config == new.config
    before, after = (load_file(tmp_path / run / "model.safetensors") for run in ("v2", "run"))
    assert all(torch.allclose(before[name], after[name], rtol=0, atol=1e-4) for name in before)
    code, _, err = run_cli(*words, "--model", "clip", "--out", tmp_path / "x")
    assert (code, err.count("\n")) == (2, 1)
    assert "is no clip; give the --model of its attention" in err


def test_the_scale_stays_within_its_bounds(tmp_path):
    recipe = make_clip_recipe(
        "clip", "openmoji", "tiny", tiny_pairs().fingerprint(), TINY | {"logit_scale": 9.0}, epochs=1, batch_size=8
    )
    log = train_clip(recipe, tiny_pairs(), tmp_path, progress=False)
    # it starts at e⁹; the last step may have taken it down from the bound
    assert 99.0 < log[-1]["logit_scale"] <= math.exp(MAX_LOGIT_SCALE) * (1 + 1e-6)


def test_weight_decay_spares_what_has_fewer_than_two_axes():
    recipe = tiny_recipe()
    optimizer = clip_optimizer(build_clip(recipe.model), recipe)
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.2, 0.0)
    assert min(p.ndim for p in decayed["params"]) == 2
    assert max(p.ndim for p in spared["params"]) == 1


def shards(folder):
    folder.mkdir()
    for shard in range(3):
        captions = [f"{WORDS[i % 14]} {WORDS[(3 * i + shard) % 14]}" for i in range(32)]
        write_shard(folder / f"{shard:05d}.tar", captions, start=100 * shard)
    return f"shards:{folder}/{{00000..00002}}.tar"


def command(data, out, *more):
    return [
        "-m",
        "antiphase",
        "train-clip",
        "--model",
        "diffclip",
        "--preset",
        "openmoji",
        "--data",
        data,
        "--batch-size",
        "8",
        "--precision",
        "float32",
        "--out",
        str(out),
        "-q",
        *more,
    ]


@pytest.mark.thorough
def test_a_run_killed_within_an_epoch_of_a_stream_goes_on_to_the_same_weights(tmp_path, run_cli):
    data = shards(tmp_path / "shards")
    killed, whole = (command(data, tmp_path / name, "--epochs", "2")[2:] for name in ("killed", "whole"))
    with Python(KILLS_ITSELF, *killed) as process:
        assert process.wait() == -signal.SIGKILL
    assert (tmp_path / "killed" / "state.safetensors").exists()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    for arguments in (killed, whole):
        assert run_cli(*arguments)[0] == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("killed", "whole"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("killed", "whole")
    ]
    assert losses[0] == losses[1]


@pytest.mark.thorough
def test_two_processes_train_on_a_stream_as_one_does(tmp_path):
    data = shards(tmp_path / "shards")
    more = ("--epochs", "2", "--lanes", "2")
    python(*command(data, tmp_path / "one", *more))
    assert together(2, *command(data, tmp_path / "two", *more)).count("after 2 epochs") == 1
    logs = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert [row["loss"] for row in logs[1]] == pytest.approx([row["loss"] for row in logs[0]], rel=1e-4)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    # were each process a run of its own, on half of the lanes or on all, the weights would be far off or equal
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_bad_samples_are_named_and_counted_and_training_goes_on(tmp_path, run_cli):
    data = shards(tmp_path / "shards")
    write_shard(tmp_path / "shards" / "00001.tar", ["a dog", None, "a cat", *["a mug"] * 17], start=100)
    first, third = (tmp_path / "shards" / f"0000{shard}.tar" for shard in (0, 2))
    content = first.read_bytes()
    offset = content.index(b"\xff\xd8\xff")
    first.write_bytes(content[:offset] + b"\x00" * 64 + content[offset + 64 :])  # the first image's head
    os.truncate(third, third.stat().st_size * 2 // 3)
    assert run_cli(*command(data, tmp_path / "run", "--samples", "64", "--epochs", "2")[2:])[0] == 0
    bad = (tmp_path / "run" / BAD_SAMPLES_FILE).read_text().splitlines()
    assert len(bad) == 3, bad
    assert any("00000.tar" in line and "000000000" in line for line in bad)
    assert any("00001.tar" in line and "000000101" in line and "caption" in line for line in bad)
    assert any("00002.tar" in line for line in bad)
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert log[-1]["bad_samples"] == 3
    assert math.isfinite(log[-1]["loss"])


def test_shards_in_which_no_image_can_be_read_end_the_training(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    write_shard(folder / "00000.tar", ["a dog"] * 16)
    tar = (folder / "00000.tar").read_bytes()
    assert tar.count(b"\xff\xd8\xff") == 16
    (folder / "00000.tar").write_bytes(tar.replace(b"\xff\xd8\xff", b"\0\0\0"))
    pairs = open_shards(str(folder))
    recipe = tiny_recipe(pairs=pairs, epochs=1)
    with pytest.raises(
        UserError, match=r"none of the last 16 samples could be read, training stopped; see .*bad-samples\.txt"
    ):
        train_clip(recipe, pairs, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert len((tmp_path / "run" / BAD_SAMPLES_FILE).read_text().splitlines()) == 16


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 10_000))
def test_crops_lie_within_the_image_and_keep_the_recipes_area(height, width, seed):
    draws = torch.rand(22, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    left, top, right, bottom = _crop_box(height, width, draws, (0.5, 1.0))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    if 30 < height < 1.3 * width and width < 1.3 * height:
        assert (right - left) * (bottom - top) > 0.45 * height * width


def test_a_crop_is_torchvisions_of_the_same_box():
    images = list(tiny_pairs(5).array)
    keys = sample_keys(key(0, "crop", 0), torch.arange(5))
    crops = random_crops(images, keys, 16, (0.5, 1.0))
    assert torch.equal(crops[2:4], random_crops(images[2:4], keys[2:4], 16, (0.5, 1.0)))
    for image, crop, draws in zip(images, crops, uniform(keys, 22).double(), strict=True):
        left, top, right, bottom = _crop_box(19, 17, draws, (0.5, 1.0))
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        cut = v2.resized_crop(picture, top, left, bottom - top, right - left, [16, 16])
        # at its border Pillow's box sees the pixels beyond it, the cut-out part does not
        apart = (crop.int() - v2.pil_to_tensor(cut).int()).abs()
        assert apart[:, 2:-2, 2:-2].max() <= 1


def test_the_learning_rate_warms_up_linearly_and_falls_by_half_a_cosine():
    recipe = tiny_recipe(epochs=5, warmup_epochs=1.0, learning_rate=5e-4)
    rates = [clip_learning_rate(recipe, step, 10) for step in range(50)]
    assert rates[0] == pytest.approx(1e-6)
    assert rates[9] == pytest.approx(5e-4)
    assert rates[5] - rates[4] == pytest.approx(rates[2] - rates[1])
    assert rates[10] == pytest.approx(5e-4)
    assert rates[30] == pytest.approx((5e-4 + 1e-5) / 2)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert rates[-1] < 1.2e-5


def test_the_papers_recipe_is_the_default():
    recipe = make_clip_recipe("diffclip", "diffclip", "cc3m", "0", {})
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.weight_decay) == (40, 4096, 5e-4, 0.5)
    assert (recipe.betas, recipe.epsilon, recipe.crop) == ((0.9, 0.98), 1e-8, (0.5, 1.0))
    assert recipe.model.vision.image_size == 224
    sigmoid = make_clip_recipe("clip", "openmoji", "x", "0", {}, loss="siglip").model
    assert (sigmoid.logit_bias, sigmoid.logit_scale) == (-10.0, pytest.approx(math.log(10)))


@pytest.mark.parametrize("more", [(), ("--limit", "4")])
def test_a_table_without_splits_holds_nothing_out(run_cli, tmp_path, more):
    for i in range(6):
        Image.new("RGB", (5, 5), (40 * i, 0, 0)).save(tmp_path / f"{i}.png")
    (tmp_path / "pairs.csv").write_text("image,caption\n" + "".join(f"{i}.png,number {i}\n" for i in range(6)))
    code, _, err = run_cli(
        "train-clip",
        "--model",
        "clip",
        "--preset",
        "openmoji",
        "--data",
        f"csv:{tmp_path / 'pairs.csv'}",
        "--batch-size",
        "2",
        "--epochs",
        "1",
        "--out",
        tmp_path / "run",
        "-q",
        *more,
    )
    assert code == 0, err
    assert "nothing is held out" in err
    assert "image R@1" not in json.loads((tmp_path / "run" / "metrics.jsonl").read_text())


def test_mistakes_are_one_line(run_cli, tmp_path):
    for arguments, words in (
        (["--model", "clop"], "model 'clop'"),
        (["--model", "clip", "--preset", "huge"], "preset 'huge'"),
        (["--model", "clip", "--preset", "openmoji", "--batch-size", "999999"], "batch size 999999"),
        (["--model", "clip", "--preset", "openmoji", "--patch-dropout", "1.5"], "patch_dropout"),
        (["--model", "clip", "--preset", "openmoji", "--loss", "triplet"], "loss"),
        (["--model", "clip", "--preset", "openmoji", "--learning-rate", "inf"], "learning_rate"),
        (["--model", "clip", "--preset", "openmoji", "--track", "nothing"], "track 'nothing': expected one of"),
    ):
        table = tmp_path / "pairs.csv"
        table.write_text("image,caption\na.png,a dog\nb.png,a cat\nc.png,a mug\n")
        for name in "abc":
            Image.new("RGB", (5, 5)).save(tmp_path / f"{name}.png")
        size = [] if "--batch-size" in arguments else ["--batch-size", "2"]
        code, out, err = run_cli(
            "train-clip",
            *arguments,
            *size,
            "--data",
            f"csv:{table}",
            "--held-out",
            "none",
            "--out",
            tmp_path / "run",
            "-q",
        )
        assert (code, out) == (2, ""), err
        assert words in err
        assert len(err.splitlines()) == 1
        assert not (tmp_path / "run" / "recipe.json").exists()


def test_several_penalties_on_maps_share_a_graph(tmp_path):
    def weights(defences, name):
        train_clip(tiny_recipe(epochs=1, defences=defences), tiny_pairs(), tmp_path / name, progress=False)
        return load_file(tmp_path / name / "model.safetensors")

    both, one = weights({"map-jacobian": 1.0, "alignment": 1.0}, "both"), weights({"map-jacobian": 1.0}, "one")
    assert any(not torch.equal(both[name], one[name]) for name in both)
