#!/usr/bin/env python3
"""Real clients against a running server: the openai and anthropic packages, and curl. Chats whole and streamed, tools and
back, structured output, stored responses, counting, errors by their own exception types, retries, and conversations whose
prompts must be found again in the cache. Skips (77) where the packages (tests/serve/clients.txt) are missing.

usage: clients_test.py ESPALIER MODEL [TEST ...]

SPDX-License-Identifier: MIT
"""
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

try:
    import anthropic
    import openai
    import pydantic
except ImportError as e:
    print(f"{e.name} is missing (tests/serve/clients.txt; .ci/run clients installs it): skipped")
    sys.exit(77)

PROGRAM, MODEL = sys.argv[1:3]
KEY = "test-key"
WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
ASK = "Look up the word: river"


class Server:
    """A server of its own flags; the key file has a plain key beside the admin's."""

    def __init__(self, *flags, key=True):
        self.folder = tempfile.mkdtemp(prefix="espalier-clients-")
        env = dict(os.environ, XDG_RUNTIME_DIR=self.folder)
        keys = os.path.join(self.folder, "keys")
        with open(keys, "w") as f:
            f.write(f"{KEY} tester admin\n")
        self.log = open(os.path.join(self.folder, "log"), "w+")
        more = ["--api-key-file", keys] if key else []
        self.process = subprocess.Popen([PROGRAM, "serve", MODEL, "--port", "0", *more, *flags], env=env,
                                        stdout=subprocess.DEVNULL, stderr=self.log)
        self.url = self.wait(r"listening on (http://\S+)")
        for _ in range(1200):
            try:
                with urllib.request.urlopen(self.url + "/health") as r:
                    if json.load(r)["status"] == "ok":
                        break
            except OSError:
                pass
            time.sleep(0.05)
        else:
            raise RuntimeError("the server did not become ready")
        self.openai = self.new_openai()
        self.anthropic = self.new_anthropic()

    def wait(self, pattern):
        for _ in range(1200):
            with open(self.log.name) as f:
                found = re.search(pattern + r"\s", f.read())
            if found:
                return found.group(1) if found.groups() else found.group()
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        with open(self.log.name) as f:
            raise RuntimeError(f"not in the log: {pattern}\n{f.read()}")

    def new_openai(self, **more):
        return openai.OpenAI(**{"base_url": self.url + "/v1", "api_key": KEY, "max_retries": 0, **more})

    def new_anthropic(self, **more):
        return anthropic.Anthropic(**{"base_url": self.url, "api_key": KEY, "max_retries": 0, **more})

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(90)
        self.log.close()
        shutil.rmtree(self.folder)
        assert code == 0, f"the server ended with {code}"


