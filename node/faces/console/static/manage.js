// Forms that change this node. Each shows the equivalent command.

import { get, post } from "./api.js";
import { badge, command, field, h, name, note, number, put, svg, table, TYPES } from "./dom.js";
import { state, watch } from "./live.js";

const TYPE_WORDS = TYPES.map((words, at) => [String(at), words]);
const ROLES = [["user", "user: uses models"], ["viewer", "viewer: also reads status"], ["operator", "operator: also changes the node"]];

export function show(place, me) {
  const registered = unregister(me);
  const parts = [register(registered.look), attach(registered.look), registered, draining(me)];
  const keys = keysOf();
  put(place, h("div", { class: "cards pane" }, parts.map((part) => part.card)), keys.card);
  return () => [...parts, keys].forEach((part) => part.away?.());
}

// A form: its fields, the equivalent command, and the node's answer.
function form(title, words, fields, { button, danger, line, send }) {
  const said = h("p", { class: "said", role: "status" });
  const shown = h("div", {});
  const ready = h("button", { class: danger && "danger" }, button);
  const read = () => Object.fromEntries(new FormData(element));
  const show = () => put(shown, command(line(read())));
  const element = h("form", {
    oninput: show, onchange: show,
    onsubmit: async (event) => {
      event.preventDefault();
      ready.disabled = true;
      put(said, "…");
      try { put(said, await send(read())); }
      catch (error) { put(said, h("span", { class: "bad" }, error.message)); }
      ready.disabled = false;
    },
  }, h("div", { class: "fields" }, fields), h("div", { class: "row" }, ready), said, shown);
  show();
  return { element, card: h("section", { class: "card" }, h("h2", {}, title), words && h("p", { class: "muted pane" }, words), element), show };
}

const flag = (name_, value) => (value ? [name_, value] : []);

function register(done) {
  return form("Register a model", "A worker on this node's machine. Registrations survive restarts.", [
    field("Project", { name: "project", required: true }),
    field("Model", { name: "model", required: true }, { hint: "name that clients use" }),
    field("Worker", { name: "api", required: true, full: true, placeholder: "http://127.0.0.1:8080/v1/chat/completions", inputmode: "url" }),
    field("Type", { name: "type" }, { options: TYPE_WORDS }),
    field("Concurrent requests", { name: "capacity", inputmode: "numeric", pattern: "[0-9]*" }, { hint: "empty: learned" }),
    field("Worker model", { name: "worker_model" }, { hint: "if different" }),
    field("Replica", { name: "cid" }, { hint: "if there are several" }),
  ], {
    button: "Register",
    line: (said) => ["modelvine", "register", said.project || "PROJECT", said.model || "MODEL", said.api || "URL",
      ...(said.type !== "0" ? flag("--type", TYPES[said.type].replace(" ", "-")) : []), ...flag("--capacity", said.capacity), ...flag("--worker-model", said.worker_model), ...flag("--cid", said.cid)],
    send: async (said) => {
      const body = { project: said.project, model: said.model, api: said.api, type: Number(said.type), cid: said.cid, worker_model: said.worker_model };
      if (said.capacity) body.capacity = Number(said.capacity);
      const answer = await post("/api/v0/ai/model/register", body);
      done();
      return [`Registered ${said.project}/${said.model}. `, ...(answer.warnings || [])];
    },
  });
}

function attach(done) {
  return form("Attach a worker", "Detects the worker at an address, and registers its models. The command also monitors the worker.", [
    field("Worker", { name: "api", required: true, full: true, placeholder: "http://127.0.0.1:8080", inputmode: "url" }),
    field("Project", { name: "project", value: "local" }),
  ], {
    button: "Detect and register",
    line: (said) => ["modelvine", "attach", said.api || "URL", ...flag("--project", said.project)],
    send: async (said) => {
      const { found, tried } = await post("/api/v1/recognise", { api: said.api });
      if (!found) return h("span", { class: "bad" }, `No supported protocol was detected. ${(tried || []).map((one) => `${one.dialect}: ${one.came}`).join("; ")}`);
      if (!found.models.length) return `It speaks ${found.dialect}, but lists no models: register them one by one.`;
      for (const model of found.models) {
        await post("/api/v0/ai/model/register", { project: model.project || said.project, model: model.name, api: model.api || found.api, dialect: found.dialect, type: model.type ?? 0, cid: new URL(said.api).port });
      }
      done();
      return `It speaks ${found.dialect}. Registered: ${found.models.map((one) => one.name).join(", ")}`;
    },
  });
}

