// Console page: the panes that the user's rights allow, and the user's key.

import { get, key, setKey } from "./api.js";
import { field, h, note, put } from "./dom.js";
import { follow, watch } from "./live.js";
import * as events from "./events.js";
import * as manage from "./manage.js";
import * as mesh from "./mesh.js";
import * as models from "./models.js";
import * as playground from "./playground.js";
import * as requests from "./requests.js";
import * as usage from "./usage.js";

const PANES = [
  ["mesh", "Mesh", mesh, (may) => may.look],
  ["models", "Models", models, (may) => may.look || may.ask],
  ["requests", "Requests", requests, (may) => may.look],
  ["events", "Events", events, (may) => may.look],
  ["manage", "Manage", manage, (may) => may.change],
  ["playground", "Playground", playground, (may) => may.ask],
  ["usage", "Usage", usage, (may) => may.change || may.own],
];

const main = document.getElementById("main");
const tabs = document.getElementById("tabs");
const live = document.getElementById("live");
const keyButton = document.getElementById("key");
let me = null;
let leave = () => {};

function show() {
  const panes = PANES.filter(([, , , may]) => may(me.may));
  const [wanted] = location.hash.slice(1).split("/");
  const pane = panes.find(([id]) => id === wanted) || panes[0];
  put(tabs, panes.map(([id, title]) => h("a", { href: `#${id}`, "data-key": id, "aria-current": id === pane[0] ? "page" : undefined }, title)));
  const current = tabs.querySelector("[aria-current]");
  // Not scrollIntoView: in Chromium, the Tab key would then start behind that tab instead of at the skip link.
  tabs.scrollLeft = current.offsetLeft + current.offsetWidth - tabs.clientWidth;
  document.title = `${pane[1]} – ${me.node_name || "modelvine"}`;
  leave();
  const place = h("div", { class: `pane-${pane[0]}` });
  put(main, place);
  leave = pane[2].show(place, me) || (() => {});
}

function dialog() {
  const input = field("Key", { type: "password", name: "key", value: key() }, { hint: "kept in this tab until it is closed" });
  const box = h("dialog", { "aria-labelledby": "key-title" },
    h("form", { method: "dialog", onsubmit: () => { setKey(input.querySelector("input").value.trim()); location.reload(); } },
      h("h2", { id: "key-title" }, "Enter a key"),
      h("p", { class: "muted" }, "A key from this node's operator, or the content of the node's file control.token."),
      input,
      h("div", { class: "row" },
        h("button", {}, "Use this key"),
        key() && h("button", { type: "button", class: "quiet", onclick: () => { setKey(""); location.reload(); } }, "Forget it"),
        h("button", { type: "button", class: "quiet", onclick: () => box.close() }, "Cancel"))));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

function tell(what) {
  if (what === "on") { live.textContent = "live"; live.className = "live on"; }
  if (what === "off") { live.textContent = "not connected"; live.className = "live off"; }
  if (what === "refused") { live.textContent = "not allowed"; live.className = "live off"; }
}

async function start() {
  keyButton.hidden = false;
  keyButton.addEventListener("click", dialog);
  try {
    me = await get("/api/v1/me");
  } catch (error) {
    if (error.status !== 401 && error.status !== 0) { main.prepend(note(error.message, "bad")); return; }
    put(main, note(error.status ? error.message : "The node does not answer. Is it running?"), error.status === 401 && h("button", { type: "button", onclick: dialog }, "Enter a key"));
    return;
  }
  me.may.own = me.role === "user";
  document.getElementById("where").textContent = [me.node_name, me.name && `as ${me.name}`, `version ${me.version}`].filter(Boolean).join(" · ");
  keyButton.textContent = me.name ? "Change key" : "Key";
  watch(tell);
  if (me.may.look) follow();
  addEventListener("hashchange", show);
  show();
}


start();
