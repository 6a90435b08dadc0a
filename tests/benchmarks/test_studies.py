"""The command line of the studies: the model as a word, and files that can be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.studies.__main__ import build_parser, main


@pytest.mark.parametrize(
    "command",
    ["block-size", "paging --trace synthetic", "prefix --trace synthetic", "beams --workload w"],
)
def test_the_model_is_a_word_or_a_flag(command: str) -> None:
    study, *flags = command.split()
    for words in ([study, "M", *flags], [study, *flags, "M"], [study, *flags, "--model", "M"]):
        assert build_parser().parse_args(words).model == "M", words


@pytest.mark.parametrize("flag", ["--json", "--markdown", "--plot"])
def test_results_go_where_they_can(
    tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be written is said before the work, and no input is overwritten."""
    trace = tmp_path / "trace.svg"
    trace.write_text(json.dumps({"prompt_len": 4, "output_len": 4}))
    command = ["paging", "--trace", str(trace), flag]
    for target, told in ((tmp_path / "no/x.svg", "in no folder that exists"), (tmp_path, "folder")):
        with pytest.raises(SystemExit) as stopped:
            main([*command, str(target)])
        assert stopped.value.code == 2
        assert told in capsys.readouterr().err
    (tmp_path / "link.svg").symlink_to(trace)
    assert main([*command, f"{tmp_path}/link.svg"]) == 2
    assert f"{flag}='{tmp_path}/link.svg' and --trace are one file" in capsys.readouterr().err
    assert json.loads(trace.read_text())


def test_two_results_are_not_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policies", "--json", f"{tmp_path}/a", "--markdown", f"{tmp_path}/a"]) == 2
    assert "are one file" in capsys.readouterr().err
