// The time line: lanes in a list that holds only those that are seen, drawn on one canvas; and the same as a table.
"use strict";

(() => {
const root = document.getElementById("timeline");
if (!root) return;

const LANE = 26, TOP = 24, MINUTE = 60e6, DAY = 1440 * MINUTE, MOST = 400 * DAY, SPARE = 10, LIVE_MS = 3000;
const box = root.querySelector(".lanes");
const rows = root.querySelector(".rows");
const names = rows.querySelector("ul");
const canvas = rows.querySelector("canvas");
const cursor_text = root.querySelector("#timeline-cursor");
const table = root.querySelector("tbody");
const everything = root.querySelector("[data-all]");
const filter = root.querySelector("#lane-filter");
let from = 0, to = 0, is_live = true, data = null, first = 0, wanted = 0, asking = 0;
let asked_ms = -Infinity;
let cursor = null; // the lane and the instant that the keys are at
// A custom property that depends on light and dark is resolved where it is used.
const probe = root.appendChild(document.createElement("i"));
probe.hidden = true;
const colour = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };

root.hidden = false;
read_hash();

// --- asking ---

function ask_soon(wait_ms = 30) {
  clearTimeout(asking);
  asking = setTimeout(ask, wait_ms);
}

async function ask() {
  const number = ++wanted;
  const seen = Math.ceil(box.clientHeight / LANE);
  const begin = Math.max(0, Math.floor(box.scrollTop / LANE) - SPARE);
  const query = new URLSearchParams({ first: begin, count: Math.min(60, seen + 2 * SPARE), parts: Math.min(600, Math.round(width() / 3)) });
  // What is around now is the same for all who look at it: then it is made once.
  if (is_live) query.set("span", Math.round(to - from));
  else { query.set("from", Math.round(from)); query.set("to", Math.round(to)); }
  if (everything.checked) query.set("all", "1");
  if (filter.value) query.set("q", filter.value);
  try {
    const answer = await fetch(`${root.dataset.address}?${query}`, { cache: "no-store" });
    if (!answer.ok || number !== wanted) return;
    data = await answer.json();
    first = data.first;
    if (is_live) { from = data.from_us; to = data.to_us; }
    asked_ms = performance.now();
    show();
  } catch {
    // The stream of events says when the server is back.
  }
}

function now_us() {
  return (Date.now() + ahead_ms) * 1000;
}

function width() {
  return Math.max(canvas.clientWidth, 100);
}

// --- drawing ---

function show() {
  rows.style.height = `${TOP + data.total * LANE}px`;
  names.style.top = `${TOP + first * LANE}px`;
  names.replaceChildren(...data.lanes.map((lane) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = root_path + lane.href;
    link.className = `lane-name ${lane.tone}`;
    link.title = `${lane.id}: ${lane.word}`;
    link.tabIndex = -1;
    link.textContent = lane.id;
    item.append(link);
    return item;
  }));
  const label = root.querySelector(".quiet");
  label.hidden = !data.quiet || data.quiet === data.total;
  label.lastElementChild.textContent = `and ${data.quiet} that run or rest quietly`;
  const fault = root.querySelector("[data-fault]");
  fault.hidden = !data.fault;
  fault.textContent = data.fault ?? "";
  fill_table();
  draw();
  root.dataset.drawn = String(performance.now());
}

function x_of(at) {
  return (at - from) / (to - from) * width();
}

