"""Training of a vision-language model: what each stage changes, resume after a kill, processes, mistakes."""

import json
import subprocess
import sys
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image

from antiphase.data.conversations import Conversation, load_conversations
from antiphase.errors import UserError
from antiphase.models import clip, write_model
from antiphase.vlm import YesNo, load_vlm
from antiphase.vlm import training as trainings
from antiphase.vlm.checkpoint import VlmRecipe, named_weights, vlm_learning_rate, weights_digest
from antiphase.vlm.model import IGNORED
from antiphase.vlm.training import SummedLoss, _recomputed, accumulate, decoder_blocks, drawn_order, prepare, train_vlm
from tests.processes import KILLS_ITSELF
from tests.test_answers import SMALL
from tests.training.test_tracking import Fake
from tests.vlm.tiny import tiny_images, tiny_language, tiny_tokenizer, tiny_vlm

QUESTIONS = ("Is there a cat in the image ?", "Is there a dog in the image ?")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A CLIP, a language model and conversations with images, on disk."""
    folder = tmp_path_factory.mktemp("parts")
    write_model(clip(**SMALL), folder / "clip")
    tiny_language().save_pretrained(folder / "language")
    tiny_tokenizer().save_pretrained(folder / "language")
    captions, talks = [], []
    for number in range(8):
        Image.new("RGB", (20, 17), (30 * number, 90, 7)).save(folder / f"{number}.png")
        shared = {"id": number, "image": f"{number}.png"}
        caption = [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": ("cat", "dog , sun")[number % 2]}]
        captions.append(shared | {"conversations": caption})
        answers = ("Yes", "No") if number % 2 else ("No", "Yes")
        turns = [
            [{"from": "human", "value": ("<image>\n" if not i else "") + question}, {"from": "gpt", "value": answer}]
            for i, (question, answer) in enumerate(zip(QUESTIONS, answers, strict=True))
        ]
        talks.append(shared | {"conversations": [*turns[0], *turns[1]]})
    talks.append({"id": 8, "conversations": [{"from": "human", "value": "what ?"}, {"from": "gpt", "value": "tree"}]})
    for name, records in (("captions", captions), ("talks", talks)):
        (folder / f"{name}.json").write_text(json.dumps(records))
    return folder


def words(parts, stage, out, *more):
    data = f"llava:{parts / ('captions', 'talks')[stage - 1]}.json?images={parts}"
    common = ["train-vlm", "--stage", stage, "--data", data, "--batch-size", 4, "--precision", "float32", "-q"]
    return [*map(str, [*common, "--out", out, *more])]


def begin(parts):
    return ["--tower", str(parts / "clip"), "--language", str(parts / "language"), "--epochs", "2"]


def parts_of(vlm):
    return {name: weights_digest(getattr(vlm, name)) for name in ("tower", "projector", "language")}


def test_stage_1_changes_the_projector_alone_and_stage_2_the_language_model_too(parts, tmp_path, run_cli):
    before = run_cli(*words(parts, 1, tmp_path / "0", *begin(parts), "--learning-rate", "1e-30"))
    assert before[0] == 0, before[2]
    assert run_cli(*words(parts, 1, tmp_path / "1", *begin(parts), "--learning-rate", "0.01"))[0] == 0
    start, first = parts_of(load_vlm(tmp_path / "0")), parts_of(load_vlm(tmp_path / "1"))
    assert {name for name in start if start[name] != first[name]} == {"projector"}
    assert not (tmp_path / "1" / "state.safetensors").exists()

    pretrained = ["--pretrained", str(tmp_path / "1"), "--learning-rate", "0.01", "--epochs", "6"]
    for name, more in (("all", []), ("lora", ["--lora", "2"])):
        code, _, err = run_cli(*words(parts, 2, tmp_path / name, *pretrained, *more))
        assert code == 0, err
        vlm = load_vlm(tmp_path / name)
        last = parts_of(vlm)
        assert {part for part in first if first[part] != last[part]} == {"projector", "language"}
        losses = [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert losses[-1] < 0.7 * losses[0]
        assert YesNo(vlm, QUESTIONS[0])(torch.rand(2, 3, 16, 16)).isfinite().all()
    frozen = named_weights(load_vlm(tmp_path / "lora").language)
    original = named_weights(tiny_language())
    kept = {name.replace(".base_layer", ""): value for name, value in frozen.items() if ".lora_" not in name}
    assert kept.keys() == original.keys()
    assert all(torch.equal(kept[name], original[name]) for name in original)
    assert run_cli(*words(parts, 2, tmp_path / "x", "--pretrained", tmp_path / "all"))[2].count("a model of stage 2")


def test_conversations_without_an_image_can_come_first(parts, tmp_path, run_cli):
    data = load_conversations(words(parts, 2, tmp_path)[4], stage=2)

    def order(epoch, text_first):
        recipe = VlmRecipe.model_construct(stage=2, seed=3, text_first=text_first)
        return drawn_order(recipe, data, epoch)

    def told(rows):
        return [None if data[row].image is None else float(data[row].image.mean()) for row in rows]

    drawn, first = told(order(0, False)), told(order(0, True))
    assert drawn[0] is not None
    assert first == [None, *(one for one in drawn if one is not None)]
    assert told(order(1, True)) == told(order(1, False)) != drawn
    code, _, err = run_cli(*words(parts, 1, tmp_path / "x", *begin(parts), "--text-first"))
    assert (code, err.count("\n")) == (2, 1)
    assert "text-first True: is of stage 2" in err


def test_stage_1_can_begin_at_the_words_of_the_captions(parts, tmp_path, run_cli, monkeypatch):
    monkeypatch.setattr("antiphase.vlm.training._TOGETHER", 3)
    barely = ("--learning-rate", "1e-30", "--projector-start", "captions")
    code, _, err = run_cli(*words(parts, 1, tmp_path / "1", *begin(parts), *barely))
    assert code == 0, err
    vlm = load_vlm(tmp_path / "1")
    data = load_conversations(words(parts, 1, tmp_path)[4], stage=1)
    samples = [prepare(vlm, data[row], 1, 2048) for row in range(len(data))]
    embeddings = vlm.language.get_input_embeddings().weight.detach()
    captions = [embeddings[one.labels[one.labels != IGNORED]] for one in samples]
    every = torch.cat(captions)
    expected = deepcopy(vlm.projector)
    with torch.no_grad():
        tokens = vlm.tower(torch.stack([one.image for one in samples]))
        norm = (every - every.mean(0)).square().sum(1).mean().sqrt().item()
        expected.start_at_words([(tokens, torch.stack([caption.mean(0) for caption in captions]))], norm)
    assert vlm.projector.centre.abs().min() > 0
    for name, value in vlm.projector.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_only_a_linear_projector_begins_at_captions(parts, tmp_path, run_cli):
    more = ("--projector", "mlp2x", "--projector-start", "captions")
    code, _, err = run_cli(*words(parts, 1, tmp_path / "1", *begin(parts), *more))
    assert code == 2
    assert "projector mlp2x: --projector-start captions expects a linear one" in err
    assert not (tmp_path / "1" / "recipe.json").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("stage", [1, 2])
def test_a_killed_run_ends_with_the_weights_of_an_uninterrupted_one(parts, tmp_path, run_cli, stage):
    more = [*begin(parts), "--epochs", "9", "--learning-rate", "0.01"]
    whole, killed = (words(parts, stage, tmp_path / "whole", *more), words(parts, stage, tmp_path / "killed", *more))
    process = subprocess.run([sys.executable, KILLS_ITSELF, *killed], capture_output=True, text=True)
    assert process.returncode == -9, process.stderr
    assert (tmp_path / "killed" / "state.safetensors").exists()
    for one in (whole, killed):
        code, _, err = run_cli(*one)
        assert code == 0, err
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "killed/model.safetensors").read_bytes()


@pytest.mark.thorough
def test_two_processes_train_as_one(parts, tmp_path, run_cli):
    more = [*begin(parts), "--learning-rate", "0.01"]
    assert run_cli(*words(parts, 2, tmp_path / "one", *more, "--part", "3"))[0] == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.run(
        [*torchrun, "-m", "antiphase", *words(parts, 2, tmp_path / "two", *more)], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    one, two = (named_weights(load_vlm(tmp_path / name)) for name in ("one", "two"))
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=2e-4, rtol=1e-3)


def test_a_tracker_gets_what_the_log_has(parts, tmp_path, run_cli, monkeypatch):
    fake = Fake()
    monkeypatch.setattr(trainings, "train_vlm", lambda *given, **more: train_vlm(*given, **more | {"trackers": [fake]}))
    assert run_cli(*words(parts, 1, tmp_path, *begin(parts)))[0] == 0
    log = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    ends = [values for _, values in fake.rows if "epoch" in values]
    assert [values["loss"] for values in ends] == [row["loss"] for row in log]
    assert {step for step, _ in fake.rows} >= {2, 4}  # and what a slow machine adds
    assert fake.config["stage"] == 1


def test_the_loss_is_the_mean_over_all_targets_of_the_batch():
    vlm, images = tiny_vlm(), tiny_images(3)
    talks = [
        Conversation("a", images[0], ((QUESTIONS[0], "Yes ."), (QUESTIONS[1], "No"))),
        Conversation("b", None, (("what is this ?", "A tree ."),)),
        Conversation("c", images[2], ((QUESTIONS[1], "Yes"),)),
    ]
    samples = [prepare(vlm, one, 2, 200) for one in talks]
    losses = []
    for one in samples:
        image = None if one.image is None else one.image[None]
        embedded, labels, used = vlm.embed(image, one.ids[None], one.labels[None])
        logits = vlm.language(inputs_embeds=embedded, attention_mask=used).logits
        losses.append(F.cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=IGNORED, reduction="none"))
    expected = torch.cat(losses).sum() / sum(int((one.labels != IGNORED).sum()) for one in samples)
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in vlm.named_parameters() if p.grad is not None}
    for part in (None, 2):
        vlm.zero_grad()
        loss = accumulate(SummedLoss(vlm), samples, Accelerator(cpu=True), precision="float32", part=part)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        for name, parameter in vlm.named_parameters():
            if name in gradients:
                torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-3)


def test_a_conversation_that_is_cut_before_its_answer_counts_for_nothing():
    vlm, images = tiny_vlm(), tiny_images(3)
    long = Conversation("long", images[0], ((" ".join(["cat"] * 50), "Yes"),))
    kept = Conversation("kept", images[1], ((QUESTIONS[0], "No"),))
    text = Conversation("text", None, ((" ".join(["what"] * 50), "No"),))
    losses = []
    for talks in ([long, kept, text], [kept]):
        vlm.zero_grad()
        samples = [prepare(vlm, one, 2, 40) for one in talks]
        loss = accumulate(SummedLoss(vlm), samples, Accelerator(cpu=True), precision="float32", part=1)
        losses.append((loss.item(), vlm.projector.layers[0].weight.grad.clone()))
    assert losses[0][0] == losses[1][0]
    assert torch.equal(losses[0][1], losses[1][1])
    assert prepare(vlm, long, 2, 40).image is not None
    vlm.zero_grad()
    nothing = [prepare(vlm, long, 2, 40)]
    loss = accumulate(SummedLoss(vlm), nothing, Accelerator(cpu=True), precision="float32", part=1)
    assert loss.item() == vlm.projector.layers[0].weight.grad.abs().max().item() == 0
    with pytest.raises(UserError, match="max_length 4: an image alone takes 4 positions"):
        prepare(vlm, long, 2, 4)


def test_recomputing_changes_no_gradient_and_leaves_no_trace():
    vlm, images = tiny_vlm(), tiny_images(2)
    for block in vlm.language.model.layers:
        block.self_attn.attention_dropout = 0.9  # of training mode alone
    talks = [Conversation(str(index), one, ((QUESTIONS[0], "Yes"),)) for index, one in enumerate(images)]
    samples = [prepare(vlm, one, 2, 200) for one in talks]
    calls, gradients = [], []
    hook = vlm.language.model.layers[0].self_attn.register_forward_hook(lambda *given: calls.append(1))
    for blocks in ([], decoder_blocks(vlm.language)):
        vlm.zero_grad()
        calls.clear()
        with _recomputed(blocks):
            accumulate(SummedLoss(vlm), samples, Accelerator(cpu=True), precision="float32", part=None)
        named = {name: p.grad.clone() for name, p in vlm.named_parameters() if p.grad is not None}
        gradients.append((named, len(calls)))
    hook.remove()
    (plain, once), (again, twice) = gradients
    assert (once, twice) == (1, 2)
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient)
    assert "forward" not in vars(vlm.language.model.layers[0])


def test_the_learning_rate_is_that_of_transformers():
    from transformers import get_cosine_schedule_with_warmup

    recipe = VlmRecipe.model_construct(epochs=2, learning_rate=0.1, warmup=0.03)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = get_cosine_schedule_with_warmup(optimizer, 3, 100)
    for step in range(100):
        assert vlm_learning_rate(recipe, step, 50) == pytest.approx(schedule.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        schedule.step()


def test_mistakes_are_told_in_one_line(parts, tmp_path, run_cli):
    out = tmp_path / "x"
    for arguments, message in (
        (words(parts, 1, out), "tower: is missing; expected --tower, or --pretrained"),
        (words(parts, 1, out, *begin(parts), "--lora", "2"), "lora 2: is of stage 2"),
        (words(parts, 2, out, "--pretrained", "p", "--merge", "2"), "merge 2: --pretrained has one; leave out --merge"),
        (
            words(parts, 2, out, "--pretrained", "p", "--projector-start", "captions"),
            "projector-start captions: --pretrained has one; leave out --projector-start",
        ),
        (words(parts, 1, out, "--pretrained", "p"), "stage 1 starts from a tower"),
        (words(parts, 2, out, "--pretrained", parts), "no recipe.json found"),
        (
            words(parts, 2, out, *begin(parts), "--projector-start", "captions"),
            "projector-start captions: only stage 1 can start so",
        ),
        (words(parts, 1, out, *begin(parts), "--batch-size", "9"), "batch size 9: expected 1 to 8"),
        (words(parts, 1, out, *begin(parts), "--data", words(parts, 2, out)[4]), "2 turns; stage 1 expects an image"),
        (
            words(parts, 1, out, "--tower", parts / "clip", "--language", parts / "clip"),
            f"language {parts / 'clip'}: cannot be loaded",
        ),
    ):
        code, _, err = run_cli(*arguments)
        assert (code, err.count("\n")) == (2, 1), err
        assert message in err
    assert not out.exists()
