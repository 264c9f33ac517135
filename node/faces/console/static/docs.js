// API page: every operation of /openapi.json with its parameters, its schemas and a curl command.

import { command, h, note, put } from "./dom.js";

const DEEPEST = 4;
const TYPES = { string: "text", object: "object", integer: "whole number", number: "number" };
const JSON_TYPE = "application/json";
const main = document.getElementById("main");
let api = null;

const resolved = (part) => (part?.$ref ? part.$ref.slice(2).split("/").reduce((at, step) => at[step], api) : part);

// The type of a value in a few words.
function words(schema) {
  const one = resolved(schema);
  if (one.const !== undefined) return JSON.stringify(one.const);
  if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (one.anyOf) return one.anyOf.map(words).join(" or ");
  if (one.contentMediaType) return "bytes";
  if (one.type === "array") {
    const of = resolved(one.items || {});
    return `list of ${of.type in TYPES && !of.enum ? `${TYPES[of.type]}s` : words(of)}`;
  }
  return TYPES[one.type] || { boolean: "true or false" }[one.type] || one.type || "anything";
}

// The members of an object, or of each object in a list.
function inner(schema) {
  const one = resolved(schema);
  if (one.properties) return one;
  const next = one.items || one.anyOf?.find((some) => inner(some)) || (typeof one.additionalProperties === "object" && one.additionalProperties);
  return next ? inner(next) : null;
}

const LIMITS = {
  minimum: (bound) => `at least ${bound}`,
  exclusiveMinimum: (bound) => `more than ${bound}`,
  maximum: (bound) => `at most ${bound}`,
  maxLength: (bound) => `at most ${bound} characters`,
  maxItems: (bound) => `at most ${bound} entries`,
};
const limits = (one) => Object.entries(LIMITS).filter(([name]) => one[name]).map(([name, say]) => say(one[name])).join(", ");

function row(name, schema, { needed = false, about, depth = 0 } = {}) {
  const one = resolved(schema);
  const within = depth < DEEPEST && inner(one);
  return h("li", {},
    h("code", {}, name), " ", h("span", { class: "muted" }, [words(one), limits(one), needed && "required"].filter(Boolean).join(", ")),
    (about || one.description) && h("p", {}, about || one.description),
    within && shape(within, depth + 1));
}

function shape(schema, depth = 0) {
  const needed = new Set(schema.required || []);
  const names = Object.entries(schema.properties).sort(([a], [b]) => needed.has(b) - needed.has(a));
  return h("ul", { class: "shape" }, names.map(([name, one]) => row(name, one, { needed: needed.has(name), depth })));
}

function body(content) {
  return Object.entries(content).flatMap(([kind, { schema }]) => {
    const within = inner(schema);
    const about = resolved(schema).description;
    return [h("p", {}, h("code", {}, kind), " ", h("span", { class: "muted" }, words(schema)), about && ` ${about}`), within && shape(within)];
  });
}

// An example value, to be replaced.
function example(schema, name = "", depth = 0) {
  const one = resolved(schema);
  if (one.const !== undefined) return one.const;
  if (one.enum) return one.enum[0];
  if (name === "messages") return [{ role: "user", content: "Hello" }];
  if (one.anyOf) return example(one.anyOf[0], name, depth);
  if (one.type === "array") return depth < DEEPEST && one.items && one.items.type !== "object" ? [example(one.items, name, depth + 1)] : [];
  if (one.type === "object") return Object.fromEntries((one.required || []).map((field) => [field, example(one.properties[field], field, depth + 1)]));
  return { integer: 1, number: 1, boolean: true, string: name.toUpperCase() }[one.type] ?? "…";
}

function curl(method, path, said) {
  const parameters = (said.parameters || []).map(resolved);
  const query = parameters.filter((one) => one.in === "query" && one.required).map((one) => `${one.name}=${one.name.toUpperCase()}`);
  const place = path.replace(/\{(\w+)\}/g, (_, name) => name.toUpperCase()) + (query.length ? `?${query.join("&")}` : "");
  const key = said.security ? [] : ["-H", "Authorization: Bearer KEY"];
  const json = said.requestBody?.content[JSON_TYPE];
  const sent = json ? ["--json", JSON.stringify(example(json.schema))] : method === "get" ? [] : ["-X", method.toUpperCase()];
  return command(["curl", ...key, ...sent, location.origin + place]);
}

