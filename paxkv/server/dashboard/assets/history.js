// History: the three charts, fed from one state after the other.

import { Chart } from "./chart.js";

const RATE_SECONDS = 2;

const get = (id) => document.getElementById(id);

export class History {
  constructor() {
    this._rate = new Chart(get("rate"), "Tokens per second", { unit: short });
    this._first = new Chart(get("first"), "Time to first token", { dots: true, unit: (value) => seconds(value).join(" ") });
    this._usage = new Chart(get("usage"), "Cache usage", { most: 1, unit: percent });
    this.clear();
  }

  /** Begin again: what was counted so far was another server's. */
  clear() {
    for (const chart of [this._rate, this._first, this._usage]) chart.clear();
    this._states = [];
    this._numFirstTokens = 0;
    /** Tokens generated a second, as text. */
    this.rate = "–";
    /** The median time to first token, as [number, unit]. */
    this.first = ["–", ""];
  }

  show(state) {
    const last = this._states.at(-1);
    if (last && state.time <= last.time) return;
    this._states = this._states.filter((known) => known.time >= state.time - RATE_SECONDS);
    const since = this._states[0] ?? last;
    this._states.push({ time: state.time, traffic: state.traffic });
    if (since) this._showRate(state, since);
    this._showFirst(state);
    this._showUsage(state);
  }

  _showRate(state, since) {
    const passed = state.time - since.time;
    const rate = (name) => (state.traffic[name] - since.traffic[name]) / passed;
    this._rate.add(state.time, [rate("generated"), rate("computed")]);
    this.rate = rate("generated").toFixed(rate("generated") < 10 ? 1 : 0);
    this._say(this._rate, "rate-now", state, `${this.rate} tokens/s`);
  }

  /** The headline is of the dots in the chart, no others. */
  _showFirst(state) {
    const { num_first_tokens: count, first_tokens: kept } = state.traffic;
    const fresh = kept.slice(kept.length - Math.min(kept.length, count - this._numFirstTokens));
    this._numFirstTokens = count;
    for (const [time, value] of fresh) this._first.add(time, [value]);
    const shown = this._first.values(state.time).sort((a, b) => a - b);
    this.first = shown.length ? seconds(quantile(shown, 0.5)) : ["–", ""];
    const words = [this.first.join(" ")];
    if (shown.length > 1) words.push(`p95 ${seconds(quantile(shown, 0.95)).join(" ")}`);
    this._say(this._first, "first-now", state, shown.length ? `p50 ${words.join(", ")}` : "–");
  }

  _showUsage(state) {
    const { pages, used, cached } = state.pool;
    this._usage.add(state.time, [used / pages, (used + cached) / pages]);
    this._say(this._usage, "usage-now", state, percent(used / pages));
  }

  _say(chart, id, state, text) {
    get(id).textContent = text;
    chart.show(state.time, text);
  }
}

/** The nearest rank of sorted values. */
const quantile = (sorted, share) => sorted[Math.ceil(share * sorted.length) - 1];

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

const seconds = (value) => (value < 1 ? [`${+(1000 * value).toPrecision(3)}`, "ms"] : [`${+value.toPrecision(3)}`, "s"]);

const short = (value) => (value >= 10000 ? `${value / 1000}k` : `${value}`);
