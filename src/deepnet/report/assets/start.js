// What all scripts share: the report's numbers, and how to find things on the page.

let data = JSON.parse(document.getElementById("data").textContent);

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const byId = (id) => document.getElementById(id);
const clamp = (place, length) => Math.max(0, Math.min(length - 1, place));
const finite = (values) => values.filter((value) => value !== null && Number.isFinite(value));

// plotly reads a few HTML tags and entities in its texts; a run's name is text
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