function unregister(me) {
  const choice = field("Model", { name: "what", required: true, full: true }, { options: [] });
  const select = choice.querySelector("select");
  let rows = [];
  async function look() {
    const { nodes } = await get("/api/v1/catalog").catch(() => ({ nodes: [] }));
    const own = nodes.find((one) => one.node === me.node);
    rows = own?.services || [];
    const before = select.value;
    select.replaceChildren(...rows.map((one, at) => h("option", { value: String(at) }, `${one.project}/${one.model}${one.cid ? ` (${one.cid})` : ""}`)));
    if (rows[before]) select.value = before;
    if (!rows.length) select.append(h("option", { value: "" }, "no models registered here"));
    made.show();
  }
  const made = form("Unregister a model", "Other nodes stop sending requests for it at once; requests in flight are answered.", [choice], {
    button: "Unregister",
    danger: true,
    line: (said) => { const one = rows[said.what]; return ["modelvine", "unregister", one?.project || "PROJECT", one?.model || "MODEL", ...flag("--cid", one?.cid)]; },
    send: async (said) => {
      const one = rows[said.what];
      if (!one) return "There is nothing to unregister.";
      await post("/api/v0/ai/model/unregister", { project: one.project, model: one.model, cid: one.cid, type: one.type });
      look();
      return `Unregistered ${one.project}/${one.model}.`;
    },
  });
  look();
  return { ...made, look };
}

function draining(me) {
  const card = h("section", { class: "card" });
  const said = h("p", { class: "said", role: "status" });
  let before = "";
  async function change(what) {
    try { put(said, `This node is ${(await post(`/api/v1/${what}`)).standing} now.`); }
    catch (error) { put(said, h("span", { class: "bad" }, error.message)); }
  }
  function render() {
    const own = state.nodes.find((one) => one.node === me.node);
    if (own?.standing === before) return;
    before = own?.standing;
    const drained = before === "draining";
    put(card, h("h2", {}, "Take this node out of service"),
      h("p", { class: "muted" }, "The models of a draining node take no new requests, from its own callers either; requests in flight finish."),
      h("div", { class: "row" },
        badge(drained ? "draining" : "alive", drained ? "draining" : "serving"),
        h("button", { type: "button", class: "danger", "data-key": "drain", disabled: drained, onclick: () => change("drain") }, "Drain"),
        h("button", { type: "button", class: "quiet", "data-key": "undrain", disabled: !drained, onclick: () => change("undrain") }, "Serve again")),
      said, command(["modelvine", drained ? "undrain" : "drain"]));
  }
  render();
  return { card, away: watch((what) => what === "nodes" && render()) };
}

