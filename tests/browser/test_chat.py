"""The chat, as a person uses it."""

from __future__ import annotations

import json

import pytest

from pagewire.frontend.answers.answer_formats import AnswerFormats, ReasoningFormat
from pagewire.frontend.answers.tool_parsers.formats import ToolFormat
from pagewire.ipc.requests import AbortRequests, AddRequest
from pagewire.ipc.server_config import ServerConfig
from tests.support.browser import PageDriver, served_page

pytestmark = pytest.mark.slow

ESCAPE, ENTER = "\ue00c", "\ue007"
CONTEXT = {"max_model_len": 4096}

ANSWER = """## Two ways

Say **hello** and `world`:

```python
print("<b>hello</b>")
```

| a | b |
|---|---|
| 1 | 2 |

1. one
2. two
   - deeper
"""

ATTACK = """<script>window.hit = 1</script><img src=x onerror="window.hit = 2"><svg onload="window.hit = 3">

[click](javascript:window.hit=4) [data](data:text/html,x)
![x](https://evil.example/a.png) <a href="javascript:window.hit=5">y</a>

```html"><img src=x onerror=window.hit=6>
<iframe srcdoc="<script>parent.hit=7</script>"></iframe>
```

| <img src=x onerror=window.hit=8> | b |
|---|---|
"""


def bodies(served) -> list[AddRequest]:
    return [message for message in served.core.received if isinstance(message, AddRequest)]


def test_an_answer_streams_and_is_shown_with_its_figures(browser):
    with served_page(ANSWER, info=CONTEXT, num_steps=0) as served:
        page = PageDriver(browser, served.url)
        page.send("How?")
        page.until(lambda: page.find(".waiting").is_displayed(), "the sign that an answer is awaited")
        served.allow_steps(len("## Two ways"))
        page.until(lambda: page.answer() == "Two ways", "the first of the answer")
        assert page.find("#stop").is_displayed()
        served.allow_steps(None)
        page.until(page.is_idle, "the end")
        assert page.find(".markdown h3").text == "Two ways"
        assert page.find(".markdown strong").text == "hello"
        assert page.find(".code pre").text == 'print("<b>hello</b>")'
        assert page.find(".code-head span").text == "python"
        assert [cell.text for cell in page.find_all(".markdown td")] == ["1", "2"]
        assert page.find(".markdown ol ul li").text == "deeper"
        assert f"{len(ANSWER.encode()) + 1} tokens" in page.find(".figures").text
        assert "tokens/s" in page.find(".figures").text
        page.shoot("chat")
        assert page.complaints() == []


def test_reasoning_is_folded_and_calls_of_tools_are_shown(browser):
    formats = AnswerFormats(tools=ToolFormat.HERMES, reasoning=ReasoningFormat.QWEN3)
    with served_page("<think>two and two</think>Four.", info=CONTEXT, formats=formats) as served:
        page = PageDriver(browser, served.url)
        page.send("2 + 2?")
        page.until(page.is_idle, "the answer")
        assert page.answer() == "Four."
        thoughts = page.find(".thinking .text")
        assert not thoughts.is_displayed()
        page.find(".thinking summary").click()
        assert thoughts.text == "two and two"
        message = {"id": "m", "role": "assistant", "content": "", "calls": [{"name": "add", "text": '{"a": 2}'}]}
        entry = {"id": "c", "title": "c", "size": 1}
        for name, kept in (("pagewire.conversations", [entry]), ("pagewire.conversation.c", [message])):
            page.run(f"localStorage['{name}'] = {json.dumps(json.dumps(kept))}")
        browser.refresh()
        page.find(".conversation-name").click()
        assert page.find(".tool-call p").text == "Calls add"
        assert json.loads(page.find(".tool-call pre").text) == {"a": 2}


def test_stop_ends_the_answer_and_the_request(browser):
    with served_page("word " * 500, info=CONTEXT, num_steps=10) as served:
        page = PageDriver(browser, served.url)
        page.send("Go on")
        page.until(lambda: page.answer() == "word word", "the first words")
        page.find("#prompt").send_keys(ESCAPE)
        page.until(page.is_idle, "the stop")
        assert "stopped" in page.find(".figures").text
        assert "10 tokens" in page.find(".figures").text
        page.until(lambda: any(isinstance(each, AbortRequests) for each in served.core.received), "the abort")


def test_a_reload_keeps_conversations_which_can_be_renamed_and_deleted(browser):
    with served_page("Fine.") as served:
        page = PageDriver(browser, served.url)
        page.send("First question")
        page.until(page.is_idle, "the answer")
        page.find("#new-conversation").click()
        page.send("Second question")
        page.until(lambda: page.is_idle() and page.answer() == "Fine.", "the answer")
        browser.refresh()
        names = page.until(lambda: [each.text for each in page.find_all(".conversation-name")], "the conversations")
        assert names == ["Second question", "First question"]
        page.find_all(".conversation-name")[1].click()
        assert page.find(".message[data-role=user] .text").text == "First question"
        assert page.answer() == "Fine."
        page.run("document.querySelector('[aria-label=\"Rename First question\"]').click()")
        page.find(".conversation input").send_keys("Named", ENTER)
        page.until(lambda: page.find("#chat-title").text == "Named", "the name")
        page.run("window.confirm = () => true")
        page.run("document.querySelector('[aria-label^=\"Delete Second\"]').click()")
        browser.refresh()
        page.until(lambda: [each.text for each in page.find_all(".conversation-name")] == ["Named"], "one of them")


