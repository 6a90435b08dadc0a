// The key, and requests with it.

const KEPT_AS = "paxkv-key";
let key = sessionStorage.getItem(KEPT_AS) ?? "";

export class Refused extends Error {}

export const hasKey = () => key !== "";

/** Use this key from now on; it is kept until the tab is closed. */
export function setKey(text) {
  key = text;
  if (text) sessionStorage.setItem(KEPT_AS, text);
  else sessionStorage.removeItem(KEPT_AS);
}

/** The response to a request. Raises Refused if the key is missing or wrong, Error otherwise. */
export async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers, credentials: "omit" });
  if (response.status === 401) throw new Refused("this key does not open the server");
  if (!response.ok) throw new Error(await reason(response));
  return response;
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/** The pieces of a streamed chat answer, as they come. */
export async function* streamChat(body, signal) {
  const response = await call("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  for await (const data of events(response.body.getReader())) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const text = chunk.choices[0]?.delta.content;
    if (text) yield text;
  }
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