function keysOf() {
  const rows = h("div", {});
  const said = h("p", { class: "said", role: "status" });

  async function look() {
    try {
      const { keys } = await get("/api/v1/keys");
      put(rows, table("Keys", [
        { title: "Name", cell: (one) => name(one.name) },
        { title: "State", cell: (one) => badge(one.state === "active" ? "ok" : "failed", one.state) },
        { title: "Role", cell: (one) => one.role },
        { title: "Models", cell: (one) => name((one.models || []).join(", ") || "all") },
        { title: "Requests a minute", number: true, cell: (one) => (one.rpm ? number(one.rpm) : "–") },
        { title: "Tokens a minute", number: true, cell: (one) => (one.tpm ? number(one.tpm) : "–") },
        { title: "Expires", cell: (one) => (one.expires ? new Date(one.expires * 1000).toLocaleDateString("en-CA") : "never") },
        { title: "Change", cell: (one) => one.state === "active" && h("span", {},
          h("button", { type: "button", class: "quiet small", "data-key": `rotate:${one.name}`, "aria-label": `Replace the key of ${one.name}`, onclick: () => change(one.name, "rotate") }, "Replace"), " ",
          h("button", { type: "button", class: "danger small", "data-key": `revoke:${one.name}`, "aria-label": `Revoke the key of ${one.name}`, onclick: () => change(one.name, "revoke") }, "Revoke")) },
      ], keys, { empty: "There are no keys yet." }));
    } catch (error) {
      put(rows, note(error.message, "bad"));
    }
  }

  async function change(who, what) {
    if (what === "revoke" && !confirm(`Revoke the key of ${who}? It stops working at once, and you cannot undo this.`)) return;
    try {
      const answer = await post(`/api/v1/keys/${encodeURIComponent(who)}/${what}`);
      put(said, answer.keys ? secret(answer.keys[0]) : `The key of ${who} is revoked.`, command(["modelvine", "key", what, who]));
    } catch (error) {
      put(said, h("span", { class: "bad" }, error.message));
    }
    look();
  }

  const secret = (made) => ["The key of ", made.name, ", shown only once: ", h("code", {}, made.key)];

  const made = form("Create a key", "", [
    field("Name", { name: "name", required: true }, { hint: "of the user" }),
    field("Role", { name: "role" }, { options: ROLES }),
    field("Models", { name: "models", placeholder: "llama*, lab/*" }, { hint: "empty: all" }),
    field("Days", { name: "days", inputmode: "numeric", pattern: "[0-9]*" }, { hint: "empty: does not expire" }),
    field("Requests a minute", { name: "rpm", inputmode: "numeric", pattern: "[0-9]*" }, { hint: "empty: no limit" }),
    field("Tokens a day", { name: "tokens_per_day", inputmode: "numeric", pattern: "[0-9]*" }, { hint: "empty: no limit" }),
  ], {
    button: "Create",
    line: (one) => ["modelvine", "key", "create", one.name || "NAME", ...(one.role !== "user" ? flag("--role", one.role) : []), ...patterns(one.models).flatMap((model) => ["--models", model]), ...flag("--expires", one.days && `${one.days}d`), ...flag("--rpm", one.rpm), ...flag("--tokens-per-day", one.tokens_per_day)],
    send: async (one) => {
      const wanted = { name: one.name, role: one.role };
      if (one.models.trim()) wanted.models = patterns(one.models);
      if (one.days) wanted.expires_in = Number(one.days) * 86400;
      if (one.rpm) wanted.rpm = Number(one.rpm);
      if (one.tokens_per_day) wanted.tokens_per_day = Number(one.tokens_per_day);
      const answer = await post("/api/v1/keys", { keys: [wanted] });
      look();
      return secret(answer.keys[0]);
    },
  });
  look();
  return { card: h("section", { class: "pane" }, h("h2", {}, "Keys"), rows, said, h("div", { class: "cards" }, made.card, inviting(look).card)) };
}

function inviting(done) {
  return form("Invite", "A key that is also valid at sites that trust this node, or an invitation for a new node.", [
    field("Name", { name: "name" }, { hint: "of the recipient" }),
    field("Days", { name: "days", value: "7", required: true, inputmode: "numeric", pattern: "[1-9][0-9]*" }),
    field("Models", { name: "models", placeholder: "llama*, lab/*" }, { hint: "empty: all" }),
    field("Requests a minute", { name: "rpm", inputmode: "numeric", pattern: "[0-9]*" }, { hint: "empty: no limit" }),
    field("May be passed on", { name: "passes" }, { options: [["0", "no"], ["1", "once"], ["2", "twice"], ["3", "three times"]] }),
    field("For", { name: "for" }, { options: [["people", "a user"], ["node", "a node: contains the swarm key"]] }),
  ], {
    button: "Invite",
    line: (one) => ["modelvine", "invite", ...(one.name ? [one.name] : []), ...patterns(one.models).flatMap((model) => ["--models", model]), ...flag("--rpm", one.rpm), ...(one.passes !== "0" ? flag("--passes", one.passes) : []), ...(one.for === "node" ? ["--for-node"] : []), "--days", one.days || "7"],
    send: async (one) => {
      const wanted = { name: one.name, models: patterns(one.models), passes: Number(one.passes), expires_in: Number(one.days) * 86400, for_node: one.for === "node" };
      if (one.rpm) wanted.rpm = Number(one.rpm);
      const made = await post("/api/v1/grants", wanted);
      done();
      return ["The invitation for ", made.name, ", shown only once: ", h("code", {}, made.invitation), await qr(made.invitation)];
    },
  });
}

// A QR code, to scan with a phone.
async function qr(text) {
  const { encode } = await import("./vendor/uqr/index.mjs");
  const { data, size } = encode(text, { ecc: "L", border: 3 });
  const dark = data.flatMap((row, y) => row.map((on, x) => (on ? `M${x} ${y}h1v1h-1z` : ""))).join("");
  return svg("svg", { class: "qr", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": "The invitation as a QR code" },
    svg("rect", { width: size, height: size, fill: "#fff" }), svg("path", { d: dark, fill: "#000" }));
}

const patterns = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
