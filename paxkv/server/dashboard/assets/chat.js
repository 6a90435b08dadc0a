// Chat: a conversation with the model, streamed.

import { streamChat } from "./server.js";

const get = (id) => document.getElementById(id);

export class Chat {
  constructor() {
    this._messages = [];
    this._stop = null;
    get("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this._send();
    });
    get("chat-text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        get("chat-form").requestSubmit();
      } else if (event.key === "Escape") {
        this._stop?.abort();
      }
    });
    get("chat-stop").addEventListener("click", () => this._stop?.abort());
    get("chat-clear").addEventListener("click", () => this.clear());
  }

  /** Forget the conversation. */
  clear() {
    this._stop?.abort();
    this._messages = [];
    get("chat-log").replaceChildren();
    get("chat-error").textContent = "";
  }

  async _send() {
    if (this._stop) return;
    const text = get("chat-text").value;
    if (!text.trim()) return;
    const messages = (this._messages = [...this._messages, { role: "user", content: text }]);
    const question = this._say("you", text);
    get("chat-text").value = "";
    get("chat-error").textContent = "";
    const answer = this._say("model", "");
    const controller = new AbortController();
    this._busy(controller);
    const body = {
      messages,
      max_tokens: get("chat-tokens").valueAsNumber || 256,
      temperature: get("chat-heat").valueAsNumber || 0,
    };
    let end = "";
    try {
      end = await this._stream(streamChat(body, controller.signal), answer);
    } catch (error) {
      end = controller.signal.aborted ? "stopped" : "broken off";
      if (end !== "stopped") get("chat-error").textContent = error.message;
    }
    this._busy(null);
    if (this._messages !== messages) return;
    if (answer.textContent || !["stopped", "broken off"].includes(end)) {
      messages.push({ role: "assistant", content: answer.textContent });
      answer.dataset.end = end;
    } else {
      this._takeBack(text, question, answer);
    }
  }

  /** Show the pieces; why the answer ended, where that is worth saying. */
  async _stream(pieces, answer) {
    for (;;) {
      const { done, value } = await pieces.next();
      if (done) return value === "length" ? "cut at the limit of tokens" : "";
      const log = get("chat-log");
      const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      answer.textContent += value;
      if (follows) log.scrollTop = log.scrollHeight;
    }
  }

  /** A message without an answer returns to the box, before what was typed there since. */
  _takeBack(text, ...entries) {
    this._messages = this._messages.slice(0, -1);
    for (const entry of entries) entry.remove();
    const box = get("chat-text");
    box.value = box.value ? `${text}\n${box.value}` : text;
  }

  _busy(controller) {
    this._stop = controller;
    get("chat-send").hidden = controller !== null;
    get("chat-stop").hidden = controller === null;
  }

  _say(who, text) {
    const entry = document.createElement("div");
    entry.dataset.who = who;
    entry.textContent = text;
    get("chat-log").append(entry);
    get("chat-log").scrollTop = get("chat-log").scrollHeight;
    return entry;
  }
}
