// Elements without HTML text: whatever a name of the cluster has in it stays text.

// el makes an element. Properties that start with "on" are listeners, others are attributes; null and false leave one out.
export function el(tag, props = {}, ...children) {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else e.setAttribute(key, value === true ? "" : String(value));
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

// table makes a table that becomes a list of cards on a narrow screen. cells may be texts or elements.
export function table(label, heads, rows, rowClass = () => null) {
  return el("div", { class: "scroll" }, el("table", { class: "stack", "aria-label": label },
    el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, rows.map((cells, i) => el("tr", { class: rowClass(i) },
      cells.map((c, j) => el("td", { "data-label": heads[j] }, c ?? "")))))));
}

// ago returns how long ago a time was, as kubectl writes ages.
export function ago(time) {
  if (!time) return "";
  const s = Math.max(0, Math.round((Date.now() - Date.parse(time)) / 1000));
  if (s < 120) return `${s}s`;
  if (s < 7200) return `${Math.floor(s / 60)}m`;
  if (s < 172800) return `${Math.floor(s / 3600)}h`;
  return `${Math.floor(s / 86400)}d`;
}
