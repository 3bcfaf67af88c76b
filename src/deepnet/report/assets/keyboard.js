// Reading charts by keyboard: arrows, Home, End, and Page Up and Page Down over the layers of a map.

const cursors = new Map(); // plot id -> what the keys have come to

// What the keys move over: columns, and in a map rows; what stands there, and where it is.
function gridOf(plot) {
  if (plot.dataset.profile) return profileGrid(plot);
  return plot.dataset.map ? mapGrid(plot) : lineGrid(chartOf(plot));
}

function lineGrid(chart) {
  const steps = stepsOf(chart, ALL_LOOKS);
  const place = (step) => {
    const { run } = chart.series.find((series) => series.steps.includes(step));
    return isWindowed(chart) ? step : along(run, [step])[0];
  };
  return {
    columns: steps.length,
    rows: 1,
    point: ({ column }) => ({ xval: place(steps[column]) }),
    text: ({ column }) => lineReading(chart, steps[column]),
  };
}

function mapGrid(plot) {
  const [map, part] = [mapOf(plot), partOf(plot)];
  const { values } = cellsOf(part, chosenOption(map));
  const place = (step) => (inWindow(plot) ? step : along(part.run, [step])[0]);
  return {
    columns: part.steps.length,
    rows: values.length,
    point: ({ column, row }) => ({ xval: place(part.steps[column]), yval: row + 1 }),
    text: ({ column, row }) => `Update ${whole.format(part.steps[column])}, layer ${row + 1}: ${say(values[row]?.[column])}`,
  };
}

function profileGrid(plot) {
  const { values } = cellsOf(partOf(plot), chosenOption(mapOf(plot)));
  const columns = profileColumns(plot);
  return {
    columns: values.length,
    rows: 1,
    point: ({ column }) => ({ xval: column + 1 }),
    text: (at) => `Layer ${at.column + 1}: ${columns.map(({ column, name }) => `${name} ${say(values[at.column][column])}`).join("; ")}`,
  };
}

function lineReading(chart, step) {
  const parts = chart.series
    .filter((series) => series.steps.includes(step))
    .map((series) => `${seriesName(series)} ${say(series.values[series.steps.lastIndexOf(step)])}`);
  const events = data.incidents.filter((one) => one.step === step).map((one) => `incident: ${incidentText(one)}`);
  return `Update ${whole.format(step)}: ${[...parts, ...events].join("; ")}`;
}

// A page is a tenth of what the keys move over.
function moved(key, { columns, rows }, old) {
  const page = (size) => Math.max(1, Math.round(size / 10));
  const up = rows > 1 ? [0, page(rows)] : [page(columns), 0];
  const by = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, 1],
    ArrowDown: [0, -1],
    PageUp: up,
    PageDown: up.map((size) => -size),
  }[key];
  if (key === "Home" || key === "End") return { column: key === "Home" ? 0 : columns - 1, row: old ? old.row : 0 };
  if (!old) return { column: 0, row: 0 };
  return { column: clamp(old.column + by[0], columns), row: clamp(old.row + by[1], rows) };
}

function read(plot, key) {
  const grid = gridOf(plot);
  const cursor = moved(key, grid, cursors.get(plot.id));
  cursors.set(plot.id, cursor);
  plot.parentElement.querySelector(`#${CSS.escape(plot.id)} ~ .readout`).textContent = grid.text(cursor);
  Plotly.Fx.hover(plot, grid.point(cursor), ["xy"]);
}

const READING_KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"];

function onKey(event) {
  const plot = event.target;
  if (!plot.classList.contains("plot") || !plot.dataset.drawn || event.ctrlKey || event.metaKey || event.altKey) return;
  if (READING_KEYS.includes(event.key)) read(plot, event.key);
  else if (event.key === "+" || event.key === "=") zoomBy(plot, 0.5);
  else if (event.key === "-") zoomBy(plot, 2);
  else if (event.key === "0") Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true });
  else if (event.key === "s") Plotly.downloadImage(plot, CONFIG.toImageButtonOptions);
  else return;
  event.preventDefault();
}
