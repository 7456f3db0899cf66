import shutil

from typer.testing import CliRunner

import weft
from weft.cli import app
from weft.cli.about import describe_scan
from weft.inference import native


def test_info_names_versions_and_the_scan_once():
    found = CliRunner().invoke(app, ["info"])
    assert found.exit_code == 0
    assert f"weft {weft.__version__}" in found.stdout
    assert found.stdout.count("Compiled scan") == 1
    assert describe_scan(native.KERNELS, native.active()) in found.stdout


def test_a_missing_or_unused_scan_is_told_apart():
    assert describe_scan(("avx2", "baseline"), "avx2").endswith("avx2 (available: avx2, baseline).")
    assert "switched off by WEFT_NATIVE" in describe_scan(("baseline",), None)
    assert "Install a compiler" in describe_scan((), None)


def test_the_scan_is_built_where_there_is_a_compiler():
    """So that a build that fails is noticed, and not only skipped."""
    compilers = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]
    assert native.KERNELS or not compilers
