"use strict";
// One page, four views by the address behind the hash: runs, a run, a trial, two runs compared.
// Text from runs only ever becomes text: elements are made one by one, never out of strings.

const main = document.getElementById("main");
const state = document.getElementById("state");
const PAUSE = 2000;
let shown = { view: "", stamp: "" };
let player = 0;
let asking = 0;

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function show(...children) {
  main.replaceChildren(...children.filter((child) => child !== null));
}

// Lets a long spec end its line behind its own signs, not within a word.
const breakable = (text) => text.split(/(?<=[:+,=])(?=\S)/).flatMap((part, index) => (index ? [make("wbr"), part] : [part]));

class Left extends Error {}

// Reads for the view that is asked for now; what comes back after the reader has moved on is dropped.
async function read(path, query = {}) {
  const asked = asking;
  const data = await fetched(path, query);
  if (asked !== asking) throw new Left();
  return data;
}

async function fetched(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`, { headers: { Accept: "application/json" } });
  const data = await answer.json().catch(() => ({ error: "the viewer does not answer as it should." }));
  if (!answer.ok) throw new Error(data.error || `error ${answer.status}`);
  return data;
}

const number = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−"));
const share = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
const words = (standing) => (standing || "not judged").replaceAll("-", " ");
const when = (text) => (text ? `${text.slice(0, 16).replace("T", " ")} UTC` : "–");
const badge = (standing) => make("span", { class: `badge level-${standing || "unjudged"}`, text: words(standing) });
const picture = (run, key, kind, index, frame = 0) => `/picture?${new URLSearchParams({ run, key, kind, index, frame })}`;
const cell = (label, ...children) => make("td", { "data-label": label }, ...children);
const defence = (name) => (name === "none" ? "no defence" : name);

function head(...titles) {
  return make("thead", {}, make("tr", {}, ...titles.map((text) => make("th", { scope: "col", text }))));
}

function progress(line) {
  const bar = make("meter", { min: 0, max: Math.max(1, line.planned), value: line.done, "aria-label": "trials ended" });
  return make("span", { class: "progress" }, bar, `${line.done} of ${line.planned}`);
}

function choice(label, id, names, chosen, listen) {
  const select = make("select", { id, onchange: listen }, make("option", { value: "", text: "all" }));
  for (const [value, text] of names) select.append(make("option", { value, text, selected: value === chosen }));
  return make("label", { for: id }, label, select);
}

function sought(label, id, value, listen) {
  return make("label", { for: id }, label, make("input", { id, type: "search", value, oninput: listen }));
}

// ---- runs

const asked = { text: "", standing: "", running: false, picked: new Set() };

async function showRuns() {
  const lines = await read("/api/runs");
  state.textContent = `${lines.length} run${lines.length === 1 ? "" : "s"}${lines.some((l) => l.live) ? ", one or more running" : ""}`;
  if (shown.view !== "runs") {
    document.title = "Runs · fedseal";
    const levels = ["very-high", "high", "medium", "low", "not-shown", "no-power", "too-few"].map((l) => [l, words(l)]);
    main.replaceChildren(
      make("h1", { text: "Runs" }),
      make("div", { class: "filters", role: "search", "aria-label": "Filter runs" },
        sought("Name, defence or attack", "seek", asked.text, (e) => { asked.text = e.target.value.toLowerCase(); fillRuns(); }),
        choice("Verdict", "standing", levels, asked.standing, (e) => { asked.standing = e.target.value; fillRuns(); }),
        make("button", { id: "compare", class: "primary", disabled: true, text: "Compare two", onclick: compareChosen })),
      make("table", { class: "plain stack" }, make("caption", { class: "hidden", text: "Runs" }),
        head("Compare", "Run", "Verdict", "Trials", "Begun", "What it says"), make("tbody", { id: "runs" })));
  }
  shown = { view: "runs", stamp: "", lines };
  fillRuns();
}

function fillRuns() {
  const body = document.getElementById("runs");
  const wanted = shown.lines.filter((line) => {
    const text = [line.name, ...(line.defences || []), ...(line.attacks || []), ...(line.scenarios || [])].join(" ").toLowerCase();
    return text.includes(asked.text) && (!asked.standing || line.standing === asked.standing);
  });
  keepFocus(body, () => body.replaceChildren(...(wanted.length ? wanted.map(runLine) : [
    make("tr", {}, make("td", { colspan: 6, class: "unread", text: shown.lines.length ? "No run fits." : "No run here yet: it appears when an audit begins." }))])));
  updateCompare();
}

function runLine(line) {
  if (line.problem) return make("tr", {}, make("td", {}), make("th", { scope: "row", text: line.name }), make("td", { colspan: 4, class: "unread", text: line.problem }));
  const box = make("input", { type: "checkbox", id: `pick-${line.id}`, checked: asked.picked.has(line.id), "aria-label": `Compare ${line.name}`,
    onchange: (e) => { asked.picked[e.target.checked ? "add" : "delete"](line.id); updateCompare(); } });
  return make("tr", {},
    make("td", { class: "pick", "data-label": "Compare" }, box),
    make("th", { scope: "row" }, make("a", { href: `#/run/${line.id}`, id: `run-${line.id}`, text: line.name })),
    cell("Verdict", badge(line.standing)),
    cell("Trials", make("span", {}, progress(line), line.live ? make("span", { class: "live", text: " running" }) : "")),
    cell("Begun", when(line.started)), cell("Says", ...breakable(line.headline)));
}

