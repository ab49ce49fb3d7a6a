// The page of a node: one metric of all its GPUs, each in a small plot, all on one scale.
"use strict";
(() => {
  const { quantity, tick, colours, clock, gaps, redrawn, read } = window.plots;
  const holder = document.querySelector("[data-node]");
  if (!holder) return;
  const { node, cluster, metric, since } = holder.dataset;
  const figures = [...holder.querySelectorAll("[data-gpu]")];

  async function series(figure) {
    const asked = new URLSearchParams({ metric, cluster, node, instance: figure.dataset.gpu, since, band: "none", max_points: 300 });
    return read(`/api/v1/series?${asked}`, figure.querySelector("[data-plot]"));
  }

  function draw(figure, found, range, paint) {
    const place = figure.querySelector("[data-plot]");
    place.replaceChildren();
    const known = found.y.filter((one) => one !== null);
    if (!known.length) { place.textContent = "no samples"; return () => {}; }
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${found.metric}: ${quantity(known[known.length - 1], found.unit)} at the end`);
    const t = found.t.map((ms) => ms / 1000);
    const axis = { stroke: paint.dim, grid: { stroke: paint.line, width: 1 }, ticks: { show: false } };
    const chart = new uPlot({
      width: Math.max(200, place.clientWidth),
      height: 120,
      // Half a label of the time axis.
      padding: [null, 20, null, null],
      legend: { show: true },
      cursor: { sync: { key: "node" } },
      scales: { y: { range } },
      axes: [{ ...axis, size: 26, space: 80, values: (_, all) => all.map((at) => clock(at).slice(0, 5)) },
        { ...axis, size: 66, space: 22, values: (_, all) => all.map((one) => tick(one, found.unit)) }],
      series: [{ label: "UTC", value: (_, at) => (at === null ? "–" : clock(at)) },
        { label: "mean", stroke: paint.own, width: 1.5, points: { show: false }, gaps: gaps(t, found.bin_ms), value: (_, shown) => quantity(shown, found.unit) }],
    }, [t, found.y], place);
    return () => chart.destroy();
  }

  (async () => {
    const all = [];
    for (const figure of figures) all.push([figure, await series(figure)]);
    const read = all.filter(([, found]) => found);
    const values = read.flatMap(([, found]) => found.y.filter((one) => one !== null));
    const lo = Math.min(...values), hi = Math.max(...values);
    // A constant has no range of its own.
    const margin = hi > lo ? (hi - lo) * 0.05 : Math.abs(hi) * 0.05 || 1;
    redrawn(() => {
      const paint = colours(holder);
      const drawn = read.map(([figure, found]) => draw(figure, found, [lo - margin, hi + margin], paint));
      return () => drawn.forEach((remove) => remove());
    });
  })();
})();
