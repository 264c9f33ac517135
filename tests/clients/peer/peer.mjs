// A peer of the mesh in JavaScript, written from docs/protocol.md alone: section numbers are that page's.
//   node peer.mjs MULTIADDR-OF-A-NODE PROJECT MODEL ANSWER [mute]
// It joins, publishes one text model, answers requests for it itself, and leaves on SIGTERM; `mute` says no more than its
// record, and answers no question of section 5. Not for production: it bounds little, does not refute, and asks nobody anything.

import { constants, createHash, createPrivateKey, createPublicKey, randomBytes, sign, verify } from "node:crypto";
import https from "node:https";
import { noise } from "@chainsafe/libp2p-noise";
import { yamux } from "@chainsafe/libp2p-yamux";
import { generateKeyPairFromSeed } from "@libp2p/crypto/keys";
import { gossipsub } from "@libp2p/gossipsub";
import { identify } from "@libp2p/identify";
import { peerIdFromString } from "@libp2p/peer-id";
import { PeerRecord, RecordEnvelope } from "@libp2p/peer-record";
import { ping } from "@libp2p/ping";
import { tcp } from "@libp2p/tcp";
import { byteStream, lpStream } from "@libp2p/utils";
import { multiaddr } from "@multiformats/multiaddr";
import { createLibp2p } from "libp2p";

const [NODE, PROJECT, MODEL, ANSWER, MUTE] = process.argv.slice(2);
const TOPIC = "modelvine/1";
const ASK = "/modelvine/ask/1";
const RENDEZVOUS = "/rendezvous/1.0.0";
const HEARTBEAT_MS = 2_000;

const sha256 = (...parts) => createHash("sha256").update(Buffer.concat(parts)).digest();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const uint32 = (value) => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
};
const uint64s = (...values) => {
  const bytes = Buffer.alloc(8 * values.length);
  values.forEach((value, place) => bytes.writeBigUInt64BE(BigInt(value), 8 * place));
  return bytes;
};

// 1. Identity: an Ed25519 key; the same one signs frames, TLS and libp2p.

const seed = randomBytes(32);
const key = await generateKeyPairFromSeed("Ed25519", seed);
const own = Buffer.from(key.publicKey.raw);
const secret = createPrivateKey({
  key: Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), seed]),
  format: "der",
  type: "pkcs8",
});
const SPKI = Buffer.from("302a300506032b6570032100", "hex");
const publicKey = (raw) => createPublicKey({ key: Buffer.concat([SPKI, raw]), format: "der", type: "spki" });
const domain = (name) => Buffer.from(`modelvine/1/${name}\0`);

// 3. Frames: version, kind, key, signature, body.

const RECORD = 1;
const DOMAINS = { 1: domain("record"), 2: domain("heartbeat"), 3: domain("doubt"), 4: domain("proof"), 5: domain("load") };

function frameOf(kind, body) {
  const signature = sign(null, Buffer.concat([DOMAINS[kind], body]), secret);
  return Buffer.concat([Buffer.from([1, kind]), own, signature, body]);
}

function read(frame) {
  if (frame.length < 98 || frame.length > 262_144 || frame[0] !== 1 || !DOMAINS[frame[1]]) throw new Error("no frame");
  const [kind, raw, body] = [frame[1], frame.subarray(2, 34), frame.subarray(98)];
  if (!verify(null, Buffer.concat([DOMAINS[kind], body]), publicKey(raw), frame.subarray(34, 98)))
    throw new Error("a forged frame");
  return { kind, peer: peerOf(raw), raw, body };
}

const ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

function peerOf(raw) {
  const bytes = Buffer.concat([Buffer.from("002408011220", "hex"), raw]);
  let number = BigInt(`0x${bytes.toString("hex")}`);
  let text = "";
  for (; number > 0n; number /= 58n) text = ALPHABET[Number(number % 58n)] + text;
  return `1${text}`; // for the zero byte that they begin with
}

const me = peerOf(own);

// 4. What is known: the newest record of every node, and when it last gave a sign of life.

const held = new Map();
let current; // our own record's frame
let asked = 0; // questions that we answered

