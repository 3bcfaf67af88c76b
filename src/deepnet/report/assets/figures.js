// Line charts, and what all charts have in common: from the report's numbers to what plotly draws.

const FONT = { family: 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif', size: 12, color: "#24292f" };
const GRID = "#e3e7eb";
const KIND_SYMBOLS = { "not a number": "x", spike: "triangle-down", explosion: "star", plateau: "square" };
let data = JSON.parse(document.getElementById("data").textContent);


// plotly reads a few HTML tags and entities in its texts; a run's name is text
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function seriesName(series) {
  const run = data.runs[series.run].name;
  if (data.runs.length === 1) return series.label || run;
  return series.label ? `${run}, ${series.label}` : run;
}

// One entry per run where several are compared: its training and validation are switched on and off together.
function entryShown(chart, series) {
  if (data.runs.length === 1 || chart.key.startsWith("incident-")) return chart.series.length > 1;
  const own = chart.series.filter((one) => one.run === series.run);
  return series === (own.find((one) => one.look !== "thin") || own[0]);
}

function lineTrace(chart, series) {
  const { colour, dash, symbol } = data.runs[series.run];
  const entry = data.runs.length === 1 ? seriesName(series) : data.runs[series.run].name;
  const marked = series.look === "marked" || series.look === "star" || series.steps.length < 3;
  return {
    type: "scatter",
    x: series.steps,
    y: series.values,
    name: plain(entry),
    showlegend: entryShown(chart, series),
    legendgroup: data.runs.length === 1 ? undefined : `run${series.run}`,
    mode: series.look === "star" ? "markers" : marked ? "lines+markers" : "lines",
    line: {
      color: colour,
      width: series.look === "thin" ? 1 : 1.8,
      dash: series.look === "dotted" ? "dot" : dash,
    },
    marker: { color: colour, symbol: series.look === "star" ? "star" : symbol, size: series.look === "star" ? 13 : 6 },
    opacity: series.look === "thin" ? 0.55 : 1,
    hovertemplate: `%{y:${chart.words.number}}<extra>${plain(seriesName(series))}</extra>`,
  };
}

// Incidents stand on an axis of their own that covers the chart's height and does not zoom.
function incidentTraces(runs, { onMap } = {}) {
  const traces = [];
  for (const run of runs) {
    const found = data.incidents.filter((one) => one.run === run);
    if (!found.length) continue;
    const { colour, name } = data.runs[run];
    const common = { type: "scatter", yaxis: "y2", showlegend: false, cliponaxis: false };
    const upright = { x: found.flatMap((one) => [one.step, one.step, null]), y: found.flatMap(() => [0, 1, null]) };
    const line = { ...common, ...upright, mode: "lines", hoverinfo: "skip" };
    if (onMap) traces.push({ ...line, line: { color: "#ffffff", width: 2 } });
    traces.push({ ...line, line: { color: onMap ? "#000000" : "#57606a", width: onMap ? 1.5 : 1, dash: "dot" } });
    traces.push({
      ...common,
      x: found.map((one) => one.step),
      y: found.map(() => 1),
      mode: "markers",
      marker: {
        color: colour,
        size: 9,
        line: { color: "#24292f", width: 1 },
        symbol: found.map((one) => KIND_SYMBOLS[one.kind] || "diamond"),
      },
      text: found.map((one) => plain(incidentText(one))),
      hovertemplate: `%{text}<extra>${data.runs.length > 1 ? plain(name) : "incident"}</extra>`,
    });
  }
  return traces;
}

function incidentText(one) {
  return `${one.kind}, ${one.action}${one.where ? `, ${one.where}` : ""}`;
}

function layoutOf(extra) {
  const { xaxis, yaxis, ...rest } = extra;
  return {
    font: FONT,
    paper_bgcolor: "#ffffff",
    plot_bgcolor: "#ffffff",
    margin: { l: 62, r: 14, t: 34, b: 44 },
    hoverlabel: { font: { family: FONT.family, size: 12 } },
    dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
    uirevision: "kept",
    separators: ".,",
    xaxis: {
      title: { text: "update", standoff: 8 },
      gridcolor: GRID,
      zeroline: false,
      linecolor: "#8c959f",
      ticks: "outside",
      ticklen: 4,
      tickcolor: "#8c959f",
      tickformat: ",d",
      hoverformat: ",d",
      nticks: 7,
      ...xaxis,
    },
    yaxis: {
      gridcolor: GRID,
      zeroline: false,
      linecolor: "#8c959f",
      ticks: "outside",
      ticklen: 4,
      tickcolor: "#8c959f",
      automargin: true,
      exponentformat: "power",
      minexponent: 4,
      ...yaxis,
    },
    yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
    ...rest,
  };
}

function lineFigure(chart, { log }) {
  const runs = [...new Set(chart.series.map((series) => series.run))];
  const traces = chart.series.map((series) => lineTrace(chart, series));
  const inside = chart.key.startsWith("incident-");
  const hasLegend = traces.some((trace) => trace.showlegend);
  traces.push(...aroundLevel(chart));
  return {
    data: inside ? traces : [...traces, ...incidentTraces(runs)],
    layout: layoutOf({
      margin: { l: 62, r: 22, t: hasLegend ? 34 : 14, b: 44 },
      hovermode: "x unified",
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemwidth: 40, font: { size: 12 } },
      xaxis: {
        unifiedhovertitle: { text: "update %{x:,d}" },
        autorangeoptions: inside ? undefined : { include: shownSteps() },
      },
      yaxis: {
        title: { text: plain(chart.words.unit), standoff: 10 },
        type: log ? "log" : "linear",
        hoverformat: chart.words.number,
        ...(log ? logAxis(chart) : { tickformat: tickFormat(chart) }),
      },
    }),
  };
}

function finite(values) {
  return values.filter((value) => value !== null && Number.isFinite(value));
}

// A level line gets an axis around its value, by two points that are not seen; plotly's own is 1 below to 1 above.
function aroundLevel(chart) {
  const values = chart.series.flatMap((series) => finite(series.values));
  if (!values[0] || values.some((value) => value !== values[0])) return [];
  const step = chart.series[0].steps[0];
  const ends = { x: [step, step], y: [values[0] * 0.9, values[0] * 1.1] };
  return [{ type: "scatter", mode: "markers", ...ends, opacity: 0, hoverinfo: "skip", showlegend: false }];
}

function decades(chart) {
  const values = chart.series.flatMap((series) => finite(series.values)).filter((value) => value > 0);
  const extent = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, 0]);
  return values.length ? Math.log10(extent[1] / extent[0]) : 0;
}

// Tick labels at 1, 2 and 5 where there is room, at powers of ten elsewhere.
function logAxis(chart) {
  return decades(chart) > 2.2 ? { dtick: 1 } : { dtick: "D2", tickformat: ".3~g" };
}

// The first and last update of all charts, with a little air, so that charts stand under each other.
function shownSteps() {
  const steps = Object.values(data.lines)
    .filter((chart) => !chart.key.startsWith("incident-"))
    .flatMap((chart) => chart.series.flatMap((series) => [series.steps[0], series.steps[series.steps.length - 1]]));
  const [low, high] = [Math.min(...steps), Math.max(...steps)];
  const air = (high - low) * 0.02 || 1;
  return [low - air, high + air];
}

function tickFormat(chart) {
  return chart.words.number.startsWith(",") ? "," : undefined;
}
