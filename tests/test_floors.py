"""Imports go down only: every module of the package is parsed and each of its own imports is placed on a floor."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "partita"
FLOORS = {
    "records": -1,  # the ground: every floor may use it
    "ops": 0, "config": 0,
    "algo": 1, "tasks": 1, "models": 1, "report": 1,
    "engine": 2,
    "rollout": 3, "train": 3,
    "evals": 4,
}  # fmt: skip
TOP = 5
MODULES = sorted(PACKAGE.rglob("*.py"))


def place(parts: tuple[str, ...]) -> tuple[str, int]:
    name = parts[0].removesuffix(".py") if parts else "partita"
    return name, FLOORS.get(name, TOP)


def imports_of(path: Path) -> list[tuple[str, ...]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found += [tuple(name.split(".")[1:]) for name in names if name.split(".")[0] == "partita"]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    name, floor = place(path.relative_to(PACKAGE).parts)
    for target in imports_of(path):
        other, other_floor = place(target)
        allowed = other == name or other_floor < floor or floor == TOP
        assert allowed, f"{path.name} ({name}, floor {floor}) imports partita.{'.'.join(target)} (floor {other_floor})"


def test_floor_zero_needs_only_torch_numpy_pydantic_and_the_loader() -> None:
    allowed = {"torch", "numpy", "pydantic", "pydantic_core", "omegaconf", "yaml", "partita"}
    import sys

    for path in MODULES:
        if place(path.relative_to(PACKAGE).parts)[1] > 0:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for root in {name.split(".")[0] for name in names}:
                assert root in allowed or root in sys.stdlib_module_names, f"{path}: {root}"


def test_no_import_of_own_modules_inside_functions() -> None:
    for path in MODULES:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    hidden = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("partita")
                    assert not hidden, f"{path}:{node.lineno}: own module imported inside {function.name}"
