"""Makes docs/messages.md: every message of the product, found in its syntax tree.

.venv/bin/python tests/support/messages.py

A message is what an exception meant for people is made with, or what is given to ``complain``, ``note`` or ``tell``.
What stands only inside another message (`PARTS`) is told apart from whole ones.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, reduce

from message_groups import ANY, GROUPS, PARTS, RETURNED, SILENT
from rendering import ROOT, Function, Module, Scope, choices, read_product, render, spaced

PAGE = ROOT / "docs" / "messages.md"
HEAD = """# Messages

Made from the code by `python tests/support/messages.py`; a test keeps it complete. Every way in which a command can end
badly, and what it says on the way.

A command that cannot do its work prints one paragraph, beginning with `elf:`, on standard error, and ends with one of
these codes: 1, something failed; 2, the request itself is wrong; 130, interrupted; 143, terminated. `--debug` adds the
traceback. What is wrong with options and arguments of the command line is said by its library in words of its own, with
a usage line and code 2.

`{name}` stands for a value, `[a | b]` for one of several wordings, and `[a]` for words that are not always there.

"""
ENDINGS = {"Failed": 1, "CacheError": 1, "Misconfigured": 2, "Interrupted": 143}
"""Exit codes of the classes whose text the command line prints; their subclasses end alike."""
BUILTIN = ("ValueError", "TypeError", "IndexError", "RuntimeError", "ImportError", "OSError", "error")
"""Classes of Python's, and struct.error: parts of messages, or refusals to a program that uses the pieces."""
SAYING = ("complain", "note", "tell", "_tell", "append", "warning")
"""Functions and methods that show their argument and go on."""
TITLES: dict[int | str | None, str] = {
    1: "Exit code 1: something failed",
    2: "Exit code 2: the request is wrong",
    130: "Exit code 130: interrupted",
    143: "Exit code 143: terminated",
    None: "On the way; the command goes on",
    "raised": "As an exception, to a program that uses the pieces",
}
VALUES = re.compile(r"(?:\{[^{}]*\})+")
Calls = dict[str, list[tuple[Module, Function | None, ast.Call]]]


@dataclass(frozen=True)
class Message:
    """What a user may read. ``exit``: the code the command ends with, None if it goes on or the text is a part."""

    file: str
    line: int
    function: str
    kind: str
    exit: int | None
    text: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.function}"

    @property
    def ending(self) -> int | str | None:
        """The exit code, None where the command goes on, ``raised`` where it is an exception of Python's own."""
        return "raised" if self.kind in BUILTIN else self.exit

    @property
    def frame(self) -> str | None:
        """The message around it, if it is a part: of a file of parts, what ends with a full stop stands alone."""
        for place in (self.place, f"{self.file}:{ANY}"):
            if place in PARTS and self.kind != "note" and not self.text.endswith("."):
                return PARTS[place]
        return None

    @property
    def group(self) -> str:
        """Where a user meets it. Raises KeyError for a file that no group names."""
        for place in (self.place, self.file):
            for title, files in GROUPS.items():
                if place in files:
                    return title
        raise KeyError(self.file)


@cache
def find_messages() -> tuple[Message, ...]:
    """Every message, in the order of files and lines; those that were written elsewhere are not in it."""
    return tuple(each for each in find_everything() if not VALUES.fullmatch(each.text))


def find_passed_on() -> set[str]:
    """Places where the words of another message are handed on whole."""
    return {each.place for each in find_everything() if VALUES.fullmatch(each.text) and each.kind != "note"}


@cache
def find_everything() -> tuple[Message, ...]:
    product = read_product()
    codes, calls = kinds(product), calls_in(product)
    found: dict[tuple[str, str, str], Message] = {}
    for module in product.values():
        for function, call, kind, code in spoken(module, codes):
            owner = function.name if function is not None else ANY
            for text in texts(call, Scope(product, module, function), calls):
                if kind == "note" and " " not in text:
                    continue
                message = Message(module.name, call.lineno, owner, kind, code, " ".join(text.split()))
                found.setdefault((module.name, kind, message.text), message)
    return tuple(sorted(found.values(), key=lambda each: (each.file, each.line, each.text)))


def find_unlisted() -> dict[str, str]:
    """Place → what is raised there, of every ``raise`` whose words are in no list, unless it has none (`SILENT`)."""
    product = read_product()
    codes = kinds(product)
    found: dict[str, str] = {}
    for module in product.values():
        for function, node in module.nodes:
            if not isinstance(node, ast.Raise) or node.exc is None:
                continue
            made = node.exc if isinstance(node.exc, ast.Call) else ast.Call(node.exc, [], [])
            listed = called_name(made) == "_end" or (called_name(made) in codes and bool(made.args))
            inner = Scope(product, module, function).called(made)
            if inner is not None and inner.function is not None:
                listed |= any(
                    called_name(each) in codes
                    for each in ast.walk(inner.function)
                    if isinstance(each, ast.Call)
                )
            if not listed and called_name(made) not in SILENT:
                found[f"{module.name}:{function.name if function else ANY}"] = ast.unparse(node.exc)
    return found


def kinds(product: dict[str, Module]) -> dict[str, int | None]:
    """Exception class → exit code: those of ENDINGS, all that derive from them, and those that only make parts."""
    bases = {
        node.name: [getattr(base, "id", "") for base in node.bases]
        for module in product.values()
        for _, node in module.nodes
        if isinstance(node, ast.ClassDef)
    }
    known: dict[str, int | None] = {
        **ENDINGS,
        **dict.fromkeys(BUILTIN),
        "Unusable": None,
        "_Unusable": None,
        "Untold": None,
    }
    for _ in range(3):
        known |= {each: known[base] for each, above in bases.items() for base in above if base in known}
    return known


