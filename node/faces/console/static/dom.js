// Elements, tables and formats. Names come from other machines: everything is set as text, nothing as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value === "boolean") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

// Replace the children of a place. The new element with the same `data-key` as the focused one gets the focus.
export function put(place, ...children) {
  const active = document.activeElement;
  const key = place.contains(active) ? active.dataset.key : undefined;
  const scrolled = [...place.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  place.replaceChildren(...children.flat(3).filter(Boolean));
  [...place.querySelectorAll(".scroll")].forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
  if (key) place.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

// `columns`: {title, cell(row), number, wide}. `open(row)` makes the first cell of each row a button.
export function table(label, columns, rows, { open, key, selected, empty = "None." } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const cell = (row, column, at) => {
    const shown = column.cell(row);
    const kind = [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || undefined;
    if (at || !open) return h("td", { class: kind }, shown);
    return h("td", { class: kind }, h("button", { class: "open", type: "button", "data-key": `${label}:${key(row)}`, onclick: (event) => { event.stopPropagation(); open(row); } }, shown));
  };
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", {},
      h("caption", { class: "unseen" }, label),
      h("thead", {}, h("tr", {}, columns.map((one) => h("th", { scope: "col", class: one.number ? "number" : undefined }, one.title)))),
      h("tbody", {}, rows.map((row) => h("tr", {
        class: open && "opens",
        "aria-selected": open && selected === key(row) ? "true" : undefined,
        onclick: open && (() => open(row)),
      }, columns.map((column, at) => cell(row, column, at)))))));
}

export function facts(rows) {
  const shown = rows.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return h("dl", { class: "facts" }, shown.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export const figures = (rows) => h("dl", { class: "figures" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
export const badge = (state, words = state) => h("span", { class: `badge ${state}` }, words);
export const name = (text) => h("span", { class: "name", title: text }, text);
export const note = (words, kind = "") => h("p", { class: `note ${kind}`, role: "alert" }, words);

// The equivalent command, with a button that copies it.
export function command(words) {
  const text = words.map(quoted).join(" ");
  const copy = h("button", { type: "button", class: "quiet small", "aria-label": `Copy the command: ${text}`, onclick: async () => {
    try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(code); copy.textContent = "Selected"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } }, "Copy");
  const code = h("code", {}, text);
  return h("div", { class: "command" }, code, copy);
}

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

let fields = 0;
export function field(words, props, { hint, options, area } = {}) {
  const id = `field-${fields += 1}`;
  const input = options
    ? h("select", { id, ...props }, options.map((one) => (one instanceof Node ? one : h("option", { value: one[0] }, one[1]))))
    : h(area ? "textarea" : "input", { id, type: area ? undefined : "text", autocomplete: "off", spellcheck: "false", ...props });
  return h("div", { class: props.full ? "full" : undefined }, h("label", { for: id }, words, hint && h("small", {}, ` ${hint}`)), input);
}

// Numbers and times, in words.
const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const number = (value) => (value === null || value === undefined ? "–" : plain.format(value));
export const compact = (value) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);

export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value < 0.0005) return "0 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 100) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

export const clock = (at) => h("time", { datetime: new Date(at * 1000).toISOString(), title: new Date(at * 1000).toString() }, new Date(at * 1000).toLocaleTimeString("en-GB"));
export const bytes = (value) => (value < 1024 ? `${value} B` : value < 1048576 ? `${(value / 1024).toFixed(1)} KiB` : value < 1073741824 ? `${(value / 1048576).toFixed(1)} MiB` : `${(value / 1073741824).toFixed(1)} GiB`);
export const short = (node) => (node && node.length > 15 ? `${node.slice(0, 14)}…` : node);

export const TYPES = ["text", "image", "image edit", "embedding", "transcription", "speech", "rerank", "sound", "store"];
export const type = (value) => TYPES[value] || "service";
