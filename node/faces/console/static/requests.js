// Requests in flight, and the last thousand. A click on one shows its attempts and how it was routed.

import { post } from "./api.js";
import { badge, bytes, clock, facts, field, h, name, note, number, put, seconds, table } from "./dom.js";
import { called, state, watch } from "./live.js";
import { KINDS, explain } from "./route.js";

const SHOWN = 200;

const outcome = (row) => {
  if (!row.status) return badge("ok", "in flight");
  if (row.status === 499) return badge("warn", "disconnected");
  return badge(row.status < 400 ? "alive" : "failed", String(row.status));
};

const tokens = (row) => (row.tokens && row.node !== "-" ? `${row.tokens.estimated ? "~" : ""}${number(row.tokens.prompt)} + ${number(row.tokens.completion)}` : "–");

const columns = (keys) => [
  { title: "Started", cell: (row) => clock(row.at) },
  { title: "Model", cell: (row) => name(row.model) },
  { title: "Outcome", cell: outcome },
  { title: "Answered by", cell: (row) => name(row.node === "-" ? "–" : called(row.node)) },
  { title: "Route", cell: (row) => (row.route === "-" ? "–" : row.route) },
  { title: "Attempts", number: true, cell: (row) => number(row.attempts) },
  { title: "First byte", number: true, cell: (row) => seconds(row.first) },
  { title: "Duration", number: true, cell: (row) => seconds(row.seconds) },
  { title: "Tokens", number: true, cell: tokens },
  { title: "Kind", cell: (row) => row.kind },
  ...(keys ? [{ title: "Key", cell: (row) => name(row.key || (row.for_node ? "another node" : "–")) }] : []),
];

export function show(place, me) {
  const filter = field("Find", { type: "search", placeholder: "model, node, id or status", oninput: () => render() });
  const only = field("Show", { onchange: () => render() }, { options: [["", "all"], ["failed", "failed"], ["slow", "slowest first"]] });
  const running = h("section", { class: "pane" });
  const detail = h("section", { class: "pane", "aria-live": "polite" });
  const ended = h("section", { class: "pane" });
  let chosen = "";
  let route = null;
  let shown = "";

  function matches(row) {
    const wanted = filter.querySelector("input").value.trim().toLowerCase();
    const kind = only.querySelector("select").value;
    if (kind === "failed" && row.status < 400) return false;
    return !wanted || [row.model, row.id, called(row.node), String(row.status), row.key || "", row.kind].some((text) => text.toLowerCase().includes(wanted));
  }

  function open(row) {
    chosen = row.id;
    route = h("div", { class: "beside" });
    shown = "";
    render();
    detail.scrollIntoView({ block: "nearest" });
  }

  // The details of a request in flight are updated while they are open.
  function follow() {
    const row = [...state.underWay, ...state.ended].find((one) => one.id === chosen);
    const now = row && [row.id, row.at, row.status, row.node, row.attempts, row.failed.length, row.excluded.length].join(" ");
    if (!row || now === shown) return;
    shown = now;
    put(detail, about(row, route, me.may.change, () => { chosen = ""; put(detail); render(); }));
  }

  function render() {
    follow();
    const options = { open, selected: chosen, key: (row) => row.id };
    put(running, h("h2", {}, `In flight: ${state.underWay.length}`), state.underWay.length > 0 && table("In flight", columns(me.may.change), state.underWay.filter(matches), options));
    let rows = state.ended.filter(matches);
    if (only.querySelector("select").value === "slow") rows = [...rows].sort((one, two) => two.seconds - one.seconds);
    const more = rows.length > SHOWN ? `, of which ${SHOWN} are shown` : "";
    put(ended,
      h("div", { class: "head" }, h("h2", {}, "Ended"), h("span", { class: "muted" }, `${number(rows.length)} of the last ${number(state.ended.length)}${more}; ${number(state.count)} since the start`)),
      state.processes > 1 && note(`This node has ${state.processes} processes; those of the first one are shown.`),
      table("Ended", columns(me.may.change), rows.slice(0, SHOWN), { ...options, empty: "No requests yet." }));
  }

  put(place, h("div", { class: "filters pane" }, filter, only), running, detail, ended);
  render();
  return watch((what) => what === "requests" && render());
}

