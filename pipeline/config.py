"""From a YAML file and ``a.b=c`` overrides to a validated configuration.

Precedence: defaults < parents (``extends``) < file < overrides. Mappings merge deeply, lists replace. What is
wrong is refused with the key, the place it was read from and the nearest valid name.
"""

import difflib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from elf.cache.redaction import holds_secret
from elf.pipeline.errors import Misconfigured
from elf.pipeline.section import Section

M = TypeVar("M", bound=Section)
Tree = dict[str, Any]
_KINDS: dict[type, str] = {dict: "a mapping", list: "a list"}
_TRAP = re.compile(r"[-+]?0[0-9_]+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")


@dataclass(frozen=True, slots=True)
class Origin:
    """One place settings were read from, and how to find a key's line in it."""

    label: str
    node: yaml.Node | None
    lines: bool = True
    """Whether people see lines of it."""

    def line(self, path: Sequence[str | int]) -> int | None:
        """The line that sets ``path``, counted from 1; None if this place does not set it."""
        node, line = self.node, None
        for part in path:
            if isinstance(node, yaml.MappingNode):
                pairs = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
                found = [(key, value) for key, value in pairs if key.value == str(part)]
                if not found:
                    return None
                line, node = found[0][0].start_mark.line + 1, found[0][1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = cast("list[yaml.Node]", node.value)[part]
                line = node.start_mark.line + 1
            else:
                return line
        return line


def compose(text: str) -> yaml.Node | None:
    """The tree of YAML nodes of ``text``, which knows the line of every key."""
    return cast("yaml.Node | None", yaml.compose(text))  # pyright: ignore[reportUnknownMemberType]


def load_experiment(
    config: str, model: type[M], overrides: Sequence[str], shipped: Path, *, called: str = "--set"
) -> M:
    """Read ``config`` (a path, or the bare name of a file in ``shipped``) as a ``model``; ``called`` is what the person
    who gave the ``overrides`` knows them as.

    The field ``name``, if not given, is the file's stem. Raises Misconfigured for everything that is wrong.
    """
    path = find_config(config, shipped)
    tree, origins = _read(path, shipped, ())
    tree.setdefault("name", path.stem)
    given: Tree = {}
    for override in overrides:
        _apply(tree, given, override)
    if given:
        origins = [Origin(called, compose(yaml.safe_dump(given)), lines=False), *origins]
    return _validate(tree, model, origins, path)


def find_config(config: str, shipped: Path) -> Path:
    """The file that ``config`` means. Raises Misconfigured, with the nearest shipped name, if there is none."""
    path = Path(config)
    if path.is_file():
        return path
    if path.suffix not in (".yaml", ".yml") and not path.is_absolute() and ".." not in path.parts:
        inside = shipped / f"{config}.yaml"
        if inside.is_file():
            return inside
        names = shipped_names(shipped)
        near = difflib.get_close_matches(config, names, n=1)
        hint = f"Did you mean '{near[0]}'? " if near else ""
        raise Misconfigured(
            f"There is no configuration called '{config}'. {hint}Give the path of a YAML file, or one of the "
            f"shipped names: {', '.join(names)}."
        )
    raise Misconfigured(
        f"The configuration file {path} does not exist (looked in {Path.cwd()}). Correct its path, or give one of the "
        f"shipped names: {', '.join(shipped_names(shipped))}."
    )


def shipped_names(shipped: Path) -> list[str]:
    """Bare names of the configurations that come with the product."""
    return sorted(path.stem for path in shipped.glob("*.yaml"))


def _refuse_traps(node: yaml.Node | None, place: str) -> None:
    """YAML reads 010 as 8 and 1:30 as 90, and nobody who writes so means it."""
    if isinstance(node, yaml.ScalarNode):
        if node.style is None and _TRAP.fullmatch(node.value):
            raise Misconfigured(
                f"{place.format(line=node.start_mark.line + 1)} has {node.value}, which YAML reads as another number "
                "(010 as 8, 1:30 as 90). Write the number that is meant, without a leading zero or a colon; text "
                "goes in quotes."
            )
    elif isinstance(node, yaml.CollectionNode):
        for item in cast("list[yaml.Node | tuple[yaml.Node, yaml.Node]]", node.value):
            for each in item if isinstance(item, tuple) else (item,):
                _refuse_traps(each, place)


def _read(path: Path, shipped: Path, below: tuple[Path, ...]) -> tuple[Tree, list[Origin]]:
    """The merged tree of a file and its parents, and where its keys came from, nearest first."""
    if path.resolve() in below:
        chain = " → ".join(each.name for each in (*below, path))
        raise Misconfigured(f"The configuration {path} extends itself ({chain}); break the circle.")
    try:
        text = path.read_text(encoding="utf-8")
        node = compose(text)
        loaded = OmegaConf.to_container(OmegaConf.create(text), resolve=False) if text.strip() else {}
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"The configuration {path} cannot be read: {error}. It must be UTF-8 text that this user may read."
        ) from error
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise Misconfigured(
            f"The configuration {path}{where} is not valid YAML: {problem}. Write `key: value` lines, those of a "
            "section indented alike, with spaces."
        ) from error
    if not isinstance(loaded, dict):
        raise Misconfigured(
            f"The configuration {path} holds a {type(loaded).__name__}; it must be `key: value` lines."
        )
    _refuse_traps(node, f"The configuration {path}, line {{line}},")
    tree = cast("Tree", loaded)
    parent = tree.pop("extends", None)
    origins = [Origin(str(path), node)]
    if parent is None:
        return tree, origins
    if not isinstance(parent, str):
        raise Misconfigured(f"`extends` in {path} is {parent!r}; it must be one file or shipped name.")
    beside = path.parent / parent
    above = beside if beside.is_file() else find_config(parent, shipped)
    base, further = _read(above, shipped, (*below, path.resolve()))
    base.pop("name", None)
    _refuse_other_kinds(base, tree, above, origins, ())
    merged = OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(base), OmegaConf.create(tree)))
    return cast("Tree", merged), origins + further


