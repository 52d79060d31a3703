"use strict";
// Line charts in SVG: axes, a legend that hides and shows, a reading line under the pointer. No library, no requests.
const NS = "http://www.w3.org/2000/svg";
const data = JSON.parse(document.getElementById("data").textContent);

function element(name, attributes, parent, text) {
  const node = document.createElementNS(NS, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

function html(name, className, parent, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

function format(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

function ticks(low, high, log, count) {
  const found = [];
  if (log) {
    const whole = Math.log10(high / low) > 1.5;
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const factor of whole ? [1] : [1, 2, 5]) {
        const value = factor * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    if (found.length > 1) return found;
    found.length = 0;
  }
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough);
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function scale(low, high, log, from, to) {
  const f = log ? Math.log : x => x;
  const a = f(low), width = f(high) - a || 1;
  const map = x => from + (f(x) - a) / width * (to - from);
  map.inverse = p => { const x = a + (p - from) / (to - from) * width; return log ? Math.exp(x) : x; };
  return map;
}

// The mean over seeds at the points that every seed has; x is averaged too, since seconds differ by seed.
function mean(lines) {
  const length = Math.min(...lines.map(line => line.length));
  return Array.from({length: Number.isFinite(length) ? length : 0}, (_, i) =>
    [0, 1].map(axis => lines.reduce((sum, line) => sum + line[i][axis], 0) / lines.length));
}

// A piece of a series' line, for legends.
function sample(series) {
  const key = element("svg", {viewBox: "0 0 24 8", class: "swatch"});
  key.style.stroke = series.color;
  element("line", {x1: 0, x2: 24, y1: 4, y2: 4, "stroke-width": 3, "stroke-dasharray": series.dash}, key);
  return key;
}

class Chart {
  constructor(host, views) {
    this.views = views;
    this.hidden = new Set();
    this.state = {view: 0, x: 0, log: 0};
    const controls = html("div", "controls", host);
    if (views.length === 1) html("span", "soft", host, views[0].label);
    this.group(controls, "view", views.map(v => v.label), "quantity");
    if (views[0].axes.length > 1) this.group(controls, "x", views[0].axes.map(a => a.label), "horizontal axis");
    if (views[0].logChoice) this.group(controls, "log", ["linear", "log"], "vertical scale");
    this.plot = html("div", "plot", host);
    this.tip = html("div", "tip", this.plot);
    this.legend = html("div", "legend", host);
    for (const series of views[0].series) this.entry(series);
    if (views[0].marks) html("span", "soft", this.legend, "● within 2% of the best of that optimizer, • further from it, ▴▾ beyond the frame");
    if (views[0].series.some(s => s.lost && s.lost.length)) html("span", "soft", this.legend, "× no result: diverged or failed");
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.draw();
  }

  group(parent, key, labels, title) {
    if (labels.length < 2) return;
    const box = html("div", "group", parent);
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", title);
    labels.forEach((label, i) => {
      const button = html("button", "", box, label);
      button.setAttribute("aria-pressed", String(i === this.state[key]));
      button.addEventListener("click", () => {
        this.state[key] = i;
        [...box.children].forEach((b, j) => b.setAttribute("aria-pressed", String(i === j)));
        this.draw();
      });
    });
  }

  entry(series) {
    const button = html("button", "", this.legend);
    button.append(sample(series), series.name);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const hide = !this.hidden.delete(series.name);
      if (hide) this.hidden.add(series.name);
      button.setAttribute("aria-pressed", String(!hide));
      this.draw();
    });
  }

  draw() {
    const view = this.views[this.state.view], axis = view.axes[Math.min(this.state.x, view.axes.length - 1)];
    const width = Math.max(260, this.plot.clientWidth), height = width < 500 ? 240 : 320;
    const box = {left: 52, right: width - 10, top: 10, bottom: height - 40};
    const log = this.state.log === 1;
    const shown = view.series.filter(s => !this.hidden.has(s.name)).map(s => {
      const lines = s.lines.map(line => line.map(p => [p[axis.index], p[2]]).filter(p => !log || p[1] > 0));
      return {...s, lines, mean: mean(lines.filter(l => l.length))};
    });
    const points = shown.flatMap(s => s.lines.flat());
    if (this.svg) this.svg.remove();
    this.svg = element("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": view.label}, this.plot);
    if (!points.length) return;
    const xs = [...points.map(p => p[0]), ...shown.flatMap(s => s.lost || [])], left = Math.min(...xs), right = Math.max(...xs);
    // The first tenth of a run would flatten the rest: it is cut off where it leaves the frame.
    const late = points.filter(p => axis.log || p[0] >= left + (right - left) / 10), ys = (late.length ? late : points).map(p => p[1]);
    let low = Math.min(...ys), high = Math.max(...ys);
    // Rates far from the best would flatten those around it: the frame is for the better half of the trials.
    if (view.marks && !log) {
      const middle = ys.sort((a, b) => a - b)[Math.floor((ys.length - 1) / 2)];
      if (view.cap) high = middle + (middle - low) / 4; else low = middle - (high - middle) / 4;
    }
    if (view.target !== null && !log) { low = Math.min(low, view.target); high = Math.max(high, view.target); }
    if (!log) {  // an accuracy has no room above 1, nor a loss below 0
      const pad = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
      low = Math.min(...ys) >= 0 ? Math.max(0, low - pad) : low - pad;
      high = high <= 1 ? Math.min(1, high + pad) : high + pad;
    }
    const x = scale(left, right, axis.log, box.left, box.right), y = scale(low, high, log, box.bottom, box.top);
    this.frame(view, axis, x, y, box, [left, right], [low, high], log);
    const id = `clip-${Math.random().toString(36).slice(2)}`;
    const room = view.marks ? 6 : 0;  // for marks on the axis
    element("rect", {x: box.left - room, y: box.top - 2 - room, width: box.right - box.left + 4 + 2 * room, height: box.bottom - box.top + 4 + 2 * room},
      element("clipPath", {id}, element("defs", {}, this.svg)));
    const area = element("g", {"clip-path": `url(#${id})`, fill: "none", "stroke-linejoin": "round"}, this.svg);
    const path = line => line.map((p, i) => {
      const to = `${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`;
      return i === 0 ? `M${to}` : view.steps ? `H${x(p[0]).toFixed(1)}V${y(p[1]).toFixed(1)}` : `L${to}`;
    }).join("");
    for (const s of shown) {
      if (s.lines.length > 1)
        for (const line of s.lines) element("path", {d: path(line), stroke: s.color, "stroke-width": 1, opacity: .3}, area);
      element("path", {d: path(s.mean), stroke: s.color, "stroke-width": 2.2, "stroke-dasharray": s.dash, class: "curve"}, area);
      if (view.marks)
        for (const p of s.mean)
          if (p[1] >= low && p[1] <= high) element("circle", {cx: x(p[0]), cy: y(p[1]), r: s.inside && s.inside(p[0]) ? 5 : 2.5, fill: s.color}, area);
          else {
            const up = p[1] > high ? -1 : 1, at = up < 0 ? box.top + 2 : box.bottom - 2;
            element("path", {d: `M${x(p[0]) - 4} ${at - 5 * up}h8l-4 ${6 * up}z`, fill: s.color, class: "beyond"}, area);
          }
    }
    // Trials without a result stand at the worse end of the frame, one below the other where they have the same rate.
    const stacked = {};
    for (const s of shown)
      for (const lr of s.lost || []) {
        const depth = 6 + 10 * (stacked[lr] = (stacked[lr] ?? -1) + 1), at = x(lr), to = view.cap ? box.top + depth : box.bottom - depth;
        element("path", {d: `M${at - 4} ${to - 4}l8 8m0 -8l-8 8`, stroke: s.color, "stroke-width": 2, class: "lost"}, area);
      }
    this.pointer(shown, axis, x, y, box);
  }

  frame(view, axis, x, y, box, xs, ys, log) {
    for (const value of ticks(ys[0], ys[1], log, 5)) {
      element("line", {x1: box.left, x2: box.right, y1: y(value), y2: y(value), class: "axis"}, this.svg);
      element("text", {x: box.left - 6, y: y(value) + 4, "text-anchor": "end", class: "tick"}, this.svg, format(value));
    }
    for (const value of ticks(xs[0], xs[1], axis.log, box.right < 500 ? 4 : 8)) {
      const label = element("text", {y: box.bottom + 18, "text-anchor": "middle", class: "tick"}, this.svg, format(value));
      const half = label.getComputedTextLength() / 2;  // the last label would stand half outside
      label.setAttribute("x", Math.min(x(value), this.svg.viewBox.baseVal.width - half - 1));
    }
    element("text", {x: box.right, y: box.bottom + 35, "text-anchor": "end", class: "tick"}, this.svg, axis.title);
    if (view.target !== null && view.target >= ys[0] && view.target <= ys[1]) {
      element("line", {x1: box.left, x2: box.right, y1: y(view.target), y2: y(view.target), class: "target"}, this.svg);
      element("text", {x: box.left + 4, y: y(view.target) - 5, class: "tick"}, this.svg, "target");
    }
  }

  pointer(shown, axis, x, y, box) {
    const line = element("line", {y1: box.top, y2: box.bottom, class: "axis", visibility: "hidden"}, this.svg);
    const hide = () => { line.setAttribute("visibility", "hidden"); this.tip.style.display = "none"; };
    this.svg.addEventListener("pointerleave", hide);
    this.svg.addEventListener("pointermove", event => {
      const bounds = this.svg.getBoundingClientRect();
      const at = x.inverse((event.clientX - bounds.left) * this.svg.viewBox.baseVal.width / bounds.width);
      this.tip.replaceChildren();
      let where = null;
      for (const s of shown) {
        const near = s.mean.reduce((best, p) => !best || Math.abs(x(p[0]) - x(at)) < Math.abs(x(best[0]) - x(at)) ? p : best, null);
        if (!near) continue;
        where = where ?? near[0];
        const row = html("div", "", this.tip);
        row.append(sample(s));
        row.append(`${s.name} ${format(near[1])}`);
      }
      if (where === null) return hide();
      this.tip.prepend(html("div", "soft", null, `${axis.title} ${format(where)}`));
      this.tip.style.display = "block";
      const room = this.plot.clientWidth - this.tip.offsetWidth - 4, wish = x(where) * bounds.width / this.svg.viewBox.baseVal.width;
      this.tip.style.left = `${Math.max(0, Math.min(room, wish > room ? wish - this.tip.offsetWidth - 12 : wish + 12))}px`;
      line.setAttribute("x1", x(where)); line.setAttribute("x2", x(where)); line.setAttribute("visibility", "visible");
    });
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const styled = (name, lines, more) => {
  const look = data.styles[name];
  return {name, lines, color: dark ? look.dark : look.light, dash: look.dash, ...more};
};

for (const host of document.querySelectorAll("[data-curves]")) {
  const w = data.workloads[host.dataset.curves];
  const axes = [{label: "by step", title: "steps", index: 0}, {label: "by second", title: "seconds of training", index: 1}];
  const view = (key, label, target) => ({
    label, target, axes, logChoice: true, series: w.optimizers.map(o => styled(o.name, o[key])),
  });
  const views = [view("eval", `held-out ${w.metric}`, w.target), view("train", "training loss", null)];
  new Chart(host, views);
}

for (const host of document.querySelectorAll("[data-rates]")) {
  const w = data.workloads[host.dataset.rates];
  const series = w.optimizers.filter(o => o.rates).map(({name, rates}) => styled(
    name, [rates.points.filter(p => p[1] !== null).map(p => [p[0], p[0], p[1]])],
    {inside: lr => lr >= rates.low && lr <= rates.high, lost: rates.points.filter(p => p[1] === null).map(p => p[0])}));
  const axes = [{label: "", title: "learning rate", index: 0, log: true}];
  new Chart(host, [{label: w.judged, target: null, axes, logChoice: true, marks: true, cap: !w.higher, series}]);
}

for (const host of document.querySelectorAll("[data-profile]")) {
  const last = 1.1 * Math.max(1.5, ...Object.values(data.profile).flat().map(p => p[0]));
  const series = Object.entries(data.profile).map(([name, points]) => {
    const line = [[1, 0], ...points, [last, points.length ? points[points.length - 1][1] : 0]];
    return styled(name, [line.map(p => [p[0], p[0], p[1]])]);
  });
  const axes = [{label: "", title: "τ: times the fewest steps", index: 0, log: false}];
  new Chart(host, [{label: "share of tables", target: null, axes, logChoice: false, steps: true, series}]);
}
document.documentElement.dataset.ready = "yes";
