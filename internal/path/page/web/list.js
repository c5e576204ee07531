// The list of Services. It draws only the rows that can be seen, so its work does not grow with the cluster.

import { el } from "./dom.js";
import { rows, state, onChange } from "./live.js";

const columns = [
  ["name", "Name", (r) => r.name],
  ["namespace", "Namespace", (r) => r.namespace],
  ["type", "Type", (r) => r.type],
  ["addresses", "Addresses", (r) => (r.addresses ?? []).join(", ")],
  ["ports", "Ports", (r) => (r.ports ?? []).join(", ")],
  ["ready", "Ready", (r) => (r.type === "ExternalName" ? "" : `${r.ready}/${r.endpoints}`)],
  ["announcers", "Announced by", (r) => (r.announcers ?? []).join(", ")],
  ["finding", "Finding", (r) => r.finding ?? ""],
];
const extra = 6; // rows that are drawn beyond each edge

const $ = (id) => document.getElementById(id);
let shown = []; // the rows that match, in order
let selected = ""; // the name of the selected row
let sort = { column: "namespace", down: false };
let drawn = false;

const nameOf = (row) => `${row.namespace}/${row.name}`;
const compare = new Intl.Collator("en", { numeric: true }).compare;

function sortValue(row) {
  if (sort.column === "ready") return row.endpoints === 0 ? 2 : row.ready / row.endpoints;
  return columns.find((c) => c[0] === sort.column)[2](row);
}

function order(a, b) {
  const x = sortValue(a), y = sortValue(b);
  let d = typeof x === "number" ? x - y : compare(x, y);
  if (d !== 0 && (x === "" || y === "")) return x === "" ? 1 : -1; // empty cells are last both ways
  if (sort.down) d = -d;
  return d || compare(a.namespace, b.namespace) || compare(a.name, b.name);
}

function filter() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const namespace = $("namespace").value;
  const only = $("only-findings").checked;
  shown = [];
  for (const row of rows.values()) {
    if ((namespace && row.namespace !== namespace) || (only && !row.finding)) continue;
    if (words.every((w) => row.text.includes(w))) shown.push(row);
  }
  shown.sort(order);
  $("count").textContent = !state.loaded ? "" : shown.length === rows.size ? `${rows.size} Services` : `${shown.length} of ${rows.size} Services`;
  $("grid").setAttribute("aria-rowcount", shown.length + 1);
  $("empty").hidden = shown.length > 0;
  $("grid").hidden = shown.length === 0;
  $("empty").textContent = !state.loaded ? (state.error ? "The Services are not known." : "Reading the cluster …")
    : rows.size === 0 ? "The cluster has no Services." : "No Service matches the search.";
  draw();
}

function rowHeight() {
  return parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));
}

// visibleHeight is the height of what can be seen below the head, which stays at the top of the scrolling grid.
function visibleHeight() {
  return $("grid").clientHeight - $("head").offsetHeight;
}

function draw() {
  const height = rowHeight();
  const top = $("grid").scrollTop;
  const first = Math.max(0, Math.floor(top / height) - extra);
  const last = Math.min(shown.length, Math.ceil((top + visibleHeight()) / height) + extra);
  const drawnRows = [];
  for (let i = first; i < last; i++) drawnRows.push(drawRow(shown[i], i, height));
  $("rows").style.height = `${shown.length * height}px`;
  $("rows").replaceChildren(...drawnRows);
  const at = shown.findIndex((r) => nameOf(r) === selected);
  const visible = at >= first && at < last;
  if (visible) $("grid").setAttribute("aria-activedescendant", `row-${at}`);
  else $("grid").removeAttribute("aria-activedescendant");
}

function drawRow(row, i, height) {
  const e = el("div", { class: "row", role: "row", id: `row-${i}`, "aria-rowindex": i + 2, "aria-selected": nameOf(row) === selected ? "true" : "false",
    onclick: () => { selected = nameOf(row); show(row); } },
  columns.map(([key, , text]) => {
    const t = text(row);
    const bad = key === "finding" || (key === "ready" && row.endpoints > 0 && row.ready === 0);
    return el("span", { role: "gridcell", class: `c-${key}${key === "name" ? " name" : ""}${bad ? " warn" : ""}`, title: t }, t);
  }));
  e.style.top = `${i * height}px`;
  return e;
}

function show(row) {
  location.hash = `#/service/${encodeURIComponent(row.namespace)}/${encodeURIComponent(row.name)}`;
}

function drawHead() {
  $("head").replaceChildren(...columns.map(([key, title]) => {
    const now = sort.column === key;
    return el("span", { role: "columnheader", "aria-sort": now ? (sort.down ? "descending" : "ascending") : "none" },
      el("button", { type: "button", onclick: () => { sort = { column: key, down: now && !sort.down }; drawHead(); filter(); $("head").children[columns.findIndex((c) => c[0] === key)].firstChild.focus(); } },
        title, now ? (sort.down ? " ↓" : " ↑") : ""));
  }));
}

function drawNamespaces() {
  const box = $("namespace");
  const names = [...new Set([...rows.values()].map((r) => r.namespace))].sort(compare);
  const have = [...box.options].slice(1).map((o) => o.value);
  if (drawn && names.join("\n") === have.join("\n")) return;
  drawn = true;
  const now = box.value;
  box.replaceChildren(el("option", { value: "" }, "all"), ...names.map((n) => el("option", { value: n }, n)));
  box.value = names.includes(now) ? now : "";
}

// move selects another row and shows it.
function move(by) {
  if (shown.length === 0) return;
  let at = shown.findIndex((r) => nameOf(r) === selected);
  at = at < 0 ? (by < 0 ? shown.length - 1 : 0) : Math.min(shown.length - 1, Math.max(0, at + by));
  selected = nameOf(shown[at]);
  const box = $("grid"), height = rowHeight();
  if (at * height < box.scrollTop) box.scrollTop = at * height;
  if ((at + 1) * height > box.scrollTop + visibleHeight()) box.scrollTop = (at + 1) * height - visibleHeight();
  draw();
}

// keyDown handles a key in the list, and reports whether it did.
export function keyDown(event) {
  const page = Math.max(1, Math.floor(visibleHeight() / rowHeight()) - 1);
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
  if (event.key in steps) {
    move(steps[event.key]);
    $("grid").focus();
    return true;
  }
  if (event.target === $("grid") && (event.key === "Home" || event.key === "End")) {
    move(event.key === "End" ? shown.length : -shown.length);
    return true;
  }
  if (event.key === "Enter" && (event.target === $("grid") || event.target === $("search"))) {
    const row = shown.find((r) => nameOf(r) === selected) ?? shown[0];
    if (row) { selected = nameOf(row); show(row); }
    return true;
  }
  if (event.key === "Escape" && $("search").value) {
    $("search").value = "";
    filter();
    return true;
  }
  return false;
}

// shownNow draws the list when its section appears.
export function shownNow() {
  filter();
  document.title = "Services · Fairway";
}

export function start() {
  drawHead();
  drawNamespaces();
  for (const id of ["search", "namespace"]) $(id).addEventListener("input", () => { $("grid").scrollTop = 0; filter(); });
  $("only-findings").addEventListener("change", filter);
  $("grid").addEventListener("scroll", () => requestAnimationFrame(draw));
  new ResizeObserver(draw).observe($("grid"));
  onChange(() => {
    if ($("list").hidden) return;
    drawNamespaces();
    filter();
  });
  filter();
}