def raises(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


GREEDY = {"extra_body": {"temperature": 0}}  # newer versions of the package have no such argument


def user(text):
    return [{"role": "user", "content": text}]


def openai_tool(name="look_up", about="Look up a word."):
    return {"type": "function", "function": {"name": name, "description": about, "parameters": WORD}}


def anthropic_tool(name="look_up", about="Look up a word."):
    return {"name": name, "description": about, "input_schema": WORD}


# ---- openai: chat and completions ----

def test_openai_chat(s):
    whole = s.openai.chat.completions.create(model="demo", messages=user("Spell: garden"), temperature=0)
    text, finish, usage, ids = "", [], None, set()
    for chunk in s.openai.chat.completions.create(model="demo", messages=user("Spell: garden"), temperature=0, stream=True,
                                                  stream_options={"include_usage": True}):
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole.choices[0].message.content and text
    assert finish == [whole.choices[0].finish_reason] and len(ids) == 1
    assert usage.total_tokens == whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_openai_choices(s):
    ask = {"model": "demo", "messages": user("Spell: cat"), "temperature": 1, "seed": 5, "n": 3, "max_tokens": 8,
           "logprobs": True, "top_logprobs": 2}
    a, b = (s.openai.chat.completions.create(**ask) for _ in range(2))
    assert [c.message.content for c in a.choices] == [c.message.content for c in b.choices] and len(a.choices) == 3
    for token in a.choices[0].logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 2 and bytes(token.bytes).decode(errors="replace")
    stopped = s.openai.chat.completions.create(model="demo", messages=user("Spell: garden"), temperature=0, stop=["a"])
    assert "a" not in stopped.choices[0].message.content and stopped.choices[0].finish_reason == "stop"


def test_openai_completions(s):
    r = s.openai.completions.create(model="demo", prompt=["Once upon", "The dog"], max_tokens=6, temperature=0, logprobs=1)
    assert len(r.choices) == 2 and all(c.text and c.logprobs.tokens for c in r.choices)
    last, text = None, ""
    for last in s.openai.completions.create(model="demo", prompt="Once upon", max_tokens=6, temperature=0, stream=True,
                                            stream_options={"include_usage": True}):
        text += last.choices[0].text if last.choices else ""
    assert text == r.choices[0].text
    assert last.usage.completion_tokens == 6 and last.timings["predicted_n"] == 6 and "seed" in last.ext


def test_openai_models(s):
    assert "demo" in [m.id for m in s.openai.models.list()]
    assert s.openai.models.retrieve("demo").id == "demo"


def test_openai_async(s):
    """Many streams of one asynchronous client: each its own text."""
    async def one(client, word):
        stream = await client.chat.completions.create(model="demo", messages=user(f"Spell: {word}"), temperature=0, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    async def all_of(words):
        async with openai.AsyncOpenAI(base_url=s.url + "/v1", api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*(one(client, w) for w in words))

    words = ["dog", "cat", "garden", "river", "stone", "candle"] * 3
    alone = {w: s.openai.chat.completions.create(model="demo", messages=user(f"Spell: {w}"), temperature=0)
             .choices[0].message.content for w in set(words)}
    assert asyncio.run(all_of(words)) == [alone[w] for w in words]


def test_openai_left_in_the_middle(s):
    """A stream that is closed early frees its place; the client goes on with the same connections."""
    for _ in range(12):
        stream = s.openai.chat.completions.create(model="demo", messages=user("Spell: garden"), stream=True,
                                                  extra_body={"min_tokens": 1500}, max_tokens=1500)
        next(iter(stream))
        stream.close()
    for _ in range(200):
        running = stats(s)["admission"]["running"]
        if running == 0:
            return
        time.sleep(0.05)
    raise AssertionError("a place was not freed")


def stats(s):
    request = urllib.request.Request(s.url + "/stats", headers={"Authorization": "Bearer " + KEY})
    with urllib.request.urlopen(request) as r:
        return json.load(r)


# ---- openai: tools and structured output ----

def test_openai_tools(s):
    messages = user(ASK)
    r = s.openai.chat.completions.create(model="demo", messages=messages, tools=[openai_tool()], temperature=0)
    call = r.choices[0].message.tool_calls[0]
    assert r.choices[0].finish_reason == "tool_calls" and call.function.name == "look_up"
    assert json.loads(call.function.arguments) == {"word": "river"}
    pieces = {}
    for chunk in s.openai.chat.completions.create(model="demo", messages=messages, tools=[openai_tool()], temperature=0,
                                                  stream=True):
        for t in chunk.choices[0].delta.tool_calls or []:
            have = pieces.setdefault(t.index, {"id": [], "name": [], "arguments": ""})
            have["id"] += [t.id] if t.id else []
            have["name"] += [t.function.name] if t.function.name else []
            have["arguments"] += t.function.arguments or ""
    assert len(pieces) == 1 and len(pieces[0]["id"]) == 1 and pieces[0]["name"] == ["look_up"]
    assert pieces[0]["arguments"] == call.function.arguments
    messages += [r.choices[0].message.model_dump(exclude_none=True),
                 {"role": "tool", "tool_call_id": call.id, "content": "a long body of water"}]
    again = s.openai.chat.completions.create(model="demo", messages=messages, tools=[openai_tool()], temperature=0)
    assert again.choices[0].message.content
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached >= r.usage.prompt_tokens - 16, (cached, r.usage.prompt_tokens)  # all of the first prompt but its opening of the answer


def test_openai_structured(s):
    class Place(pydantic.BaseModel):
        name: str
        number: int
        kind: str | None

    r = s.openai.chat.completions.parse(model="demo", messages=user("Spell: garden"), response_format=Place, temperature=0,
                                        max_tokens=400)
    assert isinstance(r.choices[0].message.parsed, Place)
    e = raises(openai.BadRequestError, s.openai.chat.completions.create, model="demo", messages=user("x"),
               response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}})
    assert e.code == "schema_unsupported", e


