/* What the page does: conversations, sending, settings. The status tab is in status.js. */
let conversation = newConversation();
let running = null; /* { abort, node, view } while an answer is written */
let attached = [];
let models = [];

function banner(text) {
  $("banner").hidden = !text;
  $("banner").textContent = text || "";
}

function announce(text) {
  $("announce").textContent = text;
}

function save() {
  if (!store.save(conversation)) banner("The browser has no room left: export your conversations and delete some. This one is not being kept.");
}

/* ---- conversations ---- */

function renderList() {
  const items = store.ids().map((id) => {
    const c = id === conversation.id ? conversation : store.read(id);
    if (!c) return null;
    const title = c.title || "New conversation";
    return el("li", { class: id === conversation.id ? "on" : "" },
      el("button", { type: "button", class: "name", title, onclick: () => show(c), "aria-current": id === conversation.id ? "true" : "false" }, title),
      el("button", { type: "button", class: "drop", title: "Delete “" + title + "”", "aria-label": "Delete " + title, onclick: () => remove(c) }, "×"));
  });
  $("list").replaceChildren(...items.filter(Boolean));
}

function show(c) {
  stop();
  conversation = c;
  $("side").classList.remove("open");
  act.render();
  renderList();
  $("prompt").focus();
}

function remove(c) {
  if (!confirm("Delete “" + (c.title || "New conversation") + "”?")) return;
  store.drop(c.id);
  if (c.id === conversation.id) show(newConversation());
  renderList();
}

act.render = () => {
  const path = pathOf(conversation);
  const nodes = path.map((n) => (n.role === "user" ? userNode(conversation, n) : answerNode(conversation, n).node));
  $("log").replaceChildren(...(nodes.length ? nodes : [el("p", { class: "empty" }, "Ask something. Everything stays on this machine.")]));
  $("log").scrollTop = $("log").scrollHeight;
  document.title = conversation.title ? conversation.title + " – espalier" : "espalier";
};

act.pick = (parent, id) => {
  if (running) return;
  conversation.picked[parent] = id;
  save();
  act.render();
};

act.edit = (n, text) => {
  if (running || !text.trim()) return;
  const user = addNode(conversation, n.parent, { role: "user", content: text, images: n.images });
  answer(user.id);
};

act.again = (n) => {
  if (!running) answer(n.parent);
};

act.goOn = (n) => {
  if (!running) answer(n.parent, n);
};

/* ---- an answer ---- */

function setRunning(r) {
  running = r;
  $("send").hidden = Boolean(r);
  $("stop").hidden = !r;
  $("prefill").hidden = true;
}

function stop() {
  if (running) running.abort.abort();
}

