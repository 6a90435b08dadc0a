"""Fault: a value of the wrong type, or none, ends in an error that names nothing.

What llama.cpp or transformers can work with works; all else is a ValueError that names the key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import tiny_models as tiny
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convert import open_checkpoint
from convert.gguf_config import gguf_config
from convert.gguf_tokenizer import gguf_tokenizer
from convert.hf_config import hf_config
from convert.hf_tokenizer import eos_id, hf_tokenizer
from paxkv.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level

NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4
LETTERS = ["a", "b", "c", "ab"]


def metadata(kind: str = "gpt2", **changes: Any) -> dict[str, Any]:
    """A file of two layers and 16 tokens; a change to None takes a key away."""
    tokens = ["<unk>", "<s>", "</s>", *LETTERS, *(f"<{index}>" for index in range(7, 16))]
    fields = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 256,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.attention.sliding_window": 8,
        "llama.rope.dimension_count": 16,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.attn_factor": 1.0,
        "llama.rope.scaling.original_context_length": 128,
        "llama.rope.scaling.yarn_beta_fast": 32.0,
        "llama.rope.scaling.yarn_beta_slow": 1.0,
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[NORMAL] * 8, *[CONTROL] * 5],
        "tokenizer.ggml.scores": [-float(index) for index in range(16)],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 12,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 13,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": "{{ messages[0].content }}",
        "tokenizer.chat_templates": [],
    }
    changed = fields | {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not None}


def config(found: dict[str, Any]) -> Any:
    return gguf_config(Path("m.gguf"), found, {"model.embed_tokens.weight": (16, 64)}, None)


def built(kind: str = "gpt2", **changes: Any) -> Tokenizer:
    return gguf_tokenizer(Path("m.gguf"), metadata(kind, **changes))


ODD = st.one_of(
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.sampled_from([0, -1, 2**63, float("nan"), float("inf"), -1.5, 1e39, "", "256", "\ud800"]),
    st.lists(
        st.one_of(st.integers(-2, 20), st.text(max_size=3), st.floats(), st.none()), max_size=4
    ),
)


def complaint(read: Callable[[], Any]) -> str | None:
    """What a ValueError of `read` says; None if it works."""
    try:
        read()
    except ValueError as error:
        return str(error)
    return None


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["gpt2", "llama"]), st.sampled_from(sorted(metadata())), ODD)
def test_any_value_works_or_is_named(kind: str, key: str, value: Any) -> None:
    assume(key != "general.architecture")  # which `GGUFCheckpoint` reads
    found = metadata(kind) | {key: value}
    for read in (lambda: config(found), lambda: gguf_tokenizer(Path("m.gguf"), found)):
        said = complaint(read)
        if said is not None:
            assert key in said or key.removeprefix("llama.") in said, said
            assert len(said) < 500


RAW = tiny.CONFIG | {
    "head_dim": 16,
    "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
    "layer_types": None,
    "sliding_window": None,
    "attention_bias": False,
    "mlp_bias": False,
}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(RAW)),
    st.one_of(ODD, st.none(), st.dictionaries(st.sampled_from(["factor", "type"]), ODD)),
    st.sampled_from(["llama", "mistral"]),
)
def test_any_value_of_a_config_works_or_is_named(key: str, value: Any, family: str) -> None:
    path = Path("/nowhere/config.json")
    said = complaint(lambda: hf_config(RAW | {"model_type": family, key: value}, path))
    if said is not None:
        assert key in said or NAMES.get(key, key) in said, said


# What `ModelConfig`, which checks sizes against each other, calls them.
NAMES = {
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "max_position_embeddings": "sliding_window",
    "num_hidden_layers": "layer_types",
}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("bos", [None, 99])
@pytest.mark.parametrize("eos", [None, 99, -1])
def test_gguf_without_first_and_last_token(kind: str, bos: int | None, eos: int | None) -> None:
    ids = {"tokenizer__ggml__bos_token_id": bos, "tokenizer__ggml__eos_token_id": eos}
    tokenizer = built(kind, tokenizer__ggml__add_eos_token=True, **ids)
    # llama.cpp's defaults: 1 and 2 of SentencePiece; 11 of byte level, here a control token.
    first, last = {"llama": (1, 2), "gpt2": (11, 11)}[kind]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (first, last)
    assert tokenizer.encode("ab") == [first, 6, last]
    found = config(metadata(kind, **ids))
    assert (found.bos_token_id, found.eos_token_ids) == (first, (12,))
    none = {"tokenizer__ggml__eot_token_id": None} | ids
    assert config(metadata(kind, **none)).eos_token_ids == (2,)  # "</s>"


def test_gguf_without_any_special_token() -> None:
    types = [NORMAL] * 16
    ids = {f"tokenizer__ggml__{role}_token_id": None for role in ("bos", "eos", "eot")}
    tokenizer = built(tokenizer__ggml__token_type=types, **ids)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (None, None)
    assert tokenizer.encode("ab") == [6]
    found = config(metadata(tokenizer__ggml__token_type=types, **ids))
    assert (found.bos_token_id, found.eos_token_ids) == (None, ())


def test_ids_that_do_not_exist_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config(metadata(tokenizer__ggml__eos_token_id=99))
    assert (
        "tokenizer.ggml.eos_token_id=[99] is ignored: the vocabulary has 16 tokens" in caplog.text
    )


def test_a_token_without_text_has_a_name() -> None:
    tokens = metadata()["tokenizer.ggml.tokens"]
    tokens[7] = tokens[8] = ""
    tokenizer = built(tokenizer__ggml__tokens=tokens)
    assert tokenizer.decode([7, 3, 8]) == "[EMPTY_7]a[EMPTY_8]"


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokens": ["a", "b", "a"], "token_type": None},
            r"tokens holds 'a' twice, as 0 and 2",
        ),
        ({"tokens": ["a", 3], "token_type": None}, r"tokenizer\.ggml\.tokens\[1\]=3"),
        ({"tokens": ["a", "\udcff"], "token_type": None}, r"tokenizer\.ggml\.tokens\[1\]="),
        ({"token_type": [1, 1]}, r"token_type has 2 entries, tokenizer\.ggml\.tokens 16"),
        ({"token_type": [1] * 15 + [77]}, r"token_type\[15\]=77"),
        ({"bos_token_id": "1"}, r"tokenizer\.ggml\.bos_token_id='1'"),
        ({"add_bos_token": 1}, r"tokenizer\.ggml\.add_bos_token=1"),
        ({"model": ["gpt2"]}, r"tokenizer\.ggml\.model=\['gpt2'\]"),
    ],
)
def test_vocabularies_that_do_not_fit_are_named(
    kind: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        built(kind, **{f"tokenizer__ggml__{key}": value for key, value in changes.items()})


@pytest.mark.parametrize("merge", ["ab", "a z", "b a", 7])
def test_merges_of_unknown_tokens_are_named(merge: Any) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.merges\[1\]="):
        built(tokenizer__ggml__merges=["a b", merge])


def test_a_model_opens_though_its_tokenizer_is_useless(tmp_path: Path) -> None:
    def twice(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["x"] * tiny.VOCAB)
        writer.add_token_merges(["x x"])

    checkpoint = open_checkpoint(
        tiny.write_gguf(tmp_path / "m.gguf", tiny.tensors(), metadata=twice)
    )
    assert checkpoint.config.eos_token_ids == (2,)
    with pytest.raises(ValueError, match="holds 'x' twice"):
        checkpoint.tokenizer()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", ["llama"]),
        ("general.type", "adapter"),
        ("general.type", 3),
        ("split.count", "3"),
        ("llama.context_length", "256"),
    ],
)
def test_fields_of_the_file_are_named(tmp_path: Path, key: str, value: Any) -> None:
    def wrong(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)

    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.tensors(), metadata=wrong)
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        open_checkpoint(path)


def directory(folder: Path, **changes: Any) -> Path:
    byte_level().save(str(folder / "tokenizer.json"))
    tiny.write_json(folder / "tokenizer_config.json", changes)
    return folder


def test_added_tokens_have_the_librarys_defaults(tmp_path: Path) -> None:
    added = {"400": {"content": "<tool>"}, "401": {"content": "<end>", "special": True}}
    folder = directory(tmp_path, added_tokens_decoder=added, eos_token="<end>")
    tokenizer = hf_tokenizer(folder)
    assert eos_id(folder) == 401
    kinds = {
        token.content: token for token in tokenizer.backend.get_added_tokens_decoder().values()
    }
    for text, special in (("<tool>", False), ("<end>", True)):
        (index,) = tokenizer.encode(text, add_special_tokens=False)
        assert (index in tokenizer.special_ids) is special
        token = kinds[text]
        assert (token.lstrip, token.rstrip, token.single_word) == (False, False, False)
        assert token.normalized is not special


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"added_tokens_decoder": {"400": {}}}, r"added_tokens_decoder\['400'\]=\{\}"),
        ({"added_tokens_decoder": {"x": {"content": "y"}}}, r"added_tokens_decoder\['x'\]"),
        ({"added_tokens_decoder": {"400": "y"}}, r"added_tokens_decoder\['400'\]='y'"),
        ({"added_tokens_decoder": []}, r"added_tokens_decoder=\[\]"),
        (
            {"added_tokens_decoder": {"400": {"content": "<y>", "lstrip": "no"}}},
            r"added_tokens_decoder\[400\]\.lstrip='no'",
        ),
        ({"eos_token": 3}, "eos_token=3"),
        ({"eos_token": {"content": [1]}}, "eos_token="),
        ({"chat_template": [{"name": "x"}]}, r"chat_template\[0\]="),
    ],
)
def test_tokenizer_files_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = directory(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"tokenizer_config.json: {message}"):
        hf_tokenizer(folder)


def test_ends_beyond_the_vocabulary_end_nothing(tmp_path: Path) -> None:
    generation = {"eos_token_id": [2, 96, -1, 7]}
    folder = tiny.write_hf(tmp_path, tiny.tensors(), generation=generation)
    assert open_checkpoint(folder).config.eos_token_ids == (2, 7)
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": ["2"]})
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id=\['2'\]"):
        open_checkpoint(folder)


def test_a_byte_order_mark_is_nothing(tmp_path: Path) -> None:
    folder = tiny.write_hf(tmp_path, tiny.tensors())
    file = folder / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert open_checkpoint(folder).config.num_layers == tiny.LAYERS
