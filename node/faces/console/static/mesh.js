// The mesh: up to fifty nodes as a graph, more as a matrix; always as a table. Links between other nodes are as they report.

import { get, post } from "./api.js";
import { badge, bytes, facts, figures, h, name, number, put, seconds, short, svg, table } from "./dom.js";
import { busy, called, state, watch } from "./live.js";
import { load } from "./load.js";

const MOST = 50;
const NARROW = 640;
const AGAIN = 10000;
const FORCES = ["d3-dispatch/d3-dispatch", "d3-quadtree/d3-quadtree", "d3-timer/d3-timer", "d3-force/d3-force"];
const LINKS = { direct: "direct", relayed: "through a relay", none: "no connection", self: "this node" };

export function show(place) {
  const top = h("div", {});
  const strays = h("div", {});
  const picture = h("figure", { class: "picture", "aria-label": "The mesh as this node sees it" });
  const detail = h("div", {});
  const rows = h("section", { class: "pane" });
  const machine = { node: "", place: h("div", { class: "beside" }) };
  let chosen = "";
  let placed = new Map();
  let shown = "";
  let told = { links: [], told: [] };
  let hearing = 0;

  // Requested from the nodes only while the picture is visible and has other nodes.
  async function hear() {
    if (document.hidden || state.nodes.length < 3 || state.nodes.length > MOST) return;
    hearing ||= setInterval(hear, AGAIN);
    try {
      told = await get("/api/v1/topology");
    } catch {
      return;
    }
    if (hearing) render();
  }

  function open(node) {
    chosen = chosen === node.node ? "" : node.node;
    render();
    if (chosen) detail.scrollIntoView({ block: "nearest" });
  }

  async function draw() {
    const nodes = [...state.nodes].sort((one, two) => two.self - one.self || label(one).localeCompare(label(two)));
    const others = between(nodes, told.links);
    const now = [...nodes.map((one) => [one.node, one.name, one.state, one.connection, one.models, one.node === chosen].join(" ")), JSON.stringify(others)].join("\n");
    if (now === shown) return;
    shown = now;
    if (nodes.length > MOST) { put(picture, matrix(nodes, open)); return; }
    await load(...FORCES.map((file) => `vendor/${file}.min.js`));
    const width = Math.max(320, Math.round(place.clientWidth));
    const height = (width < NARROW ? 250 : 270) + 9 * Math.max(0, nodes.length - 6);
    placed = layout(nodes, placed, width, height);
    put(picture, drawing(nodes, others, placed, open, chosen, width, height), legend(others));
  }

  function render() {
    const by = (presence) => state.nodes.filter((one) => one.state === presence).length;
    const doubted = by("suspect") + by("unreachable");
    put(top, figures([
      ["nodes alive", number(by("alive"))],
      ...(doubted ? [["suspect or unreachable", number(doubted)]] : []),
      ...(by("lost") ? [["lost", number(by("lost"))]] : []),
      ["replicas", number(state.nodes.filter((one) => one.state !== "lost" && one.state !== "left").reduce((sum, one) => sum + one.models, 0))],
      ["in flight at this node", number(state.underWay.length)],
      ["queued at workers", number(state.nodes.reduce((sum, one) => sum + busy(one, "queued"), 0))],
    ]));
    put(strays, astray(state.bootstrap.filter((one) => !one.answers && one.why), state.handshakes));
    draw();
    if (!hearing) hear();
    const node = state.nodes.find((one) => one.node === chosen);
    if (node && machine.node !== node.node) { machine.node = node.node; look(machine.place, node); }
    if (!node) machine.node = "";
    put(detail, node && about(node, told, machine.place, () => open(node)));
    put(rows, h("h2", {}, "Nodes"), table("Nodes", COLUMNS, [...state.nodes].sort((one, two) => two.self - one.self || label(one).localeCompare(label(two))), {
      open, selected: chosen, key: (one) => one.node, empty: "No nodes yet.",
    }));
  }

  put(place, top, strays, picture, detail, rows);
  if (state.nodes.length) render();
  else put(top, h("p", { class: "empty" }, "Loading …"));
  const wider = new ResizeObserver(() => { shown = ""; draw(); });
  if (state.nodes.length) wider.observe(place);
  const away = watch((what) => { if (what === "nodes") { render(); wider.observe(place); } });
  return () => { clearInterval(hearing); hearing = 0; wider.disconnect(); away(); };
}

const label = (node) => node.name || short(node.node);

const SERVING = ["alive", "draining", "unreachable", "suspect"];

// Connections between other nodes in the picture, without those that are lost or have left.
function between(nodes, links) {
  const there = new Set(nodes.filter((one) => !one.self && SERVING.includes(one.state)).map((one) => one.node));
  return links.filter((link) => there.has(link.one) && there.has(link.other));
}

