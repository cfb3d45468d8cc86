"""Small mutants of a C++ or Python source text. Pure functions: no files, no processes; the same text gives the same list.

A mutant of C++ comes in two forms: alone, and as a switch that MUTANT=number in the environment turns on. Many switches
fit into one text (`weave`), which is compiled once. What cannot be a switch, a constant expression say, is tried alone.
"""
import dataclasses
import hashlib
import random
import re

SKIPPED = {
    ".cpp": r"//[^\n]*|/\*.*?\*/|R\"([^(\s]*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|\b\d[\w']*"
            r"|'(?:\\.|[^'\\\n])*'|^[ \t]*#(?:\\\n|[^\n])*",
    ".py": r"#[^\n]*|\"\"\".*?\"\"\"|'''.*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
}
COMPARISON = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
SWAPS = {"&&": "||", "||": "&&", "and": "or", "or": "and", "+": "-", "-": "+", "*": "/", "/": "*",
         "%": "*", "+=": "-=", "-=": "+=", "true": "false", "false": "true", "True": "False",
         "False": "True", "std::min": "std::max", "std::max": "std::min"}
KEYWORDS = {"return", "if", "for", "while", "switch", "case", "default", "else", "using", "goto", "throw",
            "delete", "catch", "static_assert", "break", "continue", "co_return", "namespace", "public",
            "private", "protected", "import", "from", "raise", "assert", "def", "class", "with", "try"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    path: str
    operator: str
    begin: int  # offsets in the source text
    end: int
    text: str  # what stands there instead
    switch: tuple  # (begin, end, text) of the second form; its text asks @on@
    line: int
    before: str
    after: str

    @property
    def id(self):
        digest = hashlib.sha256(f"{self.before}|{self.after}".encode()).hexdigest()[:6]
        return f"{self.path}:{self.line}:{self.operator}:{digest}"

    def apply(self, source):
        return source[:self.begin] + self.text + source[self.end:]

    def overlaps(self, other):
        return self.switch[0] < other.switch[1] and other.switch[0] < self.switch[1] or self.line == other.line


def blank(source, suffix):
    """The text with comments, strings and preprocessor lines as spaces; every offset stays."""
    def erase(match):
        if match.group(0)[0].isdigit():
            return match.group(0)
        return re.sub(r"[^\n]", " ", match.group(0))

    return re.sub(SKIPPED[suffix], erase, source, flags=re.DOTALL | re.MULTILINE)


def closing(code, opening):
    """Offset of the bracket that closes the one at `opening`; -1 without one."""
    depth = 0
    for i in range(opening, len(code)):
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
    return -1


def split_arguments(text):
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append((start, i))
            start = i + 1
    return [*parts, (start, len(text))]


def operand(code, at, step):
    """Where the operand of && or || that begins or ends at `at` ends: the enclosing bracket, or what binds less."""
    depth, opening, ending = 0, *(("([{", ")]}") if step > 0 else (")]}", "([{"))
    while 0 <= at < len(code):
        c = code[at]
        depth += (c in opening) - (c in ending)
        if depth < 0 or depth == 0 and (c in ";," or c == "?" or
                                        c == ":" and ":" not in (code[at - 1], code[at + 1]) or
                                        c == "=" and not re.search(r"[=!<>]", code[at - 1] + code[at + 1])):
            break
        if depth == 0 and re.match(r"\breturn\b" if step < 0 else r"\bNOTHING\b", code[at:at + 7]):
            return at + 6
        at += step
    return at if step > 0 else at + 1


def tokens(code):
    """What one token more or less changes."""
    for m in re.finditer(r"(?<=\s)(<=|>=|==|!=|<|>)(?=\s)", code):
        yield "comparison", *m.span(), COMPARISON[m.group(1)], (*m.span(), f"{m.group(1)} @switch@ {m.group(1)}")
    for m in re.finditer(r"(?<=\s)(&&|\|\||\band\b|\bor\b)(?=\s)", code):
        begin, end = operand(code, m.start() - 1, -1), operand(code, m.end(), 1)
        left, right, other = code[begin:m.start()], code[m.end():end], SWAPS[m.group(1)]
        yield "logic", *m.span(), other, (begin, end, None if "\n" in left + right else
                                          f" (@on@ ? ({left} {other} {right}) : ({left} {m.group(1)} {right}))")
    for m in re.finditer(r"(?<=[\w)\]] )([+\-*/%])(?= [\w(])", code):
        yield "arithmetic", *m.span(), SWAPS[m.group(1)], (*m.span(), f"{m.group(1)} @switch@ {m.group(1)}")
    for m in re.finditer(r"(?<=[;{})\n])([ \n]*)([\w.>\[\]()*:\-]+) (\+=|-=) ([^;{}\n]+);", code):
        left, sign, right = m.group(2, 3, 4)
        yield "arithmetic", *m.span(3), SWAPS[sign], (
            m.start(2), m.end(4), f"do {{ if (@on@) {left} {SWAPS[sign]} {right}; else {left} {sign} {right}; }} while (0)")
    for m in re.finditer(r"\bstd::(min|max)(?=[(<])", code):
        opening = code.find("(", m.end())
        rest = code[m.end():closing(code, opening) + 1]
        yield "arithmetic", *m.span(), SWAPS[m.group(0)], (
            m.start(), m.end() + len(rest),
            None if "\n" in rest else f"(@on@ ? {SWAPS[m.group(0)]}{rest} : {m.group(0)}{rest})")
    for m in re.finditer(r"(?<![\w.'])(0|[1-9]\d*)(u|U|ull|ULL|UL|LL|_[A-Za-z]iB)?\b(?![.'])", code):
        one, suffix = m.group(1), m.group(2) or ""
        other = str(int(one) + 1)
        yield "constant", *m.span(1), other, (*m.span(), f"(@on@ ? {other}{suffix} : {one}{suffix})")
    for m in re.finditer(r"\b(true|false|True|False)\b", code):
        other = SWAPS[m.group(1)]
        yield "constant", *m.span(), other, (*m.span(), f"(@on@ ? {other} : {m.group(1)})")


def conditions(code, suffix):
    if suffix == ".py":
        for m in re.finditer(r"^[ ]*(?:if|elif) ([^\n]+):[ ]*$", code, re.MULTILINE):
            if ":=" not in m.group(1):
                yield "negation", *m.span(1), "not (\0)", (*m.span(1), None)
        return
    for m in re.finditer(r"\bif \(", code):
        end = closing(code, m.end() - 1)
        inner = code[m.end():end]
        begin = m.end() + inner.rfind(";") + 1
        if end > 0 and not re.search(r"[^=!<>]=[^=]|\{", code[begin:end]):
            yield "negation", begin, end, " !(\0)", (begin, end, " (@on@ != static_cast<bool>(\0))")


def statements(code, suffix):
    """Whole statements that call or assign, without declarations."""
    call = r"(?:\(void\))?[A-Za-z_](?:[\w.:\[\]]|->|\((?:[^;{}]*?)\))*\)"
    assign = r"[A-Za-z_*](?:[\w.:]|->|\[[^\]\n]*\]|\(\))*\s(?:=|\+=|-=|\|=|&=)\s[^;{}]+"
    step = r"(?:\+\+|--)[\w.>\-]+"
    if suffix == ".py":
        for m in re.finditer(r"^([ ]+)([A-Za-z_][\w.]*(?:\([^\n]*\)|\[[^\]\n]*\]| [+\-]?= [^\n]+))[ ]*$", code,
                             re.MULTILINE):
            if m.group(2).split("(")[0].split(".")[0] not in KEYWORDS and closing_balanced(m.group(2)):
                yield "statement", *m.span(2), "pass", (*m.span(2), None)
        return
    for m in re.finditer(rf"(?<=[;{{}}:)])(\s*)({call}|{assign}|{step});", code):
        line_start = code.rfind("\n", 0, m.start(2)) + 1
        first = re.match(r"[A-Za-z_]*", m.group(2).removeprefix("(void)")).group(0)
        before = code[line_start:m.start(2)].strip()
        if first in KEYWORDS or not closing_balanced(m.group(2)):
            continue
        if "\n" not in m.group(1) and not re.search(r"(^|\s)(if|else|for)\b", before):
            continue  # a part of something else
        if m.group(2).count("\n") < 6:
            yield "statement", *m.span(2), re.sub(r"[^\n]", " ", m.group(2)), (
                *m.span(2), "do { if (!@on@) { \0; } } while (0)")
    for m in re.finditer(r"(?<=\s)(continue|break)(?=;)", code):
        yield "jump", *m.span(), " " * len(m.group(1)), (*m.span(), f"if (!@on@) {m.group(1)}")


def closing_balanced(text):
    return all(text.count(a) == text.count(b) for a, b in ("()", "[]", "{}"))


def calls(code):
    simple = re.compile(r"\s*[A-Za-z_&*][\w.:\[\]]*(?:->\w+)*\s*$")
    for m in re.finditer(r"(?<=[\w>])(?<!std::max)(?<!std::min)(?<!swap)\((?=[^()\n]*,)", code):
        end = closing(code, m.start())
        if end < 0:
            continue
        inner = code[m.end():end]
        parts = split_arguments(inner)
        texts = [inner[a:b] for a, b in parts]
        for i in range(len(parts) - 1):
            one, two = texts[i], texts[i + 1]
            if simple.match(one) and simple.match(two) and one.strip() != two.strip():
                begin, last = m.end() + parts[i][0], m.end() + parts[i + 1][1]
                lead, one, two = one[:len(one) - len(one.lstrip())], one.strip(), two.strip()
                yield "arguments", begin, last, f"{lead}{two}, {one}", (
                    begin, last, f"{lead}@on@ ? {two} : {one}, @on@ ? {one} : {two}")
                break


def functions(code):
    """An early return at the start of a function's body."""
    for m in re.finditer(r"\)(?: const| noexcept| override| final)* \{\n", code):
        depth, i = 0, m.start()
        while i >= 0:
            depth += (code[i] == ")") - (code[i] == "(")
            if depth == 0:
                break
            i -= 1
        head = code[max(code.rfind("\n\n", 0, i), code.rfind(";", 0, i), code.rfind("}", 0, i),
                        code.rfind(":\n", 0, i), code.rfind("{", 0, i)) + 1:i].strip()
        name = re.search(r"([\w:~]+)$", head)
        if not name or name.group(1) in KEYWORDS or not re.search(r"[\w>*] [\w:]+$", head) or "Result<" in head:
            continue  # a statement, a lambda, a constructor; what has no empty value
        value = "" if re.search(r"(^|\s)void [\w:]+$", head) else " {}"
        at = m.end() - 1
        yield "return", at, at, f" return{value};", (at, at, f" if (@on@) return{value};")


def make(path, source):
    """Every mutant of a source text, in the order of the text."""
    suffix = ".py" if path.endswith(".py") else ".cpp"
    code = blank(source, suffix)
    found = [*tokens(code), *conditions(code, suffix), *statements(code, suffix), *calls(code)]
    if suffix == ".cpp":
        found += functions(code)
    mutants = []
    for operator, begin, end, text, switch in sorted(found, key=lambda f: f[:4]):
        # The generators saw blanked text: what stands there is taken from the source.
        text = text.replace("\0", source[begin:end].strip())
        first, last = source.rfind("\n", 0, begin) + 1, source.find("\n", max(end, begin))
        if code[switch[0]:switch[1]] != source[switch[0]:switch[1]] and switch[2] and "\0" not in switch[2]:
            switch = (*switch[:2], None)  # a string lies within
        if switch[2]:
            switch = (*switch[:2], switch[2].replace("\0", source[switch[0]:switch[1]]))
        line = source.count("\n", 0, begin) + 1
        shown = " ".join(source[first:last].split())
        changed = " ".join((source[first:begin] + text + source[end:last]).split())
        if re.match(r"\s*(template|using|static_assert|#include)", code[first:last]) or shown == changed:
            continue
        mutants.append(Mutant(path, operator, begin, end, text, switch, line, shown, changed))
    return mutants


def sample(mutants, count, seed):
    """`count` of them, operators in turn, one a line; the same for the same seed."""
    if not mutants:
        return []
    draw = random.Random(f"{seed}:{mutants[0].path}")
    groups = {}
    for mutant in mutants:
        groups.setdefault(mutant.operator, []).append(mutant)
    for group in groups.values():
        draw.shuffle(group)
    order = sorted(groups)
    draw.shuffle(order)
    chosen = []
    while len(chosen) < count and any(groups.values()):
        for operator in order:
            while groups[operator]:
                mutant = groups[operator].pop()
                if not any(mutant.overlaps(other) for other in chosen):
                    chosen.append(mutant)
                    break
    return sorted(chosen[:count], key=lambda m: (m.line, m.begin))


# `a < @switch@ < b` is a half of a comparison, and then the whole one: both bind as the operator did.
PRELUDE = """#ifndef NEAP_MUTATION
#define NEAP_MUTATION
#include <cstdlib>
namespace mutation {
inline bool on(int number) {
  static const int chosen = [] { const char* s = std::getenv("MUTANT"); return s ? std::atoi(s) : 0; }();
  return chosen == number;
}
struct Switch { bool on; };
template <class A> struct Half { const A& a; bool on; };
""" + "".join(f"""template <class A> Half<A> operator{one}(const A& a, Switch s) {{ return {{a, s.on}}; }}
template <class A, class B> auto operator{one}(Half<A> h, const B& b) {{ return h.on ? h.a {two} b : h.a {one} b; }}
""" for one, two in [*COMPARISON.items(), *((k, SWAPS[k]) for k in "+-*/%")]) + "}\n#endif\n"


def weave(source, path, numbered):
    """The source with the switches of (number, mutant) pairs; MUTANT=number turns one on, numbers from 1."""
    for number, mutant in sorted(numbered, key=lambda pair: -pair[1].switch[0]):
        begin, end, text = mutant.switch
        on = f"mutation::on({number})"
        text = text.replace("@switch@", "mutation::Switch{@on@}").replace("@on@", on)
        source = source[:begin] + text + source[end:]
    return f'{PRELUDE}#line 1 "{path}"\n{source}'
