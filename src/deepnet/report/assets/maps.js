// Heat maps: from packed levels to what plotly draws.

// Cells come as levels, deflated, the low bytes of all of them before the high ones.
async function unpack(fresh) {
  const parts = Object.values(fresh.maps).flatMap((map) => map.runs);
  for (const part of parts) {
    for (const [place, text] of Object.entries(part.cells)) part.cells[place] = await inflate(text);
  }
  return fresh;
}

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const half = bytes.length / 2;
  return Uint16Array.from({ length: half }, (_, place) => bytes[place] + 256 * bytes[half + place]);
}

// Level 0 is no reading, 1 zero on a logarithmic scale, 2 to 4095 go from low to high.
function cellsOf(map, part, option) {
  const columns = part.steps.length;
  const levels = part.cells[option.place] || [];
  const { low, high, log } = option.scale;
  const width = high - low || 1;
  const shown = [];
  const values = [];
  for (let row = 0; row < levels.length / columns; row += 1) {
    const colours = new Float64Array(columns).fill(NaN);
    const numbers = new Float64Array(columns).fill(NaN);
    for (let column = 0; column < columns; column += 1) {
      const level = levels[row * columns + column];
      if (level === 0) continue;
      const place = level === 1 ? low : low + ((level - 2) / 4093) * width;
      colours[column] = place;
      numbers[column] = level === 1 ? 0 : log ? 10 ** place : place;
    }
    shown.push(colours);
    values.push(numbers);
  }
  return { shown, values };
}

function chosenOption(map) {
  const select = document.getElementById(`choice-${map.key}`);
  return map.options.find((option) => select && option.place === select.value) || map.options[0];
}

function mapFigure(map, part) {
  const option = chosenOption(map);
  const { shown, values } = cellsOf(map, part, option);
  const { low, high, log } = option.scale;
  const inside = map.key.startsWith("incident-");
  const trace = {
    type: "heatmap",
    x: part.steps,
    y0: 1,
    dy: 1,
    z: shown,
    customdata: values,
    zmin: low,
    zmax: high > low ? high : low + 1e-9 + Math.abs(low) * 1e-6,
    colorscale: "Cividis",
    hovertemplate: "update %{x:,d}, layer %{y:d}<br><b>%{customdata:.3~g}</b><extra></extra>",
    colorbar: {
      thickness: 12,
      x: 1.02,
      xpad: 0,
      outlinewidth: 0,
      ticks: "outside",
      ticklen: 4,
      ypad: 0,
      ...(log ? logTicks(low, high) : { nticks: 6, exponentformat: "power", minexponent: 4 }),
    },
  };
  return {
    data: inside ? [trace] : [trace, ...incidentTraces([part.run], { onMap: true })],
    layout: layoutOf({
      hovermode: "closest",
      plot_bgcolor: "#d5dae0",
      margin: { l: 52, r: 66, t: 28, b: 44, autoexpand: false },
      xaxis: { showgrid: false, autorangeoptions: { include: map.runs.flatMap((one) => [one.steps[0], one.steps.at(-1)]) } },
      yaxis: {
        title: { text: "layer", standoff: 8 },
        showgrid: false,
        automargin: false,
        tick0: 0,
        dtick: niceStep(shown.length),
        tickformat: ",d",
        hoverformat: ",d",
      },
    }),
  };
}

function niceStep(layers) {
  const steps = [1, 2, 3, 5, 10, 20, 25, 50, 100, 200, 250, 500];
  return steps.find((step) => layers / step <= 8) || 1000;
}

// Powers of ten, and 2 and 5 times those where there is room.
function logTicks(low, high) {
  const factors = high - low > 3 ? [1] : high - low > 1.2 ? [1, 3] : [1, 2, 3, 5, 7];
  const every = Math.max(1, Math.ceil((high - low) / 7));
  const ticks = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
    if (power % every) continue;
    for (const factor of factors) {
      const place = power + Math.log10(factor);
      if (place >= low - 1e-9 && place <= high + 1e-9) ticks.push([place, factor * 10 ** power]);
    }
  }
  const plainly = low > -3.5 && high < 4.5;
  return { tickvals: ticks.map(([place]) => place), ticktext: ticks.map(([, value]) => powerText(value, plainly)) };
}

function powerText(value, plainly) {
  if (plainly) return String(Number(value.toPrecision(1)));
  const power = Math.floor(Math.log10(value) + 1e-9);
  const factor = Math.round(value / 10 ** power);
  return `${factor === 1 ? "" : `${factor}\u00d7`}10<sup>${power}</sup>`;
}