// Connections of a node, as it reports them; if it reports none, as its peers do.
function peers(node, { links, told }) {
  const names = links.filter((link) => link.one === node.node || link.other === node.node)
    .map((link) => `${called(link.one === node.node ? link.other : link.one)}${link.relayed ? " (through a relay)" : ""}`).sort((one, two) => one.localeCompare(two));
  if (!told.length) return "";
  if (told.includes(node.node)) return names.join(", ") || "no other node";
  return `${names.length ? `${names.join(", ")}, as they report; ` : ""}it does not report its connections`;
}

const ADDRESSES = [
  { title: "Address", cell: (one) => h("span", { class: "mono" }, one.address) },
  { title: "Reason", wide: true, cell: (one) => one.why },
];

// Nodes that fail to connect: addresses that do not answer here, and handshakes of others that failed.
const astray = (silent, failed) => [
  silent.length > 0 && h("section", { class: "pane" }, h("h2", {}, "Addresses that do not answer"), table("Addresses that do not answer", ADDRESSES, silent)),
  failed > 0 && h("p", { class: "muted" }, `${failed === 1 ? "One incoming connection" : `${number(failed)} incoming connections`} failed in the handshake since this node started: the swarm keys differ, only one side has one, or the caller is not a node.`),
];

const COLUMNS = [
  { title: "Node", cell: (one) => name(label(one)) },
  { title: "State", cell: (one) => badge(one.state) },
  { title: "For", number: true, cell: (one) => seconds(one.since) },
  { title: "Reason", cell: (one) => one.why },
  { title: "Connection", cell: (one) => LINKS[one.connection] || one.connection },
  { title: "Round trip", number: true, cell: (one) => (one.round_trip ? seconds(one.round_trip) : "–") },
  { title: "Models", number: true, cell: (one) => number(one.models) },
  { title: "In flight", number: true, cell: (one) => number(busy(one, "in_flight")) },
  { title: "Version", cell: (one) => one.agent.replace("modelvine/", "") || "–" },
];

function about(node, told, shown, close) {
  const rows = node.load || [];
  return h("section", { class: "card pane", "aria-label": `About ${label(node)}` },
    h("div", { class: "head" }, h("h2", {}, label(node)), badge(node.state), h("button", { type: "button", class: "quiet small end", onclick: close }, "Close")),
    facts([
      ["Id", h("span", { class: "mono" }, node.node)],
      ["State", `${node.state} for ${seconds(node.since)}: ${node.why}`],
      ["Standing", node.standing],
      ["Last heard", node.self ? "this node itself" : `${seconds(node.last_heard)} ago`],
      ["Connection", `${LINKS[node.connection] || node.connection}${node.origin ? `, ${node.origin}` : ""}${node.round_trip ? `, round trip ${seconds(node.round_trip)}` : ""}`],
      ["Connected to", peers(node, told)],
      ["Version", node.agent],
      ["Addresses", node.addresses.length ? node.addresses.map((one) => h("div", { class: "mono" }, one)) : ""],
      ["HTTPS", node.links.join(", ")],
    ]),
    shown,
    rows.length > 0 && h("div", { class: "beside" }, table(`Load of ${label(node)}`, LOADS, rows)));
}

// Hardware of a node, fetched when it is opened. That node chooses the shape of its answer, so any field may be missing.
async function look(place, node) {
  const rows = (value) => (Array.isArray(value) ? value.slice(0, 16) : []);
  put(place, h("p", { class: "muted" }, "Loading its hardware …"));
  try {
    const { os, cpu, memory, gpu } = await post("/api/v0/host/info", { node_id: node.node });
    const used = (total, free) => (Number.isFinite(total) && Number.isFinite(free) && total ? `${bytes(total - free)} of ${bytes(total)} used` : "");
    put(place, facts([
      ["System", [os?.platform, os?.platform_version, os?.kernel_arch].filter(Boolean).map(String).join(" ")],
      ["Processor", rows(cpu).map((one) => `${one?.model_name}, ${one?.total_cores} cores`).join("; ")],
      ["Memory", used(memory?.total_physical_bytes, memory?.available_bytes)],
      ["Graphics", rows(gpu).map((one) => [`${one?.vendor} ${one?.product}`, used(one?.vram_total_bytes, one?.vram_total_bytes - one?.vram_used_bytes)].filter(Boolean).join(", ")).join("; ")],
    ]));
  } catch (error) {
    put(place, h("p", { class: "muted" }, `Its hardware is unknown: ${error.message}`));
  }
}

