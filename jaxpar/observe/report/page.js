"use strict";
// The curves of the report: every chart shares one x axis, one smoothing and one place under the pointer.

const report = JSON.parse(document.getElementById("report").textContent);
const view = { axis: "steps", smoothing: 0, from: null, to: null, at: null };
const charts = [];
const LEFT = 58, RIGHT = 12, TOP = 8, BOTTOM = 24;
const NAMES = { loss: "training", eval_loss: "validation" };

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Numbers

function unitOf(kind, most) {
  const pick = (units, least) => units.find(([factor]) => most >= factor) ?? least;
  if (kind === "rate" || kind === "tokens") return pick([[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]], [1, ""]);
  if (kind === "bytes") return pick([[2 ** 40, " TiB"], [2 ** 30, " GiB"], [2 ** 20, " MiB"]], [2 ** 10, " KiB"]);
  if (kind === "seconds") return pick([[1, " s"], [1e-3, " ms"]], [1e-6, " µs"]);
  if (kind === "time") return pick([[3600, " h"], [60, " min"]], [1, " s"]);
  if (kind === "share") return [0.01, "%"];
  if (kind === "plain" && most > 0 && (most < 1e-2 || most >= 1e5)) {
    const power = Math.floor(Math.log10(most));
    return [10 ** power, "e" + power];
  }
  return [1, ""];
}

function shown(kind, value) {
  if (kind === "nats") return value.toFixed(4);
  if (kind === "steps") return value.toLocaleString("en", { maximumFractionDigits: 0 });
  const [factor, suffix] = unitOf(kind, Math.abs(value));
  const scaled = value / factor;
  if (scaled === 0) return "0" + suffix;
  const digits = Math.abs(scaled) >= 100 ? 0 : Math.abs(scaled) >= 10 ? 1 : Math.abs(scaled) >= 1 ? 2 : 3;
  return scaled.toFixed(digits) + suffix;
}

function niceStep(span, parts) {
  const power = 10 ** Math.floor(Math.log10(span / parts));
  return power * [1, 2, 5, 10].find(factor => factor * power * parts >= span * 0.999);
}

function linearTicks(low, high, parts, kind) {
  const [factor, suffix] = unitOf(kind, Math.max(Math.abs(low), Math.abs(high)));
  const step = Math.max(niceStep((high - low) / factor, parts), kind === "steps" ? 1 : 0);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks = [];
  for (let index = Math.ceil(low / factor / step - 1e-9); index * step <= high / factor + step * 1e-9; index++) {
    const text = (index * step).toFixed(decimals);
    const named = index === 0 && suffix.startsWith("e") ? "0" : text + suffix; // not 0e-4
    ticks.push([index * step * factor, kind === "steps" ? Number(text).toLocaleString("en") : named]);
  }
  return ticks;
}

function logTicks(low, high, kind) {
  if (high / low < 8) return linearTicks(low, high, 4, kind).filter(([value]) => value > 0);
  const ticks = [], every = Math.ceil(Math.log10(high / low) / 5);
  const factors = high / low < 50 ? [1, 2, 5] : [1];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    if (power % every) continue;
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low && value <= high) ticks.push([value, shown(kind, value).replace(/\.0+(?=\D|$)/, "")]);
    }
  }
  return ticks;
}

function padded(low, high) {
  const most = Math.max(Math.abs(low), Math.abs(high));
  if (most === 0) return [-1, 1];
  const pad = 0.05 * (high - low > 1e-6 * most ? high - low : most);
  return [low - pad, high + pad];
}

// Where a step lies on the shared x axis

function place(run, step) {
  if (view.axis === "tokens") {
    const [first, before, tokens] = run.batches.findLast(([first]) => first <= step);
    return before + (step - first) * tokens;
  }
  if (view.axis !== "time") return step;
  const [steps, seconds] = run.clock;
  const after = steps.findIndex(other => other >= step);
  if (after === -1) return seconds[seconds.length - 1] ?? 0;
  if (after === 0 || steps[after] === step) return seconds[after];
  const part = (step - steps[after - 1]) / (steps[after] - steps[after - 1]);
  return seconds[after - 1] + part * (seconds[after] - seconds[after - 1]);
}

function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map(value => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function nearest(sorted, wanted) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle; else high = middle;
  }
  return Math.abs(sorted[low] - wanted) <= Math.abs(sorted[high] - wanted) ? low : high;
}

// Runs on the same validation data have the same baseline, which is drawn once.
function sharedBaseline() { return report.runs.every(run => run.baseline === report.runs[0].baseline); }
function ownBaseline(run, index) { return run.baseline !== null && !(index > 0 && sharedBaseline()); }

