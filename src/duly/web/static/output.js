// The output of a run as a terminal would show it: colours, carriage returns; with numbers, times, search.
// Text of others is only ever set as text, never as markup.
"use strict";

const PIECE_MS = 1000;
const AT_END_PX = 40;

class Viewer {
  constructor(root) {
    this.root = root;
    this.pre = root.querySelector("pre");
    this.tools = root.querySelector(".viewer-tools");
    this.id = root.id.replace("viewer-", "");
    this.place = 0;
    this.lost = 0;
    this.times = new Map();
    this.begin();
    this.listen();
    this.tools.hidden = false;
    this.ask();
  }

  begin() {
    this.pre.textContent = "";
    this.line = null;
    this.number = 0;
    this.cells = [];
    this.column = 0;
    this.style = "";
  }

  async ask() {
    let is_running = true;
    try {
      const address = this.root.dataset.output;
      const query = `${address.includes("?") ? "&" : "?"}place=${this.place}&lost=${this.lost}`;
      const answer = await fetch(address + query, { cache: "no-store" });
      if (!answer.ok) return;
      const piece = await answer.json();
      const is_first = this.place === 0;
      const is_at_end = this.pre.scrollHeight - this.pre.scrollTop - this.pre.clientHeight < AT_END_PX;
      for (const [line, time] of piece.times) this.times.set(line, time);
      if (piece.is_whole) this.begin();
      this.write(piece.text);
      this.place = piece.place;
      this.lost = piece.lost_bytes;
      is_running = piece.is_running;
      if (piece.text) this.find();
      if (is_first && this.line_asked()) this.show_line(this.line_asked());
      else if (is_first || is_at_end) this.pre.scrollTop = this.pre.scrollHeight;
    } catch {
      // The stream of events says when the server is back.
    } finally {
      if (is_running && this.root.isConnected) setTimeout(() => this.ask(), PIECE_MS);
      else delete this.root.dataset.running;
    }
  }

  // --- what a terminal does ---

