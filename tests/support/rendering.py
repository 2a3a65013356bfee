"""A message as it stands in the code, with a name in braces wherever a value will stand.

``[one | other]`` is one of several endings, ``[words]`` something that stands there in some cases only.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

from message_groups import RETURNED

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("cache", "pipeline", "stages", "flows", "configs")
DEEPEST = 5
"""Names and calls that are followed into one another."""
SHOWN_BY_NAME = ("pipeline/wording.py", "cache/redaction.py", "flows/service_address.py", "stages/pace.py")
"""Functions of these make a value readable: the value is named, not what they do with it."""
_PLAIN = re.compile("str|repr|int|sorted|tuple|list|max|min|next|iter|map|set|dict")
_FORMS = re.compile("short|redact|bytes_text|count_text|seconds_text|amount_text|about|unquote|flops_text")
_KEPT = re.compile(
    "absolute|strip|rstrip|lower|resolve|format|total_seconds|item|min|max|sum|splitlines|split"
)
"""Methods whose result is called as what they are of."""
VALUE = re.compile(r"\{[^{}]*\}")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Module:
    """A file of the product and what it defines."""

    name: str
    tree: ast.Module

    @cached_property
    def functions(self) -> dict[str, Function]:
        """By name, methods too: no file has two of one name that speak to a user."""
        found = [node for _, node in self.nodes if isinstance(node, Function)]
        return {node.name: node for node in sorted(found, key=lambda each: each.lineno)}

    @cached_property
    def nodes(self) -> list[tuple[Function | None, ast.AST]]:
        """All nodes, each with the innermost function it stands in."""
        return list(_walk(self.tree))

    @cached_property
    def plain_classes(self) -> set[str]:
        """Classes of its own that are no exceptions, whatever another file calls so."""
        return {node.name for _, node in self.nodes if isinstance(node, ast.ClassDef) and not node.bases}

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        found: dict[str, ast.expr] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    found |= _bound(target, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                found[node.target.id] = node.value
        return found

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Local name → file and name there, of what comes from the product."""
        return {
            each.asname or each.name: (f"{(node.module or '')[4:].replace('.', '/')}.py", each.name)
            for _, node in self.nodes
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("elf.")
            for each in node.names
        }


def _walk(tree: ast.Module) -> Iterator[tuple[Function | None, ast.AST]]:
    waiting: list[tuple[Function | None, ast.AST]] = [(None, tree)]
    while waiting:
        function, node = waiting.pop()
        inner = node if isinstance(node, Function) else function
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr_context | ast.operator | ast.cmpop):
                yield inner, child
                waiting.append((inner, child))


def _bound(target: ast.expr, value: ast.expr) -> dict[str, ast.expr]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return {
            name.id: each
            for name, each in zip(target.elts, value.elts, strict=True)
            if isinstance(name, ast.Name)
        }
    return {}


@cache
def read_product() -> dict[str, Module]:
    """Every file of the product, by its path below the repository."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    names = {str(path.relative_to(ROOT)): path for path in paths if "own-project" not in path.parts}
    return {name: Module(name, ast.parse(path.read_text(encoding="utf-8"))) for name, path in names.items()}


@cache
def _homes() -> dict[str, list[str]]:
    """Function → the files that define one of that name."""
    found: dict[str, list[str]] = {}
    for place, module in read_product().items():
        for known in module.functions:
            found.setdefault(known, []).append(place)
    return found


@cache
def _bindings(function: Function) -> dict[str, list[ast.expr]]:
    """What each local name is bound to, anywhere in the function."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        bound: dict[str, ast.expr] = {}
        match node:
            case ast.Assign(targets=targets, value=value):
                for each in targets:
                    bound |= _bound(each, value)
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                bound = _bound(target, value)
            case ast.NamedExpr(target=target, value=value):
                bound = _bound(target, value)
            case _:
                pass
        for known, value in bound.items():
            found.setdefault(known, []).append(value)
    return found


@cache
def _results(function: Function) -> list[ast.expr]:
    return [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]


