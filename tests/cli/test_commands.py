"""The commands, with the engine replaced: flags, what is printed where, exit codes."""

from __future__ import annotations

import io
import signal
import subprocess
import sys

import pytest
from fake_llm import FakeLLM, llm_class  # noqa: F401

from paxkv.cli.main import main
from paxkv.cli.text_stream import Interrupt


@pytest.fixture(autouse=True)
def _engine(llm_class):  # noqa: F811
    return llm_class


def asked() -> FakeLLM:
    (llm,) = FakeLLM.instances
    return llm


def type_lines(monkeypatch, *lines):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))


def test_generate_streams_a_completion_to_stdout(capsys):
    assert main(["generate", "--model", "m", "Explain paging."]) == 0
    out, err = capsys.readouterr()
    assert out == "paging is a table\n"
    assert "4 tokens in" in err
    ((prompt, params),) = asked().requests
    assert prompt == "Explain paging."
    assert (params.temperature, params.max_tokens, params.n) == (0.0, 128, 1)
    assert asked().engine_arguments == {"max_num_seqs": 1}


def test_generate_passes_sampling_flags(capsys):
    numbers = "--temperature 0.7 --top-p 0.9 --top-k 5 --min-p 0.1 --max-tokens 9 --ignore-eos"
    flags = [*numbers.split(), "--top-n-sigma", "1.5"]
    flags += ["--stop", "END", "--stop", "\n\n", "--stop-token-ids", "7", "--bad-words", "no"]
    flags += ["--logit-bias", "3=-5", "--logit-bias", "4=2.5", "--presence-penalty", "-1.5"]
    assert main(["generate", "--quiet", "--model", "m", *flags, "hi"]) == 0
    params = asked().requests[0][1]
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.7, 0.9, 5, 0.1)
    assert (params.max_tokens, params.ignore_eos, params.top_n_sigma) == (9, True, 1.5)
    assert params.stop == ("END", "\n\n")
    assert params.stop_token_ids == (7,)
    assert params.bad_words == ("no",)
    assert params.logit_bias == {3: -5.0, 4: 2.5}
    assert params.presence_penalty == -1.5
    assert capsys.readouterr().err == ""


def test_generate_passes_engine_flags():
    flags = (
        "--max-model-len=512 --block-size=8 --num-gpu-blocks-override=99 --max-num-seqs=3 "
        "--max-num-batched-tokens 64 --no-enable-prefix-caching --dtype float32 --seed 5 "
        "--kv-cache-memory-bytes 2G --gpu-memory-utilization 0.5 "
        "--enforce-eager --use-v2-block-manager"
    )
    assert main(["generate", "--model", "m", *flags.split(), "hi"]) == 0
    assert asked().engine_arguments == {
        "max_model_len": 512,
        "block_size": 8,
        "num_gpu_blocks_override": 99,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 64,
        "enable_prefix_caching": False,
        "dtype": "float32",
        "seed": 5,
        "kv_cache_memory_bytes": 2 * 1024**3,
        "gpu_memory_utilization": 0.5,
        "enforce_eager": True,
    }


def test_generate_with_chat_template():
    arguments = ["generate", "--model", "m", "--chat", "--system", "be brief", "why paging"]
    assert main(arguments) == 0
    assert asked().tokenizer.last_messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "why paging"},
    ]
    assert asked().requests[0][0] == {"prompt_token_ids": [0, 1, 2, 3]}


def test_several_prompts_or_sequences_are_made_together(capsys):
    assert main(["generate", "--model", "m", "--n", "2", "one", "two"]) == 0
    assert capsys.readouterr().out == (
        ">>> one [0]\nanswer 0.0\n\n>>> one [1]\nanswer 0.1\n\n"
        ">>> two [0]\nanswer 1.0\n\n>>> two [1]\nanswer 1.1\n\n"
    )
    assert asked().requests[0][0] == ["one", "two"]


