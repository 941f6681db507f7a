"use strict";
// Draws the charts from the JSON beside them, with the page's colours, and sorts tables. A page
// that changes its contents sends the event "contents" to have both done again.
(() => {
  const root = document.documentElement;

  // "var(--front)" becomes the colour that the style sheet gives it now.
  function coloured(value, style) {
    if (typeof value === "string") {
      const match = /^var\((--[\w-]+)\)$/.exec(value);
      return match ? style.getPropertyValue(match[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((part) => coloured(part, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(
        Object.entries(value).map(([key, part]) => [key, coloured(part, style)])
      );
    }
    return value;
  }

  function themed(layout) {
    const narrow = window.innerWidth < 640;
    const axis = {
      gridcolor: "var(--grid)", linecolor: "var(--line)", zerolinecolor: "var(--line)",
      tickcolor: "var(--line)", ticks: "outside",
    };
    return {
      autosize: true,
      uirevision: "kept",  // what was zoomed or hidden stays so when the data change
      margin: { l: 8, r: 14, t: 8, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: "var(--ink)", size: narrow ? 11 : 13, family: "system-ui, sans-serif" },
      legend: { orientation: "h", x: 0, y: 1, xanchor: "left", yanchor: "bottom" },
      hoverlabel: {
        align: "left", bgcolor: "var(--panel)", bordercolor: "var(--muted)",
        font: { color: "var(--ink)" },
      },
      hovermode: "closest",
      ...layout,
      xaxis: { ...axis, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
    };
  }

  function draw() {
    const style = getComputedStyle(root);
    for (const source of document.querySelectorAll("script[data-chart]")) {
      const { data, layout } = JSON.parse(source.textContent);
      Plotly.react(
        source.dataset.chart, coloured(data, style), coloured(themed(layout), style),
        { responsive: true, displayModeBar: false }
      );
    }
  }

  function sortable(table) {
    if (table.dataset.sortable) return;
    table.dataset.sortable = "yes";
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const key = (row, column) => {
      const cell = row.cells[column];
      return cell.dataset.order === undefined ? cell.textContent : Number(cell.dataset.order);
    };
    heads.forEach((head, column) => {
      head.tabIndex = 0;
      const sort = () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [key(a, column), key(b, column)];
          return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
        });
        body.append(...rows);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
  }

  function arrange() {
    draw();
    document.querySelectorAll("table.sortable").forEach(sortable);
  }

  arrange();
  document.addEventListener("contents", arrange);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { root.classList.add("printing"); draw(); });
  window.addEventListener("afterprint", () => { root.classList.remove("printing"); draw(); });
})();
