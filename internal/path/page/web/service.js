// One Service: its addresses, its endpoints with reasons, its announcers, policies and events.

import { ago, el, table } from "./dom.js";
import { onChange, state } from "./live.js";

const $ = (id) => document.getElementById(id);
const refresh = 30000; // milliseconds: announcers, policies and events have no events of their own
let now = null; // { name, node, from }
let request = null;
let timer = 0;

const percent = (share) => `${Math.round(share * 1000) / 10} %`;

// shownNow shows a Service. parts are the decoded parts of the URL.
export function shownNow(namespace, name, query) {
  now = { name: `${namespace}/${name}`, node: query.get("node") ?? "", from: query.get("from") || "pod" };
  document.title = `${now.name} · Fairway`;
  $("service-title").textContent = now.name;
  $("service-body").replaceChildren(el("p", { class: "quiet" }, "Reading …"));
  load();
}

export function hiddenNow() {
  now = null;
  request?.abort();
  clearTimeout(timer);
}

async function load() {
  clearTimeout(timer);
  request?.abort();
  const mine = (request = new AbortController());
  let view, failed;
  try {
    const answer = await fetch(`/service.json?${new URLSearchParams(now)}`, { signal: mine.signal });
    const body = await answer.json();
    if (answer.ok) view = body;
    else failed = body;
  } catch (e) {
    if (e.name === "AbortError") return;
    failed = { error: "fairway page does not answer", advice: "see whether the command still runs" };
  }
  if (mine.signal.aborted || !now) return;
  if (failed) $("service-body").replaceChildren(el("ul", { class: "findings fatal", role: "alert" }, finding(failed.error, failed.advice)));
  else draw(view);
  timer = setTimeout(() => now && load(), refresh);
}

export function finding(text, advice) {
  return el("li", {}, text, advice ? el("span", { class: "remedy" }, advice) : null);
}

// choose changes the place of the client. The URL has it.
function choose(key, value) {
  const query = new URLSearchParams({ node: now.node, from: now.from });
  query.set(key, value);
  const [namespace, name] = now.name.split("/");
  location.replace(`#/service/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}?${query}`);
}

function select(label, key, value, options) {
  return el("label", {}, label, " ", el("select", { id: `service-${key}`, onchange: (e) => choose(key, e.target.value) },
    options.map(([v, text]) => el("option", { value: v, selected: v === value }, text))));
}

function draw(v) {
  const focused = document.activeElement?.id;
  const s = v.service;
  const body = [
    el("ul", { class: "facts" },
      [["Type", s.type], ["Addresses", (s.addresses ?? []).join(", ") || "none"], ["Ports", (s.ports ?? []).join(", ") || "none"],
        ["Endpoints ready", `${s.ready} of ${s.endpoints}`], ["Selector", v.selector || "none"]]
        .map(([k, t]) => el("li", {}, el("span", { class: "quiet" }, `${k} `), t))),
    v.findings?.length ? el("ul", { class: "findings" }, v.findings.map((f) => finding(f))) : null,
    v.unread?.length ? el("ul", { class: "findings fatal" }, v.unread.map((f) => finding(f))) : null,
    el("div", { class: "controls" },
      select("Packets from a", "from", v.from, [["pod", "pod"], ["node", "node's own process"], ["outside", "client outside"]]),
      state.nodes?.length ? select("on", "node", v.node, state.nodes.map((n) => [n, n])) : null,
      el("a", { href: `#/path?${new URLSearchParams({ to: `svc/${now.name}` })}` }, "Ask for a path to it"),
      el("a", { href: `#/map/${now.name.split("/").map(encodeURIComponent).join("/")}` }, "Who talks to it")),
    ...v.groups.flatMap((g, i) => drawGroup(g, i)),
    v.announced ? drawAnnounced(v.announced) : null,
    drawPolicies(v.policies),
    drawEvents(v.events),
  ];
  $("service-body").replaceChildren(...body.flat().filter(Boolean));
  if (focused?.startsWith("service-")) $(focused)?.focus();
}

