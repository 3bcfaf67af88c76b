// Drawing when a chart comes into view, one zoom for all, keyboard and print.

const CONFIG = {
  responsive: true,
  displaylogo: false,
  // named one by one: among plotly's own choice is one that sends the chart to its maker
  modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  plotlyServerURL: "",
  toImageButtonOptions: { format: "png", scale: 2 },
};
const PAPER_WIDTH = 340; // pixels: half of A4 or letter between its margins
let range = null; // the updates that all charts are zoomed to, null for everything
let relaying = false;
const cursors = new Map(); // plot id -> what the arrow keys have come to

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const partOf = (plot) => data.maps[plot.dataset.map].runs[Number(plot.dataset.part)];
const inWindow = (plot) => Boolean(plot.closest("details.window"));
const isLinked = (plot) => document.getElementById("linked").checked && !inWindow(plot);
const isVisible = (plot) => plot.clientWidth > 0;

function figureOf(plot) {
  if (plot.dataset.map) return mapFigure(data.maps[plot.dataset.map], partOf(plot));
  return lineFigure(data.lines[plot.dataset.lines], { log: document.getElementById(`log-${plot.dataset.lines}`).checked });
}

// What the reader has zoomed to stays where it is when the numbers change.
function keepZoom(plot, layout) {
  const old = plot.layout;
  if (range && isLinked(plot)) Object.assign(layout.xaxis, { range: [...range], autorange: false });
  else if (old && old.xaxis.autorange === false) Object.assign(layout.xaxis, { range: [...old.xaxis.range], autorange: false });
  const sameScale = old && old.yaxis.type === layout.yaxis.type;
  if (sameScale && old.yaxis.autorange === false) Object.assign(layout.yaxis, { range: [...old.yaxis.range], autorange: false });
}

async function draw(plot) {
  if (!isVisible(plot)) return;
  const figure = figureOf(plot);
  const isNew = !plot.dataset.drawn;
  if (!isNew) keepZoom(plot, figure.layout);
  else if (range && isLinked(plot)) figure.layout.xaxis.range = [...range];
  await Plotly.react(plot, figure.data, figure.layout, CONFIG);
  if (isNew) {
    plot.on("plotly_relayout", (change) => follow(plot, change));
    plot.on("plotly_afterplot", () => describe(plot));
  }
  plot.dataset.drawn = "yes";
  describe(plot);
}

// The picture itself is hidden from screen readers, which get a sentence and, on demand, a table. A viewBox lets print
// shrink it as a whole.
function describe(plot) {
  plot.setAttribute("aria-label", plot.dataset.map ? mapSentence(data.maps[plot.dataset.map], partOf(plot)) : lineSentence(data.lines[plot.dataset.lines]));
  all("svg", plot).forEach((svg) => {
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("focusable", "false");
    const [width, height] = [svg.getAttribute("width"), svg.getAttribute("height")];
    if (svg.classList.contains("main-svg")) svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  });
  const picture = plot.querySelector(".main-svg");
  plot.style.setProperty("--ratio", `${picture.getAttribute("width")} / ${picture.getAttribute("height")}`);
}

async function follow(plot, change) {
  if (relaying || inWindow(plot)) return;
  if (change["xaxis.autorange"]) await zoomAll(null, plot);
  else if ("xaxis.range[0]" in change) await zoomAll([change["xaxis.range[0]"], change["xaxis.range[1]"]], plot);
  else if (Array.isArray(change["xaxis.range"])) await zoomAll(change["xaxis.range"], plot);
}

async function zoomAll(wanted, origin) {
  if (origin && !isLinked(origin)) return;
  range = wanted;
  relaying = true;
  const others = all(".plot[data-drawn]").filter((plot) => plot !== origin && isVisible(plot) && isLinked(plot));
  await Promise.all(others.map((plot) => Plotly.relayout(plot, zoomTo(wanted))));
  relaying = false;
}

const zoomTo = (wanted) => (wanted ? { "xaxis.range": [...wanted] } : { "xaxis.autorange": true });

async function showEverything() {
  range = null;
  relaying = true;
  const drawn = all(".plot[data-drawn]").filter(isVisible);
  await Promise.all(drawn.map((plot) => Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true })));
  relaying = false;
}

