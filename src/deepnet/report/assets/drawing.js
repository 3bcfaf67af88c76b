// Drawing: each chart by its kind, the nearest first, those in a closed part when it is opened.

const CONFIG = {
  responsive: true,
  displaylogo: false,
  // named one by one: among plotly's own choice is one that sends the chart to its maker
  modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  plotlyServerURL: "",
  toImageButtonOptions: { format: "png", scale: 2 },
};

const chartOf = (plot) => data.lines[plot.dataset.lines];
const isVisible = (plot) => plot.checkVisibility(); // a closed part has a width, and is not seen

// What is drawn, said and put into a table for each kind of chart, and which of its axes go over what.
const LINES = {
  figure: (plot) => lineFigure(chartOf(plot)),
  sentence: (plot) => lineSentence(chartOf(plot)),
  table: (plot) => lineTable(chartOf(plot)),
  axes: { run: "xaxis" },
};
const MAP = {
  figure: (plot) => mapFigure(mapOf(plot), partOf(plot)),
  sentence: (plot) => mapSentence(mapOf(plot), partOf(plot)),
  table: (plot) => mapTable(mapOf(plot), partOf(plot)),
  axes: { run: "xaxis", layers: "yaxis" },
};
const PROFILE = { figure: profileFigure, sentence: profileSentence, table: profileTable, axes: { layers: "xaxis" } };

const kindOf = ({ dataset }) => (dataset.lines ? LINES : dataset.map ? MAP : PROFILE);

async function draw(plot) {
  if (!isVisible(plot)) return;
  const figure = kindOf(plot).figure(plot);
  const isNew = !plot.dataset.drawn;
  if (!isNew) keepZoom(plot, figure.layout);
  else Object.assign(figure.layout, withZoom(plot, figure.layout));
  await Plotly.react(plot, figure.data, figure.layout, CONFIG);
  if (isNew) {
    plot.on("plotly_relayout", (change) => follow(plot, change));
    plot.on("plotly_afterplot", () => describe(plot));
  }
  plot.dataset.drawn = "yes";
  describe(plot);
  if (plot.dataset.map) fillLegend(plot, mapOf(plot), partOf(plot));
}

// The picture itself is hidden from screen readers, which get a sentence and, on demand, a table; its buttons are for
// the mouse, and the keyboard has keys for them. A viewBox lets print shrink it as a whole.
function describe(plot) {
  plot.setAttribute("aria-label", kindOf(plot).sentence(plot));
  all(".modebar-btn", plot).forEach((button) => button.setAttribute("tabindex", "-1"));
  all("svg", plot).forEach((svg) => {
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("focusable", "false");
    const [width, height] = [svg.getAttribute("width"), svg.getAttribute("height")];
    if (svg.classList.contains("main-svg")) svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  });
  const picture = plot.querySelector(".main-svg");
  plot.style.setProperty("--ratio", `${picture.getAttribute("width")} / ${picture.getAttribute("height")}`);
}

async function drawAll() {
  const waiting = all(".plot").filter((plot) => !plot.dataset.drawn && isVisible(plot));
  const distance = (plot) => Math.abs(plot.getBoundingClientRect().top);
  waiting.sort((a, b) => distance(a) - distance(b));
  for (const plot of waiting) {
    await draw(plot);
    await new Promise((resume) => setTimeout(resume));
  }
  byId("js-plotly-tester")?.setAttribute("aria-hidden", "true"); // plotly measures text in it
  document.documentElement.dataset.drawn = "all";
}

async function redraw(plot) {
  await draw(plot);
  all(`details[open][data-numbers="${CSS.escape(plot.id)}"]`).forEach(fillTable);
}
