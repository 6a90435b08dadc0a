"""What people type: the model as a word, other spellings, near misses, vLLM's names, units."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from fake_llm import FakeLLM, llm_class  # noqa: F401

from paxkv.bench.serve.datasets import DatasetOptions
from paxkv.bench.tune_schedule import TuneSchedule
from paxkv.cli.dataclass_flags import given_values
from paxkv.cli.main import build_parser, main


@pytest.fixture(autouse=True)
def _engine(llm_class):  # noqa: F811
    return llm_class


def parsed(line: str):
    words = shlex.split(line)
    return build_parser(words[0]).parse_args(words)


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command line that cannot be parsed is told."""
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(line))
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "chat",
        "run-batch -i a -o b",
        "tune --percentile 9 --target ttft:1 --seed 0",
        "plan",
        "bench serve",
        "bench throughput --workload w",
    ],
)
def test_the_model_is_a_word_or_a_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As in `vllm serve MODEL`; before, between or after flags."""
    name, *flags = command.split(" --")[0:1] + [f"--{rest}" for rest in command.split(" --")[1:]]
    flag_words = " ".join(flags)
    for line in (
        f"{name} M {flag_words}",
        f"{name} {flag_words} M",
        f"{name} {flag_words} --model M",
    ):
        assert parsed(line).model == "M", line
    told = "not allowed with" if command == "plan" else "MODEL is given twice"
    assert told in refused(f"{command} M --model N", capsys)


@pytest.mark.parametrize("line", ["serve", "run-batch -i a -o b", "chat --seed 3"])
def test_no_model_is_told_with_the_usage(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(line, capsys)
    assert said.startswith(f"usage: paxkv {line.split()[0]} MODEL ")
    assert said.endswith(": error: MODEL is missing\n")


@pytest.mark.parametrize(
    "line",
    [
        "generate M one two --max-tokens 5",
        "generate M --max-tokens 5 one two",
        "generate M one --max-tokens 5 two",
        "generate --model M one --max-tokens 5 two",
        "generate --max-tokens 5 --model M one two",
    ],
)
def test_prompts_follow_the_model(line: str) -> None:
    assert main(line.split()) == 0
    (llm,) = FakeLLM.instances
    assert (llm.model, llm.requests[0][0]) == ("M", ["one", "two"])
    assert llm.requests[0][1].max_tokens == 5


def test_a_prompt_alone_is_told_what_it_was_taken_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "PROMPT is missing: 'hi there' is the model" in refused("generate 'hi there'", capsys)
    assert "MODEL and PROMPT are missing" in refused("generate", capsys)


def test_underscores_are_dashes() -> None:
    """As in vLLM; values and what follows `--` are left alone."""
    args = parsed("serve M --max_model_len=9 --served-model-name a_b --enable_prefix_caching")
    assert (args.max_model_len, args.served_model_name) == (9, ["a_b"])
    assert main(["generate", "M", "--", "--max_tokens"]) == 0
    assert FakeLLM.instances[0].requests[0][0] == "--max_tokens"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("serve M --max-model-length 5", "--max-model-length; did you mean --max-model-len?"),
        ("serve M --blocksize 5", "did you mean --block-size?"),
        ("serve --modle M", "did you mean --model?"),
        ("serve M -max-model-len 5", "no flag -max-model-len; did you mean --max-model-len?"),
        ("serve M --unheard-of", "there is no flag --unheard-of\n"),
        ("serve '--port 80'", "'--port 80' is one word; a flag and its value are two"),
        ("serve M N", "there is no use for 'N'"),
        ("generate M hi --temprature 1", "did you mean --temperature?"),
        ("bench serve --num-prompt 3", "did you mean --num-prompts?"),
    ],
)  # fmt: skip
def test_a_near_miss_is_told_the_flag(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(line, capsys)
    assert words in said
    command = " ".join(word for word in line.split()[:2] if word not in ("M", "--modle", "'--port"))
    assert said.startswith(f"usage: paxkv {command.split(' --')[0]} "), said
    assert FakeLLM.instances == []


def test_vllms_names_of_bench_serve() -> None:
    line = (
        "bench serve --random-input-len 7 --random-output-len 8 --random-range-ratio 0.5 "
        "--prefix-repetition-prefix-len 9 --prefix-repetition-num-prefixes 2 --endpoint-type openai"
    )
    args = parsed(line)
    assert given_values(args, DatasetOptions) == {
        "input_len": 7,
        "output_len": 8,
        "range_ratio": 0.5,
        "prefix_len": 9,
        "num_prefixes": 2,
    }
    assert args.backend == "openai"


def test_host_and_port_of_bench_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("bench serve --host 127.0.0.1 --port 1".split()) == 2
    assert "http://127.0.0.1:1 cannot be reached" in capsys.readouterr().err
    assert main("bench serve --base-url http://h --port 1".split()) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_memory_needs_a_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("plan --bytes-per-token 8 --memory 8".split()) == 2
    assert capsys.readouterr().err == (
        "paxkv plan: --memory=8 is a number of bytes: give it a unit, as in 8GiB\n"
    )
    assert main("plan --bytes-per-token 8 --memory 8GiB".split()) == 0
    assert "with or without a unit as in 8GiB" in refused("plan --memory 8gigs", capsys)


def test_messages_name_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("plan --bytes-per-token 8 --memory 1G --expected-len 9999".split()) == 2
    said = capsys.readouterr().err
    assert "--expected-len=9999" in said
    assert "--max-model-len=2048" in said
    assert "_len" not in said
    args = parsed("serve M")
    told = args.parser.with_flags("seed of /x/max_model_len is max_model_len.x, host=1, port must")
    assert told == "seed of /x/max_model_len is max_model_len.x, --host=1, port must"


def test_results_go_where_they_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be written is said before the work, and no input is overwritten."""
    workload = tmp_path / "workload.jsonl"
    workload.write_text(json.dumps({"prompt_token_ids": [1, 2], "max_tokens": 4}))
    command = f"bench throughput M --workload {workload} --json"
    assert "in no folder that exists" in refused(f"{command} {tmp_path}/no/x.json", capsys)
    assert f"{tmp_path}' is a folder" in refused(f"{command} {tmp_path}", capsys)
    (tmp_path / "link.json").symlink_to(workload)
    assert main(f"{command} {tmp_path}/link.json".split()) == 2
    assert "--json='" in (told := capsys.readouterr().err)
    assert "/link.json' and --workload are one file" in told
    assert json.loads(workload.read_text())


def test_tune_says_how_long_it_takes() -> None:
    times = iter([0.0, 100.0, 220.0, 5000.0])
    schedule = TuneSchedule(12, 50, 10.0, clock=lambda: next(times))
    assert schedule.announcement == (
        "12 settings to try, a server start and 50 requests each: 60 s at least, by the request "
        "rate; how long in all is told after the first"
    )
    assert [schedule.next() for _ in range(4)] == [
        "1 of 12",
        "2 of 12, about 19 min left",
        "3 of 12, about 19 min left",
        "4 of 12, about 4.2 h left",
    ]
    assert ": " not in TuneSchedule(2, 5, float("inf")).announcement
