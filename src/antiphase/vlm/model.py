"""A small vision-language model: image tower, projector, causal language model."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from datetime import date
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from antiphase import arguments, modules
from antiphase.data.conversations import ANSWERS
from antiphase.data.decoding import Square
from antiphase.errors import UserError, shown
from antiphase.models.card import ModelCard, attention_kind, card_of, with_card
from antiphase.models.clip import CLIP
from antiphase.models.preprocessing import Normalize
from antiphase.models.schemes.libraries import HuggingFaceDual, OpenClip, quiet_logging
from antiphase.models.transformer import run_blocks
from antiphase.models.vit import VisionTransformer, VitConfig, build_vision

HIDDEN_STATE = -2
"""Which of a tower's hidden states an image's tokens are: −1 is behind the last block, −2 before it."""

Images = Float[Tensor, "batch 3 height width"]
Tokens = Float[Tensor, "batch tokens width"]
Kind = Literal["linear", "mlp2x"]
Words = Float[Tensor, "batch language"]
Ids = Int64[Tensor, "batch length"]
Mask = Bool[Tensor, "batch length"]
_RIDGE = 1e-3
IMAGE = -200  # id in the place of an image, as in LLaVA; no token has it
IGNORED = -100  # label of a token that is no target, as in PyTorch and transformers
Style = Literal["chat", "llava"]
Turns = Sequence[tuple[str, str]]
Row = Int64[Tensor, " length"]
Pieces = list[tuple[str, bool]]  # text, and whether it is a target
_PLACE = "<image>"
_NOW = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
_TODAY = date(2024, 7, 26)  # for templates that write the date; Llama 3.2's own default
_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


class Tower(nn.Module):
    """An image tower: from images in [0, 1] to tokens, a square number ``count`` of vectors of ``width``.

    ``visual`` is a vision transformer of ours, open_clip or transformers; its head and last block are not used.
    :func:`build_tower` builds it again from ``reference``, without weights; ``kind`` in it is a key of ``_KINDS``.
    """

    def __init__(self, visual: Any, square: Square, reference: dict[str, Any], scale: Normalize | None = None) -> None:
        super().__init__()
        self.visual, self.normalize = visual, scale
        self.square, self.reference = square, reference
        self.image_shape = (3, square.size, square.size)
        self.count, self.width = 0, 0
        with suppress(AttributeError, TypeError, ValueError), torch.no_grad():
            self.count, self.width = self(torch.zeros(1, *self.image_shape, device=modules.device_of(visual))).shape[1:]
        if not self.count or math.isqrt(self.count) ** 2 != self.count:
            name = reference.get("name") or reference["config"].get("model_type")
            raise UserError(f"{name}: its image tower gives no grid of tokens; expected a vision transformer")

    def forward(self, images: Images) -> Tokens:
        images = images if self.normalize is None else self.normalize(images)
        return _KINDS[self.reference["kind"]][1](self.visual, images)

    def _get_name(self) -> str:
        return _KINDS[self.reference["kind"]][0]


def _our_tokens(visual: VisionTransformer, images: Images) -> Tokens:
    x = visual.tokens(images)
    if torch.is_autocast_enabled(device := x.device.type):
        x = x.to(torch.get_autocast_dtype(device))  # as in VisionTransformer.features
    return run_blocks(list(visual.blocks)[: len(visual.blocks) + HIDDEN_STATE + 1], x)[:, 1:]


def _open_clip_tokens(visual: Any, images: Images) -> Tokens:
    inner = getattr(visual, "trunk", visual)  # timm's transformer, or open_clip's own
    blocks = inner.blocks if inner is not visual else inner.transformer.resblocks
    options = {"stop_early": True, "intermediates_only": True, "output_fmt": "NLC"}
    states = inner.forward_intermediates(images, indices=[len(blocks) + HIDDEN_STATE], **options)
    return (states["image_intermediates"] if isinstance(states, dict) else states)[0]


def _hugging_face_tokens(visual: Any, images: Images) -> Tokens:
    states = visual(pixel_values=images, output_hidden_states=True).hidden_states
    patches = (images.shape[-1] // int(visual.config.patch_size)) ** 2
    return states[HIDDEN_STATE][:, -patches:]  # SigLIP has no class token


# the names in a model's repr, on which the identity of stored rows depends, and the functions
_KINDS: dict[str, tuple[str, Callable[[Any, Images], Tokens]]] = {
    "antiphase": ("OurTower", _our_tokens),
    "open_clip": ("OpenClipTower", _open_clip_tokens),
    "hf": ("HuggingFaceTower", _hugging_face_tokens),
}


@arguments.validated
def image_tokens(model: nn.Module) -> Tower:
    """Return the image tower of a model that ``load_model`` returned: a CLIP, or a vision transformer of ours."""
    if isinstance(model, CLIP):
        return _our_tower(model.visual, model.config and model.config.vision, model.square)
    if isinstance(model, VisionTransformer):
        if model.image_shape[0] != 3:
            raise UserError(f"tower {card_of(model).spec}: takes grey images; expected one of colour images")
        return _our_tower(model, model.config, Square(model.image_shape[1]))  # pyright: ignore[reportArgumentType]
    if isinstance(model, OpenClip):
        name = model.card.name.partition("/")[0]  # type: ignore[union-attr]
        quick = any(type(part).__name__ == "QuickGELU" for part in model.model.visual.modules())
        about = {"kind": "open_clip", "name": name, "quick_gelu": quick}
        visual = model.model.visual
    elif isinstance(model, HuggingFaceDual) and hasattr(model.model, "vision_model"):
        about = {"kind": "hf", "config": model.model.config.to_dict()}
        visual = model.model.vision_model
    else:
        expected = "a CLIP of train-clip, open_clip or transformers, a released DiffCLIP, or a ViT of antiphase train"
        raise UserError(f"{type(model).__name__} has no image tokens: expected {expected}")
    normalize, square = model.normalize, model.square
    about |= _described(square)
    about |= {name: getattr(normalize, name).flatten().tolist() for name in ("mean", "std")}
    return Tower(visual, square, about | ({"bgr": True} if normalize.bgr else {}), normalize)


def build_tower(reference: dict[str, Any]) -> Tower:
    """Build a tower from its :attr:`Tower.reference`; its weights are arbitrary."""
    with torch.random.fork_rng(devices=[]):
        if reference["kind"] == "antiphase":
            config = VitConfig.model_validate(reference["config"])
            return _our_tower(build_vision(config), config, _square({"size": config.image_size} | reference))
        normalize = Normalize(reference["mean"], reference["std"], reference.get("bgr", False))
        square = _square(reference)
        if reference["kind"] == "open_clip":
            import open_clip  # seconds to import

            quick = reference["quick_gelu"]
            with quiet_logging():
                model = open_clip.create_model(reference["name"], pretrained=None, force_quick_gelu=quick)
            return Tower(model.visual, square, reference, normalize)
        import transformers

        config = cast(Any, transformers.AutoConfig).for_model(**reference["config"])
        return Tower(transformers.AutoModel.from_config(config).vision_model, square, reference, normalize)


def _our_tower(visual: VisionTransformer, config: VitConfig | None, square: Square) -> Tower:
    if config is None:
        raise UserError("the image tower was built by hand; expected one built from a configuration")
    about = {"kind": "antiphase", "config": config.model_dump(mode="json")}
    about |= {name: value for name, value in _described(square).items() if name != "size"}
    return Tower(visual, square, about)


def _square(reference: dict[str, Any]) -> Square:
    return Square(**{one.name: reference[one.name] for one in fields(Square) if one.name in reference})


def _described(square: Square) -> dict[str, Any]:
    """Return the interpolation of a square, and what else is not as usual."""
    changed = {name: value for name, value in asdict(square).items() if value != getattr(Square(0), name)}
    return {"interpolation": square.interpolation, **changed}


class Prompt:
    r"""Write conversations as a language model expects them, and mark the answers as targets.

    ``llava`` is LLaVA 1.5's (its ``v1``): ``SYSTEM USER: <image>\nQUESTION ASSISTANT: ANSWER</s>USER: …``, with the
    tokenizer's own end-of-sequence token. ``chat`` is the tokenizer's chat template (the default if it has one), at a
    fixed date. Captions have LLaVA's ``plain`` format, ``<image>CAPTION\n``. Targets are the tokens of the answers and
    the end-of-sequence token behind each; others have the label ``IGNORED``.

    Source: H. Liu et al., *Improved Baselines with Visual Instruction Tuning*, CVPR 2024, and its code
    (``preprocess_v1``, ``preprocess_plain``, ``tokenizer_image_token``).
    """

    def __init__(self, tokenizer: Any, style: Style | None = None) -> None:
        name = type(tokenizer).__name__
        if not tokenizer.is_fast:
            raise UserError(f"{name}: not a fast tokenizer; save it as tokenizer.json, which has offsets")
        if not tokenizer.eos_token:
            raise UserError(f"{name}: no end-of-sequence token; set its eos_token and save it again")
        template = bool(getattr(tokenizer, "chat_template", None))
        self.style: Style = style or ("chat" if template else "llava")
        if self.style == "chat" and not template:
            raise UserError("prompt chat: the tokenizer has no chat template; use --prompt llava")
        self.tokenizer = tokenizer

    def question(self, question: str, *, image: bool = True) -> Row:
        """Return the ids of a question, up to where the answer begins."""
        return self._tokenised([(self._pieces([(question, "")], image)[0][0], False)], image)[0]

    def conversation(self, turns: Turns, *, image: bool = True) -> tuple[Row, Row]:
        """Return the ids and labels of pairs of a question and an answer; perhaps an image precedes the first."""
        return self._tokenised(self._pieces(turns, image), image)

    def caption(self, caption: str) -> tuple[Row, Row]:
        """Return the ids and labels of an image with its caption, for stage 1."""
        return self._tokenised([(_PLACE, False), (f"{caption.strip()}\n", True)], image=True, begins=True)

    def first_ids(self, question: str, answers: Sequence[str]) -> list[int]:
        """Return the first token's id of each answer to a question; UserError if two begin with the same token."""
        whole = [self.conversation([(question, answer)]) for answer in answers]
        first = [int(ids[labels != IGNORED][0]) for ids, labels in whole]
        if len(set(first)) < len(first):
            raise UserError(f"answers {answers}: they begin with the same token; expected others")
        return first

    def _pieces(self, turns: Turns, image: bool) -> Pieces:
        turns = [(question.strip(), answer.strip()) for question, answer in turns]
        if image and turns:
            turns[0] = (f"{_PLACE}\n{turns[0][0]}", turns[0][1])
        if self.style == "chat":
            return self._chat(turns)
        pieces = []
        for question, answer in turns:
            before = "" if pieces else f"{_SYSTEM} "
            pieces.append((f"{before}USER: {question} ASSISTANT:", False))
            pieces.append((f" {answer}{self.tokenizer.eos_token}", True))
        return pieces

    def _chat(self, turns: Turns) -> Pieces:
        pieces: Pieces = []
        messages: list[dict[str, str]] = []
        written = ""
        for question, answer in turns:
            messages.append({"role": "user", "content": question})
            before = self._rendered(messages, opened=True)
            messages.append({"role": "assistant", "content": answer})
            after = self._rendered(messages, opened=False)
            if not before.startswith(written) or not after.startswith(before + answer):
                raise UserError("chat template: it changes earlier messages; use the format llava")
            between, end, rest = after[len(before + answer) :].partition(self.tokenizer.eos_token)
            pieces += [(before[len(written) :], False), (answer + between + end, True), (rest, False)]
            written = after
        return pieces

    def _rendered(self, messages: list[dict[str, str]], *, opened: bool) -> str:
        dated = _NOW.sub(lambda call: repr(_TODAY.strftime(call[2])), self.tokenizer.get_chat_template())
        how = {"chat_template": dated, "tokenize": False, "add_generation_prompt": opened}
        return self.tokenizer.apply_chat_template(messages, **how)

    def _tokenised(self, pieces: Pieces, image: bool, begins: bool = False) -> tuple[Row, Row]:
        """Return ids and labels; the text has the token that begins a sequence in the style ``llava`` anyway."""
        text = "".join(piece for piece, _ in pieces)
        marks = "".join(("x" if target else " ") * len(piece) for piece, target in pieces)
        ids: list[int] = []
        labels: list[int] = []
        start = 0
        for number, side in enumerate(text.split(_PLACE, 1) if image else [text]):
            if number:
                ids.append(IMAGE)
                labels.append(IGNORED)
                start += len(_PLACE)
            special = not number and (begins or self.style == "llava")
            tokens = self.tokenizer(side, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
            ids += tokens["input_ids"]
            for token, (first, last) in zip(tokens["input_ids"], tokens["offset_mapping"], strict=True):
                labels.append(token if "x" in marks[start + first : start + last] else IGNORED)
            start += len(side)
        return torch.tensor(ids), torch.tensor(labels)


def check_question(question: object) -> str:
    """Return the question, which has to be a string that is not empty."""
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"question {shown(question)}: expected a string that is not empty")
    return question


