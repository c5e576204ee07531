// The map: which nodes send how many connections to which Services, or to which pods of one Service. The width of a line is
// its figure. The table below has the same figures.

import { el, table } from "./dom.js";
import { finding } from "./service.js";

const $ = (id) => document.getElementById(id);
const most = 24; // boxes in a column; the table has the others
const gap = 34; // between two boxes
const widest = 22; // the widest line
const figures = { connections: "open connections", new: "new connections a second", bytes: "bytes a second", refused: "refused packets a second" };
let source = null;
let service = "";
let last = null;

const short = (n) => (n === null || n === undefined ? "-" : n >= 1e9 ? `${(n / 1e9).toFixed(1)}G` : n >= 1e6 ? `${(n / 1e6).toFixed(1)}M` : n >= 1e3 ? `${(n / 1e3).toFixed(1)}k` : `${Math.round(n * 10) / 10}`);

function svg(tag, props = {}, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(props)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}

// shownNow opens the stream of figures, of all Services or of one.
export function shownNow(name) {
  service = name;
  document.title = `${service ? `${service} · ` : ""}Map · Fairway`;
  $("map-title").textContent = service ? `Who talks to ${service}` : "Map";
  $("map-back").hidden = !service;
  last = null;
  $("map-body").replaceChildren(el("p", { class: "quiet" }, "Asking the nodes …"));
  open();
}

export function hiddenNow() {
  source?.close();
  source = null;
}

function open() {
  hiddenNow();
  source = new EventSource(`/traffic?${new URLSearchParams({ service })}`);
  source.onmessage = (m) => {
    last = JSON.parse(m.data);
    if (last.error) hiddenNow(); // the browser would ask again at once
    draw();
  };
  source.onerror = () => {
    if (!last) $("map-body").replaceChildren(el("ul", { class: "findings fatal" }, finding("The map is not available now", "close other maps, and load the page again")));
  };
}

// columns sums the figures of each node and each destination, the largest first.
function columns(edges, figure) {
  const nodes = new Map(), ends = new Map();
  for (const e of edges) {
    nodes.set(e.node, (nodes.get(e.node) ?? 0) + (e[figure] ?? 0));
    const end = ends.get(e.to) ?? { value: 0, edge: e };
    end.value += e[figure] ?? 0;
    ends.set(e.to, end);
  }
  return {
    nodes: [...nodes.entries()].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0])).slice(0, most),
    ends: [...ends.entries()].sort((a, b) => b[1].value - a[1].value || a[0].localeCompare(b[0])).slice(0, most),
  };
}

function draw() {
  const t = last;
  if (t.error) {
    $("map-body").replaceChildren(el("ul", { class: "findings fatal", role: "alert" }, finding(t.error, t.advice)));
    return;
  }
  const figure = $("map-figure").value;
  const rows = t.edges.map((e) => [
    e.node, service ? `${e.to}${e.pod ? ` ${e.pod}` : ""}${e.at ? ` on ${e.at}` : ""}` : el("a", { href: `#/map/${e.service.split("/").map(encodeURIComponent).join("/")}` }, e.to),
    String(e.connections) + (e.unanswered ? ` (${e.unanswered} unanswered)` : ""), short(e.new), short(e.bytes), e.refused ? el("span", { class: "bad" }, short(e.refused)) : "0"]);
  const focused = document.activeElement?.getAttribute("href");
  $("map-body").replaceChildren(...[
    el("p", { class: "quiet" }, `${t.nodes} of ${t.of} nodes answer.${t.more ? ` ${t.more} smaller lines are left out.` : ""}`),
    t.notes?.length ? el("ul", { class: "findings" }, t.notes.map((n) => finding(n.text, n.advice))) : null,
    t.edges.length ? picture(t.edges, figure) : el("p", {}, "No connections now."),
    t.edges.length ? table("Figures", ["Node", service ? "Endpoint" : "Service", "Connections", "New/s", "Bytes/s", "Refused/s"], rows) : null,
  ].filter(Boolean));
  if (focused && document.activeElement === document.body) [...$("map-body").querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
}

function picture(edges, figure) {
  const { nodes, ends } = columns(edges, figure);
  const width = Math.max(300, Math.min(1100, $("map-body").clientWidth));
  const left = Math.min(150, width * 0.27), right = Math.min(330, width * 0.5);
  const height = 20 + gap * Math.max(nodes.length, ends.length);
  const top = Math.max(1e-9, ...edges.map((e) => e[figure] ?? 0));
  const y = (i, n) => 10 + gap / 2 + gap * i + (gap * (Math.max(nodes.length, ends.length) - n)) / 2;
  const at = (list, name) => list.findIndex(([n]) => n === name);
  const lines = edges.flatMap((e) => {
    const i = at(nodes, e.node), j = at(ends, e.to);
    const value = e[figure] ?? 0;
    const trouble = e.refused > 0 || e.unanswered > 0;
    if (i < 0 || j < 0 || (value === 0 && !trouble)) return [];
    const y1 = y(i, nodes.length), y2 = y(j, ends.length), middle = (left + width - right) / 2;
    return [svg("path", { class: trouble ? "flow trouble" : "flow", d: `M${left},${y1} C${middle},${y1} ${middle},${y2} ${width - right},${y2}`,
      "stroke-width": Math.max(1, (widest * value) / top).toFixed(1) }, svg("title", {}, `${e.node} to ${e.to}: ${short(value)} ${figures[figure]}`))];
  });
  const box = (x, w, i, n, text) => [svg("rect", { class: "box", x, y: y(i, n) - 12, width: w, height: 24, rx: 4 }), svg("text", { x: x + 6, y: y(i, n) + 4 }, cut(text, w))];
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Lines from ${nodes.length} nodes to ${ends.length} ${service ? "endpoints" : "Services"}, by ${figures[figure]}. The table has the figures.` },
    ...lines, ...nodes.flatMap(([n, v], i) => box(0, left, i, nodes.length, `${n}  ${short(v)}`)),
    ...ends.flatMap(([n, v], i) => box(width - right, right, i, ends.length, `${v.edge.pod || n}  ${short(v.value)}`)));
}

// cut shortens a text to a box of a width, at about 7 pixels a letter.
function cut(text, width) {
  const n = Math.floor((width - 12) / 7.4);
  return text.length > n ? `${text.slice(0, Math.max(1, n - 1))}…` : text;
}

export function start() {
  $("map-figure").replaceChildren(...Object.entries(figures).map(([k, text]) => el("option", { value: k }, text)));
  $("map-figure").addEventListener("change", () => last && draw());
  document.addEventListener("visibilitychange", () => {
    if ($("map").hidden) return;
    if (document.hidden) hiddenNow();
    else open();
  });
}
