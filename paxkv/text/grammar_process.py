"""Trial process for grammars: it is killed if one never compiles or takes all memory.

Its first line of input has the vocabulary and the seconds that a grammar may take. Each further
line is a grammar, answered by a line that says what is wrong with it, if anything. The process ends
with its standard input, or by itself when a grammar takes twice as long: its parent may be dead.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from queue import SimpleQueue

import tokenizers

from paxkv.sampling.structured_outputs import FormError, FormSource
from paxkv.text.grammar import Grammars
from paxkv.text.tokenizer import Tokenizer

MOST_BYTES = 4 << 30


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_BYTES if hard == resource.RLIM_INFINITY else min(MOST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    vocabulary = json.loads(lines.get())
    backend = tokenizers.Tokenizer.from_str(vocabulary["tokenizer"])
    grammars = Grammars(Tokenizer(backend), vocabulary["vocab_size"], vocabulary["end_ids"])
    _try(grammars, FormSource("regex", "a"))
    print(json.dumps("ready"), flush=True)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        question = json.loads(lines.get())
        # The system ends the process: while it compiles, no thread of Python's can.
        signal.setitimer(signal.ITIMER_REAL, 2 * vocabulary["seconds"])
        print(json.dumps(_try(grammars, FormSource(*question))), flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _read(lines: SimpleQueue[str]) -> None:
    """Not in the main thread, which may be busy for ever when the end comes."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def _try(grammars: Grammars, form: FormSource) -> str:
    """The fault of a grammar, empty without one."""
    try:
        grammars.check(form)
    except FormError as error:
        return error.reason
    return ""


if __name__ == "__main__":
    main()