# ---- openai: responses ----

def test_openai_responses(s):
    first = s.openai.responses.create(model="demo", input="Spell: river", instructions="Be brief.", temperature=0)
    assert first.status == "completed" and first.output_text
    second = s.openai.responses.create(model="demo", input="Spell: stone", previous_response_id=first.id, temperature=0)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.total_tokens - 8  # the first turn is in front of it
    kept = s.openai.responses.retrieve(first.id)
    assert kept.output_text == first.output_text
    assert s.openai.responses.input_items.list(first.id).data
    s.openai.responses.delete(first.id)
    raises(openai.NotFoundError, s.openai.responses.retrieve, first.id)
    e = raises(openai.NotFoundError, s.openai.responses.create, model="demo", input="x", previous_response_id="resp_none")
    assert e.code == "response_not_found", e


def test_openai_responses_stream(s):
    kinds, numbers = [], []
    with s.openai.responses.stream(model="demo", input="Spell: river", temperature=0) as stream:
        for event in stream:
            kinds.append(event.type)
            numbers.append(event.sequence_number)
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert numbers == list(range(len(numbers))) and "response.output_text.delta" in kinds
    assert final.output_text == s.openai.responses.create(model="demo", input="Spell: river", temperature=0).output_text


def test_openai_responses_tools(s):
    tool = {"type": "function", "name": "look_up", "description": "Look up a word.", "parameters": WORD}
    items = [{"role": "user", "content": ASK}]
    r = s.openai.responses.create(model="demo", input=items, tools=[tool], temperature=0, store=False)
    call = next(i for i in r.output if i.type == "function_call")
    assert json.loads(call.arguments) == {"word": "river"}
    items += [i.model_dump(exclude_none=True) for i in r.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "water"}]
    assert s.openai.responses.create(model="demo", input=items, tools=[tool], temperature=0, store=False).output_text


def test_openai_responses_parse(s):
    class Pair(pydantic.BaseModel):
        a: int
        b: bool

    r = s.openai.responses.parse(model="demo", input="Spell: dog", text_format=Pair, temperature=0, max_output_tokens=300)
    assert isinstance(r.output_parsed, Pair)


# ---- openai: errors ----

def test_openai_errors(s):
    create = s.openai.chat.completions.create
    e = raises(openai.AuthenticationError, s.new_openai(api_key="wrong").chat.completions.create, model="demo",
               messages=user("x"))
    assert e.status_code == 401 and e.code == "invalid_api_key"
    e = raises(openai.NotFoundError, create, model="other", messages=user("x"))
    assert e.code == "model_not_found"
    e = raises(openai.BadRequestError, create, model="demo", messages=user("word " * 9000))
    assert e.code == "context_length_exceeded" and e.body["details"]["prompt_tokens"] > e.body["details"]["max_context"]
    e = raises(openai.BadRequestError, create, model="demo", messages=user("x"), temperature=9)
    assert e.param == "temperature" and "9" in str(e)
    e = raises(openai.BadRequestError, create, model="demo", messages=user("word " * 9000), stream=True)
    assert e.code == "context_length_exceeded"  # a real status, before any event
    e = raises(openai.BadRequestError, s.openai.embeddings.create, model="demo", input="x")
    assert e.code == "not_an_embedding_model"
    raw = s.openai.chat.completions.with_raw_response.create(model="demo", messages=user("x"), max_tokens=1,
                                                             extra_headers={"x-request-id": "mine-1"})
    assert raw.headers["x-request-id"] == "mine-1" and float(raw.headers["x-espalier-queue-ms"]) >= 0


