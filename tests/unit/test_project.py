"""The project's files agree with each other and with the code: metadata, dependencies, imports, lint, types, docs."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from comfyui_source import requirement_lines, requirement_name

PACK = Path(__file__).parents[2]
CODE = ("ov_backends", "nodes")
OWNED_BY_COMFYUI = {
    "torch",
    "torchvision",
    "torchaudio",
    "numpy",
    "transformers",
    "tokenizers",
    "huggingface-hub",
    "spandrel",
    "PIL",
}
COMFYUI_MODULES = {"comfy", "comfy_api", "comfy_execution", "comfy_extras", "folder_paths", "nodes", "server"}
LAYERS = {"errors": 0, "graph": 2, "convert": 2, "compiler": 3, "runtime": 4, "quantize": 4}
"""Rank of each part of ov_backends: it imports from its own rank and below. Other modules are of rank 1."""
TOP_LAYER = {
    "__main__",
    "bench",
    "commands",
    "diagnosis",
    "doctor",
    "examination",
    "figure",
    "layer_times",
    "peaks",
    "preflight",
}
SYSTEMS = ("OS Independent", "Microsoft :: Windows", "POSIX :: Linux", "MacOS")
ACCELERATORS = ("NVIDIA CUDA", "AMD ROCm", "Intel Arc", "Apple Metal")
CLASSIFIERS = {
    *(f"Operating System :: {name}" for name in SYSTEMS),
    *(f"Environment :: GPU :: {name}" for name in ACCELERATORS),
    "Environment :: NPU :: Huawei Ascend",
}
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


@pytest.fixture(scope="module")
def pyproject() -> dict:
    return tomllib.loads(read("pyproject.toml"))


def read(name: str) -> str:
    return (PACK / name).read_text(encoding="utf-8")


def sources(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (PACK / folder).rglob("*.py"))


def relative(file: Path) -> str:
    return file.relative_to(PACK).as_posix()


def module_name(file: Path) -> str:
    return relative(file).removesuffix(".py").replace("/", ".")


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), relative(file))


def absolute_imports(file: Path) -> set[str]:
    """First parts of what `file` imports by absolute name, anywhere in it."""
    names = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


def relative_imports(file: Path) -> Iterator[str]:
    """Dotted names, below the pack, of the modules that `file` imports by relative name."""
    package = relative(file).split("/")[:-1]
    for node in ast.walk(tree(file)):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
        base = [part for part in base if part]
        if (PACK / Path(*base)).with_suffix(".py").is_file():
            yield ".".join(base)
        else:
            yield from (".".join([*base, alias.name]) for alias in node.names)


def node_ids() -> dict[str, str]:
    """Class name -> literal node id, as ComfyUI-Manager's scanner finds them."""
    found = {}
    for file in sources("nodes"):
        for owner in (node for node in ast.walk(tree(file)) if isinstance(node, ast.ClassDef)):
            for call in (node for node in ast.walk(owner) if isinstance(node, ast.Call)):
                if isinstance(call.func, ast.Attribute) and call.func.attr == "Schema":
                    value = next(keyword.value for keyword in call.keywords if keyword.arg == "node_id")
                    assert isinstance(value, ast.Constant), f"{owner.name}: the node id must be a literal"
                    found[owner.name] = value.value
    return found


def registered_classes() -> list[str]:
    for node in tree(PACK / "nodes" / "registry.py").body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            return [name.id for name in node.value.elts if isinstance(name, ast.Name)]
    raise AssertionError("nodes/registry.py has no tuple of nodes")


def environment_variables() -> set[str]:
    """This pack's variables that the code reads: strings, since node ids are not all capitals."""
    ids = set(node_ids().values())
    found = {name for file in sources(*CODE) for name in re.findall(r'"(OVNPU_[A-Z_]+)"', file.read_text("utf-8"))}
    return found - ids - {"OVNPU_PLAN", "OVNPU_MODEL"}  # socket types


# --- metadata ---------------------------------------------------------------------------------------------------------


def test_version_is_the_same_everywhere(pyproject):
    version = pyproject["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert f'__version__ = "{version}"' in read("__init__.py")
    assert f"\n## {version}" in read("CHANGELOG.md")


def test_registry_fields_are_there(pyproject):
    project, comfy = pyproject["project"], pyproject["tool"]["comfy"]
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,99}", project["name"]) and "comfyui" not in project["name"].lower()
    assert project["urls"]["Repository"].startswith("https://")
    assert (PACK / project["license"]["file"]).is_file() and (PACK / project["readme"]).is_file()
    assert comfy["PublisherId"] and comfy["DisplayName"]
    assert "web" not in comfy, "WEB_DIRECTORY registers the folder; a second registration loads every script twice"
    for part in comfy["requires-comfyui"].split(","):
        assert re.fullmatch(r"(==|>=|<=|!=|~=|>|<)\d+\.\d+\.\d+", part.strip()), part


