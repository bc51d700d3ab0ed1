/* The status tab: memory, rows, queue, cache and the last requests, from /stats every two seconds while it is open. */
let watching = null;

function table(caption, rows, head) {
  const line = (cells, tag) => el("tr", {}, cells.map((c) => el(tag, {}, String(c))));
  return el("table", {}, el("caption", {}, caption), head ? line(head, "th") : null, rows.map((r) => line(r, "td")));
}

function percent(part, whole) {
  return whole ? ((100 * part) / whole).toFixed(1) + " %" : "–";
}

function number(n, digits = 0) {
  return typeof n === "number" ? n.toFixed(digits) : "–";
}

function statusTables(s) {
  const memory = s.memory || {}, a = s.admission || {}, q = s.scheduler || {}, c = s.cache || {}, spec = s.spec || {};
  const named = Object.entries(memory).filter(([k, v]) => k.endsWith("_bytes") && typeof v === "number");
  const tables = [
    table("Memory", named.map(([k, v]) => [k.slice(0, -6).replace(/_/g, " "), bytes(v)])),
    table("Rows and queue", [
      ["running", `${number(a.running)} of ${number(a.max_rows)}`],
      ["waiting", `${number(a.waiting)} of ${number(a.queue_limit)}`],
      ["refused", number(a.rejected_total)],
      ["longest context", number(a.max_context)],
      ["writing", number(q.decode_tps_1m, 1) + " tokens/s"],
      ["reading", number(q.prefill_tps_1m, 1) + " tokens/s"],
    ]),
    table("Prefix cache", [
      ["prompt tokens reused", percent(c.hit_tokens, c.queries_tokens)],
      ["entries", number(c.entries)],
      ["checkpoints", number(c.checkpoints)],
      ["evictions", number(c.evictions)],
    ]),
  ];
  if (spec.mode && spec.mode !== "off") tables.push(table("Speculation", [["method", spec.mode], ["drafts accepted", percent(spec.accepted, spec.drafted)]]));
  if ((s.recent || []).length)
    tables.push(table("Last requests", s.recent.map((r) => [r.route, r.status, r.prompt, r.cached, r.output, number(r.ttft_ms), number(r.tps, 1), r.finish || ""]),
      ["route", "status", "prompt", "cached", "output", "first ms", "tokens/s", "finish"]));
  return tables;
}

async function refreshStatus() {
  try {
    $("status").replaceChildren(...statusTables(await getJson("stats")));
  } catch (e) {
    $("status").replaceChildren(el("p", { class: "error" }, "No status: " + e.message));
  }
}

function watchStatus(open) {
  clearInterval(watching);
  if (!open) return;
  refreshStatus();
  watching = setInterval(refreshStatus, 2000);
}
