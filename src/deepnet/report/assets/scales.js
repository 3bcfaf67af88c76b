// The colours of a heat map: the bar beside it, and the words below it.

const NOT_FINITE = "#d4145a";
const NO_READING = "#d5dae0";

function colourBar({ darkest, brightest, log }) {
  const ticks = log ? logTicks(darkest, brightest) : linearTicks(darkest, brightest);
  return {
    thickness: 12,
    x: 1,
    xpad: 9,
    ypad: 0,
    outlinewidth: 0,
    ticks: "outside",
    ticklen: 4,
    tickvals: ticks.map(([place]) => place),
    ticktext: ticks.map(([, text]) => text),
  };
}

// The bar, its ticks and their words.
const barWidth = (bar) => 34 + Math.max(0, ...bar.ticktext.map(inkWidth));

function linearTicks(low, high) {
  if (!(high > low)) return [[low, say(low)]];
  const step = niceStep((high - low) / 5);
  const [first, last] = [Math.ceil(low / step - 1e-6), Math.floor(high / step + 1e-6)];
  return Array.from({ length: last - first + 1 }, (_, number) => {
    const value = (first + number) * step;
    return [value, tickText(value, step)];
  });
}

// As many decimals as tell one tick from the next.
function tickText(value, step) {
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  if (decimals > 6 || Math.abs(value) >= 1e6) return say(value);
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function niceStep(rough) {
  const size = 10 ** Math.floor(Math.log10(rough || 1));
  return size * [1, 2, 5, 10].find((factor) => factor * size >= rough * 0.999);
}

// Powers of ten, and 2 and 5 times those where there is room; of a narrow range even steps.
function logTicks(low, high) {
  if (high - low < 0.7) return linearTicks(10 ** low, 10 ** high).map(([value, text]) => [Math.log10(value), text]);
  const factors = high - low > 3 ? [1] : high - low > 1.2 ? [1, 3] : [1, 2, 3, 5, 7];
  const every = Math.max(1, Math.ceil((high - low) / 7));
  const plainly = low > -3.5 && high < 4.5;
  const ticks = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
    if (power % every) continue;
    for (const factor of factors) {
      const place = power + Math.log10(factor);
      if (place >= low - 1e-9 && place <= high + 1e-9) ticks.push([place, powerText(factor * 10 ** power, plainly)]);
    }
  }
  return ticks;
}

function powerText(value, plainly) {
  if (plainly) return String(Number(value.toPrecision(1)));
  const power = Math.floor(Math.log10(value) + 1e-9);
  const factor = Math.round(value / 10 ** power);
  return `${factor === 1 ? "" : `${factor}\u00d7`}10<sup>${power}</sup>`;
}

// What the colours leave unsaid: values beyond the ends, what is not finite, what was not read, what is outlined.
function fillLegend(plot, map, part) {
  const { values } = cellsOf(part, chosenOption(map));
  const cells = values.flatMap((row) => [...row]);
  const missing = cells.filter(Number.isNaN).length;
  const wrong = cells.filter((value) => value === Infinity).length;
  const blamed = outlined(map, part.run);
  const parts = [
    beyondText(cells, chosenOption(map).scale),
    wrong && [swatch(NOT_FINITE), `not finite (${whole.format(wrong)} ${wrong === 1 ? "value" : "values"})`],
    missing && [swatch(NO_READING), "no reading"],
    blamed && [`Outlined: layer ${whole.format(blamed.layer)}, blamed at update ${whole.format(blamed.step)}`],
  ];
  const legend = plot.parentElement.querySelector(`#${CSS.escape(plot.id)} ~ .legend`);
  legend.replaceChildren(...parts.filter(Boolean).map((found) => {
    const item = document.createElement("span");
    item.append(...found);
    return item;
  }));
}

function beyondText(cells, { darkest, brightest, log }) {
  const [first, last] = [darkest, brightest].map((place) => (log ? 10 ** place : place));
  const known = cells.filter((value) => Number.isFinite(value));
  const beyond = known.filter((value) => value < first * (1 - 1e-3 * Math.sign(first)) || value > last * (1 + 1e-3 * Math.sign(last)));
  if (!beyond.length) return null;
  const [low, high] = extent(beyond);
  const reach = low === high ? `at ${say(low)}` : `from ${say(low)} to ${say(high)}`;
  return [`Colours end at ${say(first)} and ${say(last)}; ${whole.format(beyond.length)} of ${whole.format(known.length)} values lie beyond, ${reach}`];
}

function swatch(colour) {
  const box = document.createElement("span");
  box.className = "box";
  box.style.background = colour;
  return box;
}
