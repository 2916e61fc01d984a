// The state in the page's address, so that a link or a reload brings it back.

// The state stands behind the `#` as NAME:key=value,key=value;NAME:... Anchors of the page have no
// colon followed by a pair, so they are left alone until a reader moves a control.
const ADDRESS = /^#[a-z]+:[^;]*=/;

function addressParts() {
  if (!ADDRESS.test(location.hash)) return new Map();
  const parts = location.hash.slice(1).split(";");
  return new Map(parts.filter((part) => part.includes(":")).map((part) => twoParts(part, ":")));
}

/** What stands before the first `mark` of a text, and all that stands behind it. */
function twoParts(text, mark) {
  const at = text.indexOf(mark);
  return [text.slice(0, at), text.slice(at + 1)];
}

/** A value as it was before it was written; `undefined` if it was not written here. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined;
  }
}

function namedInAddress(name) {
  return addressParts().has(name);
}

function fromAddress(spec, model) {
  if (!model.static) return {};
  const text = addressParts().get(spec.name) || "";
  const pairs = text.split(",").filter((pair) => pair.includes("="));
  const values = pairs.map((pair) => twoParts(pair, "="));
  return accepted(spec, Object.fromEntries(values.map(([name, value]) => [name, decoded(value)])));
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
