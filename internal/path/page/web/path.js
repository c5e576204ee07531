// "Ask for a path": the form, and the answer as it arrives.

import { el, table } from "./dom.js";
import { rows, state } from "./live.js";
import { finding } from "./service.js";

const $ = (id) => document.getElementById(id);
const offered = 20; // suggestions
const words = { accepted: "leaves the cluster", delivered: "delivered", refused: "refused", dropped: "dropped", unresolved: "the name has no address", sometimes: "some endpoints get it, some do not" };
const good = (s) => s === "accepted" || s === "delivered";
const mark = (s) => (good(s) ? ["✓", "good", "passes"] : s === "sometimes" ? ["!", "warn", "sometimes"] : ["✗", "bad", "fails"]);
let request = null;

export function shownNow(query) {
  document.title = "Ask for a path · Fairway";
  for (const id of ["from", "to"]) if (query.get(id)) $(id).value = query.get(id);
}

function offer(id, all) {
  const text = $(id).value.toLowerCase();
  const some = [];
  for (const one of all) {
    if (one.toLowerCase().includes(text) && one !== $(id).value) some.push(one);
    if (some.length === offered) break;
  }
  $(`${id}-list`).replaceChildren(...some.map((value) => el("option", { value })));
}

// ask sends a question. The answer is lines of JSON; the last one with a path counts.
async function ask(prove) {
  if (!$("ask").reportValidity()) return;
  request?.abort();
  const mine = (request = new AbortController());
  const question = { from: $("from").value.trim(), to: $("to").value.trim(), prove };
  history.replaceState(null, "", `#/path?${new URLSearchParams({ from: question.from, to: question.to })}`);
  const box = $("answer");
  const log = el("ol", { class: "log mono", tabindex: 0, "aria-label": "What the nodes see" });
  const wait = el("p", { class: "quiet" }, prove ? "Predicting, then sending a probe …" : "Predicting …");
  const shown = el("div");
  box.replaceChildren(wait, shown);
  const receive = (a) => {
    if (a.error) shown.append(el("ul", { class: "findings fatal" }, finding(a.error, a.advice)));
    if (a.path) {
      shown.replaceChildren(...draw(a.path, a.policies ?? []));
      if (prove) wait.textContent = "Predicted. Waiting for the probe …";
    }
    if (a.seen) {
      if (!log.isConnected) box.append(el("h2", {}, "What the nodes see"), log);
      log.append(el("li", {}, `${a.seen.node}  ${a.seen.text}`));
      log.scrollTop = log.scrollHeight;
    }
  };
  for (const b of $("ask").querySelectorAll("button")) b.disabled = true;
  try {
    const answer = await fetch("/path", { method: "POST", signal: mine.signal, body: JSON.stringify(question),
      headers: { "Content-Type": "application/json", "X-Fairway-Token": document.querySelector("meta[name=fairway-token]").content } });
    let rest = "";
    const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await text.read(); !part.done; part = await text.read()) {
      const lines = (rest + part.value).split("\n");
      rest = lines.pop();
      for (const line of lines) receive(line.startsWith("{") ? JSON.parse(line) : { error: line });
    }
    if (rest) receive(rest.startsWith("{") ? JSON.parse(rest) : { error: rest });
  } catch (e) {
    if (e.name !== "AbortError") receive({ error: "fairway page does not answer", advice: "see whether the command still runs" });
  }
  wait.remove();
  for (const b of $("ask").querySelectorAll("button")) b.disabled = false;
}

