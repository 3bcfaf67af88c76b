// What the charts go along: updates, target tokens, or time.

const chosenAxis = () => byId("along")?.value || "updates";

// Where some updates of a run stand on the chosen axis; between two recorded ones straight, after the last as before it.
function along(run, steps) {
  const axis = chosenAxis();
  if (axis === "updates") return steps;
  const { steps: known, [axis]: values } = data.runs[run].clock;
  const unit = axis === "seconds" ? timeUnit().seconds : 1;
  return steps.map((step) => (step === null ? null : between(known, values, step) / unit));
}

function between(known, values, step) {
  const after = known.findIndex((one) => one >= step);
  const right = after < 0 ? known.length - 1 : Math.max(after, 1);
  const share = (step - known[right - 1]) / (known[right] - known[right - 1]);
  return values[right - 1] + share * (values[right] - values[right - 1]);
}

function timeUnit() {
  const longest = Math.max(...data.runs.map((run) => run.clock.seconds.at(-1)));
  if (longest > 7200) return { name: "hours", seconds: 3600 };
  return longest > 180 ? { name: "minutes", seconds: 60 } : { name: "seconds", seconds: 1 };
}

// Title, format of the ticks and of what is read out.
function alongAxis() {
  const axis = chosenAxis();
  if (axis === "tokens") return { title: "target tokens", ticks: "~s", hover: ".4~s", says: "%{x:.4~s} target tokens" };
  if (axis === "updates") return { title: "update", ticks: ",d", hover: ",d", says: "update %{x:,d}" };
  const { name } = timeUnit();
  return { title: `${name} of training`, ticks: "~g", hover: ".4~g", says: `%{x:.4~g} ${name} of training` };
}
