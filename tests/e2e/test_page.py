"""The chat page and the dashboard in Debian's chromium, driven by playwright: scripts/page_test.sh sets both up.

Every test ends with: nothing was written to the console as an error, no exception was left, no other host was asked.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import sys
import threading
import unittest
import urllib.parse

import harness

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    print("SKIPPED: playwright is not in this Python (scripts/page_test.sh)")
    sys.exit(harness.SKIPPED)

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    print("SKIPPED: no chromium (scripts/page_test.sh)")
    sys.exit(harness.SKIPPED)

PATIENCE = 60_000  # milliseconds, for what must happen on a busy machine
expect.set_options(timeout=PATIENCE)


def chunk(delta, finish=None, usage=None):
    return {"id": "x", "object": "chat.completion.chunk", "model": "m", "usage": usage,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def stream_of(*chunks):
    """The body of an answer as the server would stream it."""
    return "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"


class Browser(unittest.TestCase):
    """One browser for all tests of a class; a fresh profile and page for each test."""

    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server(*cls.arguments)
        cls.server.__enter__()
        cls.addClassCleanup(lambda: cls.server.__exit__(None, None, None))
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        cls.browser = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.complaints = []
        self.expected = []  # patterns of console messages that the test provokes
        self.page = self.new_page()

    def tearDown(self):
        unexpected = [each for each in self.complaints if not any(re.search(known, each) for known in self.expected)]
        self.assertEqual(unexpected, [])

    def new_page(self, **options):
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.addCleanup(context.close)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        page.on("request", self.check_host)
        return page

    def check_host(self, request):
        url = urllib.parse.urlparse(request.url)
        if url.scheme in ("blob", "data"):
            return
        if url.hostname != harness.HOST or url.port != self.server.port:
            self.complaints.append(f"a request to another host: {request.url}")

    def open(self, path="/"):
        self.page.goto(self.server.url + path)
        self.page.wait_for_selector("body[data-ready]")

    def set(self, **settings):
        """Types settings into the panel, which is opened and closed for it."""
        self.page.click("#settings-open")
        for name, value in settings.items():
            self.page.fill(f"[data-name={name}], #{name}", str(value))
        self.page.click("#settings [data-close]")

    def send(self, text):
        self.page.fill("#composer-text", text)
        self.page.press("#composer-text", "Enter")

    @property
    def answers(self):
        return self.page.locator(".message.assistant")

    def wait_for_answer(self, number=1):
        expect(self.page.locator(".message.assistant[aria-busy=false]")).to_have_count(number)

    def ask(self, text, number=1):
        self.send(text)
        self.wait_for_answer(number)

    def scripted(self, *chunks, status=200, headers=None, body=None):
        """Lets the next answers be these instead of the model's."""
        self.page.route("**/v1/chat/completions", lambda route: route.fulfill(
            status=status, body=stream_of(*chunks) if body is None else body,
            headers={"Content-Type": "text/event-stream" if status == 200 else "application/json", **(headers or {})}))