class Projector(nn.Module):
    """Map ``count`` image tokens, a square number, of ``width`` numbers to vectors of a language model's width.

    ``linear`` is LLaVA's W·h + b, ``mlp2x`` is LLaVA 1.5's W₂·GELU(W₁·h + b₁) + b₂. With ``merge`` m > 1, the m × m
    neighbours of the grid become one token first, as in InternVL 1.5 (*pixel unshuffle*). ``centre``, 0 unless
    :meth:`start_at_words` sets it, is subtracted from each token.
    """

    def __init__(self, kind: Kind, width: int, count: int, language_width: int, merge: int = 1) -> None:
        super().__init__()
        side = math.isqrt(count)
        if merge < 1 or side % merge:
            raise UserError(f"merge {merge}: expected a divisor of {side}, the side of the grid of tokens")
        self.kind, self.merge, self.side = kind, merge, side
        first = nn.Linear(width * merge * merge, language_width)
        more = [nn.GELU(), nn.Linear(language_width, language_width)] if kind == "mlp2x" else []
        self.layers = nn.Sequential(first, *more)
        self.centre: Tensor
        self.register_buffer("centre", torch.zeros(first.in_features))

    @property
    def count(self) -> int:
        """Positions that an image takes in the language model."""
        return (self.side // self.merge) ** 2

    @torch.no_grad()
    def start_at_words(self, batches: Iterable[tuple[Tokens, Words]], norm: float) -> None:
        """Start from a least squares fit of image tokens to the words of their captions.

        ``batches`` are tokens of some images and the mean word of each caption. With x a token, after merging, less the
        mean of all, and y its caption's mean word less the mean, W minimises the mean of ‖W·x − y‖² plus
        ρ·tr(C)/d·‖W‖², C the mean of x·xᵀ, d the width of x, ρ = 0.001. Then W is scaled so that W·x has a root mean
        square norm of ``norm``, that of the words of captions around their mean; b is the mean word.
        """
        if self.kind != "linear":
            raise UserError(f"projector {self.kind}: expected a linear one, which alone can be fitted")
        layer = self.layers[0]
        assert isinstance(layer, nn.Linear)
        width, out = layer.in_features, layer.out_features
        shapes = ((width, width), (width, out), (width,), (out,), ())
        sums, images = [torch.zeros(shape, dtype=torch.float64) for shape in shapes], 0
        for tokens, mean_words in batches:
            x, target = self._merged(tokens).cpu().double(), mean_words.cpu().double()
            flat = x.flatten(0, 1)
            parts = (flat.T @ flat, x.sum(1).T @ target, flat.sum(0), target.sum(0), target.square().sum())
            sums = list(map(torch.add, sums, parts))
            images += len(x)
        squares, products, tokens_sum, words_sum, energy = sums
        count = images * self.count
        mean, mean_word = tokens_sum / count, words_sum / images
        if energy / images - mean_word.square().sum() < 1e-9 * norm**2:  # rounding
            fix = "expected different ones, or --projector-start default"
            raise UserError(f"projector-start captions: all captions have the same words; {fix}")
        covariance = squares / count - mean.outer(mean)
        common = products / count - mean.outer(mean_word)
        ridge = _RIDGE * covariance.diagonal().mean() * torch.eye(width, dtype=torch.float64)
        weight = torch.linalg.solve(covariance + ridge, common).T
        layer.weight.copy_(weight * (norm / (weight @ covariance * weight).sum().sqrt()))
        layer.bias.copy_(mean_word)
        self.centre.copy_(mean)

    def _merged(self, tokens: Tokens) -> Float[Tensor, "batch positions merged"]:
        m = self.merge
        grid = tokens.unflatten(1, (self.side // m, m, self.side // m, m))
        return grid.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)

    def forward(self, tokens: Tokens) -> Float[Tensor, "batch positions language"]:
        return self.layers(self._merged(tokens) - self.centre)


class VisionLanguageModel(nn.Module):
    """Answer questions about images: the image's tokens, projected, stand in for words of a causal language model.

    The tokens of the ``tower`` before its last block, without the class token, take the place of the image in the
    prompt, as in LLaVA. ``language`` is a causal language model of transformers with its fast tokenizer.

    Sources: H. Liu et al., *Visual Instruction Tuning*, NeurIPS 2023, Section 4.1; H. Hammoud, B. Ghanem, *DiffCLIP:
    Differential Attention Meets CLIP*, TMLR 2025, Section 5.1.
    """

    def __init__(
        self, tower: Tower, projector: Projector, language: Any, tokenizer: Any, style: Style | None = None
    ) -> None:
        super().__init__()
        self.tower, self.projector = tower, projector
        self.language, self.tokenizer = language, tokenizer
        self.prompt = Prompt(tokenizer, style)
        self.image_shape, self.square = tower.image_shape, tower.square

    def extra_repr(self) -> str:
        return f"prompt={self.prompt.style!r}"

    @property
    def ends(self) -> list[int]:
        """Ids of the tokens that end an answer: the tokenizer's, and those of the language model's own settings."""
        more = getattr(self.language.generation_config, "eos_token_id", None)
        more = more if isinstance(more, list) else [] if more is None else [more]
        return sorted({self.tokenizer.eos_token_id, *more})

    def visual_tokens(self, images: Images) -> Float[Tensor, "batch positions width"]:
        """Return what stands in for words: the projected tokens of images in [0, 1]."""
        return self.projector(self.tower(images).to(next(self.projector.parameters()).dtype))

    def embed(
        self, images: Images | None, input_ids: Ids, labels: Ids | None = None, attention_mask: Mask | None = None
    ) -> tuple[Float[Tensor, "batch all width"], Ids | None, Int64[Tensor, "batch all"]]:
        """Replace the id ``IMAGE``, at most one in a row, by the image's positions; return embeddings, labels and mask.

        ``images`` are in [0, 1], one for each row, or None if no row has one. ``attention_mask`` is False for padding.
        """
        place = input_ids == IMAGE
        has_image = place.any(1)
        if int(place.sum(1).max()) > 1 or (images is None and bool(has_image.any())):
            raise ValueError("input_ids: expected IMAGE at most once in each row, and an image for each")
        mask = torch.ones_like(place) if attention_mask is None else attention_mask.bool()
        words = self.language.get_input_embeddings()(input_ids.masked_fill(place, 0))
        if images is None or not bool(has_image.any()):
            return words, labels, mask.long()
        visual = self.visual_tokens(images).to(words.dtype)
        length, count, rows = place.shape[1], visual.shape[1], torch.arange(len(place))[:, None]
        # of each position, which of the row's it is, or of the image's behind them; a row without one is padded
        position = torch.arange(length + count - 1, device=place.device)
        start = torch.where(has_image, place.int().argmax(1), length)[:, None]
        source = torch.where(position < start + count, length + position - start, position - count + 1)
        source = torch.where(position < start, position, source)
        used = torch.cat([mask, has_image[:, None].expand(-1, count)], 1)[rows, source]
        if labels is not None:
            labels = F.pad(labels, (0, count), value=IGNORED)[rows, source].masked_fill(~used, IGNORED)
        return torch.cat([words, visual], 1)[rows, source], labels, used.long()

    def generate(self, images: Images, questions: Sequence[str], max_new_tokens: int = 32) -> list[str]:
        return self.answer(images, questions, max_new_tokens)[0]

    @torch.no_grad()
    def answer(
        self, images: Images, questions: Sequence[str], max_new_tokens: int = 32
    ) -> tuple[list[str], Float[Tensor, "batch 2"]]:
        """Answer one question about each image; return the words, and the logits of no and yes as the first token.

        By greedy decoding of at most ``max_new_tokens``. The language model's own settings of generation have no
        effect. An answer depends on the batch by rounding only.
        """
        from transformers import GenerationConfig  # an extra

        if isinstance(questions, str) or len(questions) != len(images):
            count = 1 if isinstance(questions, str) else len(questions)
            raise UserError(f"{count} questions about {len(images)} images: expected one for each image")
        by_question = {text: self.prompt.question(check_question(text)) for text in questions}
        prompts = [by_question[question] for question in questions]
        lengths = {"max_new_tokens": max_new_tokens, "return_dict_in_generate": True, "output_logits": True}
        ends = {"eos_token_id": self.ends, "pad_token_id": self.tokenizer.eos_token_id}
        config = GenerationConfig(do_sample=False, **lengths, **ends)
        texts, first = [""] * len(images), [torch.empty(0)] * len(images)
        # transformers fills in what the settings leave out from the model's own
        original, self.language.generation_config = self.language.generation_config, config
        try:
            for length in set(map(len, prompts)):
                rows = [row for row, ids in enumerate(prompts) if len(ids) == length]
                ids = torch.stack([prompts[row] for row in rows]).to(images.device)
                embedded, _, mask = self.embed(images[rows], ids)
                output = self.language.generate(inputs_embeds=embedded, attention_mask=mask, generation_config=config)
                words = self.tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
                for row, text, logits in zip(rows, words, output.logits[0], strict=True):
                    texts[row], first[row] = text.strip(), logits
        finally:
            self.language.generation_config = original
        columns = torch.tensor([self.prompt.first_ids(question, ANSWERS) for question in questions])
        return texts, torch.stack(first).gather(1, columns.to(images.device)).float()


class YesNo(nn.Module):
    """Classify images by a model's answers to questions: the logits of "No" and "Yes" as the first answer token.

    Of several different ``questions``, which one each image is asked is the attack's ``context``. In evaluation mode.
    """

    def __init__(self, vlm: VisionLanguageModel, questions: str | Sequence[str]) -> None:
        super().__init__()
        self.vlm = vlm
        several: Any = questions if isinstance(questions, list | tuple) else [questions]
        self.questions: tuple[str, ...] = tuple(several)
        if not self.questions:
            raise UserError("questions: expected at least one")
        ids = [vlm.prompt.question(check_question(question)) for question in self.questions]
        # padded to the longest, so that what the model computes has the same shape in every batch
        self._ids = nn.utils.rnn.pad_sequence(ids, batch_first=True)
        self._lengths = torch.tensor([len(row) for row in ids])
        self._columns = torch.tensor([vlm.prompt.first_ids(question, ANSWERS) for question in self.questions])
        card = getattr(vlm, "card", None)
        card = card or ModelCard("vlm", "vlm", attention_kind(vlm.tower), None, vlm.image_shape, 0)
        with_card(self, replace(card, num_classes=2, class_names=("no", "yes")))

    def extra_repr(self) -> str:
        return f"questions={self.questions!r}, prompt={self.vlm.prompt.style!r}"

    def forward(self, images: Images, which: Int64[Tensor, " batch"] | None = None) -> Float[Tensor, "batch 2"]:
        """Return the logits of no and yes; ``which`` is the position of each image's question (None: there is one)."""
        count = len(self.questions)
        if which is None:
            if count > 1:
                raise UserError(f"{count} questions: expected the position of each image's, as context")
            which = torch.zeros(len(images), dtype=torch.int64)
        fits = which.dtype == torch.int64 and which.shape == (len(images),)
        if not fits or not bool(((which >= 0) & (which < count)).all()):
            raise UserError(f"which {shown(which.tolist())}: expected int64 from 0 to {count - 1} for each")
        device, which = images.device, which.cpu()
        mask = torch.arange(self._ids.shape[1]) < self._lengths[which, None]
        ids, mask = self._ids[which].to(device), mask.to(device)
        embedded, _, used = self.vlm.embed(images, ids, attention_mask=mask)
        # logits wherever a question ends; the image stands for one id
        kept, place = (self._lengths + self.vlm.projector.count - 2).unique(return_inverse=True)
        output = self.vlm.language(inputs_embeds=embedded, attention_mask=used, logits_to_keep=kept.to(device))
        logits = output.logits[torch.arange(len(images), device=device), place[which].to(device)]
        answers = logits.gather(1, self._columns[which].to(device))
        return answers.to(torch.promote_types(answers.dtype, torch.float32))
