/*
 * Markdown to document nodes, written so that a half-written answer renders as well as a finished one: an open fence is a
 * code block that still grows. Links lead to http, https and mailto alone; images and HTML stay text.
 */
const KEYWORDS = new Set((
  "abstract and as async await auto bool break case catch char class const continue def default defer del do double elif else enum " +
  "except export extends extern false final finally float fn for from func function go goto if impl implements import in inline int " +
  "interface is lambda let long loop match mod module mut namespace new nil none None not null nullptr or package pass private " +
  "protected pub public raise return self short signed sizeof static struct super switch template this throw trait true True False " +
  "try type typedef typeof union unsafe unsigned use using var virtual void volatile when where while with yield select insert update " +
  "delete create table join group order by limit then fi done esac echo local"
).split(" "));
const HASH_COMMENTS = new Set(["python", "py", "sh", "bash", "shell", "yaml", "yml", "toml", "ruby", "rb", "make", "makefile", "cmake", "r", "perl"]);

function highlight(code, lang, into) {
  const hash = HASH_COMMENTS.has(lang) ? "#[^\\n]*|" : "";
  const dash = lang === "sql" || lang === "lua" ? "--[^\\n]*|" : "";
  const re = new RegExp(
    `(${hash}${dash}\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$))|("(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.)*'?|\`[^\`]*\`?)|` +
      "(\\b\\d[\\w.]*\\b)|([A-Za-z_]\\w*)", "g");
  let at = 0;
  for (const m of code.matchAll(re)) {
    const kind = m[1] ? "com" : m[2] ? "str" : m[3] ? "num" : KEYWORDS.has(m[4]) ? "kw" : "";
    if (!kind) continue;
    into.append(code.slice(at, m.index), el("span", { class: kind }, m[0]));
    at = m.index + m[0].length;
  }
  into.append(code.slice(at));
}

function codeBlock(lines, lang) {
  const text = lines.join("\n");
  const code = el("code");
  if (text.length < 40000) highlight(text, lang.toLowerCase(), code);
  else code.append(text);
  return el("div", { class: "block" },
    el("div", { class: "head" }, el("span", {}, lang), button("copy", "Copy this code", (e) => copyText(text, e.target))),
    el("pre", { tabIndex: 0 }, code));
}

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*]+(?:\*[^*]+)*?)\*\*|__([^_]+)__|\*([^*\s][^*]*)\*|(?<![\w])_([^_\s][^_]*)_(?![\w])|~~([^~]+)~~|\[([^\]]+)\]\(([^)\s]+)(?:\s+"[^"]*")?\)|(https?:\/\/[^\s<>()"']+)/g;

function link(href, text) {
  if (!/^(https?:|mailto:)/i.test(href)) return document.createTextNode(text);
  return el("a", { href, rel: "noopener noreferrer nofollow", target: "_blank" }, text);
}

