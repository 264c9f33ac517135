// Loader for libraries: from this node, when a pane first needs them; they run in the given order.

const loaded = new Map();

function script(path) {
  return new Promise((resolve, reject) => {
    const element = document.createElement("script");
    element.src = `/console/${path}`;
    element.async = false;
    element.addEventListener("load", resolve);
    element.addEventListener("error", () => reject(new Error(`${path} cannot be loaded`)));
    document.head.append(element);
  });
}

export function style(path) {
  if (loaded.has(path)) return;
  loaded.set(path, true);
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = `/console/${path}`;
  document.head.append(link);
}

export async function load(...paths) {
  for (const path of paths) {
    if (!loaded.has(path)) loaded.set(path, script(path));
  }
  await Promise.all(paths.map((path) => loaded.get(path)));
}
