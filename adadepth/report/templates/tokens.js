// What is known of the token, or sentence, that is pointed at, tapped or focused: lines, some with a bar.
(() => {
  const box = document.createElement("div");
  box.className = "bars"; box.hidden = true; box.setAttribute("role", "status");
  const make = (parent, tag, text) => { const made = document.createElement(tag); made.textContent = text; parent.append(made); return made; };
  const show = (target) => {
    if (!box.isConnected) (document.querySelector("main") || document.body).append(box);
    box.replaceChildren();
    target.removeAttribute("title");
    make(box, "b", target.dataset.what || target.firstChild.textContent);
    for (const [index, note] of JSON.parse(target.dataset.notes).entries()) {
      const [name, ...told] = Array.isArray(note) ? note : [String(index + 1), note];  // a bare number is the share of a step
      const row = make(box, "div", ""), texts = told.filter((part) => typeof part === "string");
      make(row, "span", name);
      for (const share of told.filter((part) => typeof part === "number")) {
        make(row, "i", "").style.width = `${100 * share}px`;
        texts.unshift(share.toFixed(3));
      }
      make(row, "span", texts.join(" "));
    }
    box.hidden = false;
    const place = target.getBoundingClientRect(), width = document.documentElement.clientWidth;
    const above = place.top > box.offsetHeight + 8 && place.bottom + box.offsetHeight > innerHeight;
    box.style.left = `${Math.max(4, Math.min(place.left, width - box.offsetWidth - 4))}px`;
    box.style.top = `${above ? place.top - box.offsetHeight - 6 : place.bottom + 6}px`;
  };
  const of = (event) => event.target.closest("[data-notes]");
  const hide = () => { box.hidden = true; };
  for (const kind of ["mouseover", "focusin", "click"])
    document.addEventListener(kind, (event) => { const target = of(event); if (target) show(target); else if (kind === "click") hide(); });
  for (const kind of ["mouseout", "focusout"]) document.addEventListener(kind, hide);
  // Going to a token with the keyboard may scroll the page: its notes go with it.
  const follow = () => { const target = document.activeElement; if (target.dataset.notes && !box.hidden) show(target); else hide(); };
  document.addEventListener("scroll", follow, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
