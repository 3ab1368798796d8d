// The icicle: an SVG of the tiles in view, redrawn at each zoom. Text is inserted as text nodes only.
(() => {
  "use strict";
  const box = document.getElementById("icicle");
  if (!box) return;
  const data = JSON.parse(document.getElementById("icicle-data").textContent);
  const svg = document.getElementById("icicle-picture"), about = document.getElementById("icicle-about");
  const path = document.getElementById("icicle-path"), help = document.getElementById("icicle-help");
  const {make, time, fitted} = drawing;
  const ROW = 22, PAD = 4, NARROWEST = 0.4, MOST_WORK = 5;

  const count = data.us.length, whole = data.us[0];
  const children = data.us.map(() => []), start = [0], depth = [0], free = [0], sharing = new Map();
  for (let i = 0; i < count; i++) {
    const above = data.parent[i];
    if (above >= 0) {
      children[above].push(i);
      start[i] = free[above];
      free[above] += data.us[i];
      depth[i] = depth[above] + 1;
    }
    free[i] = start[i];
    if (data.owner[i] >= 0) sharing.set(data.owner[i], [...(sharing.get(data.owner[i]) || []), i]);
  }
  const levels = Math.max(...depth) + 1;
  const end = (i) => start[i] + data.us[i];
  const chain = (i) => (i < 0 ? [] : [...chain(data.parent[i]), i]);
  const style = (i) => "pass-" + (data.part[i] < 0 ? "all" : data.parts[data.part[i]]);
  const name = (i) => data.names[data.name[i]];

  let zoomed = 0, selected = -1, hovered = -1, width = 0, drawn = [];

  // ---- text

  const share = (us, of) => {
    const percent = of ? (100 * us) / of : 0;
    return (percent > 0 && percent < 0.05 ? "<0.1" : percent.toFixed(1)) + " %";
  };
  const calls = (n) => (n === 1 ? "1 call" : Number(n.toPrecision(3)).toLocaleString("en") + " calls") + data.per;

  // The pieces of work of a tile and all below it in its pass, largest first.
  const work = new Map();
  const pieces = (top) => {
    if (work.has(top)) return work.get(top);
    const sums = new Map(), below = [top];
    while (below.length) {
      const i = below.pop();
      below.push(...children[i]);
      for (const [operator, kernel, part, n, us] of data.owner[i] < 0 ? [] : data.owners[data.owner[i]][4]) {
        if (part !== data.part[i]) continue;
        const key = operator + " " + kernel, sum = sums.get(key) || [operator, kernel, 0, 0];
        sums.set(key, [operator, kernel, sum[2] + n, sum[3] + us]);
      }
    }
    work.set(top, [...sums.values()].sort((a, b) => b[3] - a[3]).slice(0, MOST_WORK));
    return work.get(top);
  };

  // ---- drawing

  const x = (us) => ((us - start[zoomed]) / data.us[zoomed]) * width;
  const tile = (i) => {
    const above = end(i) >= end(zoomed) && start[i] <= start[zoomed] && depth[i] < depth[zoomed];
    const left = above ? 0 : x(start[i]), right = above ? width : x(end(i));
    return {i, above, left, right, top: depth[i] * ROW};
  };
  // Neighbours too narrow to be drawn separately are collected in `narrow`, as one rectangle without what is below.
  const inView = (narrow) => {
    const out = chain(data.parent[zoomed]).map(tile), below = [zoomed];
    while (below.length) {
      const place = tile(below.pop());
      if (place.right - place.left < NARROWEST) {
        const last = narrow.findLast((each) => each.top === place.top);
        if (last && place.left - last.right < NARROWEST) last.right = place.right; else narrow.push({...place});
        continue;
      }
      out.push(place);
      below.push(...children[place.i].slice().reverse());
    }
    return out;
  };
  const draw = () => {
    width = Math.max(svg.parentElement.clientWidth, 200);
    const narrow = [], out = document.createDocumentFragment();
    drawn = inView(narrow);
    for (const {i, left, right, top} of narrow) {
      out.append(make("rect", {class: style(i) + " narrow", x: left, y: top, width: right - left, height: ROW - 1}));
    }
    for (const {i, above, left, right, top} of drawn) {
      const wide = right - left - Math.min(1, 0.15 * (right - left));
      out.append(make("rect", {class: style(i) + " tile" + (above ? " above" : ""), "data-tile": i, x: left, y: top, width: wide, height: ROW - 1}));
      const text = fitted(labels(i), wide - 2 * PAD);
      if (text) out.append(make("text", {class: "i-name" + (above ? " above" : ""), x: left + PAD, y: top + 15}, text));
    }
    out.append(make("g", {class: "marks"}));
    svg.setAttribute("viewBox", `0 0 ${width} ${levels * ROW}`);
    svg.replaceChildren(out);
    box.dataset.zoomed = zoomed;
    mark();
  };
  const labels = (i) => {
    const figures = ": " + time(data.us[i]) + ", " + share(data.us[i], whole);
    return i === zoomed || depth[i] < 2 ? [name(i) + figures, name(i)] : [name(i)];
  };
  // Outlines: the tile that is told about, and the same module in the other passes.
  const mark = () => {
    const told = hovered >= 0 ? hovered : selected, marks = make("g", {class: "marks"});
    const same = told >= 0 && data.owner[told] >= 0 ? sharing.get(data.owner[told]) : [];
    for (const {i, left, right, top} of drawn) {
      if (i !== told && !same.includes(i)) continue;
      const wide = Math.max(right - left, 2);
      marks.append(make("rect", {class: i === told ? "chosen" : "same", x: left, y: top, width: wide, height: ROW - 1}));
    }
    svg.querySelector("g.marks").replaceWith(marks);
    tell(told >= 0 ? told : zoomed);
  };

  // ---- what is said of a tile

  const element = (tag, text, style) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (style) node.className = style;
    return node;
  };
  const title = (i) => {
    const owner = data.owners[data.owner[i]], head = element("p");
    head.append(element("b", owner ? data.names[owner[0]] : name(i)));
    if (owner && data.names[owner[1]]) head.append(" ", element("code", data.names[owner[1]]));
    if (owner && owner[2]) head.append(" ", element("small", calls(owner[2])));
    return head;
  };
  const figures = (i) => {
    const where = data.owner[i] >= 0 ? `In ${data.parts[data.part[i]]} ` : "";
    const own = data.owner[i] >= 0 ? `, itself ${time(data.own[i])}` : "";
    return element("p", `${where}${time(data.us[i])}${data.per}, ${share(data.us[i], whole)} of the ${data.what}${own}`);
  };
  const passes = (i) => {
    const owner = data.owners[data.owner[i]], list = element("ul", undefined, "swatches");
    const sum = owner[3].reduce((a, b) => a + b, 0);
    owner[3].forEach((us, part) => {
      if (!us) return;
      const item = element("li"), swatch = make("svg", {width: 12, height: 12, "aria-hidden": "true"});
      swatch.append(make("rect", {class: "pass-" + data.parts[part], width: 12, height: 12}));
      item.append(swatch, `${data.parts[part]} ${time(us)}`);
      list.append(item);
    });
    if (list.children.length > 1) list.append(element("li", `together ${time(sum)}, ${share(sum, whole)}`));
    return list;
  };
  const largest = (i) => {
    const found = pieces(i), list = element("ul", undefined, "work");
    for (const [operator, kernel, n, us] of found) {
      const item = element("li");
      item.append(element("b", time(us)), " ", element("code", data.names[operator] || "no operator"));
      if (data.names[kernel]) item.append(" \u203a ", element("code", data.names[kernel]));
      item.append(" ", element("small", calls(n)));
      list.append(item);
    }
    return list;
  };
  const tell = (i) => {
    if (about.dataset.tile === String(i)) return;
    about.dataset.tile = i;
    about.replaceChildren(title(i), figures(i));
    if (data.owner[i] >= 0) about.append(passes(i));
    about.append(largest(i));
  };

  // ---- zooming

  const zoom = (i) => {
    zoomed = i;
    hovered = -1;
    const way = chain(i);
    path.replaceChildren(...way.map((at, level) => {
      const button = element("button", name(at));
      button.type = "button";
      button.dataset.to = at;
      if (level === way.length - 1) button.setAttribute("aria-current", "true");
      return button;
    }));
    draw();
  };
  path.addEventListener("click", (event) => {
    const button = event.target.closest("[data-to]");
    if (!button) return;
    selected = -1;
    zoom(Number(button.dataset.to));
    path.lastElementChild.focus();
  });
  const tileAt = (event) => {
    const area = svg.getBoundingClientRect(), px = event.clientX - area.left, py = event.clientY - area.top;
    let best = -1, distance = 3;
    for (const {i, left, right, top} of drawn) {
      if (py < top || py >= top + ROW) continue;
      const off = Math.max(left - px, px - right, 0);
      if (off < distance) [best, distance] = [i, off];
    }
    return best;
  };
  svg.addEventListener("pointermove", (event) => {
    const found = tileAt(event);
    if (found === hovered || event.pointerType === "touch") return;
    hovered = found;
    mark();
  });
  svg.addEventListener("pointerleave", () => {
    hovered = -1;
    mark();
  });
  svg.addEventListener("click", (event) => {
    const found = tileAt(event);
    if (found < 0) return;
    selected = found;
    zoom(found === zoomed && found ? data.parent[found] : found);
  });

  // ---- keys

  const beside = (i, direction) => {
    const row = drawn.filter((each) => depth[each.i] === depth[i]).sort((a, b) => a.left - b.left);
    const at = row.findIndex((each) => each.i === i) + direction;
    return row[Math.min(Math.max(at, 0), row.length - 1)].i;
  };
  const into = (i) => {
    const next = tile(i).above ? chain(zoomed)[depth[i] + 1] : children[i].find((child) => drawn.some((each) => each.i === child));
    return next === undefined ? i : next;
  };
  const keys = {
    ArrowDown: () => into(selected), ArrowUp: () => Math.max(data.parent[selected], 0),
    ArrowRight: () => beside(selected, 1), ArrowLeft: () => beside(selected, -1),
  };
  svg.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const key = event.key;
    hovered = -1;
    if (selected < 0 || !drawn.some((each) => each.i === selected)) selected = zoomed;
    if (key === "Enter") zoom(selected);
    else if (key === "Home") zoom((selected = 0));
    else if (key === "Escape") {
      if (!zoomed) return;
      selected = zoomed;
      zoom(data.parent[zoomed]);
    } else if (keys[key]) {
      selected = keys[key]();
      mark();
    } else return;
    event.preventDefault();
  });
  svg.addEventListener("focus", () => {
    if (selected >= 0 || !svg.matches(":focus-visible")) return;
    selected = zoomed;
    mark();
  });
  svg.addEventListener("blur", () => {
    selected = -1;
    mark();
  });

  svg.setAttribute("role", "application");
  svg.setAttribute("aria-roledescription", "icicle");
  svg.setAttribute("aria-describedby", "icicle-help");
  svg.setAttribute("tabindex", "0");
  svg.removeAttribute("width");
  for (const each of [path, about, help]) each.hidden = false;
  new ResizeObserver(draw).observe(svg.parentElement);
  zoom(0);
  box.dataset.ready = "yes";
})();
