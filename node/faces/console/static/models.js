// Models: the replicas of each, and figures of the last hour for each model and machine.

import { get } from "./api.js";
import { chart } from "./charts.js";
import { badge, command, compact, h, name, note, number, put, seconds, short, table, type } from "./dom.js";
import { called, state } from "./live.js";
import { KINDS, explain } from "./route.js";

const EVERY = 10000;
const MOST_SERIES = 8;

export function show(place, me) {
  return me.may.look ? whole(place) : listed(place);
}

function listed(place) {
  get("/v1/models").then((said) => put(place, h("h2", {}, "Models"), table("Models", [
    { title: "Model", cell: (row) => name(row.id) },
    { title: "Project", cell: (row) => name(row.project || row.owned_by || "") },
    { title: "Context", number: true, cell: (row) => (row.context_length ? compact(row.context_length) : "–") },
    { title: "Input", cell: (row) => (row.architecture?.input_modalities || []).join(", ") || "–" },
    { title: "Output", cell: (row) => (row.architecture?.output_modalities || []).join(", ") || "–" },
  ], said.data, { empty: "No models are available to your key." }))).catch((error) => put(place, note(error.message, "bad")));
}

const KEYS = ["requests", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "seconds", "first_seconds", "refused", "queued"];

export function rates(sums) {
  const answered = sums.requests - sums.failed;
  const writing = sums.seconds - sums.first_seconds;
  return {
    first: answered > 0 ? sums.first_seconds / answered : null,
    speed: writing > 0.01 && sums.completion_tokens ? sums.completion_tokens / writing : null,
    cached: sums.prompt_tokens ? sums.cached_tokens / sums.prompt_tokens : null,
  };
}

function rowsOf(nodes, history) {
  const past = new Map(history.map((row) => [`${row.model}\n${row.node}`, row]));
  const rows = nodes.flatMap((node) => node.services.map((service) => {
    const load = (state.nodes.find((one) => one.node === node.node)?.load || []).find((one) => one.model === service.model && one.project === service.project && one.cid === service.cid);
    const sums = past.get(`${service.model}\n${node.node}`) || Object.fromEntries(KEYS.map((one) => [one, 0]));
    return { ...service, node: node.node, who: node.name || short(node.node), state: node.state, load, sums, ...rates(sums) };
  }));
  return rows.sort((one, two) => one.model.localeCompare(two.model) || one.who.localeCompare(two.who));
}

const SLOWER = 3;
const NOTICED = 0.25;

// Sentences about machines whose first token comes much later than on the others that serve the same model.
export function slow(rows) {
  return rows.flatMap((row) => {
    const others = rows.filter((one) => one.model === row.model && one.node !== row.node && one.first !== null).map((one) => one.first);
    const usual = others.sort((one, two) => one - two)[Math.floor(others.length / 2)];
    const answered = row.sums.requests - row.sums.failed;
    if (!others.length || row.first === null || row.first < SLOWER * usual || row.first - usual < NOTICED) return [];
    return [`${row.who} is slow with ${row.model}: its first token takes ${seconds(row.first)} (${answered === 1 ? "one request" : `${number(answered)} requests`}), elsewhere ${seconds(usual)}.`];
  });
}

// An old report does not show the present queue.
const lately = (row) => (row.load && row.load.age <= 5 ? row.load : null);

const percent = (share) => (share === null ? "–" : `${Math.round(share * 100)} %`);

const COLUMNS = [
  { title: "Model", cell: (row) => name(row.model) },
  { title: "Project", cell: (row) => name(row.project) },
  { title: "Machine", cell: (row) => name(`${row.who}${row.cid ? ` (${row.cid})` : ""}`) },
  { title: "State", cell: (row) => (row.health && row.health !== "ok" ? badge("warn", row.health) : badge(row.state)) },
  { title: "Type", cell: (row) => type(row.type) },
  { title: "First token", number: true, cell: (row) => seconds(row.first) },
  { title: "Tokens per second", number: true, cell: (row) => number(row.speed) },
  { title: "In flight", number: true, cell: (row) => number(lately(row)?.in_flight) },
  { title: "Queued", number: true, cell: (row) => number(lately(row)?.queued) },
  { title: "Slots", number: true, cell: (row) => number(row.load?.slots) },
  { title: "Requests", number: true, cell: (row) => number(row.sums.requests) },
  { title: "Failed", number: true, cell: (row) => (row.sums.failed ? h("span", { class: "bad" }, number(row.sums.failed)) : "0") },
  { title: "Refused", number: true, cell: (row) => (row.sums.refused ? h("span", { class: "bad" }, number(row.sums.refused)) : "0") },
  { title: "Longest queue", number: true, cell: (row) => number(row.sums.queued) },
  { title: "Cached", number: true, cell: (row) => percent(row.cached) },
  { title: "Context", number: true, cell: (row) => (row.context ? compact(row.context) : "–") },
];