@harness.needs_default_model
class Chat(Browser):
    def test_a_conversation_streams_and_is_still_there_after_a_reload(self):
        self.open()
        self.set(temperature=0, max_tokens=24, system="Answer briefly.")
        self.send("What is the capital of France?")
        expect(self.page.locator("#send")).to_have_attribute("aria-label", "Stop the answer")
        self.wait_for_answer()
        expect(self.page.locator("#send")).to_have_attribute("aria-label", "Send")
        direct = self.server.answer("/v1/chat/completions", {"temperature": 0, "max_tokens": 24, "messages": [
            {"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "What is the capital of France?"}]})
        words = lambda text: re.findall(r"\w+", text)
        self.assertEqual(words(self.answers.locator(".markdown").inner_text()),
                         words(direct["choices"][0]["message"]["content"]))
        facts = self.answers.locator(".facts").inner_text().replace("\u00a0", " ")
        self.assertRegex(facts, r"\d+ tokens? · [\d.]+ tokens/s · first after [\d.]+ m?s · prompt \d+")
        self.ask("And of Italy?", number=2)
        texts = self.page.locator(".messages").inner_text()
        self.page.reload()
        self.page.wait_for_selector("body[data-ready]")
        self.assertEqual(self.page.locator(".messages").inner_text(), texts)
        expect(self.page.locator("#title")).to_have_text("What is the capital of France?")
        self.page.click("#settings-open")
        expect(self.page.locator("#system")).to_have_value("Answer briefly.")
        expect(self.page.locator("[data-name=temperature]")).to_have_value("0")

    def test_the_settings_are_what_is_sent(self):
        self.open()
        self.set(temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, max_tokens=4, seed=7, presence_penalty=0.1,
                 frequency_penalty=-0.2, repetition_penalty=1.1, system="Be kind.")
        with self.page.expect_request("**/v1/chat/completions") as sent:
            self.ask("Hi")
        body = sent.value.post_data_json
        self.assertEqual({name: body[name] for name in body if name not in ("model", "messages")}, {
            "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 4, "seed": 7,
            "presence_penalty": 0.1, "frequency_penalty": -0.2, "repetition_penalty": 1.1, "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
        self.assertEqual(body["messages"], [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])
        self.assertEqual(body["model"], "SmolLM2-135M-Instruct.Q4_1.gguf")
        expect(self.answers.locator(".facts")).to_contain_text("Ended at the limit of tokens.")
        self.page.click("#settings-open")
        self.page.fill("[data-name=temperature]", "7")
        expect(self.page.locator("#sampling .problem").first).to_have_text("Temperature must be from 0 to 2.")
        self.page.click("#reset")
        expect(self.page.locator("[data-name=temperature]")).to_have_value("")

    def test_what_suits_the_model_is_shown_and_sent_where_a_setting_is_empty(self):
        self.open()
        self.set(max_tokens=4, top_p=0.5)
        self.page.click("#settings-open")
        expect(self.page.locator("[data-name=temperature]")).to_have_attribute("placeholder", "0.2")
        expect(self.page.locator("[data-name=top_k]")).to_have_attribute("placeholder", "default")
        self.page.click("#settings [data-close]")
        with self.page.expect_request("**/v1/chat/completions") as sent:
            self.ask("Hi")
        body = sent.value.post_data_json
        self.assertEqual((body["temperature"], body["top_p"]), (0.2, 0.5))
        self.assertNotIn("top_k", body)

    def test_stop_keeps_what_came_and_ends_the_work(self):
        self.open()
        self.set(temperature=0)
        self.page.evaluate("""() => new MutationObserver((_, observer) => {
            if (!document.querySelector('.message.assistant .markdown')?.textContent) return;
            observer.disconnect();
            document.getElementById('send').click();
        }).observe(document.getElementById('messages'), {childList: true, subtree: true, characterData: true})""")
        self.send("Write a very long story about a lighthouse keeper, with many chapters.")
        self.wait_for_answer()
        expect(self.answers.locator(".facts")).to_contain_text("Stopped.")
        self.assertNotEqual(self.answers.locator(".markdown").inner_text().strip(), "")
        self.server.wait_until_idle()

    def test_an_answer_can_be_made_again_and_both_are_kept(self):
        self.open()
        self.set(max_tokens=12, seed=1)
        self.ask("Name a colour.")
        first = self.answers.locator(".markdown").inner_text()
        self.set(seed=2, temperature=2)
        self.page.click("[aria-label='Answer again']")
        expect(self.page.locator(".variant")).to_have_text("2 / 2")
        second = self.answers.locator(".markdown").inner_text()
        self.page.click("[aria-label='The answer before']")
        expect(self.page.locator(".variant")).to_have_text("1 / 2")
        self.assertEqual(self.answers.locator(".markdown").inner_text(), first)
        self.assertNotEqual(first, second)
        self.page.reload()
        expect(self.page.locator(".variant")).to_have_text("1 / 2")

    def test_an_edited_message_replaces_what_followed(self):
        self.open()
        self.set(temperature=0, max_tokens=8)
        self.ask("One")
        self.ask("Two", number=2)
        self.page.locator(".message.user").first.hover()
        self.page.locator("[aria-label='Edit the message']").first.click()
        expect(self.page.locator(".editor small")).to_have_text("Replaces this message and what follows it.")
        with self.page.expect_request("**/v1/chat/completions") as sent:
            self.page.fill(".edit", "Three")
            self.page.click(".editor .primary")
        self.assertEqual(sent.value.post_data_json["messages"], [{"role": "user", "content": "Three"}])
        self.wait_for_answer(1)
        expect(self.page.locator(".message.user .bubble")).to_have_text(["Three"])

    def test_conversations_are_listed_renamed_exported_and_deleted(self):
        self.open()
        self.set(temperature=0, max_tokens=4)
        self.ask("First question")
        self.page.click("#new")
        self.ask("Second question")
        rows = self.page.locator(".conversation")
        expect(rows).to_have_text(["Second question", "First question"])
        current = self.page.locator(".row.current")
        current.locator("[aria-label=Rename]").click()
        self.page.fill(".rename", "A better name")
        self.page.press(".rename", "Enter")
        expect(rows).to_have_text(["A better name", "First question"])
        with self.page.expect_download() as download:
            self.page.locator(".row.current [aria-label='Export as JSON']").click()
        self.assertEqual(download.value.suggested_filename, "A-better-name.json")
        exported = json.loads(pathlib.Path(download.value.path()).read_text())
        self.assertEqual([message["role"] for message in exported["messages"]], ["user", "assistant"])
        self.assertEqual((exported["format"], exported["title"]), ("quire-conversation", "A better name"))
        self.page.locator(".row.current [aria-label=Delete]").click()
        self.page.click("dialog .danger")
        expect(rows).to_have_text(["First question"])
        self.page.reload()
        self.page.wait_for_selector("body[data-ready]")
        expect(rows).to_have_text(["First question"])

    def test_another_tab_sees_what_is_kept(self):
        self.open()
        other = self.page.context.new_page()
        other.goto(self.server.url + "/")
        other.wait_for_selector("body[data-ready]")
        self.set(max_tokens=4)
        self.ask("Seen elsewhere")
        expect(other.locator(".conversation")).to_have_text(["Seen elsewhere"])

    def test_the_servers_own_tool_calls_are_shown_and_answered(self):
        tools = [{"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
            "additionalProperties": False}}}]

        def must_call(route):  # so small a model would not by itself
            body = route.request.post_data_json
            if body["messages"][-1]["role"] == "user":
                body.update(tool_choice="required", parallel_tool_calls=False)
            route.continue_(post_data=json.dumps(body))

        self.page.route("**/v1/chat/completions", must_call)
        self.open()
        self.set(temperature=0, max_tokens=60, tools=json.dumps(tools))
        self.ask("How is the weather in Rome?")
        call = self.answers.locator(".calls details")
        expect(call.locator("summary")).to_have_text("Calls weather")
        call.locator("summary").click()
        self.assertIn(json.loads(call.locator("pre").inner_text())["city"], ("Oslo", "Rome"))
        self.page.fill("[aria-label='Result of weather']", '{"sky": "blue"}')
        with self.page.expect_response("**/v1/chat/completions") as answered:
            self.page.click("text=Send the result")
        self.assertEqual(answered.value.status, 200)
        self.wait_for_answer(2)
        expect(self.answers.locator(".error-box")).to_have_count(0)

    def test_everything_can_be_done_from_the_keyboard(self):
        self.open()
        page = self.page
        focused = lambda: page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label')")
        self.assertEqual(focused(), "composer-text")
        page.keyboard.press("Alt+p")
        self.assertEqual(focused(), "key")
        for _ in range(6):
            page.keyboard.press("Tab")
        self.assertEqual(page.evaluate("document.activeElement.dataset.name"), "max_tokens")
        page.keyboard.type("6")
        page.keyboard.press("Escape")
        self.assertEqual(focused(), "settings-open")
        page.keyboard.press("/")
        self.assertEqual(focused(), "composer-text")
        page.keyboard.type("One line")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("another")
        page.keyboard.press("Enter")
        self.wait_for_answer(1)
        self.assertEqual(page.locator(".bubble").inner_text(), "One line\nanother")
        page.keyboard.press("Alt+r")
        expect(page.locator(".variant")).to_have_text("2 / 2")
        page.keyboard.press("ArrowUp")
        self.assertEqual(focused(), "Edit the message")
        page.keyboard.press("Escape")
        self.assertEqual(focused(), "composer-text")
        page.keyboard.press("Alt+n")
        expect(page.locator(".message")).to_have_count(0)
        page.keyboard.press("Alt+ArrowDown")
        expect(page.locator(".message")).to_have_count(2)
        page.keyboard.press("Alt+k")
        expect(page.locator("#help")).to_be_visible()
        self.assertGreater(page.locator("#shortcuts dt").count(), 10)
        page.keyboard.press("Escape")
        expect(page.locator("#help")).to_be_hidden()
        page.keyboard.press("Alt+l")
        expect(page.locator("#sidebar")).to_be_hidden()
        page.keyboard.press("Alt+l")
        self.assertEqual(focused(), "new")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        self.assertEqual(focused(), "Rename")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        self.assertEqual(outline, "solid")

    def test_a_phone_of_360_pixels_needs_no_scrolling_sideways(self):
        self.page = self.new_page(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
        wide = "x" * 300
        self.scripted(chunk({"role": "assistant", "content": ""}), chunk({"content": (
            f"# {wide}\n\n{wide} `{wide}`\n\n```\n{wide}\n```\n\n|{'a|' * 12}\n|{'-|' * 12}\n|{(wide[:30] + '|') * 12}\n\n"
            f"- - - {wide}\n\nhttps://a.example/{wide}")}), chunk({}, "stop"))
        self.open()
        page = self.page
        self.ask(f"Hello {wide}")
        self.assertEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
        self.assertEqual(page.evaluate("document.getElementById('scroll').scrollWidth"),
                         page.evaluate("document.getElementById('scroll').clientWidth"))
        for name in ("sidebar", "settings"):
            page.tap(f"#{name}-open")
            expect(page.locator(f"#{name}")).to_be_in_viewport()
            self.assertEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
            page.tap(f"#{name} [data-close]")
            expect(page.locator(f"#{name}")).to_be_hidden()
        page.tap("#sidebar-open")
        page.touchscreen.tap(350, 400)
        expect(page.locator("#sidebar")).to_be_hidden()
        for button in page.locator("button:visible").all():
            box = button.bounding_box()
            self.assertGreaterEqual(min(box["width"], box["height"]), 24, button.get_attribute("aria-label"))

    def test_light_and_dark_follow_the_system_or_the_switch(self):
        self.page = self.new_page(color_scheme="dark")
        self.open()
        background = lambda: self.page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = background()
        self.page.click("#theme")
        light = background()
        self.assertNotEqual(dark, light)
        self.page.reload()
        self.page.wait_for_selector("body[data-ready]")
        self.assertEqual(background(), light)
        self.page.click("#theme")
        self.assertEqual(background(), dark)
        self.page.click("#theme")
        self.page.emulate_media(color_scheme="light")
        self.assertEqual(background(), light)


@harness.needs_default_model
class ScriptedAnswers(Browser):
    """What this model does not say: the answers are the tests' own, everything else is real."""

    def test_reasoning_and_tool_calls_are_folded_and_a_result_can_be_sent(self):
        call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
        self.scripted(
            chunk({"role": "assistant", "content": ""}), chunk({"reasoning": "The user wants "}),
            chunk({"reasoning_content": "the weather."}), chunk({"tool_calls": [call]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Oslo"}'}}]}), chunk({}, "tool_calls"))
        self.open()
        self.set(tools='[{"type": "function", "function": {"name": "weather"}}]')
        with self.page.expect_request("**/v1/chat/completions") as sent:
            self.ask("How is the weather in Oslo?")
        self.assertEqual(sent.value.post_data_json["tools"], [{"type": "function", "function": {"name": "weather"}}])
        folds = self.answers.locator("details")
        expect(folds).to_have_count(2)
        expect(self.answers.locator(".thoughts")).to_be_hidden()
        folds.first.locator("summary").click()
        expect(self.answers.locator(".thoughts")).to_have_text("The user wants the weather.")
        folds.nth(1).locator("summary").click()
        expect(folds.nth(1).locator("pre")).to_have_text('{\n  "city": "Oslo"\n}')
        self.page.unroute("**/v1/chat/completions")
        self.scripted(chunk({"role": "assistant", "content": ""}), chunk({"content": "It rains."}), chunk({}, "stop"))
        with self.page.expect_request("**/v1/chat/completions") as sent:
            self.page.fill("[aria-label='Result of weather']", '{"rain": true}')
            self.page.click("text=Send the result")
        messages = sent.value.post_data_json["messages"]
        self.assertEqual(messages[1]["tool_calls"], [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}])
        self.assertEqual(messages[2], {"role": "tool", "tool_call_id": "call_1", "content": '{"rain": true}'})
        self.wait_for_answer(2)
        expect(self.answers.nth(1).locator(".markdown")).to_have_text("It rains.")

    def test_a_hostile_answer_is_only_text(self):
        self.scripted(chunk({"role": "assistant", "content": ""}), chunk({"content": (
            "<img src=https://evil.example/a.png onerror=alert(1)> <script>alert(2)</script>\n\n"
            "![x](https://evil.example/b.png) [y](javascript:alert(3)) [z](https://ok.example/)\n\n"
            "<iframe src='https://evil.example'></iframe><style>*{display:none}</style>")}), chunk({}, "stop"))
        self.page.on("dialog", lambda dialog: self.complaints.append("an alert"))
        self.open()
        self.ask("x")
        self.assertEqual(self.page.locator(".markdown :is(img, script, iframe, style)").count(), 0)
        links = self.page.locator(".markdown a").all()
        self.assertEqual({link.get_attribute("href") for link in links},
                         {"https://evil.example/a.png", "https://evil.example/b.png", "https://ok.example/", "https://evil.example/"})
        self.assertEqual({link.get_attribute("rel") for link in links}, {"noopener noreferrer nofollow"})

    def test_code_can_be_copied(self):
        self.scripted(chunk({"role": "assistant", "content": ""}), chunk({"content": "```sh\necho hi\n```"}), chunk({}, "stop"))
        self.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.open()
        self.ask("x")
        self.page.click("[aria-label='Copy the code']")
        expect(self.page.locator("#status")).to_have_text("Copied")
        self.assertEqual(self.page.evaluate("navigator.clipboard.readText()"), "echo hi")

    def test_errors_say_what_to_do_and_can_be_tried_again(self):
        error = lambda text: json.dumps({"error": {"message": text, "type": "t", "param": None, "code": None}})
        cases = [
            (429, {"Retry-After": "7"}, error("full"), "as many requests as it takes. Try again in about 7 s."),
            (404, {}, error("The model `x` does not exist."), "The model `x` does not exist. Choose a model from the list"),
            (400, {}, error("This model's maximum context length is 8 tokens."), "maximum context length is 8 tokens."),
            (500, {}, "<html>proxy</html>", "The server failed (500)."),
            (200, {}, f"data: {json.dumps(chunk({'content': 'Half'}))}\n\ndata: {error('The engine has failed.')}\n\ndata: [DONE]\n\n",
             "The engine has failed."),
            (200, {}, f"data: {json.dumps(chunk({'content': 'Half'}))}\n\n", "The connection ended before the answer did."),
        ]
        self.expected = [r"status of (429|404|400|500)"]
        self.open()
        for status, headers, body, words in cases:
            with self.subTest(words):
                self.scripted(status=status, headers=headers, body=body)
                self.page.click("#new")
                self.ask("x")
                expect(self.answers.locator(".error-box")).to_contain_text(words)
                if status == 200:
                    expect(self.answers.locator(".markdown")).to_have_text("Half")
                self.page.unroute("**/v1/chat/completions")
        self.scripted(chunk({"content": "Better."}), chunk({}, "stop"))
        self.page.click(".error-box button:has-text(\"Try again\")")
        expect(self.answers.locator(".error-box")).to_have_count(0)
        expect(self.answers.locator(".markdown")).to_have_text("Better.")


@harness.needs_default_model
class Dashboard(Browser):
    def value(self, title, name=None):
        card = self.page.locator(".card", has=self.page.locator("h2", has_text=re.compile(f"^{title}$")))
        return card.locator(".number") if name is None else card.locator(".value", has_text=name).locator(".number")

    def test_idle_then_under_load_then_idle(self):
        self.open("/dashboard")
        expect(self.page.locator("#state-text")).to_have_text("Idle")
        expect(self.value("Generation")).to_have_text("0")
        expect(self.value("Time to first token", "p50")).to_have_text("–")
        over = threading.Event()

        def load(number):
            while not over.is_set():
                self.server.answer("/v1/chat/completions", {
                    "messages": [{"role": "user", "content": f"Tell me about the number {number}."}], "max_tokens": 40})

        threads = [threading.Thread(target=load, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            expect(self.page.locator("#state-text")).to_have_text("At work")
            expect(self.value("Generation")).to_have_text(re.compile(r"^[1-9][\d,.]*$"))
            expect(self.value("Requests", "running")).to_have_text(re.compile(r"^[1-3]$"))
            expect(self.value("Time to first token", "p95")).to_have_text(re.compile(r"^[\d.]+ (ms|s)$"))
            expect(self.value("Time per output token", "p50")).to_have_text(re.compile(r"^[\d.]+ (ms|s)$"))
            expect(self.page.locator("#finished .bar-name").first).to_have_text(re.compile("Complete|Limit of tokens"))
            expect(self.page.locator("#phases .bar-row").first).to_contain_text("forward")
            chart = self.page.locator(".chart").first
            chart.hover()
            expect(self.page.locator(".readout").first).to_contain_text(re.compile(r"now|ago"))
            self.page.mouse.move(0, 0)
            expect(self.page.locator(".readout").first).to_be_hidden()
            chart.focus()
            self.page.keyboard.press("ArrowLeft")
            expect(self.page.locator(".readout").first).to_be_visible()
        finally:
            over.set()
            for thread in threads:
                thread.join()
        expect(self.page.locator("#state-text")).to_have_text("Idle")
        expect(self.value("Generation")).to_have_text("0")
        self.page.click("#pause")
        expect(self.page.locator("#state-text")).to_have_text("Paused")
        for width in (360, 800):
            self.page.set_viewport_size({"width": width, "height": 740})
            self.assertEqual(self.page.evaluate("document.documentElement.scrollWidth"), width)


@harness.needs_default_model
class Keys(Browser):
    arguments = ("--api-key", "the-right-key")

    def setUp(self):
        super().setUp()
        self.expected = [r"status of 401"]

    def test_the_chat_asks_for_the_key_and_says_when_it_is_wrong(self):
        self.open()
        expect(self.page.locator("#notice")).to_contain_text("The server asks for an API key.")
        self.page.click("#notice button")
        self.assertEqual(self.page.evaluate("document.activeElement.id"), "key")
        self.page.keyboard.type("wrong")
        self.page.keyboard.press("Enter")
        expect(self.page.locator("#notice")).to_contain_text("does not accept this API key")
        self.page.keyboard.press("Escape")
        self.ask("Hi")
        expect(self.answers.locator(".error-box")).to_contain_text("does not accept this API key")
        for odd in ("ключ", "the-right-key"):
            self.page.click("#settings-open")
            self.page.fill("#key", odd)
            self.page.press("#key", "Enter")
            if odd == "ключ":
                expect(self.page.locator("#notice")).to_contain_text("does not accept this API key")
            else:
                expect(self.page.locator("#notice")).to_be_hidden()
            self.page.click("#settings [data-close]")
        self.set(max_tokens=4)
        self.page.click(".error-box button:has-text(\"Try again\")")
        expect(self.answers.locator(".error-box")).to_have_count(0)
        self.wait_for_answer(1)
        self.page.reload()  # the same tab still knows it
        self.page.wait_for_selector("body[data-ready]")
        expect(self.page.locator("#model option")).to_have_text(["SmolLM2-135M-Instruct.Q4_1.gguf"])
        # Another tab does not, and no key is among what is kept.
        kept = self.page.evaluate("JSON.stringify(localStorage) + document.cookie")
        self.assertNotIn("right-key", kept)

    def test_so_does_the_dashboard(self):
        self.open("/dashboard")
        expect(self.page.locator("#state-text")).to_contain_text("The server asks for an API key.")
        self.page.fill("#key", "wrong")
        self.page.keyboard.press("Enter")
        expect(self.page.locator("#state-text")).to_contain_text("does not accept this API key")
        self.page.fill("#key", "the-right-key")
        self.page.keyboard.press("Enter")
        expect(self.page.locator("#state-text")).to_have_text("Idle")
        expect(self.page.locator("#key-form")).to_be_hidden()


@harness.needs_default_model
class ServerThatGoes(Browser):
    def test_both_pages_say_that_it_cannot_be_reached(self):
        self.expected = [r"ERR_CONNECTION_REFUSED", r"ERR_EMPTY_RESPONSE", r"ERR_CONNECTION_RESET", r"ERR_SOCKET_NOT_CONNECTED"]
        self.open()
        other = self.page.context.new_page()
        other.goto(self.server.url + "/dashboard")
        other.wait_for_selector("body[data-ready]")
        self.server.stop()
        expect(other.locator("#state-text")).to_contain_text("The server cannot be reached.")
        self.ask("Are you there?")
        expect(self.answers.locator(".error-box")).to_contain_text("The server cannot be reached. Is it running")


def take_screenshots(folder):
    """The pictures of docs/page: real answers of the default model."""
    folder.mkdir(parents=True, exist_ok=True)
    Browser.arguments = ("--num-gpu-blocks-override", 160)  # so that there is something to see of the cache
    Browser.setUpClass()
    test = Browser()
    test.setUp()

    def shoot(name):
        test.page.mouse.move(0, 0)
        test.page.screenshot(path=folder / f"{name}.png")

    try:
        test.open()
        test.set(temperature=0, max_tokens=200)
        test.ask("What is a lighthouse for?")
        test.page.click("#new")
        test.ask("Write a Python function that adds two numbers, and say how it works.")
        shoot("chat-light")
        test.page.click("#settings-open")
        test.page.emulate_media(color_scheme="dark")
        shoot("chat-dark")
        test.page.click("#settings [data-close]")
        test.page.emulate_media(color_scheme="light")
        test.page.set_viewport_size({"width": 360, "height": 740})
        shoot("phone")
        test.page.set_viewport_size({"width": 1280, "height": 920})
        test.open("/dashboard")
        threads = []
        for number in range(110):
            prompt = f"You teach children. Explain in a few sentences why the sea is salty. Variant {number // 4}."
            threads.append(threading.Thread(target=test.server.answer, args=("/v1/chat/completions", {
                "messages": [{"role": "user", "content": prompt}], "max_tokens": 30 + 7 * (number % 9)})))
            threads[-1].start()
            test.page.wait_for_timeout(350 + 500 * (number % 11 == 10))
        test.page.hover(".card:nth-child(5) .chart", position={"x": 250, "y": 40})
        test.page.screenshot(path=folder / "dashboard.png")
        for thread in threads:
            thread.join()
    finally:
        test.doCleanups()
        Browser.doClassCleanups()
    if test.complaints:
        sys.exit("\n".join(test.complaints))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--screenshots", type=pathlib.Path)
    options, rest = parser.parse_known_args()
    if options.screenshots:
        take_screenshots(options.screenshots)
    else:
        harness.main()
