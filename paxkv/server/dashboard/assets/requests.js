// RequestList: who runs and who waits, one row each, kept in place while their numbers change.

export class RequestList {
  constructor(body, note, tiles, choose) {
    this._body = body;
    this._note = note;
    this._tiles = tiles;
    this._choose = choose;
    this._rows = new Map();
    this._chosen = null;
  }

  /** Draw anew, in other colours. */
  clear() {
    this._rows.clear();
    this._body.replaceChildren();
  }

  show(state, chosen) {
    const { running, waiting, swapped, preemptions } = state.queue;
    const words = [`${running} running`, `${waiting} waiting`, `${swapped} swapped`];
    this._note.textContent = `${words.join(", ")}; ${preemptions} preemptions`;
    const seen = new Set();
    let before = null;
    for (const request of state.requests) {
      seen.add(request.number);
      let row = this._rows.get(request.number);
      if (!row) {
        row = this._add(request.number);
        this._rows.set(request.number, row);
      }
      const wanted = before ? before.nextSibling : this._body.firstChild;
      if (wanted !== row) this._body.insertBefore(row, wanted);
      before = row;
      row.classList.toggle("chosen", request.number === chosen);
      row.querySelector("button").setAttribute("aria-pressed", request.number === chosen);
      const texts = [request.state, request.prompt, request.output, request.pages, age(request.age)];
      texts.forEach((text, i) => (row.cells[i + 1].textContent = text));
    }
    if (chosen !== this._chosen) this._rows.get(chosen)?.scrollIntoView({ block: "nearest" });
    this._chosen = chosen;
    for (const [number, row] of this._rows) {
      if (!seen.has(number)) {
        row.remove();
        this._rows.delete(number);
      }
    }
  }

  _add(number) {
    const row = document.createElement("tr");
    const button = document.createElement("button");
    button.type = "button";
    button.append(this._tiles().swatch(number), `${number}`);
    button.setAttribute("aria-label", `request ${number}`);
    // The whole row; the button's own clicks, by key too, arrive here.
    row.addEventListener("click", () => {
      this._choose(button.getAttribute("aria-pressed") === "true" ? null : number);
    });
    row.insertCell().append(button);
    row.insertCell();
    for (let i = 0; i < 4; i++) row.insertCell().className = "number";
    return row;
  }
}

function age(seconds) {
  return seconds < 60 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min`;
}
