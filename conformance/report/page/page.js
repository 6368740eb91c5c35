"use strict";
// The data of a run in two blocks of deflated JSON; everything that is seen is made of them here, as text, never as HTML.
const started = performance.now();
const GOOD = new Set(["pass", "FASTER", "SAME", "met"]);
const BAD = new Set(["fail", "crash", "timeout", "unsupported", "SLOWER", "missed", "unbuilt"]);
const FIRST = 100; // rows of a table at once
const BINS = [0.01, 0.03, 0.1, 0.3, 1, Infinity];
const TITLES = { torch: "Torch IR", tensor: "Tensor IR", loop: "Loop IR", schedule: "schedule", tile: "Tile IR", kernel: "Kernel IR", cpp: "C++", cuda: "CUDA" };
const kind = (verdict) => (GOOD.has(verdict) ? "good" : BAD.has(verdict) ? "bad" : "doubt");

function make(tag, given = {}, ...inside) {
  const svg = ["svg", "g", "line", "path", "circle", "text", "title"].includes(tag) || given.svg;
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(given)) {
    if (key === "svg" || value === undefined || value === null) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...inside.filter((x) => x !== undefined && x !== null && x !== ""));
  return node;
}
const figure = (x) => (x === null || x === undefined ? "" : typeof x !== "number" ? String(x)
  : Number.isSafeInteger(x) ? String(x) : Math.abs(x) >= 100 && Math.abs(x) < 1e6 ? x.toFixed(0) : x.toPrecision(3));
const share = (x) => (x === null || x === undefined ? "" : `${(100 * x).toFixed(0)} %`);
const wordsOf = (row) => (row.words ??= `${row.key} ${row.verdict} ${row.what}`.toLowerCase());
const verdictOf = (verdict) => make("span", { class: kind(verdict) }, verdict);
const linkTo = (row, text) => make("a", { href: "#row=" + encodeURIComponent(row.key) }, text || row.name);
const lines = (rows) => make("table", {}, make("tbody", {}, ...rows.map(([head, ...cells]) =>
  make("tr", {}, make("th", { scope: "row" }, head), ...cells.map((cell) => make("td", { class: typeof cell === "number" ? "number" : null }, typeof cell === "number" ? figure(cell) : cell))))));

async function inflated(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}
const blocks = document.getElementById("texts").textContent.trim().split("\n");
const opened = new Map();
async function textsOf(row) {
  if (!row.texts) return null;
  const [block, at] = row.texts;
  if (!opened.has(block)) opened.set(block, inflated(blocks[block]));
  return (await opened.get(block))[at];
}

// ---- tables: sorted, filtered, walked by keys; a row opens below itself