function whole(place) {
  const rows = h("section", { class: "pane" });
  const detail = h("section", { class: "pane", "aria-live": "polite" });
  let chosen = "";
  let undraw = [];

  async function look() {
    try {
      const [catalog, past] = await Promise.all([get("/api/v1/catalog"), get("/api/v1/history")]);
      const found = rowsOf(catalog.nodes, past.history);
      const unanswered = past.history.filter((row) => row.node === "-").reduce((sum, row) => sum + row.requests, 0);
      put(rows,
        h("div", { class: "head" }, h("h2", {}, "Models"), h("span", { class: "muted" }, `Requests to this node in the last hour${unanswered ? `; no worker answered ${number(unanswered)} of them` : ""}`)),
        [...new Set(slow(found))].map((words) => h("p", { class: "note" }, words)),
        table("Models", COLUMNS, found, { open, selected: chosen, key: (row) => `${row.model}\n${row.node}\n${row.cid}`, empty: "No model is registered yet. Register one under Manage." }));
    } catch (error) {
      put(rows, note(error.message, "bad"));
    }
  }

  async function open(row) {
    chosen = `${row.model}\n${row.node}\n${row.cid}`;
    undraw.forEach((away) => away());
    const route = h("div", {});
    const charts = h("div", { class: "charts" });
    const kind = h("select", { "aria-label": "Kind of request", onchange: () => explain(route, row.model, kind.value) }, KINDS.map((one) => h("option", { value: one, selected: one === (row.type === 3 ? "embeddings" : KINDS[0]) }, one)));
    put(detail, h("div", { class: "card" },
      h("div", { class: "head" }, h("h2", {}, name(row.model)), h("span", { class: "muted" }, "Where would a request go now?"), h("span", { class: "end" }, kind)),
      route, command(["modelvine", "route", row.model]), charts));
    explain(route, row.model, kind.value);
    try {
      const past = await get(`/api/v1/history?${new URLSearchParams({ model: row.model })}`);
      undraw = draw(charts, past);
    } catch (error) {
      put(charts, note(error.message, "bad"));
    }
    detail.scrollIntoView({ block: "nearest" });
  }

  put(place, rows, detail);
  look();
  const timer = setInterval(look, EVERY);
  return () => { clearInterval(timer); undraw.forEach((away) => away()); };
}

function draw(place, past) {
  const busy = [...past.history].sort((one, two) => two.requests - one.requests).slice(0, MOST_SERIES);
  if (!busy.length) { put(place, h("p", { class: "muted" }, "No requests in the last hour.")); return []; }
  const length = busy[0].buckets.length;
  const end = Math.ceil(past.until / past.bucket) * past.bucket;
  const x = busy[0].buckets.map((_, at) => end - (length - at) * past.bucket);
  const each = (what) => busy.map((row) => ({ label: called(row.node), values: row.buckets.map((one) => one[what]) }));
  const of = (value) => busy.map((row) => ({ label: called(row.node), values: row.buckets.map((one) => (one.requests ? value(one) : null)) }));
  const parts = [
    { title: "Requests, each half minute", show: number, series: each("requests") },
    { title: "First token", show: seconds, series: of((one) => rates(one).first) },
    { title: "Tokens per second", show: number, series: of((one) => rates(one).speed) },
    { title: "Longest queue, each half minute", show: number, series: each("queued") },
    { title: "Refused because full, each half minute", show: number, series: each("refused") },
    { title: "Failed, each half minute", show: number, series: each("failed") },
  ];
  return parts.map((part) => {
    const one = h("div", { class: "chart" });
    place.append(one);
    return chart(one, { x, ...part });
  });
}
