"""The engine at the smallest and at large blocks: the same answers."""

from __future__ import annotations

from tests.engine.beam_cases import beam_engine, beams
from tests.engine.test_beam_search import SAMPLED, fingerprint
from tests.engine.tiny import greedy, ids
from tests.regressions.engines import assert_idle

MIX = [
    (ids(9, salt=1), greedy(20)),
    (ids(5, salt=3), SAMPLED),
    (ids(14, salt=2), beams(3, 18, ignore_eos=True)),
    (ids(14, salt=2), greedy(3)),
]


def test_no_answer_depends_on_the_block_size() -> None:
    answers = []
    for size in (4, 16, 128):
        engine = beam_engine(block_size=size, num_gpu_blocks_override=max(12, 400 // size))
        outputs = engine.generate([ids for ids, _ in MIX], [params for _, params in MIX])
        answers.append([fingerprint(output) for output in outputs])
        assert_idle(engine)
    assert answers[0] == answers[1] == answers[2]