function inline(text, into, depth = 0) {
  let at = 0;
  for (const m of text.matchAll(INLINE)) {
    into.append(text.slice(at, m.index));
    at = m.index + m[0].length;
    const nest = (tag, s) => {
      const e = el(tag);
      if (depth < 6) inline(s, e, depth + 1);
      else e.append(s);
      return e;
    };
    if (m[1]) into.append(el("code", {}, m[2].trim()));
    else if (m[3] || m[4]) into.append(nest("strong", m[3] || m[4]));
    else if (m[5] || m[6]) into.append(nest("em", m[5] || m[6]));
    else if (m[7]) into.append(nest("s", m[7]));
    else if (m[8]) into.append(link(m[9], m[8]));
    else into.append(link(m[10], m[10]));
  }
  into.append(text.slice(at));
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

/* Lines of one list, by indentation, into nested lists. */
function listBlock(lines) {
  const root = { indent: -1, list: null, item: el("div") };
  const stack = [root];
  for (const line of lines) {
    const m = ITEM.exec(line);
    if (!m) {
      inline("\n" + line.trim(), stack[stack.length - 1].item);
      continue;
    }
    const indent = m[1].length;
    while (stack.length > 1 && indent < stack[stack.length - 1].indent) stack.pop();
    let top = stack[stack.length - 1];
    if (indent > top.indent && stack.length < 12) {
      const ordered = /\d/.test(m[2]);
      const list = el(ordered ? "ol" : "ul");
      if (ordered) list.start = parseInt(m[2], 10);
      top.item.append(list);
      top = { indent, list, item: null };
      stack.push(top);
    }
    top.item = el("li");
    inline(m[3], top.item);
    top.list.append(top.item);
  }
  return root.item.childNodes.length === 1 ? root.item.firstChild : root.item;
}

function tableBlock(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((s) => s.trim().replace(/\\\|/g, "|"));
  const table = el("table");
  lines.forEach((line, i) => {
    if (i === 1) return;
    const tr = el("tr");
    for (const c of cells(line)) {
      const cell = el(i ? "td" : "th");
      inline(c, cell);
      tr.append(cell);
    }
    table.append(tr);
  });
  return table;
}

/* Replace what `into` shows by the text. Blocks that did not change keep their nodes, so selections and scroll stay. */
function markdown(text, into, depth = 0) {
  const blocks = splitBlocks(text, depth < 6);
  blocks.forEach((b, i) => {
    const have = into.children[i];
    const key = b.kind + "\0" + b.lang + "\0" + b.lines.join("\n");
    if (have && have.source === key) return;
    const node = blockNode(b, depth);
    node.source = key;
    if (have) have.replaceWith(node);
    else into.append(node);
  });
  while (into.children.length > blocks.length) into.lastElementChild.remove();
}

function blockNode(b, depth) {
  const e = b.kind === "h" ? el("h" + b.level) : b.kind === "quote" ? el("blockquote") : el(b.kind === "hr" ? "hr" : "p");
  if (b.kind === "code") return codeBlock(b.lines, b.lang);
  if (b.kind === "list") return listBlock(b.lines);
  if (b.kind === "table") return tableBlock(b.lines);
  if (b.kind === "quote") markdown(b.lines.join("\n"), e, depth + 1);
  else if (b.kind !== "hr") inline(b.lines.join("\n"), e);
  return e;
}

function splitBlocks(text, quotes) {
  const blocks = [];
  let open = null;
  const push = (kind, line, extra) => blocks.push((open = { kind, lang: "", lines: line === null ? [] : [line], ...extra }));
  for (const line of text.split("\n")) {
    const fence = /^\s*(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    if (open && open.kind === "code") {
      if (fence && fence[1][0] === open.fence[0] && fence[1].length >= open.fence.length && !fence[2]) open = null;
      else open.lines.push(line);
    } else if (fence) push("code", null, { lang: fence[2], fence: fence[1] });
    else if (!line.trim()) open = open && open.kind === "list" ? open : null;
    else if (/^#{1,6}\s/.test(line)) {
      const n = line.indexOf(" ");
      push("h", line.slice(n + 1), { level: Math.min(n, 4) });
      open = null;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      push("hr", "");
      open = null;
    } else if (quotes && /^\s*>/.test(line)) {
      const inner = line.replace(/^\s*>\s?/, "");
      if (open && open.kind === "quote") open.lines.push(inner);
      else push("quote", inner);
    } else if (ITEM.test(line) || (open && open.kind === "list" && /^\s+\S/.test(line))) {
      if (open && open.kind === "list") open.lines.push(line);
      else push("list", line);
    } else if (open && open.kind === "table" && line.includes("|")) open.lines.push(line);
    else if (open && open.kind === "p" && open.lines.length === 1 && open.lines[0].includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(line) && line.includes("|")) {
      open.kind = "table";
      open.lines.push(line);
    } else if (open && open.kind === "p") open.lines.push(line);
    else push("p", line);
  }
  return blocks;
}