def test_overload_and_retry(s):
    """A full server says 429 with Retry-After, and a client that retries gets its answer."""
    small = Server("--parallel", "1", "--queue", "1", "--ctx", "2048")
    try:
        ask = {"model": "demo", "messages": user("Spell: garden"), "stream": True, "max_tokens": 1900,
               "extra_body": {"min_tokens": 1900}}
        held = small.openai.chat.completions.create(**ask)
        next(iter(held))
        waits = small.openai.chat.completions.create(**ask)
        e = raises(openai.RateLimitError, small.openai.chat.completions.create, model="demo", messages=user("x"))
        assert e.code == "queue_full" and int(e.response.headers["retry-after"]) >= 1
        e = raises(anthropic.RateLimitError, small.anthropic.messages.create, model="demo", max_tokens=4, messages=user("x"))
        assert int(e.response.headers["retry-after"]) >= 1
        waits.close()
        held.close()
        r = small.new_openai(max_retries=8).chat.completions.create(model="demo", messages=user("x"), max_tokens=2)
        assert r.choices
    finally:
        small.stop()


def test_shutdown_raises(s):
    """A stream that the server's end cuts off raises in both packages, and the server ends well."""
    small = Server("--parallel", "2", "--ctx", "4096", "--shutdown-timeout", "200ms")
    o = small.openai.chat.completions.create(model="demo", messages=user("Spell: garden"), stream=True,
                                             extra_body={"min_tokens": 4000}, max_tokens=4000)
    a = small.anthropic.messages.create(model="demo", max_tokens=4000, messages=user("Spell: dog"), stream=True,
                                        extra_body={"min_tokens": 4000})
    next(iter(o))
    next(iter(a))
    threading.Timer(0.3, small.process.send_signal, [signal.SIGTERM]).start()
    raises(openai.APIError, list, o)
    raises(anthropic.APIError, list, a)
    assert small.process.wait(60) == 0


# ---- anthropic ----

def test_anthropic_messages(s):
    whole = s.anthropic.messages.create(model="demo", max_tokens=100, **GREEDY, system="Be brief.",
                                        messages=user("Spell: garden"))
    with s.anthropic.messages.stream(model="demo", max_tokens=100, **GREEDY, system="Be brief.",
                                     messages=user("Spell: garden")) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text and text
    assert final.stop_reason == whole.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens
    cut = s.anthropic.messages.create(model="demo", max_tokens=2, messages=user("Spell: garden"))
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 2
    stopped = s.anthropic.messages.create(model="demo", max_tokens=100, **GREEDY, stop_sequences=["a"],
                                          messages=user("Spell: garden"))
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "a"
    beta = s.anthropic.beta.messages.create(model="demo", max_tokens=8, messages=user("x"), betas=["x-2025-01-01"])
    assert beta.type == "message"


def test_anthropic_tools(s):
    messages = user(ASK)
    r = s.anthropic.messages.create(model="demo", max_tokens=200, **GREEDY, messages=messages, tools=[anthropic_tool()],
                                    tool_choice={"type": "any"})
    use = next(b for b in r.content if b.type == "tool_use")
    assert r.stop_reason == "tool_use" and use.name == "look_up" and use.input == {"word": "river"}
    with s.anthropic.messages.stream(model="demo", max_tokens=200, **GREEDY, messages=messages,
                                     tools=[anthropic_tool()], tool_choice={"type": "any"}) as stream:
        streamed = stream.get_final_message()
    assert next(b for b in streamed.content if b.type == "tool_use").input == use.input
    messages += [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in r.content]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "water"}]}]
    again = s.anthropic.messages.create(model="demo", max_tokens=60, **GREEDY, messages=messages,
                                        tools=[anthropic_tool()])
    assert again.content and again.usage.cache_read_input_tokens > 0


def test_anthropic_thinking(s):
    ask = {"model": "demo", "max_tokens": 1200, "messages": user("Add: 12 + 7"),
           "thinking": {"type": "enabled", "budget_tokens": 1024}}
    r = s.anthropic.messages.create(**ask)
    assert r.content[0].type == "thinking" and r.content[0].thinking and r.content[0].signature
    with s.anthropic.messages.stream(**ask) as stream:
        kinds = [b.type for b in stream.get_final_message().content]
    assert kinds[0] == "thinking"
    history = user("Add: 12 + 7") + [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in r.content]},
                                     {"role": "user", "content": "Spell: dog"}]
    assert s.anthropic.messages.create(model="demo", max_tokens=40, messages=history).content


