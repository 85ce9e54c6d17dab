"use strict";
// Evaluates a released function where the page is, from the numbers in the page; nothing is sent or fetched.

const FEATURES = {
  1: (a) => a,
  2: (a) => (a * a - 1) / Math.SQRT2,
  x: (a, b) => a * b,
  s: (a) => Math.sin(2.5 * a) * Math.SQRT2,
  c: (a) => Math.cos(2.5 * a) * Math.SQRT2,
  t: (a, b) => a * (Math.tanh(2.5 * b) - 0.787 * clip(b, -2, 2)) / 0.38,
  q: (a, b) => clip(a, -1.5, 1.5) * clip((b * b - 1) / Math.SQRT2, -1.5, 1.5) * 1.5,
  p: (a, b, c) => clip(a, -1.5, 1.5) * clip(b, -1.5, 1.5) * clip(c, -1.5, 1.5) * 1.5,
};
const clip = (value, low, high) => Math.min(Math.max(value, low), high);

// Encoded covariates of what is asked: a number each, null where it is not known, or positions of levels.
function encoded(model, asked) {
  const x = model.low.slice();
  model.covariates.forEach((covariate, place) => {
    const value = asked[place], first = covariate.first;
    if (!covariate.levels) {
      x[first] = value === null ? covariate.middle : value;
      if (covariate.width > 1) x[first + 1] = value === null ? 1 : 0;
    }
    else if (covariate.width === 1) x[first] = value ? model.high[first] : model.low[first];
    else for (let i = 0; i < covariate.width; i++) x[first + i] = i === value ? 1 : 0;
  });
  return x;
}

function scaled(model, x) {
  return x.map((value, j) => {
    const width = model.high[j] - model.low[j];
    return width === 0 ? 0 : 2 * share(model.scales && model.scales[j], (value - model.low[j]) / width) - 1;
  });
}

// Share of a covariate's scale by that of its width: on a log scale, and by the corners of a typical range.
function share(scale, width) {
  if (!scale) return width;
  const slope = (rise, run) => (run > 0 ? rise / run : 0), within = (value) => clip(value, 0, 1);
  const from = within(width), t = scale.log ? Math.log1p(scale.ratio * from) / scale.top : from;
  const [a, b, low, high] = [scale.first, scale.last, scale.firstTo, scale.lastTo].map(within);
  return within(Math.max(Math.min(t, scale.first), 0) * slope(low, a)
    + (clip(t, scale.first, scale.last) - a) * slope(high - low, b - a)
    + (scale.last < 1 ? (Math.max(t, scale.last) - b) * slope(1 - high, 1 - b) : 0));
}

function features(effect, u) {
  const missing = (j) => effect.indicators && effect.indicators[j] !== null && u[effect.indicators[j]] > 0;
  const z = effect.columns.map((j, k) => (missing(j) ? 0 : clip((u[j] - effect.mean[k]) / effect.sd[k], -effect.most, effect.most)));
  const units = effect.units ? beyond(effect.units, z) : [];
  return [1, ...effect.features.map(([kind, i, j, l]) => (kind === "h" ? units[i] : FEATURES[kind](z[i], z[j], z[l])))];
}

// Combinations of hidden units less what other features have of them.
function beyond(units, z) {
  const raw = units.weights.map((weights, h) => Math.tanh(product(weights, z) + units.biases[h]));
  const base = [1, ...units.base.map(([kind, i, j, l]) => FEATURES[kind](z[i], z[j], z[l]))];
  return units.mixed.map((mixed, m) => product(mixed, raw) - product(units.less[m], base));
}

function quadratic(lower, f) {
  let total = 0, at = 0;
  for (let i = 0; i < f.length; i++) for (let j = 0; j <= i; j++) total += lower[at++] * f[i] * f[j];
  return Math.max(total, 0);
}

const product = (a, b) => a.reduce((total, value, i) => total + value * b[i], 0);

