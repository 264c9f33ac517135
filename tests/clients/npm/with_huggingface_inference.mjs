// What does Hugging Face's client for Node.js get where a node speaks Text Generation Inference? Its models stand in the path.

import { InferenceClient } from "@huggingface/inference";
import { BREAKER, KEY, NODE, TALKER, refusal } from "./ai_sdk.mjs";

const inputs = "Once upon a time";
const parameters = { max_new_tokens: 12 };
const messages = [{ role: "user", content: "Tell me a story about a vine." }];

function of(model) {
  return new InferenceClient(KEY, { endpointUrl: `${NODE}/tgi/clients/${model}` });
}

async function read(model) {
  const pieces = [];
  for await (const piece of of(model).chatCompletionStream({ messages, max_tokens: 12 }))
    pieces.push(...piece.choices.map((choice) => choice.delta.content ?? ""));
  return pieces;
}

const whole = await of(TALKER).chatCompletion({ messages, max_tokens: 12 });
const completion = await of(TALKER).textGeneration({ inputs, parameters });

console.log(
  JSON.stringify({
    chat: whole.choices[0].message.content,
    stream: await read(TALKER),
    completion: completion.generated_text,
    unknown: await refusal(() => read("nobody-has-this")),
    broken: await refusal(() => read(BREAKER)),
  }),
);
