// Incidents in charts: when they were, on every chart, and in maps the layer that they blame.

const KIND_SYMBOLS = { "not a number": "x", spike: "triangle-down", explosion: "star", plateau: "square" };

const incidentText = (one) => `${one.kind}, ${one.action}${one.where ? `, ${one.where}` : ""}`;

// They stand on an axis of their own that covers the chart's height and does not zoom.
function incidentTraces(runs, { onMap } = {}) {
  return runs.flatMap((run) => {
    const found = data.incidents.filter((one) => one.run === run);
    return found.length ? [...uprights(run, found, onMap), heads(run, found)] : [];
  });
}

const overChart = { type: "scatter", yaxis: "y2", showlegend: false, cliponaxis: false };

function uprights(run, found, onMap) {
  const x = along(run, found.map((one) => one.step)).flatMap((place) => [place, place, null]);
  const line = { ...overChart, x, y: found.flatMap(() => [0, 1, null]), mode: "lines", hoverinfo: "skip" };
  const dots = { ...line, line: { color: onMap ? "#000000" : "#57606a", width: onMap ? 1.5 : 1, dash: "dot" } };
  return onMap ? [{ ...line, line: { color: "#ffffff", width: 2 } }, dots] : [dots];
}

function heads(run, found) {
  const { colour, name } = data.runs[run];
  const symbol = found.map((one) => KIND_SYMBOLS[one.kind] || "diamond");
  return {
    ...overChart,
    x: along(run, found.map((one) => one.step)),
    y: found.map(() => 1),
    mode: "markers",
    marker: { color: colour, size: 9, line: { color: "#24292f", width: 1 }, symbol },
    text: found.map((one) => plain(incidentText(one))),
    hovertemplate: `%{text}<extra>${data.runs.length > 1 ? plain(name) : "incident"}</extra>`,
  };
}

// The incidents that blame a layer of a map: of a window its own, of a map of the run all.
function blaming(map, run) {
  const own = data.incidents.filter((one) => one.run === run && one.stack === map.stack && one.layer);
  return map.key.startsWith("incident-") ? own.filter((one) => map.key.startsWith(`${one.key}-`)) : own;
}

// The layer that the run's verdict is about, or a window's incident, is outlined all along.
function outlined(map, run) {
  const found = blaming(map, run);
  return map.key.startsWith("incident-") ? found[0] : found.find((one) => one.key === data.runs[run].decisive);
}

function blamedRings(map, part, x) {
  const found = blaming(map, part.run);
  if (!found.length) return [];
  const ring = {
    type: "scatter",
    mode: "markers",
    showlegend: false,
    x: x(found.map((one) => one.step)),
    y: found.map((one) => one.layer),
    text: found.map((one) => plain(incidentText(one))),
  };
  const marker = (color, width) => ({ symbol: "circle-open", size: 13, color, line: { width } });
  return [
    { ...ring, marker: marker("#ffffff", 5), hoverinfo: "skip" },
    { ...ring, marker: marker("#000000", 2), hovertemplate: "%{text}<extra>blamed</extra>" },
  ];
}

// Where layers are thinner than a line, an arrow beside them still tells which it is.
function blamedArrow(map, run) {
  const one = outlined(map, run);
  const common = { x: 0, xref: "paper", xanchor: "right", yref: "y", yanchor: "middle", showarrow: false };
  return one ? [{ ...common, y: one.layer, text: "\u25b6", font: { size: 10, color: "#a40e26" } }] : [];
}

function blamedOutline(map, run) {
  const one = outlined(map, run);
  if (!one) return [];
  const box = { type: "rect", xref: "paper", x0: 0, x1: 1, yref: "y", y0: one.layer - 0.5, y1: one.layer + 0.5 };
  return [
    { ...box, line: { color: "#ffffff", width: 3 } },
    { ...box, line: { color: "#000000", width: 1 } },
  ];
}