def test_anthropic_count(s):
    ask = {"model": "demo", "messages": user("Spell: garden"), "system": "Be brief.", "tools": [anthropic_tool()]}
    count = s.anthropic.messages.count_tokens(**ask).input_tokens
    usage = s.anthropic.messages.create(max_tokens=1, **ask).usage
    assert count == usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def test_anthropic_errors(s):
    create = s.anthropic.messages.create
    e = raises(anthropic.AuthenticationError, s.new_anthropic(api_key="wrong").messages.create, model="demo", max_tokens=1,
               messages=user("x"))
    assert e.body["error"]["type"] == "authentication_error" and e.request_id
    raises(anthropic.NotFoundError, create, model="other", max_tokens=1, messages=user("x"))
    e = raises(anthropic.BadRequestError, create, model="demo", max_tokens=1, messages=user("word " * 9000))
    assert re.match(r"prompt is too long: \d+ tokens > \d+ maximum", e.body["error"]["message"]), e
    e = raises(anthropic.BadRequestError, create, model="demo", max_tokens=1, messages=[{"role": "nobody", "content": "x"}])
    assert "messages" in e.body["error"]["message"] and e.body["error"]["type"] == "invalid_request_error"
    bearer = s.new_anthropic(api_key=None, auth_token=KEY)
    assert bearer.messages.create(model="demo", max_tokens=1, messages=user("x"))


# ---- conversations of coding clients ----

def shares(rows):
    return [cached / prompt for prompt, cached in rows[1:]]


def anthropic_turns(s, turns):
    """As Claude Code: a large system text, many tools, thinking, calls and results, everything again each turn."""
    tools = [anthropic_tool(f"tool_{i}", f"Tool number {i} of the client, which does what its number says.") for i in range(8)]
    tools[0] = anthropic_tool()
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=" + os.urandom(4).hex() + ";"},
              {"type": "text", "text": "You help with words. " * 100, "cache_control": {"type": "ephemeral"}}]
    messages, rows = user(ASK), []
    for i in range(turns):
        system[0]["text"] = "x-anthropic-billing-header: cc_version=1; cch=" + os.urandom(4).hex() + ";"
        with s.anthropic.messages.stream(model="demo", max_tokens=160, messages=messages, tools=tools, system=system,
                                         **GREEDY, thinking={"type": "enabled", "budget_tokens": 1024}
                                         if i % 2 else {"type": "disabled"},
                                         tool_choice={"type": "auto"}) as stream:
            r = stream.get_final_message()
        u = r.usage
        rows.append((u.input_tokens + u.cache_read_input_tokens + (u.cache_creation_input_tokens or 0), u.cache_read_input_tokens))
        messages = messages + [{"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in r.content]}]
        uses = [b for b in r.content if b.type == "tool_use"]
        messages += [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": b.id, "content": "a thing"}
                                                  for b in uses]}] if uses else user(f"Spell: word{i}")
    return rows


def codex_turns(s, turns):
    """As Codex: responses alone, nothing stored, the whole history with reasoning items each turn."""
    tool = {"type": "function", "name": "look_up", "description": "Look up a word.", "parameters": WORD}
    items, rows = [{"role": "user", "content": ASK}], []
    for i in range(turns):
        with s.openai.responses.stream(model="demo", input=items, tools=[tool], store=False, temperature=0, max_output_tokens=160,
                                       instructions="You help with words. " * 100,
                                       include=["reasoning.encrypted_content"]) as stream:
            r = stream.get_final_response()
        rows.append((r.usage.input_tokens, r.usage.input_tokens_details.cached_tokens))
        items = items + [o.model_dump(exclude_none=True) for o in r.output]
        calls = [o for o in r.output if o.type == "function_call"]
        items += [{"type": "function_call_output", "call_id": c.call_id, "output": "a thing"} for c in calls]
        items += [] if calls else [{"role": "user", "content": f"Spell: word{i}"}]
    return rows


