// Sorting by a click on a column's head; a second click reverses the order.
(() => {
  "use strict";
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
  };
  const compare = (a, b, column, numeric) => {
    if (!numeric) return a.cells[column].textContent.localeCompare(b.cells[column].textContent);
    const x = value(a, column), y = value(b, column);
    return x === null || y === null ? (x === null) - (y === null) : x - y;
  };
  const sort = (table, head) => {
    const column = head.cellIndex, numeric = head.classList.contains("number");
    const falling = head.getAttribute("aria-sort") === null ? numeric : head.getAttribute("aria-sort") === "ascending";
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const empty = numeric && (value(a, column) === null || value(b, column) === null);
      return compare(a, b, column, numeric) * (falling && !empty ? -1 : 1);
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    table.tBodies[0].append(...rows);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      head.querySelector("button").addEventListener("click", () => sort(table, head));
    }
  }
})();
