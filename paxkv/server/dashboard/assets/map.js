// PageMap: every page of the pool as a tile on a canvas, with a cursor and a lens.

import { Tiles } from "./tiles.js";

const LARGEST = 24;
// So that the charts are seen, too; in one column everything is scrolled to anyway.
const wide = matchMedia("(min-width: 820px)");
const height = () => (wide.matches ? Math.max(400, Math.min(720, innerHeight - 465)) : 560);

const LENS_BELOW = 12;
const LENS_TILE = 24;
const LENS_WIDE = 25;
const LENS_HIGH = 7;

export class PageMap {
  /** choose: told the number of the request whose page was chosen, or null. */
  constructor(canvas, lens, words, choose) {
    this._canvas = canvas;
    this._lens = lens;
    this._words = words;
    this._choose = choose;
    this._pool = null;
    this._chosen = null;
    this._mine = null;
    this._cursor = 0;
    canvas.addEventListener("pointermove", (event) => this._point(this._at(event)));
    canvas.addEventListener("click", (event) => this._pick(this._at(event)));
    canvas.addEventListener("keydown", (event) => this._key(event));
    new ResizeObserver(() => this._draw()).observe(canvas.parentElement);
  }

  /** chosen: number of the request to stand out, or null. mine: its pages, once they are known. */
  show(pool, chosen, mine) {
    this._pool = pool;
    this._chosen = chosen;
    this._mine = mine ? new Set(mine) : null;
    this._draw();
  }

  /** In the colours and the pixels of now. */
  redraw() {
    this._tiles = this._large = null;
    this._draw();
  }

  _layout() {
    const ratio = devicePixelRatio;
    const width = Math.floor(this._canvas.parentElement.clientWidth * ratio);
    const most = height() * ratio;
    let size = Math.floor(LARGEST * ratio);
    const rows = () => Math.ceil(this._pool.count / Math.max(1, Math.floor(width / size)));
    while (size > 1 && rows() * size > most) size--;
    this._columns = Math.max(1, Math.floor(width / size));
    if (this._tiles?.size !== size) this._tiles = new Tiles(size);
    this._resize(this._canvas, this._columns * size, rows() * size);
    this._lens.hidden = size >= LENS_BELOW * ratio;
  }

  _resize(canvas, width, height) {
    if (canvas.width === width && canvas.height === height) return;
    canvas.width = width;
    canvas.height = height;
    canvas.style.width = `${width / devicePixelRatio}px`;
    canvas.style.height = `${height / devicePixelRatio}px`;
  }

  _draw() {
    if (!this._pool || !this._canvas.parentElement.clientWidth) return;
    this._layout();
    const { width, height } = this._canvas;
    const image = new ImageData(width, height);
    const target = new Uint32Array(image.data.buffer).fill(this._tiles.paper);
    for (let page = 1; page <= this._pool.count; page++) {
      const place = page - 1;
      const left = (place % this._columns) * this._tiles.size;
      const top = Math.floor(place / this._columns) * this._tiles.size;
      this._copy(target, width, left, top, page, this._tiles);
    }
    const context = this._canvas.getContext("2d");
    context.putImageData(image, 0, 0);
    this._drawCursor(context);
    this._drawLens();
    this._tell();
  }

  _copy(target, width, left, top, page, tiles) {
    const number = this._mine?.has(page) ? this._chosen : this._pool.ownerNumber(page);
    const [shared, cached] = [this._pool.isShared(page), this._pool.isCached(page)];
    const tile = tiles.tile(number, shared, cached, this._isFaded(page));
    const size = tiles.size;
    for (let y = 0, from = 0; y < size; y++) {
      let to = (top + y) * width + left;
      for (let x = 0; x < size; x++) target[to++] = tile[from++];
    }
  }

  _isFaded(page) {
    if (this._chosen === null) return false;
    return this._mine ? !this._mine.has(page) : this._pool.ownerNumber(page) !== this._chosen;
  }

