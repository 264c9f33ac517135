// Playground: chat, image and speech through the mesh, at one replica or at all of them side by side.

import { ask, eventsOf, get } from "./api.js";
import { field, h, note, number, put, seconds, short } from "./dom.js";
import { called } from "./live.js";

const MOST = 8;
const CAN = { chat: [0], image: [1], speech: [5] };

export function show(place, me) {
  let replicas = [];
  let stop = null;
  const kind = field("Type", { name: "kind", onchange: () => fill() }, { options: [["chat", "chat"], ["image", "image"], ["speech", "speech"]] });
  const model = field("Model", { name: "model" }, { options: [] });
  const tokens = field("Maximum tokens", { name: "tokens", inputmode: "numeric", value: "256" });
  const voice = field("Voice", { name: "voice", value: "alloy" });
  const prompt = field("Prompt", { name: "prompt", required: true, full: true, rows: "3" }, { area: true });
  const answers = h("div", { class: "answers" });
  const cancel = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => stop?.abort() }, "Stop");
  const once = h("button", { value: "one" }, "Send");
  const all = h("button", { class: "quiet", value: "all" }, "Send to all replicas");
  const of = (part) => part.querySelector("input, select, textarea").value;

  function fill() {
    const wanted = CAN[of(kind)];
    const select = model.querySelector("select");
    const before = select.value;
    const names = [...new Set(replicas.filter((one) => wanted.includes(one.type)).map((one) => one.model))].sort();
    select.replaceChildren(...names.map((one) => h("option", { value: one }, one)));
    if (names.includes(before)) select.value = before;
    if (!names.length) select.append(h("option", { value: "" }, "no model of this type"));
    tokens.hidden = of(kind) !== "chat";
    voice.hidden = of(kind) !== "speech";
    all.hidden = !me.may.look;
  }

  async function run(event) {
    event.preventDefault();
    const same = event.submitter?.value === "all" ? replicas.filter((one) => one.model === of(model) && CAN[of(kind)].includes(one.type)).slice(0, MOST) : [null];
    stop = new AbortController();
    once.disabled = all.disabled = true;
    cancel.hidden = false;
    const cards = same.map((replica) => card(replica));
    put(answers, cards.map((one) => one.element));
    const said = { kind: of(kind), model: of(model), prompt: of(prompt), tokens: Number(of(tokens)) || 256, voice: of(voice), signal: stop.signal };
    await Promise.all(cards.map((one, at) => answer(one, said, same[at])));
    once.disabled = all.disabled = false;
    cancel.hidden = true;
  }

  const form = h("form", { class: "card", onsubmit: run }, h("h2", {}, "Playground"),
    h("div", { class: "fields" }, kind, model, tokens, voice, prompt), h("div", { class: "row" }, once, all, cancel));
  put(place, form, answers);
  modelsOf(me).then((found) => { replicas = found; fill(); }).catch((error) => put(answers, note(error.message, "bad")));
}

async function modelsOf(me) {
  if (me.may.look) return (await get("/api/v1/catalog")).nodes.flatMap((node) => node.services.map((one) => ({ ...one, node: node.node, who: node.name || short(node.node) })));
  return (await get("/v1/models")).data.map((one) => ({ model: one.id, type: one.type ?? guess(one) }));
}

const guess = (one) => ({ image: 1, audio: 5 }[one.architecture?.output_modalities?.[0]] || 0);

function card(replica) {
  const text = h("div", { class: "answer", "aria-live": "polite" });
  const foot = h("p", { class: "muted" });
  const title = replica ? `${replica.who}${replica.cid ? ` (${replica.cid})` : ""}` : "Answer";
  return { element: h("section", { class: "card", "aria-label": title }, h("h3", {}, title), text, foot), text, foot };
}

async function answer(card_, said, replica) {
  const began = performance.now();
  const since = () => (performance.now() - began) / 1000;
  const pins = replica ? { "x-modelvine-node": replica.node, "x-modelvine-project": encoded(replica.project), ...(replica.cid ? { "x-modelvine-cid": encoded(replica.cid) } : {}) } : {};
  put(card_.foot, "waiting …");
  try {
    const [path, body, read] = REQUESTS[said.kind](said);
    const response = await ask(path, { body, headers: pins, signal: said.signal });
    const seen = { first: since(), tokens: null };
    await read(response, card_.text, seen, since);
    const took = since();
    const node = response.headers.get("x-modelvine-node");
    const speed = seen.tokens && took > seen.first ? seen.tokens / (took - seen.first) : null;
    put(card_.foot, [node && `by ${called(node)}, ${response.headers.get("x-modelvine-route")}`, `first token after ${seconds(seen.first)}`, `done after ${seconds(took)}`, speed && `${number(seen.tokens)} tokens, ${number(speed)} a second`].filter(Boolean).join(" · "));
  } catch (error) {
    put(card_.foot, h("span", { class: "bad" }, error.name === "AbortError" ? "stopped" : error.message));
  }
}

// Header values are Latin-1, so names are sent as their UTF-8 bytes.
const encoded = (text) => String.fromCharCode(...new TextEncoder().encode(text));

const REQUESTS = {
  chat: (said) => ["/v1/chat/completions", { model: said.model, messages: [{ role: "user", content: said.prompt }], max_tokens: said.tokens, stream: true, stream_options: { include_usage: true } }, chat],
  image: (said) => ["/v1/images/generations", { model: said.model, prompt: said.prompt, n: 1, response_format: "b64_json" }, image],
  speech: (said) => ["/v1/audio/speech", { model: said.model, input: said.prompt, voice: said.voice, response_format: "wav" }, speech],
};

async function chat(response, place, seen, since) {
  let first = true;
  for await (const event of eventsOf(response)) {
    if (event === "[DONE]") return;
    const said = JSON.parse(event);
    if (said.error) throw new Error(said.error.message);
    const delta = said.choices?.[0]?.delta;
    const text = delta?.content || delta?.reasoning_content || "";
    if (text && first) { seen.first = since(); first = false; }
    place.append(text);
    if (said.usage) seen.tokens = said.usage.completion_tokens;
  }
}

async function image(response, place) {
  for (const one of (await response.json()).data) {
    place.append(one.b64_json ? h("img", { src: `data:image/png;base64,${one.b64_json}`, alt: "Image from the model" }) : `Image: ${one.url}`);
  }
}

async function speech(response, place) {
  const sound = await response.arrayBuffer();
  const player = new AudioContext();
  const decoded = await player.decodeAudioData(sound);
  const play = () => { const source = player.createBufferSource(); source.buffer = decoded; source.connect(player.destination); source.start(); };
  place.append(h("button", { type: "button", class: "quiet", onclick: play }, `Play ${seconds(decoded.duration)}`));
  play();
}
