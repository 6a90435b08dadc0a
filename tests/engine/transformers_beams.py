"""The model of `beam_cases` as transformers has it, and transformers' beam search. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from paxkv.bench.transformers_model import build_transformers_model
from paxkv.models.weights import describe, walk
from tests.engine.beam_cases import CONFIG, END_IDS, MAX_TOKENS, weights


class BeamCheckpoint:
    """The weights under Hugging Face's names."""

    config = CONFIG

    def __init__(self) -> None:
        self._tensors = dict(_tensors())

    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> np.ndarray:
        return self._tensors[name]


def _tensors() -> Iterator[tuple[str, np.ndarray]]:
    for (_, spec), (_, array) in zip(walk(describe(CONFIG)), walk(weights()), strict=True):
        row = 0
        for index, name in enumerate(spec.sources):
            rows = spec.source_shape(index)[0]
            yield name, array[row : row + rows]
            row += rows


@cache
def model() -> Any:
    return build_transformers_model(BeamCheckpoint())  # type: ignore[arg-type]


def search(
    model: Any,
    prompt: list[int],
    width: int,
    max_tokens: int = MAX_TOKENS,
    end_ids: tuple[int, ...] = END_IDS,
    **options: Any,
) -> tuple[list[list[int]], list[float] | None]:
    """Outputs and scores, best first; one beam is greedy search, without a score."""
    import torch

    if width == 1:
        options.pop("length_penalty", None)
        options.pop("early_stopping", None)
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=list(end_ids) or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    outputs = []
    for row in found.sequences[:, len(prompt) :].tolist():
        end = next((at for at, token in enumerate(row, 1) if token in end_ids), len(row))
        outputs.append(row[:end])
    return outputs, found.sequences_scores.tolist() if width > 1 else None


def stops_in_output(backend: Any, strings: list[str], num_prompt: int) -> Any:
    """transformers' criterion for stop strings, which does not see the prompt."""
    from transformers import (
        PreTrainedTokenizerFast,
        StoppingCriteria,
        StoppingCriteriaList,
        StopStringCriteria,
    )

    class OutputOnly(StoppingCriteria):
        def __init__(self) -> None:
            tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
            self._criterion = StopStringCriteria(tokenizer, strings)

        def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
            return self._criterion(input_ids[:, num_prompt:], scores, **options)

    return StoppingCriteriaList([OutputOnly()])
