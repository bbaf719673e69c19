"""Models by specification, and what is known of them."""

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

import antiphase
from antiphase.data import load_data
from antiphase.errors import UserError
from antiphase.models import load_model, mean_lambdas, vit
from antiphase.models.card import card_of
from antiphase.models.checkpoints import save
from antiphase.models.zoo import fingerprint, specimen_names

SPECIMENS = Path(antiphase.__file__).parent / "specimens"


def test_the_package_holds_eight_pairs_and_a_robust_one_within_three_megabytes():
    kinds = ("diffvit", "vit")
    assert specimen_names() == [f"{kind}-{i}" for kind in kinds for i in (*range(8), "robust-0")]
    assert sum(path.stat().st_size for path in SPECIMENS.rglob("*") if path.is_file()) < 3_000_000


@pytest.mark.parametrize("name", specimen_names())
def test_a_specimen_has_the_accuracy_that_its_log_says(name):
    model = load_model(f"specimen:{name}")
    card = card_of(model)
    assert card.seed == int(name[-1])
    assert card.attention == ("differential" if name.startswith("d") else "softmax")
    assert len(mean_lambdas(model)) == (card.attention == "differential")
    data = load_data("specimen-fashion-mnist")
    with torch.no_grad():
        right = model(data.images(range(len(data)))).argmax(1) == data.labels
    logged = json.loads((SPECIMENS / name / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]
    # 1,000 of the 10,000 images that the log counts, and weights rounded to half precision
    assert float(right.float().mean()) == pytest.approx(logged, abs=0.03)
    assert card.recipe is not None
    assert card.recipe["data"] == "fashion-mnist"


def test_a_timm_model_takes_pixels_and_gives_timms_logits():
    spec = "timm:vit_tiny_patch16_224"
    model = load_model(spec, random_weights=True, seed=3)
    again = load_model(spec, random_weights=True, seed=3)
    images = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    bare = timm.create_model("vit_tiny_patch16_224").eval()
    bare.load_state_dict(model.model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(images), bare((images - 0.5) / 0.5))
        assert torch.equal(model(images), again(images))
    assert not model.training


def test_a_fingerprint_tells_functions_apart():
    first, second = (load_model(f"specimen:{name}") for name in ("vit-0", "vit-1"))
    assert fingerprint(first) == fingerprint(load_model("specimen:vit-0"))
    assert fingerprint(first) != fingerprint(second)
    with torch.no_grad():
        first.head.bias[3] += 1e-6
    assert fingerprint(first) != fingerprint(load_model("specimen:vit-0"))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("specimen:vit-8", "diffvit-0"),
        ("timm:vit_tini_patch16_224", "vit_tiny"),
        ("nowhere/at/all", "specimen"),
        ("x" * 5000, "xxx … xxx.*specimen"),
        ("/" + "x" * 5000, "no such directory"),
        ("", "model '': expected a string"),
        (None, "model None: expected a string such as 'specimen:diffvit-0'"),
        (Path("runs/vit"), "model 'runs/vit': no such directory"),
    ],
)
def test_an_unknown_model_is_named_with_what_there_is(spec, named):
    with pytest.raises(UserError, match=named) as caught:
        load_model(spec)
    assert len(str(caught.value)) < 1000


def test_weights_without_a_network_are_one_line(monkeypatch):
    def fail(*arguments, **options):
        raise OSError("no route to host\nsecond line")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(UserError, match="--random-weights") as raised:
        load_model("timm:vit_tiny_patch16_224")
    assert "\n" not in str(raised.value)


def test_a_tokenizer_without_a_network_is_not_answered_with_random_weights(monkeypatch):
    import open_clip

    def fail(*arguments, **options):
        raise OSError("no route to host")

    monkeypatch.setattr(open_clip, "create_model", fail)
    with pytest.raises(UserError, match="text tower or tokenizer is neither cached") as raised:
        load_model("open_clip:roberta-ViT-B-32", random_weights=True)
    assert "--random-weights" not in str(raised.value)


def test_a_damaged_byte_is_found(tmp_path):
    model = vit(8, dim=8, num_heads=2)
    save(model, {"model": model.config.model_dump(mode="json")}, tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    load_model(str(tmp_path))
    file.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])  # a small change of one weight
    with pytest.raises(UserError, match=r"model\.safetensors: damaged"):
        load_model(str(tmp_path))
    save_file(model.state_dict(), file)  # as older versions wrote it
    load_model(str(tmp_path))


def test_a_timm_model_with_nan_is_refused(monkeypatch):
    make = timm.create_model

    def damaged(*arguments, **options):
        model = make(*arguments, **options)
        with torch.no_grad():
            model.head.bias[0] = float("nan")
        return model

    monkeypatch.setattr(timm, "create_model", damaged)
    with pytest.raises(UserError, match=r"timm:test_vit: 'head\.bias' contains NaN or infinity"):
        load_model("timm:test_vit", random_weights=True)


def test_a_model_that_was_not_loaded_has_no_card():
    with pytest.raises(UserError, match="load_model"):
        card_of(torch.nn.Linear(2, 3))
