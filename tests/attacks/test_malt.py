"""MALT's targets: against Jacobians row by row, its passes, and verdicts that know nothing of the batch."""

import pytest
import torch

from antiphase.attacks import Threat, apgd
from antiphase.attacks.catalogue import find_attack, most_passes, parse_settings
from antiphase.attacks.objectives import dlr
from antiphase.errors import UserError
from tests.attacks import toys

CLASSES, COUNT = 113, 19
THREAT = Threat(eps=0.045)


def nearest_by_hand(model, image):
    """Return the classes of the 100 most likely others in the order of (z_y − z_i) / ‖∇(z_y − z_i)‖₂, one by one."""
    logits = model(image[None])[0].detach()
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x[None])[0], image).flatten(1)
    label = int(logits.argmax())
    likely = [one for one in logits.argsort(descending=True).tolist() if one != label][:100]
    reach = {one: (logits[label] - logits[one]) / (jacobian[label] - jacobian[one]).norm() for one in likely}
    return sorted(likely, key=reach.__getitem__)[:9]


def test_targets_are_the_nine_nearest_of_the_likely_in_a_linear_view():
    model, images = toys.network(CLASSES, hidden=41), toys.images(5)
    orders = []
    for image in images:
        seen = []

        def spy(logits, labels, targets, seen=seen):
            seen.extend(targets.tolist())
            return dlr(logits, labels, targets)

        apgd(model, image[None], None, Threat(eps=1e-5), steps=1, targets="malt", objective=spy)
        orders.append(list(dict.fromkeys(seen)))
    assert orders == [nearest_by_hand(model, image) for image in images]
    logit_order = [model(image[None])[0].argsort(descending=True)[1:10].tolist() for image in images]
    assert orders != logit_order


def test_passes_of_the_choice_are_counted_and_estimated():
    model, images = toys.network(CLASSES, hidden=41), toys.images(COUNT)
    result = apgd(model, images, None, Threat(eps=1e-5), steps=2, targets="malt")
    assert not result.success.any()
    assert (result.backwards == 100 + 9 * 3).all()
    assert (result.forwards == 1 + 5 + 9 * (3 + 1)).all()  # clean image; 100 gradients, 20 a pass; confirmations
    (stage,) = find_attack("apgd-t", targets="malt", steps=2).stages
    assert most_passes(stage, CLASSES) == (100 + 18, 100 + 18)
    assert most_passes(stage, 5) == (4 + 8, 4 + 8)
    (stage,) = find_attack("apgd-t", targets="malt", steps=2, eot=3).stages
    result = apgd(model, images[:1], None, Threat(eps=1e-5), steps=2, targets="malt", eot=3)
    assert int(result.backwards) == 3 * (100 + 9 * 3)
    assert most_passes(stage, CLASSES) == (3 * (100 + 18), 3 * (100 + 18))


@pytest.mark.parametrize("options", [{"batch_size": 3}, {"precision": "bf16"}])
def test_verdicts_depend_neither_on_the_batch_nor_on_the_precision(options):
    model, images = toys.network(CLASSES, hidden=41), toys.images(COUNT)
    whole = apgd(model, images, None, THREAT, steps=5, targets="malt")
    order = torch.arange(COUNT).flip(0)
    other = apgd(model, images[order], None, THREAT, steps=5, targets="malt", ids=order, **options)
    assert torch.equal(other.success[order], whole.success)
    assert 0 < whole.asr < 1
    if "batch_size" in options:
        assert torch.equal(other.adversarial[order], whole.adversarial)


def test_images_keep_their_context():
    mixture, which = toys.Asked(), torch.arange(COUNT) % 3
    whole = apgd(mixture, toys.images(COUNT), None, THREAT, steps=3, targets="malt", context=which)
    for number, model in enumerate(mixture.networks[:2]):
        rows = (which == number).nonzero()[:, 0]
        alone = apgd(model, toys.images(COUNT)[rows], None, THREAT, steps=3, targets="malt", ids=rows)
        assert torch.equal(whole.adversarial[rows], alone.adversarial)


def test_a_nearer_target_breaks_a_linear_model_that_likely_classes_do_not():
    model = toys.Linear(40, scale=0.3).requires_grad_(False)
    model.weight[:20] *= 0.02  # all images are of class 0, and the next 19 classes are likely and far
    model.bias[:20], model.bias[20:] = 3.0, 0.0
    model.bias[0] = 4.0
    model.bias[20:] -= model(toys.images(29)).mean(0)[20:]  # less likely and near
    images = toys.images(29)
    threat = Threat(eps=float(1.05 * toys.least(model, images, "linf").max()))
    malt, standard = (apgd(model, images, None, threat, steps=20, targets=targets) for targets in ("malt", 9))
    assert malt.asr == 1.0
    assert standard.asr < 0.5
    assert malt.attack == "apgd-malt"


def test_the_option_is_read_from_text_and_others_are_refused():
    assert parse_settings("apgd-t", ["targets=malt"]) == {"targets": "malt"}
    assert parse_settings("apgd-t", ["targets=3"]) == {"targets": 3}
    with pytest.raises(UserError, match=r"targets 'best': expected .*'malt'"):
        parse_settings("apgd-t", ["targets=best"])
    with pytest.raises(UserError, match="targets 0: expected"):
        apgd(toys.network(), toys.images(2), None, targets=0)