function merge(frame, heard) {
  const { kind, peer, raw, body } = read(frame);
  const before = held.get(peer);
  if (kind !== RECORD) {
    if (before && peer !== me) before.heard = Math.max(before.heard, heard);
    return false;
  }
  const record = JSON.parse(body);
  const fingerprint = sha256(frame);
  const [newer, older] = [record.version, before?.record.version ?? [-1, -1]];
  const order = newer[0] - older[0] || newer[1] - older[1] || Buffer.compare(fingerprint, before.fingerprint);
  if (order <= 0 || (peer === me && before && frame !== current)) return false;
  held.set(peer, { frame, record, fingerprint, raw, heard });
  return true;
}

function digest() {
  let sum = 0n;
  for (const { fingerprint } of held.values()) sum += BigInt(`0x${fingerprint.toString("hex")}`);
  return Buffer.from((sum % 2n ** 256n).toString(16).padStart(64, "0"), "hex");
}

const bucketOf = (peer) => sha256(Buffer.from(peer))[0] % 64;

function bucketDigests() {
  const prints = Array.from({ length: 64 }, () => []);
  for (const [peer, { fingerprint }] of held) prints[bucketOf(peer)].push(fingerprint);
  return Buffer.concat(prints.map((found) => sha256(...found.sort(Buffer.compare)).subarray(0, 8)));
}

function ageOf(peer) {
  const age = Buffer.alloc(4);
  if (peer !== me) age.writeFloatBE((Date.now() - held.get(peer).heard) / 1_000);
  return age;
}

// 5. Comparison: the answers that a peer owes. Whoever gives none is soon taken for dead.

function batchOf(peers) {
  const known = peers.filter((peer) => held.has(peer)).slice(0, 128);
  const rows = known.map((peer) => [ageOf(peer), uint32(held.get(peer).frame.length), held.get(peer).frame]);
  return Buffer.concat(rows.flat());
}

function takeBatch(batch) {
  let news = 0;
  for (let at = 0; at < batch.length; ) {
    const [age, size] = [batch.readFloatBE(at), batch.readUInt32BE(at + 4)];
    if (merge(batch.subarray(at + 8, at + 8 + size), Date.now() - 1_000 * age)) news += 1;
    at += 8 + size;
  }
  return Buffer.from(String(news));
}

function listing(buckets) {
  const there = [...held].filter(([peer]) => buckets.includes(bucketOf(peer)));
  const row = ({ record, fingerprint }) => [...record.version, fingerprint.toString("hex", 0, 8)];
  return { held: Object.fromEntries(there.map(([peer, known]) => [peer, row(known)])) };
}

async function vouch(question) {
  const peer = peerIdFromString(question.toString("ascii", 16));
  if (libp2p.getConnections(peer).length === 0) return Buffer.alloc(0);
  const stream = await libp2p.dialProtocol(peer, ASK);
  const bytes = byteStream(stream);
  await put(bytes, Buffer.concat([Buffer.from("?"), question.subarray(0, 16)]));
  const proof = await take(bytes);
  await stream.close();
  return proof;
}

async function answerTo(question) {
  const rest = question.subarray(1);
  switch (String.fromCharCode(question[0])) {
    case "c":
      return rest.equals(digest()) ? Buffer.from("=") : bucketDigests();
    case "l":
      return Buffer.from(JSON.stringify(listing(JSON.parse(rest).buckets)));
    case "p":
      return batchOf(JSON.parse(rest).nodes);
    case "P":
      return takeBatch(rest);
    case "h":
      return Buffer.concat([...held].map(([peer, { raw }]) => Buffer.concat([raw, ageOf(peer)])));
    case "?":
      return frameOf(4, rest);
    case "v":
      return vouch(rest);
  }
  throw new Error("no question");
}

const put = (bytes, body) => bytes.write(Buffer.concat([uint32(body.length), body]));

async function take(bytes) {
  const size = Buffer.from((await bytes.read({ bytes: 4 })).subarray()).readUInt32BE();
  if (size > 2 * 1024 * 1024) throw new Error("too long");
  return size === 0 ? Buffer.alloc(0) : Buffer.from((await bytes.read({ bytes: size })).subarray());
}

async function answerAll(stream) {
  const bytes = byteStream(stream);
  try {
    for (;;) {
      const question = await take(bytes);
      await put(bytes, await answerTo(question));
      asked += 1;
    }
  } catch (error) {
    // Either it has asked all, or what it asked is nonsense.
    if (error.name === "UnexpectedEOFError") await stream.close().catch(() => {});
    else stream.abort(error);
  }
}

