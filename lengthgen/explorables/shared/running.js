// What takes longer than one frame: work in slices, a descent kept in frames, a slider that plays.

const FRAMES = 100; // kept of the longest run, evenly in the logarithm of the step
const FIRST = 0.6; // where step 0 stands on a logarithmic axis

/**
 * Call `step` until it returns true, in short slices of time between which a reader goes on
 * dragging; `after(finished)` follows every slice. Until then the figure is busy; `api.stop` ends
 * it.
 */
function inSlices(api, step, after) {
  api.busy(true);
  const slice = () => {
    const until = performance.now() + 8;
    let finished = step();
    while (!finished && performance.now() < until) finished = step();
    api.busy(!finished);
    if (!finished) running = requestAnimationFrame(slice);
    after(finished);
  };
  let running = requestAnimationFrame(slice);
  api.stop = () => {
    cancelAnimationFrame(running);
    api.busy(false);
  };
}

/** Let the action `play` move the slider `time` to `last`; gives `api.play` and `api.stop`. */
function addPlayer(api, last) {
  let timer = null;
  const button = () => api.root.querySelector('[data-action="play"]');
  api.stop = () => {
    clearTimeout(timer);
    if (timer) button().textContent = "Play";
    timer = null;
  };
  api.play = () => {
    if (timer) return api.stop();
    if (api.still.matches) return api.set({ time: last }); // no animation was asked for
    button().textContent = "Pause";
    let time = api.state.time === last ? -1 : api.state.time;
    const next = () => {
      time += 1;
      api.set({ time }, time === last);
      if (time === last) api.stop();
      else timer = setTimeout(next, 80);
    };
    timer = setTimeout(next, 0);
  };
}

/**
 * Descend until `stop()`, at most `most` steps, and keep `keep()` at the start, at about
 * `count` times evenly spaced in the logarithm of the step, and at the end.
 */
function keepFrames(descent, most, count, stop, keep) {
  const times = new Set([0, ...geometric(1, most, count)]);
  const frames = [];
  for (let t = 0; ; t++) {
    const ended = t === most || stop();
    if (ended || times.has(t)) frames.push({ t, ...keep() });
    if (ended) return frames;
    descent.step();
  }
}