function draw() {
  if (!data) return;
  const scale = devicePixelRatio || 1, wide = width(), high = box.clientHeight;
  canvas.style.top = `${box.scrollTop}px`;
  canvas.style.height = `${high}px`;
  canvas.width = wide * scale;
  canvas.height = high * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  const colours = Object.fromEntries(["good", "bad", "warn", "busy", "line", "strong-line", "soft", "link", "raised", "card", "text"].map((name) => [name, colour(name)]));
  const now = now_us(), now_x = x_of(now);
  pen.fillStyle = colours.raised;
  pen.globalAlpha = 0.55;
  pen.fillRect(Math.max(now_x, 0), TOP, wide, high);
  pen.globalAlpha = 1;
  draw_load(pen, colours, wide, now);
  pen.save();
  pen.beginPath();
  pen.rect(0, TOP, wide, high);
  pen.clip();
  data.lanes.forEach((lane, index) => {
    const y = TOP + (first + index) * LANE - box.scrollTop;
    if (y < TOP - LANE || y > high) return;
    pen.strokeStyle = colours.line;
    pen.beginPath(); pen.moveTo(0, y + 0.5); pen.lineTo(wide, y + 0.5); pen.stroke();
    draw_lane(pen, colours, lane, y, now);
  });
  pen.restore();
  let free = 0; // from where on there is room for a label
  for (const tick of [...data.ticks, { at_us: now, label: "now", kind: "now" }]) {
    const x = Math.round(x_of(tick.at_us)) + 0.5;
    if (x < 0 || x > wide) continue;
    pen.strokeStyle = pen.fillStyle = { now: colours.link, dst: colours.warn, day: colours["strong-line"] }[tick.kind] ?? colours.line;
    pen.setLineDash(tick.kind === "dst" ? [3, 3] : []);
    pen.beginPath(); pen.moveTo(x, 16); pen.lineTo(x, high); pen.stroke();
    if (tick.kind === "hour" || tick.kind === "day") {
      pen.fillStyle = colours.soft;
    }
    const is_late = x > wide - 60, long = pen.measureText(tick.label).width;
    const left = is_late ? x - long - 3 : x + 3;
    const is_hidden = left < free || (left < now_x + 20 && left + long > now_x - 20);
    if (tick.kind !== "now" && is_hidden) continue;
    if (tick.kind !== "now") free = left + long + 10;
    pen.textAlign = tick.kind === "now" ? "center" : is_late ? "right" : "left";
    pen.fillText(tick.label, tick.kind === "now" ? Math.min(Math.max(x, 14), wide - 14) : x + (is_late ? -3 : 3), 12);
  }
  pen.setLineDash([]);
  if (cursor) {
    const y = TOP + cursor.lane * LANE - box.scrollTop, x = x_of(cursor.at);
    pen.strokeStyle = colours.link;
    pen.lineWidth = 2;
    pen.strokeRect(x - 4, y + 2, 8, LANE - 4);
  }
}

function draw_lane(pen, colours, lane, y, now) {
  const middle = y + LANE / 2;
  if (lane.usual_us) {
    for (const due of lane.dues) {
      const x = x_of(due);
      pen.fillStyle = colours["strong-line"];
      pen.globalAlpha = 0.25;
      pen.fillRect(x, middle - 4, Math.max(x_of(due + lane.long_us) - x, 2), 8);
      pen.globalAlpha = 0.8;
      pen.fillRect(x, middle - 4, Math.max(x_of(due + lane.usual_us) - x, 2), 8);
      pen.globalAlpha = 1;
    }
  }
  if (lane.is_often) {
    pen.strokeStyle = colours["strong-line"];
    pen.setLineDash([1.5, 3]); pen.lineWidth = 4;
    pen.beginPath(); pen.moveTo(x_of(Math.max(lane.dues.at(-1), now)), middle); pen.lineTo(width(), middle); pen.stroke();
    pen.setLineDash([]); pen.lineWidth = 1;
  }
  pen.strokeStyle = colours["strong-line"];
  pen.fillStyle = colours.card;
  for (const due of lane.dues) { pen.beginPath(); pen.arc(x_of(due), middle, 2.5, 0, 7); pen.fill(); pen.stroke(); }
  // By height too, not by colour alone: what failed is tall.
  for (const run of lane.runs) {
    const x = x_of(run.first_us), tall = { bad: 20, warn: 15 }[run.tone] ?? 10;
    const many = Math.min(1, 0.45 + Math.log2(run.count + 1) / 8);
    pen.globalAlpha = run.tone === "good" ? many : 1;
    pen.fillStyle = colours[run.tone];
    pen.fillRect(x, middle - tall / 2, Math.max(x_of(run.last_us) - x, 2.5), tall);
    pen.globalAlpha = 1;
  }
  pen.strokeStyle = colours.bad;
  pen.lineWidth = 2;
  for (const miss of lane.misses) {
    const x = x_of(miss.first_us);
    pen.beginPath(); pen.moveTo(x - 4, middle - 4); pen.lineTo(x + 4, middle + 4); pen.moveTo(x - 4, middle + 4); pen.lineTo(x + 4, middle - 4); pen.stroke();
  }
  pen.lineWidth = 1;
}

// How many of the lanes are expected to run at once: the darker, the more.
function draw_load(pen, colours, wide, now) {
  const load = new Uint16Array(Math.ceil(wide));
  for (const lane of data.lanes) {
    for (const due of lane.dues) {
      if (due < now) continue;
      const until = Math.min(wide - 1, Math.max(x_of(due + (lane.long_us ?? 0)), x_of(due) + 1));
      for (let x = Math.max(0, Math.floor(x_of(due))); x <= until; x++) load[x]++;
    }
  }
  pen.fillStyle = colours.warn;
  for (let x = 0; x < load.length; x++) {
    if (load[x] < 2) continue;
    pen.globalAlpha = Math.min(1, 0.2 + load[x] / 12);
    pen.fillRect(x, TOP - 6, 1, 5);
  }
  pen.globalAlpha = 1;
}