def test_what_is_deleted_while_it_is_answered_does_not_come_back(browser):
    with served_page("word " * 500, info=CONTEXT, num_steps=10) as served:
        page = PageDriver(browser, served.url)
        page.send("Go on")
        page.until(lambda: page.answer() == "word word", "the first words")
        page.run("window.confirm = () => true")
        page.run("document.querySelector('[aria-label^=\"Delete\"]').click()")
        page.until(lambda: any(isinstance(each, AbortRequests) for each in served.core.received), "the abort")
        page.send("And on")
        page.until(lambda: len(bodies(served)) == 2, "the next one")
        assert [each.text for each in page.find_all(".conversation-name")] == ["And on"]


def test_what_another_tab_writes_is_shown(browser):
    with served_page("Fine.") as served:
        page = PageDriver(browser, served.url)
        page.send("First")
        page.until(page.is_idle, "the answer")
        page.run(
            "const [name] = Object.keys(localStorage).filter((each) => each.startsWith('pagewire.conversation.'));"
            "const kept = JSON.parse(localStorage[name]);"
            "kept.push({ id: 'a', role: 'user', content: 'Second' }, { id: 'b', role: 'assistant', content: 'Too.' });"
            "localStorage[name] = JSON.stringify(kept);"
            "dispatchEvent(new StorageEvent('storage', { key: name }))"
        )
        assert page.answer() == "Too."
        page.send("Third")
        page.until(lambda: len(bodies(served)) == 2 and page.is_idle(), "the answer")
        assert [each.text for each in page.find_all(".message[data-role=user] .text")] == ["First", "Second", "Third"]


def test_a_conversation_too_long_to_be_kept_costs_no_other_its_place(browser):
    with served_page() as served:
        PageDriver(browser, served.url)
        script = (
            "const done = arguments[0]; import('/ui/store.js').then(({ saveConversation, listConversations }) => {"
            "const save = (id, length) => saveConversation({ id, title: id, messages: ['x'.repeat(length)] });"
            "save('old', 2_500_000); save('new', 1_000_000); save('newer', 1_000_000);"
            "let refusal = null; try { save('new', 4_000_000) } catch (error) { refusal = error.name }"
            "done([refusal, listConversations().map(({ id }) => id)]) })"
        )
        assert browser.execute_async_script(script) == ["RangeError", ["newer", "new"]]


def test_answers_are_made_again_and_questions_edited(browser):
    with served_page("Yes.") as served:
        page = PageDriver(browser, served.url)
        page.send("One")
        page.until(page.is_idle, "the answer")
        page.find("[aria-label='Answer again']").click()
        page.until(lambda: len(bodies(served)) == 2 and page.is_idle(), "the second answer")
        assert bodies(served)[0].inputs == bodies(served)[1].inputs
        page.run("document.querySelector('[aria-label=\"Edit this message\"]').click()")
        page.find(".edit textarea").send_keys(" more", ENTER)
        page.until(lambda: len(bodies(served)) == 3 and page.is_idle(), "the answer to what was edited")
        assert page.find(".message[data-role=user] .text").text == "One more"
        assert len(page.find_all(".message")) == 2


def test_settings_are_sent_and_kept(browser):
    with served_page("Yes.") as served:
        page = PageDriver(browser, served.url)
        page.find("#open-settings").click()
        page.find("#settings textarea").send_keys("Be brief.")
        for name, value in (("temperature", "0.5"), ("max_tokens", "32")):
            page.run(
                f"const slider = document.getElementById('set-{name}');"
                f"slider.value = {value}; slider.dispatchEvent(new Event('input'))"
            )
        page.find("#settings input[type=number]").send_keys("7")
        page.shoot("settings")
        page.find("[aria-label='Close the settings']").click()
        browser.refresh()
        page.send("Hi")
        page.until(page.is_idle, "the answer")
        (request,) = bodies(served)
        assert (request.task.sampling.temperature, request.task.sampling.seed, request.task.max_tokens) == (0.5, 7, 32)
        assert bytes(token for token in request.inputs.prompt_token_ids if token < 256).startswith(b"system: Be brief.")