function updateCompare() {
  const button = document.getElementById("compare");
  const known = [...asked.picked].filter((id) => shown.lines.some((line) => line.id === id));
  button.disabled = known.length !== 2;
  button.textContent = known.length === 2 ? "Compare two" : `Compare two (${known.length} chosen)`;
}

function compareChosen() {
  const chosen = shown.lines.filter((line) => asked.picked.has(line.id)).sort((a, b) => a.started.localeCompare(b.started));
  location.hash = `#/compare/${chosen[0].id}/${chosen[1].id}`;
}

function keepFocus(body, change) {
  const id = body.contains(document.activeElement) ? document.activeElement.id : "";
  change();
  if (id) document.getElementById(id)?.focus();
}

// ---- a run

const within = { defence: "", attack: "", status: "" };

async function showRun(id) {
  const view = `run/${id}`;
  const line = (await read("/api/runs")).find((one) => one.id === id);
  if (!line) throw new Error("there is no such run.");
  const stamp = `${line.stamp}${line.live}`;
  if (shown.view === view && shown.stamp === stamp) return;
  const run = await read("/api/run", { run: id });
  state.textContent = run.live ? `running: ${run.done} of ${run.planned} trials` : `${run.done} of ${run.planned} trials`;
  if (shown.view !== view) {
    Object.assign(within, { defence: "", attack: "", status: "" });
    document.title = `${run.name} · fedseal`;
    const pairs = (names) => names.map((name) => [name, defence(name)]);
    main.replaceChildren(
      make("p", { class: "crumbs" }, make("a", { href: "#/", text: "All runs" })),
      make("h1", { id: "headline" }), make("p", { class: "lede", id: "lede" }),
      make("p", { id: "how-far" }), make("dl", { class: "facts-list", id: "tested" }),
      make("h2", { text: "Defences" }),
      make("table", { class: "plain stack" }, make("caption", { class: "hidden", text: "Defences" }), head("Defence", "Verdict", "Decided by", "Scenario"), make("tbody", { id: "rows" })),
      make("h2", { text: "Trials" }),
      make("div", { class: "filters", role: "search", "aria-label": "Filter trials" },
        choice("Defence", "by-defence", pairs(run.defences), "", (e) => { within.defence = e.target.value; fillTrials(); }),
        choice("Attack", "by-attack", run.attacks.map((n) => [n, n]), "", (e) => { within.attack = e.target.value; fillTrials(); }),
        choice("Status", "by-status", ["ok", "failed", "refused"].map((n) => [n, n]), "", (e) => { within.status = e.target.value; fillTrials(); })),
      make("table", { class: "plain stack" }, make("caption", { class: "hidden", text: "Trials" }),
        head("Trial", "Attack", "Attacker", "Likeness, dB", "Labels read", "Status"), make("tbody", { id: "trials" })));
  }
  shown = { view, stamp, run };
  document.getElementById("headline").replaceChildren(...breakable(run.headline));
  document.getElementById("lede").textContent = run.advice;
  document.getElementById("how-far").replaceChildren(badge(run.standing), " ", progress(run), run.live ? make("span", { class: "live", text: " running" }) : "");
  document.getElementById("tested").replaceChildren(...run.tested.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value.replaceAll("`", "") })]));
  document.getElementById("rows").replaceChildren(...run.rows.map((row) => make("tr", {},
    make("th", { scope: "row" }, make("code", { text: defence(row.defence) }), row.control ? make("span", { class: "tag", text: "control" }) : ""),
    cell("Verdict", badge(row.standing)), cell("Decided by", row.decided_by || "–"), cell("Scenario", row.scenario))));
  fillTrials();
}

