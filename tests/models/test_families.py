"""Every family runs as a dense float64 decoder does, and each of its options counts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert import load_params, open_checkpoint
from convert.hf_config import hf_config
from pallas_kernels import xla
from paxkv.engine.runner.program import Variant
from paxkv.engine.runner.programs import LAYERS
from paxkv.models.config import LayerKind, ModelConfig, RopeParameters
from paxkv.models.families import registry
from tests.engine import dense_reference
from tests.engine.tiny import Tiny, greedy
from tests.models import tiny_families as tiny

PROMPT: list[int] = np.random.default_rng(5).integers(3, 96, 27).tolist()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By name, the configuration and the parameters of a tiny model."""
    found: dict[str, tuple[ModelConfig, dict[str, Any]]] = {}

    def load(name: str) -> tuple[ModelConfig, dict[str, Any]]:
        if name not in found:
            folder = tmp_path_factory.mktemp("model") / "checkpoint"
            checkpoint = open_checkpoint(tiny.write(folder, name))
            found[name] = checkpoint.config, load_params(checkpoint)
        return found[name]

    return load


@pytest.mark.parametrize("name", tiny.MODELS)
def test_prompts_and_tokens_are_the_dense_decoders(loaded: Any, name: str) -> None:
    config, params = loaded(name)
    engine = Tiny(
        config, params, layers_per_program=3, max_num_batched_tokens=16, deterministic=True
    )
    (output,) = engine.generate([PROMPT], greedy(12, prompt_logprobs=0))
    want = dense_reference.logprobs(params, config, PROMPT)
    assert output.prompt_logprobs is not None
    for position, entry in enumerate(output.prompt_logprobs[1:]):
        token = PROMPT[position + 1]
        assert entry is not None
        assert entry[token].logprob == pytest.approx(want[position, token], abs=2e-3)
    tokens, gaps = dense_reference.greedy(params, config, PROMPT, 12)
    until = next((index for index, gap in enumerate(gaps) if gap < 1e-3), 12)
    assert until > 6
    assert output.outputs[0].token_ids[:until] == tokens[:until]


# What each option is when it is off.
OFF: dict[str, Any] = {
    "qkv_bias": {"qkv_bias": False},
    "qk_norm": {"qk_norm": False},
    "post_norms": {"post_norms": False},
    "norm_unit_offset": {"norm_unit_offset": False},
    "hidden_act": {"hidden_act": "silu"},
    "embedding_scale": {"embedding_scale": 1.0},
    "attention_scale": {"attention_scale": None},
    "attn_logit_softcapping": {"attn_logit_softcapping": None},
    "final_logit_softcapping": {"final_logit_softcapping": None},
    "windows": {
        "layer_kinds": (LayerKind(rope=1), LayerKind(rope=1), LayerKind(), LayerKind(rope=1))
    },
    "local rope": {"other_ropes": (RopeParameters(50000.0),)},
}
HAS = {
    "qwen2": ["qkv_bias"],
    "qwen3": ["qk_norm"],
    "gemma2": ["attn_logit_softcapping"],
    "gemma3": [key for key in OFF if key not in ("qkv_bias", "attn_logit_softcapping")],
}


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, options in HAS.items() for option in options]
)
def test_an_option_that_is_off_changes_what_the_engine_computes(
    loaded: Any, name: str, option: str
) -> None:
    config, params = loaded(name)
    without = dataclasses.replace(config, **OFF[option])
    if option == "qkv_bias":
        layers = [{k: v for k, v in layer.items() if k != "qkv_bias"} for layer in params["layers"]]
        params = params | {"layers": layers}
    engine = Tiny(without, params, max_num_batched_tokens=32, deterministic=True)
    (output,) = engine.generate([PROMPT], greedy(1, prompt_logprobs=0))
    want = dense_reference.logprobs(params, without, PROMPT)
    before = dense_reference.logprobs(loaded(name)[1], config, PROMPT)
    found, was, expected = [], [], []
    for position, entry in enumerate(output.prompt_logprobs[1:]):
        token = PROMPT[position + 1]
        found.append(entry[token].logprob)
        was.append(before[position, token])
        expected.append(want[position, token])
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert np.abs(np.array(found) - was).max() > 0.01


def test_groups_of_equal_kinds_share_a_program(loaded: Any) -> None:
    config, params = loaded("gemma3")
    engine = Tiny(config, params, layers_per_program=1, deterministic=True)
    programs = engine.engine.runner.programs
    groups = programs.arguments.groups
    (shape,) = programs.arguments.packings
    assert [group.kinds for group in groups] == [(0,), (0,), (1,), (0,)]
    local, again, everywhere, last = (
        programs.get(LAYERS, Variant(shape, group.kinds)) for group in groups
    )
    assert local is again is last
    assert local is not everywhere


def test_work_lists_are_made_once_for_each_window(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, params = loaded("gemma3")
    windows = []
    plain = xla.prepare

    def counted(*args: Any) -> Any:
        windows.append(args[-1].window)
        return plain(*args)

    monkeypatch.setattr(xla, "prepare", counted)
    engine = Tiny(config, params, layers_per_program=2, max_num_seqs=3, deterministic=True)
    engine.tokens(PROMPT[:4], greedy(1))
    assert windows == [7, None]


def test_a_family_takes_few_lines() -> None:
    folder = Path(registry.__file__).parent
    for name in ("llama", "qwen", "gemma", "gemma2"):
        assert len((folder / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 100


def test_an_unknown_architecture_says_which_file_to_write() -> None:
    with pytest.raises(
        ValueError,
        match=r"config.json: model_type 'phi3' .*llama, .*gemma3_text.*paxkv/models/families/",
    ):
        hf_config({"model_type": "phi3"}, Path("config.json"))
    with pytest.raises(ValueError, match=r"m.gguf: GGUF architecture 'phi3' .*gemma3.*registry.py"):
        registry.gguf_family("phi3", "m.gguf")
    with pytest.raises(ValueError, match="architecture 'phi3' is not supported"):
        registry.family_of("phi3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_kinds": (LayerKind(5),)}, "1 layer_kinds, but num_layers=4"),
        ({"layer_kinds": (LayerKind(5),) * 4, "sliding_window": 3}, "windows of their own"),
        ({"layer_kinds": (LayerKind(rope=1),) * 4}, "rope below 1"),
        ({"attention_scale": 0.0}, "attention_scale=0.0 must be above 0"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping=-1.0 must be above 0"),
    ],
)
def test_impossible_layers_are_refused(changes: dict[str, Any], message: str) -> None:
    config = hf_config(tiny.MODELS["llama"], Path("config.json"))
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **changes)


def test_experts_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="num_experts=8: mixtures of experts"):
        LayerKind(num_experts=8)
