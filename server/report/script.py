"""The page's own script. In a Python file, because Flower's app bundles carry no others."""

from __future__ import annotations

SCRIPT = r"""
"use strict";
(() => {
  const themes = JSON.parse(document.getElementById("themes").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const coarse = matchMedia("(pointer: coarse)").matches;
  let figures = new Map();
  let watcher = null;
  const ready = loadPlotly();

  // --- the plotting library, packed into the page ---
  async function loadPlotly() {
    const packed = document.getElementById("plotly").textContent.trim();
    const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("the plotting library did not load");
  }

  // --- from a figure's data to a drawing ---
  function themed(value, theme) {
    if (typeof value === "string" && value[0] === "@") {
      if (value === "@scale") return theme.scale.map((colour, i, all) => [i / (all.length - 1), colour]);
      return theme[value.slice(1)] ?? value;
    }
    if (Array.isArray(value)) return value.map(item => themed(item, theme));
    if (!value || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, theme)]));
  }

  function unfold(packed) {
    const bytes = Uint8Array.from(atob(packed.triangle), c => c.charCodeAt(0));
    const distance = code => code && packed.low * Math.exp((code - 1) / 65534 * packed.span);
    const share = code => code === 255 ? NaN : code / 250;
    const cosine = code => code / 32767 - 1;
    const wide = packed.low || packed.cosine;
    const [flat, read] = wide ? [new Uint16Array(bytes.buffer), packed.low ? distance : cosine] : [bytes, share];
    const n = packed.size, rows = Array.from({length: n}, () => new Float32Array(n));
    let at = 0;
    for (let i = 0; i < n; i++) for (let j = i; j < n; j++, at++) {
      rows[i][j] = rows[j][i] = read(flat[at]);
    }
    return rows;
  }

  function matrixOf(figure) {
    const trace = figure.data.find(one => one.z && one.z.triangle);
    if (trace && !figure.matrix) figure.matrix = {names: trace.names, says: trace.says, values: unfold(trace.z)};
    return figure.matrix;
  }

  function traceOf(trace, figure, narrow) {
    const {names, says, log, ...plain} = trace;
    const heat = plain.type === "heatmap";
    if (plain.z && plain.z.triangle) {
      const values = matrixOf(figure).values;
      plain.z = values;
      plain.hoverinfo = "none";
      if (log) {
        const floor = 10 ** log[0];
        plain.z = values.map(row => row.map(v => Math.log10(Math.max(v, floor))));
        [plain.zmin, plain.zmax] = log;
        const powers = [];
        for (let p = Math.ceil(log[0]); p <= Math.floor(log[1]); p++) powers.push(p);
        const ticks = powers.length > 1 ? powers : [log[0], log[1]];
        const words = ticks.map(p => String(Number((10 ** p).toPrecision(2))));
        plain.colorbar = {...plain.colorbar, tickvals: ticks, ticktext: words};
      }
    }
    if (heat && narrow) {
      const title = {...plain.colorbar.title, side: "bottom"};
      // Below the names of the sites, which take some 50 pixels.
      const y = -56 / (figure.layout.height - 130);
      plain.colorbar = {...plain.colorbar, orientation: "h", y, yanchor: "top", thickness: 10, title};
    }
    return plain;
  }

  function layoutOf(layout, theme, narrow) {
    const axis = {
      gridcolor: theme.grid, linecolor: theme.line, zerolinecolor: theme.grid, color: theme.ink, fixedrange: coarse,
    };
    const full = {
      paper_bgcolor: theme.paper, plot_bgcolor: theme.paper, autosize: true, showlegend: false,
      dragmode: coarse ? false : "zoom",
      font: {family: 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif', size: 13, color: theme.ink},
      hoverlabel: {bgcolor: theme.ink, bordercolor: theme.ink, font: {color: theme.paper, size: 13}, align: "left"},
      legend: {orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: {size: 12, color: theme.ink}},
      ...layout,
      margin: {l: narrow ? 46 : 60, r: narrow ? 8 : 20, t: 24, b: 44, ...layout.margin},
    };
    for (const key of ["xaxis", "yaxis", "yaxis2"]) if (full[key]) full[key] = {...axis, ...full[key]};
    return full;
  }

  async function draw(place) {
    const figure = figures.get(place.id);
    if (!figure) return;
    await ready;
    const theme = dark.matches ? themes.dark : themes.light;
    const narrow = place.clientWidth < 560;
    const traces = figure.data.map(trace => traceOf(themed(trace, theme), figure, narrow));
    const layout = layoutOf(themed(figure.layout, theme), theme, narrow);
    await Plotly.react(place, traces, layout, {responsive: true, displayModeBar: false});
    if (matrixOf(figure) && !place.dataset.tip) showPairs(place, figure);
    place.dataset.drawn = "yes";
  }

  function showPairs(place, figure) {
    const tip = document.getElementById("tip");
    place.dataset.tip = "yes";
    place.on("plotly_hover", event => {
      const {names, says, values} = matrixOf(figures.get(place.id) || figure);
      const [i, j] = event.points[0].pointNumber;
      const value = values[i][j];
      let words = `${says} ${Number(value.toPrecision(3))}`;
      if (says === "together") words = `together in ${Math.round(100 * value)}%`;
      if (Number.isNaN(value)) words = "never drawn together";
      tip.textContent = i === j ? names[i] : `${names[i]} and ${names[j]}: ${words}`;
      const box = place.getBoundingClientRect();
      const x = event.event.clientX ?? box.left + box.width / 2, y = event.event.clientY ?? box.top;
      tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - 270))}px`;
      tip.style.top = `${Math.max(4, y - 40)}px`;
      tip.hidden = false;
    });
    place.on("plotly_unhover", () => { tip.hidden = true; });
  }

  function failed(place, error) {
    place.classList.add("failed");
    place.textContent = `This figure cannot be drawn here (${error.message}); its numbers are in the CSV file. `
      + "A browser of 2023 or newer is needed.";
  }

  function drawSafely(place) { draw(place).catch(error => failed(place, error)); }

  function drawAll() { document.querySelectorAll(".plot").forEach(drawSafely); }

  // --- downloads ---
  function csvCell(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
    // A spreadsheet would compute a text that begins like a formula.
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function csvOf(figure) {
    const matrix = matrixOf(figure);
    const columns = matrix ? ["site", ...matrix.names] : figure.columns;
    const lines = matrix?.values.map((row, i) => [matrix.names[i], ...Array.from(row, v => Number(v.toPrecision(4)))]);
    const rows = lines ?? figure.rows;
    return [columns, ...rows].map(row => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
  }

  function download(name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(["\ufeff", csvOf(figures.get(name))], {type: "text/csv;charset=utf-8"}));
    link.download = `${name}.csv`;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // --- tables ---
  function sort(button) {
    const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
    const column = [...head.parentNode.children].indexOf(head);
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    const key = row => row.children[column].dataset.value ?? row.children[column].textContent.trim();
    const rows = [...body.rows].sort((a, b) => {
      const p = key(a), q = key(b), x = Number(p), y = Number(q);
      if (p === "" || q === "") return (p === "") - (q === "");
      const order = !Number.isNaN(x) && !Number.isNaN(y) ? x - y : p.localeCompare(q);
      return ascending ? order : -order;
    });
    table.querySelectorAll("th[aria-sort]").forEach(one => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    body.append(...rows);
  }

  document.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (button?.dataset.csv) download(button.dataset.csv);
    else if (button?.closest("th")) sort(button);
  });

  // --- the page as a whole ---
  function adopt() {
    const drawings = JSON.parse(document.getElementById("figures").textContent);
    figures = new Map(drawings.map(figure => [figure.name, figure]));
    watcher?.disconnect();
    // Drawn when they are about to be seen: a phone need not draw the whole page at once.
    watcher = new IntersectionObserver(entries => entries.filter(entry => entry.isIntersecting).forEach(entry => {
      watcher.unobserve(entry.target);
      drawSafely(entry.target);
    }), {rootMargin: "800px"});
    document.querySelectorAll(".plot").forEach(place => watcher.observe(place));
  }

  dark.addEventListener("change", () => document.querySelectorAll(".plot[data-drawn]").forEach(drawSafely));
  addEventListener("beforeprint", drawAll);
  addEventListener("scroll", () => { document.getElementById("tip").hidden = true; }, {passive: true});
  adopt();

  // --- a growing run ---
  const live = document.getElementById("live");
  if (live) follow(live.dataset.stamp);

  async function follow(stamp) {
    const pause = Number(live.dataset.pause);
    for (;;) {
      await new Promise(done => setTimeout(done, pause));
      try {
        const answer = await fetch(`/main?after=${encodeURIComponent(stamp)}`, {cache: "no-store"});
        if (answer.status === 204) { live.textContent = "Live: no news since the last round shown."; continue; }
        if (!answer.ok) throw new Error(`answer ${answer.status}`);
        stamp = answer.headers.get("X-Stamp") ?? stamp;
        renew(await answer.text());
        live.textContent = `Live: updated at ${new Date().toLocaleTimeString()}.`;
      } catch (error) {
        live.textContent = "Live: `coterie watch` does not answer; trying again.";
      }
    }
  }

  // Only what changed is replaced, so that nothing jumps under the reader.
  function renew(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const kept = new Map([...document.querySelectorAll("main .plot")].map(place => [place.id, place]));
    const opened = [...document.querySelectorAll("main details[open]")].map(one => one.id);
    const main = document.querySelector("main"), next = fresh.querySelector("main");
    next.querySelectorAll(".plot").forEach(place => { if (kept.has(place.id)) place.replaceWith(kept.get(place.id)); });
    next.querySelectorAll("details").forEach(one => { if (opened.includes(one.id)) one.open = true; });
    const height = scrollY;
    main.replaceWith(next);
    document.querySelector("nav").replaceWith(fresh.querySelector("nav"));
    document.querySelector("header").replaceWith(fresh.querySelector("header"));
    document.getElementById("figures").replaceWith(fresh.getElementById("figures"));
    scrollTo({top: height, behavior: "instant"});
    adopt();
  }
})();
"""
