/* Small helpers. Text reaches the document as text nodes alone, so nothing a model writes is ever markup. */
const $ = (id) => document.getElementById(id);

function el(tag, props, ...children) {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (key === "class") e.className = value;
    else if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else if (key in e && key !== "list") e[key] = value;
    else e.setAttribute(key, value);
  }
  for (const c of children.flat()) if (c !== null && c !== undefined) e.append(c);
  return e;
}

function button(label, title, run) {
  return el("button", { type: "button", title, "aria-label": title, onclick: run }, label);
}

async function copyText(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    /* no clipboard without a secure context: select a hidden field instead */
    const t = el("textarea", { value: text, class: "unseen" });
    document.body.append(t);
    t.select();
    document.execCommand("copy");
    t.remove();
  }
  const was = from.textContent;
  from.textContent = "copied";
  setTimeout(() => (from.textContent = was), 1200);
}

function bytes(n) {
  if (typeof n !== "number") return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return n.toFixed(i && n < 100 ? 1 : 0) + " " + units[i];
}