def test_classifiers_are_those_of_the_registry(pyproject):
    assert set(pyproject["project"]["classifiers"]) <= CLASSIFIERS


def test_comfyui_reads_pyproject(pyproject, comfy):
    from comfy_config.config_parser import extract_node_configuration

    config = extract_node_configuration(str(PACK))
    assert config.project.name == pyproject["project"]["name"]
    assert config.project.version == pyproject["project"]["version"]
    assert config.project.dependencies == pyproject["project"]["dependencies"]
    assert config.project.supported_os == ["Microsoft :: Windows", "POSIX :: Linux"]
    assert config.project.supported_accelerators == ["GPU :: Intel Arc"]
    assert config.project.supported_comfyui_version == pyproject["tool"]["comfy"]["requires-comfyui"]
    assert config.tool_comfy.publisher_id and not config.tool_comfy.web


def test_license_is_apache_2():
    text = read("LICENSE")
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text


# --- dependencies -----------------------------------------------------------------------------------------------------


def test_pyproject_and_requirements_name_the_same_packages(pyproject):
    assert pyproject["project"]["dependencies"] == requirement_lines(PACK / "requirements.txt")


def test_requirements_are_lower_bounds_of_packages_that_are_not_comfyuis():
    for line in requirement_lines(PACK / "requirements.txt"):
        assert re.fullmatch(r"[a-z0-9-]+>=\d+(\.\d+)*", line), f"{line}: a name and a lower bound, nothing else"
        assert requirement_name(line) not in OWNED_BY_COMFYUI, line


def test_every_package_that_the_code_imports_is_required_or_comfyuis():
    files = [PACK / "requirements.txt", PACK / "requirements-extras.txt"]
    required = {requirement_name(line).replace("-", "_") for file in files for line in requirement_lines(file)}
    known = required | COMFYUI_MODULES | OWNED_BY_COMFYUI | set(sys.stdlib_module_names)
    for file in [PACK / "__init__.py", *sources(*CODE)]:
        unknown = absolute_imports(file) - known
        assert not unknown, f"{relative(file)} imports {', '.join(sorted(unknown))}, which nothing installs"


def test_install_needs_the_standard_library_only():
    own = {file.stem for file in sources("tools")}
    waiting, seen = [PACK / "install.py"], set()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        imported = absolute_imports(file)
        foreign = imported - own - set(sys.stdlib_module_names)
        assert not foreign, f"{relative(file)} imports {', '.join(sorted(foreign))}"
        waiting += [path for name in imported & own if (path := PACK / "tools" / f"{name}.py") not in seen]


def test_install_is_ascii():
    assert read("install.py").isascii()


# --- code -------------------------------------------------------------------------------------------------------------


def test_backend_imports_point_downwards():
    def rank(module: str) -> int:
        part = module.split(".")[1]
        return 5 if part in TOP_LAYER else LAYERS.get(part, 1)

    for file in sources("ov_backends"):
        own = module_name(file)
        if own.count(".") == 1 and own.endswith("__init__"):
            continue
        used = list(relative_imports(file))
        outside = [name for name in used if not name.startswith("ov_backends.")]
        assert not outside, f"{own} imports {', '.join(outside)}, which is outside of the backend"
        above = [name for name in used if rank(name) > rank(own)]
        assert not above, f"{own} imports {', '.join(above)}, which is above it"


def test_code_does_not_print():
    for file in (file for file in sources(*CODE) if file.name != "__main__.py"):
        calls = (node for node in ast.walk(tree(file)) if isinstance(node, ast.Call))
        lines = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not lines, f"{relative(file)} prints in line {lines}; use logging.getLogger('ovnpu')"