@dataclass(frozen=True)
class Scope:
    """Where an expression stands; ``given`` are the texts of a helper's parameters where it was called."""

    product: Mapping[str, Module]
    module: Module
    function: Function | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    seen: tuple[tuple[str, str], ...] = ()

    def called(self, call: ast.Call) -> "Scope | None":
        """Inside the function of the product that is called, if it is one."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        own = (
            isinstance(call.func, ast.Name) or getattr(getattr(call.func, "value", None), "id", "") == "self"
        )
        place, inner = self.module.imports.get(name, (self.module.name, name))
        if not own:  # a method of something: followed where only one class of the product has such a method
            homes = _homes().get(name, ())
            place, inner = homes[0] if len(homes) == 1 else "", name
        module = self.product.get(place)
        if module is None or inner not in module.functions:
            return None
        function = module.functions[inner]
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args) if each.arg != "self"]
        pairs = [*zip(names, call.args, strict=False)]
        pairs += [(each.arg, each.value) for each in call.keywords if each.arg is not None]
        given = {name: render(value, self) for name, value in pairs if not isinstance(value, ast.Starred)}
        return Scope(self.product, module, function, given, (*self.seen, (module.name, inner)))


def render(node: ast.expr, scope: Scope) -> str:
    """The words of an expression, or its name in braces where it is a value."""
    text = words(node, scope)
    return f"{{{name(node)}}}" if text is None else text


def words(node: ast.expr | None, scope: Scope) -> str | None:
    """The words of an expression that is written out somewhere; None for a value."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(words(part, scope) or "" for part in parts)
        case ast.FormattedValue(value=value):
            return render(value, scope)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _either([left, right], scope, "".join)
        case ast.IfExp(body=body, orelse=other):
            return _either([body, other], scope, endings)
        case ast.BoolOp(op=ast.Or(), values=values):
            return _either(values, scope, endings)
        case ast.ListComp(elt=each) | ast.GeneratorExp(elt=each):
            return words(each, scope)
        case ast.Subscript(value=inner, slice=ast.Slice()):
            return words(inner, scope)
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[joined]):
            return spaced(words(joined, scope))
        case ast.Name(id=known):
            return _variable(known, scope)
        case ast.Subscript(value=ast.Name(id=table)):
            return _entries(table, [], scope)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=table), attr="get"), args=[_, *other]):
            return _entries(table, other, scope)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if _KEPT.fullmatch(method):
            return words(inner, scope)
        case ast.Call():
            return _returned(node, scope)
        case _:
            return None


def spaced(text: str | None) -> str | None:
    """Words only where there is more than one; what is one word is told better by its name."""
    return text if text is not None and " " in VALUE.sub("", text).replace(" | ", "") else None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _either(nodes: Iterable[ast.expr], scope: Scope, join: Callable[[list[str]], str]) -> str | None:
    found = [(each, words(each, scope)) for each in nodes if not _is_none(each)]
    if all(text is None for _, text in found):
        return None
    return join([f"{{{name(each)}}}" if text is None else text for each, text in found])


def endings(texts: Iterable[str]) -> str:
    """Several texts that may stand in one place."""
    kinds = list(dict.fromkeys(wording for text in texts for wording in perhaps(text)))
    filled = [text for text in kinds if text]
    if len(kinds) == 1 or (len(filled) == 1 and VALUE.fullmatch(filled[0])):
        return filled[0] if filled else ""
    return f"[{' | '.join(filled)}]"


def perhaps(text: str) -> list[str]:
    """Like ``choices``, and of ``[words]`` that are not always there both."""
    inner = text[1:-1]
    whole = text[:1] == "[" and text[-1:] == "]" and not set("[]") & set(inner)
    return [inner, ""] if whole and " | " not in inner else choices(text)


