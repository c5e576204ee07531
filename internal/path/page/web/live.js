// The rows of the list, kept by server-sent events. A hidden page holds no connection, because browsers allow few to one
// server; it asks for the changes since its version when it is shown again.

export const rows = new Map(); // by "namespace/name"
export let state = { loaded: false };
export let connection = "connecting"; // "live", "lost"

const listeners = new Set();
let source = null;
let version = 0;

// onChange calls f after each message with the names of the changed rows; null: all of them.
export function onChange(f) {
  listeners.add(f);
}

function tell(changed) {
  for (const f of listeners) f(changed);
}

function receive(message) {
  const u = JSON.parse(message.data);
  if (u.reset) rows.clear();
  const changed = u.reset ? null : new Set(u.gone ?? []);
  for (const name of u.gone ?? []) rows.delete(name);
  for (const row of u.rows ?? []) {
    const name = `${row.namespace}/${row.name}`;
    row.text = [row.name, row.namespace, row.type, row.finding, ...(row.addresses ?? []), ...(row.ports ?? []), ...(row.announcers ?? [])].join(" ").toLowerCase();
    rows.set(name, row);
    changed?.add(name);
  }
  if (u.state) state = u.state;
  version = u.version;
  connection = "live";
  tell(changed);
}

function open() {
  if (source) return;
  source = new EventSource(`/events?since=${version}`);
  source.onmessage = receive;
  source.onerror = () => {
    connection = "lost";
    if (source.readyState === EventSource.CLOSED) { // refused: the command may have been started again
      close();
      setTimeout(open, 5000);
    }
    tell(new Set());
  };
}

function close() {
  source?.close();
  source = null;
}

export function start() {
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  open();
}