@pytest.mark.parametrize("command", [["check", "--output-format", "concise"], ["format", "--check"]], ids=" ".join)
def test_ruff_finds_nothing(command):
    done = run_tool("ruff", *command, ".", cwd=PACK)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_are_right(tmp_path):
    pack = tmp_path / "ovpack"  # a package needs a valid name, and a clone of the repository does not have one
    pack.mkdir()
    for name in ("nodes", "ov_backends", "tools"):
        shutil.copytree(PACK / name, pack / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "install.py"):
        shutil.copy2(PACK / name, pack / name)
    done = run_tool(
        "mypy",
        *("--config-file", str(PACK / "pyproject.toml"), "--cache-dir", str(PACK / ".mypy_cache")),
        *("ovpack/nodes", "ovpack/ov_backends", "ovpack/tools", "ovpack/install.py"),
        cwd=tmp_path,
        MYPYPATH=os.pathsep.join([str(tmp_path), str(pack / "tools")]),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_tool(tool: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


# --- documentation ----------------------------------------------------------------------------------------------------


def test_registered_nodes_have_literal_prefixed_ids_of_their_own():
    ids = node_ids()
    assert sorted(ids) == sorted(registered_classes())
    assert len(set(ids.values())) == len(ids)
    assert all(node_id.startswith("OVNPU_") for node_id in ids.values())


def test_every_node_has_a_docs_page_and_every_page_a_node():
    pages = {page.stem for page in (PACK / "web" / "docs").glob("*.md")}
    assert pages == set(node_ids().values())


def test_docs_pages_name_every_input_and_output(comfy):
    from ovpack.nodes.registry import NODES

    for node in NODES:
        schema = node.define_schema()
        page = read(f"web/docs/{schema.node_id}.md")
        assert page.startswith(f"# {schema.display_name}\n"), schema.node_id
        assert "## Inputs\n" in page and "## Outputs\n" in page, schema.node_id
        names = [i.id for i in schema.inputs] + [o.display_name or o.io_type for o in schema.outputs]
        missing = [name for name in names if f"`{name}`" not in page]
        assert not missing, f"web/docs/{schema.node_id}.md does not name {', '.join(missing)}"


def test_readme_names_every_node_by_id_and_display_name(comfy):
    from ovpack.nodes.registry import NODES

    readme = read("README.md")
    for schema in (node.define_schema() for node in NODES):
        assert f"| {schema.display_name} | `{schema.node_id}` |" in readme


def test_readme_names_every_preset_policy_and_precision():
    from ovpack.ov_backends import plan

    readme = read("README.md")
    missing = [word for word in (*plan.PRESETS, *plan.POLICIES, *plan.PRECISIONS) if f"`{word}`" not in readme]
    assert not missing, missing


def test_readme_explains_every_field_of_the_report():
    from ovpack.ov_backends.report import RunReport

    report = RunReport()
    report.submodel("unet", "CPU")
    whole = report.as_json({})
    fields = {*whole, *whole["submodels"]["unet"]}
    readme = read("README.md")
    missing = sorted(name for name in fields if not re.search(rf"`{name}[`.]", readme))
    assert not missing, missing


def test_readme_names_every_environment_variable():
    readme = read("README.md")
    missing = [name for name in environment_variables() if f"| `{name}` |" not in readme]
    assert not missing, missing


@pytest.mark.parametrize("page", [*PAGES, "web/docs"])
def test_pages_name_only_ids_and_variables_that_exist(page):
    known = {*node_ids().values(), *environment_variables()}
    files = [PACK / page] if page.endswith(".md") else sorted((PACK / page).glob("*.md"))
    named = {name for file in files for name in re.findall(r"\bOVNPU_\w+", file.read_text(encoding="utf-8"))}
    assert named <= known, sorted(named - known)


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_somewhere(page):
    text = without_code(read(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (PACK / page).parent / name if name else PACK / page
        assert file.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page}: {target}"


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(file: Path) -> set[str]:
    """Anchors of a page's headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", without_code(file.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_files_named_in_the_readmes_code_exist():
    named = re.findall(r"(?:tools|benchmarks|nodes|ov_backends|workflows)/[\w/]+\.\w+", read("README.md"))
    named += re.findall(r"(?:tools|benchmarks|nodes|ov_backends|workflows)/[\w/]+\.\w+", read("CONTRIBUTING.md"))
    missing = sorted({name for name in named if not (PACK / name).is_file()})
    assert named and not missing, missing


def test_text_files_end_with_one_newline():
    files = [file for pattern in ("*.md", "*.py", "*.toml", "*.txt") for file in PACK.glob(pattern)]
    files += [*sources(*CODE, "tools", "tests"), *(PACK / "web").rglob("*.md")]
    wrong = [relative(f) for f in files if (b := f.read_bytes()) and (not b.endswith(b"\n") or b.endswith(b"\n\n"))]
    assert not wrong, wrong
