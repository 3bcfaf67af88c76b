// A report that is served while a run goes on: asks for news, takes the new page over, keeps what the reader did.

const EVERY = 3000; // milliseconds between two questions

async function ask() {
  try {
    const answer = await fetch(`live.json?seen=${encodeURIComponent(data.live.version)}`, { cache: "no-store" });
    if (answer.status === 200) await takeOver(await answer.json());
    else if (answer.status !== 204) throw new Error(answer.statusText);
    tellState();
  } catch (error) {
    tell("live-state", "The server does not answer; what is shown is the last it said.");
  }
  setTimeout(ask, EVERY);
}

async function takeOver(news) {
  data = await unpack(news.data);
  replacePage(news.main);
  for (const plot of all(".plot[data-drawn]")) await redraw(plot);
  await drawAll();
}

function tellState() {
  const { going_on: isGoingOn, updated } = data.live;
  const clock = (time) => time.toLocaleTimeString("en-GB");
  tell("live-state", isGoingOn ? "Going on." : "Ended: no process on this machine writes the run any more.");
  tell("live-time", `Last updated at ${clock(new Date(updated))}, looked at ${clock(new Date())}.`);
}

// Charts are moved into the new page as they stand; so are open parts, choices and the focus.
function replacePage(html) {
  const fresh = document.createElement("div");
  fresh.innerHTML = html;
  const focused = document.activeElement?.id;
  const place = window.scrollY;
  all("details[id]").forEach((old) => find(fresh, old.id)?.toggleAttribute("open", old.open));
  all("select[id], input[id]").forEach((old) => {
    const now = find(fresh, old.id);
    if (now) Object.assign(now, old.type === "checkbox" ? { checked: old.checked } : { value: old.value });
  });
  all(".plot[data-drawn]").forEach((old) => {
    const now = find(fresh, old.id);
    if (!now) return;
    Object.assign(old.dataset, now.dataset);
    now.replaceWith(old);
  });
  document.getElementById("page").replaceChildren(...fresh.childNodes);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  window.scrollTo({ top: place, behavior: "instant" });
}

const find = (root, id) => root.querySelector(`#${CSS.escape(id)}`);

// a screen reader hears a change of the state, not of the time
function tell(id, text) {
  const place = document.getElementById(id);
  if (place.textContent !== text) place.textContent = text;
}

tellState();
setTimeout(ask, EVERY);