  write(text) {
    const made = document.createDocumentFragment();
    const parts = text.split(/(\x1b\[[0-9;:]*m|\r\n|\n|\r)/);
    for (const part of parts) {
      if (part === "") continue;
      if (part === "\n" || part === "\r\n") { this.end_line(made); continue; }
      if (part === "\r") { this.column = 0; continue; }
      if (part.startsWith("\x1b[")) { this.style = styled(this.style, part.slice(2, -1)); continue; }
      this.put(part);
    }
    if (this.cells.length) this.draw(made);
    this.pre.append(made);
  }

  put(text) {
    // A run of text that only appends is one cell: most output never overwrites a line.
    const length = this.cells.reduce((sum, cell) => sum + cell.text.length, 0);
    if (this.column < length) this.cells = overwritten(this.cells, this.column, text, this.style);
    else this.cells.push({ text, style: this.style });
    this.column += text.length;
  }

  end_line(made) {
    this.draw(made);
    this.line = null;
    this.cells = [];
    this.column = 0;
  }

  draw(made) {
    if (!this.line) {
      this.number += 1;
      this.line = document.createElement("span");
      this.line.className = "line";
      this.line.id = `L${this.id}-${this.number}`;
      const time = this.times.get(this.number - 1);
      if (time) this.shown_time = time;
      if (this.number === 1 || time) this.line.dataset.time = this.shown_time ?? "";
      const link = document.createElement("a");
      link.className = "line-number";
      link.href = `#${this.line.id}`;
      link.dataset.number = this.number;
      link.setAttribute("aria-label", `Line ${this.number}`);
      link.tabIndex = -1;
      this.line.append(link, document.createElement("span"));
      made.append(this.line);
    }
    const text = this.line.lastChild;
    text.replaceChildren(...this.cells.map(({ text, style }) => {
      if (!style) return document.createTextNode(text);
      const span = document.createElement("span");
      span.className = style;
      span.textContent = text;
      return span;
    }), "\n");
  }

  // --- what people do ---

  listen() {
    const on = (name, does) => this.root.querySelector(`[data-${name}]`).addEventListener("click", does);
    const toggle = (name, classname) => on(name, (event) => {
      const is_on = this.pre.classList.toggle(classname);
      event.currentTarget.setAttribute("aria-pressed", String(classname === "unwrapped" ? !is_on : is_on));
    });
    toggle("wrap", "unwrapped");
    toggle("times", "timed");
    on("end", () => { this.pre.scrollTop = this.pre.scrollHeight; });
    on("copy", (event) => this.copy(event.currentTarget));
    const find = this.root.querySelector("[data-find]");
    find.addEventListener("input", () => this.find());
    find.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
    });
    addEventListener("hashchange", () => this.line_asked() && this.show_line(this.line_asked()));
  }

  async copy(button) {
    const text = [...this.pre.querySelectorAll(".line > span")].map((line) => line.textContent).join("");
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(this.pre);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  line_asked() {
    const asked = location.hash.slice(1);
    return asked.startsWith(`L${this.id}-`) ? document.getElementById(asked) : null;
  }

  show_line(line) {
    for (const one of this.pre.querySelectorAll(".line.asked")) one.classList.remove("asked");
    line.classList.add("asked");
    this.pre.scrollTop = line.offsetTop - this.pre.offsetTop - this.pre.clientHeight / 3;
  }

  find() {
    const text = this.root.querySelector("[data-find]").value.toLowerCase();
    this.found = [];
    for (const line of this.pre.children) {
      const is_hit = text !== "" && line.lastChild.textContent.toLowerCase().includes(text);
      line.classList.toggle("hit", is_hit);
      if (is_hit) this.found.push(line);
    }
    this.at = -1;
    this.root.querySelector("output").textContent = text ? `${this.found.length} lines` : "";
  }

  step(by) {
    if (!this.found?.length) return;
    this.at = (this.at + by + this.found.length) % this.found.length;
    this.show_line(this.found[this.at]);
    this.root.querySelector("output").textContent = `${this.at + 1} of ${this.found.length} lines`;
  }
}

function overwritten(cells, column, text, style) {
  const made = [];
  let at = 0;
  for (const cell of cells) {
    const before = Math.max(0, Math.min(cell.text.length, column - at));
    if (before) made.push({ text: cell.text.slice(0, before), style: cell.style });
    at += cell.text.length;
  }
  made.push({ text, style });
  at = 0;
  const until = column + text.length;
  for (const cell of cells) {
    const skipped = Math.max(0, until - at);
    if (skipped < cell.text.length) made.push({ text: cell.text.slice(skipped), style: cell.style });
    at += cell.text.length;
  }
  return made;
}

// The classes after a change of colour. Only the sixteen colours that have a name, and bold, faint, underlined.
function styled(style, codes) {
  const classes = new Set(style.split(" ").filter(Boolean));
  const drop = (prefix) => { for (const one of classes) if (one.startsWith(prefix)) classes.delete(one); };
  const numbers = codes.split(/[;:]/).map(Number);
  for (let index = 0; index < numbers.length; index++) {
    const code = numbers[index];
    if (code === 0) classes.clear();
    else if (code === 1) classes.add("bold");
    else if (code === 2) classes.add("faint");
    else if (code === 4) classes.add("underlined");
    else if (code === 22) { classes.delete("bold"); classes.delete("faint"); }
    else if (code === 24) classes.delete("underlined");
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) { drop("fg"); classes.add(`fg${code % 10}`); }
    else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) { drop("bg"); classes.add(`bg${code % 10}`); }
    else if (code === 39) drop("fg");
    else if (code === 49) drop("bg");
    else if (code === 38 || code === 48) index += numbers[index + 1] === 5 ? 2 : 4;
  }
  return [...classes].join(" ");
}

function open_viewers() {
  for (const root of document.querySelectorAll(".viewer[data-output]:not([data-open])")) {
    root.dataset.open = "";
    new Viewer(root);
  }
}

open_viewers();
document.addEventListener("duly:content", open_viewers);
