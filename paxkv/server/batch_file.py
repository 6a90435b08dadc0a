"""Batch files: lines of requests in, lines of results out, partial results in between."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from paxkv.output_file import OutputError, OutputFile
from paxkv.text.text_file import text_lines

URLS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")


@dataclass(frozen=True)
class BatchLine:
    """One request. number: of the line, from 1. error: why the line cannot be sent."""

    number: int
    digest: str
    custom_id: str | None
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def parse(cls, number: int, text: str) -> BatchLine:
        """Parse OpenAI's format, `{"custom_id", "method", "url", "body"}`, or the simple one,
        `{"prompt", …}`, which /v1/completions answers."""
        digest = sha256(text.encode(errors="replace")).hexdigest()[:16]
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return cls(number, digest, None, error="not valid JSON")
        if not isinstance(found, dict):
            return cls(number, digest, None, error="not a JSON object")
        custom_id = found.get("custom_id")
        if custom_id is None and "prompt" in found and "body" not in found:
            custom_id = f"line-{number}"
        if not isinstance(custom_id, str):
            return cls(number, digest, None, error="custom_id must be a string")
        if "prompt" in found and "body" not in found:
            fields = {name: value for name, value in found.items() if name != "custom_id"}
            return cls(number, digest, custom_id, URLS[0], fields)
        error = _complaint(found)
        if error is not None:
            return cls(number, digest, custom_id, error=error)
        return cls(number, digest, custom_id, found["url"], found["body"])

    def result(self, status: int, answer: Any) -> dict[str, Any]:
        """Format a result in OpenAI's format."""
        response = {"status_code": status, "request_id": f"batch-{self.number}", "body": answer}
        return {
            "id": f"batch_req_{self.number}",
            "custom_id": self.custom_id,
            "response": response,
            "error": None,
        }

    def refusal(self) -> dict[str, Any]:
        """Format the result of a line that could not be sent."""
        message = f"line {self.number}: {self.error}"
        return {
            "id": f"batch_req_{self.number}",
            "custom_id": self.custom_id,
            "response": None,
            "error": {"message": message, "code": "invalid_line", "line": self.number},
        }


def _complaint(found: dict[str, Any]) -> str | None:
    """The fault of a line in OpenAI's format, apart from its body's fields; None without one."""
    body = found.get("body")
    if found.get("method", "POST") != "POST":
        return "method must be POST"
    if found.get("url") not in URLS:
        return f"url must be one of {', '.join(URLS)}"
    if not isinstance(body, dict):
        return "body must be an object"
    return "stream must be absent in a batch" if body.get("stream") else None


def read_batch(path: Path) -> Iterator[BatchLine]:
    """Yield the requests of a file; blank lines are skipped."""
    for number, text in enumerate(text_lines(path, errors="replace"), start=1):
        if text.strip():
            yield BatchLine.parse(number, text.strip())


def count_lines(path: Path) -> int:
    """Number of requests that `read_batch` yields."""
    return sum(1 for text in text_lines(path, errors="replace") if text.strip())


def check_files(source: Path, target: Path, *, resume: bool) -> OutputFile:
    """Check both files of a run; return the output. Raises ValueError if one cannot be used."""
    if not source.is_file():
        raise ValueError(f"input_file={str(source)!r} is not a file")
    try:
        output = OutputFile(target)
    except ValueError as error:
        raise ValueError(f"output_file={error}") from None
    partial = partial_path(output)
    if output.same_as(source) or (partial.exists() and partial.samefile(source)):
        raise ValueError(
            f"input_file={str(source)!r} would be overwritten: output_file={str(target)!r} or its "
            f".partial is the same file"
        )
    if output.is_stream:
        if resume:
            raise ValueError(f"output_file={str(target)!r} is no regular file: nothing to resume")
    elif partial.exists() and not resume:
        raise ValueError(
            f"{partial} holds results of a run that did not end: go on with --resume, or delete it"
        )
    return output


def partial_path(output: OutputFile) -> Path:
    """Path of the results until the run is complete."""
    return output.target.with_name(output.target.name + ".partial")


