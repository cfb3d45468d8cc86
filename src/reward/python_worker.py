"""Scores responses with a function of the user's: arguments FILE FUNCTION ON_FAILURE.

Reads requests from stdin and answers on stdout, as every reward program does (service.h). The first line that it writes is
{"ready": true} or {"error": TEXT}. Both descriptors are moved before the user's file is imported. Output to stdout from that
file, a library or a program that it starts then goes to stderr.
"""
import asyncio
import importlib.machinery
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback

# Arguments with which verl's trainers call a function. TRL's functions also get the row's fields.
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
VERL_BATCH = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
TRL = ("prompts", "completions")
NOT_GIVEN = ("prompt_ids", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
SIGNATURES = ("compute_score(data_source, solution_str, ground_truth, extra_info), its batched form compute_score(data_sources, "
              "solution_strs, ground_truths, extra_infos), or f(completions, prompts, **columns)")


# Errors of the code or the data, which the function would raise again for the same arguments.
# Libraries derive network errors from some of these classes, so only Python's own classes count.
MISTAKES = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, NotImplementedError, RecursionError,
            SyntaxError, TypeError, ValueError)


class Failure(Exception):
    """An error of the user's function. `item` is the response's place in the request; `retry` says whether another call may succeed."""

    def __init__(self, text, item=None, retry=False):
        super().__init__(text)
        self.item, self.retry = item, retry

    def reply(self):
        place = {} if self.item is None else {"item": self.item}
        return {"error": str(self), "retry": self.retry, **place}


def private_descriptors():
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)
    return requests, replies


def describe(error, path):
    """"judge.py:12 in compute_score, float(text): ValueError: ...", for the innermost line of the user's file, else of any file."""
    traceback.print_exception(type(error), error, error.__traceback__)
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {name}: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != "<string>"]
    frames = [f for f in frames if f.filename == path] or frames
    text = " ".join(str(error).split())[:500]
    if not frames:
        return f"{name}: {text}"
    at = frames[-1]
    return f"{at.filename}:{at.lineno} in {at.name}, {(at.line or '')[:100]}: {name}: {text}"


