#!/usr/bin/env python3
"""Writes goldens.json: TZ=UTC make_goldens.py goldens.json (needs `transformers` and `jinja2`, PyPI).

Renders each of templates/*.jinja with each conversation as transformers' apply_chat_template does.
"""
import datetime
import json
import pathlib
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils

UNIX_TIME = 1734567890  # 2024-12-19 00:24:50 UTC
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city <now> & later", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Größe"}, "days": {"type": "integer"},
                                         "kind": {"type": ["string", "number"], "enum": ["a", "b"]}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "list_all", "description": "Lists", "parameters": {
        "type": "object", "properties": {"what": {"type": "array", "items": {"type": "number"}}}}}}]


def message(role: str, content, **more) -> dict:
    return {"role": role, "content": content, **more}


def call(name: str, arguments, id_: str) -> dict:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = [call("get_weather", {"city": "Köln", "days": 2, "exact": 1.0}, "abcdef123")]
CONVERSATIONS = {
    "one": {"messages": [message("user", "Hello, wörld! 日本 😀")], "prompt": True},
    "turns": {"messages": [message("user", " first "), message("assistant", "answer\n"), message("user", "2 < 3 & 'so'")], "prompt": True},
    "answered": {"messages": [message("system", "Be brief."), message("user", "Why?"), message("assistant", "Because é.")], "prompt": False},
    "thinking": {"messages": [message("system", "Think. /no_think"), message("user", "1+1?"),
                              message("assistant", "<think>\none\n</think>\n\n2"), message("user", "3?"),
                              message("assistant", "yes", reasoning_content="hm\n")], "prompt": True, "more": {"enable_thinking": False}},
    "tools": {"messages": [message("user", "Weather?"), message("assistant", "Let me see.", tool_calls=CALLS),
                           message("tool", "sunny", tool_call_id="abcdef123", name="get_weather"),
                           message("assistant", "Sunny."), message("user", "Thanks")], "prompt": True, "tools": TOOLS},
    "null_content": {"messages": [message("system", "S"), message("user", "Weather?"), message("assistant", None, tool_calls=CALLS),
                                  message("tool", "rain", tool_call_id="abcdef123"), message("tool", "wind", tool_call_id="abcdef123")],
                     "prompt": True, "tools": TOOLS},
    "blocks": {"messages": [message("user", [{"type": "text", "text": " look "}, {"type": "image"}, {"type": "text", "text": "at it"}])],
               "prompt": True},
    "documents": {"messages": [message("user", "Read."), message("assistant", "Done."), message("user", "And?")], "prompt": True, "tools": TOOLS,
                  "documents": [{"title": "One", "text": "first text"}, {"title": "Two", "text": "second"}],
                  "more": {"controls": {"length": "long"}, "date_string": "1 Jan 2020", "name": "Ann"}},
    "empty": {"messages": [], "prompt": True},
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(UNIX_TIME)


def render(template: str, case: dict) -> dict:
    more = {**TOKENS, **case.get("more", {})}
    try:
        texts, ranges = chat_template_utils.render_jinja_template(
            conversations=[case["messages"]], tools=case.get("tools"), documents=case.get("documents"), chat_template=template,
            return_assistant_tokens_mask="generation %}" in template, add_generation_prompt=case["prompt"], **more)
    except (jinja2.TemplateError, TypeError, ValueError, OverflowError, ZeroDivisionError, KeyError) as error:
        return {"error": str(error)}
    text = texts[0]
    in_bytes = [[len(text[:a].encode()), len(text[:b].encode())] for a, b in (ranges[0] if ranges else [])]
    return {"text": text, **({"generated": in_bytes} if in_bytes else {})}


def main() -> None:
    chat_template_utils.datetime = FixedTime
    folder = pathlib.Path(__file__).parent / "templates"
    out = {"made_by": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}", "unix_time": UNIX_TIME, "tokens": TOKENS,
           "conversations": CONVERSATIONS, "rendered": {}}
    for path in sorted(folder.glob("*.jinja")):
        template = path.read_bytes().decode()
        out["rendered"][path.stem] = {name: render(template, case) for name, case in CONVERSATIONS.items()}
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
