// The frame around a picture: controls, text alternative, address, theme, reset. An explorable is a
// description (see any NAME.js); this file turns it into elements and keeps its state.

/**
 * Build an explorable in `el`. `spec`: `name`, `caption`, `controls`, `pictures`, `legend`,
 * `actions` (buttons), `table` (its name), and `create(api, data)`, which returns `draw(state)`: called after every
 * change, it draws and returns one sentence that says the same. `adjust(state)` may correct values.
 */
export function build(spec, { model, el }) {
  const root = document.createElement("figure");
  root.className = "lx";
  root.dataset.explorable = spec.name;
  el.replaceChildren(root);
  const key = `${spec.name}-${document.querySelectorAll(`[data-explorable="${spec.name}"]`).length}`;
  const defaults = Object.fromEntries(
    spec.controls.filter((c) => "value" in c).map((c) => [c.name, c.value]),
  );
  const state = { ...defaults, ...accepted(spec, model.get("state")), ...fromAddress(spec, model) };
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  // ---- elements
  const controls = make("div", "lx-controls", root);
  const parts = spec.controls.map((control) => buildControl(control, key, controls, change));
  const buttons = make("div", "lx-buttons", controls);
  for (const action of spec.actions || []) addButton(action.label, () => action.run(api), action.name);
  addButton("Reset", reset, "reset");
  if (model.get("trainable")) addTraining(model, buttons, state);
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
  make("figcaption", "lx-caption", root).textContent = spec.caption;

  // ---- state
  let pending = 0;
  let draw = null;
  const title = (name, text) => (titles[name].textContent = text);
  const api = { svgs, state, model, still, set, root, table, say, busy, title, legend };
  model.on("change:data", begin);
  model.on("change:state", () => set(accepted(spec, model.get("state")), false));
  const onAddress = () => set({ ...defaults, ...fromAddress(spec, model) }, false);
  if (model.static) addEventListener("hashchange", () => namedInAddress(spec.name) && onAddress());
  const resized = new ResizeObserver(() => redraw());
  resized.observe(pictures);
  Object.assign(state, spec.adjust?.(state));
  begin();
  if (model.static && namedInAddress(spec.name)) root.scrollIntoView();
  return () => {
    resized.disconnect();
    api.stop?.();
  };

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

/** One entry of a legend: a short line, or a dot, and what it means. */
function legendItem({ color, text, dash, dot }) {
  const fill = dot === "hollow" ? "none" : color;
  const mark = dot
    ? `<circle cx="12" cy="5" r="3.4" style="fill:${fill};stroke:${color};stroke-width:1.6"/>`
    : `<path d="M0 5H24" style="stroke:${color};stroke-width:2.4"${dash ? ` stroke-dasharray="${dash}"` : ""}/>`;
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

// ---------------------------------------------------------------- controls

/**
 * A control: {name, label, value} and one of `values` (a slider over a list), `min`, `max`, `step`
 * (a slider), `options` (a menu of [value, text]), `check`, `letters` (a text; `text(state)` fills it). `show(value)` gives
 * the value with its unit; `off(state)` says when the control has no meaning.
 */
function buildControl(control, key, parent, change) {
  const { name, label, values, options, check, letters } = control;
  const show = control.show || String;
  const box = make("div", check ? "lx-control lx-check" : "lx-control", parent);
  const id = `lx-${key}-${name}`;
  const title = make("label", "", box);
  title.htmlFor = id;
  title.textContent = label;
  const output = check || options || letters ? null : make("output", "", box);
  const input = make(options ? "select" : "input", "", box);
  Object.assign(input, { id, name });
  if (output) output.htmlFor = id;
  if (options)
    for (const [value, text] of options) {
      const option = make("option", "", input);
      option.value = String(value);
      option.textContent = text;
    }
  else if (check) input.type = "checkbox";
  else if (letters) Object.assign(input, { type: "text", autocomplete: "off", spellcheck: false, maxLength: letters });
  else {
    const range = values ? { min: 0, max: values.length - 1, step: 1 } : control;
    Object.assign(input, { type: "range", min: range.min, max: range.max, step: range.step || 1 });
  }
  const read = () => {
    if (check) return input.checked;
    if (letters) return input.value;
    if (options) return options.find(([value]) => String(value) === input.value)[0];
    return values ? values[+input.value] : +input.value;
  };
  input.addEventListener(options || check ? "change" : "input", () => change(name, read()));
  let last = {};
  if (letters) input.addEventListener("blur", () => (input.value = control.text(last)));
  return {
    control,
    input,
    show(state) {
      const value = state[name];
      last = state;
      if (check) input.checked = value;
      else if (letters) {
        if (document.activeElement !== input) input.value = control.text(state);
      } else if (options) input.value = String(value);
      else {
        input.value = values ? nearest(values, value) : value;
        const text = show(value, state);
        output.textContent = text;
        input.setAttribute("aria-valuetext", text);
      }
      input.disabled = Boolean(control.off?.(state));
    },
  };
}

function nearest(values, value) {
  let best = 0;
  values.forEach((v, i) => {
    if (Math.abs(v - value) < Math.abs(values[best] - value)) best = i;
  });
  return best;
}

/** Values from outside that a control can show; others are left out. */
function accepted(spec, values) {
  const out = {};
  for (const control of spec.controls) {
    const { name, options, min, max, check, letters } = control;
    let value = values?.[name];
    if (value === undefined || value === null || !("value" in control)) continue;
    if (check) value = value === true || value === "true";
    else if (letters) value = String(value).slice(0, letters);
    else if (options) {
      const found = options.find(([v]) => String(v) === String(value));
      if (!found) continue;
      [value] = found;
    } else {
      value = Number(value);
      if (!Number.isFinite(value)) continue;
      value = control.values
        ? control.values[nearest(control.values, value)]
        : Math.min(max, Math.max(min, value));
    }
    out[name] = value;
  }
  return out;
}

// ---------------------------------------------------------------- address

// The state stands behind the `#` as NAME:key=value,key=value;NAME:... Anchors of the page have no
// colon followed by a pair, so they are left alone until a reader moves a control.
const ADDRESS = /^#[a-z]+:[^;]*=/;

function addressParts() {
  if (!ADDRESS.test(location.hash)) return new Map();
  let text = "";
  try {
    text = decodeURIComponent(location.hash.slice(1));
  } catch {
    return new Map(); // not an address of ours
  }
  const parts = text.split(";");
  return new Map(parts.map((part) => part.split(/:(.*)/s).slice(0, 2)));
}

function namedInAddress(name) {
  return addressParts().has(name);
}

function fromAddress(spec, model) {
  if (!model.static) return {};
  const pairs = (addressParts().get(spec.name) || "").split(",").filter(Boolean);
  return accepted(spec, Object.fromEntries(pairs.map((pair) => pair.split(/=(.*)/s).slice(0, 2))));
}

let addressTimer = 0;
const addressWaiting = new Map();

function toAddress(spec, state, defaults, model) {
  if (!model.static) return; // a notebook's address is its own
  const changed = Object.keys(defaults).filter((name) => state[name] !== defaults[name]);
  addressWaiting.set(spec.name, changed.map((name) => `${name}=${encodeURIComponent(state[name])}`).join(","));
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => {
    const parts = addressParts();
    for (const [name, text] of addressWaiting) text ? parts.set(name, text) : parts.delete(name);
    addressWaiting.clear();
    const hash = [...parts].map(([name, text]) => `${name}:${text}`).join(";");
    history.replaceState(history.state, "", hash ? `#${hash}` : location.pathname + location.search);
  }, 250);
}

// ---------------------------------------------------------------- with a kernel

/** A button that trains new heads in Python, a progress bar, and a way to stop. */
function addTraining(model, parent, state) {
  const box = make("span", "lx-training", parent);
  const start = make("button", "", box);
  Object.assign(start, { type: "button", textContent: "Train new heads" });
  const stop = make("button", "", box);
  Object.assign(stop, { type: "button", textContent: "Cancel", disabled: true });
  const bar = make("progress", "", box);
  bar.setAttribute("aria-label", "training");
  const words = make("span", "lx-words", box);
  start.addEventListener("click", () => model.send({ type: "train", state: { ...state } }));
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
