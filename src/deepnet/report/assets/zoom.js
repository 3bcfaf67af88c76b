// One zoom for all charts: over the same stretch of the run, and all maps and profiles over the same layers.

const zoomed = { run: null, layers: null }; // what everything is zoomed to, null for all of it
let relaying = false;

const inWindow = (plot) => Boolean(plot.closest("details.window"));
const isLinked = () => byId("linked").checked;
// the few steps before an incident have a stretch of their own
const shares = (plot, what) => isLinked() && what in kindOf(plot).axes && !(what === "run" && inWindow(plot));

function withZoom(plot, layout) {
  const found = {};
  for (const [what, axis] of Object.entries(kindOf(plot).axes)) {
    if (zoomed[what] && shares(plot, what)) found[axis] = { ...layout[axis], range: [...zoomed[what]], autorange: false };
  }
  return found;
}

// What the reader has zoomed to stays where it is when the numbers change.
function keepZoom(plot, layout) {
  const old = plot.layout;
  for (const axis of ["xaxis", "yaxis"]) {
    const isSame = old[axis].type === layout[axis].type && old[axis].title?.text === layout[axis].title?.text;
    if (isSame && old[axis].autorange === false) Object.assign(layout[axis], { range: [...old[axis].range], autorange: false });
  }
  Object.assign(layout, withZoom(plot, layout));
}

// What a change of a chart means for one of its axes: a range, null for all of it, undefined for nothing.
function rangeIn(change, axis) {
  if (change[`${axis}.autorange`]) return null;
  if (`${axis}.range[0]` in change) return [change[`${axis}.range[0]`], change[`${axis}.range[1]`]];
  return Array.isArray(change[`${axis}.range`]) ? change[`${axis}.range`] : undefined;
}

async function follow(plot, change) {
  if (relaying) return;
  for (const [what, axis] of Object.entries(kindOf(plot).axes)) {
    const wanted = rangeIn(change, axis);
    if (wanted !== undefined && shares(plot, what)) await zoomOthers(what, wanted, plot);
  }
}

async function zoomOthers(what, wanted, origin) {
  zoomed[what] = wanted;
  relaying = true;
  const others = all(".plot[data-drawn]").filter((plot) => plot !== origin && isVisible(plot) && shares(plot, what));
  await Promise.all(others.map((plot) => Plotly.relayout(plot, zoomTo(kindOf(plot).axes[what], wanted))));
  relaying = false;
}

const zoomTo = (axis, wanted) => (wanted ? { [`${axis}.range`]: [...wanted] } : { [`${axis}.autorange`]: true });

async function showEverything() {
  Object.assign(zoomed, { run: null, layers: null });
  relaying = true;
  const drawn = all(".plot[data-drawn]").filter(isVisible);
  await Promise.all(drawn.map((plot) => Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true })));
  relaying = false;
}

function zoomBy(plot, factor) {
  const axis = plot._fullLayout.xaxis;
  const [low, high] = axis.range.map(Number);
  const cursor = cursors.get(plot.id);
  const middle = cursor ? gridOf(plot).point(cursor).xval : (low + high) / 2;
  return Plotly.relayout(plot, { "xaxis.range": [middle - (middle - low) * factor, middle + (high - middle) * factor] });
}
