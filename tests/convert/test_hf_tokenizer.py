"""Tokenizers of Hugging Face directories against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hostile_texts
import pytest
import tiny_models as tiny
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from convert import open_checkpoint
from convert.hf_tokenizer import hf_tokenizer

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [{"role": "user", "content": "Hi"}]


def backend(bos: bool = False) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(hostile_texts.TEXTS * 3, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)]
        )
    return tokenizer


def write(folder: Path, *, bos: bool = False, **config: Any) -> Path:
    backend(bos).save(str(folder / "tokenizer.json"))
    base = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 256}
    base |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tiny.write_json(folder / "tokenizer_config.json", base | config)
    return folder


def transformers_tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(folder))


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": False},
        {"add_bos_token": True, "add_eos_token": True},
        {"pad_token": "<pad>"},
        {
            "added_tokens_decoder": {
                "400": {
                    "content": "<tool>",
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "single_word": False,
                    "special": False,
                }
            }
        },
    ],
)
def test_ids_equal_transformers(tmp_path: Path, bos: bool, config: dict[str, Any]) -> None:
    folder = write(tmp_path, bos=bos, **config)
    expected, found = transformers_tokenizer(folder), hf_tokenizer(folder)
    for text in [*hostile_texts.BYTE_LEVEL, "<s>a</s>", "x <tool> y", "a<pad>"]:
        ids = expected.encode(text)
        assert found.encode(text) == ids, text
        assert found.encode(text, add_special_tokens=False) == expected.encode(
            text, add_special_tokens=False
        )
        for skip in (True, False):
            assert found.decode(ids, skip_special_tokens=skip) == expected.decode(
                ids, skip_special_tokens=skip
            )
    assert found.vocab_size == len(expected)
    assert found.encode_batch(["a b", "c"]) == [expected.encode("a b"), expected.encode("c")]
    assert (found.bos_token_id, found.eos_token_id) == (1, 2)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    tokenizer = hf_tokenizer(write(tmp_path))
    with pytest.raises(ValueError, match="lone surrogate at position 2"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(ValueError, match="text must be a string, got int"):
        tokenizer.encode(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"texts\[1\]: .*position 0"):
        tokenizer.encode_batch(["a", "\udc00"])


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    tokenizer = backend()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(hf_tokenizer(tmp_path).encode("one two three")) == len(
        backend().encode("one two three").ids
    )


def test_special_tokens_may_be_objects_or_in_the_map(tmp_path: Path) -> None:
    write(tmp_path, bos_token={"content": "<s>", "lstrip": False}, eos_token=None, pad_token=None)
    tiny.write_json(tmp_path / "special_tokens_map.json", {"eos_token": {"content": "</s>"}})
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["eos_token"]
    tiny.write_json(tmp_path / "tokenizer_config.json", config)
    assert hf_tokenizer(tmp_path).special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }


def test_where_templates_are_found(tmp_path: Path) -> None:
    def rendered() -> str:
        return hf_tokenizer(tmp_path).render_chat(MESSAGES)

    write(tmp_path)
    assert hf_tokenizer(tmp_path).chat_template is None
    write(tmp_path, chat_template="one")
    assert rendered() == "one"
    named = [
        {"name": "default", "template": "two"},
        {"name": "tool_use", "template": "two with tools"},
    ]
    write(tmp_path, chat_template=named)
    assert rendered() == "two"
    tools = [{"type": "function"}]
    assert hf_tokenizer(tmp_path).render_chat(MESSAGES, tools=tools) == "two with tools"
    tiny.write_json(tmp_path / "chat_template.json", {"chat_template": "three"})
    assert rendered() == "three"
    (tmp_path / "chat_template.jinja").write_text("four")
    assert rendered() == "four"
    extra = tmp_path / "additional_chat_templates"
    extra.mkdir()
    (extra / "tool_use.jinja").write_text("five with tools")
    assert hf_tokenizer(tmp_path).render_chat(MESSAGES, tools=tools) == "five with tools"


def test_no_second_bos_in_chat(tmp_path: Path) -> None:
    folder = write(tmp_path, bos=True, add_bos_token=True, chat_template=TEMPLATE)
    found, expected = hf_tokenizer(folder), transformers_tokenizer(folder)
    ids = found.apply_chat_template(MESSAGES)
    assert ids == expected.apply_chat_template(
        MESSAGES, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert ids.count(1) == 1
    assert found.encode("Hi")[0] == 1


def test_end_tokens_are_those_of_tokenizer_and_generation(tmp_path: Path) -> None:
    write(tmp_path, eos_token="<|im_end|>")
    folder = tiny.write_hf(tmp_path, tiny.tensors(), generation={"eos_token_id": [2, 0]})
    assert open_checkpoint(folder).config.eos_token_ids == (2, 0, 4)


def test_missing_and_broken_tokenizers_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing"):
        hf_tokenizer(tmp_path)
    folder = tiny.write_hf(tmp_path, tiny.tensors())
    checkpoint = open_checkpoint(folder)  # usable on token ids alone
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing"):
        checkpoint.tokenizer()
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read"):
        hf_tokenizer(tmp_path)
