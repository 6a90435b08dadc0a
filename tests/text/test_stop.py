"""ST-01, ST-03, ST-04: stop strings, special tokens, end sets."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_tokenizers import SPECIALS, byte_level

from paxkv.text.detokenizer import Detokenizer
from paxkv.text.stop import Finish, SequenceText, StopRules

SPECIAL_IDS = {text: index for index, text in enumerate(SPECIALS)}


def generate(ids, *, skip_special_tokens=True, streaming=True, **rules):
    """Feed ids until a decision; (state, deltas, ids used)."""
    built = StopRules.build(
        special_tokens=SPECIAL_IDS, skip_special_tokens=skip_special_tokens, **rules
    )
    state = SequenceText(built, Detokenizer(byte_level(), skip_special_tokens=skip_special_tokens))
    deltas = []
    used = 0
    for token_id in ids:
        used += 1
        decision = state.push(token_id)
        if streaming:
            deltas.append(state.take_delta())
        if decision is not None:
            break
    else:
        state.close(Finish("length"))
    deltas.append(state.take_delta())
    return state, deltas, used


def first_completed(full: str, stops) -> tuple[int, str] | None:
    """Reference: read the text character by character; the stop string that is complete first,
    the longest of several."""
    for end in range(1, len(full) + 1):
        met = [stop for stop in stops if full[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return end - len(longest), longest
    return None


TEXT = "the cat sat on the mat, and the dog ran 今天 after the \U0001f680 cat. the end"


@pytest.mark.parametrize("include", [False, True])
def test_every_stop_string_wherever_it_lies(include):
    ids = byte_level().encode(TEXT).ids
    for start in range(0, 60, 3):
        for width in (1, 2, 5, 9):
            stop = TEXT[start : start + width]
            for streaming in (True, False):
                state, deltas, _ = generate(
                    ids, stop=[stop], include_stop_str_in_output=include, streaming=streaming
                )
                expected = TEXT[: TEXT.index(stop)] + (stop if include else "")
                assert state.text == expected
                assert "".join(deltas) == expected
                assert state.finish == Finish("stop", stop)


ALPHABET = "ab 今é"
stop_lists = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(st.text(ALPHABET, max_size=40), stop_lists, st.booleans())
@example("aaab", ["aab"], False)
@example("abababac b", ["ababac"], True)
@example("aabaabaaab", ["aabaaa", "abb"], False)
def test_text_ends_at_the_first_completed_stop_string(full, stops, include):
    ids = byte_level().encode(full).ids
    state, deltas, used = generate(ids, stop=stops, include_stop_str_in_output=include)
    reference = first_completed(full, stops)
    assert "".join(deltas) == state.text
    if reference is None:
        assert state.text == full
        assert state.finish == Finish("length")
        return
    start, stop = reference
    assert state.text == full[:start] + (stop if include else "")
    assert state.finish == Finish("stop", stop)
    needed = next(
        end for end in range(len(ids) + 1) if len(byte_level().decode(ids[:end])) >= start
    )
    assert used >= needed


@settings(max_examples=200, deadline=None)
@given(st.text(ALPHABET, max_size=40), stop_lists)
def test_exactly_what_may_become_a_stop_string_is_held_back(full, stops):
    tokenizer = byte_level()
    ids = tokenizer.encode(full).ids
    state = SequenceText(StopRules.build(stop=stops), Detokenizer(tokenizer))
    shown = ""
    for end, token_id in enumerate(ids, start=1):
        if state.push(token_id) is not None:
            break
        shown += state.take_delta()
        known = tokenizer.decode(ids[:end])
        if known.endswith("\ufffd"):
            continue
        prefixes = [stop[:size] for stop in stops for size in range(1, len(stop))]
        held = max((len(p) for p in prefixes if known.endswith(p)), default=0)
        assert shown == known[: len(known) - held]


@settings(max_examples=100, deadline=None)
@given(st.text(ALPHABET, max_size=40), stop_lists, st.integers(0, 12))
def test_min_tokens_counts_only_matches_that_end_later(full, stops, minimum):
    tokenizer = byte_level()
    ids = tokenizer.encode(full).ids
    detokenizer = Detokenizer(tokenizer)
    before = sum(len(detokenizer.push(token_id)) for token_id in ids[: max(0, minimum - 1)])
    state, _, used = generate(ids, stop=stops, min_tokens=minimum)
    ends = [end for end in range(before + 1, len(full) + 1) if full[:end].endswith(tuple(stops))]
    if ends:
        stop = max((s for s in stops if full[: ends[0]].endswith(s)), key=len)
        assert state.text == full[: ends[0] - len(stop)]
        assert used >= minimum
    else:
        assert state.text == full


def test_a_stop_string_completed_by_the_flush_ends_with_stop():
    tokenizer = byte_level()
    ids = tokenizer.encode("ok " + chr(0x1F680)).ids[:-1]
    state, _, _ = generate(ids, stop=["\ufffd"])
    assert state.finish == Finish("stop", "\ufffd")
    assert state.text == "ok "


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("rules", [{"stop_token_ids": [2]}, {"eos_token_ids": [2]}])
def test_stopping_on_a_special_id_removes_only_that_token(skip, rules):
    base = byte_level().encode("the cat").ids
    state, deltas, used = generate([*base, 2, 50], skip_special_tokens=skip, **rules)
    assert state.text == "the cat" == "".join(deltas)
    assert used == len(base) + 1
    reason = 2 if "stop_token_ids" in rules else None
    assert state.finish == Finish("stop", reason)


@pytest.mark.parametrize(("skip", "tail"), [(True, ""), (False, "<|im_end|>")])
def test_an_included_stop_id_shows_as_special_tokens_do(skip, tail):
    base = byte_level().encode("the cat").ids
    state, _, _ = generate(
        [*base, 2], skip_special_tokens=skip, stop_token_ids=[2], include_stop_str_in_output=True
    )
    assert state.text == "the cat" + tail


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_a_special_tokens_text_is_matched_on_the_token(skip, include):
    base = byte_level().encode("the cat").ids
    state, deltas, _ = generate(
        [*base, 2, 60],
        stop=["<|im_end|>"],
        skip_special_tokens=skip,
        include_stop_str_in_output=include,
        eos_token_ids=[2],
    )
    assert state.text == "the cat" + ("<|im_end|>" if include else "") == "".join(deltas)
    assert state.finish == Finish("stop", "<|im_end|>")


def test_a_special_token_inside_a_stop_string_is_refused_while_skipped():
    with pytest.raises(ValueError, match=r"stop .*<\|im_end\|>.*skip_special_tokens"):
        StopRules.build(stop=["x<|im_end|>"], special_tokens=SPECIAL_IDS)
    state, _, _ = generate(
        [*byte_level().encode("ax").ids, 2], stop=["x<|im_end|>"], skip_special_tokens=False
    )
    assert state.text == "a"
    assert state.finish == Finish("stop", "x<|im_end|>")


def test_all_end_ids_count_and_ignore_eos_spares_the_users_own():
    filler = byte_level().encode("the cat sat").ids
    for end in (0, 2):
        state, _, _ = generate([*filler, end, *filler], eos_token_ids=[2, 0])
        assert state.finish == Finish("stop")
        state, _, _ = generate([*filler, end, *filler], eos_token_ids=[2, 0], ignore_eos=True)
        assert state.finish == Finish("length")
        state, _, _ = generate(
            [*filler, end, *filler], eos_token_ids=[2, 0], ignore_eos=True, stop_token_ids=[end]
        )
        assert state.finish == Finish("stop", end)


def test_min_tokens_holds_back_end_ids_and_max_tokens_ends():
    ids = byte_level().encode("the cat sat on the mat, and the dog").ids
    state, _, used = generate([ids[0], 2, *ids], eos_token_ids=[2], min_tokens=7, max_tokens=9)
    assert used == 9
    assert state.finish == Finish("length")
    with pytest.raises(RuntimeError, match="after the sequence ended"):
        state.push(5)


def test_without_a_tokenizer_only_ids_end_a_sequence():
    state = SequenceText(StopRules.build(eos_token_ids=[2], max_tokens=3))
    assert [state.push(5), state.push(2)] == [None, Finish("stop")]
    assert state.text == ""
    with pytest.raises(ValueError, match="stop needs a tokenizer"):
        SequenceText(StopRules.build(stop=["a"]))
