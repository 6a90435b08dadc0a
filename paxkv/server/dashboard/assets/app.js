// Asks the server for its state and shows it, a few times a second while somebody can see it.

import { BlockTable } from "./table.js";
import { Chat } from "./chat.js";
import { Figures, number } from "./figures.js";
import { History } from "./history.js";
import { PageMap } from "./map.js";
import { Pool } from "./pool.js";
import { RequestList } from "./requests.js";
import { Refused, hasKey, readState, setKey } from "./server.js";
import { smallTiles } from "./tiles.js";

const EVERY = 500;
const AFTER_TROUBLE = 2000;
const OLD_SECONDS = 3;

const get = (id) => document.getElementById(id);

let chosen = null;
let timer = null;
let asking = false;
let started = null;
let seenAt = null;
let ratio = null;
let tiles = null;

const chat = new Chat();
const map = new PageMap(get("map"), get("lens"), get("map-page"), choose);
const list = new RequestList(get("queue"), get("queue-note"), () => tiles, choose);
const table = new BlockTable(get("table"), get("table-note"), () => tiles);
const figures = new Figures(get("figures"));
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
    show(await readState(wanted), wanted);
  } catch (error) {
    if (error instanceof Refused) {
      asking = false;
      askForKey();
      return;
    }
    wait = AFTER_TROUBLE;
    const since = seenAt ? `; figures of ${seenAt.toLocaleTimeString()}` : "";
    tell("trouble", error.message + since, true);
  }
  asking = false;
  if (chosen !== wanted) ask();
  else if (!document.hidden) timer = setTimeout(ask, wait);
}

function show(state, wanted) {
  get("trouble").hidden = get("gate").hidden = true;
  get("app").hidden = false;
  get("leave").hidden = !hasKey();
  document.title = `${state.model} · paxkv`;
  get("model").textContent = `${state.model} · v${state.version}`;
  seenAt = new Date(Date.now() - 1000 * state.age);
  tellState(state);
  if (state.started !== started) restart(state);
  if (devicePixelRatio !== ratio) drawAnew();
  past.show(state);
  figures.show(state, past.rate, past.first);
  showSummary(state.pool);
  if (chosen === wanted) {
    const mine = state.table?.sequences.flatMap((row) => row.pages);
    map.show(new Pool(state), state.table ? chosen : null, mine);
    table.show(chosen, state.table, state.pool.block_size);
  }
  list.show(state, chosen);
}

/** Another server, or this one anew: it counts from 0, and numbers its requests from 0. */
function restart(state) {
  if (started !== null) chosen = null;
  started = state.started;
  past.clear();
}

function tellState(state) {
  if (state.draining) tell("trouble", "shutting down", false);
  else if (state.age > OLD_SECONDS) tell("trouble", `a step takes long; figures of ${seenAt.toLocaleTimeString()}`, true);
  else tell("live", "live", false);
}

/** old: whether the figures are not those of now. */
function tell(kind, text, old) {
  const place = get("status");
  if (place.textContent !== text) place.textContent = text;
  place.dataset.kind = kind;
  get("app").classList.toggle("old", old);
  if (get("app").hidden) get(get("gate").hidden ? "trouble" : "gate-error").textContent = text;
}

function showSummary({ pages, used, cached, shared, block_size: size }) {
  get("map-summary").textContent =
    `${number(pages)} pages of ${size} tokens: ${number(used)} in use, of them ${number(shared)} ` +
    `shared; ${number(cached)} cached, ${number(pages - used - cached)} free`;
}

/** In the colours of now, and in the pixels of the screen where the window is now. */
function drawAnew() {
  ratio = devicePixelRatio;
  tiles = smallTiles();
  showLegend();
  list.clear();
  table.clear();
  map.redraw();
}

function showLegend() {
  const entries = [
    [tiles.swatch(-1), "free"],
    [tiles.swatch(-1, false, true), "cached, unused"],
    [tiles.swatch(0), "in use, by request"],
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
  chosen = null;
  chat.clear();
  get("app").hidden = true;
  get("trouble").hidden = true;
  get("gate").hidden = false;
  get("gate-error").textContent = tried ? "This key does not open the server." : "";
  get("key").value = "";
  get("key").focus();
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
addEventListener("online", ask);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  drawAnew();
  ask();
});
drawAnew();
ask();