const tables = [];
class Table {
  constructor(rows, columns, filters, detail, caption) {
    Object.assign(this, { rows, columns, filters, detail, caption, query: "", chosen: {}, limit: FIRST, sort: null, open: null });
    this.body = make("tbody");
    this.heads = columns.map((column, n) => make("th", { scope: "col", class: column.number ? "number" : null },
      make("button", { type: "button", onclick: () => this.by(n) }, column.title)));
    this.said = make("caption", { "aria-live": "polite" });
    this.more = make("button", { type: "button", onclick: () => { this.limit = Infinity; this.draw(); } }, "show all");
    this.search = make("input", { type: "search", placeholder: "search", "aria-label": `search ${caption}`,
      oninput: () => { this.query = this.search.value; this.limit = FIRST; this.draw(); } });
    this.selects = filters.map((what) => {
      const every = [...new Set(rows.map((row) => row[what]))].filter((x) => x).sort();
      return make("select", { "aria-label": what, onchange: (event) => this.choose(what, event.target.value) },
        make("option", { value: "" }, `any ${what}`), ...every.map((x) => make("option", { value: x }, x)));
    });
    this.node = make("div", {}, make("div", { class: "controls" }, this.search, ...this.selects),
      make("div", { class: "wide" }, make("table", { class: "rows" }, this.said,
        make("thead", {}, make("tr", {}, ...this.heads)), this.body)), this.more);
    tables.push(this);
    this.draw();
  }
  choose(what, value) {
    this.chosen[what] = value;
    this.selects[this.filters.indexOf(what)].value = value;
    this.limit = FIRST;
    this.draw();
  }
  clear() {
    this.query = this.search.value = "";
    this.filters.forEach((what, n) => { this.chosen[what] = this.selects[n].value = ""; });
  }
  by(n) {
    this.sort = this.sort && this.sort[0] === n ? [n, -this.sort[1]] : [n, 1];
    this.heads.forEach((head, k) => (k === n ? head.setAttribute("aria-sort", this.sort[1] > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort")));
    this.draw();
  }
  found() {
    const words = this.query.toLowerCase().split(/\s+/).filter((x) => x);
    const rows = this.rows.filter((row) => this.filters.every((what) => !this.chosen[what] || row[what] === this.chosen[what])
      && words.every((word) => wordsOf(row).includes(word)));
    if (this.sort) {
      const [n, way] = this.sort, of = this.columns[n].value;
      const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
      rows.sort((p, q) => {
        const a = of(p), b = of(q), none = (x) => x === null || x === undefined || x === "";
        return none(a) || none(b) ? none(a) - none(b) : way * compare(a, b);
      });
    }
    return rows;
  }
  draw() {
    const rows = this.found(), shown = rows.slice(0, this.limit);
    this.more.hidden = shown.length === rows.length;
    this.said.textContent = `${this.caption}: ${rows.length} of ${this.rows.length}` + (this.more.hidden ? "" : `, the first ${FIRST} shown`);
    this.body.replaceChildren(...shown.map((row, n) => this.line(row, n)));
    this.open = null;
  }
  line(row, n) {
    const cells = this.columns.map((column) => {
      const value = column.value(row);
      return make("td", { class: column.number ? "number" : column.name ? "name" : null }, column.shown ? column.shown(row) : column.verdict && value ? verdictOf(value) : column.number ? figure(value) : value);
    });
    const line = make("tr", { class: "row", tabindex: n ? -1 : 0, "aria-expanded": "false", "data-key": row.key, onclick: () => this.toggle(line, row) }, ...cells);
    line.addEventListener("keydown", (event) => {
      if (event.target === line && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); this.toggle(line, row); }
    });
    return line;
  }
  async toggle(line, row) {
    const was = this.open;
    if (was) {
      was.detail.remove();
      was.line.setAttribute("aria-expanded", "false");
      this.open = null;
      if (was.line === line) return;
    }
    const cell = make("td", { colspan: this.columns.length });
    const detail = make("tr", { class: "detail" }, cell);
    line.after(detail);
    line.setAttribute("aria-expanded", "true");
    this.open = { line, detail };
    history.replaceState(null, "", "#row=" + encodeURIComponent(row.key));
    cell.append(...this.detail(row), ...shownTexts(row, await textsOf(row)));
  }
  show(key) {
    const row = this.rows.find((one) => one.key === key);
    if (!row) return false;
    this.clear();
    this.limit = Infinity;
    if (this.found().indexOf(row) < FIRST) this.limit = FIRST;
    this.draw();
    const line = [...this.body.children].find((one) => one.dataset.key === key);
    this.toggle(line, row);
    line.focus({ preventScroll: true });
    line.scrollIntoView({ block: "start" });
    return true;
  }
}

function shownTexts(row, texts) {
  if (!texts) return [make("p", { class: "note" }, "No texts of stages were kept of this row; the command makes them again.")];
  const names = Object.keys(TITLES).filter((name) => texts[name]);
  const text = make("pre", { tabindex: 0, role: "tabpanel" });
  const tabs = names.map((name) => make("button", { type: "button", role: "tab", onclick: () => choose(name) }, TITLES[name]));
  const choose = (name) => {
    text.textContent = texts[name];
    tabs.forEach((tab, n) => tab.setAttribute("aria-selected", String(names[n] === name)));
  };
  if (names.length) choose(names.includes("tile") ? "tile" : names[0]);
  return names.length ? [make("div", { role: "tablist", "aria-label": "texts", class: "controls" }, ...tabs), text] : [];
}

function command(row) {
  if (!row.command) return [];
  const text = make("pre", { class: "wrapped" }, row.command);
  const copy = make("button", { type: "button", onclick: () => {
    getSelection().selectAllChildren(text);
    if (navigator.clipboard) navigator.clipboard.writeText(row.command).catch(() => {});
  } }, "copy");
  return [make("h3", {}, "Run it again ", copy, " ", linkTo(row, "link to this row")), text];
}
const message = (text) => (text ? [make("pre", { class: "wrapped" }, text)] : []);

function resources(row) {
  const found = run.kernels.filter((one) => one.case === row.id);
  return found.length ? [make("h3", {}, "Resources"), lines([["kernel", "for", "registers", "shared", "local", "spilled", "complaints"],
    ...found.map((k) => [k.name, k.arch, k.registers, k.shared, k.stack, k.spilled, k.complaints.join("; ")])])] : [];
}

function caseDetail(row) {
  const stages = row.stages.map(([stage, verdict, error, by, seconds, said]) =>
    [TITLES[stage] || stage, verdictOf(verdict), figure(error), by || "", figure(seconds), said]);
  const facts = [["first bad stage", row.stage], ["first bad pass", row.pass], ["files", row.files], ["expected", row.reason],
    ["lost once", row.loss], ["schedules given up", row.fallbacks.join("\n")]].filter(([, value]) => value);
  return [lines([["stage", "verdict", "err/tol", "run by", "seconds", "what"], ...stages]), ...(facts.length ? [lines(facts)] : []),
    ...message(row.detail), ...command(row), ...resources(row)];
}

function benchDetail(row) {
  const interval = (ci) => (ci ? `${figure(ci[0])} … ${figure(ci[1])}` : "");
  const rivals = Object.entries(row.over || {}).map(([name, one]) => [`over ${name}`, figure(one.speedup), interval(one.ci)]);
  const facts = [["ours us", row.ours_us], ["eager us", row.eager_us], ["torch.compile us", row.compile_us], ["kernels", row.kernels],
    ["build s", row.compile_seconds], ["digest", row.digest], ["attention of eager", row.attention],
    ...Object.entries(row.wall_us || {}).map(([name, us]) => [`wall us of ${name}`, us]),
    ...row.budget.map((rule) => [`budget ${rule.name} ${rule.limit}`, verdictOf(rule.verdict)])].filter(([, x]) => x !== null && x !== undefined && x !== "");
  const old = row.against;
  const beside = old.baseline ? [make("h3", {}, `Beside ${old.baseline}`), lines([["verdict", verdictOf(old.verdict || "new")],
    ["speedup", figure(old.speedup)], ["interval", interval(old.ci)], ["rounds", old.rounds], ["would see", figure(old.least)], ["why", old.why],
    ...Object.entries(old.drift).map(([who, by]) => [`drift of ${who}`, by])])] : [];
  return [lines([...rivals, ...facts]), ...beside, ...message(row.detail), ...command(row), ...resources(row)];
}

// ---- charts

const W = 900, H = 300, LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 36;
function chart(label, ticks, at, across) {
  const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  for (const tick of ticks) {
    svg.append(make("line", { class: tick === 1 ? "one" : "grid", x1: LEFT, x2: W - RIGHT, y1: at(tick), y2: at(tick) }),
      make("text", { x: LEFT - 5, y: at(tick) + 4, "text-anchor": "end" }, String(tick)));
  }
  svg.append(make("text", { x: (LEFT + W) / 2, y: H - 6, "text-anchor": "middle" }, across));
  return svg;
}
const scale = (low, high, from, to) => (x) => from + ((Math.min(Math.max(x, low), high) - low) / (high - low || 1)) * (to - from);
const logged = (low, high, from, to) => { const of = scale(Math.log(low), Math.log(high), from, to); return (x) => of(Math.log(Math.max(x, low))); };
function dot(row, x, y, said) {
  return make("a", { svg: true, href: "#row=" + encodeURIComponent(row.key), tabindex: -1 },
    make("circle", { class: `mark ${kind(row.verdict)}`, cx: x.toFixed(1), cy: y.toFixed(1), r: 2.6 }, make("title", {}, `${row.name}: ${said}`)));
}

function speedChart(rows) {
  const timed = rows.filter((row) => row.speedup && row.ci).sort((a, b) => a.speedup - b.speedup);
  if (!timed.length) return [];
  const low = Math.min(0.9, ...timed.map((row) => row.ci[0])), high = Math.max(1.1, ...timed.map((row) => row.ci[1]));
  const y = logged(low, high, H - BOTTOM, TOP), x = scale(0, Math.max(timed.length - 1, 1), LEFT + 8, W - RIGHT - 8);
  const ticks = [0.01, 0.03, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 256, 1024].filter((t) => t === 1 || (t >= low && t <= high));
  const svg = chart("speedup of every benchmark with its interval, slowest first", ticks, y, "benchmarks, slowest first; speedup over the best of PyTorch, 99 % intervals");
  const spans = {};
  timed.forEach((row, n) => { spans[kind(row.verdict)] = (spans[kind(row.verdict)] || "") + `M${x(n).toFixed(1)} ${y(row.ci[0]).toFixed(1)}V${y(row.ci[1]).toFixed(1)}`; });
  for (const [name, path] of Object.entries(spans)) svg.append(make("path", { class: `mark ${name}`, d: path, fill: "none" }));
  timed.forEach((row, n) => svg.append(dot(row, x(n), y(row.speedup), `${figure(row.speedup)}, ${figure(row.ci[0])} … ${figure(row.ci[1])}, ${row.verdict}`)));
  return [svg];
}

function rooflineChart(rows) {
  const timed = rows.filter((row) => row.roofline && row.ours_us);
  if (!timed.length) return [];
  const times = timed.map((row) => row.ours_us), shares = timed.map((row) => row.roofline);
  const low = Math.min(...times) * 0.8, high = Math.max(...times) * 1.25;
  const x = logged(low, high, LEFT + 8, W - RIGHT - 8), y = scale(0, Math.max(1, ...shares), H - BOTTOM, TOP);
  const svg = chart("share of the roofline of every benchmark over its time", [0, 0.25, 0.5, 0.75, 1], y, "microseconds of a call; share of what the machine's measured bandwidth and arithmetic allow");
  for (let t = 10 ** Math.ceil(Math.log10(low)); t <= high; t *= 10) {
    svg.append(make("line", { class: "grid", x1: x(t), x2: x(t), y1: TOP, y2: H - BOTTOM }), make("text", { x: x(t), y: H - BOTTOM + 12, "text-anchor": "middle" }, figure(t)));
  }
  timed.forEach((row) => svg.append(dot(row, x(row.ours_us), y(row.roofline), `${figure(row.ours_us)} us, ${share(row.roofline)} of the roofline`)));
  return [svg];
}

function trend(values) {
  const known = values.map((value, n) => [n, value]).filter(([, value]) => typeof value === "number");
  const ys = known.map(([, value]) => value), y = scale(Math.min(...ys), Math.max(...ys), 26, 4), x = scale(0, Math.max(values.length - 1, 1), 4, 196);
  const path = known.map(([n, value], k) => `${k ? "L" : "M"}${x(n).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const [n, value] = known[known.length - 1];
  return make("svg", { viewBox: "0 0 200 30", style: "width:200px", role: "img", "aria-label": ys.map(figure).join(", ") },
    make("path", { class: "mark", d: path, style: "fill:none" }), make("circle", { class: "mark", cx: x(n), cy: y(value), r: 2.5 }));
}

// ---- sections

function geomean(found) { return found.length ? Math.exp(found.reduce((sum, x) => sum + Math.log(x), 0) / found.length) : null; }
function grouped(rows, of) {
  const groups = new Map();
  for (const row of rows) {
    const name = of(row);
    if (groups.has(name)) groups.get(name).push(row);
    else groups.set(name, [row]);
  }
  return new Map([...groups].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true })));
}
function section(id, title, ...inside) {
  const node = make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title`, tabindex: -1 }, title), ...inside);
  document.querySelector("main").append(node);
  document.querySelector("nav").append(make("a", { href: `#${id}` }, title));
}
const list = (title, rows, said) => (rows.length ? [make("h3", {}, `${title}: ${rows.length}`), make("ul", {}, ...rows.slice(0, FIRST).map((row) =>
  make("li", {}, linkTo(row), " ", verdictOf(row.verdict), " ", said(row)))), rows.length > FIRST ? make("p", {}, `… and ${rows.length - FIRST} more`) : ""] : []);

