// Events: what became of nodes, and who changed what at this site.

import { get } from "./api.js";
import { badge, clock, h, name, note, put, short, table } from "./dom.js";
import { called, state, watch } from "./live.js";

const EVERY = 10000;
const WORDS = { alive: "joined", suspect: "doubted", unreachable: "not reached", draining: "drained", lost: "lost", left: "left" };

const words = (one) => (one.now === "alive" && one.was && one.was !== "lost" && one.was !== "left" ? "well again" : WORDS[one.now] || one.now);

// Attempts that found or left a circuit open: one event each time that it opens.
function circuits() {
  const open = new Set();
  const attempts = [...state.underWay, ...state.ended].flatMap((row) => row.failed).sort((one, two) => one.at - two.at);
  return attempts.filter((one) => {
    const replica = `${one.node} ${one.model} ${one.cid}`;
    const opens = one.circuit === "open" && !open.has(replica);
    if (one.circuit === "open") open.add(replica);
    else open.delete(replica);
    return opens;
  }).map((one) => ({ at: one.at, node: one.node, name: called(one.node), now: "lost", words: `circuit of ${one.model} opened`, why: `${one.error}: ${one.why}` }));
}

export function show(place, me) {
  const nodes = h("section", { class: "pane" });
  const changes = h("section", { class: "pane" });

  function render() {
    put(nodes, h("h2", {}, "Nodes and workers"), table("Events of nodes", [
      { title: "At", cell: (one) => clock(one.at) },
      { title: "What", cell: (one) => badge(one.now, one.words || words(one)) },
      { title: "Node", cell: (one) => name(one.name || short(one.node)) },
      { title: "Because", wide: true, cell: (one) => one.why || "–" },
    ], [...state.events, ...circuits()].sort((one, two) => two.at - one.at).slice(0, 200), { empty: "Nothing has happened since this node's start." }));
  }

  async function look() {
    try {
      const said = await get("/api/v1/audit?number=200");
      put(changes, h("h2", {}, "Changes by people"),
        said.faults.length > 0 && note(`The audit log has faults: ${said.faults.join("; ")}`, "bad"),
        table("Changes by people", [
          { title: "At", cell: (one) => [new Date(one.at * 1000).toLocaleDateString("en-CA"), " ", clock(one.at)] },
          { title: "What", cell: (one) => one.action },
          { title: "Of what", wide: true, cell: (one) => one.target || "–" },
          { title: "Who", cell: (one) => name(one.who) },
          { title: "At node", cell: (one) => name(state.nodes.find((node) => node.node === one.node)?.name || short(one.node || "")) },
        ], [...said.audit].reverse(), { empty: "Nobody has changed anything yet." }));
    } catch (error) {
      put(changes, note(error.message, "bad"));
    }
  }

  put(place, nodes, me.may.change && changes);
  render();
  if (me.may.change) look();
  const timer = me.may.change && setInterval(look, EVERY);
  const away = watch((what) => (what === "events" || what === "requests") && render());
  return () => { away(); clearInterval(timer); };
}