// {value, ends, band, action, loss}: an effect or score, its interval or its regression's band where there is one, an
// action where one is decided, and what it loses at most within the interval where it is wrong.
function evaluate(model, asked) {
  const x = encoded(model, asked), none = { ends: null, band: null, action: null, loss: null };
  if (model.tree !== undefined) {
    let node = model.tree;
    while (typeof node === "object") node = x[node.column] > node.cut ? node.above : node.below;
    return { ...none, value: node, action: node };
  }
  const u = scaled(model, x);
  if (model.score) {
    const value = model.score.intercept + product(model.score.slopes, u);
    return { ...none, value, action: value > 0 ? 1 : 0 };
  }
  const effect = model.effect, f = features(effect, u), arm = model.arm || 0, law = effect.law;
  const g = clip(product(effect.betas[arm], f), -effect.bound, effect.bound), found = { ...none, value: g };
  if (law) {
    const off = f.map((value, j) => value - law.centre[j]);
    const variance = quadratic(law.covariance, off) + law.variance + (law.nuisances ? quadratic(law.nuisances, f) : 0);
    const middle = product(law.estimates, f) + law.correction, half = effect.deviations * Math.sqrt(variance);
    found.ends = [Math.min(middle - half, g), Math.max(middle + half, g)].map((end) => clip(end, -effect.bound, effect.bound));
  }
  if (effect.variances && (!law || model.least !== undefined)) {
    const wide = effect.deviations * Math.sqrt(product(effect.variances[arm], f.map((one) => one * one)));
    found.band = [g - wide, g + wide];
  }
  if (model.least === undefined) return found;
  const over = (less) => (pair) => pair && pair.map((end) => model.direction * end - less).sort((a, b) => a - b);
  found.value = model.direction * g - model.least;
  found.action = found.value > 0 ? 1 : 0;
  if (law) {
    const [low, high] = over(model.cost)(found.ends);
    found.loss = Math.max(found.action ? -low : high, 0);
  }
  return { ...found, ends: over(model.least)(found.ends), band: over(model.least)(found.band) };
}

// Numbers with their signs, to two figures of the half width of an interval, or the largest to three.
function alike(factor, values, ends) {
  const half = ends ? (factor * (ends[1] - ends[0])) / 2 : 0, largest = Math.max(...values.map((one) => Math.abs(factor * one)));
  const places = half ? 1 - Math.floor(Math.log10(half)) : 2 - Math.floor(Math.log10(largest || 100)), scale = 10 ** places;
  const shown = clip(places, 0, 20), digits = { minimumFractionDigits: shown, maximumFractionDigits: shown, signDisplay: "exceptZero" };
  return values.map((one) => (Math.round(factor * one * scale) / scale).toLocaleString("en-US", digits).replace("-", "\u2212"));
}
const plain = (value) => Number(value.toPrecision(4)).toLocaleString("en-US", { maximumSignificantDigits: 4 }).replace("-", "\u2212");

const SVG = "http://www.w3.org/2000/svg";
function draw(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// About five round numbers between two.
function round(low, high) {
  const raw = (high - low) / 5, size = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 2.5, 5, 10].find((m) => m * size >= raw) * size;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) found.push(i * step);
  return found;
}