// 6. Requests: HTTPS, whose certificate has the key of the node.

const der = (tag, ...parts) => {
  const body = Buffer.concat(parts);
  const size = body.length < 128 ? [body.length] : [0x82, body.length >> 8, body.length & 255];
  return Buffer.concat([Buffer.from([tag, ...size]), body]);
};

function certificate() {
  const oid = (hex) => der(0x06, Buffer.from(hex, "hex"));
  const ed25519 = der(0x30, oid("2b6570"));
  const name = der(0x30, der(0x31, der(0x30, oid("550403"), der(0x0c, Buffer.from(me)))));
  const serial = sha256(own).subarray(0, 16);
  serial[0] = (serial[0] & 0x7f) | 0x40;
  const years = der(0x30, der(0x17, Buffer.from("200101000000Z")), der(0x18, Buffer.from("21200101000000Z")));
  const noAuthority = der(0x30, oid("551d13"), der(0x01, Buffer.from([0xff])), der(0x04, der(0x30)));
  const said = der(
    0x30,
    der(0xa0, der(0x02, Buffer.from([2]))),
    der(0x02, serial),
    ed25519,
    name,
    years,
    name,
    Buffer.concat([SPKI, own]),
    der(0xa3, der(0x30, noAuthority)),
  );
  return der(0x30, said, ed25519, der(0x03, Buffer.from([0]), sign(null, said, secret)));
}

const shown = certificate();
const pem = `-----BEGIN CERTIFICATE-----\n${shown.toString("base64").replace(/(.{64})/g, "$1\n")}\n-----END CERTIFICATE-----\n`;

function admitted(request) {
  const asking = held.get(String(request.headers["x-modelvine-hop"]));
  const proven = request.socket.getPeerCertificate()?.raw;
  return asking && asking.record.standing !== "left" && proven?.equals(Buffer.from(asking.record.certificate, "base64"));
}

function say(response, status, body) {
  const text = Buffer.from(JSON.stringify(body));
  response.writeHead(status, { "content-type": "application/json", "content-length": text.length }).end(text);
}

async function serve(request, response) {
  const parts = [];
  for await (const part of request) parts.push(part);
  const refuse = (status, code) => say(response, status, { error: { message: code, type: code, code } });
  if (!admitted(request)) return refuse(403, "not_a_peer");
  if (request.method !== "POST" || request.url !== "/v1/chat/completions") return refuse(404, "not_found");
  const body = JSON.parse(Buffer.concat(parts));
  const head = { id: "chatcmpl-1", created: Math.floor(Date.now() / 1_000), model: MODEL };
  const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
  if (!body.stream) {
    const choice = { index: 0, message: { role: "assistant", content: ANSWER }, finish_reason: "stop" };
    return say(response, 200, { ...head, object: "chat.completion", choices: [choice], usage });
  }
  const events = [...ANSWER.split(/(?<= )/).map((content) => [{ content }, null]), [{}, "stop"]];
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const [delta, finish_reason] of events) {
    const chunk = { ...head, object: "chat.completion.chunk", choices: [{ index: 0, delta, finish_reason }] };
    response.write(`data: ${JSON.stringify(chunk)}\n\n`);
  }
  response.end("data: [DONE]\n\n");
}

const server = https.createServer(
  {
    key: secret.export({ format: "pem", type: "pkcs8" }),
    cert: pem,
    requestCert: true,
    rejectUnauthorized: false, // whoever asks is checked against the records, request by request
    minVersion: "TLSv1.3",
    secureOptions: constants.SSL_OP_NO_TICKET,
  },
  (request, response) => serve(request, response).catch((error) => response.destroy(error)),
);
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));

// 2. Transport.

