"""Features on disk: computed once, part by part, by whoever is there."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from antiphase.errors import UserError
from antiphase.evaluation import features
from antiphase.evaluation.features import FeatureStore
from antiphase.models import clip, load_model, write_model, zero_shot_classifier
from tests.threads import in_threads
from tests.training.tiny_pairs import TINY, tiny_pairs


@pytest.fixture
def model(tmp_path):
    write_model(clip(**TINY), tmp_path / "model")
    return load_model(str(tmp_path / "model"))


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "_PART", 4)
    return FeatureStore(tmp_path / "features", batch_size=3, progress=False)


@pytest.fixture
def seen(model, monkeypatch):
    """Numbers of images that go through the model."""
    counts = []
    model.visual.register_forward_hook(lambda module, args, output: counts.append(len(output)))
    return counts


@torch.no_grad()
def test_features_are_computed_once_and_are_the_models(model, store, seen):
    pairs = tiny_pairs(11, side=16)
    first = store.image_features(model, pairs)
    torch.testing.assert_close(first, model.visual(pairs.array / 255))
    seen.clear()
    assert torch.equal(store.image_features(model, pairs), first)
    assert seen == []
    torch.testing.assert_close(store.project(model, first), F.normalize(model.encode_image(pairs.array / 255), dim=-1))


def test_a_killed_extraction_goes_on_at_the_part_where_it_was(model, store, seen):
    pairs = tiny_pairs(11, side=16)
    whole = store.image_features(model, pairs)
    parts = sorted(store.folder.rglob("*.safetensors"))
    assert len(parts) == 3
    parts[1].unlink()
    parts[2].write_bytes(b"half")
    seen.clear()
    assert torch.equal(store.image_features(model, pairs), whole)
    assert sum(seen) == 4 + 3


def test_a_flipped_bit_of_a_feature_is_noticed_and_its_part_made_again(model, store, seen):
    pairs = tiny_pairs(11, side=16)
    whole = store.image_features(model, pairs)
    part = sorted(store.folder.rglob("*.safetensors"))[1]
    content = bytearray(part.read_bytes())
    content[-2] ^= 1
    part.write_bytes(content)
    seen.clear()
    assert torch.equal(store.image_features(model, pairs), whole)
    assert sum(seen) == 4
    save_file({"rows": whole[4:8].contiguous()}, part)  # of before there were digests
    assert torch.equal(store.image_features(model, pairs), whole)
    assert sum(seen) == 4


def test_processes_share_the_parts(model, store, seen):
    pairs = tiny_pairs(11, side=16)
    whole = store.image_features(model, pairs)
    parts = sorted(store.folder.rglob("*.safetensors"))
    parts[1].unlink()
    seen.clear()
    other = replace(store, folder=store.folder / "shared")

    def run(process):
        return [replace(template, process=process).image_features(model, pairs) for template in (store, other)]

    results = in_threads(2, run)
    assert all(torch.equal(features, whole) for pair in results for features in pair)
    assert sum(seen) == 4 + 11


def test_other_models_data_and_precisions_are_other_features(model, store):
    pairs = tiny_pairs(5, side=16)
    store.image_features(model, pairs)
    store.image_features(model, pairs.take(range(4)))
    replace(store, precision="bf16").image_features(model, pairs)
    with torch.no_grad():
        model.image_projection.add_(1)
    FeatureStore(store.folder, progress=False).image_features(model, pairs)
    assert len(list(store.folder.iterdir())) == 4


def test_texts_and_class_vectors_are_stored_too(model, store, monkeypatch):
    texts = [f"a {word} mug" for word in ("red", "green", "blue", "round", "old")]
    vectors = store.text_vectors(model, texts, "captions")
    with torch.no_grad():
        torch.testing.assert_close(vectors, F.normalize(model.encode_text(texts), dim=-1))
    prompts = [["a mug", "the mug"], ["a lamp", "the lamp"], ["a dog"], ["a cat", "cat"], ["tree"]]
    classes = store.class_vectors(model, prompts, "prompts")
    torch.testing.assert_close(classes, zero_shot_classifier(model, list("abcde"), prompts=prompts).weights)
    monkeypatch.setattr(model, "encode_text", lambda texts: pytest.fail("encoded again"))
    assert torch.equal(store.class_vectors(model, prompts, "prompts"), classes)
    assert torch.equal(store.text_vectors(model, texts, "captions"), vectors)


def test_features_that_are_not_finite_stop_the_run(model, store):
    with torch.no_grad():
        model.visual.norm.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="features that are not finite"):
        store.image_features(model, tiny_pairs(5, side=16))
    assert not list(store.folder.rglob("*.safetensors"))