// Answers along one covariate, the others as they are set.
function chart(model, asked, place) {
  const covariate = model.covariates[place], wide = 560, left = 76, right = 14, top = 12;
  // names of levels are turned, and every second or third is written, where they would touch
  const room = (wide - left - right) / (covariate.levels ? covariate.levels.length : 1);
  const turned = covariate.levels && Math.max(...covariate.levels.map((level) => Math.min(level.length, 16))) * 8 > room;
  const each = Math.ceil(18 / room), high = turned ? 350 : 290, below = turned ? 114 : 54;
  const count = covariate.levels ? covariate.levels.length : 81;
  const ends = covariate.typical || [covariate.low, covariate.high];
  const here = asked[place] === null ? ends[0] : asked[place];
  const from = Math.min(ends[0], here), to = Math.max(ends[1], here);
  const at = [...Array(count).keys()].map((i) => (covariate.levels ? i : from + ((to - from) * i) / (count - 1)));
  const answers = at.map((value) => evaluate(model, asked.map((old, i) => (i === place ? value : old))));
  const drawn = answers.map((a) => a.ends || a.band), actions = drawn[0] ? null : model.actions || [0, 1];
  const of = (a) => (actions ? a.action : a.value);
  const all = answers.flatMap((a, i) => [of(a), ...(drawn[i] || [])]).concat(actions || [0]);
  let low = Math.min(...all), most = Math.max(...all);
  const margin = (most - low || 1) * 0.06;
  low -= margin; most += margin;
  const first = covariate.levels ? -0.5 : at[0], last = covariate.levels ? count - 0.5 : at[count - 1];
  const px = (v) => left + ((v - first) / (last - first || 1)) * (wide - left - right);
  const py = (v) => top + ((most - v) / (most - low)) * (high - top - below);
  const root = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", class: "chart" });
  const words = (k) => `${plainly(model, answers[k], actions)} at ${covariate.levels ? covariate.levels[k] : plain(at[k])}`;
  const ends2 = covariate.levels ? at : [0, count - 1];
  root.append(draw("title", {}, `Answer against ${covariate.name}, the others as set: ${ends2.map(words).join(", ")}`));
  if (covariate.common) for (const [a, b] of [[first, covariate.common[0]], [covariate.common[1], last]])
    if (b > a) root.append(draw("rect", { x: px(a), y: top, width: px(b) - px(a), height: high - top - below, class: "few" }));
  const label = (v) => (actions ? model.words[String(v)].slice(0, 9) : plain(model.factor * v));
  const marks = actions || round(low * model.factor, most * model.factor).map((v) => v / model.factor);
  for (const v of marks) {
    root.append(draw("line", { x1: left, x2: wide - right, y1: py(v), y2: py(v), class: "rule" }));
    root.append(draw("text", { x: left - 6, y: py(v) + 4, "text-anchor": "end" }, label(v)));
  }
  if (!actions) root.append(draw("line", { x1: left, x2: wide - right, y1: py(0), y2: py(0), class: "zero" }));
  if (covariate.levels) {
    covariate.levels.forEach((level, i) => {
      if (i % each === 0) root.append(draw("text", turned
        ? { x: px(i), y: high - below + 14, "text-anchor": "end", transform: `rotate(-35 ${px(i)} ${high - below + 14})` }
        : { x: px(i), y: high - below + 18, "text-anchor": "middle" }, level.length > 16 ? `${level.slice(0, 15)}…` : level));
      const a = answers[i];
      if (drawn[i]) root.append(draw("line", { x1: px(i), x2: px(i), y1: py(drawn[i][0]), y2: py(drawn[i][1]), class: "whisker" }));
      root.append(draw("circle", { cx: px(i), cy: py(of(a)), r: i === asked[place] ? 7 : 4, class: "point" }));
    });
  } else {
    for (const v of [first, (first + last) / 2, last])
      root.append(draw("text", { x: px(v), y: high - below + 18, "text-anchor": v === first ? "start" : v === last ? "end" : "middle" }, plain(v)));
    if (drawn[0]) {
      const upper = at.map((v, i) => `${px(v)},${py(drawn[i][1])}`);
      const lower = at.map((v, i) => `${px(v)},${py(drawn[i][0])}`).reverse();
      root.append(draw("polygon", { points: [...upper, ...lower].join(" "), class: "band" }));
    }
    root.append(draw("polyline", { points: at.map((v, i) => `${px(v)},${py(of(answers[i]))}`).join(" "), class: "line" }));
    root.append(draw("circle", { cx: px(asked[place]), cy: py(of(evaluate(model, asked))), r: 6, class: "point" }));
  }
  root.append(draw("text", { x: (left + wide) / 2, y: high - 6, "text-anchor": "middle", class: "name" }, covariate.name));
  return root;
}

function plainly(model, answer, actions) {
  return actions ? model.words[String(answer.action)] : `${alike(model.factor, [answer.value])[0]} ${model.unit}`.trim();
}