// A line of a chart: a series of a run, or its baseline

class Line {
  constructor(chart, run, index, series) {
    const several = report.runs.length > 1 && !(series === "baseline" && sharedBaseline());
    const second = chart.series.length > 1 && series === chart.series[1];
    Object.assign(this, { run, series, on: true, smooth: chart.smooth && !second, marked: second });
    const paint = series === "baseline" ? (several ? `run${index} baseline` : "alone baseline")
      : second ? (several ? `run${index} dashed` : "second") : `run${index}`;
    this.paint = paint;
    const kind = series === "baseline" ? "baseline" : chart.series.length > 1 ? NAMES[series] : "";
    this.name = several ? [run.name, kind].filter(Boolean).join(" ") : kind;
    [this.steps, this.values] = series === "baseline" ? [[], []] : run.series[series];
  }
  get level() { return this.series === "baseline" ? this.run.baseline : null; }
  arrange() {
    this.places = this.steps.map(step => place(this.run, step));
    this.drawn = this.smooth && view.smoothing > 0 ? smoothed(this.values, view.smoothing) : this.values;
  }
}

class Chart {
  constructor(chart) {
    this.chart = chart;
    this.log = false;
    this.wide = chart.series.length > 1;
    this.height = this.wide ? 280 : 200;
    this.lines = report.runs.flatMap((run, index) => [
      ...chart.series.filter(name => run.series[name]).map(name => new Line(chart, run, index, name)),
      ...(chart.series.includes("eval_loss") && ownBaseline(run, index) ? [new Line(chart, run, index, "baseline")] : []),
    ]);
    this.svg = element("svg", { role: "img", tabindex: "0", "aria-label": chart.title });
    this.button = html("button", { type: "button", "aria-pressed": "false", class: "log" }, "log");
    this.button.addEventListener("click", () => { this.setLog(!this.log); this.draw(); });
    this.at = html("span", { class: "at" });
    this.keys = html("div", { class: this.lines.length > 12 ? "keys many" : "keys" }, ...this.lines.map(line => this.key(line)), this.at);
    this.figure = html("figure", { class: "chart" + (this.wide ? " wide" : "") },
      html("header", {}, html("h3", {}, chart.title), this.button), this.svg, this.keys);
    this.listen();
  }

  key(line) {
    line.value = html("span", { class: "value" });
    const stroke = element("line", { class: `line ${line.paint}`, x1: 1, x2: 21, y1: 5, y2: 5 });
    const button = html("button", { type: "button", "aria-pressed": "true" },
      element("svg", { viewBox: "0 0 22 10" }, stroke), ...(line.name ? [html("span", {}, line.name)] : []), line.value);
    if (!line.name) button.setAttribute("aria-label", this.chart.title);
    button.addEventListener("click", () => { this.setOn(line, !line.on); this.draw(); });
    line.button = button;
    return button;
  }

  setOn(line, on) {
    line.on = on;
    line.button.setAttribute("aria-pressed", on);
  }

  setLog(log) {
    this.log = log;
    this.button.setAttribute("aria-pressed", log);
  }

  // Scales

  x(value) { return LEFT + (this.width - LEFT - RIGHT) * (value - this.from) / (this.to - this.from); }
  y(value) {
    const [low, high] = this.range;
    const part = this.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return TOP + (this.height - TOP - BOTTOM) * (1 - part);
  }
  drawable(value) { return !this.log || value > 0; }

  fit() {
    let low = Infinity, high = -Infinity;
    const see = value => { if (this.drawable(value)) { low = Math.min(low, value); high = Math.max(high, value); } };
    for (const line of this.lines) {
      if (!line.on) continue;
      if (line.level !== null) see(line.level);
      line.places.forEach((at, i) => { if (at >= this.from && at <= this.to) see(line.drawn[i]); });
    }
    if (low > high) return null;
    if (!this.log) return padded(low, high);
    return low === high ? [low / 1.5, high * 1.5] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  }

  // Drawing

