// The little script there is: live parts, a filter that does not reload, questions before actions, keys.
// Every page works without it. Text of others is only ever set as text, never as markup.
"use strict";

const PACE_MS = 1000;
const JITTER_MS = 250;
const content = document.getElementById("content");
const nav = document.getElementById("nav");
const banner = document.getElementById("banner");
const link = document.getElementById("link");
const toasts = document.getElementById("toasts");
// Under which path the site is mounted; empty for one of its own.
const root_path = document.body.dataset.root.slice(0, -1);
let csrf = document.querySelector('meta[name="duly-csrf"]')?.content ?? "";
let ahead_ms = Number(content.dataset.now) / 1000 - Date.now();

// --- times that go on ---

const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];

function largest(seconds) {
  const [size, unit] = UNITS.find(([size]) => seconds >= size) ?? UNITS[3];
  return `${Math.floor(seconds / size)}${unit}`;
}

function relative(at_us, now_ms) {
  const apart_s = at_us / 1e6 - now_ms / 1000;
  if (apart_s > 0) return `in ${largest(Math.ceil(apart_s))}`;
  const passed_s = Math.floor(-apart_s);
  return passed_s ? `${largest(passed_s)} ago` : "now";
}

let ticks = 0;
function tick() {
  if (document.hidden) return;
  const now_ms = Date.now() + ahead_ms;
  const is_whole = ticks++ % 15 === 0;
  for (const time of content.querySelectorAll("time[data-us]")) {
    if (!is_whole && Math.abs(time.dataset.us / 1000 - now_ms) > 90000) continue;
    const text = relative(Number(time.dataset.us), now_ms);
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(tick, 1000);

// --- live parts: the content is asked for again, and only what differs is touched ---

let heard = "";
let etag = "";
let shown = location.pathname + location.search;
let is_asking = false;
let is_wanted = false;
let timer = 0;
let last_ms = -Infinity;
let pace_ms = PACE_MS;

function refresh_soon() {
  is_wanted = true;
  if (timer || is_asking || document.hidden) return;
  const wait_ms = Math.max(0, last_ms + pace_ms - performance.now()) + Math.random() * JITTER_MS;
  timer = setTimeout(() => { timer = 0; refresh(); }, wait_ms);
}

async function refresh() {
  if (is_asking) { is_wanted = true; return; }
  is_asking = true;
  is_wanted = false;
  const address = shown;
  try {
    const headers = { "X-Duly-Part": heard };
    if (etag) headers["If-None-Match"] = etag;
    const answer = await fetch(address, { headers, cache: "no-store", redirect: "manual" });
    if (answer.type === "opaqueredirect") { location.reload(); return; }
    if (address !== shown) return;
    // A page that is a lot of work is made less often, for everybody; then there may be news that is not in it.
    pace_ms = Math.max(PACE_MS, 1000 * Number(answer.headers.get("x-duly-pace") ?? 0));
    if (answer.headers.has("x-duly-again")) is_wanted = true;
    if (answer.status !== 304 && !answer.headers.get("etag")) {
      say_old("This page could not be made again. What you see is as it was.");
      return;
    }
    if (answer.status !== 304) {
      apply(await answer.text());
      etag = answer.headers.get("etag");
    }
    if (!lost_since) banner.hidden = true;
  } catch {
    // The stream of events says when the server is back.
  } finally {
    is_asking = false;
    last_ms = performance.now();
    if (is_wanted || address !== shown) refresh_soon();
  }
}

function apply(text) {
  const parsed = new DOMParser().parseFromString(text, "text/html");
  const made = parsed.getElementById("content");
  if (!made) return;
  ahead_ms = Number(made.dataset.now) / 1000 - Date.now();
  document.title = parsed.title;
  const icon = document.getElementById("icon");
  if (icon.dataset[made.dataset.tone]) icon.href = icon.dataset[made.dataset.tone];
  hold_back(made);
  morph(nav, parsed.getElementById("nav"));
  morph(content, made);
  ticks = 0;
  tick();
  document.dispatchEvent(new Event("duly:content"));
}

// New rows of a list wait until somebody wants them: nothing that one reads moves away.
let is_let_in = false;

function hold_back(made) {
  const table = content.querySelector("table[data-hold]"), other = made.querySelector("table[data-hold]");
  const top = table?.querySelector("tbody tr")?.dataset.key;
  if (!other || !top || is_let_in || address_shown !== shown) { is_let_in = false; address_shown = shown; return; }
  const rows = [...other.querySelectorAll("tbody tr")];
  const place = rows.findIndex((row) => row.dataset.key === top);
  if (place <= 0) return;
  for (const row of rows.slice(0, place)) row.remove();
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button small held";
  button.id = "held";
  button.textContent = `${place} new`;
  other.closest(".scroll").before(button);
}

let address_shown = shown;
document.addEventListener("click", (event) => {
  if (event.target.id !== "held") return;
  is_let_in = true;
  etag = "";
  refresh();
});

// What one sees and uses is kept as it is: focus, what was typed, what was opened, where one has scrolled to.
function morph(old, made) {
  let one = old.firstChild;
  for (const other of [...made.childNodes]) {
    const same = nearest(one, other);
    if (!same) {
      old.insertBefore(document.adoptNode(other), one);
      continue;
    }
    while (one !== same) one = removed(one);
    one = same.nextSibling;
    if (same.nodeType === Node.ELEMENT_NODE) adapt(same, other);
    else if (same.data !== other.data) same.data = other.data;
  }
  while (one) one = removed(one);
}

// The first of the next few nodes that can become the other one.
function nearest(one, other) {
  for (let left = 8; one && left; left--, one = one.nextSibling) {
    if (one.nodeType !== other.nodeType || one.nodeName !== other.nodeName || one.id !== other.id) continue;
    if (one.nodeType !== Node.ELEMENT_NODE || one.dataset?.key === other.dataset?.key) return one;
  }
  return null;
}

function removed(one) {
  const next = one.nextSibling;
  one.remove();
  return next;
}

function adapt(one, other) {
  if (one.isEqualNode(other) || one.dataset && "keep" in one.dataset) return;
  for (const { name } of [...one.attributes]) {
    if (!other.hasAttribute(name) && !(name === "open" && one.nodeName === "DETAILS")) one.removeAttribute(name);
  }
  for (const { name, value } of [...other.attributes]) {
    if (one.getAttribute(name) !== value && !(name === "value" && one === document.activeElement)) {
      one.setAttribute(name, value);
    }
  }
  if (one.nodeName === "INPUT" || one.nodeName === "SELECT") {
    if (one !== document.activeElement) {
      if (one.nodeName === "SELECT") morph(one, other);
      one.value = other.value;
    }
    return;
  }
  morph(one, other);
}

// --- the stream of events ---

let stream = null;
let is_leaving = false;
let lost_since = 0;

function listen() {
  const address = document.body.dataset.events;
  if (!address || !window.EventSource) return;
  stream = new EventSource(address);
  stream.addEventListener("hello", (event) => greeted(event));
  stream.addEventListener("reset", (event) => greeted(event));
  // A stream may be short: another one is asked for at once, and nothing is lost.
  stream.addEventListener("bye", (event) => { heard = event.lastEventId; is_leaving = true; });
  stream.addEventListener("message", (event) => {
    heard = event.lastEventId;
    refresh_soon();
  });
  stream.addEventListener("error", () => {
    if (is_leaving) { is_leaving = false; return; }
    if (!lost_since) lost_since = Date.now();
    say_lost();
    // A browser gives up for good when it was answered with an error; then it is ours to try again.
    if (stream.readyState === EventSource.CLOSED) {
      stream.close();
      setTimeout(listen, 2000 + Math.random() * 1000);
      refresh_soon(); // Somebody may have to log in again, which the answer to this says.
    }
  });
}

function greeted(event) {
  const was_lost = lost_since !== 0;
  const is_next = !was_lost && event.type === "hello" && heard !== "" && link.className === "link on";
  lost_since = 0;
  heard = event.lastEventId;
  banner.hidden = true;
  link.hidden = false;
  link.className = "link on";
  link.textContent = "live";
  if (was_lost || event.type === "reset") {
    etag = "";
    renew_session();
  }
  if (!is_next) refresh_soon();
}

function say_lost() {
  link.className = "link";
  link.textContent = "not live";
  say_old("The connection is lost. What you see is as it was; trying to reach it again…");
}

function say_old(words) {
  banner.textContent = words;
  banner.hidden = false;
}

async function renew_session() {
  try {
    const answer = await fetch(`${root_path}/api/v1/session`, { cache: "no-store" });
    if (answer.ok) csrf = (await answer.json()).csrf;
    else if (answer.status === 401) location.reload();
  } catch {
    // Gone again; the stream says so.
  }
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) { ticks = 0; tick(); refresh_soon(); }
});
window.addEventListener("pagehide", () => stream?.close());
window.addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
setInterval(refresh_soon, 60000);

