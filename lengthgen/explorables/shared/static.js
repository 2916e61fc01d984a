// A page without a kernel: the page holds the traits, and a small object stands for the model.

/** Start every explorable of this kind that the page holds and that has not been started. */
export function startStatic(render, name) {
  for (const el of document.querySelectorAll(
    `div[data-lx-mount="${name}"]:not([data-lx-started])`,
  )) {
    el.dataset.lxStarted = "";
    const script = el.nextElementSibling;
    render({ model: new StaticModel(JSON.parse(script.textContent)), el });
  }
}

class StaticModel {
  constructor(traits) {
    Object.assign(this, { traits, static: true });
  }
  get(name) {
    return this.traits[name];
  }
  set(name, value) {
    this.traits[name] = value;
  }
  on() {} // nobody else changes a trait
  save_changes() {}
}