  _drawCursor(context) {
    if (!this._cursor) return;
    const size = this._tiles.size;
    const left = ((this._cursor - 1) % this._columns) * size;
    const top = Math.floor((this._cursor - 1) / this._columns) * size;
    this._frame(context, left, top, size);
  }

  _frame(context, left, top, size) {
    const style = getComputedStyle(document.documentElement);
    const around = Math.max(2, size / 12);
    context.lineWidth = around;
    context.strokeStyle = style.getPropertyValue("--paper");
    context.strokeRect(left - around / 2, top - around / 2, size + around, size + around);
    context.strokeStyle = style.getPropertyValue("--alarm");
    context.strokeRect(left - 1.5 * around, top - 1.5 * around, size + 3 * around, size + 3 * around);
  }

  /** What is around the cursor, large enough for patterns and outlines. */
  _drawLens() {
    if (this._lens.hidden) return;
    const size = Math.round(LENS_TILE * devicePixelRatio);
    if (this._large?.size !== size) this._large = new Tiles(size);
    const room = Math.floor((this._canvas.parentElement.clientWidth * devicePixelRatio) / size);
    const wide = Math.max(1, Math.min(LENS_WIDE, room, this._columns));
    this._resize(this._lens, wide * size, LENS_HIGH * size);
    const { width, height } = this._lens;
    const image = new ImageData(width, height);
    const target = new Uint32Array(image.data.buffer).fill(this._large.paper);
    const middle = Math.max(0, this._cursor - 1);
    const rows = Math.ceil(this._pool.count / this._columns);
    const clamp = (value, most) => Math.max(0, Math.min(value, most));
    const left = clamp((middle % this._columns) - (wide >> 1), this._columns - wide);
    const top = clamp(Math.floor(middle / this._columns) - (LENS_HIGH >> 1), Math.max(0, rows - LENS_HIGH));
    for (let y = 0; y < LENS_HIGH; y++) {
      for (let x = 0; x < wide; x++) {
        const page = (top + y) * this._columns + left + x + 1;
        if (page <= this._pool.count) this._copy(target, width, x * size, y * size, page, this._large);
      }
    }
    const context = this._lens.getContext("2d");
    context.putImageData(image, 0, 0);
    if (this._cursor) {
      const x = (middle % this._columns) - left;
      const y = Math.floor(middle / this._columns) - top;
      const inset = Math.round(size / 6); // at the lens's edge, too, all of it is seen
      this._frame(context, x * size + inset, y * size + inset, size - 2 * inset);
    }
  }

  _tell() {
    const text = this._cursor ? this._pool.describe(this._cursor) : "";
    if (this._words.textContent !== text) this._words.textContent = text;
  }

  _at(event) {
    const box = this._canvas.getBoundingClientRect();
    const size = this._tiles.size / devicePixelRatio;
    const column = Math.floor((event.clientX - box.left) / size);
    const page = Math.floor((event.clientY - box.top) / size) * this._columns + column + 1;
    return column >= 0 && column < this._columns && page >= 1 && page <= this._pool.count ? page : 0;
  }

  _point(page) {
    if (!this._pool || !page || page === this._cursor) return;
    this._cursor = page;
    this._draw();
  }

  _pick(page) {
    this._point(page);
    const number = page ? this._pool.ownerNumber(page) : -1;
    this._choose(number >= 0 ? number : null);
  }

  _key(event) {
    if (!this._pool || event.altKey || event.ctrlKey || event.metaKey) return;
    const steps = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -this._columns,
      ArrowDown: this._columns,
      PageUp: -10 * this._columns,
      PageDown: 10 * this._columns,
      Home: -this._pool.count,
      End: this._pool.count,
    };
    if (event.key in steps) {
      const first = event.key === "End" ? this._pool.count : 1;
      const next = this._cursor ? this._cursor + steps[event.key] : first;
      this._point(Math.max(1, Math.min(this._pool.count, next)));
    } else if (event.key === "Enter" || event.key === " ") {
      this._pick(this._cursor);
    } else if (event.key === "Escape") {
      this._choose(null);
    } else {
      return;
    }
    event.preventDefault();
  }
}