// --- tables that are filtered and sorted without a reload ---

let typing = 0;

function show(address) {
  shown = address;
  etag = "";
  history.replaceState(null, "", address);
  refresh();
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-filter]");
  if (!form) return;
  clearTimeout(typing);
  typing = setTimeout(() => show(address_of(form)), event.target.nodeName === "SELECT" ? 0 : 120);
});
document.addEventListener("submit", (event) => {
  const form = event.target.closest("form[data-filter]");
  if (!form) return;
  event.preventDefault();
  show(address_of(form));
});

function address_of(form) {
  const fields = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value) fields.set(name, value);
  const query = fields.toString();
  return form.getAttribute("action") + (query ? `?${query}` : "");
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("a");
  if (!target || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  if (target.dataset.action) {
    event.preventDefault();
    ask(target);
  } else if ("part" in target.dataset) {
    event.preventDefault();
    show(target.getAttribute("href"));
    if (target.rel) scrollTo({ top: 0 });
  }
});

// --- actions: a question, then a POST, then what became of it ---

const confirming = document.getElementById("confirm");

function ask(button) {
  const yes = document.getElementById("confirm-yes");
  document.getElementById("confirm-question").textContent = button.dataset.question;
  yes.textContent = button.textContent;
  yes.classList.toggle("grave", button.classList.contains("grave"));
  confirming.returnValue = "";
  confirming.onclose = () => {
    if (button.isConnected) button.focus();
    if (confirming.returnValue === "yes") act(button.getAttribute("href"));
  };
  confirming.showModal();
  yes.focus();
}

