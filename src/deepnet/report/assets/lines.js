// Line charts over a run.

const seriesName = (series) => {
  const run = data.runs[series.run].name;
  if (data.runs.length === 1) return series.label || run;
  return series.label ? `${run}, ${series.label}` : run;
};

const isWindowed = (chart) => chart.key.startsWith("incident-");
const isMeasured = (series) => series.look !== "dotted";

// One entry per run where several are compared: its training and validation are switched on and off together.
function entryShown(chart, series) {
  if (data.runs.length === 1 || isWindowed(chart)) return chart.series.length > 1;
  const own = chart.series.filter((one) => one.run === series.run);
  return series === (own.find((one) => !["thin", "undone"].includes(one.look)) || own[0]);
}

const LOOKS = {
  thin: { width: 1, opacity: 0.55 },
  plain: { width: 1.8, opacity: 1 },
  marked: { width: 1.8, opacity: 1 },
  star: { width: 1.8, opacity: 1 },
  dotted: { width: 1.8, opacity: 1, dash: "dot" },
  undone: { width: 1, opacity: 0.4 },
};

function lineTrace(chart, series) {
  const { colour, dash, symbol } = data.runs[series.run];
  const look = LOOKS[series.look];
  const isStar = series.look === "star";
  const isMarked = series.look === "marked" || series.steps.length < 3;
  return {
    type: "scatter",
    x: isWindowed(chart) ? series.steps : along(series.run, series.steps),
    y: series.values,
    name: plain(data.runs.length === 1 ? seriesName(series) : data.runs[series.run].name),
    showlegend: entryShown(chart, series),
    legendgroup: data.runs.length === 1 ? undefined : `run${series.run}`,
    mode: isStar ? "markers" : isMarked ? "lines+markers" : "lines",
    line: { color: colour, width: look.width, dash: look.dash || dash },
    marker: { color: colour, symbol: isStar ? "star" : symbol, size: isStar ? 13 : 6 },
    opacity: look.opacity,
    hovertemplate: `%{y:${chart.words.number}}<extra>${plain(seriesName(series))}</extra>`,
  };
}

function lineTraces(chart, series) {
  const trace = lineTrace(chart, series);
  if (!isSmoothing() || !canSmooth(chart, series)) return [trace];
  const behind = { ...trace, opacity: 0.25, showlegend: false, hoverinfo: "skip", hovertemplate: undefined };
  const mean = { ...trace, y: smoothed(series.values), opacity: 1, line: { ...trace.line, width: 1.8 } };
  return [behind, { ...mean, hovertemplate: trace.hovertemplate.replace("</extra>", ", smoothed</extra>") }];
}

function lineFigure(chart) {
  const inside = isWindowed(chart);
  const log = byId(`log-${chart.key}`).checked;
  const traces = chart.series.flatMap((series) => lineTraces(chart, series));
  const hasLegend = traces.some((trace) => trace.showlegend);
  const around = [...aroundLevel(chart), ...(log ? zerosBelow(chart) : [])];
  const incidents = inside ? [] : incidentTraces([...new Set(chart.series.map((series) => series.run))]);
  return {
    data: [...traces, ...around, ...incidents],
    layout: layoutOf({
      margin: { l: 62, r: 22, t: hasLegend ? 34 : 14, b: 44 },
      hovermode: "x unified",
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemwidth: 40, font: { size: 12 } },
      xaxis: {
        ...runAxis(inside),
        unifiedhovertitle: { text: inside ? "update %{x:,d}" : alongAxis().says },
        autorangeoptions: inside ? undefined : { include: shownAlong() },
      },
      yaxis: {
        title: { text: plain(chart.words.unit), standoff: 10 },
        type: log ? "log" : "linear",
        hoverformat: chart.words.number,
        autorangeoptions: measuredRange(chart, log),
        ...(log ? logAxis(chart) : { tickformat: chart.words.number.startsWith(",") ? "," : undefined }),
      },
    }),
  };
}

function measuredValues(chart, log) {
  const values = chart.series.filter(isMeasured).flatMap((series) => finite(series.values));
  return log ? values.filter((value) => value > 0) : values;
}

const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

// A theory that leaves what was measured is cut off there, and flattens nothing.
function measuredRange(chart, log) {
  const [low, high] = extent(measuredValues(chart, log).map((value) => (log ? Math.log10(value) : value)));
  if (chart.series.every(isMeasured) || !(low < high)) return undefined;
  const air = (high - low) * 0.08;
  const [clipmin, clipmax] = [low - air, high + air].map((place) => (log ? 10 ** place : place));
  return { clipmin, clipmax };
}

// A level line gets an axis around its value, by two points that are not seen; plotly's own is 1 below to 1 above.
function aroundLevel(chart) {
  const values = chart.series.flatMap((series) => finite(series.values));
  if (!values[0] || values.some((value) => value !== values[0])) return [];
  const [first] = chart.series;
  const [step] = isWindowed(chart) ? first.steps : along(first.run, first.steps.slice(0, 1));
  const ends = { x: [step, step], y: [values[0] * 0.9, values[0] * 1.1] };
  return [{ type: "scatter", mode: "markers", ...ends, opacity: 0, hoverinfo: "skip", showlegend: false }];
}

// What a logarithmic axis has no place for stands at its foot.
function zerosBelow(chart) {
  return chart.series.flatMap((series) => {
    const steps = series.steps.filter((_, place) => series.values[place] !== null && series.values[place] <= 0);
    if (!steps.length) return [];
    const x = isWindowed(chart) ? steps : along(series.run, steps);
    const marker = { symbol: "triangle-down-open", size: 8, color: data.runs[series.run].colour };
    const says = `0 or less<extra>${plain(seriesName(series))}</extra>`;
    return [{ ...overChart, mode: "markers", x, y: steps.map(() => 0.02), marker, hovertemplate: says }];
  });
}

// Tick labels at 1, 2 and 5 where there is room, at powers of ten elsewhere.
function logAxis(chart) {
  const [low, high] = extent(measuredValues(chart, true));
  return Math.log10(high / low) > 2.2 ? { dtick: 1 } : { dtick: "D2", tickformat: ".3~g" };
}

// The first and last place of all charts, with a little air, so that charts stand under each other.
function shownAlong() {
  const charts = Object.values(data.lines).filter((chart) => !isWindowed(chart));
  const ends = charts.flatMap((chart) => chart.series.flatMap(({ run, steps }) => along(run, [steps[0], steps.at(-1)])));
  const [low, high] = extent(ends);
  const air = (high - low) * 0.02 || 1;
  return [low - air, high + air];
}