def choices(text: str) -> list[str]:
    """The wordings of a text that is nothing but ``[one | other]``; else itself."""
    depth = 0
    cuts = [0]
    for index, sign in enumerate(text):
        depth += (sign == "[") - (sign == "]")
        if not depth and index < len(text) - 1:
            return [text]
        if depth == 1 and text[index : index + 3] == " | ":
            cuts.append(index + 3)
    if len(cuts) == 1:
        return [text]
    ends = [cut - 3 for cut in cuts[1:]] + [len(text) - 1]
    return [text[max(1, start) : end] for start, end in zip(cuts, ends, strict=True)]


def _variable(known: str, scope: Scope) -> str | None:
    if known in scope.given:
        return scope.given[known]
    mark = (scope.module.name, known)
    if mark in scope.seen or len(scope.seen) > DEEPEST:
        return None
    inner = replace(scope, seen=(*scope.seen, mark))
    values = _bindings(scope.function).get(known, []) if scope.function is not None else []
    if values:
        return _either(values, inner, endings)
    place, there = scope.module.imports.get(known, (scope.module.name, known))
    module = scope.product.get(place)
    if module is None or there not in module.constants:
        return None
    return words(module.constants[there], Scope(scope.product, module, None, {}, inner.seen))


def _entries(table: str, other: list[ast.expr], scope: Scope) -> str | None:
    place, there = scope.module.imports.get(table, (scope.module.name, table))
    module = scope.product.get(place)
    known = module.constants.get(there) if module is not None else None
    if not isinstance(known, ast.Dict):
        return None
    return _either([*known.values, *other], scope, endings)


def _returned(call: ast.Call, scope: Scope) -> str | None:
    inner = scope.called(call)
    if (
        inner is None
        or inner.module.name in SHOWN_BY_NAME
        or f"{inner.seen[-1][0]}:{inner.seen[-1][1]}" in RETURNED
        or len(inner.seen) > DEEPEST
    ):
        return None
    assert inner.function is not None
    return spaced(_either(_results(inner.function), inner, endings))


def name(node: ast.expr) -> str:
    """What a person would call a value."""
    match node:
        case ast.Name(id=known):
            return known
        case ast.Attribute(value=value, attr="strerror" | "__name__" | "__qualname__" | "name" | "suffix"):
            return name(value)
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            return attr.lstrip("_")
        case ast.Attribute(value=value, attr=attr):
            return f"{name(value).rpartition('.')[2]}.{attr}"
        case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
            return f"{name(value)}.{key}"
        case ast.Subscript(value=value) | ast.Starred(value=value) | ast.Await(value=value):
            return name(value)
        case ast.GeneratorExp(generators=[first, *_]) | ast.ListComp(generators=[first, *_]):
            return name(first.iter)
        case ast.IfExp(body=body):
            return name(body)
        case ast.BoolOp(values=[first, *_]):
            return name(first)
        case ast.Constant(value=value):
            return str(value)
        case ast.Call():
            return _result(node)
        case _:
            return ast.unparse(node)


def _result(call: ast.Call) -> str:
    match call:
        case ast.Call(func=ast.Name(id="len"), args=[counted]):
            return f"number of {name(counted)}"
        case ast.Call(func=ast.Name(id="type"), args=[thing]):
            return f"type of {name(thing)}"
        case ast.Call(func=ast.Name(id="count_of"), args=[number, ast.Constant(value=noun)]):
            return f"{name(number)} {noun}s"
        case ast.Call(func=ast.Name(id="map"), args=[_, *rest]) if rest:
            return name(rest[0])
        case ast.Call(func=ast.Name(id=known), args=[first, *_]) if _PLAIN.fullmatch(
            known
        ) or _FORMS.fullmatch(known):
            return name(first)
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[joined]):
            return name(joined)
        case ast.Call(func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=key), *_]):
            return f"{name(value)}.{key}"
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            return name(value) if _KEPT.fullmatch(attr) else f"{name(value).rpartition('.')[2]}.{attr}"
        case ast.Call(func=ast.Name(id=known), args=arguments):
            return f"{known.lstrip('_')}({', '.join(name(each) for each in arguments)})"
        case _:
            return ast.unparse(call)
