"""Batch files: lines of requests in, lines of results out, and what is kept in between."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

URLS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")


@dataclass(frozen=True)
class BatchLine:
    """One request. number: of the line, from 1. error: why there is none to be sent."""

    number: int
    digest: str
    custom_id: str | None
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def parse(cls, number: int, text: str) -> BatchLine:
        """OpenAI's form, `{"custom_id", "method", "url", "body"}`, or the simple one,
        `{"prompt", …}`, with an answer of /v1/completions."""
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
        """The line to write, in OpenAI's form."""
        response = {"status_code": status, "request_id": f"batch-{self.number}", "body": answer}
        return {
            "id": f"batch_req_{self.number}",
            "custom_id": self.custom_id,
            "response": response,
            "error": None,
        }

    def refusal(self) -> dict[str, Any]:
        """The line to write where nothing could be sent."""
        message = f"line {self.number}: {self.error}"
        return {
            "id": f"batch_req_{self.number}",
            "custom_id": self.custom_id,
            "response": None,
            "error": {"message": message, "code": "invalid_line", "line": self.number},
        }


def _complaint(found: dict[str, Any]) -> str | None:
    """What is wrong with a line in OpenAI's form, apart from its body's fields."""
    body = found.get("body")
    if found.get("method", "POST") != "POST":
        return "method must be POST"
    if found.get("url") not in URLS:
        return f"url must be one of {', '.join(URLS)}"
    if not isinstance(body, dict):
        return "body must be an object"
    return "stream must be absent in a batch" if body.get("stream") else None


def read_batch(path: Path) -> Iterator[BatchLine]:
    """The requests of a file; blank lines are none."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, start=1):
            if text.strip():
                yield BatchLine.parse(number, text.strip())


def count_lines(path: Path) -> int:
    """How many `read_batch` gives."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return sum(1 for text in file if text.strip())


class BatchResults:
    """Results in the order of their lines, each on disk as soon as it is there.

    Until all are there they are in `PATH.partial`, in the order they came in; `close` writes
    PATH at once and whole. With `resume`, results of an earlier run are taken from there.
    Raises ValueError if there is such a file and it is not to be used.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._results: dict[int, str] = {}
        self._digests: dict[int, str] = {}
        if self._partial.exists():
            if not resume:
                raise ValueError(
                    f"{self._partial} holds results of a run that did not end: go on with "
                    "--resume, or delete it"
                )
            self._load()
        with self._partial.open("w", encoding="utf-8") as file:
            for number, text in self._results.items():
                file.write(self._entry(number, self._digests[number], text))
        self._file = self._partial.open("a", encoding="utf-8")

    def _load(self) -> None:
        for text in self._partial.read_text(encoding="utf-8", errors="replace").splitlines():
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

    def add(self, line: BatchLine, result: dict[str, Any], *, final: bool = True) -> None:
        """Keep a result; one that is not final is made again on resuming."""
        text = json.dumps(result)
        self._results[line.number] = text
        self._digests[line.number] = line.digest
        if final:
            self._file.write(self._entry(line.number, line.digest, text))
            self._file.flush()

    def close(self) -> None:
        """All results are there: write the file, and forget the partial one."""
        self._file.close()
        new = self._path.with_name(self._path.name + ".new")
        with new.open("w", encoding="utf-8") as file:
            for number in sorted(self._results):
                file.write(self._results[number] + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)
        self._partial.unlink()

    def abandon(self) -> None:
        """Leave what is there for a later run."""
        self._file.close()