function drawGroup(g, i) {
  const fronts = g.frontends.length === 0 ? [] : [
    el("h2", {}, i === 0 ? "Addresses" : "More addresses"),
    table("Addresses", ["Address", "Kind", "Action", "Source at endpoints", "Options"], g.frontends.map((f) => [
      el("span", { class: "mono" }, f.address + (f.port ? ` (${f.port})` : "")), f.kind + (f.servedAt?.length ? ` at ${f.servedAt.join(", ")}` : ""),
      el("span", { class: f.action === "forward" ? "good" : "bad" }, f.action + (f.reason && f.action !== "forward" ? `: ${f.reason}` : "")), f.source ?? "", (f.options ?? []).join(", ")])),
  ];
  const ends = g.endpoints.length === 0 ? el("p", { class: "quiet" }, "No endpoints.")
    : table("Endpoints", ["Endpoint", "Pod", "Node", "Used", "Share", "Health"], g.endpoints.map((e) => [
      el("span", { class: "mono" }, e.address), e.pod ?? "", e.node ?? "",
      el("span", { class: e.used ? "good" : "warn" }, e.used ? "yes" : `no: ${e.reason}`),
      e.share > 0 ? el("span", {}, el("meter", { value: e.share, min: 0, max: 1, "aria-label": `share of ${e.address}` }), ` ${percent(e.share)}`) : "",
      el("span", { class: e.health === "ready" ? "" : "warn" }, e.health)]), (j) => (g.endpoints[j].used ? null : "out"));
  return [...fronts, el("h2", {}, "Endpoints"), ends, g.more ? el("p", { class: "quiet" }, `and ${g.more} more`) : null];
}

function drawAnnounced(all) {
  const rows = all.flatMap((a) => [
    ...a.by.map((x) => [a.address, x.node, x.protocol, ago(x.since), (x.through ?? []).join(", ")]),
    ...(a.by.length ? [] : [[a.address || "pending", el("span", { class: "bad" }, `nobody: ${a.reason ?? ""}`), "", "", ""]]),
  ]);
  const elsewhere = all.flatMap((a) => a.elsewhere.map((x) => el("li", {}, `${a.address} ${x.protocol} ${x.node}${x.through ? ` to ${x.through.join(", ")}` : ""}: ${x.reason}`)));
  return [
    el("h2", {}, "Who announces it"), table("Who announces it", ["Address", "Node", "Protocol", "Since", "Interfaces or peers"], rows),
    elsewhere.length ? el("details", {}, el("summary", {}, `Why not elsewhere (${elsewhere.length})`), el("ul", {}, elsewhere)) : null,
  ];
}

function drawPolicies(p) {
  const rows = p.selecting.map((x) => [x.tier ? `${x.name} (${x.tier})` : x.name, x.direction, `${x.pods} of ${p.pods} pods`]);
  return [
    el("h2", {}, "Policies of its pods"),
    p.notEnforced ? el("p", { class: "warn" }, `Not enforced: ${p.notEnforced}`) : null,
    rows.length ? table("Policies", ["Policy", "Direction", "Selects"], rows)
      : el("p", { class: "quiet" }, p.pods ? "No policy selects its pods: all is allowed." : "No pods are known."),
  ];
}

function drawEvents(all) {
  return [
    el("h2", {}, "Events"),
    all.length ? table("Events", ["Last seen", "Type", "Reason", "Message"], all.map((e) => [
      ago(e.time) + (e.count > 1 ? ` (x${e.count})` : ""), el("span", { class: e.type === "Warning" ? "warn" : "" }, e.type), e.reason, e.message]))
      : el("p", { class: "quiet" }, "No events."),
  ];
}

export function start() {
  onChange((changed) => {
    if (now && changed?.has(now.name)) load();
  });
}
