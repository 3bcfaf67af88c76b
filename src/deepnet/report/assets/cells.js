// The cells of heat maps: from packed levels to numbers.

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

// Level 0 is no reading, 1 zero on a logarithmic scale, 2 not finite, 3 to 4095 go from low to high. `shown` is what
// colours follow, `values` what is read out: NaN for no reading, infinite where not finite.
function cellsOf(part, option) {
  const columns = part.steps.length;
  const levels = part.cells[option.place] || [];
  const { low, high, log } = option.scale;
  const width = high - low;
  const shown = [];
  const values = [];
  for (let row = 0; row < levels.length / columns; row += 1) {
    const colours = new Float64Array(columns).fill(NaN);
    const numbers = new Float64Array(columns).fill(NaN);
    for (let column = 0; column < columns; column += 1) {
      const level = levels[row * columns + column];
      if (level === 2) numbers[column] = Infinity;
      if (level === 0 || level === 2) continue;
      const place = level === 1 ? low : low + ((level - 3) / 4092) * width;
      colours[column] = place;
      numbers[column] = level === 1 ? 0 : log ? 10 ** place : place;
    }
    shown.push(colours);
    values.push(numbers);
  }
  return { shown, values };
}

function chosenOption(map) {
  const select = byId(`choice-${map.key}`);
  return map.options.find((option) => select && option.place === select.value) || map.options[0];
}
