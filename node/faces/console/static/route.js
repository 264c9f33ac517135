// Route of a request now: the candidates in order, and the excluded replicas with reasons.

import { get } from "./api.js";
import { badge, h, name, note, number, put, seconds, short, table } from "./dom.js";

export const KINDS = ["chat/completions", "completions", "embeddings", "images/generations", "audio/transcriptions", "audio/speech", "rerank"];

const who = (row) => `${row.name || short(row.node)}${row.cid ? ` (${row.cid})` : ""}`;
const expected = (row) => Object.entries(row.figures || {}).map(([what, value]) => `${what.replaceAll("_", " ")} ${number(value)}`).join(", ") || "–";

const CANDIDATES = [
  { title: "Order", number: true, cell: (row) => number(row.at + 1) },
  { title: "Node", cell: (row) => name(who(row)) },
  { title: "Route", cell: (row) => row.route },
  { title: "Reason", wide: true, cell: (row) => row.why },
  { title: "In flight there", number: true, cell: (row) => number(row.score) },
  { title: "Figures", cell: expected },
  { title: "First byte", number: true, cell: (row) => seconds(row.load?.first_byte) },
  { title: "Circuit", cell: (row) => badge(row.circuit.state === "closed" ? "ok" : "warn", row.circuit.state) },
];
const EXCLUDED = [
  { title: "Node", cell: (row) => name(who(row)) },
  { title: "Reason", wide: true, cell: (row) => row.reason },
  { title: "Retry in", number: true, cell: (row) => (row.retry_in ? seconds(row.retry_in) : "–") },
];

export async function explain(place, model, kind = KINDS[0]) {
  put(place, h("p", { class: "muted" }, "Loading …"));
  try {
    const said = await get(`/api/v1/route?${new URLSearchParams({ model, kind })}`);
    put(place,
      h("div", { class: "head" }, h("h3", {}, "Candidates, in order"), h("span", { class: "muted" }, `policy ${said.policy}`)),
      table("Candidates", CANDIDATES, said.candidates.map((row, at) => ({ ...row, at })), { empty: "No replica can answer now." }),
      said.excluded.length > 0 && [h("h3", { class: "row" }, "Excluded"), table("Excluded", EXCLUDED, said.excluded)]);
  } catch (error) {
    put(place, note(error.message, "bad"));
  }
}