function draw(p, policies) {
  const end = p.verdict.observed || p.verdict.predicted;
  const [sign, css] = mark(end);
  const from = p.from.kind === "Outside" ? "outside" : [p.from.ns, p.from.name].filter(Boolean).join("/");
  const differs = p.verdict.agree === false;
  let verdict = `${sign} ${words[end]}`;
  if (differs) verdict += end === p.verdict.predicted ? ", by another way than predicted" : `, predicted: ${words[p.verdict.predicted]}`;
  if (p.probe?.millis && end === "delivered") verdict += `, ${p.probe.millis} ms`;
  return [
    el("p", { class: "verdict" }, `${from} ${p.from.ip ?? ""} → ${p.to.service ?? p.to.asked} ${p.to.key ?? ""} `, el("span", { class: css }, verdict)),
    p.findings.length ? el("ul", { class: `findings${p.findings.some((f) => f.level === "fatal") ? " fatal" : ""}` }, p.findings.map((f) => finding(f.text, f.advice))) : null,
    p.notProved ? el("p", { class: "warn" }, `Not proved: ${p.notProved}`) : null,
    el("p", { class: "quiet" }, p.verdict.observed ? "Green steps were seen, grey ones are predicted, red ones differ." : "Predicted from the objects; no packet was sent."),
    el("ol", { class: "steps", "aria-label": "Steps" }, p.steps.map((s) => drawStep(s, p))),
    p.reply.length ? [el("h2", {}, "Reply"), el("ol", { class: "steps", "aria-label": "Reply" }, p.reply.map((s) => drawStep(s, p)))] : null,
    p.candidates.length ? [el("h2", {}, "Endpoints"), table("Endpoints", ["Endpoint", "Pod", "Node", "Used", "Share"], p.candidates.map((c) => [
      el("span", { class: "mono" }, `${c.followed ? "▸ " : ""}${c.addr}`), c.pod ?? "", c.node ?? "",
      el("span", { class: c.kept && !c.denied ? "good" : "warn" }, c.denied ? `denied by ${c.denied}` : c.kept ? "yes" : `no: ${c.reason}`),
      c.share > 0 ? `${Math.round(c.share * 1000) / 10} %` : ""]))] : null,
    p.hops?.length ? [el("h2", {}, "Hops of the probe"), table("Hops of the probe", ["Node", "In", "Out", "TTL", "Seen", "Predicted"], p.hops.map((h) => [
      h.node, h.in ?? "", h.out ?? "", h.ttl || "", el("span", { class: h.observed && h.agree ? "good" : "bad" }, h.observed ? `${h.observed.src} → ${h.observed.dst}` : "not seen"),
      h.predicted ? `${h.predicted.src} → ${h.predicted.dst}` : "not on the way"]))] : null,
    policies.length ? drawPolicies(policies) : null,
    p.notLooked?.length ? el("p", { class: "quiet" }, `Not looked at: ${p.notLooked.join("; ")}`) : null,
  ].flat(2).filter(Boolean);
}

function drawStep(s, p) {
  const [sign, css, word] = mark(s.state);
  const lane = { dns: "name", service: "service" }[s.kind] ?? s.node ?? "";
  const kind = s.predicted && s.predicted.state !== s.state ? "differs" : s.observed ? "seen" : "guess";
  const refs = (s.refs ?? []).map((r) => (r.kernel ? kernelName(r) : `${r.api} ${[r.ns, r.name].filter(Boolean).join("/")}${r.field ? ` ${r.field}` : ""}`));
  const moved = s.after ? `${s.before ? `${s.before.src} → ${s.before.dst}  ⇒  ` : ""}${s.after.src} → ${s.after.dst}` : "";
  const more = [moved, ...refs].filter(Boolean).join(" · ");
  return el("li", { class: p.verdict.observed ? kind : null },
    el("span", { class: "lane" }, lane), el("span", { class: `mark ${css}`, role: "img", "aria-label": word }, sign),
    el("span", {}, s.text), el("span", { class: "detail quiet" }, s.detail ?? ""), more ? el("span", { class: "more mono" }, more) : null);
}

// kernelName names an object of the kernel. Its text may begin with the name that its table ends with.
function kernelName(r) {
  const place = [r.table, r.chain].filter(Boolean).join(" ");
  const last = place.split(" ").pop();
  const text = r.text ?? "";
  return `${place} ${last && text.startsWith(last) ? text.slice(last.length) : text}`.trim();
}

// drawPolicies shows what the policies of both ends say, as fairway policy does.
function drawPolicies(all) {
  const rows = all.flatMap((e) => [e.egress, e.ingress].filter(Boolean)).map((f) => [
    f.pod, `${f.direction} ${f.direction === "egress" ? "to" : "from"} ${f.peer}`,
    el("span", { class: f.allowed ? "good" : "bad" }, f.allowed ? "allowed" : "denied"),
    f.rule ? ruleName(f.rule) : f.isolatedBy?.length ? `isolated by ${f.isolatedBy.join(", ")}` : "no policy",
    [...(f.peerOnly ?? []).map((r) => `${ruleName(r)} includes the peer, but not the port`), ...(f.portOnly ?? []).map((r) => `${ruleName(r)} includes the port, but not the peer`)].join("; ")]);
  return [el("h2", {}, "Policies"), table("Policies", ["Pod", "Direction", "Decision", "By", "Nearly"], rows)];
}

const ruleName = (r) => r.text;

export function start() {
  $("ask").addEventListener("submit", (e) => { e.preventDefault(); ask(false); });
  $("prove").addEventListener("click", () => ask(true));
  $("from").addEventListener("input", () => offer("from", ["outside", ...(state.nodes ?? []).map((n) => `node/${n}`)]));
  $("to").addEventListener("input", () => offer("to", [...[...rows.keys()].map((n) => `svc/${n}`)]));
}
