// Chart: the last two minutes of one or two numbers, as lines or as dots.

const SECONDS = 120;
const COLOURS = ["--first", "--second"];
const MARGIN = { left: 52, right: 8, top: 8, bottom: 20 };

export class Chart {
  /** options: dots, most (top of the scale, otherwise by the data), unit: a number as text. */
  constructor(canvas, label, options) {
    this._canvas = canvas;
    this._label = label;
    this._options = options;
    this._points = [];
    new ResizeObserver(() => this._draw()).observe(canvas);
  }

  /** values: one a line. */
  add(time, values) {
    this._points.push({ time, values });
  }

  /** Of the first line, those of the time the chart shows. */
  values(now) {
    return this._points.filter((point) => point.time > now - SECONDS).map((point) => point.values[0]);
  }

  clear() {
    this._points = [];
  }

  show(now, text) {
    this._now = now;
    this._points = this._points.filter((point) => point.time > now - SECONDS);
    this._canvas.setAttribute("aria-label", `${this._label}, the last two minutes; now ${text}`);
    this._draw();
  }

  _draw() {
    const canvas = this._canvas;
    const ratio = devicePixelRatio;
    const [wide, high] = [canvas.clientWidth, canvas.clientHeight];
    if (!wide || this._now === undefined) return;
    if (canvas.width !== Math.round(wide * ratio)) canvas.width = Math.round(wide * ratio);
    if (canvas.height !== Math.round(high * ratio)) canvas.height = Math.round(high * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, wide, high);
    const most = this._options.most ?? nice(Math.max(0, ...this._points.flatMap((p) => p.values)));
    const right = wide - MARGIN.right;
    const bottom = high - MARGIN.bottom;
    const x = (time) => right - ((this._now - time) / SECONDS) * (right - MARGIN.left);
    const y = (value) => bottom - (value / most) * (bottom - MARGIN.top);
    const style = getComputedStyle(document.documentElement);
    this._axes(context, style, most, right, bottom, y);
    for (let line = 1; line >= 0; line--) {
      const points = this._points.filter((p) => p.values[line] !== undefined);
      const places = points.map((p) => [x(p.time), y(p.values[line])]);
      context.strokeStyle = context.fillStyle = style.getPropertyValue(COLOURS[line]);
      if (this._options.dots) dots(context, places);
      else polyline(context, places, line);
    }
  }

  _axes(context, style, most, right, bottom, y) {
    context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    context.fillStyle = style.getPropertyValue("--soft");
    context.strokeStyle = style.getPropertyValue("--line");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of [0, most / 2, most]) {
      const at = Math.round(y(value)) + 0.5;
      context.beginPath();
      context.moveTo(MARGIN.left, at);
      context.lineTo(right, at);
      context.stroke();
      context.fillText(this._options.unit(value), MARGIN.left - 6, at);
    }
    context.textBaseline = "top";
    context.fillText("now", right, bottom + 5);
    context.textAlign = "left";
    context.fillText("2 min ago", MARGIN.left, bottom + 5);
  }
}

function polyline(context, places, line) {
  context.lineWidth = 2;
  context.setLineDash(line ? [6, 4] : []);
  context.beginPath();
  for (const [x, y] of places) context.lineTo(x, y);
  context.stroke();
  context.setLineDash([]);
}

function dots(context, places) {
  for (const [x, y] of places) {
    context.beginPath();
    context.arc(x, y, 3, 0, 2 * Math.PI);
    context.fill();
  }
}

/** The next number above `value` that is easy to read, and whose half is. */
function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10].find((step) => step * power >= value) * power;
}
