// Chat: a conversation with the model, streamed.

import { streamChat } from "/page/server.js";

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
    this._say("you", text);
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
    try {
      for await (const piece of streamChat(body, controller.signal)) {
        answer.textContent += piece;
        get("chat-log").scrollTop = get("chat-log").scrollHeight;
      }
    } catch (error) {
      if (error.name !== "AbortError") get("chat-error").textContent = error.message;
    }
    this._busy(null);
    if (this._messages !== messages) return;
    if (answer.textContent) messages.push({ role: "assistant", content: answer.textContent });
    else messages.pop();
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
