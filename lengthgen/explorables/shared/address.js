// The state in the page's address, so that a link or a reload brings it back.

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
  addressWaiting.set(
    spec.name,
    changed.map((name) => `${name}=${encodeURIComponent(state[name])}`).join(","),
  );
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => {
    const parts = addressParts();
    for (const [name, text] of addressWaiting) text ? parts.set(name, text) : parts.delete(name);
    addressWaiting.clear();
    const hash = [...parts].map(([name, text]) => `${name}:${text}`).join(";");
    history.replaceState(
      history.state,
      "",
      hash ? `#${hash}` : location.pathname + location.search,
    );
  }, 250);
}
