// What the reader does with the page, and what follows.

const redrawAll = (selector) => Promise.all(all(selector).filter((plot) => plot.dataset.drawn).map(redraw));

async function onChange(event) {
  const { id, dataset } = event.target;
  if (dataset.log) redraw(byId(dataset.log));
  if (dataset.choice) redrawAll(["map", "profile"].map((kind) => `.plot[data-${kind}="${CSS.escape(dataset.choice)}"]`).join());
  if (id === "smooth") redrawAll(".plot[data-lines]");
  if (id === "along") {
    zoomed.run = null;
    await redrawAll(".plot[data-lines], .plot[data-map]");
    showEverything();
  }
}

// "toggle" does not bubble
function onToggle(event) {
  if (!event.target.open) return;
  if (event.target.dataset.numbers) fillTable(event.target);
  if (event.target.classList.contains("window")) drawAll();
}

// A link to a moment opens the part that shows it.
function onLink(event) {
  const target = event.target.closest?.('a[href^="#"]')?.hash;
  if (target) openPart(target);
  if (event.target.id === "reset") showEverything();
}

async function openPart(hash) {
  const part = hash && byId(decodeURIComponent(hash.slice(1)));
  if (part?.tagName !== "DETAILS") return;
  part.open = true;
  await drawAll();
  part.scrollIntoView();
  part.querySelector("summary").focus({ preventScroll: true });
}

window.addEventListener("beforeprint", forPaper);
window.addEventListener("afterprint", forScreen);
document.addEventListener("keydown", onKey);
document.addEventListener("change", onChange);
document.addEventListener("toggle", onToggle, true);
document.addEventListener("click", onLink);
unpack(data)
  .then(drawAll)
  .then(() => openPart(location.hash));
