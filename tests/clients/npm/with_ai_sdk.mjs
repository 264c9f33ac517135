// What does the AI SDK get from a node that it takes for any server with OpenAI's interface?

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany } from "ai";
import { KEY, NODE, READER, seen } from "./ai_sdk.mjs";

const provider = createOpenAICompatible({ name: "node", baseURL: `${NODE}/v1`, apiKey: KEY });
const model = provider.textEmbeddingModel(READER);
const { embeddings } = await embedMany({ model, values: ["a vine", "a car"], maxRetries: 0 });

console.log(JSON.stringify({ ...(await seen((name) => provider.chatModel(name))), embeddings }));
