/* Messages on the screen. `act` holds what their buttons do; main.js fills it in. */
const act = {};

function infoLine(n) {
  const parts = [];
  const u = n.usage, t = n.timings;
  if (u) {
    const cached = (u.prompt_tokens_details || {}).cached_tokens || 0;
    parts.push(`${u.prompt_tokens} prompt (${cached} cached)`, `${u.completion_tokens} tokens`);
  }
  if (t && t.predicted_per_second) parts.push(t.predicted_per_second.toFixed(1) + " tokens/s");
  if (t && t.ttft_ms !== undefined) parts.push("first after " + Math.round(t.ttft_ms) + " ms");
  if (n.finish) parts.push({ stop: "complete", length: "ended by length", tool_calls: "asks for a tool" }[n.finish] || n.finish);
  return parts.join(" · ");
}

function branchBar(c, n) {
  const all = childrenOf(c, n.parent);
  if (all.length < 2) return null;
  const at = all.findIndex((s) => s.id === n.id);
  const go = (d) => act.pick(n.parent, all[(at + d + all.length) % all.length].id);
  return el("span", {}, button("‹", "Earlier version", () => go(-1)), `${at + 1}/${all.length}`, button("›", "Later version", () => go(1)));
}

function toolNode(call) {
  let args = call.arguments;
  try {
    args = JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    /* still being written, or cut off: show it as it is */
  }
  return el("details", { class: "tool", open: true }, el("summary", {}, "Tool call: " + call.name), codeBlock(args.split("\n"), "json"));
}

function userNode(c, n) {
  const body = el("div", { class: "body" }, (n.images || []).map((src) => el("img", { src, alt: "attached image" })), n.content);
  const node = el("article", { class: "user", "aria-label": "You" }, body);
  const edit = () => {
    const box = el("textarea", { class: "edit", value: n.content, "aria-label": "Edit the message" });
    const send = () => act.edit(n, box.value);
    box.addEventListener("keydown", (e) => {
      if (e.key === "Escape") act.render();
      if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) send();
    });
    node.replaceChildren(box, el("div", { class: "bar" }, button("Send", "Send the edited message as a new branch (Ctrl+Enter)", send),
      button("Cancel", "Leave it as it was (Escape)", () => act.render())));
    box.focus();
  };
  node.append(el("div", { class: "bar" }, button("edit", "Edit and send again", edit), button("copy", "Copy the message", (e) => copyText(n.content, e.target)), branchBar(c, n)));
  return node;
}

/* An answer: the node, and update() for while it grows. */
function answerNode(c, n) {
  const think = el("details", { class: "think", hidden: true });
  const summary = el("summary"), inner = el("div", { class: "inner" });
  const body = el("div", { class: "body md" }), tools = el("div"), error = el("p", { class: "error", hidden: true });
  const bar = el("div", { class: "bar" });
  const node = el("article", { class: "assistant", "aria-label": "Answer" }, think, body, tools, error, bar);
  let reasoning = null, content = null, calls = null;
  think.append(summary, inner);
  const update = (growing) => {
    const writing = Boolean(growing); /* toggle() takes undefined for "the other way" */
    if (n.reasoning && n.reasoning !== reasoning) {
      think.hidden = false;
      if (reasoning !== null && n.reasoning.startsWith(reasoning)) inner.append(n.reasoning.slice(reasoning.length));
      else inner.textContent = n.reasoning;
      reasoning = n.reasoning;
    }
    summary.textContent = (writing && !n.content ? "Thinking" : "Thought") + ` (${n.thinkTokens || 0} tokens)`;
    if (n.content !== content) markdown((content = n.content), body);
    body.classList.toggle("writing", writing);
    const now = JSON.stringify(n.tools || []);
    if (now !== calls) {
      calls = now;
      tools.replaceChildren(...(n.tools || []).map(toolNode));
    }
    error.hidden = !n.error;
    error.textContent = n.error || "";
    bar.hidden = writing;
    if (!writing) bar.replaceChildren(...actions(c, n).filter(Boolean));
  };
  update(n.writing);
  return { node, update };
}

function actions(c, n) {
  return [
    button("copy", "Copy the answer", (e) => copyText(n.content, e.target)),
    button("again", "Answer again as a new branch", () => act.again(n)),
    n.partial ? button("continue", "Continue this answer where it stopped", () => act.goOn(n)) : null,
    branchBar(c, n),
    el("span", {}, infoLine(n)),
  ];
}