def calls_in(product: dict[str, Module]) -> Calls:
    """Every call, by the name of what is called."""
    found: Calls = {}
    for module in product.values():
        for function, node in module.nodes:
            if isinstance(node, ast.Call):
                found.setdefault(called_name(node), []).append((module, function, node))
    return found


def spoken(
    module: Module, codes: dict[str, int | None]
) -> Iterator[tuple[Function | None, ast.Call | ast.expr, str, int | None]]:
    """Calls that make or show a message (or the message, where it is returned), with the function around them."""
    for function, node in module.nodes:
        place = f"{module.name}:{function.name if function is not None else ANY}"
        if isinstance(node, ast.Return) and place in RETURNED and not isinstance(node.value, ast.Constant):
            assert node.value is not None
            yield function, node.value, "returned", RETURNED[place]
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = called_name(node)
        if called == "_end" and module.name == "flows/failing.py":
            yield function, node, called, number_in(node.args[0], module)
        elif called in codes and called not in module.plain_classes:
            yield function, node, called, codes[called]
        elif called == "__init__" and place in PARTS:
            yield function, node, called, None
        elif said(node, called) and place != "flows/failing.py:_end":
            yield function, node, "note", None


def said(call: ast.Call, called: str) -> bool:
    """Whether a call shows its argument: ``complain``, ``note``, ``tell``, a yellow print, what ``warnings`` get."""
    if called == "print":
        styles = [
            each.value.value
            for each in call.keywords
            if each.arg == "style" and isinstance(each.value, ast.Constant)
        ]
        return styles == ["yellow"]
    owner = getattr(getattr(call.func, "value", None), "id", "")
    if called == "append":
        return owner == "warnings"
    return called in SAYING and (called != "_tell" or owner == "self")


def number_in(node: ast.expr, module: Module) -> int | None:
    known = module.constants.get(node.id) if isinstance(node, ast.Name) else node
    return known.value if isinstance(known, ast.Constant) and isinstance(known.value, int) else None


def called_name(call: ast.Call) -> str:
    """``f`` of ``f(…)`` and of ``thing.f(…)``; of a choice between two classes the second, which is the usual one."""
    match call.func:
        case ast.Name(id=known) | ast.Attribute(attr=known) | ast.IfExp(orelse=ast.Name(id=known)):
            return known
        case _:
            return ""


def texts(call: ast.Call | ast.expr, scope: Scope, calls: Calls) -> list[str]:
    """What a call says; where words come in as a parameter, what each caller of the function gives for it."""
    argument = argument_of(call)
    given: list[dict[str, str]] = []
    if scope.function is not None and parameters(scope.function) & names_in(argument):
        given = words_given(scope, calls)
    found = [
        text
        for each in given or [{}]
        for text in choices(render(argument, Scope(scope.product, scope.module, scope.function, each)))
    ]
    return list(dict.fromkeys(found))


def words_given(scope: Scope, calls: Calls) -> list[dict[str, str]]:
    """Of each call of the function, the parameters that are given more than a word; each once."""
    assert scope.function is not None
    found: list[dict[str, str]] = []
    for module, around, node in calls.get(scope.function.name, ()):
        inner = Scope(scope.product, module, around).called(node)
        if inner is not None and inner.function is scope.function and around is not scope.function:
            found.append({each: text for each, text in inner.given.items() if spaced(text)})
    return [each for index, each in enumerate(found) if each not in found[:index]]


def argument_of(call: ast.Call | ast.expr) -> ast.expr:
    """The text: the arguments that are written out, else the first; of ``_end`` the one after the code."""
    if not isinstance(call, ast.Call):
        return call
    if called_name(call) == "_end":
        return call.args[1]
    written = [
        each for each in call.args if isinstance(each, ast.JoinedStr | ast.Constant | ast.BinOp | ast.IfExp)
    ]
    strings = [each for each in written if not isinstance(each, ast.Constant) or isinstance(each.value, str)]
    parts: list[ast.expr] = [*strings] or call.args[:1]
    return reduce(lambda left, right: ast.BinOp(left, ast.Add(), right), parts)


def parameters(function: Function) -> set[str]:
    return {each.arg for each in (*function.args.args, *function.args.kwonlyargs)} - {"self"}


def names_in(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def make_page() -> str:
    """The whole page."""
    return HEAD + "\n".join(line for title in GROUPS for line in section(title)).rstrip() + "\n"


def section(title: str) -> Iterator[str]:
    """The messages of a group by their exit codes, then the parts by the message they stand in."""
    own = [each for each in find_messages() if each.group == title]
    yield f"## {title}\n"
    for ending, heading in TITLES.items():
        whole = [each.text for each in own if each.ending == ending and each.frame is None]
        if whole:
            yield f"### {heading}\n"
            yield from (f"* {escaped(text)}" for text in dict.fromkeys(whole))
            yield ""
    for frame in dict.fromkeys(each.frame for each in own if each.frame is not None):
        yield f"### Within “{frame}”\n"
        yield from (f"* {escaped(each.text)}" for each in own if each.frame == frame)
        yield ""


def escaped(text: str) -> str:
    """Markdown that shows the text as it is, but for code in backticks."""
    pieces = text.split("`")
    for index in range(0, len(pieces), 2):
        for sign in "\\*_[]<|":
            pieces[index] = pieces[index].replace(sign, f"\\{sign}")
    return "`".join(pieces)


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
