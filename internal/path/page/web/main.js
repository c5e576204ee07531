// The frame of the page: which view the URL names, the sentence at the top, and the keys.

import { el } from "./dom.js";
import * as list from "./list.js";
import * as live from "./live.js";
import * as map from "./map.js";
import * as path from "./path.js";
import * as service from "./service.js";

const $ = (id) => document.getElementById(id);

const views = ["list", "service", "map", "path"];

// route shows the view that the URL names: #/, #/service/NAMESPACE/NAME?node=&from=, #/map, #/map/NAMESPACE/NAME,
// #/path?from=&to=.
function route() {
  const [place, text] = location.hash.slice(1).split("?");
  const query = new URLSearchParams(text ?? "");
  const parts = place.split("/").filter(Boolean).map(decodeURIComponent);
  const view = parts[0] === "service" && parts.length === 3 ? "service" : views.includes(parts[0]) && parts[0] !== "service" ? parts[0] : "list";
  const before = views.find((id) => !$(id).hidden);
  for (const id of views) $(id).hidden = id !== view;
  for (const id of ["list", "map", "path"]) {
    if (id === view || (id === "list" && view === "service")) $(`nav-${id}`).setAttribute("aria-current", "page");
    else $(`nav-${id}`).removeAttribute("aria-current");
  }
  service.hiddenNow();
  map.hiddenNow();
  if (view === "service") service.shownNow(parts[1], parts[2], query);
  else if (view === "map") map.shownNow(parts.slice(1, 3).join("/"));
  else if (view === "path") path.shownNow(query);
  else list.shownNow();
  if (before !== view) {
    if (view === "list") $("grid").focus();
    else if (view === "path") $("from").focus();
    else $("main").focus();
  }
}

// banner says in one sentence what is wrong, and what helps.
function banner() {
  const { error, advice, warnings } = live.state;
  const lost = live.connection === "lost";
  const lines = [];
  if (lost) lines.push("The page has no connection to fairway page; what it shows is old.", el("span", { class: "remedy" }, "If the command has ended, start it again and open the URL that it prints."));
  else if (error) lines.push(error, advice ? el("span", { class: "remedy" }, advice) : "");
  for (const w of warnings ?? []) lines.push(el("span", { class: "warn" }, w));
  const text = lines.map((l) => l.textContent ?? l).join("\n");
  const box = $("banner");
  if (box.dataset.text !== text) { // a screen reader says it once
    box.dataset.text = text;
    box.replaceChildren(...lines);
  }
  box.hidden = lines.length === 0;
  box.classList.toggle("mild", !lost && !error);
  $("cluster").textContent = live.state.cluster ?? "";
  const status = lost ? ["no connection", "bad"] : error ? ["not live", "bad"] : !live.state.loaded ? ["reading …", "quiet"] : ["live", "good"];
  if ($("live").textContent !== status[0]) $("live").textContent = status[0];
  $("live").className = status[1];
}

// keys: / searches, arrows and Enter choose a Service, Esc goes back.
function keyDown(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const typing = event.target.matches?.("input:not([type=checkbox]), select");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    if ($("list").hidden) location.hash = "#/";
    setTimeout(() => $("search").select());
    return;
  }
  if (!$("list").hidden) {
    const outside = event.target !== $("search") && event.target !== $("grid") && event.target !== document.body && event.target !== $("main");
    if (outside && event.key !== "Escape") return;
    if (list.keyDown(event)) event.preventDefault();
    return;
  }
  if (event.key === "Escape") location.hash = "#/";
}

addEventListener("hashchange", route);
addEventListener("keydown", keyDown);
live.onChange(banner);
list.start();
service.start();
map.start();
path.start();
live.start();
route();
banner();
