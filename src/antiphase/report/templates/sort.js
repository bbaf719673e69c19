// Makes the columns of table.sortable sort their rows; without scripts the order is that of the page.
document.querySelectorAll("table.sortable").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const valueOf = (row, place) => row.cells[place].dataset.value;
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const rows = [...body.rows];
      const numeric = rows.every((row) => !Number.isNaN(Number(valueOf(row, place))));
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : numeric; // numbers: largest first
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((one, other) => {
        const [a, b] = [valueOf(one, place), valueOf(other, place)];
        if (a === "" || b === "") return (a === "") - (b === ""); // what is not there comes last
        const order = numeric ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
});
