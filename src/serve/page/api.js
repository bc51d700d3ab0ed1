/* The server's public routes. Addresses are relative, so the page works below any prefix. */
function headers(json) {
  const h = json ? { "Content-Type": "application/json" } : {};
  const key = readJson("settings", {}).key;
  if (key) h.Authorization = "Bearer " + key;
  return h;
}

async function failure(response) {
  let message = response.status + " " + response.statusText;
  try {
    const body = await response.json();
    if (body.error && body.error.message) message = body.error.message;
  } catch {
    /* no JSON: the status must do */
  }
  const e = new Error(message);
  e.status = response.status;
  return e;
}

async function getJson(path) {
  const r = await fetch(path, { headers: headers(false) });
  if (!r.ok) throw await failure(r);
  return r.json();
}

/* Frames of a text/event-stream as they become whole. */
async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trim()).join("\n");
      if (data) yield data;
    }
  }
}

/* One streamed answer. `on` is called with each parsed chunk; resolves to true when the stream ended as it should. */
async function streamChat(body, signal, on) {
  const r = await fetch("v1/chat/completions", { method: "POST", headers: headers(true), body: JSON.stringify(body), signal });
  if (!r.ok) throw await failure(r);
  for await (const data of frames(r.body)) {
    if (data === "[DONE]") return true;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message || "the server reported an error");
    on(chunk);
  }
  return false;
}

function messageFor(n) {
  if (n.role === "user") {
    if (!n.images || !n.images.length) return { role: "user", content: n.content };
    const parts = n.images.map((url) => ({ type: "image_url", image_url: { url } }));
    return { role: "user", content: [...parts, { type: "text", text: n.content }] };
  }
  const m = { role: "assistant", content: n.content };
  if (n.reasoning) m.reasoning_content = n.reasoning;
  return m;
}

/* The request for an answer to `path`; throws when a setting is not valid. */
function requestFor(path, settings, model) {
  const body = { messages: path.map(messageFor), stream: true, stream_options: { include_usage: true }, return_progress: true };
  if (model) body.model = model;
  if (settings.system) body.messages.unshift({ role: "system", content: settings.system });
  for (const key of ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens"])
    if (settings[key] !== undefined && settings[key] !== "") body[key] = Number(settings[key]);
  if (settings.thinking) body.enable_thinking = settings.thinking === "on";
  if (settings.budget !== undefined && settings.budget !== "") body.thinking_budget_tokens = Number(settings.budget);
  if (settings.schema && settings.schema.trim()) {
    let schema;
    try {
      schema = JSON.parse(settings.schema);
    } catch (e) {
      throw new Error("the JSON schema in the settings is not JSON: " + e.message);
    }
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  return body;
}
