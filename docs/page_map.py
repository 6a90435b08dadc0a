"""Draw docs/page_map.svg: four requests, a shared prefix, cached and free pages.

python docs/page_map.py
"""

from pathlib import Path

from paxkv.memory import BlockManager
from paxkv.viz import page_map

BLOCK = 16
prefix = list(range(6 * BLOCK))


def prompt(first: int, blocks: int) -> list[int]:
    """Tokens that no other prompt has."""
    return [1000 * first + place for place in range(blocks * BLOCK)]


memory = BlockManager(num_blocks=96, block_size=BLOCK)
for number in (1, 2):  # two requests that have ended: their pages stay cached
    ended = memory.allocate(prompt(number, 5))
    memory.cache_blocks(ended.row, prompt(number, 5), 5 * BLOCK)
    memory.free(ended.row)

prompts = [prefix + prompt(3, 3), prefix + prompt(4, 5), prefix + prompt(5, 2), prompt(6, 11)]
rows = []
for tokens in prompts:
    rows.append(memory.allocate(tokens).row)
    memory.cache_blocks(rows[-1], tokens, len(tokens))
for step in range(9 * BLOCK):  # answers grow token by token, so their pages lie interleaved
    memory.append_batch([row for index, row in enumerate(rows) if step < (5 + index) * BLOCK])

picture = page_map(memory).svg(columns=24, cell=28) + "\n"
if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture)
