// Print: two charts stand beside each other, with letters of the same size as on the screen.

const PAPER_WIDTH = 340; // pixels: half of A4 or letter between its margins

function forPaper() {
  all(".plot[data-drawn]").filter(isVisible).forEach((plot) => {
    const height = plot.dataset.map ? Math.min(plot.clientHeight, 480) : 250;
    Plotly.relayout(plot, { autosize: false, width: PAPER_WIDTH, height });
  });
}

function forScreen() {
  all(".plot[data-drawn]").filter(isVisible).forEach((plot) => Plotly.relayout(plot, { autosize: true, width: null, height: null }));
}
