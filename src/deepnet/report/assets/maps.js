// Heat maps: layers upwards, updates to the right.

const mapOf = (plot) => data.maps[plot.dataset.map || plot.dataset.profile];
const partOf = (plot) => mapOf(plot).runs[Number(plot.dataset.part)];

function mapFigure(map, part) {
  const option = chosenOption(map);
  const inside = map.key.startsWith("incident-");
  const place = inside ? (steps) => steps : (steps) => along(part.run, steps);
  const { shown, values } = cellsOf(part, option);
  const bar = colourBar(option.scale);
  const incidents = inside ? [] : incidentTraces([part.run], { onMap: true });
  const cells = { type: "heatmap", x: place(part.steps), y0: 1, dy: 1, hoverongaps: false };
  const arrow = blamedArrow(map, part.run);
  const room = arrow.length * 8;
  const head = inside ? "update %{x:,d}" : alongAxis().says;
  return {
    data: [measuredCells(cells, shown, values, option.scale, bar, head), ...wrongCells(cells, values, head), ...incidents, ...blamedRings(map, part, place)],
    layout: layoutOf({
      hovermode: "closest",
      plot_bgcolor: NO_READING,
      shapes: blamedOutline(map, part.run),
      annotations: arrow,
      margin: { l: 30 + room + inkWidth(whole.format(shown.length)), r: barWidth(bar), t: 28, b: 44, autoexpand: false },
      xaxis: { ...runAxis(inside), showgrid: false, autorangeoptions: edges(map, inside) },
      yaxis: { ...layerAxis(shown.length), showgrid: false, automargin: false, ticklabelstandoff: room, autorangeoptions: { minallowed: 0.5, maxallowed: shown.length + 0.5 } },
    }),
  };
}

// From the first cell to the last of all runs: what is drawn over the cells adds nothing to either side.
function edges(map, inside) {
  const ends = map.runs.flatMap(({ run, steps }) => {
    const x = inside ? steps : along(run, steps);
    const gap = x.length > 1 ? [x[1] - x[0], x.at(-1) - x.at(-2)] : [1, 1];
    return [x[0] - gap[0] / 2, x.at(-1) + gap[1] / 2];
  });
  const [minallowed, maxallowed] = extent(ends);
  return { minallowed, maxallowed };
}

function measuredCells(cells, shown, values, { darkest, brightest }, bar, head) {
  return {
    ...cells,
    z: shown,
    customdata: values,
    zmin: darkest,
    zmax: brightest > darkest ? brightest : darkest + 1e-9 + Math.abs(darkest) * 1e-6,
    colorscale: "Cividis",
    colorbar: bar,
    hovertemplate: `${head}, layer %{y:d}<br><b>%{customdata:.3~g}</b><extra></extra>`,
  };
}

// What is not finite lies over it, in a colour that no number has.
function wrongCells(cells, values, head) {
  if (!values.some((row) => row.includes(Infinity))) return [];
  const z = values.map((row) => Array.from(row, (value) => (value === Infinity ? 1 : null)));
  const colorscale = [[0, NOT_FINITE], [1, NOT_FINITE]];
  return [{ ...cells, z, zmin: 0, zmax: 1, colorscale, showscale: false, hovertemplate: `${head}, layer %{y:d}<br><b>not finite</b><extra></extra>` }];
}
