// The server: where it is, the key, and requests with it.

// This file is /page/server.js of the server, whatever path a proxy puts before that.
const ROOT = new URL("..", import.meta.url);
const KEPT_AS = "paxkv-key";
const PATIENCE = 8000;

export class Refused extends Error {}
export class NoConnection extends Error {}

const signedOut = () => new Error("a proxy answers instead of the server: reload the page");

function storage() {
  try {
    return sessionStorage;
  } catch {
    return null; // cookies are blocked
  }
}

let key = storage()?.getItem(KEPT_AS) ?? "";

export const hasKey = () => key !== "";

/** Use this key from now on; it is kept until the tab is closed. */
export function setKey(text) {
  key = text;
  if (text) storage()?.setItem(KEPT_AS, text);
  else storage()?.removeItem(KEPT_AS);
}

/**
 * The response to a request. Raises Refused if the key is missing or wrong, NoConnection if nobody
 * answers, AbortError, Error otherwise.
 */
async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await reach(new URL(path, ROOT), { ...options, headers, redirect: "manual" });
  if (response.type === "opaqueredirect") throw signedOut();
  if (response.status === 401) throw new Refused("this key does not open the server");
  if (!response.ok) throw new Error(await reason(response));
  return response;
}

async function reach(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new NoConnection("no connection");
  }
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/** The server's state, with the block table of request `number` unless that is null. */
export async function readState(number) {
  const query = number === null ? "" : `?request=${number}`;
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(), PATIENCE);
  try {
    const response = await call(`page/state${query}`, { signal: patience.signal });
    return JSON.parse(await response.text());
  } catch (error) {
    if (error instanceof SyntaxError) throw signedOut();
    throw error.name === "AbortError" || error instanceof TypeError ? new NoConnection("no answer") : error;
  } finally {
    clearTimeout(timer);
  }
}

/** The pieces of a streamed chat answer as they come; returns why it ended. */
export async function* streamChat(body, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  let ended = null;
  for await (const data of events(response.body.getReader())) {
    if (data === "[DONE]") return ended;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices[0];
    if (choice?.delta.content) yield choice.delta.content;
    ended = choice?.finish_reason ?? ended;
  }
  throw new NoConnection("the connection ended before the answer did");
}

async function* events(reader) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}
