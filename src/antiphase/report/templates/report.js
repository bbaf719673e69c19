// Turns the panels of [data-tabs] into tabs; without scripts they simply stand below one another.
document.querySelectorAll("[data-tabs]").forEach((group) => {
  const panels = [...group.querySelectorAll(":scope > .panel")];
  const list = document.createElement("div");
  list.className = "tabs";
  list.setAttribute("role", "tablist");
  const tabs = panels.map((panel) => {
    const tab = document.createElement("button");
    tab.type = "button";
    tab.id = `tab-${panel.id}`;
    tab.textContent = panel.dataset.title;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", panel.id);
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    list.append(tab);
    return tab;
  });
  const show = (chosen) => panels.forEach((panel, place) => {
    panel.hidden = place !== chosen;
    tabs[place].setAttribute("aria-selected", String(place === chosen));
    tabs[place].tabIndex = place === chosen ? 0 : -1;
  });
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => show(place));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (place + step + tabs.length) % tabs.length;
      show(next);
      tabs[next].focus();
    });
  });
  group.classList.add("tabbed");
  group.prepend(list);
  show(0);
});
