// Asks the server for its state and shows it, a few times a second while somebody can see it.

import { BlockTable } from "/page/table.js";
import { Chat } from "/page/chat.js";
import { History } from "/page/history.js";
import { PageMap } from "/page/map.js";
import { Pool } from "/page/pool.js";
import { RequestList } from "/page/requests.js";
import { Refused, call, hasKey, setKey } from "/page/server.js";

const EVERY = 500;
const AFTER_TROUBLE = 2000;

const get = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");

let chosen = null;
let timer = null;
let asking = false;

const chat = new Chat();
let tiles = PageMap.legend();
const map = new PageMap(get("map"), get("lens"), get("map-page"), choose);
const list = new RequestList(get("queue"), get("queue-note"), () => tiles, choose);
const table = new BlockTable(get("table"), get("table-note"));
const past = new History();

function choose(request) {
  chosen = request;
  ask();
}

async function ask() {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  let wait = EVERY;
  const wanted = chosen;
  try {
    const response = await call(`/page/state${wanted === null ? "" : `?request=${wanted}`}`);
    show(await response.json(), wanted);
  } catch (error) {
    if (error instanceof Refused) {
      asking = false;
      askForKey();
      return;
    }
    wait = AFTER_TROUBLE;
    status("trouble", error instanceof TypeError ? "no connection" : error.message);
  }
  asking = false;
  if (chosen !== wanted) ask();
  else if (!document.hidden) timer = setTimeout(ask, wait);
}

function show(state, wanted) {
  get("gate").hidden = true;
  get("app").hidden = false;
  get("leave").hidden = !hasKey();
  document.title = `${state.model} · paxkv`;
  get("model").textContent = `${state.model} · version ${state.version}`;
  status(state.draining ? "trouble" : "live", state.draining ? "shutting down" : "live");
  showFigures(state);
  const pool = new Pool(state);
  if (chosen === wanted) {
    const mine = state.table?.sequences.flatMap((row) => row.pages);
    map.show(pool, state.table ? chosen : null, mine);
    table.show(chosen, state.table, state.pool.block_size);
  }
  list.show(state, chosen);
  past.show(state);
}

function showFigures(state) {
  const { pages, used, cached, shared, block_size: size } = state.pool;
  const { prefix_queries: queries, prefix_hits: hits } = state.queue;
  get("map-summary").textContent =
    `${number(pages)} pages of ${size} tokens: ${number(used)} in use, of them ${number(shared)} ` +
    `shared; ${number(cached)} cached, ${number(pages - used - cached)} free`;
  figure("in use", number(used));
  figure("shared", number(shared));
  figure("cached", number(cached));
  figure("free", number(pages - used - cached));
  figure("running", number(state.queue.running));
  figure("waiting", number(state.queue.waiting + state.queue.swapped));
  figure("prompt tokens from cache", queries ? `${Math.round((100 * hits) / queries)} %` : "–");
}

const figures = new Map();

function figure(name, text) {
  if (!figures.has(name)) {
    const box = document.createElement("div");
    const [term, value] = ["dt", "dd"].map((tag) => document.createElement(tag));
    term.textContent = name;
    box.append(term, value);
    get("figures").append(box);
    figures.set(name, value);
  }
  figures.get(name).textContent = text;
}

function status(kind, text) {
  const place = get("status");
  if (place.textContent !== text) place.textContent = text;
  place.dataset.kind = kind;
}

function showLegend() {
  tiles = PageMap.legend();
  const entries = [
    [tiles.swatch(-1), "free"],
    [tiles.swatch(-1, false, true), "cached, nobody uses it"],
    [tiles.swatch(0), "in use; a colour and pattern for each request"],
    [tiles.swatch(0, true), "shared, thick frame"],
  ];
  get("legend").replaceChildren(
    ...entries.map(([swatch, text]) => {
      const item = document.createElement("li");
      item.append(swatch, text);
      return item;
    }),
  );
}

function askForKey() {
  const tried = hasKey();
  setKey("");
  forget();
  get("app").hidden = true;
  get("gate").hidden = false;
  get("gate-error").textContent = tried ? "This key does not open the server." : "";
  get("key").value = "";
  get("key").focus();
}

function forget() {
  chosen = null;
  chat.clear();
}

get("gate-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = get("key").value.trim();
  if (!/^[!-~]+$/.test(text)) {
    get("gate-error").textContent = "A key has only plain letters, digits and signs.";
    return;
  }
  setKey(text);
  ask();
});
get("leave").addEventListener("click", () => {
  setKey("");
  location.reload();
});
document.addEventListener("visibilitychange", () => document.hidden || ask());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  showLegend();
  list.clear();
  ask();
});
showLegend();
ask();