function regressions() {
  const { cases, benches } = run;
  const slower = benches.filter((row) => BAD.has(row.against.verdict));
  const missed = benches.filter((row) => row.budget.some((rule) => rule.verdict === "missed"));
  const found = [
    ...(run.unfit ? [make("p", { class: "bad" }, `This machine could not judge speed during this run: ${run.unfit}`)] : []),
    ...list("Not passing", cases.filter((row) => BAD.has(row.verdict)), (row) => [row.stage, row.pass, row.what].filter((x) => x).join(", ")),
    ...list("Slower than the baseline", slower, (row) => `${row.against.verdict} ${figure(row.against.speedup)} ${row.against.why}`),
    ...(run.gone.length ? [make("h3", {}, `Passed in the baseline, and do not now: ${run.gone.length}`), make("ul", {}, ...run.gone.map((name) => make("li", {}, name)))] : []),
    ...list("Benchmarks without a time", benches.filter((row) => BAD.has(row.verdict) && row.verdict !== "SLOWER"), (row) => row.what),
    ...list("Missed budgets", missed, (row) => row.what),
    ...list("Cliffs", benches.filter((row) => row.cliffs.length), (row) => row.cliffs.join("; ")),
    ...list("Lost once, passed alone", cases.filter((row) => row.loss && !BAD.has(row.verdict)), (row) => row.loss),
  ];
  const beside = run.against ? [make("p", {}, run.against)] : [make("p", { class: "note" }, "No stored kernels were raced; --mlcomp-baseline NAME races them.")];
  section("regressions", "Regressions", ...(found.length ? found : [make("p", { class: "good" }, "Nothing that was looked at is wrong.")]), ...beside);
}

