"""Conversation formats and label masks, against examples written by hand."""

from antiphase.vlm import Prompt
from antiphase.vlm.model import IGNORED, IMAGE
from tests.vlm.tiny import tiny_tokenizer

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant . The assistant gives helpful , "
    "detailed , and polite answers to the user 's questions ."
)
FIRST = "<|start|> user \n <image> \n Is there a cat in the image ? <|end|> \n <|start|> assistant \n"
TURNS = (("Is there a cat in the image ?", "Yes ."), ("what is this ?", "A dog ."))


def shown(prompt, ids, labels):
    """Return tokens and targets as text."""
    words = ["<image>" if i == IMAGE else prompt.tokenizer.convert_ids_to_tokens(int(i)) for i in ids]
    kept = [prompt.tokenizer.convert_ids_to_tokens(int(i)) for i in labels if i != IGNORED]
    assert all(label in (IGNORED, one) for one, label in zip(ids.tolist(), labels.tolist(), strict=True))
    return words, kept


def test_llava_format():
    # LLaVA 1.5: SYSTEM USER: <image>\nQ ASSISTANT: A</s>USER: Q ASSISTANT: A</s>
    prompt = Prompt(tiny_tokenizer(chat=False))
    assert prompt.style == "llava"
    words, kept = shown(prompt, *prompt.conversation(TURNS))
    rest = "USER : <image> \n Is there a cat in the image ? ASSISTANT : Yes . </s> "
    rest += "USER : what is this ? ASSISTANT : A dog . </s>"
    system = SYSTEM.split()
    assert words == [*system, *rest.split(" ")]
    assert kept == ["Yes", ".", "</s>", "A", "dog", ".", "</s>"]
    question = prompt.question(TURNS[0][0])
    assert shown(prompt, question, question.clone().fill_(IGNORED))[0] == words[: len(system) + 14]


def test_chat_format():
    prompt = Prompt(tiny_tokenizer())
    assert prompt.style == "chat"
    words, kept = shown(prompt, *prompt.conversation(TURNS))
    first = FIRST.split(" ")
    rest = "Yes . <|end|> \n <|start|> user \n what is this ? <|end|> \n <|start|> assistant \n A dog . <|end|> \n"
    assert words == [*first, *rest.split(" ")]
    assert kept == ["Yes", ".", "<|end|>", "A", "dog", ".", "<|end|>"]
    assert prompt.question(TURNS[0][0]).tolist() == prompt.conversation(TURNS)[0][: len(first)].tolist()
    without = shown(prompt, *prompt.conversation(TURNS, image=False))
    assert without[0] == [*first[:3], *words[5:]]
    assert prompt.first_ids(TURNS[0][0], ("No", "Yes")) == prompt.tokenizer.convert_tokens_to_ids(["No", "Yes"])


def test_caption_format():
    prompt = Prompt(tiny_tokenizer(chat=False))
    words, kept = shown(prompt, *prompt.caption("A cat and a dog ."))
    assert words == ["<image>", "A", "cat", "and", "a", "dog", ".", "\n"]
    assert kept == words[1:]


def test_an_answer_may_contain_the_token_that_ends_it():
    prompt = Prompt(tiny_tokenizer())
    _, kept = shown(prompt, *prompt.conversation([("what is this ?", "A <|end|> tree .")]))
    assert kept == ["A", "<|end|>", "tree", ".", "<|end|>"]


def test_a_date_in_the_template_is_the_same_every_day():
    tokenizer = tiny_tokenizer()
    date = "  on {% if strftime_now is defined %}{{ strftime_now( '%Y-%m-%d') }}{% endif %}"
    date += ' or {{ strftime_now("%d %b") }} '
    tokenizer.chat_template = date + tokenizer.chat_template
    words = Prompt(tokenizer)._rendered([{"role": "user", "content": "what ?"}], opened=False)
    assert words.startswith("  on 2024-07-26 or 26 Jul <|start|>user")