function fillTrials() {
  const body = document.getElementById("trials"), { run } = shown;
  const wanted = run.trials.filter((t) => (!within.defence || t.defence === within.defence) && (!within.attack || t.attack === within.attack) && (!within.status || t.status === within.status));
  keepFocus(body, () => body.replaceChildren(...wanted.slice(0, 500).map((t) => make("tr", {},
    make("th", { scope: "row" }, make("a", { href: `#/run/${run.id}/trial/${t.key}`, id: `trial-${t.key}`, text: `${defence(t.defence)}, target ${t.target}` })),
    cell("Attack", make("code", { text: t.attack })), cell("Attacker", t.aware ? "knows the defence" : "naive"),
    cell("Likeness, dB", number(t.mean)), cell("Labels read", share(t.labels)), cell("Status", t.status)))));
  if (wanted.length > 500) body.append(make("tr", {}, make("td", { colspan: 6, class: "count", text: `${wanted.length - 500} more: filter to see them.` })));
}

// ---- a trial

async function showTrial(id, key) {
  const view = `trial/${id}/${key}`;
  if (shown.view === view) return;
  const trial = await read("/api/trial", { run: id, key });
  document.title = `${trial.attack} on ${defence(trial.defence)} · fedseal`;
  state.textContent = `target ${trial.target}`;
  const facts = Object.entries(trial.knowledge || {}).flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value.replaceAll("`", "") })]);
  show(
    make("p", { class: "crumbs" }, make("a", { href: "#/", text: "All runs" }), " / ", make("a", { href: `#/run/${id}`, text: "Run" })),
    make("h1", {}, ...breakable(`${trial.attack} on ${defence(trial.defence)}, target ${trial.target}`)),
    make("p", { class: "lede", text: trial.status === "ok" ? `${number(trial.mean)} dB likeness, ${trial.seconds} s, by an attacker who ${trial.aware ? "knows" : "does not know"} the defence.` : `${trial.status}: ${trial.message}` }),
    trial.images ? make("div", { class: "victims" }, ...Array.from({ length: trial.images }, (_, index) => victim(id, key, trial, index))) :
      make("p", { class: "unread", text: trial.status === "ok" ? "No images are kept of this trial." : "" }),
    trial.trace.length > 1 ? make("section", { class: "trace", "aria-label": "Objective" }, make("h2", { text: "The attacker's own objective" }), curve(trial.trace)) : null,
    facts.length ? make("section", {}, make("h2", { text: "What the attacker knew" }), make("dl", { class: "facts-list" }, ...facts)) : null,
    trial.notes.length ? make("section", {}, make("h2", { text: "Notes" }), make("ul", { class: "notes" }, ...trial.notes.map((text) => make("li", { text })))) : null);
  shown = { view, stamp: "" };
}

function victim(id, key, trial, index) {
  const rank = trial.ranks.correlation ? trial.ranks.correlation[index] : null;
  const frames = trial.film.length;
  const rebuilt = make("img", { src: picture(id, key, "rebuilt", index), alt: `Rebuilt image ${index}`, width: 128, height: 128, class: "rebuilt" });
  const caption = make("figcaption", {}, make("span", { class: "names" }, make("span", { text: "original" }), make("span", { text: "rebuilt" })),
    make("span", { text: `${number(trial.psnr[index])} dB${trial.ssim.length ? `, SSIM ${number(trial.ssim[index], 2)}` : ""}${rank ? `; place ${rank} of ${trial.line_up[index]} in the line-up` : ""}` }));
  if (frames > 1) caption.append(film(id, key, trial, index, rebuilt));
  return make("figure", { class: "victim" }, make("div", { class: "two" },
    make("img", { src: picture(id, key, "original", index), alt: `Original image ${index}`, width: 128, height: 128 }), rebuilt), caption);
}

