#!/usr/bin/env python3
"""The web page in headless Chromium against a running server: send, stream, stop, edit, branches, a tool call,
thinking, hostile answers, settings, status, a server that is gone. Skips (77) where Chromium and Selenium
(Debian: chromium-driver, python3-selenium) are missing.

usage: page_test.py ESPALIER MODEL [FOLDER for screenshots]

SPDX-License-Identifier: MIT
"""
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    print("selenium is missing (Debian: python3-selenium): skipped")
    sys.exit(77)


def start(program, model):
    server = subprocess.Popen([program, "serve", model, "--port", "0", "--temp", "0"], stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        found = re.match(r"listening on (http://\S+)", line)
        if found:
            url = found.group(1)
            break
    else:
        sys.exit("the server did not start")
    for _ in range(600):
        try:
            with urllib.request.urlopen(url + "/health") as r:
                if json.load(r)["status"] == "ok":
                    return server, url
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit("the server did not become ready")


def browser():
    options = webdriver.ChromeOptions()
    for a in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,900"]:
        options.add_argument(a)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        return webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    except Exception as e:  # whatever Selenium calls a missing driver in this version
        print(f"no Chromium with its driver: {e}: skipped")
        sys.exit(77)


class Page:
    def __init__(self, url, shots):
        self.d = browser()
        self.shots = shots
        self.d.get(url)
        self.wait(lambda: self.all("#model option"), "the list of models")

    def one(self, css):
        return self.d.find_element(By.CSS_SELECTOR, css)

    def all(self, css):
        return self.d.find_elements(By.CSS_SELECTOR, css)

    def wait(self, ready, what, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            try:
                if ready():
                    return
            except Exception:  # the element was redrawn meanwhile
                pass
            time.sleep(0.05)
        self.shot("failed")
        sys.exit(f"the page did not get to: {what}")

    def shot(self, name):
        if self.shots:
            self.d.save_screenshot(f"{self.shots}/{name}.png")

    def send(self, text):
        self.one("#prompt").send_keys(text, Keys.ENTER)

    def answered(self, n):
        self.wait(lambda: len(self.all("article.assistant")) >= n and not self.one("#stop").is_displayed(), f"answer {n}")

    def button(self, css, label):
        return [b for b in self.all(css + " .bar button") if b.text == label][-1]

    def last(self):
        return self.all("article.assistant .body")[-1].text


def check(condition, what):
    if not condition:
        sys.exit("failed: " + what)
    print("ok:", what)


def conversation(p):
    p.send("Repeat: river stone candle garden")
    p.answered(1)
    first = p.last()
    check(first == "river stone candle garden", "an answer is written: " + first)
    check("tokens" in p.all("article.assistant .bar")[-1].text, "with its counts")
    p.shot("1-answer")
    p.button("article.user", "edit").click()
    box = p.one("textarea.edit")
    box.clear()
    box.send_keys("What is 23 + 45?", Keys.CONTROL, Keys.ENTER)
    p.wait(lambda: p.last() == "74", "the answer to the edited message")
    check("2/2" in p.all("article.user .bar")[-1].text, "an edit is a branch")
    p.button("article.user", "‹").click()
    p.wait(lambda: p.last() == first, "the first branch again")
    p.button("article.assistant", "again").click()
    p.wait(lambda: "2/2" in p.all("article.assistant .bar")[-1].text, "a second answer")
    check(p.last() == first, "greedy answers agree")
    p.d.refresh()
    p.wait(lambda: p.last() == first, "the conversation after a reload")


def stopping(p):
    p.one("#new").click()
    p.send("Once upon a time there was a little girl. Tell me a long story.")
    p.wait(lambda: p.one("#stop").is_displayed() or len(p.all("article.assistant .bar")[-1].text) > 3, "writing")
    if p.one("#stop").is_displayed():
        p.one("#stop").click()
    p.answered(1)
    check("stopped" in p.all("article.assistant .bar")[-1].text or "complete" in p.all("article.assistant .bar")[-1].text,
          "stop ends an answer")
    p.shot("2-stopped")


TOOLS = """
const real = window.fetch;
window.fetch = (url, how) => {
  if (!String(url).includes("chat/completions")) return real(url, how);
  const body = JSON.parse(how.body);
  body.tools = [{type: "function", function: {name: "look_up", strict: true, parameters: {type: "object",
    properties: {word: {type: "string", maxLength: 12}}, required: ["word"], additionalProperties: false}}}];
  body.tool_choice = "required";
  body.enable_thinking = true;
  body.thinking_budget_tokens = 40;
  return real(url, {...how, body: JSON.stringify(body)});
};
"""

HOSTILE = r"""
const text = "# Head\n\n<img src=x onerror='window.hacked=1'> **bold** [x](javascript:window.hacked=2)\n\n" +
  "```py\n<script>window.hacked=3</script>\n```\n";
const chunk = (delta, finish) => "data: " + JSON.stringify({choices: [{index: 0, delta, finish_reason: finish}]}) + "\n\n";
window.fetch = () => Promise.resolve(new Response(chunk({role: "assistant", content: ""}, null) +
  [...text].map(c => chunk({content: c}, null)).join("") + chunk({}, "stop") + "data: [DONE]\n\n",
  {headers: {"Content-Type": "text/event-stream"}}));
"""


def calls(p):
    """The page offers no tools itself: the request gets one on its way. The answer is the server's."""
    p.one("#new").click()
    p.d.execute_script(TOOLS)
    p.send("Look up the word pencil.")
    p.answered(1)
    p.wait(lambda: "look_up" in p.one("article.assistant details.tool").get_attribute("textContent"), "a call is shown")
    check("word" in p.one("article.assistant details.tool").get_attribute("textContent"), "with its arguments")
    think = p.one("article.assistant details.think")
    check(think.is_displayed() and not think.get_attribute("open"), "thinking is folded")
    think.find_element(By.CSS_SELECTOR, "summary").click()
    check(think.find_element(By.CSS_SELECTOR, ".inner").text, "and can be unfolded")
    p.shot("7-call")
    p.d.refresh()
    p.wait(lambda: p.all("#model option"), "the list of models")


def hostile(p):
    p.one("#new").click()
    p.d.execute_script(HOSTILE)
    p.send("Be nasty.")
    p.answered(1)
    p.wait(lambda: p.all("article.assistant .body strong"), "Markdown is shown")
    check(not p.all("article.assistant .body img, article.assistant .body script"), "tags in an answer are text")
    check(not p.all("article.assistant .body a[href^='javascript']"), "and its links lead nowhere dangerous")
    check("<script>" in p.one("article.assistant .body pre").text, "code is code")
    check(p.d.execute_script("return window.hacked") is None, "nothing of it runs")
    p.shot("8-hostile")
    p.d.refresh()
    p.wait(lambda: p.all("#model option"), "the list of models")


def panels(p):
    p.one("#tab-status").click()
    p.wait(lambda: "Last requests" in p.one("#status").text, "the status tab")
    p.one("#theme").click()
    p.shot("3-status-dark")
    p.one("#tab-status").click()
    p.one("#tab-settings").click()
    p.one("#set-schema").send_keys("{no")
    p.one("#set-system").click()
    p.one("#tab-settings").click()
    p.send("Spell: dog")
    p.wait(lambda: "not JSON" in p.one("#banner").text, "a schema that is no JSON is refused")
    check(p.one("#prompt").get_attribute("value") == "Spell: dog", "and the message stays in its box")
    p.one("#prompt").clear()
    p.one("#tab-settings").click()
    p.one("#set-schema").clear()
    p.one("#set-system").click()
    p.shot("4-settings")
    p.one("#tab-settings").click()


def narrow(p):
    p.d.set_window_size(420, 800)
    p.one("#side-open").click()
    check(p.one("#list").is_displayed(), "conversations on a phone")
    p.shot("5-phone")
    p.one("#side-close").click()
    width = p.d.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    check(width <= 0, "nothing is wider than a phone")


def lost(p, server):
    server.send_signal(signal.SIGKILL)
    server.wait()
    p.send("Repeat: red")
    p.wait(lambda: any("reached" in e.text for e in p.all("article.assistant .error")), "a server that is gone is reported")
    p.shot("6-gone")


def main():
    server, url = start(sys.argv[1], sys.argv[2])
    try:
        p = Page(url, sys.argv[3] if len(sys.argv) > 3 else None)
        conversation(p)
        stopping(p)
        calls(p)
        hostile(p)
        panels(p)
        narrow(p)
        noise = [e for e in p.d.get_log("browser") if e["level"] == "SEVERE"]
        check(not noise, f"no error in the browser's console: {noise}")
        lost(p, server)
        p.d.quit()
    finally:
        server.kill()


main()
