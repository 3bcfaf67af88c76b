// Smoothing of noisy lines: a running mean, with what was measured left faint behind it.

const FEWEST_TO_SMOOTH = 20;
const isSmoothing = () => Boolean(byId("smooth")?.checked);

function canSmooth(chart, series) {
  return chart.words.noisy && ["thin", "plain"].includes(series.look) && series.values.length >= FEWEST_TO_SMOOTH;
}

// The mean of a twenty-fifth of the points around each, five at least; a gap stays one.
function smoothed(values) {
  const reach = Math.max(2, Math.round(values.length / 50));
  return values.map((value, place) => {
    if (value === null) return null;
    const near = finite(values.slice(Math.max(0, place - reach), place + reach + 1));
    return near.reduce((sum, one) => sum + one, 0) / near.length;
  });
}