function speed() {
  const families = [...grouped(run.benches, (row) => row.family)].map(([name, some]) => {
    const timed = some.filter((row) => row.speedup), count = (verdict) => some.filter((row) => row.verdict === verdict).length;
    return [name, some.length, count("FASTER"), count("SLOWER"), geomean(timed.map((row) => row.speedup)), timed.length ? Math.min(...timed.map((row) => row.speedup)) : ""];
  });
  const columns = [{ title: "benchmark", value: (row) => row.name, name: true }, { title: "ours us", value: (row) => row.ours_us, number: true },
    { title: "eager us", value: (row) => row.eager_us, number: true }, { title: "compile us", value: (row) => row.compile_us, number: true },
    { title: "speedup", value: (row) => row.speedup, number: true }, { title: "of roofline", value: (row) => row.roofline, shown: (row) => share(row.roofline), number: true },
    { title: "verdict", value: (row) => row.verdict, verdict: true }, { title: "beside the baseline", value: (row) => row.against.verdict, verdict: true },
    { title: "remark", value: (row) => row.what }];
  section("speed", "Speed", ...speedChart(run.benches), make("h3", {}, "Families"),
    make("div", { class: "wide" }, lines([["family", "benchmarks", "faster", "slower", "geometric mean", "worst"], ...families])),
    make("h3", {}, "Roofline"), ...rooflineChart(run.benches), make("h3", {}, "Every benchmark"),
    new Table(run.benches, columns, ["verdict", "family", "dtype", "target"], benchDetail, "benchmarks").node);
}

