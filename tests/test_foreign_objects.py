"""Nothing of the product reads a foreign object as code: no pickles, no remote code, no YAML with constructors."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("cache", "pipeline", "stages", "flows", "configs", "benchmarks")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MODULES_THAT_UNPICKLE = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "jsonpickle",
}
PICKLE_ERRORS = {"PickleError", "UnpicklingError"}
BUILTINS_THAT_RUN = {"eval", "exec", "compile", "__import__"}
CALLS_THAT_RUN = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.full_load",
    "shutil.unpack_archive",
    "tarfile.open",
    "pd.read_pickle",
    "torch.jit.load",
    "torch.hub.load",
}


def faults(source: str) -> list[str]:
    """What in a module could run foreign code, with its line. The names of pickle's errors are harmless."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names} - {"pickle"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "") == "pickle":
            names = {"pickle"} if {alias.name for alias in node.names} - PICKLE_ERRORS else set()
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle":
            names = {"pickle"} if node.attr not in PICKLE_ERRORS else set()
        elif isinstance(node, ast.Call):
            found += [f"{fault} (line {node.lineno})" for fault in call_faults(node)]
            continue
        else:
            continue
        found += [f"{name} (line {node.lineno})" for name in sorted(names & MODULES_THAT_UNPICKLE)]
    return found


def call_faults(call: ast.Call) -> list[str]:
    name = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    found: list[str] = []
    if name in BUILTINS_THAT_RUN | CALLS_THAT_RUN:
        found.append(name)
    if name.endswith("torch.load") and given.get("weights_only") != "True":
        found.append("torch.load without weights_only=True")
    if name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
        found.append("numpy.load without allow_pickle=False")
    if name == "yaml.load" and not given.get("Loader", "").endswith("SafeLoader"):
        found.append("yaml.load without SafeLoader")
    if name.split(".")[-1] == "from_pretrained" and given.get("trust_remote_code") != "False":
        found.append("from_pretrained without trust_remote_code=False")
    if ".from_pretrained" in name and "Model" in name and given.get("use_safetensors") != "True":
        found.append("from_pretrained of weights without use_safetensors=True")
    if given.get("trust_remote_code", "False") != "False":
        found.append("trust_remote_code")
    if given.get("shell", "False") != "False":
        found.append("a shell")
    if given.get("allow_pickle", "False") != "False":
        found.append("allow_pickle")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_foreign_is_run(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "pickle.load(file)",
        "from pickle import loads",
        "import dill",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.Loader)",
        "AutoModel.from_pretrained(path, trust_remote_code=False)",
        "AutoTokenizer.from_pretrained(path, trust_remote_code=True)",
        "AutoTokenizer.from_pretrained(path)",
        "load_dataset(name, trust_remote_code=True)",
        "subprocess.run(line, shell=True)",
        "eval(text)",
    ],
)
def test_the_rule_sees_what_it_forbids(line: str) -> None:
    assert faults(line)


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "model.eval()",
        "re.compile(pattern)",
        "from pickle import UnpicklingError",
        "AutoModel.from_pretrained(path, trust_remote_code=False, use_safetensors=True)",
    ],
)
def test_the_rule_lets_pass_what_is_safe(line: str) -> None:
    assert not faults(line)
