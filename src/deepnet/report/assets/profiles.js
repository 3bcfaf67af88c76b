// Profiles: one column of a map over its layers, just before an incident and at it.

// Columns of a map beside an update: the last before it, and the first that is not before it.
function beside(part, step) {
  const at = part.steps.findIndex((one) => one >= step);
  return at < 0 ? { before: part.steps.length - 1, at: null } : { before: at > 0 ? at - 1 : null, at };
}

function profileColumns(plot) {
  const step = Number(plot.dataset.step);
  const part = partOf(plot);
  const { before, at } = beside(part, step);
  const name = (column) => `update ${whole.format(part.steps[column])}`;
  return [
    before !== null && { column: before, name: `${name(before)}, before`, look: { color: "#57606a", width: 1.4, dash: "dash" } },
    at !== null && { column: at, name: part.steps[at] === step ? `${name(at)}, the incident` : `${name(at)}, after`, look: { color: "#D55E00", width: 2 } },
  ].filter(Boolean);
}

function profileFigure(plot) {
  const [map, part] = [mapOf(plot), partOf(plot)];
  const option = chosenOption(map);
  const { values } = cellsOf(part, option);
  const columns = profileColumns(plot);
  const shown = columns.map(({ column }) => values.map((row) => row[column]));
  const incident = data.incidents.find((one) => one.key === plot.dataset.incident);
  const blames = incident && incident.stack === map.stack && incident.layer;
  return {
    data: [
      ...columns.map((one, number) => profileTrace(one, shown[number])),
      ...wrongLayers(shown.at(-1)),
    ],
    layout: layoutOf({
      margin: { l: 62, r: 22, t: 34, b: 44 },
      hovermode: "x unified",
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemwidth: 40 },
      shapes: blames ? [{ type: "line", xref: "x", x0: incident.layer, x1: incident.layer, yref: "paper", y0: 0, y1: 1, line: { color: "#24292f", width: 1, dash: "dot" } }] : [],
      annotations: blames ? [blamedNote(incident.layer, values.length)] : [],
      xaxis: { ...layerAxis(values.length), autorangeoptions: { minallowed: 0.5, maxallowed: values.length + 0.5 }, unifiedhovertitle: { text: "layer %{x:,d}" } },
      yaxis: { title: { text: plain(map.title.toLowerCase()), standoff: 10 }, type: option.scale.log ? "log" : "linear", ...(option.scale.log ? { dtick: profileTicks(shown) } : {}) },
    }),
  };
}

function profileTrace({ name, look }, values) {
  const y = values.map((value) => (Number.isFinite(value) ? value : null));
  const mode = values.length < 3 ? "lines+markers" : "lines";
  return { type: "scatter", mode, x: values.map((_, layer) => layer + 1), y, name, line: look, marker: { color: look.color }, hovertemplate: `%{y:.4~g}<extra>${name}</extra>` };
}

// Layers whose value is not finite stand along the top.
function wrongLayers(values) {
  const layers = [...values.keys()].filter((layer) => values[layer] === Infinity).map((layer) => layer + 1);
  if (!layers.length) return [];
  const marker = { symbol: "x", size: 7, color: NOT_FINITE };
  return [{ ...overChart, mode: "markers", x: layers, y: layers.map(() => 0.97), marker, name: "not finite", showlegend: true, hovertemplate: "not finite<extra></extra>" }];
}

const blamedNote = (layer, layers) => ({
  x: layer,
  y: 1,
  xref: "x",
  yref: "paper",
  xanchor: layer > layers / 2 ? "right" : "left",
  yanchor: "top",
  showarrow: false,
  text: ` layer ${whole.format(layer)} `,
  bgcolor: "rgba(255,255,255,0.8)",
});

function profileTicks(shown) {
  const [low, high] = extent(shown.flat().filter((value) => value > 0 && value < Infinity));
  return Math.log10(high / low) > 2.2 ? 1 : "D2";
}
