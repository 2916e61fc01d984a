// The frame around a picture: controls, text alternative, address, theme, reset. An explorable is a
// description (see any NAME.js); this file turns it into elements and keeps its state.

/**
 * Build an explorable in `el`. `spec`: `name`, `caption`, `controls`, `pictures`, `legend`,
 * `actions` (buttons), `table` (its name), and `create(api, data)`, which returns `draw(state)`:
 * called after every change, it draws and returns one sentence that says the same. `adjust(state)`
 * may correct values.
 */
export function build(spec, { model, el }) {
  const root = document.createElement("figure");
  root.className = "lx";
  root.dataset.explorable = spec.name;
  el.replaceChildren(root);
  const alike = document.querySelectorAll(`[data-explorable="${spec.name}"]`);
  const key = `${spec.name}-${alike.length}`;
  const defaults = Object.fromEntries(
    spec.controls.filter((c) => "value" in c).map((c) => [c.name, c.value]),
  );
  const state = { ...defaults, ...accepted(spec, model.get("state")), ...fromAddress(spec, model) };
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  // ---- elements
  const controls = make("div", "lx-controls", root);
  const parts = spec.controls.map((control) => buildControl(control, key, controls, change));
  const buttons = make("div", "lx-buttons", controls);
  for (const action of spec.actions || [])
    addButton(action.label, () => action.run(api), action.name);
  addButton("Reset", reset, "reset");
  if (model.get("trainable")) addTraining(model, buttons);
  const legendBox = make("div", "lx-legend", root);
  const legend = (items) => (legendBox.innerHTML = items.map(legendItem).join(""));
  legend(spec.legend || []);
  const pictures = make("div", "lx-pictures", root);
  const [svgs, titles] = [{}, {}];
  for (const { name, title, height = 220, wide } of spec.pictures) {
    const box = make("div", wide ? "lx-picture lx-wide" : "lx-picture", pictures);
    titles[name] = make("div", "lx-title", box);
    titles[name].textContent = title;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("role", "img");
    svg.setAttribute("preserveAspectRatio", "xMinYMin meet");
    svg.style.height = `${height}px`;
    svg.dataset.key = `${key}-${name}`;
    box.append(svg);
    svgs[name] = svg;
  }
  const table = spec.table && make("table", "lx-table", make("div", "lx-scroll", root));
  table?.setAttribute("aria-label", spec.table);
  const summary = make("p", "lx-summary", root);
  summary.setAttribute("role", "status");
  const caption = make("figcaption", "lx-caption", root);
  caption.textContent = spec.caption;
  const number = el.closest(".lg-explorable")?.querySelector(".lx-number");
  if (number) caption.prepend(number); // the book's; a notebook has none

  // ---- state
  let pending = 0;
  let draw = null;
  const title = (name, text) => (titles[name].textContent = text);
  const api = { svgs, state, model, still, set, root, table, say, busy, title, legend };
  model.on("change:data", begin);
  model.on("change:state", () => set(accepted(spec, model.get("state")), false));
  const onAddress = () => set({ ...defaults, ...fromAddress(spec, model) }, false);
  if (model.static) addEventListener("hashchange", () => namedInAddress(spec.name) && onAddress());
  const resized = new ResizeObserver(() => {
    measure();
    redraw();
  });
  resized.observe(pictures);
  measure();
  Object.assign(state, spec.adjust?.(state));
  begin();
  if (model.static && namedInAddress(spec.name)) whenRead(() => root.scrollIntoView());
  return () => {
    resized.disconnect();
    api.stop?.();
  };

  function measure() {
    for (const svg of Object.values(svgs))
      svg.size = [svg.clientWidth || 320, svg.clientHeight || 220];
  }
  function begin() {
    api.stop?.();
    draw = spec.create(api, model.get("data"));
    show();
    redraw();
  }
  function change(name, value) {
    set({ [name]: value });
  }
  function set(values, tell = true) {
    Object.assign(state, values);
    Object.assign(state, spec.adjust?.(state));
    show();
    redraw();
    if (!tell) return;
    model.set("state", { ...state });
    model.save_changes();
    toAddress(spec, state, defaults, model);
  }
  function reset() {
    spec.reset?.(api);
    set({ ...defaults });
  }
  function show() {
    for (const part of parts) part.show(state);
  }
  function redraw() {
    busy(true);
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(() => {
      busy(false);
      say(draw(state));
    });
  }
  /** Tell readers' software, and tests, that the picture is not yet what the controls say. */
  function busy(on) {
    root.setAttribute("aria-busy", String(on));
  }
  function say(text) {
    if (text && summary.textContent !== text) summary.textContent = text;
  }
  function addButton(label, run, name) {
    const button = make("button", "", buttons);
    button.type = "button";
    button.dataset.action = name;
    button.textContent = label;
    button.addEventListener("click", run);
  }
}

/** Do something once the page is read to its end. */
function whenRead(then) {
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", then);
  else then();
}

/** One entry of a legend: a short line, or a dot, and what it means. */
function legendItem({ color, text, dash = "none", dot }) {
  const style = `fill:${dot === "hollow" ? "none" : color};stroke:${color};stroke-width:`;
  const mark = dot
    ? `<circle cx="12" cy="5" r="3.4" style="${style}1.6"/>`
    : `<path d="M0 5H24" style="${style}2.4;stroke-dasharray:${dash}"/>`;
  return `<span><svg width="24" height="10" aria-hidden="true">${mark}</svg>${text}</span>`;
}

function make(tag, name, parent) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  // JupyterLab must not take the keys of a control for its own shortcuts.
  if (["input", "select", "button"].includes(tag)) element.dataset.lmSuppressShortcuts = "true";
  parent.append(element);
  return element;
}

// ---------------------------------------------------------------- with a kernel

/** A button that trains new heads in Python, a progress bar, and a way to stop. */
function addTraining(model, parent) {
  const box = make("span", "lx-training", parent);
  const start = make("button", "", box);
  Object.assign(start, { type: "button", textContent: "Train new heads" });
  const stop = make("button", "", box);
  Object.assign(stop, { type: "button", textContent: "Cancel", disabled: true });
  const bar = make("progress", "", box);
  bar.setAttribute("aria-label", "training");
  const words = make("span", "", box);
  start.addEventListener("click", () => model.send({ type: "train" }));
  stop.addEventListener("click", () => model.send({ type: "cancel" }));
  const show = () => {
    const { step = 0, steps = 1, text = "", running = false } = model.get("progress") || {};
    Object.assign(bar, { max: steps, value: step });
    words.textContent = text;
    start.disabled = running;
    stop.disabled = !running;
  };
  model.on("change:progress", show);
  show();
}
