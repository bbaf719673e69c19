// Shows one ranking at a time, chosen by data set, norm and ε; without scripts all stand below one another.
{
  const boards = [...document.querySelectorAll(".ranking")];
  const fields = { data: "Data", norm: "Norm", eps: "ε" };
  const selects = Object.entries(fields).map(([field, title]) => {
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.name = field;
    for (const value of new Set(boards.map((board) => board.dataset[field]))) select.add(new Option(value));
    label.append(title, select);
    document.getElementById("filters").append(label);
    return select;
  });
  const fit = (board, changed) => selects.reduce(
    (sum, select) => sum + (board.dataset[select.name] === select.value) * (select === changed ? 9 : 1), 0);
  const show = (changed) => {
    const best = boards.reduce((one, other) => (fit(other, changed) > fit(one, changed) ? other : one));
    boards.forEach((board) => { board.hidden = board !== best; });
    selects.forEach((select) => { select.value = best.dataset[select.name]; });
  };
  selects.forEach((select) => select.addEventListener("change", () => show(select)));
  document.body.classList.add("filtered");
  if (boards.length) show();
}
