// Pool: what each page is, from the server's state. Pages count from 1.

const SHARED = 1;
const CACHED = 2;

export class Pool {
  constructor(state) {
    this.count = state.pool.pages;
    this.requests = state.requests;
    this._owner = new Uint16Array(bytes(state.pool.owner).buffer);
    this._flags = bytes(state.pool.flags);
  }

  /** The request a page belongs to first, or null. */
  owner(page) {
    const place = this._owner[page - 1];
    return place ? this.requests[place - 1] : null;
  }

  /** The number of that request, or -1. */
  ownerNumber(page) {
    const place = this._owner[page - 1];
    return place ? this.requests[place - 1].number : -1;
  }

  isShared(page) {
    return (this._flags[page - 1] & SHARED) !== 0;
  }

  isCached(page) {
    return (this._flags[page - 1] & CACHED) !== 0;
  }

  describe(page) {
    const owner = this.owner(page);
    if (!owner) return `page ${page}: ${this.isCached(page) ? "cached, nobody uses it" : "free"}`;
    const words = [`page ${page}: request ${owner.number}`];
    if (this.isShared(page)) words.push("shared");
    if (this.isCached(page)) words.push("cached");
    return words.join(", ");
  }
}

function bytes(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