function past() {
  const last = run.history[run.history.length - 1];
  const flat = (entry) => Object.fromEntries(Object.entries(entry).flatMap(([key, value]) => (typeof value === "number" ? [[key, value]]
    : value && typeof value === "object" && !Array.isArray(value) ? Object.entries(value).filter(([, x]) => typeof x === "number").map(([k, x]) => [`${key} ${k}`, x]) : [])));
  const every = run.history.map(flat), keys = Object.keys(flat(last));
  section("history", "History", make("p", { class: "note" }, `${every.length} runs, the oldest first`),
    make("div", { class: "wide" }, lines([["what", "first", "last", "all"], ...keys.slice(0, FIRST).map((key) => {
      const values = every.map((one) => one[key]);
      return [key, figure(values.find((x) => x !== undefined)), figure(values[values.length - 1]), trend(values)];
    })])));
}

let caseTable;
function everyCase() {
  const columns = [{ title: "case", value: (row) => row.name, name: true }, { title: "dtype", value: (row) => row.dtype },
    { title: "verdict", value: (row) => row.verdict, verdict: true }, { title: "first bad stage", value: (row) => row.stage },
    { title: "pass", value: (row) => row.pass }, { title: "err/tol", value: (row) => row.error, number: true },
    { title: "seconds", value: (row) => row.seconds, number: true }, { title: "what", value: (row) => row.what }];
  caseTable = new Table(run.cases, columns, ["verdict", "op", "dtype", "target", "suite"], caseDetail, "cases");
  section("cases", "Cases", caseTable.node);
}

