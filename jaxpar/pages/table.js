"use strict";
// A click on the head of a table of class `sortable` sorts its rows: by number where cells have one, else by text.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const { order } = row.cells[column].dataset;
    return order === undefined ? row.cells[column].textContent : Number(order);
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      // Empty cells stay last both ways.
      const empty = row => row.cells[column].textContent.trim() === "";
      body.append(...[...body.rows].sort((a, b) =>
        empty(a) - empty(b) || sign * compare(key(a, column), key(b, column))));
    });
  });
}
