// Events: changes of nodes and circuits, and the site's audit log.

import { get } from "./api.js";
import { badge, clock, h, name, note, put, short, table } from "./dom.js";
import { called, state, watch } from "./live.js";

const EVERY = 10000;
const WORDS = { alive: "joined" };

const words = (one) => (one.now === "alive" && one.was && one.was !== "lost" && one.was !== "left" ? "recovered" : WORDS[one.now] || one.now);

// One event each time that failed attempts open a circuit.
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
      { title: "Event", cell: (one) => badge(one.now, one.words || words(one)) },
      { title: "Node", cell: (one) => name(one.name || short(one.node)) },
      { title: "Reason", wide: true, cell: (one) => one.why || "–" },
    ], [...state.events, ...circuits()].sort((one, two) => two.at - one.at).slice(0, 200), { empty: "No events since this node started." }));
  }

  async function look() {
    try {
      const said = await get("/api/v1/audit?number=200");
      put(changes, h("h2", {}, "Audit log"),
        said.faults.length > 0 && note(`The audit log has faults: ${said.faults.join("; ")}`, "bad"),
        table("Audit log", [
          { title: "At", cell: (one) => [new Date(one.at * 1000).toLocaleDateString("en-CA"), " ", clock(one.at)] },
          { title: "Action", cell: (one) => one.action },
          { title: "Target", wide: true, cell: (one) => one.target || "–" },
          { title: "Who", cell: (one) => name(one.who) },
          { title: "Node", cell: (one) => name(state.nodes.find((node) => node.node === one.node)?.name || short(one.node || "")) },
        ], [...said.audit].reverse(), { empty: "No changes yet." }));
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