function nearEnd() {
  const log = $("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function takeTools(n, fragments) {
  n.tools = n.tools || [];
  for (const f of fragments) {
    const t = (n.tools[f.index] = n.tools[f.index] || { name: "", arguments: "" });
    if (f.function && f.function.name) t.name += f.function.name;
    if (f.function && f.function.arguments) t.arguments += f.function.arguments;
  }
}

function takeChunk(n, chunk) {
  if (chunk.prompt_progress) {
    const p = chunk.prompt_progress;
    $("prefill").hidden = p.processed >= p.total;
    $("prefill").value = p.total ? p.processed / p.total : 0;
  }
  if (chunk.usage) n.usage = chunk.usage;
  if (chunk.timings) n.timings = chunk.timings;
  for (const choice of chunk.choices || []) {
    const d = choice.delta || {};
    const thought = d.reasoning_content || d.reasoning;
    if (thought || d.content || d.tool_calls) $("prefill").hidden = true;
    if (thought) {
      n.reasoning = (n.reasoning || "") + thought;
      n.thinkTokens = (n.thinkTokens || 0) + 1;
    }
    if (d.content) n.content += d.content;
    if (d.tool_calls) takeTools(n, d.tool_calls);
    if (choice.finish_reason) n.finish = choice.finish_reason;
  }
  const exact = ((n.usage || {}).completion_tokens_details || {}).reasoning_tokens;
  if (exact) n.thinkTokens = exact;
}

/* A new answer after message `parent`, or the rest of a partial one. */
async function answer(parent, partial) {
  const c = conversation;
  const settings = readJson("settings", {});
  let body;
  const path = [];
  for (let at = parent; at !== "root" && c.nodes[at]; at = c.nodes[at].parent) path.unshift(c.nodes[at]);
  try {
    body = requestFor(partial ? [...path, partial] : path, settings, $("model").value);
  } catch (e) {
    banner(e.message);
    return;
  }
  if (partial) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  banner("");
  const n = partial || addNode(c, parent, { role: "assistant" });
  Object.assign(n, { writing: true, partial: false, error: "", finish: "" });
  act.render();
  renderList();
  const view = answerNode(c, n);
  $("log").lastElementChild.replaceWith(view.node);
  const run = { abort: new AbortController() };
  setRunning(run);
  announce("The answer is being written.");
  let due = false;
  const draw = () => {
    due = false;
    const follow = nearEnd();
    view.update(n.writing);
    if (follow) $("log").scrollTop = $("log").scrollHeight;
  };
  try {
    const whole = await streamChat(body, run.abort.signal, (chunk) => {
      takeChunk(n, chunk);
      if (!due) {
        due = true;
        requestAnimationFrame(draw);
      }
    });
    if (!whole) throw new Error("The connection ended before the answer did.");
    n.partial = n.finish === "length" && !(n.tools || []).length;
    announce("The answer is complete.");
  } catch (e) {
    const stopped = e.name === "AbortError";
    n.partial = Boolean(n.content) && !(n.tools || []).length;
    n.finish = stopped ? "stopped" : "";
    n.error = stopped ? "" : (e instanceof TypeError ? "The server cannot be reached." : e.message) + (e.status === 401 ? " (the key goes into the settings)" : "");
    announce(stopped ? "Stopped." : "The answer failed: " + n.error);
  }
  delete n.writing;
  setRunning(null);
  store.save(c) || save();
  if (c === conversation) draw();
  renderList();
}

function submit() {
  const text = $("prompt").value.trim();
  if (running || (!text && !attached.length)) return;
  try {
    requestFor([], readJson("settings", {}), ""); /* before the message leaves its box */
  } catch (e) {
    banner(e.message);
    return;
  }
  const n = addNode(conversation, leafOf(conversation), { role: "user", content: text, images: attached });
  if (!conversation.title) conversation.title = text.split("\n")[0].slice(0, 60) || "Images";
  $("prompt").value = "";
  setAttached([]);
  fitPrompt();
  save();
  answer(n.id);
}

function fitPrompt() {
  const p = $("prompt");
  p.style.height = "auto";
  p.style.height = p.scrollHeight + 2 + "px";
}

/* ---- images: only where the model sees ---- */

function sees() {
  const m = models.find((x) => x.id === $("model").value) || models[0];
  return Boolean(m && m.capabilities && m.capabilities.vision);
}

function setAttached(list) {
  attached = list;
  $("images").replaceChildren(...list.map((src, i) =>
    el("button", { type: "button", title: "Remove this image", "aria-label": "Remove image " + (i + 1), onclick: () => setAttached(list.filter((_, j) => j !== i)) }, el("img", { src, alt: "" }))));
}

async function attach(files) {
  const images = [...files].filter((f) => f.type.startsWith("image/"));
  if (images.length && !sees()) {
    banner("This model reads text alone, so images cannot be attached.");
    return;
  }
  const read = (f) => new Promise((done, fail) => {
    const r = new FileReader();
    r.onload = () => done(r.result);
    r.onerror = () => fail(r.error);
    r.readAsDataURL(f);
  });
  try {
    setAttached([...attached, ...(await Promise.all(images.map(read)))]);
  } catch (e) {
    banner("An image could not be read: " + e.message);
  }
}

/* ---- settings, models, theme ---- */

const SETTINGS = ["system", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens", "thinking", "budget", "key", "schema"];

function loadSettings() {
  const s = readJson("settings", {});
  for (const key of SETTINGS) {
    const field = $("set-" + key);
    field.value = s[key] === undefined ? "" : s[key];
    field.addEventListener("change", () => {
      const ok = field.checkValidity();
      field.classList.toggle("bad", !ok);
      banner(ok ? "" : field.parentElement.firstChild.textContent.trim() + ": " + field.validationMessage);
      if (!ok) return;
      writeJson("settings", { ...readJson("settings", {}), [key]: field.value });
      if (key === "key") loadModels();
    });
  }
}

async function loadModels() {
  try {
    models = (await getJson("v1/models")).data || [];
    banner("");
  } catch (e) {
    models = [];
    banner(e.status === 401 ? "This server wants a key: give it in the settings." : "The server does not answer: " + e.message);
  }
  const kept = readJson("model", "");
  $("model").replaceChildren(...models.map((m) => el("option", { value: m.id, selected: m.id === kept }, m.parent ? m.id + " (adapter)" : m.id)));
  $("attach").hidden = !sees();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

function toggle(section, tab, attribute) {
  const hidden = ($(section).hidden = !$(section).hidden);
  $(tab).setAttribute(attribute, String(!hidden));
  return !hidden;
}

/* ---- wiring ---- */

function wire() {
  $("form").addEventListener("submit", (e) => {
    e.preventDefault();
    submit();
  });
  $("prompt").addEventListener("keydown", (e) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      submit();
    }
  });
  $("prompt").addEventListener("input", fitPrompt);
  $("prompt").addEventListener("paste", (e) => {
    if (e.clipboardData.files.length) {
      e.preventDefault();
      attach(e.clipboardData.files);
    }
  });
  document.addEventListener("dragover", (e) => e.preventDefault());
  document.addEventListener("drop", (e) => {
    e.preventDefault();
    attach(e.dataTransfer.files);
  });
  document.addEventListener("keydown", (e) => {
    if (e.key === "Escape" && running) stop();
    if (e.altKey && e.key.toLowerCase() === "n") show(newConversation());
  });
  $("stop").onclick = stop;
  $("new").onclick = () => show(newConversation());
  $("export").onclick = exportAll;
  $("import").onclick = () => $("import-file").click();
  $("import-file").onchange = async (e) => {
    try {
      announce((await importFile(e.target.files[0])) + " conversations read.");
      renderList();
    } catch (why) {
      banner("Nothing was imported: " + why.message);
    }
    e.target.value = "";
  };
  $("attach").onclick = () => $("attach-file").click();
  $("attach-file").onchange = (e) => attach(e.target.files);
  $("model").onchange = () => {
    writeJson("model", $("model").value);
    $("attach").hidden = !sees();
  };
  $("side-open").onclick = () => $("side").classList.add("open");
  $("side-close").onclick = () => $("side").classList.remove("open");
  $("tab-settings").onclick = () => toggle("settings", "tab-settings", "aria-expanded");
  $("tab-status").onclick = () => watchStatus(toggle("status", "tab-status", "aria-pressed"));
  $("theme").onclick = () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    writeJson("theme", next);
    setTheme(next);
  };
}

setTheme(readJson("theme", "") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
wire();
loadSettings();
loadModels();
{
  const last = store.ids().map(store.read).find(Boolean);
  if (last) conversation = last;
}
act.render();
renderList();
$("prompt").focus();
