// The charts again as text: a sentence for those who hear the page, a table, and readings by keyboard.

const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en");

function say(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "none";
  if (!Number.isFinite(value)) return "not finite";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : digits.format(value);
}

function evenly(values, limit) {
  if (values.length <= limit) return values;
  return Array.from({ length: limit }, (_, place) => values[Math.round((place * (values.length - 1)) / (limit - 1))]);
}

function stepsOf(chart, looks) {
  const series = chart.series.filter((one) => looks.includes(one.look));
  return [...new Set(series.flatMap((one) => one.steps))].sort((a, b) => a - b);
}

const ALL_LOOKS = Object.keys(LOOKS);

function lineSentence(chart) {
  const parts = chart.series.map((series) => {
    const values = finite(series.values);
    const low = values.reduce((a, b) => Math.min(a, b));
    const high = values.reduce((a, b) => Math.max(a, b));
    return `${seriesName(series)}: from ${say(values[0])} to ${say(values[values.length - 1])}, between ${say(low)} and ${say(high)}`;
  });
  return `${chart.words.title} over updates. ${parts.join(". ")}.`;
}

function lineTable(chart) {
  const marked = stepsOf(chart, ["marked", "star"]);
  const steps = evenly(marked.length > 3 ? marked : stepsOf(chart, ALL_LOOKS), 15);
  const rows = steps.map((step) => [
    whole.format(step),
    ...chart.series.map((series) => {
      const place = series.steps.lastIndexOf(step);
      return place < 0 ? "" : say(series.values[place]);
    }),
  ]);
  return { head: ["Update", ...chart.series.map(seriesName)], rows };
}

// Lowest, middle and highest value of one column of a map, with the layers they are in; what is not finite is highest.
function columnExtent(values, column) {
  const layers = values.map((row, layer) => [row[column], layer + 1]).filter(([value]) => !Number.isNaN(value));
  layers.sort((a, b) => (a[0] === b[0] ? 0 : a[0] - b[0]));
  return layers.length
    ? { low: layers[0], middle: layers[Math.floor((layers.length - 1) / 2)], high: layers[layers.length - 1] }
    : null;
}

function mapSentence(map, part) {
  const option = chosenOption(map);
  const { values } = cellsOf(part, option);
  const steps = part.steps;
  const last = columnExtent(values, steps.length - 1);
  const name = data.runs.length > 1 ? `, ${data.runs[part.run].name}` : "";
  const about = `${map.title}, ${map.stack}, ${option.label}${name}: ${values.length} layers, ${steps.length} readings from update ${whole.format(steps[0])} to ${whole.format(steps[steps.length - 1])}.`;
  if (!last) return `${about} No value in the last reading.`;
  return `${about} In the last one lowest ${say(last.low[0])} in layer ${last.low[1]}, highest ${say(last.high[0])} in layer ${last.high[1]}.`;
}

function mapTable(map, part) {
  const { values } = cellsOf(part, chosenOption(map));
  const columns = evenly([...part.steps.keys()], 12);
  const rows = columns.map((column) => {
    const found = columnExtent(values, column);
    const cells = found ? [found.low, found.middle, found.high] : [];
    const shown = found ? cells.map(([value, layer], place) => (place === 1 ? say(value) : `${say(value)} (layer ${layer})`)) : ["none", "", ""];
    return [whole.format(part.steps[column]), ...shown];
  });
  return { head: ["Update", "Lowest", "Middle", "Highest"], rows };
}

function profileSentence(plot) {
  const map = mapOf(plot);
  const { values } = cellsOf(partOf(plot), chosenOption(map));
  const parts = profileColumns(plot).map(({ column, name }) => {
    const found = columnExtent(values, column);
    return found ? `${name}: lowest ${say(found.low[0])} in layer ${found.low[1]}, highest ${say(found.high[0])} in layer ${found.high[1]}` : `${name}: none`;
  });
  return `${map.title} over the layers of the ${map.stack}. ${parts.join(". ")}.`;
}

function profileTable(plot) {
  const { values } = cellsOf(partOf(plot), chosenOption(mapOf(plot)));
  const columns = profileColumns(plot);
  const layers = evenly([...values.keys()], 25);
  const rows = layers.map((layer) => [whole.format(layer + 1), ...columns.map(({ column }) => say(values[layer][column]))]);
  return { head: ["Layer", ...columns.map(({ name }) => name)], rows };
}

function fillTable(details) {
  const plot = byId(details.dataset.numbers);
  const { head, rows } = kindOf(plot).table(plot);
  const table = document.createElement("table");
  const top = table.createTHead().insertRow();
  head.forEach((text) => addCell(top, "th", text, "col"));
  const body = table.createTBody();
  rows.forEach((row) => {
    const line = body.insertRow();
    row.forEach((text, place) => addCell(line, place ? "td" : "th", text, "row"));
  });
  const box = document.createElement("div");
  box.className = "scroll";
  box.append(table);
  details.querySelector(".scroll")?.remove();
  details.append(box);
}

function addCell(row, tag, text, scope) {
  const cell = document.createElement(tag);
  if (tag === "th") cell.scope = scope;
  cell.textContent = text;
  cell.className = "n";
  row.append(cell);
}
