// What a visitor does on the page without asking the model again: walk through the steps of an answer, change a cell of
// the input, keep an answer as a file.
(() => {
  // The steps of an answer: every cell shows what it would have been then, and rests once it has halted.
  document.addEventListener("input", (event) => {
    const slider = event.target.closest(".scrub input");
    if (!slider) return;
    const step = Number(slider.value), section = slider.closest(".ada");
    slider.parentNode.querySelector("output").textContent = `${step} of ${slider.max}`;
    for (const cell of section.querySelectorAll("[data-steps]")) {
      const steps = JSON.parse(cell.dataset.steps), told = step ? steps[Math.min(step, steps.length) - 1] : cell.dataset.base;
      const before = step > 1 ? steps[Math.min(step - 1, steps.length) - 1] : cell.dataset.base;
      cell.firstChild.textContent = told;
      cell.classList.toggle("wrong", Boolean(step && cell.dataset.right && told !== cell.dataset.right));
      cell.classList.toggle("new", Boolean(step && !cell.dataset.depth && told !== before));
      cell.classList.toggle("busy", Boolean(cell.dataset.depth && step < Number(cell.dataset.depth)));
    }
  });

  // Cells of the input.
  const put = (cell, symbol) => {
    const board = cell.parentNode, text = document.querySelector("#ada-board textarea");
    cell.textContent = symbol;
    cell.setAttribute("aria-label", symbol);
    cell.classList.toggle("wall", symbol === "#");
    const cells = [...board.children].map((each) => each.textContent), width = Number(board.style.getPropertyValue("--columns"));
    const rows = [];
    for (let start = 0; start < cells.length; start += width) rows.push(cells.slice(start, start + width).join(board.dataset.between));
    text.value = rows.join("\n");
    text.dispatchEvent(new Event("input", { bubbles: true }));
  };
  document.addEventListener("click", (event) => {
    const cell = event.target.closest(".board.edit button.cell");
    if (cell) {
      const symbols = JSON.parse(cell.parentNode.dataset.symbols);
      put(cell, symbols[(symbols.indexOf(cell.textContent) + 1) % symbols.length]);
    }
    const save = event.target.closest("[data-save]");
    if (save) keep(save.closest(".ada"));
  });
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest && event.target.closest(".board.edit button.cell");
    if (!cell) return;
    const cells = [...cell.parentNode.children], width = Number(cell.parentNode.style.getPropertyValue("--columns"));
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width }[event.key];
    if (move !== undefined) {
      const next = cells[cells.indexOf(cell) + move];
      if (next) next.focus();
      event.preventDefault();
    } else if (event.key !== " " && event.key !== "Enter" && JSON.parse(cell.parentNode.dataset.symbols).includes(event.key)) {
      put(cell, event.key);
      event.preventDefault();
    }
  });

  // An answer as one file, with the scripts that this page has.
  const keep = (section) => {
    const scripts = [...document.querySelectorAll("script[data-kept]")].map((each) => each.textContent).join("\n");
    const page = `<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>${section.dataset.name} · adadepth</title><style>:root{color-scheme:light dark;background:light-dark(#fff,#0d1117)}body{max-width:1040px;margin:16px auto;padding:0 12px}</style></head><body><main>${section.outerHTML}</main><script data-kept>${scripts}<\/script></body></html>\n`;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([page], { type: "text/html" }));
    link.download = `${section.dataset.name}.html`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
})();