// The nearest charts first, the others when there is time; a chart in a closed part when it is opened.
async function drawAll() {
  const waiting = all(".plot").filter((plot) => !plot.dataset.drawn && isVisible(plot));
  const distance = (plot) => Math.abs(plot.getBoundingClientRect().top);
  waiting.sort((a, b) => distance(a) - distance(b));
  for (const plot of waiting) {
    await draw(plot);
    await new Promise((resume) => setTimeout(resume));
  }
  document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true"); // plotly measures text in it
  document.documentElement.dataset.drawn = "all";
}

function zoomBy(plot, factor) {
  const axis = plot._fullLayout.xaxis;
  const [low, high] = axis.range.map(Number);
  const cursor = cursors.get(plot.id);
  const middle = cursor ? cursor.step : (low + high) / 2;
  return Plotly.relayout(plot, { "xaxis.range": [middle - (middle - low) * factor, middle + (high - middle) * factor] });
}

function read(plot, key) {
  const map = plot.dataset.map && data.maps[plot.dataset.map];
  const steps = map ? partOf(plot).steps : stepsOf(data.lines[plot.dataset.lines], ALL_LOOKS);
  const old = cursors.get(plot.id);
  const layers = map ? cellsOf(map, partOf(plot), chosenOption(map)).values : [];
  const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[key];
  const start = old ? steps.indexOf(old.step) : -1;
  const column = key === "Home" ? 0 : key === "End" ? steps.length - 1 : clamp(start + (old ? move[0] : 1), steps.length);
  const layer = key === "Home" || key === "End" || !old ? (old ? old.layer : 0) : clamp(old.layer + move[1], layers.length);
  cursors.set(plot.id, { step: steps[column], layer });
  const text = map ? mapReading(layers, steps, column, layer) : lineReading(data.lines[plot.dataset.lines], steps[column]);
  plot.parentElement.querySelector(`#${CSS.escape(plot.id)} ~ .readout`).textContent = text;
  const point = map ? { xval: steps[column], yval: layer + 1 } : { xval: steps[column] };
  Plotly.Fx.hover(plot, point, ["xy"]);
}

const clamp = (place, length) => Math.max(0, Math.min(length - 1, place));

function mapReading(layers, steps, column, layer) {
  return `Update ${whole.format(steps[column])}, layer ${layer + 1}: ${say(layers[layer]?.[column])}`;
}

function lineReading(chart, step) {
  const parts = chart.series
    .filter((series) => series.steps.includes(step))
    .map((series) => `${seriesName(series)} ${say(series.values[series.steps.lastIndexOf(step)])}`);
  const events = data.incidents.filter((one) => one.step === step).map((one) => `incident: ${incidentText(one)}`);
  return `Update ${whole.format(step)}: ${[...parts, ...events].join("; ")}`;
}

function onKey(event) {
  const plot = event.target;
  if (!plot.classList.contains("plot") || !plot.dataset.drawn || event.ctrlKey || event.metaKey || event.altKey) return;
  if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) read(plot, event.key);
  else if (event.key === "+" || event.key === "=") zoomBy(plot, 0.5);
  else if (event.key === "-") zoomBy(plot, 2);
  else if (event.key === "0") Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true });
  else return;
  event.preventDefault();
}

function onChange(event) {
  const { log, choice } = event.target.dataset;
  if (log) redraw(document.getElementById(log));
  if (choice) all(`.plot[data-map="${CSS.escape(choice)}"]`).forEach(redraw);
}

async function redraw(plot) {
  await draw(plot);
  all(`details[open][data-numbers="${CSS.escape(plot.id)}"]`).forEach(fillTable);
}

// "toggle" does not bubble
function onToggle(event) {
  if (!event.target.open) return;
  if (event.target.dataset.numbers) fillTable(event.target);
  if (event.target.classList.contains("window")) drawAll();
}

// On paper two charts stand beside each other, with letters of the same size as on the screen.
function forPaper() {
  all(".plot[data-drawn]").filter(isVisible).forEach((plot) => {
    const height = plot.dataset.map ? plot.clientHeight : 250;
    Plotly.relayout(plot, { autosize: false, width: PAPER_WIDTH, height });
  });
}

function forScreen() {
  all(".plot[data-drawn]").filter(isVisible).forEach((plot) => Plotly.relayout(plot, { autosize: true, width: null, height: null }));
}

window.addEventListener("beforeprint", forPaper);
window.addEventListener("afterprint", forScreen);
document.addEventListener("keydown", onKey);
document.addEventListener("change", onChange);
document.addEventListener("toggle", onToggle, true);
document.addEventListener("click", (event) => event.target.id === "reset" && showEverything());
unpack(data).then(drawAll);
