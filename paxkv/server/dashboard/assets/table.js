// BlockTable: the pages of the chosen request, block by block.

import { colourOf } from "./tiles.js";

const MOST_BLOCKS = 600;

export class BlockTable {
  /** tiles: gives those of now. */
  constructor(place, note, tiles) {
    this._place = place;
    this._note = note;
    this._tiles = tiles;
    this._shown = "";
  }

  /** Draw anew, in other colours. */
  clear() {
    this._shown = "";
  }

  /** table: the server's, null while nothing is known. */
  show(chosen, table, blockSize) {
    this._place.style.setProperty("--owner", chosen === null ? "" : colourOf(chosen));
    const now = JSON.stringify([chosen, table]);
    if (now === this._shown) return;
    this._shown = now;
    if (chosen === null) this._say("Choose a request or one of its pages.", []);
    else if (!table) this._say(`Request ${chosen} has ended.`, []);
    else if (!table.sequences.length) this._say(`Request ${chosen} holds no pages now.`, []);
    else {
      this._say(
        `Request ${chosen}: each block and its page. Thick frame: shared; darker: in the prefix cache.`,
        table.sequences.flatMap((row) => this._sequence(row, blockSize)),
        this._tiles().swatch(chosen),
      );
    }
  }

  _say(text, parts, swatch) {
    this._note.replaceChildren(...(swatch ? [swatch, text] : [text]));
    this._place.replaceChildren(...parts);
  }

  _sequence(row, blockSize) {
    const title = document.createElement("h3");
    const filled = row.tokens - (row.blocks - 1) * blockSize;
    title.textContent =
      `sequence ${row.index}: ${row.tokens} tokens in ${row.blocks} pages, ` +
      `last ${filled}/${blockSize} full`;
    const list = document.createElement("ol");
    const digits = `${Math.max(...row.pages)}${row.blocks}`.length;
    list.style.setProperty("--digits", digits);
    row.pages.slice(0, MOST_BLOCKS).forEach((page, block) => {
      const item = document.createElement("li");
      const number = document.createElement("small");
      number.textContent = block;
      item.append(number, page);
      const words = [`block ${block} is in page ${page}`];
      if (row.references[block] > 1) {
        item.classList.add("shared");
        words.push(`shared by ${row.references[block]}`);
      }
      if (row.cached[block]) {
        item.classList.add("cached");
        words.push("cached");
      }
      item.title = words.join(", ");
      list.append(item);
    });
    if (row.blocks > MOST_BLOCKS) list.append(`… and ${row.blocks - MOST_BLOCKS} more`);
    return [title, list];
  }
}
