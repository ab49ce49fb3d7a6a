// The page of a job: the band of its step times, how slow each rank was over time, and the DP × PP matrix.
"use strict";
(() => {
  const { quantity, colours, faded, clock, gaps, text, redrawn, read } = window.plots;
  const page = document.querySelector("[data-job]");
  const { job, cluster, since, metric } = page.dataset;
  const address = (what, more) => `${job}/${what}?${new URLSearchParams({ cluster, ...(since ? { since } : {}), ...more })}`;
  // Pixels of a canvas above which rows are joined: a taller one is shrunk, and a shrunk one loses single cells.
  const MOST_ROWS = 1024;
  // Pixels from one name of a row to the next.
  const ROW_NAME = 16, NAME_HEIGHT = 11;

  function counted(number, noun) { return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`; }

  function rgb(colour) { return colour.match(/[\d.]+/g).slice(0, 3).map(Number); }

  // From healthy to 1.5 or more. Luminance is monotonic along it, in both themes.
  function ramp(paint) {
    const stops = [paint.ok, paint.warning, paint.error, paint.critical].map(rgb);
    return Array.from({ length: 255 }, (_, code) => {
      const at = (code / 254) * (stops.length - 1);
      const low = Math.min(stops.length - 2, Math.floor(at));
      return stops[low].map((one, i) => Math.round(one + (stops[low + 1][i] - one) * (at - low)));
    });
  }

  function bytes(base64) { return Uint8Array.from(atob(base64), (one) => one.charCodeAt(0)); }

  // The slowest of every few rows, so that no slow rank is lost where there are more rows than pixels.
  function joined(cells, rows, columns) {
    const few = Math.ceil(rows / MOST_ROWS);
    if (few === 1) return { cells, rows, few };
    const height = Math.ceil(rows / few);
    const made = new Uint8Array(height * columns).fill(255);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const one = cells[row * columns + column], at = Math.floor(row / few) * columns + column;
        if (one !== 255 && (made[at] === 255 || one > made[at])) made[at] = one;
      }
    }
    return { cells: made, rows: height, few };
  }

  // Without the columns before the first and after the last step, as a window may be longer than the job.
  function trimmed(found, rows) {
    const columns = found.t.length;
    const seen = found.first_step.map((step, i) => (step === null ? -1 : i)).filter((i) => i >= 0);
    if (!seen.length) return { cells: new Uint8Array(), from: 0, columns: 0 };
    const from = seen[0], width = seen[seen.length - 1] - from + 1, all = bytes(found.data);
    const cells = new Uint8Array(rows * width);
    for (let row = 0; row < rows; row++) cells.set(all.subarray(row * columns + from, row * columns + from + width), row * width);
    return { cells, from, columns: width };
  }

  function canvas(cells, rows, columns, paint) {
    const made = document.createElement("canvas");
    made.width = columns;
    made.height = rows;
    const colour = ramp(paint), empty = rgb(paint.card);
    const draw = made.getContext("2d");
    const image = draw.createImageData(columns, rows);
    for (let i = 0; i < cells.length; i++) {
      const [r, g, b] = cells[i] === 255 ? empty : colour[cells[i]];
      image.data.set([r, g, b, 255], i * 4);
    }
    draw.putImageData(image, 0, 0);
    made.className = "map";
    return made;
  }

  // What is under the pointer is written below the picture.
  function pointed(map, rows, columns, output, describe) {
    map.addEventListener("mousemove", (event) => {
      const box = map.getBoundingClientRect();
      const column = Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns));
      const row = Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows));
      output.textContent = describe(Math.max(0, row), Math.max(0, column));
    });
  }

  const ratio = (found, code) => {
    if (code === 255) return "no step";
    const value = found.lo + (code / 254) * (found.hi - found.lo);
    return code === 254 ? `${value.toFixed(2)}× or more` : code === 0 ? `${value.toFixed(2)}× or less` : `${value.toFixed(2)}×`;
  };

  function rankName(found, row) {
    const { rank, node, gpu_index: gpu, pp, dp } = found.rows;
    if (found.by === "node") return node[row];
    const at = [["pp", pp[row]], ["dp", dp[row]]].filter(([, one]) => one !== null).map(([name, one]) => `${name} ${one}`).join(", ");
    return `rank ${rank[row]} (${node[row]}${gpu[row] === null ? "" : ` GPU ${gpu[row]}`}${at ? `, ${at}` : ""})`;
  }

  // Beside a heat map: the names of as many rows as there is room for.
  function rowNames(found, height, few, pixels) {
    const side = document.createElement("div");
    side.className = "names";
    side.style.height = `${pixels}px`;
    side.setAttribute("aria-hidden", "true");
    const every = Math.ceil(ROW_NAME * height / pixels);
    // The last one only where all of it fits.
    for (let row = 0; (row * pixels) / height <= pixels - NAME_HEIGHT; row += every) {
      const name = text("span", found.by === "node" ? found.rows.node[row * few] : `${found.rows.rank[row * few]}`, side);
      name.style.top = `${(row * pixels) / height}px`;
    }
    return side;
  }

  function scale(paint) {
    const holder = document.querySelector("[data-scale]");
    holder.replaceChildren("1.0× ", canvas(Uint8Array.from({ length: 255 }, (_, i) => i), 1, 255, paint), " 1.5× or more");
    holder.querySelector("canvas").className = "scale";
  }

  async function heat(place) {
    const found = await read(address("heatmap", { metric }), place);
    if (!found) return;
    const rows = found.rows.node.length;
    const { cells: all, from, columns } = trimmed(found, rows);
    if (!rows || !columns) { place.textContent = "No step of that time is stored."; return; }
    const { cells, rows: height, few } = joined(all, rows, columns);
    const at = (column) => clock(found.t[from + column] / 1000);
    const output = document.createElement("output");
    output.textContent = `${found.by === "node" ? `${counted(rows, "node")} (the slowest rank of each)` : counted(rows, "rank")}, ${counted(columns, "bin")} of ${found.bin_ms / 1000} s${found.sampled ? ", one roll-up of each" : ""}`;
    const slow = document.createElement("ol");
    // The cells come with the slowest first: each row once, with its slowest cell.
    const rowsOfTop = [...new Map([...found.top].reverse().map((cell) => [cell[0], cell])).values()].sort((a, b) => b[2] - a[2]);
    for (const [row, column, one] of rowsOfTop.slice(0, 5)) {
      text("li", `${rankName(found, row)}: ${one.toFixed(2)}× at ${clock(found.t[column] / 1000)} UTC`, slow);
    }
    redrawn(() => {
      const paint = colours(page);
      const map = canvas(cells, height, columns, paint);
      map.dataset.rows = height <= 64 ? "few" : height <= 256 ? "some" : "many";
      const pixels = Math.min(MOST_ROWS, height * (height <= 64 ? 8 : height <= 256 ? 3 : 1));
      map.style.height = `${pixels}px`;
      map.setAttribute("role", "img");
      map.setAttribute("aria-label", `Heat map of ${counted(rows, "row")} and ${counted(columns, "bin")} of time; the slowest rows are listed below`);
      pointed(map, height, columns, output, (row, column) => {
        const first = row * few;
        const step = found.first_step[from + column];
        const steps = step === null ? "" : `, steps ${step} to ${found.last_step[from + column]}`;
        return `${rankName(found, first)}${few > 1 ? ` and the next ${few - 1}` : ""}, ${at(column)} UTC${steps}: ${ratio(found, cells[row * columns + column])}`;
      });
      const axis = document.createElement("div");
      axis.className = "ends";
      text("span", at(0), axis);
      text("span", `${at(columns - 1)} UTC`, axis);
      const beside = document.createElement("div");
      beside.className = "named";
      const over = text("span", found.by === "node" ? "node" : "rank", beside, "aside");
      over.setAttribute("aria-hidden", "true");
      beside.append(rowNames(found, height, few, pixels), map, axis);
      place.replaceChildren(beside, output);
      if (slow.children.length) { text("p", found.by === "node" ? "The slowest nodes:" : "The slowest ranks:", place, "aside"); place.append(slow); }
      else text("p", "No cell is 5 % slower than its peers.", place, "aside");
      scale(paint);
      return () => {};
    });
  }

  async function matrix(place) {
    const found = await read(address("matrix", { metric }), place);
    if (!found) return;
    const rows = found.pp.length, columns = found.dp.length;
    if (rows * columns <= 1) { document.getElementById("matrix").parentElement.hidden = true; return; }
    const cells = bytes(found.data);
    const output = document.createElement("output");
    output.textContent = `${counted(rows, "stage")} (rows), ${counted(columns, "replica")} (columns)`;
    redrawn(() => {
      const map = canvas(cells, rows, columns, colours(page));
      // A cell stays wide enough to be seen, and high enough to be pointed at: many replicas are scrolled through.
      const wide = Math.max(2, Math.min(28, place.clientWidth / columns));
      map.style.width = `${wide * columns}px`;
      map.style.height = `${Math.max(12, wide) * rows}px`;
      map.setAttribute("role", "img");
      map.setAttribute("aria-label", `Matrix of ${counted(rows, "pipeline stage")} and ${counted(columns, "replica")}`);
      pointed(map, rows, columns, output, (row, column) => {
        const rank = found.slowest_rank[row][column];
        return `pp ${found.pp[row]}, dp ${found.dp[column]}: ${rank === null ? "no step" : `rank ${rank}, ${ratio(found, cells[row * columns + column])}`}`;
      });
      place.replaceChildren(map, output);
      return () => {};
    });
  }

  // The onsets of the findings in the table below as lines, the changes of level as dashed ones, and checkpoints
  // as short ones at the foot.
  function marked(paint, from, to, changes, checkpoints) {
    const onsets = [...document.querySelectorAll("[data-onset]")].map((row) => Date.parse(row.dataset.onset) / 1000);
    const lines = [
      ...onsets.map((at) => [at, paint.onset, [], 1]),
      ...changes.map((at) => [at, paint.dim, [5, 4], 1]),
      ...checkpoints.map((at) => [at, paint.dim, [], 0.1]),
    ];
    return (u) => {
      u.ctx.save();
      u.ctx.lineWidth = 1.5 * devicePixelRatio;
      for (const [at, colour, dash, share] of lines.filter(([one]) => one >= from && one <= to)) {
        u.ctx.strokeStyle = colour;
        u.ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
        const x = u.valToPos(at, "x", true);
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.bbox.top + u.bbox.height);
        u.ctx.lineTo(x, u.bbox.top + u.bbox.height * (1 - share));
        u.ctx.stroke();
      }
      u.ctx.restore();
    };
  }

  const WHAT = { restart: "restart", resize: "another number of ranks", schedule: "change of schedule", finding: "finding", evaluation: "evaluation", checkpoint: "checkpoint" };

  // Each change of level in words: when, how large, and what is known of that time.
  function changed(found) {
    const list = document.createElement("ol");
    list.dataset.changes = "";
    for (const { at, ratio, before, after, explanations } of found.change_points) {
      const item = text("li", `${clock(at / 1000)} UTC: ${ratio === null ? "" : `${ratio.toFixed(2)}×, `}from ${quantity(before, found.unit)} to ${quantity(after, found.unit)}`, list);
      if (!explanations.length) { text("span", "nothing is known of that time that explains it", item, "aside"); continue; }
      for (const { what, at: when, text: said, finding_id: finding } of explanations) {
        const line = text("span", `${WHAT[what]} at ${clock(when / 1000)}${said ? ": " : ""}`, item, "aside");
        const shown = text(finding ? "a" : "span", said, line);
        if (finding) shown.href = `/findings/${finding}`;
      }
    }
    return list;
  }

  async function steps(place) {
    const found = await read(address("steps", {}), place);
    if (!found) return;
    if (!found.t.length) { place.textContent = "No step of that time is stored."; return; }
    const t = found.t.map((ms) => ms / 1000);
    const value = (_, shown) => quantity(shown, found.unit);
    redrawn(() => {
      place.replaceChildren();
      const figure = document.createElement("figure");
      figure.setAttribute("role", "img");
      figure.setAttribute("aria-label", `Step time: median ${quantity(found.median[t.length - 1], found.unit)}, slowest ${quantity(found.max[t.length - 1], found.unit)} at the end`);
      place.append(figure);
      const paint = colours(page);
      const axis = { stroke: paint.dim, grid: { stroke: paint.line, width: 1 }, ticks: { stroke: paint.line, width: 1 } };
      const line = { points: { show: false }, gaps: gaps(t, found.bin_ms), value };
      const chart = new uPlot({
        width: Math.max(260, place.clientWidth),
        height: 220,
        // Room for the last label of the axis.
        padding: [null, 40, null, null],
        axes: [{ ...axis, size: 30, space: 70, values: (_, all) => all.map(clock) }, { ...axis, size: 72, values: (_, all) => all.map((one) => quantity(one, found.unit)) }],
        bands: [{ series: [4, 3], fill: faded(paint.peers, 0.3) }],
        series: [
          { label: "UTC", value: (_, at) => (at === null ? "–" : clock(at)) },
          { label: "median", stroke: paint.peers, width: 2, ...line },
          { label: "slowest", stroke: paint.own, width: 1, ...line, value: (u, shown, _, i) => i === null ? "–" : `${quantity(shown, found.unit)}, rank ${found.slowest_rank[i]}` },
          { label: "5 %", stroke: paint.peers, width: 0.5, ...line },
          { label: "95 %", stroke: paint.peers, width: 0.5, ...line },
        ],
        hooks: { drawClear: [marked(paint, t[0], t[t.length - 1], found.change_points.map(({ at }) => at / 1000), found.checkpoints.map(([ms]) => ms / 1000))] },
      }, [t, found.median, found.max, found.p05, found.p95], figure);
      if (found.change_points.length) { text("p", "Changes of level, as information:", place, "aside"); place.append(changed(found)); }
      return () => chart.destroy();
    });
  }

  // One after the other: the pictures of a large job take the database some time each.
  steps(page.querySelector("[data-steps]"))
    .then(() => heat(page.querySelector("[data-heat]")))
    .then(() => matrix(page.querySelector("[data-matrix]")));
})();