function fill_table() {
  table.replaceChildren(...data.lanes.map((lane) => {
    const row = document.createElement("tr");
    const link = document.createElement("a");
    link.href = root_path + lane.href;
    link.textContent = lane.id;
    const cells = [link, lane.word, lane.summary, lane.dues.length ? clock(lane.dues[0]) : "–", lane.usual_us ? length(lane.usual_us) : "–"];
    for (const [index, one] of cells.entries()) {
      const cell = row.insertCell();
      cell.append(one);
      if (index === 4) cell.className = "number";
    }
    return row;
  }));
}

function clock(at) {
  const zone = document.documentElement.dataset.zone;
  const options = { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
  try {
    return new Date(at / 1000).toLocaleString("en-GB", { ...options, timeZone: zone });
  } catch {
    return new Date(at / 1000).toISOString();
  }
}

function length(us) {
  const s = us / 1e6;
  return s < 1 ? `${Math.round(s * 1000)}ms` : s < 100 ? `${s.toFixed(1)}s` : s < 6000 ? `${Math.round(s / 60)}m` : `${Math.round(s / 3600)}h`;
}

// --- moving ---

function look_at(new_from, new_to, is_now = false) {
  const span = Math.min(Math.max(new_to - new_from, MINUTE), MOST), middle = (new_from + new_to) / 2;
  from = middle - span / 2;
  to = middle + span / 2;
  is_live = is_now;
  for (const button of root.querySelectorAll("[data-reach]")) {
    button.setAttribute("aria-pressed", String(Math.abs(span - 2 * button.dataset.reach * MINUTE) < MINUTE || span === MINUTE && button.dataset.reach === "1"));
  }
  try { history.replaceState(null, "", is_live && span === 2 * DAY ? location.pathname + location.search : `#t=${Math.round(from)}-${Math.round(to)}`); } catch { /* too often: the address can wait */ }
  draw();
  ask_soon();
}

function zoom(by, at = is_live ? now_us() : (from + to) / 2) {
  const span = Math.min(Math.max((to - from) * by, MINUTE), MOST), share = (at - from) / (to - from);
  look_at(at - span * share, at + span * (1 - share), is_live && share === 0.5);
}

function move(by) {
  const span = to - from;
  look_at(from + span * by, to + span * by);
}

function read_hash() {
  const found = /^#t=(\d+)-(\d+)$/.exec(location.hash);
  if (found) look_at(Number(found[1]), Number(found[2]));
  else { const now = now_us(); look_at(now - DAY, now + DAY, true); }
}

root.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.zoom) zoom(Number(button.dataset.zoom));
  else if (button.dataset.move === "0") { const half = (to - from) / 2; look_at(now_us() - half, now_us() + half, true); }
  else if (button.dataset.move) move(Number(button.dataset.move));
  else if (button.dataset.reach) {
    const middle = is_live ? now_us() : (from + to) / 2, half = button.dataset.reach === "1" ? MINUTE / 2 : button.dataset.reach * MINUTE;
    look_at(middle - half, middle + half, is_live);
  }
});
everything.addEventListener("change", () => ask_soon(0));
filter.addEventListener("input", () => { box.scrollTop = 0; ask_soon(120); });
box.addEventListener("scroll", () => { draw(); ask_soon(60); });
addEventListener("resize", () => { draw(); ask_soon(150); });
box.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return; // the list scrolls
  event.preventDefault();
  const at = from + (event.clientX - canvas.getBoundingClientRect().left) / width() * (to - from);
  if (event.ctrlKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
  else look_at(from + event.deltaX / width() * (to - from), to + event.deltaX / width() * (to - from));
}, { passive: false });

let grip = null;
canvas.addEventListener("pointerdown", (event) => { grip = { x: event.clientX, from, to, moved: false }; });
addEventListener("pointermove", (event) => {
  if (!grip) return;
  const by = (grip.x - event.clientX) / width() * (grip.to - grip.from);
  if (!grip.moved && Math.abs(event.clientX - grip.x) < 5) return;
  grip.moved = true;
  look_at(grip.from + by, grip.to + by);
});
addEventListener("pointerup", (event) => {
  const held = grip;
  grip = null;
  if (!held || held.moved || event.target !== canvas) return;
  const place = place_of(event);
  if (place) open_at(place);
});
canvas.addEventListener("pointermove", (event) => {
  const place = grip ? null : place_of(event);
  canvas.title = place ? text_of(place) : "";
});

