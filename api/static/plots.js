// Draws the evidence of a finding: up to three plots over one time axis, and the strip of its peers.
// Other pages take the parts that all plots share from window.plots.
"use strict";
(() => {
  const SI = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"]];
  // What a plot shows, beside how many others where there are any.
  const HEADINGS = {
    peers: (others) => ` beside its ${others ? `${others} ` : ""}peers`,
    baseline: () => " beside its own past",
    cause: (others) => `, the suspected cause${others ? `, beside ${others} others` : ""}`,
  };

  // Units of telemetry as people write them, and the bits of throttle reasons (alerts/report/quantity.py).
  const WRITTEN = { 1: "", ratio: "", Cel: "°C", By: "B", "By/s": "B/s" };
  const PARTS = { ns: [1e9, "s"], mJ: [1e3, "J"] };
  const REASONS = ["GPU idle", "application clocks", "SW power cap", "HW slowdown", "sync boost",
    "SW thermal slowdown", "HW thermal slowdown", "HW power brake", "display clocks"];

  function reasons(mask) {
    const bits = [...Array(31).keys()].filter((i) => (mask >> i) & 1);
    return bits.map((i) => REASONS[i] || `bit ${2 ** i}`).join(", ") || "none";
  }

  function quantity(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit === "bitmask" && Number.isInteger(value) && value >= 0) return reasons(value);
    if (unit in PARTS) return quantity(value / PARTS[unit][0], PARTS[unit][1]);
    const named = unit === "bitmask" ? "" : WRITTEN[unit] ?? unit;
    const [size, prefix] = SI.find(([step]) => Math.abs(value) >= step) || [1, ""];
    const plain = !named || value === 0 ? [1, ""] : [size, prefix];
    return `${Number((value / plain[0]).toPrecision(4))} ${plain[1]}${named}`.trim();
  }

  // What stands at a tick of an axis is no mask that was read.
  const tick = (value, unit) => quantity(value, unit === "bitmask" ? "1" : unit);

  // A canvas takes no CSS variables: an element that has the colour gives it as rgb().
  function colours(element) {
    const probe = document.createElement("span");
    element.append(probe);
    const found = {};
    for (const name of ["ink", "dim", "line", "own", "peers", "onset", "card", "ok", "warning", "error", "critical"]) {
      probe.style.color = `var(--${name})`;
      found[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    return found;
  }

  const faded = (rgb, share) => rgb.replace("rgb(", "rgba(").replace(")", `, ${share})`);
  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

  // The ranges of t [s], read in bins of so many ms, in which nothing was read for three times the usual distance and
  // more (chosen: single samples may be lost), as the option of a line that is not drawn across them.
  function gaps(t, bin) {
    const apart = t.slice(1).map((at, i) => at - t[i]);
    const usual = [...apart].sort((a, b) => a - b)[apart.length >> 1];
    const least = 3 * Math.max(usual, bin / 1000);
    const empty = apart.flatMap((one, i) => (one > least ? [[t[i], t[i + 1]]] : []));
    return (u, _series, _first, _last, unknown) => {
      const found = empty.map((ends) => ends.map((at) => Math.round(u.valToPos(at, "x", true))));
      return [...unknown, ...found].sort((a, b) => a[0] - b[0]);
    };
  }

  function text(tag, content, parent, name) {
    const made = document.createElement(tag);
    made.textContent = content;
    if (name) made.className = name;
    parent.append(made);
    return made;
  }

  // Behind the lines: where the onset lies with its credible interval, and when it was detected.
  function marks(found, paint) {
    return (u) => {
      const at = (ms) => u.valToPos(ms / 1000, "x", true);
      const { left, top, width, height } = u.bbox;
      const [lo, hi] = found.onset_interval.map(at);
      u.ctx.save();
      u.ctx.beginPath();
      u.ctx.rect(left, top, width, height);
      u.ctx.clip();
      u.ctx.fillStyle = faded(paint.onset, 0.2);
      u.ctx.fillRect(lo, top, Math.max(1, hi - lo), height);
      for (const [ms, dash] of [[found.onset, []], [found.detected_at, [3, 4]]]) {
        u.ctx.strokeStyle = dash.length ? paint.dim : paint.onset;
        u.ctx.lineWidth = devicePixelRatio * (dash.length ? 1 : 2);
        u.ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
        u.ctx.beginPath();
        u.ctx.moveTo(at(ms), top);
        u.ctx.lineTo(at(ms), top + height);
        u.ctx.stroke();
      }
      u.ctx.restore();
    };
  }

  // A baseline is a constant: the same band as that of peers, over the whole window. Null where nothing is known.
  function columns(plot, t) {
    const flat = (value) => t.map(() => value);
    if (plot.baseline) {
      const { lo, median, hi } = plot.baseline;
      return { lo: flat(lo), middle: flat(median), hi: flat(hi), of: "its own past", limits: "limits" };
    }
    return plot.median ? { lo: plot.p05, middle: plot.median, hi: plot.p95, of: plot.peers, limits: "5 % to 95 %" } : null;
  }

  function options(plot, found, paint, width) {
    const value = (_, shown) => quantity(shown, plot.unit);
    const axis = { stroke: paint.dim, grid: { stroke: paint.line, width: 1 }, ticks: { stroke: paint.line, width: 1 } };
    const band = columns(plot, found.t);
    const beside = band ? [
      { label: `median of ${band.of}`, stroke: paint.peers, width: 1, dash: [4, 3], value, points: { show: false } },
      { label: `${band.limits}: from`, stroke: paint.peers, width: 0.5, value, points: { show: false } },
      { label: "to", stroke: paint.peers, width: 0.5, value, points: { show: false } },
    ] : [];
    return {
      width,
      height: 165,
      // The last label stands half beyond the end of the axis.
      padding: [null, 40, null, null],
      cursor: { sync: { key: "evidence" }, points: { size: 6 } },
      scales: { x: { time: true, range: [found.from / 1000, found.to / 1000] } },
      axes: [{ ...axis, size: 30, space: 70, values: (_, all) => all.map(clock) }, { ...axis, size: 72, values: (_, all) => all.map((one) => tick(one, plot.unit)) }],
      bands: band ? [{ series: [4, 3], fill: faded(paint.peers, 0.3) }] : [],
      series: [
        { label: "UTC", value: (_, at) => (at === null ? "–" : clock(at)) },
        { label: plot.subject, stroke: paint.own, width: 2, value },
        ...beside,
      ],
      hooks: { drawClear: [marks(found, paint)] },
    };
  }

  function summary(plot, found) {
    const after = plot.y.filter((one, i) => one !== null && found.t[i] >= found.onset);
    const last = after.length ? after[after.length - 1] : null;
    const band = columns(plot, found.t);
    const own = `${plot.metric}: ${quantity(last, plot.unit)} at the end`;
    if (!band) return own;
    const middle = band.middle.filter((one) => one !== null);
    return `${own}, median of ${band.of} ${quantity(middle[middle.length - 1], plot.unit)}`;
  }

  function one(plot, found, parent, paint) {
    const figure = document.createElement("figure");
    text("figcaption", "", figure).append(Object.assign(document.createElement("code"), { textContent: plot.metric }),
      (HEADINGS[plot.role] || String)(plot.n || ""));
    parent.append(figure);
    const band = columns(plot, found.t);
    const width = Math.max(260, parent.clientWidth);
    const data = [found.t.map((ms) => ms / 1000), plot.y, ...(band ? [band.middle, band.lo, band.hi] : [])];
    const holder = document.createElement("div");
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", summary(plot, found));
    figure.append(holder);
    const chart = new uPlot(options(plot, found, paint, width), data, holder);
    return () => chart.destroy();
  }

  // Every peer is a dot on one line, and the subject a larger one: an outlier needs no axis to be seen.
  function strip(found, parent, paint) {
    const { values, subject, unit, metric, n } = found.strip;
    const figure = document.createElement("figure");
    text("figcaption", "", figure).append(Object.assign(document.createElement("code"), { textContent: metric }),
      ` of all ${n} peers since the onset`);
    const canvas = document.createElement("canvas");
    const width = Math.max(260, parent.clientWidth);
    const height = 56;
    canvas.width = width * devicePixelRatio;
    canvas.height = height * devicePixelRatio;
    canvas.className = "strip";
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${n} peers from ${quantity(values[0], unit)} to ${quantity(values[values.length - 1], unit)}, the subject at ${quantity(subject, unit)}`);
    figure.append(canvas);
    parent.append(figure);
    const known = subject === undefined || subject === null ? values : [...values, subject];
    const lo = Math.min(...known), hi = Math.max(...known);
    const x = (value) => 12 + (hi > lo ? (value - lo) / (hi - lo) : 0.5) * (width - 24);
    const draw = canvas.getContext("2d");
    draw.scale(devicePixelRatio, devicePixelRatio);
    const dot = (value, size, fill) => { draw.fillStyle = fill; draw.beginPath(); draw.arc(x(value), 20, size, 0, 7); draw.fill(); };
    draw.strokeStyle = paint.line;
    draw.strokeRect(12, 20, width - 24, 0);
    values.forEach((value) => dot(value, 3, faded(paint.peers, 0.6)));
    if (known.length > values.length) dot(subject, 6, paint.own);
    draw.fillStyle = paint.dim;
    draw.font = "12px system-ui, sans-serif";
    draw.fillText(quantity(lo, unit), 8, 48);
    draw.textAlign = "right";
    draw.fillText(quantity(hi, unit), width - 8, 48);
  }

  // Once now, and again when the width or the colours change; draw() returns what removes the charts.
  function redrawn(draw) {
    let remove = draw();
    const again = () => { remove(); remove = draw(); };
    let wait = 0;
    addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(again, 150); });
    document.addEventListener("slowrank:theme", again);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  }

  async function read(path, place) {
    const answer = await fetch(path, { headers: { accept: "application/json" } });
    if (answer.ok) return answer.json();
    place.textContent = "The plot cannot be read now; reload the page, or ask for a shorter time.";
    return null;
  }

  async function show(section) {
    const place = section.querySelector("[data-plots]");
    // The token of a link stays in the address only.
    const found = await read(section.dataset.evidence + location.search, place);
    if (!found) return;
    if (!found.plots.length) { place.textContent = section.dataset.none; return; }
    redrawn(() => {
      place.replaceChildren();
      const paint = colours(section);
      const drawn = found.plots.map((plot) => one(plot, found, place, paint));
      if (found.strip) strip(found, place, paint);
      return () => drawn.forEach((remove) => remove());
    });
  }

  window.plots = { quantity, tick, colours, faded, clock, gaps, text, redrawn, read };
  document.querySelectorAll("[data-evidence]").forEach(show);
})();
