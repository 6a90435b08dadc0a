"""`python -m paxkv.server`: the same as `paxkv serve`."""

from __future__ import annotations

import sys

from paxkv.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