def chat_turns(s, turns):
    """As Continue: chat completions with usage in the stream."""
    messages, rows = [{"role": "system", "content": "You help with words. " * 100}] + user("Spell: garden"), []
    for i in range(turns):
        text, usage = "", None
        for chunk in s.openai.chat.completions.create(model="demo", messages=messages, temperature=0, stream=True, max_tokens=60,
                                                      stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        rows.append((usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens))
        messages = messages + [{"role": "assistant", "content": text}] + user(f"Spell: word{i}")
    return rows


def check_turns(s, least):
    for of in (anthropic_turns, codex_turns, chat_turns):
        rows = of(s, 5)
        print(f"    {of.__name__}: " + ", ".join(f"{c}/{p}" for p, c in rows))
        assert min(shares(rows)) >= least, f"{of.__name__}: {rows}"


def check_history(history, least):
    own = Server("--ctx", "4096", "--history", history)
    try:
        check_turns(own, least)
    finally:
        own.stop()


def test_cached_turns_stable(_):
    check_history("stable", 0.95)


def test_cached_turns_model(_):
    check_history("model", 0.80)


def test_cached_turns_over_restart(_):
    """The files of the cache serve the next process."""
    folder = tempfile.mkdtemp(prefix="espalier-cache-")
    try:
        first = Server("--ctx", "4096", "--cache-dir", folder)
        chat_turns(first, 3)
        first.stop()
        second = Server("--ctx", "4096", "--cache-dir", folder)
        rows = chat_turns(second, 3)
        second.stop()
        print("    after the restart: " + ", ".join(f"{c}/{p}" for p, c in rows))
        assert min(c / p for p, c in rows) >= 0.80, rows
    finally:
        shutil.rmtree(folder)


# ---- curl ----

def curl(*args, data=None):
    return subprocess.run(["curl", "-sS", "--max-time", "60", *args], input=data, capture_output=True, check=True).stdout


def test_curl(s):
    if not shutil.which("curl"):
        print("    curl is missing: left out")
        return
    auth = ["-H", "Authorization: Bearer " + KEY]
    body = json.dumps({"messages": user("Spell: garden"), "temperature": 0})
    r = json.loads(curl(*auth, "-H", "Content-Type:", s.url + "/v1/chat/completions", "-d", body))
    assert r["choices"][0]["message"]["content"]
    big = json.dumps({"messages": user("Spell: garden"), "temperature": 0, "metadata": {"x": "y" * 200000}}).encode()
    out = curl("-i", *auth, "-H", "Expect: 100-continue", s.url + "/v1/chat/completions", "--data-binary", "@-", data=big)
    assert out.startswith(b"HTTP/1.1 100 Continue") and b"HTTP/1.1 200 OK" in out
    out = curl(*auth, "-H", "Transfer-Encoding: chunked", s.url + "/v1/chat/completions", "--data-binary", "@-",
               data=body.encode())
    assert json.loads(out)["choices"]
    assert b"200 OK" in curl("-I", s.url + "/") and b"200 OK" in curl(*auth, "-I", s.url + "/v1/models")
    assert json.loads(curl(s.url + "/v1/models"))["error"]["code"] == "invalid_api_key"
    assert b"405" in curl("-i", *auth, "-X", "PUT", s.url + "/v1/chat/completions").split(b"\r\n")[0]


def test_curl_streams_as_tokens_come(s):
    """-N shows each token when it is there, not all at the end."""
    if not shutil.which("curl"):
        return
    body = json.dumps({"messages": user("Spell: garden"), "stream": True, "min_tokens": 400, "max_tokens": 400})
    p = subprocess.Popen(["curl", "-sSN", "-H", "x-api-key: " + KEY, s.url + "/v1/chat/completions", "-d", body],
                         stdout=subprocess.PIPE)
    times = [time.monotonic() for line in p.stdout if line.startswith(b"data:")]
    assert p.wait() == 0 and len(times) > 100
    assert times[-1] - times[0] > 0.05 and times[len(times) // 2] < times[-1] - 0.01, times[-1] - times[0]


def main():
    names = sys.argv[3:] or [n for n in globals() if n.startswith("test_")]
    failed = []
    s = Server("--ctx", "2048", "--parallel", "8", "--model-check", "strict")
    try:
        for name in names:
            begin = time.monotonic()
            try:
                globals()[name](s)
                verdict = "ok"
            except Exception:
                traceback.print_exc(file=sys.stdout)
                failed.append(name)
                verdict = "FAILED"
            print(f"{verdict:7} {name} {time.monotonic() - begin:.1f} s", flush=True)
    finally:
        s.stop()
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


sys.exit(main())