function details(method, path, said) {
  const parameters = (said.parameters || []).map(resolved);
  const answers = Object.entries(said.responses).map(([status, one]) => [status, resolved(one)]);
  const good = answers.filter(([status]) => status < 400);
  const bad = answers.filter(([status]) => status >= 400);
  return [
    h("p", {}, said.description),
    curl(method, path, said),
    parameters.length > 0 && [h("h3", {}, "Parameters"), h("ul", { class: "shape" }, parameters.map((one) =>
      row(one.name, one.schema, { needed: one.required, about: [`In the ${one.in}.`, one.description || resolved(one.schema).description].filter(Boolean).join(" ") })))],
    said.requestBody && [h("h3", {}, said.requestBody.required ? "Body" : "Body (optional)"), body(said.requestBody.content)],
    good.flatMap(([status, one]) => [h("h3", {}, `Response ${status}`), ...body(one.content)]),
    h("h3", {}, "Errors"),
    h("ul", { class: "shape" }, bad.map(([status, one]) => h("li", {}, h("code", {}, status), " ", h("span", { class: "muted" }, one.description.replaceAll("`", ""))))),
  ];
}

function operation(method, path, said) {
  const box = h("details", { class: "operation", id: said.operationId },
    h("summary", {}, h("code", { class: `method ${method}` }, method.toUpperCase()), h("code", { class: "path" }, path), h("span", {}, said.summary)));
  box.addEventListener("toggle", () => {
    if (!box.open) return;
    history.replaceState(null, "", `#${said.operationId}`);
    if (box.children.length === 1) box.append(h("div", { class: "inside" }, details(method, path, said)));
  });
  return { box, tag: said.tags[0], text: `${method} ${path} ${said.summary} ${said.tags[0]}`.toLowerCase() };
}

function opened() {
  const wanted = document.getElementById(location.hash.slice(1));
  if (wanted?.tagName !== "DETAILS") return;
  if (wanted.closest("[hidden]")) {
    const search = document.getElementById("search");
    search.value = "";
    search.dispatchEvent(new Event("input"));
  }
  wanted.open = true;
  wanted.scrollIntoView({ block: "start" });
}

function show() {
  const all = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, said]) => operation(method, path, said)));
  const search = h("input", { id: "search", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "Path or text" });
  const count = h("p", { class: "muted", role: "status" });
  const parts = api.tags.map(({ name, description }) => {
    const mine = all.filter((one) => one.tag === name);
    return { mine, place: h("section", { class: "pane" }, h("h2", {}, name), h("p", { class: "muted" }, description.replaceAll("`", "")), mine.map((one) => one.box)) };
  });
  const filter = () => {
    const asked = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const one of all) one.box.hidden = !asked.every((word) => one.text.includes(word));
    for (const { mine, place } of parts) place.hidden = mine.every((one) => one.box.hidden);
    count.textContent = `${all.filter((one) => !one.box.hidden).length} of ${all.length} operations`;
  };
  search.addEventListener("input", filter);
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target === search || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    search.focus();
  });
  put(main,
    api.info.description.replaceAll("`", "").split("\n\n").map((part) => h("p", { class: "about" }, part)),
    h("div", { class: "row" }, h("label", { for: "search", class: "grow" }, "Search ", h("small", {}, "press /"), search), count),
    parts.map(({ place }) => place));
  filter();
  opened();
}

async function start() {
  try {
    const response = await fetch("/openapi.json");
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    api = await response.json();
  } catch (error) {
    main.prepend(note(`The description cannot be loaded: ${error.message}`, "bad"));
    return;
  }
  const where = document.getElementById("where");
  where.prepend(`version ${api.info.version} · `);
  addEventListener("hashchange", opened);
  show();
}

start();
