// Bars of the halting probabilities of the token, or sentence, that is pointed at, tapped or focused.
(() => {
  const box = document.createElement("div"), main = document.querySelector("main");
  box.className = "bars"; box.hidden = true; box.setAttribute("role", "status"); main.append(box);
  const make = (parent, tag, name, text) => { const made = document.createElement(tag); made.className = name; made.textContent = text; parent.append(made); return made; };
  const show = (target) => {
    box.replaceChildren();
    make(box, "b", "", target.dataset.what || target.firstChild.textContent);
    target.dataset.p.split(" ").forEach((text, index) => {
      const row = make(box, "div", "", ""), share = Number(text);
      make(row, "span", "", String(index + 1));
      make(row, "i", "", "").style.width = `${100 * share}px`;
      make(row, "span", "", share.toFixed(3));
    });
    box.hidden = false;
    const place = target.getBoundingClientRect(), width = document.documentElement.clientWidth;
    const above = place.top > box.offsetHeight + 8 && place.bottom + box.offsetHeight > innerHeight;
    box.style.left = `${Math.max(4, Math.min(place.left, width - box.offsetWidth - 4))}px`;
    box.style.top = `${above ? place.top - box.offsetHeight - 6 : place.bottom + 6}px`;
  };
  const of = (event) => event.target.closest("[data-p]");
  const hide = () => { box.hidden = true; };
  document.querySelectorAll("[data-p]").forEach((one) => one.removeAttribute("title"));
  for (const kind of ["mouseover", "focusin", "click"])
    document.addEventListener(kind, (event) => { const target = of(event); if (target) show(target); else if (kind === "click") hide(); });
  for (const kind of ["mouseout", "focusout"]) document.addEventListener(kind, hide);
  // Going to a token with the keyboard may scroll the page: its bars go with it.
  const follow = () => { const target = document.activeElement; if (target.dataset.p && !box.hidden) show(target); else hide(); };
  document.addEventListener("scroll", follow, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
