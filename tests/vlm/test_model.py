"""A vision-language model against its parts, put together by hand through transformers."""

import json

import pytest
import torch
import torch.nn.functional as F

from antiphase.errors import UserError
from antiphase.vlm import Projector, VisionLanguageModel, YesNo, image_tokens, load_language
from antiphase.vlm.checkpoint import VlmConfig, add_lora, load_vlm, save_vlm, weights_digest
from antiphase.vlm.model import IGNORED, IMAGE
from tests.vlm.tiny import tiny_images, tiny_language, tiny_tokenizer, tiny_vit, tiny_vlm

QUESTION = "Is there a cat in the image ?"


def by_hand(vlm, image, ids):
    """Return the embeddings of one row, from the parts' own weights."""
    vit, layers = tiny_vit(), vlm.projector.layers
    x = vit.tokens(image[None])
    for block in (vit.blocks[0], vit.blocks[1]):
        x = block(x)
    grid = x[0, 1:].reshape(4, 4, 12)
    rows = [torch.cat([grid[2 * i + a, 2 * j + b] for a in (0, 1) for b in (0, 1)]) for i in (0, 1) for j in (0, 1)]
    visual = F.linear(
        F.gelu(F.linear(torch.stack(rows), layers[0].weight, layers[0].bias)), layers[2].weight, layers[2].bias
    )
    words = vlm.language.model.embed_tokens.weight
    place = ids.index(IMAGE)
    return torch.cat([words[ids[:place]], visual, words[ids[place + 1 :]]])[None]


def test_logits_loss_and_answers_are_those_of_the_parts_put_together_by_hand():
    vlm, images = tiny_vlm(), tiny_images(3)
    # rows of different lengths, one without an image; the second row's image stands elsewhere
    rows = [[3, 6, 5, IMAGE, 5, 8, 9, 4], [3, IMAGE, 11, 12, 4], [3, 6, 14, 15, 16, 4]]
    ids = torch.full((3, 8), 4)
    mask = torch.zeros(3, 8, dtype=torch.bool)
    labels = torch.full((3, 8), IGNORED)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        mask[number, : len(row)] = True
        labels[number, len(row) - 2 : len(row)] = torch.tensor(row[-2:])
    embedded, targets, used = vlm.embed(images, ids, labels, mask)
    output = vlm.language(inputs_embeds=embedded, attention_mask=used, labels=targets)
    losses = []
    for number, row in enumerate(rows):
        with torch.no_grad():
            embedded = by_hand(vlm, images[number], row) if IMAGE in row else None
            inputs = {"inputs_embeds": embedded} if embedded is not None else {"input_ids": torch.tensor([row])}
            expected = vlm.language(**inputs).logits[0]
        torch.testing.assert_close(output.logits[number, : len(expected)], expected, atol=2e-5, rtol=1e-5)
        losses += F.cross_entropy(expected[-3:-1], torch.tensor(row[-2:]), reduction="none").tolist()
    assert output.loss.item() == pytest.approx(sum(losses) / 6, rel=1e-5)


def test_answers_and_their_first_logits_are_those_of_the_language_model_whatever_the_batch():
    vlm, images = tiny_vlm(), tiny_images(3)
    questions = [QUESTION, "what is this ?", QUESTION.replace("cat", "dog")]
    answers = vlm.generate(images, questions, max_new_tokens=5)
    logits = YesNo(vlm, questions)(images, torch.arange(len(questions)))
    for number, question in enumerate(questions):
        ids = vlm.prompt.question(question).tolist()
        embedded = by_hand(vlm, images[number], ids)
        tokens = vlm.language.generate(
            inputs_embeds=embedded,
            attention_mask=torch.ones(embedded.shape[:2], dtype=torch.long),
            do_sample=False,
            max_new_tokens=5,
            pad_token_id=4,
        )
        assert answers[number] == vlm.tokenizer.decode(tokens[0], skip_special_tokens=True).strip()
        with torch.no_grad():
            last = vlm.language(inputs_embeds=embedded).logits[0, -1]
        no, yes = (vlm.tokenizer.convert_tokens_to_ids(word) for word in ("No", "Yes"))
        torch.testing.assert_close(logits[number], last[[no, yes]], atol=2e-5, rtol=1e-5)
    assert len(set(answers)) > 1
    again, first = vlm.answer(images, questions, max_new_tokens=5)
    assert again == answers
    torch.testing.assert_close(first, logits)
    torch.testing.assert_close(YesNo(vlm, QUESTION)(images[:1]), logits[:1])
    several = list(dict.fromkeys(questions))
    which = torch.tensor([several.index(question) for question in questions])
    torch.testing.assert_close(YesNo(vlm, several)(images, which), logits)


def test_the_repr_on_which_stored_identities_depend_has_its_former_names():
    tower = image_tokens(tiny_vit())
    assert repr(tower).startswith("OurTower(\n  (visual): VisionTransformer(")
    assert list(dict(tower.named_children())) == ["visual"]