def _refuse_other_kinds(
    base: Tree, tree: Tree, above: Path, origins: Sequence[Origin], place: tuple[str, ...]
) -> None:
    """Mappings merge and lists replace; one of each can do neither."""
    for key, value in cast("dict[str, object]", tree).items():
        here, there = (*place, str(key)), cast("object", base.get(key))
        mine, theirs = _KINDS.get(type(value)), _KINDS.get(type(there))
        if mine == theirs == "a mapping":
            _refuse_other_kinds(cast("Tree", there), cast("Tree", value), above, origins, here)
        elif mine is not None and theirs is not None and mine != theirs:
            raise Misconfigured(
                f"`{'.'.join(here)}`{_where(here, origins)} is {mine}, and in {above}, which this extends, it is "
                f"{theirs}: write {theirs}."
            )


def _apply(tree: Tree, given: Tree, override: str) -> None:
    """Set one ``a.b.0.c=value`` in ``tree``, and note it in ``given``."""
    path, equals, text = override.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts):
        raise Misconfigured(
            f"The override '{override}' is not of the form section.key=value; write it like train.steps=2000."
        )
    try:
        _refuse_traps(compose(f"value: {text}"), f"The override '{path.strip()}'")
        value = cast("Tree", OmegaConf.to_container(OmegaConf.create(f"value: {text}")))["value"]
    except (yaml.YAMLError, OmegaConfBaseException, KeyError) as error:
        raise Misconfigured(
            f"The value in '{override}' cannot be read: {error}. It is read as YAML: put text with signs in quotes."
        ) from error
    here: Any = tree
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(here, list):
            items = cast("list[Any]", here)
            if not part.isdigit() or int(part) >= len(items):
                place = ".".join(parts[:depth])
                raise Misconfigured(
                    f"The override '{override}' asks for item '{part}' of {place}, which has items "
                    f"0 to {len(items) - 1}."
                )
            if last:
                items[int(part)] = value
            here = items[int(part)]
        else:
            branch = cast("Tree", here)
            if last:
                branch[part] = value
            elif not isinstance(branch.get(part), dict | list):
                branch[part] = {}
            here = branch[part]
    for part in parts[:-1]:
        if not isinstance(given.get(part), dict):  # another override may have given all of it
            given[part] = {}
        given = cast("Tree", given[part])
    given[parts[-1]] = value