function coverage() {
  const dtypes = run.dtypes.filter((dtype) => run.cases.some((row) => row.dtype === dtype));
  const cell = (rows, op, dtype) => {
    if (!rows.length) return make("td");
    const passed = rows.filter((row) => row.verdict === "pass").length, all = passed === rows.length;
    return make("td", { class: "cell" }, make("button", { type: "button", class: all ? "good" : "bad", "aria-label": `${op} ${dtype}: ${passed} of ${rows.length} pass`,
      onclick: () => { caseTable.clear(); caseTable.choose("dtype", dtype); caseTable.choose("op", op); document.getElementById("cases").scrollIntoView(); } },
    all ? passed : `${passed} of ${rows.length}`));
  };
  const ops = grouped(run.cases, (row) => row.op), place = make("div", { class: "wide" });
  const fill = () => place.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, "op"), ...dtypes.map((x) => make("th", { scope: "col" }, x)))),
    make("tbody", {}, ...[...ops].map(([op, some]) => make("tr", {}, make("th", { scope: "row" }, op),
      ...dtypes.map((dtype) => cell(some.filter((row) => row.dtype === dtype), op, dtype)))))));
  section("coverage", "Coverage", make("p", { class: "note" }, `${ops.size} ops; a number is that of the cases that pass, and shows them.`),
    make("details", { ontoggle: () => place.firstChild || fill() }, make("summary", {}, "ops by dtype"), place));
}

function stageErrors() {
  const every = run.cases.flatMap((row) => row.stages.map(([stage, verdict, error, by, seconds]) => ({ row, stage, verdict, error, by, seconds })));
  const groups = grouped(every, (one) => `${one.row.target} ${run.order.indexOf(one.stage)} ${one.stage} ${one.by || ""}`);
  const body = [...groups.values()].map((some) => {
    const worst = some.reduce((a, b) => ((b.error ?? -1) > (a.error ?? -1) ? b : a));
    const counts = BINS.map((top, n) => some.filter((one) => one.error !== null && one.error <= top && (n === 0 || one.error > BINS[n - 1])).length);
    const most = Math.max(...counts, 1);
    const bars = make("span", { class: "bars", role: "img", "aria-label": counts.map((count, n) => `${count} up to ${BINS[n]}`).join(", ") },
      ...counts.map((count, n) => make("span", { title: `${count} up to ${BINS[n]}`, style: `height:${(1 + 17 * count / most).toFixed(1)}px` })));
    return [`${some[0].row.target} ${TITLES[some[0].stage] || some[0].stage}`, some[0].by || "", some.length, some.filter((one) => one.verdict === "pass").length,
      bars, figure(worst.error), linkTo(worst.row), some.reduce((sum, one) => sum + (one.seconds || 0), 0)];
  });
  section("stages", "Errors of stages", make("p", { class: "note" }, "err/tol is the largest error of an element over what its bound allows: 1 is the limit. Bars: up to 0.01, 0.03, 0.1, 0.3, 1, and beyond."),
    make("div", { class: "wide" }, lines([["stage", "run by", "runs", "pass", "err/tol", "worst", "case", "seconds"], ...body])));
}

