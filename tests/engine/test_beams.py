"""The rule of beam search alone: no device, no pages."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from paxkv.engine.beam import search as beams
from paxkv.engine.beam.search import BeamSearch

VOCAB = 4
END = 0
PROMPT = [1, 2]


def search_of(width: int, max_tokens: int, **options: Any) -> BeamSearch:
    return BeamSearch(width, max_tokens, prompt=list(PROMPT), **options)


def outputs(search: BeamSearch) -> list[list[int]]:
    return [search.output(index) for index in range(len(search.histories))]


def advance(search: BeamSearch, ids: np.ndarray, logprobs: np.ndarray) -> list[int]:
    """One step; for each beam that runs now, the place of its parent."""
    ((moves),) = beams.step([search], ids[None], logprobs[None])
    parents = list(range(len(search.histories)))
    for index, parent in moves:
        parents[index] = parent
    return parents


def table(seed: int, order: int = 2) -> np.ndarray:
    """Log-probabilities of a token after the two before it, float32 [VOCAB, VOCAB, VOCAB]."""
    logits = 1.5 * np.random.default_rng(seed).standard_normal((VOCAB,) * (order + 1))
    return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)


def after(model: np.ndarray, output: list[int]) -> np.ndarray:
    first, second = [*PROMPT, *output][-2:]
    return model[first, second]


def step(search: BeamSearch, model: np.ndarray) -> list[int]:
    """One step with all candidates, the most likely first as the device gives them."""
    return advance(search, *best_first(search, model))


def best_first(search: BeamSearch, model: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All tokens after each beam, the most likely first, and their log-probabilities."""
    rows = np.stack([after(model, output) for output in outputs(search)])
    ids = np.argsort(-rows, kind="stable", axis=1)
    return ids, np.take_along_axis(rows, ids, axis=1)


def run(search: BeamSearch, model: np.ndarray) -> list[list[int]]:
    while not search.done:
        step(search, model)
    return [beam.token_ids for beam in search.finished]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_beams_enough_for_everything_find_the_best_of_all(seed: int, penalty: float) -> None:
    """With "never" nothing that could be better is given up, so that the answer is exhaustive."""
    length, width = 4, VOCAB**3
    model = table(seed)
    every = []
    for count in range(1, length + 1):
        for output in product(range(VOCAB), repeat=count):
            if END in output[:-1] or (count < length and output[-1] != END):
                continue
            logprob = sum(
                float(after(model, list(output[:at]))[token]) for at, token in enumerate(output)
            )
            every.append((logprob / count**penalty, list(output)))
    every.sort(reverse=True)
    search = search_of(width, length, end_ids={END}, length_penalty=penalty, early_stopping="never")
    found = run(search, model)
    assert found[:5] == [output for _, output in every[:5]]
    for beam, (score, _) in zip(search.finished[:5], every):
        assert beam.score == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_one_beam_is_greedy(seed: int) -> None:
    model = table(seed)
    output: list[int] = []
    while len(output) < 9 and (not output or output[-1] != END):
        output.append(int(after(model, output).argmax()))
    for stopping in (False, True, "never"):
        search = search_of(1, 9, end_ids={END}, length_penalty=2.0, early_stopping=stopping)
        assert run(search, model) == [output]