async function act(address, is_again = false) {
  try {
    const answer = await fetch(address, {
      method: "POST",
      headers: { "X-CSRF-Token": csrf, "Content-Type": "application/json", Accept: "application/json" },
      body: "{}",
    });
    const result = await answer.json();
    if (answer.ok) {
      toast(result.message, { run: result.run, undo: result.undo_href });
    } else if (!is_again && ["session_over", "session_token"].includes(result.error?.code)) {
      await renew_session();
      await act(address, true);
      return;
    } else {
      toast(result.error?.message ?? "This did not work.", { is_bad: true });
    }
  } catch {
    toast("The daemon cannot be reached.", { is_bad: true });
  }
  etag = "";
  refresh_soon();
}

function toast(message, { run = null, undo = null, is_bad = false } = {}) {
  const box = document.createElement("div");
  box.className = is_bad ? "toast bad" : "toast";
  const text = document.createElement("span");
  text.textContent = message;
  box.append(text);
  if (run !== null) {
    const more = document.createElement("a");
    more.href = `${root_path}/runs/${run}`;
    more.textContent = `Run ${run}`;
    box.append(more);
  }
  if (undo !== null) {
    const back = document.createElement("button");
    back.type = "button";
    back.textContent = "Undo";
    back.addEventListener("click", () => { box.remove(); act(root_path + undo); });
    box.append(back);
  }
  toasts.append(box);
  while (toasts.children.length > 4) toasts.firstChild.remove();
  const fade = () => {
    if (box.matches(":hover, :focus-within")) setTimeout(fade, 2000);
    else box.remove();
  };
  setTimeout(fade, is_bad ? 15000 : 8000);
}

// --- light and dark ---

const theme = document.getElementById("theme");

function switch_theme() {
  const root = document.documentElement;
  const is_dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = is_dark ? "light" : "dark";
  try {
    localStorage.setItem("duly-theme", root.dataset.theme);
  } catch {
    // It holds for this page, then.
  }
}
theme.hidden = false;
theme.addEventListener("click", switch_theme);

// --- keys ---

const keys = document.getElementById("keys");
const help = document.getElementById("help");
help.hidden = false;
help.addEventListener("click", () => keys.showModal());
let is_going = false;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === " " && event.target.matches?.('a[role="button"]')) {
    event.preventDefault();
    event.target.click();
    return;
  }
  if (event.target.closest?.("input, select, textarea, dialog[open]")) return;
  if (is_going) {
    is_going = false;
    const going = event.key === "o" ? `${root_path}/` : keys.querySelector(`[data-go="${CSS.escape(event.key)}"]`)?.dataset.href;
    if (going) { event.preventDefault(); location.assign(going); }
    return;
  }
  if (event.key === "/") {
    const filter = document.getElementById("filter");
    if (filter) { event.preventDefault(); filter.focus(); filter.select(); }
  } else if (event.key === "?") {
    event.preventDefault();
    keys.showModal();
  } else if (event.key === "t") {
    switch_theme();
  } else if (event.key === "g") {
    is_going = true;
    setTimeout(() => { is_going = false; }, 1500);
  }
});

// --- the zone that times are shown in ---

const zone = document.getElementById("zone");
const own_zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const chosen_zone = /(?:^|; )duly_zone=([^;]*)/.exec(document.cookie)?.[1] ?? "";
zone.options[1].value = own_zone;
zone.options[1].textContent = `this browser's (${own_zone})`;
zone.value = chosen_zone;
if (zone.selectedIndex < 0) zone.selectedIndex = 0;
zone.parentElement.hidden = false;
zone.addEventListener("change", () => {
  const age = zone.value ? 31536000 : 0;
  document.cookie = `duly_zone=${zone.value}; path=${root_path}/; max-age=${age}; samesite=lax`;
  location.reload();
});

listen();
