"""A dual encoder bound to prompts."""

import pytest
import torch
import torch.nn.functional as F

from antiphase.errors import UserError
from antiphase.models import clip, zero_shot_classifier
from antiphase.models.zeroshot import ZeroShotClassifier

NAMES = ("mug", "lamp", "dog")


@pytest.fixture(scope="module")
def model():
    return clip(seed=0).eval()


def test_logits_are_scaled_cosines_to_the_mean_of_unit_prompt_vectors(model):
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    classifier = zero_shot_classifier(model, NAMES, ["a photo of {}", "{}"])
    with torch.no_grad():
        logits = classifier(images)
        for row, image in enumerate(model.encode_image(images)):
            for column, name in enumerate(NAMES):
                prompts = model.encode_text([f"a photo of {name}", name])
                mean = (prompts[0] / prompts[0].norm() + prompts[1] / prompts[1].norm()) / 2
                cosine = image @ mean / image.norm() / mean.norm()
                assert float(logits[row, column]) == pytest.approx(float(cosine / 0.07), abs=1e-4)


def test_a_template_may_name_the_class_twice_and_hold_braces(model):
    one = zero_shot_classifier(model, ["mug"], ["{} {x} {}"])
    with torch.no_grad():
        torch.testing.assert_close(one.weights[:, 0], F.normalize(model.encode_text(["mug {x} mug"])[0], dim=0))


def test_class_names_become_words(model):
    named = zero_shot_classifier(model, ["n01440764", "ice_cream"], ["a {}"])
    with torch.no_grad():
        for column, text in enumerate(["a tench", "a ice cream"]):
            torch.testing.assert_close(named.weights[:, column], F.normalize(model.encode_text([text])[0], dim=0))


def test_whole_texts_take_the_place_of_templates(model):
    texts = [["a mug", "cup"], ["lamp"], ["dog"]]
    classifier = zero_shot_classifier(model, NAMES, prompts=texts)
    with torch.no_grad():
        expected = F.normalize(model.encode_text(["lamp"])[0], dim=0)
    torch.testing.assert_close(classifier.weights[:, 1], expected)


def test_a_classifier_starts_in_evaluation_mode():
    model = clip(seed=0).train()
    classifier = ZeroShotClassifier(model, torch.eye(192)[:, :3])
    assert not any(module.training for module in classifier.modules())


def test_gradients_reach_the_image(model):
    images = torch.rand(2, 3, 64, 64, requires_grad=True)
    classifier = zero_shot_classifier(model, NAMES)
    (gradient,) = torch.autograd.grad(classifier(images)[:, 0].sum(), images)
    assert gradient.abs().amax((1, 2, 3)).min() > 0


def test_mistakes_are_named(model):
    with pytest.raises(UserError, match="as a placeholder for the class name"):
        zero_shot_classifier(model, NAMES, ["a photo"])
    with pytest.raises(UserError, match="0 classes and 1 templates"):
        zero_shot_classifier(model, [])
    with pytest.raises(UserError, match="prompts for 1 classes"):
        zero_shot_classifier(model, NAMES, prompts=[["a"]])


def test_autocast_does_not_round_the_logits(model):
    images = torch.rand(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    classifier = zero_shot_classifier(model, NAMES, ["a photo of {}"])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits = classifier(images)
    assert logits.dtype == torch.float32
    assert (logits != logits.bfloat16()).all()
