// Tiles: a page as a square of pixels. Owners differ in colour and in pattern.

// Okabe and Ito's colours, told apart with every kind of colour vision.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442"];
const PATTERNS = [
  () => false,
  (x, y, unit) => (x + y) % (4 * unit) < unit,
  (x, y, unit) => x % (3 * unit) < unit && y % (3 * unit) < unit,
  (x, y, unit) => y % (4 * unit) < unit,
];
const SMALLEST_PATTERN = 7;
const FADE = 0.75;

/** The colour of request `number`, for what is no tile. */
export const colourOf = (number) => COLOURS[number % COLOURS.length];

/** Tiles for legends and lists. */
export const smallTiles = () => new Tiles(Math.round(16 * devicePixelRatio));

/** Tiles of `size` device pixels in the colours of the document as it is now. */
export class Tiles {
  constructor(size) {
    this.size = size;
    this._known = new Map();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => parse(style.getPropertyValue(name));
    this._paper = colour("--paper");
    this._ink = colour("--ink");
    this._free = colour("--free");
    this._cached = colour("--cached");
    this._mark = colour("--mark");
  }

  get paper() {
    return word(this._paper);
  }

  /** Pixels [size * size] of a page of request `number`, -1 for nobody; `faded`: of one not chosen. */
  tile(number, shared, cached, faded = false) {
    const owned = number >= 0;
    const look = owned ? number % (COLOURS.length * PATTERNS.length) : cached ? -2 : -1;
    const key = look * 4 + (owned && shared ? 2 : 0) + (faded ? 1 : 0);
    let found = this._known.get(key);
    if (!found) {
      found = this._draw(look, owned && shared, faded);
      this._known.set(key, found);
    }
    return found;
  }

  /** A canvas of its own for a tile, for legends. */
  swatch(number, shared = false, cached = false) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = this.size;
    canvas.style.width = canvas.style.height = `${this.size / devicePixelRatio}px`;
    canvas.setAttribute("aria-hidden", "true");
    const pixels = new Uint8ClampedArray(this.tile(number, shared, cached).slice().buffer);
    canvas.getContext("2d").putImageData(new ImageData(pixels, this.size, this.size), 0, 0);
    return canvas;
  }

  _draw(look, shared, faded) {
    const size = this.size;
    const gap = size >= 4 ? 1 : 0;
    const inner = size - gap;
    const unit = Math.max(1, Math.round(size / 12));
    const border = shared ? Math.max(1, Math.round(size / 7)) : 0;
    const pixels = new Uint32Array(size * size).fill(this.paper);
    for (let y = 0; y < inner; y++) {
      for (let x = 0; x < inner; x++) {
        const edge = Math.min(x, y, inner - 1 - x, inner - 1 - y);
        let colour = this._inside(look, x, y, inner, unit);
        if (border && (size > 4 ? edge < border : x < border && (size < 3 || y < inner))) {
          if (size > 2 || y === 0) colour = this._ink;
        }
        pixels[y * size + x] = word(faded ? mix(colour, this._paper, FADE) : colour);
      }
    }
    return pixels;
  }

  _inside(look, x, y, inner, unit) {
    if (look === -1) return this._free;
    if (look === -2) {
      const crossed = inner >= SMALLEST_PATTERN - 1 && (near(x, y, unit) || near(x, inner - 1 - y, unit));
      return crossed ? this._mark : this._cached;
    }
    const colour = parse(colourOf(look));
    const marked = inner >= SMALLEST_PATTERN && PATTERNS[look % PATTERNS.length](x, y, unit);
    return marked ? mix(colour, [0, 0, 0], 0.6) : colour;
  }
}

const near = (a, b, unit) => Math.abs(a - b) < unit;

const mix = (colour, other, share) => colour.map((part, i) => part * (1 - share) + other[i] * share);

function parse(hex) {
  const digits = hex.trim().slice(1);
  return [0, 2, 4].map((at) => parseInt(digits.slice(at, at + 2), 16));
}

// As ImageData has it in memory: red first, on a little-endian machine.
const word = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
