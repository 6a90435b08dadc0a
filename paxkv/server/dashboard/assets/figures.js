// Figures: the numbers of now, each with its unit.

export const number = (value) => value.toLocaleString("en");

export class Figures {
  constructor(place) {
    this._place = place;
    this._values = new Map();
  }

  /** rate: tokens a second. first: the median time to first token, as [number, unit]. */
  show(state, rate, first) {
    const { pages, used, cached, shared } = state.pool;
    const { prefix_queries: queries, prefix_hits: hits } = state.queue;
    this._set("generating", rate, "tokens/s");
    this._set("median TTFT", ...first);
    this._set("running", number(state.queue.running), "requests");
    this._set("waiting", number(state.queue.waiting + state.queue.swapped), "requests");
    this._set("in use", number(used), "pages");
    this._set("shared", number(shared), "pages");
    this._set("cached", number(cached), "pages");
    this._set("free", number(pages - used - cached), "pages");
    this._set("prefix cache hits", queries ? `${Math.round((100 * hits) / queries)}` : "–", "% of tokens");
  }

  _set(name, text, unit) {
    if (!this._values.has(name)) this._values.set(name, this._add(name));
    const [value, small] = this._values.get(name);
    value.data = `${text} `;
    small.textContent = unit;
  }

  _add(name) {
    const box = document.createElement("div");
    const term = document.createElement("dt");
    const place = document.createElement("dd");
    const parts = [document.createTextNode(""), document.createElement("small")];
    term.textContent = name;
    place.append(...parts);
    box.append(term, place);
    this._place.append(box);
    return parts;
  }
}