def test_what_a_model_writes_can_not_run(browser):
    with served_page(ATTACK, info=CONTEXT) as served:
        page = PageDriver(browser, served.url)
        page.send("<img src=x onerror=window.hit=9>")
        page.until(page.is_idle, "the answer")
        browser.refresh()  # kept, and shown again
        page.until(lambda: page.find_all(".conversation-name"), "the conversations")
        page.find(".conversation-name").click()
        assert "<script>window.hit = 1</script>" in page.answer()
        assert page.run("return window.hit") is None
        assert page.find_all("#transcript script, #transcript img, #transcript iframe, #transcript [onerror]") == []
        links = [link.get_attribute("href") for link in page.find_all("#transcript a")]
        assert links == ["https://evil.example/a.png"], "a picture is a link: it is loaded by nobody unasked"
        page.run("const a = document.createElement('script'); a.text = 'window.hit = 10'; document.body.append(a)")
        assert page.run("return window.hit") is None, "the policy holds where the page would fail"


def test_a_wrong_key_is_said_and_the_right_one_is_kept_for_the_tab(browser):
    with served_page("Welcome.", config=ServerConfig(api_key=("secret",))) as served:
        page = PageDriver(browser, served.url)
        page.until(lambda: page.find("#access").is_displayed(), "the question for a key")
        assert not page.find("#access-message").is_displayed()
        page.find("#access-key").send_keys("wrong", ENTER)
        page.until(lambda: page.find("#access-message").is_displayed(), "the refusal")
        assert "refused" in page.find("#access-message").text
        page.shoot("wrong-key")
        page.find("#access-key").send_keys("ключ", ENTER)
        page.until(lambda: page.find("#access-message").is_displayed(), "the refusal of what no header can carry")
        page.find("#access-key").send_keys("secret", ENTER)
        page.until(lambda: page.find_all("#model option"), "the models")
        browser.refresh()
        page.until(lambda: page.find_all("#model option"), "the models")
        page.send("Hi")
        page.until(lambda: page.is_idle() and page.answer() == "Welcome.", "the answer")
        assert page.run("return JSON.stringify(localStorage)").find("secret") == -1
        assert "secret" not in browser.current_url


def test_who_gave_no_key_is_asked_again_when_one_is_needed(browser):
    with served_page("Welcome.", config=ServerConfig(api_key=("secret",))) as served:
        page = PageDriver(browser, served.url)
        page.until(lambda: page.find("#access").is_displayed(), "the question for a key")
        page.find("#access-cancel").click()
        page.until(lambda: page.run("return document.activeElement.id") == "prompt", "the focus")
        page.send("Hi")
        page.until(lambda: page.find("#access").is_displayed(), "the question for a key")
        page.find("#access-key").send_keys("secret", ENTER)
        page.until(lambda: page.is_idle() and page.answer() == "Welcome.", "the answer")
        page.until(lambda: page.find_all("#model option"), "the models")


def test_it_works_in_a_browser_that_keeps_nothing(browser):
    with served_page("Welcome.", config=ServerConfig(api_key=("secret",))) as served:
        page = PageDriver(browser, served.url)
        with page.without_storage():
            page.until(lambda: page.find("#access").is_displayed(), "the question for a key")
            page.find("#access-key").send_keys("secret", ENTER)
            page.until(lambda: page.find_all("#model option"), "the models")
            page.send("Hi")
            page.until(lambda: page.is_idle() and page.answer() == "Welcome.", "the answer")
            assert page.complaints() == []


def test_marks_without_an_end_do_not_hold_up_the_page(browser):
    with served_page() as served:
        page = PageDriver(browser, served.url)
        script = (
            "import('/ui/markdown.js').then((all) => (all.showMarkdown(document.body, arguments[0]), arguments[1]()))"
        )
        hard = (
            ("~" * 10_000 + "`", "`"),
            ("[a](b" + " " * 16_000 + "c", "[a](b c"),
            ("a" + "`" * 100_000 + "b", "a" + "`" * 100_000 + "b"),
            ("|" * 200_000 + "\n|-|", "|" * 200_000 + "\n|-|"),
            ("|a|b|\n|-|-|\n|1|", "a b\n1"),
        )
        for text, shown in hard:
            browser.execute_async_script(script, text)
            assert page.find("body").text == shown


def test_an_error_of_the_server_stands_where_the_answer_would(browser):
    with served_page("x", info={"max_model_len": 32}) as served:
        page = PageDriver(browser, served.url)
        page.send("word " * 20)
        page.until(lambda: page.find(".failure").is_displayed(), "the error")
        assert "maximum context length is 32 tokens" in page.find(".failure").text


@pytest.mark.parametrize("view", ["chat", "engine"])
def test_it_fits_a_narrow_window(browser, view):
    with served_page(ANSWER + "x" * 300, info=CONTEXT) as served:
        page = PageDriver(browser, served.url, width=360)
        page.send("How " + "very" * 40 + "?")
        page.until(page.is_idle, "the answer")
        if view == "engine":
            page.find(".chat .menu-button").click()
            page.find("#show-engine").click()
            page.until(lambda: page.find_all(".requests tbody tr"), "the requests")
        page.shoot(f"narrow-{view}")
        assert page.run("return document.documentElement.scrollWidth") == 360
        assert json.dumps(page.complaints()) == "[]"