const libp2p = await createLibp2p({
  privateKey: key,
  addresses: { listen: ["/ip4/127.0.0.1/tcp/0"] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: {
    identify: identify(),
    ping: ping(),
    pubsub: gossipsub({ allowPublishToZeroTopicPeers: true }),
  },
});
if (MUTE !== "mute") await libp2p.handle(ASK, answerAll);
const { pubsub } = libp2p.services;
pubsub.addEventListener("message", ({ detail }) => {
  const frame = Buffer.from(detail.data);
  try {
    if (detail.from?.toString() === read(frame).peer) merge(frame, Date.now());
  } catch {
    // Whoever hands on nonsense is not our business here.
  }
});
pubsub.subscribe(TOPIC);

// 3.1 The record, and 3.2 the note that we live.

const epoch = Math.floor(Date.now() / 1_000);
let sequence = 0;
let beat = 0;

async function publish(standing) {
  sequence += 1;
  const record = {
    version: [epoch, sequence],
    standing,
    services: [[PROJECT, MODEL, "", 0]],
    mesh: libp2p.getMultiaddrs().map(String),
    links: [`127.0.0.1:${server.address().port}`],
    certificate: shown.toString("base64"),
    agent: "peer.mjs/1",
  };
  current = frameOf(RECORD, Buffer.from(JSON.stringify(record)));
  merge(current, Date.now());
  await pubsub.publish(TOPIC, current);
}

async function until(holds, what) {
  for (const end = Date.now() + 20_000; Date.now() < end; await sleep(50)) if (await holds()) return;
  throw new Error(`not within 20 s: ${what}`);
}

// 2. Rendezvous: the few protobuf messages of its specification, as bytes.

const varint = (value) => (value < 128 ? [value] : [(value & 127) | 128, ...varint(Math.floor(value / 128))]);
const number = (place, value) => Buffer.from([place << 3, ...varint(value)]);
const part = (place, body) => Buffer.concat([Buffer.from([(place << 3) | 2, ...varint(body.length)]), body]);

function* fields(body) {
  let at = 0;
  const next = () => {
    for (let [value, scale] = [0, 1]; ; scale *= 128) {
      value += (body[at] & 127) * scale;
      if (body[at++] < 128) return value;
    }
  };
  while (at < body.length) {
    const tag = next();
    const value = next();
    if ((tag & 7) === 2) at += value;
    yield [tag >> 3, (tag & 7) === 2 ? body.subarray(at - value, at) : value];
  }
}

const field = (body, place) => [...fields(body)].filter(([at]) => at === place).map(([, value]) => value);

async function ask(point, request) {
  const stream = await libp2p.dialProtocol(point, RENDEZVOUS);
  const messages = lpStream(stream);
  await messages.write(request);
  const answer = Buffer.from((await messages.read()).subarray());
  await stream.close();
  return answer;
}

const meeting = Buffer.from(
  `modelvine/1/${sha256(domain("rendezvous"), Buffer.from("modelvine\0")).toString("hex", 0, 16)}`,
);

async function register(point) {
  const claim = new PeerRecord({ peerId: libp2p.peerId, multiaddrs: libp2p.getMultiaddrs() });
  const record = Buffer.from((await RecordEnvelope.seal(claim, key)).marshal());
  const wish = Buffer.concat([part(1, meeting), part(2, record), number(3, 7_200)]);
  const answer = await ask(point, Buffer.concat([number(1, 0), part(2, wish)]));
  return field(field(answer, 3)[0], 1)[0];
}

async function discover(point) {
  const answer = await ask(point, Buffer.concat([number(1, 3), part(5, part(1, meeting))]));
  const found = field(field(answer, 6)[0], 1).map(async (row) => {
    const envelope = await RecordEnvelope.openAndCertify(field(row, 2)[0], PeerRecord.DOMAIN);
    const { peerId } = PeerRecord.createFromProtobuf(envelope.payload);
    if (!peerId.publicKey.equals(envelope.publicKey)) throw new Error("a record that another peer has signed");
    return peerId.toString();
  });
  return Promise.all(found);
}

// Joining, living, leaving.

const point = (await libp2p.dial(multiaddr(NODE))).remotePeer;
await until(() => pubsub.getSubscribers(TOPIC).length > 0, "nobody subscribes to our topic");
await publish("serving");
const status = await register(point);
let others = [];
await until(async () => (others = await discover(point)).length > 0, "nobody else is at the point");
console.log(`ready peer=${me} registered=${status} discovered=${others.join(",")}`);

const beating = setInterval(() => {
  if (MUTE === "mute") return;
  beat += 1;
  pubsub.publish(TOPIC, frameOf(2, uint64s(epoch, sequence, beat))).catch(() => {});
}, HEARTBEAT_MS);

process.once("SIGTERM", async () => {
  clearInterval(beating);
  await publish("left");
  await sleep(500); // until it is on its way
  console.log(`left asked=${asked} knew=${held.size}`);
  server.closeAllConnections();
  server.close();
  await libp2p.stop();
  process.exit(0);
});