function place_of(event) {
  const area = canvas.getBoundingClientRect();
  const lane = Math.floor((event.clientY - area.top - TOP + box.scrollTop) / LANE);
  if (event.clientY - area.top < TOP || !data?.lanes[lane - first]) return null;
  return { lane, at: from + (event.clientX - area.left) / width() * (to - from), reach: 4 / width() * (to - from) };
}

// What is at a place: a run, a miss, a due, or nothing.
function thing_at({ lane, at, reach = 0 }) {
  const shown = data.lanes[lane - first];
  if (!shown) return {};
  const near = (one, until) => one - reach <= at && at <= until + reach;
  const runs = shown.runs.filter((run) => near(run.first_us, run.last_us));
  const run = runs.find((one) => one.tone === "bad") ?? runs[0];
  const miss = shown.misses.find((one) => near(one.first_us, one.first_us));
  const due = shown.dues.find((one) => near(one, one + (shown.usual_us ?? 0)));
  return { shown, run, miss, due };
}

function text_of(place) {
  const { shown, run, miss, due } = thing_at(place);
  if (!shown) return "";
  if (run) return `${shown.id}, ${clock(run.first_us)}: ${run.count === 1 ? run.word : `${run.count} × ${run.word}`}, ${length(run.last_us - run.first_us)}`;
  if (miss) return `${shown.id}, ${clock(miss.first_us)}: missed${miss.count > 1 ? ` ${miss.count}` : ""}, ${miss.word}`;
  if (due) return `${shown.id}, due ${clock(due)}${shown.usual_us ? `, usually for ${length(shown.usual_us)}` : ""}`;
  return `${shown.id}, ${clock(place.at)}: ${place.at > now_us() ? "nothing is due" : "nothing ran"}`;
}

function open_at(place) {
  const { shown, run, miss } = thing_at(place);
  if (run) { location.assign(root_path + run.href); return; }
  if (!shown) return;
  if (place.at > now_us()) {
    const half = Math.max((to - from) / 24, 30 * MINUTE);
    location.assign(`${root_path}/plan?from=${Math.round(Math.max(place.at - half, now_us()))}&to=${Math.round(place.at + half)}`);
  } else if (shown.why_href) {
    const at = new Date((miss?.first_us ?? place.at) / 1000).toISOString().slice(0, 16);
    location.assign(`${root_path}${shown.why_href}${shown.why_href.includes("?") ? "&" : "?"}at=${encodeURIComponent(`${at}+00:00`)}#why`);
  } else location.assign(root_path + shown.href);
}

// --- keys ---

box.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !data?.lanes.length) return;
  cursor ??= { lane: first, at: Math.min(now_us(), to) };
  const keys = {
    ArrowUp: () => { cursor.lane = Math.max(0, cursor.lane - 1); },
    ArrowDown: () => { cursor.lane = Math.min(data.total - 1, cursor.lane + 1); },
    ArrowLeft: () => step(-1),
    ArrowRight: () => step(1),
    Home: () => { cursor.lane = 0; },
    End: () => { cursor.lane = data.total - 1; },
    "+": () => zoom(0.5, cursor.at),
    "=": () => zoom(0.5, cursor.at),
    "-": () => zoom(2, cursor.at),
    "[": () => move(-0.5),
    "]": () => move(0.5),
    Enter: () => open_at({ ...cursor, reach: (to - from) / width() }),
    Escape: () => { cursor = null; },
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  event.stopPropagation();
  keys[event.key]();
  if (cursor) {
    const y = cursor.lane * LANE;
    if (y < box.scrollTop) box.scrollTop = y;
    else if (y + LANE + TOP > box.scrollTop + box.clientHeight) box.scrollTop = y + LANE + TOP - box.clientHeight;
    cursor_text.textContent = text_of({ ...cursor, reach: (to - from) / width() });
  } else cursor_text.textContent = "";
  draw();
});

// To the next thing in the lane; past the last one a tenth of what is seen.
function step(way) {
  const shown = data.lanes[cursor.lane - first];
  const times = shown ? [...shown.runs.map((one) => one.first_us), ...shown.misses.map((one) => one.first_us), ...shown.dues] : [];
  const ahead = times.filter((at) => way * (at - cursor.at) > 0).sort((one, other) => way * (one - other));
  cursor.at = ahead[0] ?? cursor.at + way * (to - from) / 10;
  if (cursor.at < from) move(-0.5);
  if (cursor.at > to) move(0.5);
}

document.addEventListener("duly:content", () => { if (!document.hidden) ask_soon(Math.max(30, asked_ms + LIVE_MS - performance.now())); });
new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