def candidates(*rows: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array([[token for token, _ in row] for row in rows])
    return ids, np.array([[value for _, value in row] for row in rows], np.float32)


def test_an_end_beyond_the_best_candidates_finishes_nothing() -> None:
    """Candidate number `width` and later only stand in for those that end."""
    search = search_of(2, 9, end_ids={END})
    advance(search, *candidates([(1, -1.0), (2, -1.5), (END, -2.0), (3, -3.0)]))
    assert outputs(search) == [[1], [2]]
    assert not search.finished
    advance(
        search,
        *candidates(
            [(END, -0.5), (1, -3.0), (2, -4.0), (3, -5.0)],
            [(1, -0.1), (END, -0.2), (2, -6.0), (3, -7.0)],
        ),
    )
    assert [beam.token_ids for beam in search.finished] == [[1, END]]
    assert sorted(outputs(search)) == [[1, 1], [2, 1]]


@pytest.mark.parametrize(
    "stopping, penalty, over",
    [
        (True, 1.0, True),
        (False, 0.0, True),
        ("never", 0.0, True),
        (False, 1.0, True),
        ("never", 1.0, False),
        ("never", 2.0, False),
        ("never", -1.0, True),
    ],
)
def test_when_a_search_with_all_beams_finished_is_over(
    stopping: bool | str, penalty: float, over: bool
) -> None:
    """Two beams ended at -1.6 and -1.7 after two tokens; the best that runs has -2.6."""
    search = search_of(
        2,
        20,
        end_ids={END},
        length_penalty=penalty,
        early_stopping=stopping,  # type: ignore[arg-type]
    )
    advance(search, *candidates([(1, -1.5), (2, -1.6), (3, -2.0)]))
    row = [(END, -0.1), (1, -1.1), (2, -2.0), (3, -2.1)]
    advance(search, *candidates(row, row))
    assert len(search.finished) == 2
    assert search.done is over


def test_a_search_that_can_only_draw_level_is_over() -> None:
    search = search_of(2, 20, end_ids={END})
    advance(search, *candidates([(1, -1.0), (2, -2.0), (3, -4.0)]))
    advance(
        search,
        *candidates([(END, -0.5), (1, -8.0), (2, -9.0)], [(END, -1.0), (1, -1.0), (2, -9.0)]),
    )
    assert [beam.logprob for beam in search.finished] == [-1.5, -3.0]
    assert search.logprobs.max() == -3.0
    assert search.done


def test_a_penalty_that_favours_short_beams_looks_no_further_ahead() -> None:
    """The best that runs, -1.6 after two tokens, beats the worst that ended, -1.7 after two; after
    twenty it would not."""
    search = search_of(2, 20, end_ids={END}, length_penalty=-1.0, early_stopping="never")
    advance(search, *candidates([(1, -1.5), (END, -1.6), (2, -2.0)]))
    advance(
        search,
        *candidates(
            [(1, -0.1), (END, -0.2), (2, -3.0)],
            [(1, -3.0), (2, -4.0), (3, -5.0)],
        ),
    )
    assert [float(beam.score) for beam in search.finished] == pytest.approx([-1.6, -3.4])
    assert not search.done


def test_a_parent_keeps_its_place_and_all_histories_are_apart() -> None:
    search = search_of(3, 9)
    assert advance(search, *candidates([(1, -1.0), (2, -1.1), (3, -1.2)])) == [0, 0, 0]
    likely, unlikely = [(1, -0.1), (2, -0.2), (3, -0.3)], [(1, -8.0), (2, -8.1), (3, -8.2)]
    assert advance(search, *candidates(unlikely, likely, likely)) in ([1, 1, 2], [2, 1, 2])
    reverse = [[(1, value), (2, -9.0), (3, -9.0)] for value in (-3.0, -2.0, -1.0)]
    assert advance(search, *candidates(*reverse)) == [0, 1, 2]
    assert outputs(search)[1][:1] == [2]
    assert outputs(search)[2][:1] == [3]
    assert all(len(output) == 3 for output in outputs(search))
    assert len({id(output) for output in outputs(search)}) == 3
    assert len(set(map(tuple, outputs(search)))) == 3


def test_banned_candidates_leave_fewer_beams_and_more_come_back() -> None:
    search = search_of(3, 9)
    advance(search, *candidates([(1, -1.0), (2, -np.inf), (3, -np.inf)]))
    assert outputs(search) == [[1]]
    advance(search, *candidates([(1, -1.0), (2, -2.0), (3, -3.0)]))
    assert outputs(search) == [[1, 1], [1, 2], [1, 3]]
    banned = [(1, -np.inf), (2, -np.inf), (3, -np.inf)]
    assert advance(search, *candidates(banned, banned, [(1, -1.0), *banned[1:]])) == [2]
    assert outputs(search) == [[1, 3, 1]]


def test_closing_counts_running_beams_at_their_length() -> None:
    search = search_of(2, 9, end_ids={END})
    search.close()
    assert search.finished == []
    search = search_of(2, 9, end_ids={END})
    advance(search, *candidates([(1, -1.0), (END, -3.0), (2, -3.5)]))
    advance(search, *candidates([(3, -1.0), (2, -9.0)], [(1, -9.0), (3, -9.5)]))
    search.close()
    assert search.done
    assert [(beam.token_ids, float(beam.score)) for beam in search.finished] == [
        ([1, 3], -1.0),
        ([END], -3.0),
    ]


def test_the_last_token_finishes_the_best_beams_whatever_it_is() -> None:
    search = search_of(2, 1, end_ids={END})
    assert advance(search, *candidates([(1, -1.0), (END, -2.0), (2, -3.0)])) == []
    assert search.done
    assert [beam.token_ids for beam in search.finished] == [[1], [END]]


def test_huge_penalties_raise_nothing() -> None:
    for penalty in (100.0, -100.0):
        search = search_of(2, 3, end_ids={END}, length_penalty=penalty)
        run(search, table(0))
        assert len(search.finished) == 2


@pytest.mark.parametrize("stopping", [True, False, "never"])
def test_searches_that_step_together_find_what_each_finds_alone(stopping: bool | str) -> None:
    """Of different lengths, so that some end while others go on, with beams banned now and then."""

    def make() -> list[BeamSearch]:
        return [
            search_of(
                4, 5 + number % 5, end_ids={END}, length_penalty=number % 3, early_stopping=stopping
            )
            for number in range(24)
        ]

    def sampled(search: BeamSearch, number: int) -> tuple[np.ndarray, np.ndarray]:
        ids, logprobs = best_first(search, table(number))
        if (search.length + number) % 4 == 0:
            logprobs = np.where(np.arange(VOCAB) < 1, logprobs, np.float32(-np.inf))
        return ids, logprobs

    alone, together = make(), make()
    for number, search in enumerate(alone):
        while not search.done:
            advance(search, *sampled(search, number))
    sizes = set()
    running = dict(enumerate(together))
    while running:
        shape = next(iter(running.values())).shape
        batch = {number: search for number, search in running.items() if search.shape == shape}
        found = [sampled(search, number) for number, search in batch.items()]
        before = [[list(history) for history in s.histories] for s in batch.values()]
        moves = beams.step(
            list(batch.values()), *(np.stack(each) for each in zip(*found, strict=True))
        )
        for search, old, moved in zip(batch.values(), before, moves, strict=True):
            parents = dict(moved)
            assert list(parents) == sorted(parents)
            for index, history in enumerate(search.histories):
                assert history[:-1] == old[parents.get(index, index)]
        sizes.add(len(batch))
        running = {number: search for number, search in running.items() if not search.done}
    assert max(sizes) > 8
    for one, other in zip(alone, together, strict=True):
        assert one.finished == other.finished
