"""Where the entries of a Python file stand, as far as its lists are written out and not computed."""

import ast
from collections.abc import Mapping, Sequence

from duly.config.lines import Place, Places
from duly.config.schema import Table


def python_places(text: str, names: Mapping[str, Table]) -> Places:
    """Where the lists of a Python file are assigned, and their elements where the list is written out."""
    places = Places()
    for node in ast.parse(text).body:
        targets: Sequence[ast.expr] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                places.top[target.id] = node.lineno
                if target.id in names:
                    places.tables[names[target.id]] = _elements(getattr(node, "value", None))
    return places


def _elements(value: ast.expr | None) -> list[Place]:
    if isinstance(value, ast.Dict):  # the settings
        return [Place(value.lineno, _literal_keys(value))]
    if not isinstance(value, ast.List | ast.Tuple) or any(
        isinstance(each, ast.Starred) for each in value.elts
    ):
        return []
    return [_element(each) for each in value.elts]


def _element(node: ast.expr) -> Place:
    if isinstance(node, ast.Dict):
        return Place(node.lineno, _literal_keys(node))
    if isinstance(node, ast.Call):
        return Place(node.lineno, {each.arg: each.value.lineno for each in node.keywords if each.arg})
    return Place(node.lineno)


def _literal_keys(node: ast.Dict) -> dict[str, int]:
    return {
        key.value: key.lineno
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