def _validate(tree: Tree, model: type[M], origins: Sequence[Origin], path: Path) -> M:
    _refuse_unwritable(tree, ())
    try:
        text = json.dumps(tree)
    except (TypeError, ValueError) as error:
        raise Misconfigured(
            f"The configuration {path} holds something that is not plain data: {error}. Write numbers, text, true, "
            "false, null, lists and mappings alone."
        ) from error
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        faults: dict[tuple[str | int, ...], list[Any]] = {}
        for fault in error.errors(include_url=False):
            faults.setdefault(tuple(_real_location(fault["loc"], tree)), []).append(fault)
        told = [_explain(location, same, model, origins) for location, same in faults.items()]
        more = f" (and {len(told) - 3} more)" if len(told) > 3 else ""
        raise Misconfigured(" ".join(told[:3]) + more) from error


def _refuse_unwritable(value: Any, path: tuple[str, ...]) -> None:
    """Settings are stored with every result: none may depend on where it is read, none may be secret."""
    if isinstance(value, str) and holds_secret(value):
        raise Misconfigured(
            f"`{'.'.join(path)}` holds a password or a token. Settings are stored with every result, so nothing "
            "secret may stand in them: put it where its own client looks for it (HF_TOKEN, PIP_INDEX_URL, a netrc "
            "file) and leave it out here."
        )
    if isinstance(value, str) and "${" in value:
        raise Misconfigured(
            f"`{'.'.join(path)}` is '{value}': settings are written out, never taken from elsewhere by ${{…}}, "
            "because they are stored with every result. Write the value itself, or override it when the run is started."
        )
    if isinstance(value, dict):
        for key, item in cast("Tree", value).items():
            _refuse_unwritable(item, (*path, str(key)))
    if isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            _refuse_unwritable(item, (*path, str(index)))


def _explain(
    location: Sequence[str | int], faults: Sequence[Any], model: type[BaseModel], origins: Sequence[Origin]
) -> str:
    """A sentence or two about one place in the configuration; the members of a union complain together."""
    dotted = ".".join(str(part) for part in location)
    where = _where(location, origins)
    fault = faults[0]
    if fault["type"] == "extra_forbidden":
        parent = ".".join(str(part) for part in location[:-1]) or "the top level"
        names = sorted(_fields_at(model, location[:-1]))
        near = difflib.get_close_matches(str(location[-1]), names, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"it knows {', '.join(names)}."
        return f"Unknown key `{dotted}`{where}: {parent} has no `{location[-1]}`; {hint}"
    if fault["type"] == "missing":
        return f"The key `{dotted}` is missing{where}; give it a value."
    messages = [each["msg"].removeprefix("Value error, ") for each in faults]
    message = " or ".join(dict.fromkeys(text[0].lower() + text[1:] for text in messages))
    value = "" if isinstance(fault["input"], dict | list) else f" is {json.dumps(fault['input'])}"
    number = ""
    if isinstance(fault["input"], str) and _reads_as_number(fault["input"]) and "number" in message:
        finite = math.isfinite(float(fault["input"]))
        number = (
            f" It is text here; write it without quotes, as {fault['input']}."
            if finite
            else " Settings are finite numbers."
        )
    return f"`{dotted or 'The configuration'}`{value}{where}: {message}.{number}"


def _where(location: Sequence[str | int], origins: Sequence[Origin]) -> str:
    for origin in origins:
        line = origin.line(location)
        if line is not None:
            return f" ({origin.label}, line {line})" if origin.lines else f" ({origin.label})"
    return f" ({origins[-1].label})" if len(origins) == 1 else ""


def _real_location(loc: Sequence[str | int], tree: Tree) -> list[str | int]:
    """``loc`` without the names of union members, which pydantic puts in and no file contains."""
    kept: list[str | int] = []
    here: Any = tree
    for index, part in enumerate(loc):
        if isinstance(here, dict):
            branch = cast("Tree", here)
            if part not in branch and index < len(loc) - 1:
                continue
            here = branch.get(str(part))
        elif isinstance(here, list) and isinstance(part, int):
            here = cast("list[Any]", here)[part]
        else:
            continue
        kept.append(part)
    return kept


def _fields_at(model: type[BaseModel], location: Sequence[str | int]) -> set[str]:
    """Names of the settings valid at ``location``."""
    models = {model}
    for part in location:
        if isinstance(part, int):
            continue
        below: set[type[BaseModel]] = set()
        for each in models:
            if part in each.model_fields:
                below |= _models_in(each.model_fields[part].annotation)
        models = below
    return {name for each in models for name in each.model_fields}


def _models_in(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    found: set[type[BaseModel]] = set()
    for argument in get_args(annotation):
        found |= _models_in(argument)
    return found


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
