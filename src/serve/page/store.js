/*
 * Conversations in the browser's own storage. A conversation is a tree of messages, so that editing or asking again keeps the
 * older branch; `picked` says which child each message continues with.
 */
const PREFIX = "espalier.";

function readJson(key, fallback) {
  try {
    const v = JSON.parse(localStorage.getItem(PREFIX + key));
    return v === null ? fallback : v;
  } catch {
    return fallback;
  }
}

/* False when the browser has no room left: the caller says so, and the page goes on without. */
function writeJson(key, value) {
  try {
    localStorage.setItem(PREFIX + key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

const store = {
  ids: () => readJson("index", []),
  read: (id) => readJson("c." + id, null),
  save(c) {
    const ids = store.ids().filter((id) => id !== c.id);
    c.changed = Date.now();
    return writeJson("c." + c.id, c) && writeJson("index", [c.id, ...ids]);
  },
  drop(id) {
    localStorage.removeItem(PREFIX + "c." + id);
    writeJson("index", store.ids().filter((other) => other !== id));
  },
};

function newId() {
  return Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
}

function newConversation() {
  return { version: 1, id: newId(), title: "", changed: 0, nodes: {}, picked: {} };
}

function childrenOf(c, parent) {
  return Object.values(c.nodes).filter((n) => n.parent === parent);
}

function addNode(c, parent, fields) {
  const n = { id: newId(), parent, content: "", ...fields };
  c.nodes[n.id] = n;
  c.picked[parent] = n.id;
  return n;
}

/* The messages on show, first to last. */
function pathOf(c) {
  const path = [];
  for (let at = c.picked.root; at && c.nodes[at] && path.length < 10000; at = c.picked[at]) path.push(c.nodes[at]);
  return path;
}

function leafOf(c) {
  const path = pathOf(c);
  return path.length ? path[path.length - 1].id : "root";
}

/* What came from a file is checked before anything of it is kept. Throws with what is wrong. */
function checkConversation(c) {
  const bad = (why) => {
    throw new Error("not a conversation of this page: " + why);
  };
  if (typeof c !== "object" || !c || c.version !== 1) bad("version 1 expected");
  if (typeof c.id !== "string" || !/^\w{1,40}$/.test(c.id)) bad("its id");
  if (typeof c.nodes !== "object" || !c.nodes || typeof c.picked !== "object" || !c.picked) bad("no messages");
  for (const [id, n] of Object.entries(c.nodes)) {
    if (!n || n.id !== id || !["user", "assistant"].includes(n.role) || typeof n.content !== "string") bad("message " + id);
    if (n.parent !== "root" && !c.nodes[n.parent]) bad("message " + id + " follows one that is missing");
  }
  c.title = String(c.title || "");
  return c;
}

function exportAll() {
  const all = { espalier_conversations: 1, conversations: store.ids().map(store.read).filter(Boolean) };
  const a = el("a", {
    href: URL.createObjectURL(new Blob([JSON.stringify(all, null, 1)], { type: "application/json" })),
    download: "espalier-conversations.json",
  });
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10000);
}

async function importFile(file) {
  const all = JSON.parse(await file.text());
  if (!all || all.espalier_conversations !== 1 || !Array.isArray(all.conversations)) throw new Error("this file holds no conversations of this page");
  const checked = all.conversations.map(checkConversation);
  for (const c of checked.reverse()) if (!store.save(c)) throw new Error("the browser has no room left for them");
  return checked.length;
}