const LOADS = [
  { title: "Model", cell: (row) => name(`${row.project}/${row.model}${row.cid ? ` (${row.cid})` : ""}`) },
  { title: "In flight", number: true, cell: (row) => number(row.in_flight) },
  { title: "Queued", number: true, cell: (row) => number(row.queued) },
  { title: "Slots", number: true, cell: (row) => (row.slots ? `${row.slots}${row.learned ? " (learned)" : ""}` : "–") },
  { title: "Events per second", number: true, cell: (row) => number(row.rate) },
  { title: "First byte", number: true, cell: (row) => seconds(row.first_byte) },
  { title: "Reported", number: true, cell: (row) => (row.age ? `${seconds(row.age)} ago` : "now") },
];

// Place this node in the middle and the others around it, as far apart as there is room.
function layout(nodes, before, width, height) {
  const { d3 } = globalThis;
  const points = nodes.map((one, at) => {
    const known = before.get(one.node);
    const turn = ((at - 0.65) / Math.max(1, nodes.length - 1)) * 2 * Math.PI;
    return { id: one.node, self: one.self, x: known?.fx ?? 160 * Math.cos(turn), y: known?.fy ?? 110 * Math.sin(turn) };
  });
  const own = points.find((one) => one.self);
  if (own) { own.fx = 0; own.fy = 0; }
  const links = own ? points.filter((one) => one !== own).map((one) => ({ source: own, target: one })) : [];
  d3.forceSimulation(points).stop()
    .force("link", d3.forceLink(links).distance(140).strength(0.3))
    .force("apart", d3.forceManyBody().strength(-420))
    .force("room", d3.forceCollide(44))
    .force("x", d3.forceX(0).strength(0.03))
    .force("y", d3.forceY(0).strength(0.07))
    .tick(before.size ? 80 : 240);
  const far = (axis) => Math.max(1, ...points.map((one) => Math.abs(one[axis])));
  const wide = Math.min((width / 2 - 70) / far("x"), 2.2);
  const high = (height / 2 - 48) / far("y");
  return new Map(points.map((one) => [one.id, { fx: one.x, fy: one.y, x: width / 2 + one.x * wide, y: height / 2 - 10 + one.y * Math.min(high, 1.6) }]));
}

function drawing(nodes, others, placed, open, chosen, width, height) {
  const own = nodes.find((one) => one.self);
  const middle = own && placed.get(own.node);
  const apart = others.map((link) => {
    const [one, other] = [placed.get(link.one), placed.get(link.other)];
    return svg("line", { class: link.relayed ? "other relayed" : "other", x1: one.x, y1: one.y, x2: other.x, y2: other.y });
  });
  const lines = nodes.filter((one) => middle && !one.self).map((one) => {
    const to = placed.get(one.node);
    return svg("line", { class: one.connection, x1: middle.x, y1: middle.y, x2: to.x, y2: to.y });
  });
  const circles = nodes.map((one) => {
    const at = placed.get(one.node);
    const words = label(one);
    const cut = words.length > 20 ? `${words.slice(0, 19)}…` : words;
    const models = one.models ? `${one.models} ${one.models === 1 ? "model" : "models"}` : "";
    const count = [one.state === "alive" ? "" : one.state, models].filter(Boolean).join(", ");
    return svg("g", {
      class: `node ${one.state}${one.self ? " self" : ""}`, transform: `translate(${at.x} ${at.y})`, tabindex: "0", role: "button", "data-key": `picture:${one.node}`,
      "aria-pressed": one.node === chosen ? "true" : "false",
      // The visible label comes first, for speech input.
      "aria-label": `${[cut, count].filter(Boolean).join(" ")}${one.state === "alive" ? ", alive" : ""}, ${LINKS[one.connection] || one.connection}${cut === words ? "" : `, ${words}`}`,
      onclick: () => open(one), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(one); } },
    },
    svg("title", {}, `${words}: ${one.state}, ${one.why}`),
    svg("circle", { r: one.self ? 17 : 12 }),
    svg("text", { y: one.self ? 35 : 29 }, cut),
    count && svg("text", { class: "count", y: one.self ? 49 : 43 }, count));
  });
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${nodes.length} nodes` }, apart, lines, circles);
}

function legend(others) {
  const line = (kind, words) => h("span", { class: "legend" }, svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, svg("line", { class: kind, x1: 1, y1: 5, x2: 25, y2: 5 })), words);
  return h("figcaption", {}, line("direct", "direct"), line("relayed", "through a relay"), line("none", "known, not connected"),
    others.length > 0 && line("other", "between other nodes, as reported"),
    badge("alive"), badge("suspect"), badge("draining"), badge("lost"));
}

const matrix = (nodes, open) => h("div", { class: "matrix" }, nodes.map((one) => h("button", {
  type: "button", class: one.state, "data-key": `picture:${one.node}`, title: `${label(one)}: ${one.state}, ${one.why}`, onclick: () => open(one),
}, one.state === "alive" ? label(one) : `${label(one)} · ${one.state}`)));