const FAILED = [
  { title: "At", cell: (one) => clock(one.at) },
  { title: "Node", cell: (one) => name(`${called(one.node)}${one.cid ? ` (${one.cid})` : ""}`) },
  { title: "Error", cell: (one) => one.error },
  { title: "Why", wide: true, cell: (one) => one.why },
  { title: "After", number: true, cell: (one) => seconds(one.seconds) },
  { title: "Circuit", cell: (one) => badge(one.circuit === "open" ? "failed" : "ok", one.circuit || "–") },
];

const DOUBTS = { unreachable: "unreachable", ejected: "circuit open", suspect: "suspect", held_back: "slow start", tight: "context may be too short" };

const CONSIDERED = [
  { title: "Node", cell: (one) => name(called(one.node)) },
  { title: "Replica", cell: (one) => name(`${one.project}${one.cid ? ` (${one.cid})` : ""}`) },
  { title: "In flight", number: true, cell: (one) => number(one.expected) },
  { title: "Slots", number: true, cell: (one) => (one.slots ? number(one.slots) : "–") },
  { title: "Cached", number: true, cell: (one) => (one.cached ? `${number(one.cached)} KB` : "–") },
  { title: "Tried late because", cell: (one) => one.doubts.map((doubt) => DOUBTS[doubt]).join(", ") || "–" },
];

const EXCLUDED = [
  { title: "Node", cell: (one) => name(called(one.node)) },
  { title: "Replica", cell: (one) => name(`${one.project}/${one.model}${one.cid ? ` (${one.cid})` : ""}`) },
  { title: "Reason", wide: true, cell: (one) => one.reason },
];

async function cancel(row, said) {
  try {
    await post(`/api/v1/requests/${encodeURIComponent(row.id)}/cancel`);
    put(said, "Cancelled: the caller was disconnected, and the worker stops.");
  } catch (error) {
    put(said, h("span", { class: "bad" }, error.message));
  }
}

function about(row, route, mayChange, close) {
  const said = h("p", { class: "said", role: "status" });
  const hops = row.route === "direct" || row.route === "relay" ? `one hop, ${row.route === "relay" ? "through a relay" : "direct"}` : row.route === "local" ? "none: a worker of this machine" : "";
  return h("div", { class: "card" },
    h("div", { class: "head" }, h("h2", {}, name(row.model)), outcome(row), h("button", { type: "button", class: "quiet small end", onclick: close }, "Close")),
    facts([
      ["Id", h("span", { class: "mono" }, row.id)],
      ["Started", clock(row.at)],
      ["Kind", row.kind],
      ["Requested by", row.for_node ? "another node" : row.key || ""],
      ["Answered by", row.node === "-" ? "no worker" : `${called(row.node)} (${row.node})`],
      ["Replica", row.project && `${row.project}/${row.model}${row.cid ? ` (${row.cid})` : ""}`],
      ["When chosen", row.expected === null ? "" : `about ${number(row.expected)} in flight${row.considered.length > 1 ? `, first of ${row.considered.length} candidates` : ""}`],
      ["Hops", hops],
      ["Attempts", number(row.attempts)],
      ["First byte", row.first ? `after ${seconds(row.first)}` : ""],
      ["Duration", seconds(row.seconds)],
      ["Tokens", row.tokens ? `${number(row.tokens.prompt)} input, ${number(row.tokens.cached)} of them cached; ${number(row.tokens.completion)} output${row.tokens.estimated ? " (estimated)" : ""}` : ""],
      ["Bytes", `${bytes(row.taken)} in, ${bytes(row.sent)} out`],
      ["Error", row.failure],
    ]),
    row.considered.length > 1 && h("div", {}, h("h3", { class: "row" }, "Candidates then, in order"), table("Candidates then", CONSIDERED, row.considered)),
    row.excluded.length > 0 && h("div", {}, h("h3", { class: "row" }, "Excluded then"), table("Excluded then", EXCLUDED, row.excluded)),
    row.failed.length > 0 && h("div", {}, h("h3", { class: "row" }, "Failed attempts"), table("Failed attempts", FAILED, row.failed)),
    h("div", { class: "row" }, h("button", { type: "button", class: "quiet", onclick: () => explain(route, row.model, KINDS.includes(row.kind) ? row.kind : KINDS[0]) }, "Explain the route now"),
      mayChange && !row.status && !row.for_node && h("button", { type: "button", class: "danger", onclick: () => cancel(row, said) }, "Cancel request")),
    said, route);
}