class BatchResults:
    """Results in the order of their lines, each written to disk at once.

    Until all are there they are in `TARGET.partial`, in the order they came in; `close` writes
    the output file at once and whole. Results of an earlier run are taken from there. Raises
    OutputError, which leaves what is there for a later run.
    """

    def __init__(self, output: OutputFile) -> None:
        self._output = output
        self._partial = partial_path(output)
        self._results: dict[int, str] = {}
        self._digests: dict[int, str] = {}
        if self._partial.exists():
            self._load()
            entries = (self._entry(line, self._digests[line], self._results[line])
                       for line in self._results)  # fmt: skip
            OutputFile(self._partial).write_text("".join(entries))
        try:
            self._file = self._partial.open("a", encoding="utf-8")
        except OSError as error:
            raise OutputError.of(error, self._partial) from None

    def _load(self) -> None:
        for text in text_lines(self._partial, errors="replace"):
            try:
                entry = json.loads(text)
                self._results[entry["line"]] = json.dumps(entry["result"])
                self._digests[entry["line"]] = entry["digest"]
            except (ValueError, KeyError, TypeError):
                continue  # cut short by the end of the earlier run

    @staticmethod
    def _entry(number: int, digest: str, result: str) -> str:
        return f'{{"line": {number}, "digest": "{digest}", "result": {result}}}\n'

    def has(self, line: BatchLine) -> bool:
        """Whether there is a result for this very line."""
        return self._digests.get(line.number) == line.digest

    def has_failed(self, line: BatchLine) -> bool:
        """Whether the result there is for it is an error."""
        response = json.loads(self._results[line.number])["response"]
        return response is None or response["status_code"] != 200

    def expect(self, line: BatchLine) -> None:
        """Announce the next line; results are put in order at the end."""

    def add(self, line: BatchLine, result: dict[str, Any], *, final: bool = True) -> None:
        """Keep a result; one that is not final is made again on resuming."""
        text = json.dumps(result)
        self._results[line.number] = text
        self._digests[line.number] = line.digest
        if final:
            try:
                self._file.write(self._entry(line.number, line.digest, text))
                self._file.flush()
            except OSError as error:
                raise OutputError.of(error, self._partial) from None

    def close(self) -> None:
        """Write the complete file, and delete the partial one."""
        self.abandon()
        lines = (self._results[number] + "\n" for number in sorted(self._results))
        self._output.write_text("".join(lines))
        self._partial.unlink()

    def abandon(self) -> None:
        """Leave partial results for a later run."""
        with suppress(OSError):  # every result was flushed, or told as lost, when it came
            self._file.close()


class StreamedResults:
    """Results for a pipe or a device, each written once all earlier ones are.

    Raises OutputError where they cannot be written.
    """

    def __init__(self, output: OutputFile) -> None:
        self._path = output.path
        self._expected: deque[int] = deque()
        self._results: dict[int, str] = {}
        try:
            self._file = self._path.open("w", encoding="utf-8")
        except OSError as error:
            raise OutputError.of(error, self._path) from None

    def has(self, line: BatchLine) -> bool:
        """Always False: a stream has no earlier run."""
        return False

    def has_failed(self, line: BatchLine) -> bool:
        """Always False, as for `has`."""
        return False

    def expect(self, line: BatchLine) -> None:
        """Announce the next line; its result follows those of earlier lines."""
        self._expected.append(line.number)

    def add(self, line: BatchLine, result: dict[str, Any], *, final: bool = True) -> None:
        """Write a result and those that waited for it, or hold it until earlier ones arrive."""
        self._results[line.number] = json.dumps(result)
        try:
            while self._expected and self._expected[0] in self._results:
                self._file.write(self._results.pop(self._expected.popleft()) + "\n")
            self._file.flush()
        except OSError as error:
            raise OutputError.of(error, self._path) from None

    def close(self) -> None:
        """Do nothing: all results have been written."""
        self.abandon()

    def abandon(self) -> None:
        """End the stream where it stands."""
        with suppress(OSError):  # every result was flushed, or told as lost, when it came
            self._file.close()


def open_results(output: OutputFile) -> BatchResults | StreamedResults:
    """Open the results for `output`."""
    return StreamedResults(output) if output.is_stream else BatchResults(output)
