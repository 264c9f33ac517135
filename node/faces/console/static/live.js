// Events of the node, one a second: nodes, requests, changes. Panes read `state`, and are notified of changes.

import { ask, eventsOf, get } from "./api.js";

const MOST = 1000;
const AGAIN = [1000, 2000, 5000];

export const state = { nodes: [], bootstrap: [], handshakes: 0, underWay: [], ended: [], events: [], count: 0, processes: 1, at: 0, on: false, tried: 0 };
const watching = new Set();

export function watch(changed) {
  watching.add(changed);
  return () => watching.delete(changed);
}

const tell = (what) => watching.forEach((changed) => changed(what));

async function whole() {
  const [nodes, requests, events] = await Promise.all([get("/api/v1/nodes"), get("/api/v1/requests"), get("/api/v1/node-events")]);
  Object.assign(state, {
    nodes: nodes.nodes, bootstrap: nodes.bootstrap.addresses, handshakes: nodes.handshakes_failed, underWay: requests.under_way, ended: requests.ended, count: requests.count, processes: requests.processes,
    events: events.events, at: Date.now() / 1000,
  });
}

async function take(said) {
  state.at = said.at;
  if (said.nodes) Object.assign(state, { nodes: said.nodes, bootstrap: said.bootstrap.addresses, handshakes: said.handshakes_failed });
  if (said.events) {
    const known = new Set(state.events.map((one) => `${one.at} ${one.node}`));
    state.events = [...said.events.filter((one) => !known.has(`${one.at} ${one.node}`)).reverse(), ...state.events].slice(0, MOST);
  }
  const missed = said.count - state.count;
  const fresh = said.ended.slice(Math.max(0, said.ended.length - missed));
  if (missed < 0 || fresh.length < missed) await whole();
  else state.ended = [...fresh.reverse(), ...state.ended].slice(0, MOST);
  const changed = missed !== 0 || said.under_way.length || state.underWay.length;
  state.underWay = said.under_way;
  state.count = said.count;
  if (said.nodes) tell("nodes");
  if (said.events) tell("events");
  if (changed) tell("requests");
}

export async function follow() {
  for (;;) {
    try {
      await whole();
      const response = await ask("/api/v1/events");
      state.on = true;
      state.tried = 0;
      ["on", "nodes", "requests", "events"].forEach(tell);
      for await (const event of eventsOf(response)) await take(JSON.parse(event));
    } catch (error) {
      if (error.status === 401 || error.status === 403) return tell("refused");
    }
    state.on = false;
    tell("off");
    await new Promise((resume) => { setTimeout(resume, AGAIN[Math.min(state.tried, AGAIN.length - 1)]); });
    state.tried += 1;
  }
}

const FRESH = 5;

// Requests at a node's replicas, from their last reports; `null` if another node has no recent report.
export function busy(node, what) {
  const rows = (node.load || []).filter((row) => row.age <= FRESH);
  return node.self || rows.length ? rows.reduce((sum, row) => sum + row[what], 0) : null;
}

export const called = (node) => {
  const found = state.nodes.find((one) => one.node === node);
  return found?.name || (node === "-" ? "no worker" : node ? `${node.slice(0, 14)}…` : "–");
};
