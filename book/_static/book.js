// Small cures for reading: formulas are typeset in the order of need, boxes that scroll sideways
// can be reached with the keyboard, the words that were searched for are marked on the page that
// was found, and paper is printed light.
(() => {
  // MathJax is loaded when the page can be used. Formulas near the window are typeset first, the
  // others while nothing else is to do. `MathJax.startup.promise` is kept once all are, and
  // `lengthgenReady()` makes haste and returns it.
  const SLICE = 40; // milliseconds
  const waiting = new Set(document.querySelectorAll(".math"));
  const near = new Set();
  const mathjax = document.querySelector("script[data-lg-mathjax]")?.dataset.lgMathjax;
  const idle = window.requestIdleCallback ?? setTimeout;
  let hurried = false;

  function typeset(formulas) {
    for (const formula of formulas) for (const set of [waiting, near]) set.delete(formula);
    if (formulas.length) MathJax.typeset(formulas);
  }

  async function typesetInSlices() {
    const nearby = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries)
          if (isIntersecting && waiting.has(target)) near.add(target);
          else near.delete(target);
      },
      { rootMargin: "50%" },
    );
    for (const formula of waiting) nearby.observe(formula);
    addEventListener("beforeprint", () => typeset([...waiting]));
    await new Promise(requestAnimationFrame);
    for (let size = 8; waiting.size; ) {
      await new Promise(near.size || hurried ? setTimeout : idle);
      const began = performance.now();
      typeset(hurried ? [...waiting] : [...(near.size ? near : waiting)].slice(0, size));
      size = Math.ceil(size * Math.min(2, SLICE / (performance.now() - began)));
    }
    nearby.disconnect();
  }

  window.lengthgenReady = () => {
    hurried = true;
    return window.MathJax?.startup?.promise;
  };
  if (mathjax)
    window.MathJax.startup = {
      pageReady: typesetInSlices,
      promise: new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.addEventListener("load", () => MathJax.startup.promise.then(resolve));
        script.addEventListener("error", reject);
        script.src = mathjax;
        document.head.append(script);
      }),
    };

  // A scrolling box takes the focus, one that fits does not.
  const SCROLLING = [
    ["mjx-container", "Formula"],
    [".pst-scrollable-table-container", "Table"],
    ["div.cell_output .output", "Output"],
    [".lg-scroll", "Scrollable figure"],
    ["div.highlight pre", "Code"],
  ];

  function focusScrolling() {
    for (const [selector, label] of SCROLLING) {
      for (const box of document.querySelectorAll(`.bd-article ${selector}`)) {
        const scrolls =
          box.scrollWidth > box.clientWidth && /auto|scroll/.test(getComputedStyle(box).overflowX);
        if (scrolls && !box.hasAttribute("tabindex")) {
          box.tabIndex = 0;
          box.dataset.lgScrolls = "";
          if (!box.hasAttribute("aria-label") && !box.matches("mjx-container")) {
            box.setAttribute("role", "group");
            box.setAttribute("aria-label", label);
          }
        } else if (!scrolls && "lgScrolls" in box.dataset) {
          box.removeAttribute("tabindex");
          delete box.dataset.lgScrolls;
        }
      }
    }
  }

  // Sphinx's own script, which light_pages.py leaves out, would cut formulas apart.
  const UNMARKED = ".math, mjx-container, svg, script, style, textarea, [data-explorable]";

  function markFoundWords() {
    const article = document.querySelector(".bd-article");
    if (!article || document.getElementById("search-results")) return;
    const words = (localStorage.getItem("sphinx_highlight_terms") || "").split(/\s+/).filter(Boolean);
    localStorage.removeItem("sphinx_highlight_terms");
    if (!words.length) return;
    const escaped = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    const pattern = new RegExp(escaped.join("|"), "gi");
    const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
    const nodes = [];
    while (walker.nextNode()) nodes.push(walker.currentNode);
    for (const node of nodes) {
      if (node.parentElement.closest(UNMARKED)) continue;
      const parts = document.createDocumentFragment();
      let end = 0;
      for (const found of node.data.matchAll(pattern)) {
        const mark = document.createElement("mark");
        mark.textContent = found[0];
        parts.append(node.data.slice(end, found.index), mark);
        end = found.index + found[0].length;
      }
      if (!end) continue;
      parts.append(node.data.slice(end));
      node.replaceWith(parts);
    }
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      for (const mark of article.querySelectorAll("mark")) mark.replaceWith(mark.textContent);
    });
  }

  // Paper is white: a page printed from the dark theme is printed from the light one.
  const root = document.documentElement;
  matchMedia("print").addEventListener("change", ({ matches }) => {
    if (matches) {
      root.dataset.lgScreenTheme = root.dataset.theme;
      root.dataset.theme = "light";
    } else if (root.dataset.lgScreenTheme) {
      root.dataset.theme = root.dataset.lgScreenTheme;
      delete root.dataset.lgScreenTheme;
    }
  });

  let pending = 0;
  const later = () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(focusScrolling);
  };
  addEventListener("resize", later);
  document.addEventListener("toggle", later, true); // a folded part opens
  addEventListener("load", async () => {
    markFoundWords();
    await window.MathJax?.startup?.promise; // a page without formulas has none
    focusScrolling();
  });
})();