def test_a_dash_reads_the_prompt_from_stdin(monkeypatch):
    type_lines(monkeypatch, "piped text")
    assert main(["generate", "--model", "m", "-"]) == 0
    assert asked().requests[0][0] == "piped text\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1", "hi"], "--temperature must be a number from 0"),
        (["--top-p", "1.5", "hi"], "--top-p must be a number from 0 to 1, got 1.5"),
        (["--system", "x", "hi"], "--system needs --chat"),
    ],
)
def test_a_wrong_value_is_one_sentence_and_exit_code_2(capsys, arguments, message):
    assert main(["generate", "--model", "m", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("paxkv generate: ")
    assert message in err
    assert err.count("\n") == 1
    assert FakeLLM.instances == []


def test_a_model_that_is_not_there_is_one_sentence(capsys):
    assert main(["chat", "--model", "missing"]) == 2
    assert capsys.readouterr().err == (
        "paxkv chat: model 'missing' is neither a known name nor a path\n"
    )
    assert main(["generate", "--model", "offline", "hi"]) == 2
    assert capsys.readouterr().err == (
        "paxkv generate: cannot reach the index; connect, or give a path\n"
    )


def test_a_fault_of_the_engine_keeps_its_traceback():
    with pytest.raises(TypeError, match="a fault of the engine"):
        main(["generate", "--model", "broken", "hi"])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["generate", "hi"],
        ["generate", "--model", "m"],
        ["generate", "--model", "m", "--block-size", "x", "hi"],
        ["generate", "--model", "m", "--logit-bias", "3:1", "hi"],
        ["nonsense"],
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_ctrl_c_in_generate_exits_with_130(llm_class, capsys):  # noqa: F811
    llm_class.interrupt_after = 2
    assert main(["generate", "--model", "m", "hi"]) == 130
    out, err = capsys.readouterr()
    assert out == "paging is a\n"
    assert err == "interrupted\n"
    assert asked().closed == 1


def test_chat_remembers_until_reset(monkeypatch, capsys):
    type_lines(monkeypatch, "hello there", "", "and now", "/reset", "fresh", "/exit", "unread")
    assert main(["chat", "--model", "m", "--system", "sys"]) == 0
    out, err = capsys.readouterr()
    assert out == "paging is a table\n" * 3
    assert "/reset" in err
    assert "conversation forgotten" in err
    assert asked().tokenizer.last_messages == [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "fresh"},
    ]
    # "sys", then "hello there", its four-word answer, "and now"
    assert [len(prompt["prompt_token_ids"]) for prompt, _ in asked().requests] == [3, 9, 2]
    params = asked().requests[0][1]
    assert (params.temperature, params.top_p, params.max_tokens) == (0.2, 0.9, 512)


def test_chat_keeps_what_came_before_ctrl_c(llm_class, monkeypatch, capsys):  # noqa: F811
    llm_class.interrupt_after = 2
    type_lines(monkeypatch, "hello", "go on")
    assert main(["chat", "--model", "m"]) == 0
    assert "stopped" in capsys.readouterr().err
    assert asked().tokenizer.last_messages[1] == {
        "role": "assistant",
        "content": "paging is a",
    }
    assert asked().closed == 2


def test_a_second_ctrl_c_does_not_wait():
    before = signal.getsignal(signal.SIGINT)  # a shell's background job ignores it
    with pytest.raises(KeyboardInterrupt), Interrupt():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_chat_takes_back_a_question_that_does_not_fit(llm_class, monkeypatch, capsys):  # noqa: F811
    llm_class.longest_prompt = 8
    type_lines(monkeypatch, "a b", "c d e f", "g")
    assert main(["chat", "--model", "m", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out == "paging is a table\n" * 2
    assert err == "prompt of 41 tokens leaves no room in max_model_len 41 (/reset starts over)\n"
    roles = [message["role"] for message in asked().tokenizer.last_messages]
    assert roles == ["user", "assistant", "user"]


def test_a_reader_that_goes_away_is_no_traceback():
    program = (
        "import sys; from paxkv.cli.main import main\n"
        "import paxkv.cli.pull as pull\n"
        "def run(args):\n"
        "    for _ in range(100000): print('x' * 100)\n"
        "    return 0\n"
        "pull.run = run\n"
        "sys.exit(main(['pull', 'm']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 0


def test_help_lists_every_engine_flag(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    text = capsys.readouterr().out
    for flag in ("--block-size", "--no-enable-prefix-caching", "--temperature", "--seed"):
        assert flag in text


def test_pull_prints_where_the_model_is(monkeypatch, capsys, tmp_path):
    import convert

    calls = []

    def resolve(model, revision=None):
        calls.append((model, revision))
        return tmp_path / "model.gguf"

    monkeypatch.setattr(convert, "resolve", resolve)
    assert main(["pull", "smollm2-135m", "--revision", "main"]) == 0
    assert calls == [("smollm2-135m", "main")]
    assert capsys.readouterr().out == f"{tmp_path / 'model.gguf'}\n"
