// What all figures have in common.

const FONT = { family: 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif', size: 12, color: "#24292f" };
const AXIS = { zeroline: false, linecolor: "#8c959f", ticks: "outside", ticklen: 4, tickcolor: "#8c959f", gridcolor: "#e3e7eb" };

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
    xaxis: { ...AXIS, nticks: 7, ...xaxis },
    yaxis: { ...AXIS, automargin: true, exponentformat: "power", minexponent: 4, ...yaxis },
    yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
    ...rest,
  };
}

// The horizontal axis of all that goes over a run.
function runAxis(inside) {
  const { title, ticks, hover } = inside ? { title: "update", ticks: ",d", hover: ",d" } : alongAxis();
  return { title: { text: title, standoff: 8 }, tickformat: ticks, hoverformat: hover };
}

// The axis that layers are on.
function layerAxis(layers) {
  const steps = [1, 2, 3, 5, 10, 20, 25, 50, 100, 200, 250, 500];
  const dtick = steps.find((step) => layers / step <= 8) || 1000;
  return { title: { text: "layer", standoff: 8 }, tick0: 0, dtick, tickformat: ",d", hoverformat: ",d" };
}

const inkWidth = (() => {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${FONT.size}px ${FONT.family}`;
  return (text) => pen.measureText(text.replace(/<[^>]*>/g, "")).width;
})();
