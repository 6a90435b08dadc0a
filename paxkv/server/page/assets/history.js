// History: the three charts, fed from one state after the other.

import { Chart } from "/page/chart.js";

const RATE_SECONDS = 2;

const get = (id) => document.getElementById(id);

export class History {
  constructor() {
    this._rate = new Chart(get("rate"), "Tokens per second", { unit: short });
    this._first = new Chart(get("first"), "Time to first token", { dots: true, unit: seconds });
    this._usage = new Chart(get("usage"), "Cache usage", { most: 1, unit: percent });
    this._states = [];
    this._firstTokens = null;
  }

  show(state) {
    const last = this._states.at(-1);
    if (last && state.time <= last.time) return;
    this._states = this._states.filter((known) => known.time >= state.time - RATE_SECONDS);
    const since = this._states[0] ?? last;
    this._states.push({ time: state.time, traffic: state.traffic });
    this._showRate(state, since);
    this._showFirst(state);
    this._showUsage(state);
  }

  _showRate(state, since) {
    if (!since) return;
    const passed = state.time - since.time;
    const rate = (name) => (state.traffic[name] - since.traffic[name]) / passed;
    this._rate.add(state.time, [rate("generated"), rate("computed")]);
    const text = `${rate("generated").toFixed(rate("generated") < 10 ? 1 : 0)}`;
    get("rate-now").textContent = text;
    this._rate.show(state.time, text);
  }

  _showFirst(state) {
    const { num_first_tokens: count, first_tokens: kept } = state.traffic;
    const known = this._firstTokens ?? count;
    const fresh = kept.slice(kept.length - Math.min(kept.length, count - known));
    this._firstTokens = count;
    for (const value of fresh) this._first.add(state.time, [value]);
    const text = kept.length ? seconds(kept.at(-1)) : "–";
    get("first-now").textContent = text;
    this._first.show(state.time, text);
  }

  _showUsage(state) {
    const { pages, used, cached } = state.pool;
    this._usage.add(state.time, [used / pages, (used + cached) / pages]);
    const text = percent(used / pages);
    get("usage-now").textContent = text;
    this._usage.show(state.time, text);
  }
}

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

const seconds = (value) => (value < 1 ? `${+(1000 * value).toPrecision(3)} ms` : `${+value.toPrecision(3)} s`);

const short = (value) => (value >= 10000 ? `${value / 1000}k` : `${value}`);
