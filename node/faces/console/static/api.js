// The node's API, with the user's rights. A key stays in this tab, and is sent only to this node.

const KEY = "modelvine-key";

export const key = () => sessionStorage.getItem(KEY) || "";
export const setKey = (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY));
export const bearer = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

export class Refused extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

export async function ask(path, { body, method, headers, signal } = {}) {
  const said = body === undefined ? {} : { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(path, {
      method: method || (body === undefined ? "GET" : "POST"),
      headers: { ...said, ...bearer(), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The node does not answer.");
  }
  if (!response.ok) throw new Refused(response.status, await words(response));
  return response;
}

export const get = async (path) => (await ask(path)).json();
export const post = async (path, body = {}) => (await ask(path, { body })).json();

async function words(response) {
  try {
    const said = await response.json();
    return said.error?.message || said.message || `${response.status} ${response.statusText}`;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

// Yield the data of each event as it arrives.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      held += value;
      const lines = held.split("\n");
      held = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
