"""Every family token for token with transformers, on random tiny models that it wrote itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert import open_checkpoint
from paxkv import LLM
from paxkv.sampling.sampling_params import SamplingParams
from tests.models.tiny_families import FULL, MODELS, SLIDING

PROMPTS: list[list[int]] = [
    np.random.default_rng(length).integers(3, 96, length).tolist() for length in (1, 9, 40)
]
CASES: dict[str, dict[str, Any]] = {
    **MODELS,
    "gemma3, default pattern": MODELS["gemma3"]
    | {
        "num_hidden_layers": 7,
        "layer_types": None,
        "rope_parameters": None,
        "final_logit_softcapping": None,
    },
    "gemma3, scaled": MODELS["gemma3"]
    | {
        "rope_parameters": {
            FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        }
    },
    "qwen3, biases": MODELS["qwen3"] | {"attention_bias": True},
}


def saved(folder: Path, config: dict[str, Any]) -> Any:
    """A model of transformers with random weights, written to `folder`."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {key: value for key, value in config.items() if value is not None}
    made = AutoConfig.for_model(**given)
    made._attn_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "norm" in name and "gemma" not in config["model_type"] else 0.0
            parameter.normal_(centre, 0.3)
    model.save_pretrained(folder)
    # By the class that is chosen for the file: a Mistral of mixed layers is a Ministral.
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.mark.parity
@pytest.mark.parametrize("name", CASES)
def test_tokens_are_transformers(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    model = saved(tmp_path, CASES[name])
    assert open_checkpoint(tmp_path).config.layers[0].num_experts == 0
    llm = LLM(
        tmp_path,
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=4,
        max_num_batched_tokens=16,
        max_num_seqs=4,
        num_gpu_blocks_override=64,
        layers_per_program=2,
        deterministic=True,  # one shape, so that little is compiled
    )
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
    outputs = llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
    for ids, output in zip(PROMPTS, outputs, strict=True):
        found = output.outputs[0].token_ids
        with torch.no_grad():
            scores = model(torch.tensor([ids + found])).logits[0, len(ids) - 1 : -1].double()
        best, second = torch.topk(scores, 2).values.T
        assert (best - second > 1e-3).sum() > 20
        for token, row, gap in zip(found, scores, best - second, strict=True):
            assert token == row.argmax() or gap < 1e-3
