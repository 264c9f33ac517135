// What does the AI SDK get from a node that it takes for OpenAI? It asks for responses.

import { createOpenAI } from "@ai-sdk/openai";
import { KEY, NODE, seen } from "./ai_sdk.mjs";

const provider = createOpenAI({ baseURL: `${NODE}/v1`, apiKey: KEY });
const { chat, stream, tools, unknown, broken } = await seen((name) => provider.responses(name));

const responses = { text: chat, deltas: stream, calls: tools };
console.log(JSON.stringify({ responses, unknown, broken }));
