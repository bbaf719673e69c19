// Sorts the rows of a table by the column whose heading is pressed: up, down, and back to the first order.
document.querySelectorAll("table.sortable").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const first = [...body.rows];
  if (first.length < 2) return;
  const sorted = (place, sign) => {
    const cells = first.map((row) => row.cells[place]);
    const numeric = cells.some((cell) => cell.dataset.value !== undefined);
    const missing = (cell) => numeric && cell.dataset.value === undefined;
    const order = (a, b) => numeric
      ? Math.sign(a.dataset.value - b.dataset.value) || 0
      : a.textContent.trim().localeCompare(b.textContent.trim(), "en", { numeric: true });
    // what has no number stands last, whichever way the rest goes
    return cells.sort((a, b) => missing(a) - missing(b) || sign * order(a, b)).map((cell) => cell.parentNode);
  };
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
      heads.forEach((other) => other.setAttribute("aria-sort", other === head ? next : "none"));
      body.append(...(next === "none" ? first : sorted(place, next === "ascending" ? 1 : -1)));
    });
  });
});