def import_file(path):
    """Imports the module in `path`, under the name that other files of its folder use for it, if that name is free."""
    sys.path.append(os.path.dirname(path))  # last, so that files next to it are found but hide no
                                            # other module
    name = os.path.splitext(os.path.basename(path))[0]
    try:
        found = importlib.util.find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        found = None
    if found is None or not found.origin or not os.path.exists(found.origin) or not os.path.samefile(found.origin, path):
        name = "neap_reward_file"
    loader = importlib.machinery.SourceFileLoader(name, path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def takes(parameters, name):
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


class Function:
    def __init__(self, path, name, on_failure):
        self.path, self.name, self.stops = path, name, on_failure == "stop"
        if not os.path.isfile(path):
            raise Failure(f"{path} is not a file")
        try:
            module = import_file(path)
        except BaseException as error:
            raise Failure(describe(error, path)) from error
        self.call = getattr(module, name, None)
        if not callable(self.call):
            own = sorted(k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__)
            raise Failure(f"{path} has no function \"{name}\"; it has {', '.join(own) or 'none'}. Name one as the function's function")
        self.parameters = inspect.signature(self.call).parameters
        self.is_async = inspect.iscoroutinefunction(self.call) or inspect.iscoroutinefunction(getattr(self.call, "__call__", None))
        known = {"solution_strs": VERL_BATCH, "solution_str": VERL, "completions": TRL}
        self.style = next((style for key, style in known.items() if key in self.parameters), None)
        place = f"{name} in {path}"
        if self.style is None:
            raise Failure(f"{place} has the parameters ({', '.join(self.parameters)}); it can be {SIGNATURES}")
        for key, parameter in self.parameters.items():
            free = parameter.default is not parameter.empty or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            missing = key in NOT_GIVEN if self.style is TRL else key not in self.style
            if missing and not free:
                raise Failure(f"{place} wants \"{key}\", which is not given; it can be {SIGNATURES}")

    def one(self, item):
        """The arguments of verl for one response."""
        row = item["row"]
        values = (row.get("data_source"), item["response"], item["ground_truth"], row.get("extra_info") or {})
        return {key: value for key, value in zip(VERL, values) if takes(self.parameters, key)}

    def many(self, items):
        if self.style is VERL_BATCH:
            ones = [(i["row"].get("data_source"), i["response"], i["ground_truth"], i["row"].get("extra_info") or {}) for i in items]
            values = dict(zip(VERL_BATCH, map(list, zip(*ones))))
        else:
            chats = [isinstance(i["prompt"], list) for i in items]
            values = {key: [i["row"].get(key) for i in items] for i in items for key in i["row"] if key not in ("prompt", "completion")}
            values["prompts"] = [i["prompt"] for i in items]
            values["completions"] = [[{"role": "assistant", "content": i["response"]}] if chat else i["response"] for i, chat in zip(items, chats)]
        return {key: value for key, value in values.items() if takes(self.parameters, key)}

    def failure(self, error, place):
        """A failure for one response. If failures end the run, the first one ends the request."""
        mistake = isinstance(error, MISTAKES) and type(error).__module__ == "builtins"
        out = Failure(describe(error, self.path), place, retry=not mistake)
        if self.stops:
            raise out from error
        return out

    def results(self, items, first=0):
        """The function's results for `items`, or a Failure. `first`: place of the first item in the request."""
        if self.style is VERL:
            return self.results_one_by_one(items)
        try:
            found = self.call(**self.many(items))
            found = list(asyncio.run(found) if inspect.isawaitable(found) else found)
        except BaseException as error:
            if len(items) == 1:
                return [self.failure(error, first)]
            half = len(items) // 2  # find the failing item by halving
            return self.results(items[:half], first) + self.results(items[half:], first + half)
        if len(found) != len(items):
            raise Failure(f"{self.name} in {self.path} gave {len(found)} scores for {len(items)} responses")
        return found

    def results_one_by_one(self, items):
        if self.is_async:
            async def all_at_once():
                return await asyncio.gather(*(self.call(**self.one(item)) for item in items), return_exceptions=True)
            found = asyncio.run(all_at_once())
            return [self.failure(each, place) if isinstance(each, BaseException) else each for place, each in enumerate(found)]
        found = []
        for place, item in enumerate(items):
            try:
                found.append(self.call(**self.one(item)))
            except BaseException as error:
                found.append(self.failure(error, place))
        return found

    def scores(self, items):
        return [self.score_or_failure(value, place) for place, value in enumerate(self.results(items))]

    def score_or_failure(self, value, place):
        try:
            if isinstance(value, Failure):
                raise value
            return self.score(value, place)
        except Failure as failure:
            if self.stops:
                raise
            return failure.reply()

    def score(self, value, place):
        if value is None and self.style is TRL:
            return None  # no score for this response
        if not isinstance(value, dict):
            return self.number(value, place)
        if "score" not in value:
            raise Failure(f"{self.name} in {self.path} gave a dict without \"score\": {repr(value)[:200]}", place)
        out = {str(key): plain(each) for key, each in value.items()}
        out["score"] = self.number(value["score"], place)
        return out

    def number(self, value, place):
        out = plain(value)
        if isinstance(out, bool):
            return float(out)
        if isinstance(out, (int, float)) and math.isfinite(out):
            return float(out)
        raise Failure(f"{self.name} in {self.path} gave {repr(value)[:200]}; a finite number or a dict with \"score\" is wanted", place)


def plain(value):
    """A number, bool or text for JSON. Other values become their text."""
    if hasattr(value, "item") and getattr(value, "size", 1) == 1 or hasattr(value, "numel"):
        try:
            value = value.item()  # a NumPy or torch scalar
        except (TypeError, ValueError, RuntimeError):
            return repr(value)[:200]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return repr(value)[:200]


def main():
    requests, replies = private_descriptors()

    def answer(reply):
        replies.write(json.dumps(reply, allow_nan=False).encode() + b"\n")
        replies.flush()

    try:
        function = Function(*sys.argv[1:4])
    except Failure as failure:
        answer({"error": str(failure)})
        return
    answer({"ready": True})
    for line in requests:
        try:
            answer({"scores": function.scores(json.loads(line)["items"])})
        except Failure as failure:
            answer(failure.reply())


main()
