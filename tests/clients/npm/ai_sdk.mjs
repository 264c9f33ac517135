// What does every provider of Vercel's AI SDK ask a node for? It holds each answer and each event against a schema.

import { generateText, jsonSchema, streamText, tool } from "ai";

export const [NODE, TALKER, CALLER, READER, BREAKER] = process.argv.slice(2);
export const KEY = "sk-nobody-checks-it";

const prompt = "Tell me a story about a vine.";
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const weather = tool({
  description: "What the sky does over a city.",
  inputSchema: jsonSchema(parameters),
});
const calling = { tools: { weather }, toolChoice: "required" };

function asked(model) {
  return { model, prompt, maxOutputTokens: 16, maxRetries: 0 };
}

async function read(given) {
  const parts = [];
  for await (const part of streamText({ ...given, onError() {} }).fullStream) {
    if (part.type === "error") throw part.error;
    parts.push(part);
  }
  return parts;
}

export async function refusal(ask) {
  try {
    await ask();
  } catch (error) {
    return { raised: error.name ?? error.constructor.name, words: error.message ?? String(error) };
  }
  return { raised: "", words: "" };
}

export async function seen(of) {
  const whole = await generateText(asked(of(TALKER)));
  const parts = await read(asked(of(TALKER)));
  const called = await generateText({ ...asked(of(CALLER)), ...calling });
  const streamed = await read({ ...asked(of(CALLER)), ...calling });
  const calls = [...called.toolCalls, ...streamed.filter((part) => part.type === "tool-call")];
  return {
    chat: whole.text,
    stream: parts.filter((part) => part.type === "text-delta").map((part) => part.text),
    tools: calls.map(({ toolName, input }) => ({ name: toolName, arguments: input })),
    unknown: await refusal(() => generateText(asked(of("nobody-has-this")))),
    broken: await refusal(() => read(asked(of(BREAKER)))),
  };
}
