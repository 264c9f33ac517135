// Charts by uPlot, in the colours of the page.

import { h } from "./dom.js";
import { load, style } from "./load.js";

const COLOURS = { light: ["#2f6b47", "#b5651d", "#3b6ea8", "#8a4f9e", "#b02e26", "#00797a", "#7a6a00", "#5a6560"], dark: ["#86c79c", "#e6a566", "#86b4e8", "#cfa0e0", "#f08f86", "#62c7c7", "#d4c35a", "#9aa7a0"] };
const HEIGHT = 170;

const time = (at) => new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = (at) => new Date(at * 1000).toLocaleDateString("en-CA").slice(5);

// `series`: {label, values}; `x` are Unix times. Return a function that destroys the chart.
export function chart(place, { title, x, series, show, bars }) {
  let drawn = null;
  let gone = false;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const canvas = h("div", { role: "img", "aria-label": `${title}: ${series.map((one) => one.label).join(", ")}` });
  place.append(h("h3", {}, title), canvas);

  function draw() {
    drawn?.destroy();
    const styles = getComputedStyle(document.documentElement);
    const ink = styles.getPropertyValue("--muted").trim();
    const grid = { stroke: styles.getPropertyValue("--line").trim(), width: 1 };
    const colours = COLOURS[dark.matches ? "dark" : "light"];
    const axis = { stroke: ink, grid, ticks: { show: false }, font: "11px system-ui" };
    drawn = new globalThis.uPlot({
      width: Math.max(200, place.clientWidth),
      height: HEIGHT,
      cursor: { points: { size: 5 } },
      legend: { live: true },
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map(bars ? day : time) }, { ...axis, size: 56, values: (_, ticks) => ticks.map(show) }],
      series: [
        { value: (_, at) => (at ? new Date(at * 1000).toLocaleTimeString("en-GB") : "–") },
        ...series.map((one, at) => ({
          label: one.label, stroke: colours[at % colours.length], width: 1.6, spanGaps: false, points: { show: !bars && one.values.some((value) => value === null), size: 4 },
          fill: bars ? colours[at % colours.length] : undefined, paths: bars ? globalThis.uPlot.paths.bars({ size: [0.7, 60] }) : undefined,
          value: (_, value) => (value === null || value === undefined ? "–" : show(value)),
        })),
      ],
    }, [x, ...series.map((one) => one.values)], canvas);
  }

  const watching = new ResizeObserver(() => drawn?.setSize({ width: Math.max(200, place.clientWidth), height: HEIGHT }));
  style("vendor/uplot/uPlot.min.css");
  load("vendor/uplot/uPlot.iife.min.js").then(() => {
    if (gone) return;
    draw();
    watching.observe(place);
    dark.addEventListener("change", draw);
  });
  return () => {
    gone = true;
    watching.disconnect();
    dark.removeEventListener("change", draw);
    drawn?.destroy();
  };
}
