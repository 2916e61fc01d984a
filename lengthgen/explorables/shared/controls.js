// Controls: native inputs with a name, a value with its unit, and what they accept from outside.

/** The value of an offset with its unit. */
const tokensBack = (v) => `${v} token${v > 1 ? "s" : ""} back`;

/** The slider of the target's offset. */
function offsetControl(value, max = 8, label = "Offset K") {
  return { name: "offset", label, value, min: 1, max, show: tokensBack };
}

/** The slider of time, on a clock with as many ticks as `last`. */
function timeControl(last) {
  const show = (v) => `${Math.round((100 * v) / last)} %`;
  return { name: "time", label: "Time, on a logarithmic clock", value: last, max: last, show };
}

/** The slider of how far a picture looks. */
function viewControl(value, values) {
  const show = (v) => `${integer(v)} tokens`;
  return { name: "view", label: "Look as far as offset", value, values, show };
}

/**
 * A control: {name, label, value} and one of `values` (a slider over a list), `min`, `max`, `step`
 * (a slider; `max` may be a function of the state), `options` (a menu of [value, text]), `check`,
 * `letters` (a text of that many, of those that match `known`; `text(state)` fills it).
 * `show(value)` gives the value with its unit; `off(state)` says when it has no meaning.
 */
function buildControl(control, key, parent, change) {
  const { name, label, values, options, check, letters } = control;
  const show = control.show || String;
  const box = make("div", check ? "lx-control lx-check" : "lx-control", parent);
  const id = `lx-${key}-${name}`;
  const title = make("label", "", box);
  title.htmlFor = id;
  title.textContent = label;
  const output = check || options ? null : make("output", "", box);
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
  else if (letters)
    Object.assign(input, {
      type: "text",
      autocomplete: "off",
      spellcheck: false,
      maxLength: letters,
    });
  else {
    const { min = 0, step = 1 } = control;
    Object.assign(input, { type: "range", min, step });
  }
  const read = () => {
    if (check) return input.checked;
    if (letters) return knownLetters(control, input.value);
    if (options) return options.find(([value]) => String(value) === input.value)[0];
    return values ? values[+input.value] : +input.value;
  };
  input.addEventListener(options || check ? "change" : "input", () => change(name, read()));
  let last = {};
  if (letters) {
    const refuse = (rest) => (output.textContent = rest ? `left out: ${rest}` : "");
    input.addEventListener("input", () => refuse(input.value.replace(control.known, "")));
    input.addEventListener("blur", () => {
      refuse("");
      input.value = control.text(last);
    });
  }
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
        const { max = values?.length - 1 } = control;
        input.max = max instanceof Function ? max(state) : max;
        input.value = values ? nearest(values, value) : value;
        const text = show(value, state);
        output.textContent = text;
        input.setAttribute("aria-valuetext", text);
      }
      input.disabled = Boolean(control.off?.(state));
    },
  };
}

/** The letters of a text that a control knows, at most as many as it holds. */
function knownLetters({ known, letters }, text) {
  return (text.match(known) || []).slice(0, letters).join("");
}

/** The value nearest to a number that a slider can have. */
function onSlider({ min = 0, max, step = 1 }, value) {
  const most = max instanceof Function ? Infinity : max;
  const steps = Math.round((Math.min(most, Math.max(min, value)) - min) / step);
  return +(min + steps * step).toFixed(9); // 1.2, not 1.2000000000000002
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
    const { name, options, check, letters } = control;
    let value = values?.[name];
    if (value === undefined || value === null || !("value" in control)) continue;
    if (check) value = value === true || value === "true";
    else if (letters) value = knownLetters(control, String(value));
    else if (options) {
      const found = options.find(([v]) => String(v) === String(value));
      if (!found) continue;
      [value] = found;
    } else {
      value = Number(value);
      if (!Number.isFinite(value)) continue;
      value = control.values
        ? control.values[nearest(control.values, value)]
        : onSlider(control, value);
    }
    out[name] = value;
  }
  return out;
}