function film(id, key, trial, index, image) {
  const last = trial.film.length - 1;
  const told = make("output", { text: "100 %" });
  const slider = make("input", { type: "range", min: 0, max: last, value: last, step: 1, "aria-label": `Film of image ${index}` });
  const show = () => {
    image.src = picture(id, key, "film", index, slider.value);
    told.textContent = share(trial.film[slider.value]);
    slider.setAttribute("aria-valuetext", `${told.textContent} of the attack`);
  };
  slider.addEventListener("input", show);
  const button = make("button", { type: "button", text: "Play", "aria-label": `Play the film of image ${index}` });
  button.addEventListener("click", () => {
    clearInterval(player);
    slider.value = 0; show();
    player = setInterval(() => { slider.value = Number(slider.value) + 1; show(); if (Number(slider.value) >= last) clearInterval(player); }, 350);
  });
  return make("span", { class: "player" }, button, slider, told);
}

function curve(trace) {
  const values = trace.filter(([, value]) => value !== null && value > 0);
  const lows = values.map(([, value]) => Math.log10(value));
  const low = Math.min(...lows), high = Math.max(...lows, low + 1e-9), end = values.length ? values[values.length - 1][0] || 1 : 1;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 400 100", preserveAspectRatio: "none", role: "img", "aria-label": `Objective over ${end} steps, from ${trace[0][1]} to ${trace[trace.length - 1][1]}, logarithmic` })) svg.setAttribute(name, value);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", values.map(([step], i) => `${i ? "L" : "M"}${(400 * step / end).toFixed(1)} ${(96 - 92 * (lows[i] - low) / (high - low)).toFixed(1)}`).join(""));
  svg.append(path);
  return svg;
}

// ---- two runs

async function showComparison(before, after) {
  const view = `compare/${before}/${after}`;
  if (shown.view === view) return;
  const found = await read("/api/compare", { before, run: after });
  document.title = "Compared · fedseal";
  state.textContent = "compared";
  const lines = found.rows.flatMap((row) => {
    const changes = row.changes.filter((change) => change.direction !== "same");
    const said = changes.length ? changes.map((c) => `${c.reading}, ${c.attack}: ${c.unit === "share" ? `${share(c.before)} to ${share(c.after)}` : `${number(c.before)} to ${number(c.after)} dB`}`).join("; ") : row.direction === "same" ? "within noise" : `the update holds ${number(row.held_db)} dB more`;
    return make("tr", {}, make("th", { scope: "row" }, make("code", { text: defence(row.defence) })), cell("Then", badge(row.before)), cell("Now", badge(row.after)),
      cell("Since", make("span", { class: row.direction, text: row.direction === "same" ? "no change" : row.direction })), cell("What", said));
  });
  main.replaceChildren(
    make("p", { class: "crumbs" }, make("a", { href: "#/", text: "All runs" })),
    make("h1", { text: found.sentence }), make("p", { class: "lede", text: `${found.before} → ${found.after}. Noise is no change.` }),
    make("table", { class: "plain stack" }, make("caption", { class: "hidden", text: "Changes" }), head("Defence", "Then", "Now", "Since", "What changed"), make("tbody", {}, ...lines)));
  shown = { view, stamp: "" };
}

// ---- moving about

async function route() {
  asking += 1;
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  try {
    if (parts[0] === "run" && parts[2] === "trial") await showTrial(parts[1], parts[3]);
    else if (parts[0] === "run") await showRun(parts[1]);
    else if (parts[0] === "compare") await showComparison(parts[1], parts[2]);
    else await showRuns();
  } catch (error) {
    if (error instanceof Left) return;
    state.textContent = "not reached";
    if (shown.view !== "error") main.replaceChildren(make("p", { class: "crumbs" }, make("a", { href: "#/", text: "All runs" })), make("p", { class: "notice strong", text: error.message }));
    shown = { view: "error", stamp: "" };
  }
}

async function follow() {
  const moving = ["runs", "error"].includes(shown.view) || shown.view.startsWith("run/");
  const here = shown.view === "error" || location.hash.replace(/^#\/?/, "") === (shown.view === "runs" ? "" : shown.view);
  if (moving && here && !document.hidden) await route();
  setTimeout(follow, PAUSE);
}

addEventListener("hashchange", async () => {
  clearInterval(player);
  if (location.hash === "#main") return;
  await route();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
route().then(() => setTimeout(follow, PAUSE));
