"""A part imports only what lies below it."""

import ast
from pathlib import Path

import weft

LAYERS = [
    ["batch", "columns", "randomness", "persistence", "monitoring", "native"],
    ["native_images"],
    ["reading", "frames", "metrics", "errors"],
    ["sequences", "arrivals"],
    ["corruption", "datasets"],
    ["gaussian"],
    ["particles", "likelihoods"],
    ["networks"],
    ["modality"],
    ["model", "scaling"],
    ["inference"],
    ["objective", "simulators", "bounds"],
    ["levels", "clocks"],
    ["prediction", "records", "layouts"],
    ["bookkeeping", "schedules", "results", "plots", "tables", "alignment"],
    ["evaluation"],
    ["training", "streaming"],
    ["estimator"],
    ["imputer"],
    ["experiments"],
    ["demo", "report"],
    ["__init__"],
    ["cli"],
]
DEPTH = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}
COMPILED = {"_scan", "_images", "_moments"}
PACKAGE = Path(weft.__file__).parent


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(source: str) -> set[str]:
    """The parts of weft that a module imports, however it writes it."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            modules |= {f"{module}.{a.name}" for a in node.names} if module == "weft" else {module}
    return {name.split(".")[1] for name in modules if name.startswith("weft.")} - COMPILED


def violations(sources: dict[str, str]) -> list[str]:
    return [
        f"{part} imports {other}"
        for part, source in sources.items()
        for other in sorted(imported_parts(source))
        if other != part and DEPTH[other] >= DEPTH[part]
    ]


def test_every_part_has_a_layer():
    assert {part_of(path) for path in PACKAGE.rglob("*.py")} == set(DEPTH)


def test_lower_parts_do_not_import_higher_ones():
    for path in PACKAGE.rglob("*.py"):
        assert violations({part_of(path): path.read_text()}) == []


def test_the_check_notices_a_violation():
    assert violations({"gaussian": "from weft.model import MarkovModel"}) == [
        "gaussian imports model"
    ]
    assert violations({"columns": "import weft.inference.bfvi"}) == ["columns imports inference"]
    assert violations({"model": "def f():\n    from weft import inference"}) == [
        "model imports inference"
    ]