// What is said of a person: the advice or effect, its number, how sure that is, and what is lost where it is wrong.
function said(model, found) {
  const advised = found.action !== null, unit = model.unit ? ` ${model.unit}` : "";
  const [value, low, high] = alike(model.factor, [found.value, ...(found.ends || [])], found.ends);
  const own = model.arms ? `${model.arms[model.arm]}: ` : "", counted = advised ? `gain by ${model.words[1]}, its cost counted: ` : "";
  const none = advised ? "There is no interval of its gain for one person." : "There is no confidence interval for one person.";
  const loss = found.loss === null ? "What this advice loses if it is wrong is not known."
    : found.loss === 0 ? "All of that interval speaks for it."
      : `If it is wrong, it loses at most ${alike(model.factor, [found.loss], found.ends)[0].slice(1)}${unit} within that interval.`;
  return {
    answer: advised ? `Advice: ${model.words[String(found.action)]}` : own + model.words.effect,
    number: model.effect ? `${counted}${value}${unit}` : "",
    ends: found.ends ? `${Math.round(100 * model.level)}% interval ${low} to ${high}${unit}` : none,
    loss: advised ? loss : "",
  };
}

function start(model) {
  const asked = model.covariates.map((covariate) => covariate.start);
  const by = (id) => document.getElementById(id);
  const number = model.against.find((i) => !model.covariates[i].levels);
  let place = number === undefined ? model.against[0] : number;
  function refresh() {
    const found = evaluate(model, asked);
    for (const [id, words] of Object.entries(said(model, found))) by(id).textContent = words;
    by("ask").classList.toggle("advice", found.action !== null);
    const curve = place !== undefined && (found.ends || found.band || found.action !== null);
    by("against").parentElement.hidden = !curve;
    by("chart").replaceChildren(...(curve ? [chart(model, asked, place)] : []));
    by("note").textContent = curve && !found.ends && found.band ? model.note : "";
  }
  if (model.arms) {
    const row = document.createElement("label"), name = document.createElement("span"), input = document.createElement("select");
    name.textContent = "effect of";
    model.arms.forEach((arm, at) => input.add(new Option(arm, at)));
    input.id = row.htmlFor = "arm";
    input.addEventListener("input", () => { model.arm = Number(input.value); refresh(); });
    row.append(name, input);
    by("asked").append(row);
  }
  model.covariates.forEach((covariate, i) => {
    const row = document.createElement("label"), name = document.createElement("span"), now = document.createElement("output");
    name.textContent = covariate.name;
    const input = document.createElement(covariate.levels ? "select" : "input");
    if (covariate.levels) covariate.levels.forEach((level, at) => input.add(new Option(level, at)));
    else Object.assign(input, { type: "range", min: covariate.low, max: covariate.high, step: covariate.step });
    input.value = covariate.start;
    input.id = row.htmlFor = `asked${i}`;  // a label's first output would have it else
    const gone = document.createElement("input"), unknown = document.createElement("span");
    const say = () => { now.textContent = covariate.levels || asked[i] === null ? "" : plain(asked[i]); };
    const ask = () => { asked[i] = gone.checked ? null : Number(input.value); say(); refresh(); };
    input.addEventListener("input", () => { gone.checked = false; ask(); });
    say();
    row.append(name, now, input);
    if (covariate.middle !== undefined) {
      Object.assign(gone, { type: "checkbox" });
      gone.setAttribute("aria-label", `${covariate.name} is not known`);
      gone.addEventListener("input", ask);
      unknown.append(gone, " not known");
      row.append(unknown);
    }
    by("asked").append(row);
    if (model.against.includes(i)) by("against").add(new Option(covariate.name, i, i === place, i === place));
  });
  by("against").addEventListener("input", () => { place = Number(by("against").value); refresh(); });
  by("ask").hidden = false;
  refresh();
}

if (typeof document !== "undefined") start(JSON.parse(document.getElementById("model").textContent));
if (typeof module !== "undefined") module.exports = { evaluate, said };
