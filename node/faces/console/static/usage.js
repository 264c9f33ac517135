// Usage by day, key and model: operators see all, users their own.

import { get } from "./api.js";
import { chart } from "./charts.js";
import { command, compact, field, figures, h, name, note, number, put, seconds, table } from "./dom.js";

export function show(place, me) {
  const days = field("Days", { onchange: () => look() }, { options: [["1", "today"], ["7", "the last 7"], ["30", "the last 30"]] });
  const by = field("By", { onchange: () => look() }, { options: [["day,key,model", "day, key and model"], ["key", "key"], ["model", "model"], ["day", "day"], ["node", "machine"]] });
  days.querySelector("select").value = "7";
  const shown = h("div", {});
  let undraw = () => {};

  async function look() {
    undraw();
    const count = Number(days.querySelector("select").value);
    const wanted = by.querySelector("select").value;
    const since = new Date(Date.now() - (count - 1) * 86400000).toISOString().slice(0, 10);
    try {
      const [said, daily] = await Promise.all([get(`/api/v1/usage?${new URLSearchParams({ since, by: wanted })}`), get(`/api/v1/usage?${new URLSearchParams({ since, by: "day" })}`)]);
      const rows = [...said.usage].reverse();
      const total = (what) => daily.usage.reduce((sum, row) => sum + row[what], 0);
      const place_ = h("div", { class: "card chart pane" });
      put(shown,
        figures([["requests", compact(total("requests"))], ["failed", compact(total("failed"))], ["input tokens", compact(total("prompt_tokens"))], ["output tokens", compact(total("completion_tokens"))], ["cached tokens", compact(total("cached_tokens"))]]),
        daily.usage.length > 1 && place_,
        table("Usage", [
          ...wanted.split(",").map((what) => ({ title: { day: "Day", key: "Key", model: "Model", node: "Machine" }[what], cell: (row) => name(row[what] === "-" ? "–" : row[what]) })),
          { title: "Requests", number: true, cell: (row) => number(row.requests) },
          { title: "Failed", number: true, cell: (row) => number(row.failed) },
          { title: "Input tokens", number: true, cell: (row) => number(row.prompt_tokens) },
          { title: "Output tokens", number: true, cell: (row) => number(row.completion_tokens) },
          { title: "Cached tokens", number: true, cell: (row) => number(row.cached_tokens) },
          { title: "First byte", number: true, cell: (row) => (row.requests > row.failed ? seconds(row.first_seconds / (row.requests - row.failed)) : "–") },
          { title: "Time", number: true, cell: (row) => seconds(row.seconds) },
        ], rows.slice(0, 500), { empty: "No usage in these days." }),
        command(["modelvine", "usage", "--days", String(count), ...(wanted.includes(",") ? [] : ["--by", wanted])]));
      if (daily.usage.length > 1) {
        undraw = chart(place_, { title: "Output tokens a day", bars: true, show: compact, x: daily.usage.map((row) => Date.parse(row.day) / 1000), series: [{ label: "tokens", values: daily.usage.map((row) => row.completion_tokens) }] });
      }
    } catch (error) {
      put(shown, note(error.message, "bad"));
    }
  }

  put(place, h("div", { class: "filters pane" }, days, by), shown);
  look();
  return () => undraw();
}
