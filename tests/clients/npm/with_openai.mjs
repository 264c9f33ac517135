// What does OpenAI's own client for Node.js get from a node?

import OpenAI, { toFile } from "openai";

const [NODE, TALKER, CALLER, READER, BREAKER, SPEAKER, LISTENER] = process.argv.slice(2);
const messages = [{ role: "user", content: "Tell me a story about a vine." }];
const max_tokens = 12;
const input = messages[0].content;
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", parameters } }];

const client = new OpenAI({ baseURL: `${NODE}/v1`, apiKey: "sk-nobody-checks-it", maxRetries: 0 });
const chats = client.chat.completions;

const models = [];
for await (const model of client.models.list()) models.push(model.id);

const whole = await chats.create({ model: TALKER, messages, max_tokens });

const pieces = [];
for await (const chunk of await chats.create({ model: TALKER, messages, max_tokens, stream: true }))
  for (const choice of chunk.choices) pieces.push(choice.delta.content ?? "");

const offered = { model: CALLER, messages, tools, tool_choice: "required" };
const called = [
  await chats.create(offered),
  await chats.stream(offered).finalChatCompletion(),
].flatMap((answer) => answer.choices[0].message.tool_calls);

// The client asks for base64 by itself, and decodes it.
const vectors = await client.embeddings.create({ model: READER, input: ["a vine", "a car"] });
const completion = await client.completions.create({ model: TALKER, prompt: "Once upon a time", max_tokens });

const answers = { model: TALKER, input, max_output_tokens: max_tokens };
const response = await client.responses.create(answers);
const deltas = [];
for await (const event of await client.responses.create({ ...answers, stream: true }))
  if (event.type === "response.output_text.delta") deltas.push(event.delta);
const tool = { type: "function", name: "weather", parameters, strict: false };
const asking = { model: CALLER, input, tools: [tool], tool_choice: "required" };
const asked = [
  await client.responses.create(asking),
  await client.responses.stream(asking).finalResponse(),
].flatMap(({ output }) => output.filter((item) => item.type === "function_call"));

const spoken = await client.audio.speech.create({
  model: SPEAKER,
  voice: "en-us+f2",
  input: "hello world",
  response_format: "wav",
});
const file = await toFile(Buffer.from(await spoken.arrayBuffer()), "said.wav");
const heard = await client.audio.transcriptions.create({ model: LISTENER, file });

async function refusal(ask) {
  try {
    await ask();
  } catch (error) {
    return { raised: error.constructor.name, words: error.message };
  }
  return { raised: "", words: "" };
}

async function readAll(model) {
  for await (const _ of await chats.create({ model, messages, stream: true }));
}

console.log(
  JSON.stringify({
    models,
    chat: whole.choices[0].message.content,
    stream: pieces,
    completion: completion.choices[0].text,
    tools: called.map(({ function: { name, arguments: given } }) => ({ name, arguments: given })),
    responses: {
      text: response.output_text,
      deltas,
      calls: asked.map(({ name, arguments: given }) => ({ name, arguments: given })),
    },
    embeddings: vectors.data.map((row) => row.embedding),
    speech: heard.text,
    unknown: await refusal(() => chats.create({ model: "nobody-has-this", messages })),
    broken: await refusal(() => readAll(BREAKER)),
  }),
);