def test_the_gradient_of_a_yes_no_classifier_is_the_derivative():
    classifier = YesNo(tiny_vlm(merge=1).double(), QUESTION)
    images = tiny_images(2).double().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(classifier(images), torch.tensor([0, 1])), images)
    direction = torch.randn(images.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    step = 1e-3  # the language model's norms compute in float32
    with torch.no_grad():
        ahead, behind = (
            F.cross_entropy(classifier(images + sign * step * direction), torch.tensor([0, 1])) for sign in (1, -1)
        )
    assert ((gradient * direction).sum()).item() == pytest.approx(((ahead - behind) / (2 * step)).item(), rel=1e-3)
    assert gradient.abs().max() > 0


def test_mistakes_are_told_in_one_line():
    vlm, images = tiny_vlm(), tiny_images(2)
    for call, message in (
        (lambda: vlm.generate(images, [QUESTION]), "1 questions about 2 images: expected one for each image"),
        (lambda: YesNo(vlm, " "), "question ' ': expected a string that is not empty"),
        (lambda: YesNo(vlm, 5), "question 5: expected a string that is not empty"),
        (lambda: YesNo(vlm, []), "questions: expected at least one"),
        (lambda: YesNo(vlm, [QUESTION, "what ?"])(images), "2 questions: expected the position of each image's"),
        (
            lambda: YesNo(vlm, QUESTION)(images, torch.tensor([0, -1])),
            r"which \[0, -1\]: expected int64 from 0 to 0 for each",
        ),
        (lambda: vlm.prompt.first_ids(QUESTION, ("this", "this")), "they begin with the same token"),
        (lambda: Projector("linear", 12, 16, 24, 3), "merge 3: expected a divisor of 4"),
        (lambda: image_tokens(torch.nn.Linear(2, 2)), "Linear has no image tokens: expected a CLIP"),
        (
            lambda: VisionLanguageModel(vlm.tower, vlm.projector, tiny_language(), tiny_tokenizer(False), "chat"),
            "prompt chat: the tokenizer has no chat template",
        ),
    ):
        with pytest.raises(UserError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_the_language_model_tiny_needs_no_download_and_is_always_the_same():
    (one, tokenizer), (two, _) = load_language("tiny"), load_language("tiny")
    assert weights_digest(one) == weights_digest(two)
    text = "Is there an owl in the image? Sí, 是的."
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    tower = image_tokens(tiny_vit())
    vlm = VisionLanguageModel(tower, Projector("linear", 12, 16, 32, 2), one, tokenizer).eval()
    assert vlm.prompt.style == "chat"
    assert YesNo(vlm, QUESTION)(tiny_images(2)).isfinite().all()


def test_answers_are_greedy_whatever_the_language_model_would_do():
    vlm, images, questions = tiny_vlm(), tiny_images(2), [QUESTION, "what is this ?"]
    texts, logits = vlm.answer(images, questions, max_new_tokens=8)
    config = vlm.language.generation_config
    config.repetition_penalty = 9.0
    config.suppress_tokens = vlm.tokenizer.convert_tokens_to_ids(["No", "Yes"])
    answers = vlm.answer(images, questions, max_new_tokens=8)
    assert answers[0] == texts
    assert torch.equal(answers[1], logits)
    assert vlm.language.generation_config is config


def test_a_tuned_language_model_keeps_the_tokens_that_end_an_answer(tmp_path):
    vlm = tiny_vlm()
    vlm.language.generation_config.eos_token_id = [7, 4]
    vlm.language.generation_config.repetition_penalty = 9.0
    config = VlmConfig(
        tower_spec="vit",
        tower=vlm.tower.reference,
        tower_sha256="",
        projector="mlp2x",
        merge=2,
        language="tiny",
        language_sha256="",
        prompt="chat",
        tuned=True,
    )
    save_vlm(vlm, {"kind": "vlm", "model": config.model_dump(mode="json")}, tmp_path, torch.float32)
    again = load_vlm(tmp_path)
    assert again.ends == vlm.ends == [4, 7]
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    for tower in ({}, {"kind": "hf"}, {"kind": "antiphase", "config": {"dim": 7}}):
        (tmp_path / "recipe.json").write_text(json.dumps(recipe | {"model": recipe["model"] | {"tower": tower}}))
        with pytest.raises(UserError, match=r"model\.tower is not as train-vlm writes it") as caught:
            load_vlm(tmp_path)
        assert "\n" not in str(caught.value)


def test_adapters_need_linear_layers():
    from transformers import GPT2Config, GPT2LMHeadModel  # whose layers are convolutions

    language = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1))
    with pytest.raises(UserError, match="lora: GPT2LMHeadModel has no linear layer"):
        add_lora(language, 2)
