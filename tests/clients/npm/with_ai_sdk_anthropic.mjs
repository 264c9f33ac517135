// What does the AI SDK get from a node that it takes for Anthropic?

import { createAnthropic } from "@ai-sdk/anthropic";
import { KEY, NODE, seen } from "./ai_sdk.mjs";

const provider = createAnthropic({ baseURL: `${NODE}/v1`, apiKey: KEY });

console.log(JSON.stringify(await seen((name) => provider.messages(name))));