  draw() {
    this.width = this.figure.clientWidth || 600;
    [this.from, this.to] = domain();
    this.lines.forEach(line => line.arrange());
    this.range = this.fit();
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    if (this.range === null) {
      this.svg.append(element("text", { x: LEFT, y: this.height / 2 }, "nothing to show"));
      this.updateReadout();
      return;
    }
    const clip = "inside-" + charts.indexOf(this);
    this.svg.append(element("clipPath", { id: clip }, element("rect",
      { x: LEFT - 4, y: TOP - 4, width: this.width - LEFT - RIGHT + 8, height: this.height - TOP - BOTTOM + 8 })));
    this.axes();
    const inside = element("g", { "clip-path": `url(#${clip})` });
    for (const line of this.lines) if (line.on) inside.append(...this.strokes(line));
    this.cursor = element("line", { class: "cursor", y1: TOP, y2: this.height - BOTTOM, visibility: "hidden" });
    this.dots = element("g");
    this.chosen = element("rect", { class: "chosen", y: TOP, height: this.height - TOP - BOTTOM, visibility: "hidden" });
    this.svg.append(inside, this.cursor, this.dots, this.chosen);
    this.updateReadout();
  }

  axes() {
    const [low, high] = this.range, bottom = this.height - BOTTOM;
    const ticks = this.log ? logTicks(low, high, this.chart.unit) : linearTicks(low, high, 4, this.chart.unit);
    for (const [value, text] of ticks) {
      const y = this.y(value);
      if (y < TOP - 1 || y > bottom + 1) continue;
      this.svg.append(element("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }),
        element("text", { class: "y", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, text));
    }
    const parts = Math.max(2, Math.floor((this.width - LEFT) / 95));
    for (const [value, text] of linearTicks(this.from, this.to, parts, view.axis)) {
      const x = this.x(value), anchor = x > this.width - RIGHT - 24 ? "end" : "middle";
      this.svg.append(element("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }),
        element("text", { class: "x", x: anchor === "end" ? x + 4 : x, y: bottom + 18, "text-anchor": anchor }, text));
    }
    this.svg.append(element("line", { class: "axis", x1: LEFT, x2: this.width - RIGHT, y1: bottom, y2: bottom }));
    for (const run of report.runs) {
      for (const step of run.restarts) this.mark(run, step, "restart", TOP, `${run.name} went on after step ${step}`);
      for (const step of run.skipped) this.mark(run, step, "skipped", bottom - 7, `skipped up to step ${step}`);
      for (const [step, text] of run.anomalies) this.mark(run, step, "anomaly", bottom - 12, text);
    }
  }

  mark(run, step, kind, top, text) {
    const at = place(run, step), bottom = this.height - BOTTOM;
    if (at < this.from || at > this.to) return;
    this.svg.append(element("line", { class: `mark ${kind}`, x1: this.x(at), x2: this.x(at), y1: top, y2: bottom },
      element("title", {}, text)));
  }

  strokes(line) {
    if (line.level !== null) {
      if (!this.drawable(line.level)) return [];
      const y = this.y(line.level);
      return [element("line", { class: `line ${line.paint}`, x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y })];
    }
    const made = [];
    if (line.drawn !== line.values) made.push(this.path(line, line.values, "raw"));
    made.push(this.path(line, line.drawn, ""));
    if (line.marked && line.places.length <= 60 || line.places.length === 1) {
      line.places.forEach((at, i) => {
        if (this.drawable(line.drawn[i])) made.push(this.dot(line, i, 2.6, ""));
      });
    }
    return made;
  }

  path(line, values, kind) {
    let text = "", pen = "M";
    line.places.forEach((at, i) => {
      if (!this.drawable(values[i])) { pen = "M"; return; }
      text += `${pen}${this.x(at).toFixed(1)} ${this.y(values[i]).toFixed(1)}`;
      pen = "L";
    });
    return element("path", { class: `line ${line.paint} ${kind}`, d: text, "data-series": line.series,
      "data-run": line.run.name });
  }

  dot(line, i, radius, kind) {
    const paint = line.paint.split(" ")[0];
    return element("circle",
      { class: `dot ${paint} ${kind}`, cx: this.x(line.places[i]), cy: this.y(line.drawn[i]), r: radius });
  }

  // The readout under the chart: the values under the pointer, or else the last ones

  updateReadout() {
    if (this.range !== null) this.dots.replaceChildren();
    let step = null, under = view.at;
    for (const line of this.lines) {
      if (line.level !== null) { line.value.textContent = shown(this.chart.unit, line.level); continue; }
      if (!line.places.length) { line.value.textContent = ""; continue; }
      const i = view.at === null ? line.places.length - 1 : nearest(line.places, view.at);
      line.value.textContent = shown(this.chart.unit, line.drawn[i]);
      if (step === null && view.at !== null) under = line.places[i];
      step ??= line.steps[i];
      if (view.at !== null && line.on && this.range !== null && this.drawable(line.drawn[i])) {
        const at = line.places[i];
        if (at >= this.from && at <= this.to) this.dots.append(this.dot(line, i, 3.4, "on"));
      }
    }
    this.at.textContent = step === null ? "" : (view.at === null ? "last, step " : "step ") + shown("steps", step);
    if (this.range === null) return;
    const inside = under !== null && under >= this.from && under <= this.to;
    this.cursor.setAttribute("visibility", inside ? "visible" : "hidden");
    if (inside) for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(under));
  }

  // The pointer and the keyboard

  valueAt(event) {
    const box = this.svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * this.width / box.width;
    const part = (x - LEFT) / (this.width - LEFT - RIGHT);
    return this.from + Math.min(1, Math.max(0, part)) * (this.to - this.from);
  }

  listen() {
    let began = null;
    this.svg.addEventListener("pointermove", event => {
      if (this.range === null) return;
      point(this.valueAt(event));
      if (began === null) return;
      const [left, right] = [began, view.at].sort((a, b) => a - b).map(value => this.x(value));
      this.chosen.setAttribute("x", left);
      this.chosen.setAttribute("width", right - left);
      this.chosen.setAttribute("visibility", "visible");
    });
    this.svg.addEventListener("pointerleave", () => { if (began === null) point(null); });
    this.svg.addEventListener("pointerdown", event => {
      if (event.pointerType !== "mouse" || event.button !== 0 || this.range === null) return;
      began = this.valueAt(event);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointerup", event => {
      if (began === null) return;
      const [from, to] = [began, this.valueAt(event)].sort((a, b) => a - b);
      began = null;
      this.chosen.setAttribute("visibility", "hidden");
      if (this.x(to) - this.x(from) > 6) zoom(from, to);
    });
    this.svg.addEventListener("pointercancel", () => { began = null; });
    this.svg.addEventListener("dblclick", () => zoom(null, null));
    this.svg.addEventListener("keydown", event => {
      const along = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const line = this.lines.find(other => other.level === null && other.places.length);
      if (along === undefined || line === undefined) return;
      event.preventDefault();
      const i = view.at === null ? line.places.length - 1 : nearest(line.places, view.at) + along;
      point(line.places[Math.min(Math.max(i, 0), line.places.length - 1)]);
    });
    this.svg.addEventListener("blur", () => point(null));
  }
}

// What all charts share

function domain() {
  if (view.from !== null) return [view.from, view.to];
  let low = Infinity, high = -Infinity;
  for (const run of report.runs) {
    for (const [steps] of Object.values(run.series)) {
      low = Math.min(low, place(run, steps[0]));
      high = Math.max(high, place(run, steps[steps.length - 1]));
    }
  }
  return high > low ? [low, high] : padded(low, high);
}

function drawAll() { charts.forEach(chart => chart.draw()); }

function point(at) {
  view.at = at;
  charts.forEach(chart => chart.updateReadout());
}

function zoom(from, to) {
  [view.from, view.to, view.at] = [from, to, null];
  document.getElementById("whole").hidden = from === null;
  drawAll();
}

function start() {
  const home = document.getElementById("charts");
  if (home === null) return;
  charts.push(...report.charts.map(chart => new Chart(chart)));
  home.append(...charts.map(chart => chart.figure));
  const axis = document.getElementById("x-axis"), smoothing = document.getElementById("smoothing");
  const logAll = document.getElementById("log-all");
  axis.addEventListener("change", () => { view.axis = axis.value; zoom(null, null); });
  smoothing.addEventListener("input", () => {
    view.smoothing = Number(smoothing.value);
    smoothing.nextElementSibling.textContent = view.smoothing ? view.smoothing.toFixed(2) : "off";
    drawAll();
  });
  logAll.addEventListener("click", () => {
    const log = logAll.getAttribute("aria-pressed") !== "true";
    logAll.setAttribute("aria-pressed", log);
    charts.forEach(chart => chart.setLog(log));
    drawAll();
  });
  for (const button of document.querySelectorAll("#sweep button.swatch")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      for (const chart of charts) {
        for (const line of chart.lines) if (line.run === report.runs[button.dataset.run]) chart.setOn(line, on);
      }
      drawAll();
    });
  }
  document.getElementById("whole").addEventListener("click", () => zoom(null, null));
  drawAll();
  let width = home.clientWidth;
  new ResizeObserver(() => {
    if (home.clientWidth === width) return;
    width = home.clientWidth;
    drawAll();
  }).observe(home);
}

// On paper everything is open.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach(part => { part.open = true; });
});
addEventListener("afterprint", () => closed.forEach(part => { part.open = false; }));

start();
