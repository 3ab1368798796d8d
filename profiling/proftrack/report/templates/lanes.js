// The timeline: an SVG of the visible part, redrawn at each zoom. Text is inserted as text nodes only.
(() => {
  "use strict";
  const box = document.getElementById("lanes");
  if (!box) return;
  const data = JSON.parse(document.getElementById("lanes-data").textContent);
  const svg = document.getElementById("lanes-picture"), tip = document.getElementById("lanes-tip");
  const {make, time, fitted} = drawing;
  const ROW = 20, HEAD = 18, TOP = 26, GAP = 6, TINY = 2, REACH = 5, PAD = 3;
  const MOST_ARROWS = 60, SHORTEST_VIEW = 200;

  const count = data.row.length;
  const several = new Map(data.several), busy = new Map(data.busy), other = new Set(data.other);
  const callOf = new Map(), worksOf = new Map();
  for (const [call, work, called] of data.links) {
    callOf.set(work, [call, called]);
    if (!worksOf.has(call)) worksOf.set(call, []);
    worksOf.get(call).push(work);
  }
  const rows = [], rowTop = [];
  let height = TOP;
  for (const [label, kind, first, size] of data.groups) {
    height += HEAD;
    for (let i = 0; i < size; i++) {
      rows[first + i] = {kind, from: count, to: count};
      rowTop[first + i] = height;
      height += ROW;
    }
    height += GAP;
  }
  for (let i = count - 1; i >= 0; i--) rows[data.row[i]].from = i;
  for (let i = 0; i < count; i++) rows[data.row[i]].to = i + 1;
  const style = (i) => data.styles[data.style[i]];
  const end = (i) => data.start[i] + data.dur[i];
  const idleRow = rows.findIndex((row) => row.kind === "idle");

  let view = data.focus.slice(), selected = -1, hovered = -1, width = 0;

  // ---- text

  // For tooltips: five digits, down to the nanosecond.
  const exact = (ns) => {
    const [divisor, unit] = Math.abs(ns) < 1e6 ? [1e3, " us"] : Math.abs(ns) < 1e9 ? [1e6, " ms"] : [1e9, " s"];
    return String(Number((ns / divisor).toPrecision(5))) + unit;
  };
  const cause = (i) => style(i).slice("idle-".length);
  const title = (i) => {
    if (style(i).startsWith("idle-")) return "GPU idle: " + cause(i);
    return data.name[i] < 0 ? several.get(i) + " events" : data.names[data.name[i]];
  };
  // C++ names as people say them: no return type, no template arguments, no namespaces.
  const short = (name) => {
    let text = name.replace(/^void /, "").split("<")[0].replace(/\(anonymous namespace\)::/g, "");
    const namespace = text.lastIndexOf("::");
    if (namespace >= 0 && text.startsWith("at::")) text = text.slice(namespace + 2);
    return text || name;
  };
  const details = (i) => {
    const lines = [];
    if (style(i).startsWith("idle-")) lines.push(data.causes[style(i)]);
    lines.push("start " + exact(data.start[i] - data.focus[0]) + (data.step ? " after " + data.step + " began" : ""));
    lines.push("duration " + exact(data.dur[i]));
    if (several.has(i)) {
      if (data.self[i] >= 0) lines.push(exact(data.self[i]) + " in total, too short to be drawn separately");
      else lines.push("neighbours, too short to be drawn separately");
    } else if (data.self[i] >= 0) {
      lines.push("self time " + exact(data.self[i]));
    }
    if (busy.has(i)) lines.push("the GPU was busy for " + (busy.get(i) / 10).toFixed(1) + " % of it");
    if (callOf.has(i)) {
      const [call, called] = callOf.get(i);
      const delay = Math.max(data.start[i] - called, 0);
      lines.push("launched by " + short(title(call)) + ", " + exact(delay) + " after that call ended");
    }
    const works = worksOf.get(i) || [];
    if (works.length) lines.push("launched " + (works.length > 1 ? works.length + " pieces of GPU work" : short(title(works[0]))));
    if (other.has(i)) lines.push("work of another step");
    return lines;
  };

  // ---- drawing

  const x = (ns) => ((ns - view[0]) / (view[1] - view[0])) * width;
  // First mark of a row that ends after a time: marks of a row are in order and do not overlap.
  const firstFrom = (row, ns) => {
    let low = row.from, high = row.to;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (end(middle) < ns) low = middle + 1; else high = middle;
    }
    return low;
  };
  const roundTicks = (span) => {
    const rough = span / Math.max(2, Math.min(8, width / 110));
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough);
  };
  const tickText = (ns, step) => {
    const [unit, name] = step >= 1e9 ? [1e9, "s"] : step >= 1e6 ? [1e6, "ms"] : step >= 1e3 ? [1e3, "us"] : [1, "ns"];
    return Math.round(ns / unit).toLocaleString("en") + " " + name;
  };

  const label = (i, room) => {
    if (!style(i).startsWith("idle-")) return fitted([several.has(i) ? title(i) : short(title(i))], room);
    return fitted([cause(i) + " " + time(data.dur[i] / 1000), cause(i)], room);
  };

  const drawAxis = (out) => {
    const step = roundTicks(view[1] - view[0]), zero = data.focus[0];
    for (let t = Math.ceil((view[0] - zero) / step) * step; t + zero <= view[1]; t += step) {
      const at = x(t + zero);
      out.append(make("line", {class: "l-grid", x1: at, x2: at, y1: TOP - 8, y2: height}));
      if (at < width - 40) out.append(make("text", {class: "l-tick", x: at + 3, y: 12}, tickText(t, step)));
    }
    for (const [, from] of data.steps) {
      if (from <= view[0] || from >= view[1]) continue;
      out.append(make("line", {class: "l-step", x1: x(from), x2: x(from), y1: TOP - 8, y2: height}));
    }
  };
  const drawGroups = (out) => {
    for (const [label, , first] of data.groups) {
      out.append(make("text", {class: "l-group", x: 2, y: rowTop[first] - 5}, label));
    }
  };
  const drawShades = (out) => {
    const gpu = data.groups.filter((group) => group[1] === "gpu");
    if (idleRow < 0 || !gpu.length) return;
    const top = rowTop[gpu[0][2]], bottom = rowTop[idleRow];
    const row = rows[idleRow];
    let last = -1;
    for (let i = firstFrom(row, view[0]); i < row.to && data.start[i] < view[1]; i++) {
      const a = Math.max(x(data.start[i]), 0), b = Math.min(x(end(i)), width);
      if (b - a < 1 && a - last < 1) continue;
      last = b;
      out.append(make("rect", {class: "shade " + style(i), x: a, y: top, width: Math.max(b - a, 0.7), height: bottom - top}));
    }
  };
  // Marks too narrow to be drawn separately become columns of pixels, as high as the share of time they fill: a row of
  // short kernels with long gaps must not look full.
  const drawRow = (out, r) => {
    const row = rows[r], y = rowTop[r] + 1, tall = ROW - 2, columns = new Map();
    for (let i = firstFrom(row, view[0]); i < row.to && data.start[i] < view[1]; i++) {
      const a = Math.max(x(data.start[i]), -2), b = Math.min(x(end(i)), width + 2);
      if (b - a < TINY) {
        const at = Math.floor(a);
        if (!columns.has(at)) columns.set(at, new Map());
        columns.get(at).set(style(i), (columns.get(at).get(style(i)) || 0) + filled(i));
        continue;
      }
      const high = Math.max(tall * Math.min(filled(i) / data.dur[i], 1), 2);
      const place = {x: a, y: y + tall - high, width: b - a, height: high};
      out.append(make("rect", {class: "mark " + style(i) + (other.has(i) ? " other" : ""), "data-mark": i, ...place}));
      if (several.has(i)) out.append(make("rect", {class: "hatch", ...place}));
      const text = label(i, b - a - 2 * PAD);
      if (text && high > 12) out.append(make("text", {class: "l-name on-" + style(i), x: a + PAD, y: y + 13}, text));
    }
    drawColumns(out, columns, y, tall);
  };
  const filled = (i) => (several.has(i) && data.self[i] >= 0 ? data.self[i] : data.dur[i]);
  const drawColumns = (out, columns, y, tall) => {
    const perPixel = (view[1] - view[0]) / width, paths = new Map();
    for (const [at, styles] of columns) {
      let base = y + tall;
      for (const [name, ns] of styles) {
        const high = Math.max(Math.min((ns / perPixel) * tall, base - y), 1);
        paths.set(name, (paths.get(name) || "") + `M${at} ${base.toFixed(1)}v-${high.toFixed(1)}h1v${high.toFixed(1)}z`);
        base = Math.max(base - high, y + 1);
      }
    }
    for (const [name, d] of paths) out.append(make("path", {class: "mark " + name, d}));
  };
  const arrow = (work, strong) => {
    const [call, called] = callOf.get(work);
    const from = x(Math.min(called, end(call))), to = x(data.start[work]);
    const top = rowTop[data.row[call]] + ROW - 2, bottom = rowTop[data.row[work]] + 1, bend = (bottom - top) / 2;
    const d = `M${from} ${top}C${from} ${top + bend} ${to} ${bottom - bend} ${to} ${bottom}`;
    return make("path", {class: strong ? "arrow strong" : "arrow", d, "marker-end": "url(#lanes-head)"});
  };
  const drawArrows = (out) => {
    const inView = data.links.filter(([, work]) => end(work) > view[0] && data.start[work] < view[1]);
    if (inView.length <= MOST_ARROWS) for (const [, work] of inView) out.append(arrow(work, false));
    const about = hovered >= 0 ? hovered : selected;
    if (about < 0) return;
    const works = callOf.has(about) ? [about] : worksOf.get(about) || [];
    for (const work of works.slice(0, 200)) out.append(arrow(work, true));
    const a = x(data.start[about]), b = x(end(about));
    out.append(make("rect", {class: "chosen", x: a - 1, y: rowTop[data.row[about]], width: Math.max(b - a, 1) + 2, height: ROW}));
  };
  const definitions = () => {
    const defs = make("defs", {});
    const head = make("marker", {id: "lanes-head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto"});
    head.append(make("path", {class: "arrow-head", d: "M0 0L8 4L0 8z"}));
    const hatch = make("pattern", {id: "lanes-hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"});
    hatch.append(make("line", {class: "hatch-line", x1: 0, y1: 0, x2: 0, y2: 6}));
    defs.append(head, hatch);
    return defs;
  };
  const draw = () => {
    width = Math.max(svg.parentElement.clientWidth, 200);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    const out = document.createDocumentFragment();
    out.append(definitions());
    drawAxis(out);
    drawShades(out);
    for (let r = 0; r < rows.length; r++) drawRow(out, r);
    drawGroups(out);
    const arrows = make("g", {class: "arrows"});
    drawArrows(arrows);
    out.append(arrows);
    svg.replaceChildren(out);
    box.dataset.view = view.map(Math.round).join(" ");
    for (const button of box.querySelectorAll("[data-do]")) {
      const target = goals[button.dataset.do];
      if (target) button.setAttribute("aria-pressed", String(target.every((v, i) => Math.abs(v - view[i]) < 1)));
    }
  };
  const redrawArrows = () => {
    const fresh = make("g", {class: "arrows"});
    drawArrows(fresh);
    svg.querySelector("g.arrows").replaceWith(fresh);
  };

  // ---- what is in view

  const goals = {focus: data.focus, all: [0, data.span], close: data.close};
  if (data.focus[0] <= 0 && data.focus[1] >= data.span) box.querySelector("[data-do=all]").hidden = true;
  const show = (from, to) => {
    let span = Math.min(Math.max(to - from, SHORTEST_VIEW), Math.max(data.span, SHORTEST_VIEW));
    const start = Math.min(Math.max(from, 0), Math.max(data.span - span, 0));
    view = [start, start + span];
    draw();
  };
  const zoom = (factor, around) => {
    const span = (view[1] - view[0]) * factor, share = (around - view[0]) / (view[1] - view[0]);
    show(around - span * share, around + span * (1 - share));
  };
  const middle = () => {
    const about = selected >= 0 ? (data.start[selected] + end(selected)) / 2 : -1;
    return about >= view[0] && about <= view[1] ? about : (view[0] + view[1]) / 2;
  };
  const pan = (share) => show(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));
  const actions = {
    focus: () => show(...data.focus), all: () => show(0, data.span), close: () => show(...data.close),
    left: () => pan(-0.5), right: () => pan(0.5), in: () => zoom(0.5, middle()), out: () => zoom(2, middle()),
  };
  box.querySelector(".tools").addEventListener("click", (event) => {
    const button = event.target.closest("[data-do]");
    if (button) actions[button.dataset.do]();
  });

  // ---- which mark

  const markAt = (px, py) => {
    let r = rowTop.findIndex((top) => py >= top && py < top + ROW);
    if (r < 0) return -1;
    const found = nearest(r, px);
    if (found < 0 && rows[r].kind === "gpu" && idleRow >= 0) return nearest(idleRow, px);
    return found;
  };
  const nearest = (r, px) => {
    const row = rows[r], ns = view[0] + (px / width) * (view[1] - view[0]);
    const at = firstFrom(row, ns);
    let best = -1, distance = REACH;
    for (const i of [at - 1, at, at + 1]) {
      if (i < row.from || i >= row.to) continue;
      const off = Math.max(x(data.start[i]) - px, px - x(end(i)), 0);
      if (off < distance) [best, distance] = [i, off];
    }
    return best;
  };
  const tell = (i, px, py) => {
    tip.hidden = i < 0;
    if (i < 0) return;
    const name = document.createElement("b");
    name.textContent = title(i);
    tip.replaceChildren(name);
    for (const line of details(i)) {
      const row = document.createElement("span");
      row.textContent = line;
      tip.append(row);
    }
    tip.dataset.mark = i;
    const room = svg.parentElement.clientWidth;
    tip.style.left = Math.max(0, Math.min(px + 12, room - tip.offsetWidth - 2)) + "px";
    tip.style.top = (py + 18) + "px";
  };
  const tellAtMark = (i) => {
    const a = Math.max(x(data.start[i]), 0), b = Math.min(x(end(i)), width);
    tell(i, (a + b) / 2 - 12, rowTop[data.row[i]] + ROW - 14);
  };
  const choose = (i) => {
    selected = i;
    hovered = -1;
    if (i < 0) {
      tip.hidden = true;
      return redrawArrows();
    }
    if (end(i) < view[0] || data.start[i] > view[1]) {
      const span = view[1] - view[0], center = (data.start[i] + end(i)) / 2;
      show(center - span / 2, center + span / 2);
    } else redrawArrows();
    tellAtMark(i);
  };

  const place = (event) => {
    const area = svg.getBoundingClientRect();
    return [event.clientX - area.left, event.clientY - area.top];
  };
  let dragged = null;
  svg.addEventListener("pointermove", (event) => {
    const [px, py] = place(event);
    if (dragged) {
      const moved = px - dragged.px;
      if (Math.abs(moved) > 3) dragged.moved = true;
      if (dragged.moved) {
        const shift = (-moved / width) * (dragged.view[1] - dragged.view[0]);
        tip.hidden = true;
        return show(dragged.view[0] + shift, dragged.view[1] + shift);
      }
    }
    const found = markAt(px, py);
    if (found !== hovered) {
      hovered = found;
      redrawArrows();
    }
    if (found >= 0) tell(found, px, py); else if (selected < 0) tip.hidden = true;
  });
  svg.addEventListener("pointerdown", (event) => {
    dragged = {px: place(event)[0], view: view.slice(), moved: false};
    if (event.pointerType === "mouse") svg.setPointerCapture(event.pointerId);
  });
  const drop = (event) => {
    const still = dragged && !dragged.moved;
    dragged = null;
    if (event.type === "pointerup" && still) choose(markAt(...place(event)));
  };
  svg.addEventListener("pointerup", drop);
  svg.addEventListener("pointercancel", drop);
  svg.addEventListener("pointerleave", () => {
    hovered = -1;
    redrawArrows();
    if (selected >= 0) tellAtMark(selected); else tip.hidden = true;
  });
  svg.addEventListener("dblclick", (event) => {
    const found = markAt(...place(event));
    if (found >= 0) showMark(found);
  });
  const showMark = (i) => {
    show(data.start[i] - 0.1 * data.dur[i], end(i) + 0.1 * data.dur[i]);
    choose(i);
  };
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const ns = view[0] + (place(event)[0] / width) * (view[1] - view[0]);
    zoom(event.deltaY > 0 ? 1.25 : 0.8, ns);
  }, {passive: false});

  // ---- keys

  const inRow = (r, ns) => {
    const row = rows[r], at = Math.min(firstFrom(row, ns), row.to - 1);
    return at > row.from && ns - end(at - 1) < data.start[at] - ns ? at - 1 : at;
  };
  const begin = () => inRow(Math.max(rows.findIndex((row) => row.kind === "gpu"), 0), view[0]);
  const neighbour = (direction) => {
    const center = (Math.max(data.start[selected], view[0]) + Math.min(end(selected), view[1])) / 2;
    const r = data.row[selected] + direction;
    return r < 0 || r >= rows.length ? selected : inRow(r, center);
  };
  const keys = {
    ArrowRight: () => choose(Math.min(selected + 1, rows[data.row[selected]].to - 1)),
    ArrowLeft: () => choose(Math.max(selected - 1, rows[data.row[selected]].from)),
    ArrowDown: () => choose(neighbour(1)),
    ArrowUp: () => choose(neighbour(-1)),
    Home: () => choose(rows[data.row[selected]].from),
    End: () => choose(rows[data.row[selected]].to - 1),
    Enter: () => showMark(selected),
  };
  svg.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const key = event.key;
    if (key === "+" || key === "=") actions.in();
    else if (key === "-") actions.out();
    else if (key === "0") actions.focus();
    else if (key === "Escape") choose(-1);
    else if (keys[key]) selected < 0 ? choose(begin()) : keys[key]();
    else return;
    event.preventDefault();
    if (selected >= 0) tellAtMark(selected);
  });
  svg.addEventListener("blur", () => choose(-1));

  // ---- legend

  const legend = () => {
    const used = new Set(data.style.map((s) => data.styles[s]));
    const labels = {region: "region", operator: "operator", call: "runtime call", launch: "launch", wait: "wait"};
    for (const name of data.styles.filter((s) => used.has(s))) {
      const item = document.createElement("li"), swatch = make("svg", {width: 14, height: 14, "aria-hidden": "true"});
      swatch.append(make("rect", {class: "mark " + name, width: 14, height: 14}));
      const text = name.startsWith("idle-") ? "idle: " + name.slice(5) : labels[name] || "GPU: " + name;
      item.append(swatch, text);
      document.getElementById("lanes-legend").append(item);
    }
  };

  legend();
  new ResizeObserver(draw).observe(svg.parentElement);
  draw();
  box.dataset.ready = "yes";
})();