function selftest() {
  const { planted, caught, alarms, stages, missed } = run.selftest;
  section("selftest", "Self-test", make("p", {}, `${caught} of ${planted} planted miscompiles caught, ${alarms.length} false alarms`),
    lines([["stage", "planted", "caught"], ...stages]), ...(missed.length ? [make("h3", {}, "Not caught"), make("ul", {}, ...missed.map((x) => make("li", {}, x)))] : []),
    ...(alarms.length ? [make("h3", {}, "False alarms"), make("ul", {}, ...alarms.map((x) => make("li", {}, x)))] : []));
}

// ---- keys, links, theme

function walk(by) {
  const lines = [...document.querySelectorAll("tr.row")].filter((line) => line.offsetParent);
  const at = lines.indexOf(document.activeElement.closest("tr.row"));
  const next = lines[at < 0 ? lines.findIndex((line) => line.getBoundingClientRect().top >= 0) : at + by];
  if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
}
function step(by) {
  const titles = [...document.querySelectorAll("section h2")], tops = titles.map((title) => title.getBoundingClientRect().top);
  const at = by > 0 ? tops.findIndex((top) => top > 20) : tops.findLastIndex((top) => top < -20);
  if (titles[at]) { titles[at].scrollIntoView(); titles[at].focus({ preventScroll: true }); }
}
function pressed(event) {
  const typing = event.target.matches("input, select");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    for (const table of tables) if (table.open) { const { line } = table.open; table.toggle(line); line.focus(); }
  }
  if (typing) return;
  const does = { "/": () => (document.activeElement.closest("section")?.querySelector("input[type=search]") || caseTable?.search || tables[0]?.search)?.focus(),
    j: () => walk(1), k: () => walk(-1), "]": () => step(1), "[": () => step(-1) }[event.key];
  if (does) { event.preventDefault(); does(); }
}
function follow() {
  const key = location.hash.startsWith("#row=") ? decodeURIComponent(location.hash.slice(5)) : null;
  if (key) tables.some((table) => table.show(key));
}
function shade() {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

let run;
async function fill() {
  run = await inflated(document.getElementById("data").textContent);
  document.getElementById("facts").textContent = run.facts.join(" · ");
  const chips = [...run.counts.map(([what, count]) => make("span", { class: "chip" }, `${count} `, verdictOf(what))),
    run.benches.length ? make("span", { class: "chip" }, `${figure(geomean(run.benches.map((row) => row.speedup).filter((x) => x)))} × PyTorch`) : ""];
  document.getElementById("counts").append(...chips.filter((x) => x));
  document.addEventListener("keydown", pressed);
  document.getElementById("theme").addEventListener("click", shade);
  regressions();
  const { dataset } = document.documentElement, now = () => (performance.now() - started).toFixed(0);
  dataset.ready = now();
  // What is below is made a section at a time, so that the page answers from now on.
  for (const [some, make] of [[run.benches.length, speed], [run.history.length, past], [run.cases.length, everyCase],
    [run.cases.length, stageErrors], [run.cases.length, coverage], [run.selftest, selftest]]) {
    if (!some) continue;
    await new Promise((go) => setTimeout(go));
    make();
  }
  window.addEventListener("hashchange", follow);
  follow();
  dataset.whole = now();
}
fill().catch((error) => {
  const problem = document.getElementById("problem");
  problem.hidden = false;
  problem.textContent = `This page could not be shown (${error}); summary.md, speedup.md and coverage.md beside it have the same as text.`;
});
