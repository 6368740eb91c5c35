"""A runner that only pretends, and what the tests of the plugin share around it."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import conformance

ROOT = Path(conformance.__file__).resolve().parent.parent

FAKE = """
import ctypes, os, subprocess, tempfile, time

NOT_INSTALLED = "not installed on this machine"
STAGES = ("torch", "tensor", "loop", "tile", "kernel", "cpp")

def check(case, options, tell):
    op = case["op"]
    if "lost" in options: return {}
    bad = {"wrong": "tile", "expected": "tile"}.get(op)
    stages = []
    for stage in options["stages"]:
        tell(stage)
        if op == "falls" and stage == "loop": ctypes.string_at(0)
        if op == "litters":
            tempfile.mkdtemp(prefix="mlcomp-")
            stray = subprocess.Popen(["sleep", "60"], start_new_session=True)
            open(f"littered.{os.getpid()}", "w").write(str(stray.pid))
            time.sleep(60)
        if op == "hangs" and stage == "kernel": time.sleep(60)
        if op == "leaves": os._exit(7)
        if op == "raises": raise ValueError("no such size")
        verdict = "fail" if stage == bad else "pass"
        stages.append({"stage": stage, "verdict": verdict, "err_over_tol": 12.5 if stage == bad else 0.25,
                       "executor": "pretence", "seconds": 0.001, "message": "off by one" if stage == bad else ""})
        if stage == bad: break
    if op == "odd": return {"verdict": "splendid"}
    if op == "refused": return {"verdict": "unsupported", "stages": [], "detail": "aten.fancy(x, 3) is not supported"}
    verdict = "fail" if bad else "pass"
    return {"verdict": verdict, "first_bad_stage": bad, "first_bad_pass": bad and "tile:fuse#3", "stages": stages,
            "detail": "", "repro": options["dump"]}

def ahead(found, options):
    if len(found) > 1: ctypes.string_at(0)

def bench(case, options, quiet):
    with quiet():
        path = os.environ["BENCH_LOG"]
        with open(path, "a") as log: log.write(f"{time.time()} ")
        time.sleep(0.05)
        with open(path, "a") as log: log.write(f"{time.time()}\\n")
    if case["op"] == "falls": ctypes.string_at(0)
    factor = float(os.environ.get("SLOW", "1"))
    ours = [1e-5 * factor * (1 + i % 3 / 100) for i in range(20)]
    eager = [2e-5] * 20
    over = {"eager": {"speedup": 2.0 / factor}}
    if case["op"] == "steep": over["eager"] = {"speedup": 0.1, "ci": [0.09, 0.12]}
    kept = options.get("stored")
    known = {"identity": f"d{factor}", "baseline": kept["baseline"] if kept else ""}
    slower = {"verdict": "SLOWER", "speedup": 1 / factor, "ci": [0.9 / factor, 1.1 / factor], "rounds": 20,
              "least": 0.05, "chance": float(os.environ.get("CHANCE", "1e-6"))}
    equal = {"verdict": "SAME", "why": "equal code"}
    against = {**known, **(slower if factor > 1 else equal)} if kept else known
    return {"ours_us": 10.0 * factor, "eager_us": 20.0, "compile_us": None, "speedup": 2.0 / factor,
            "ci": [1.9 / factor, 2.1 / factor], "over": over, "verdict": "FASTER",
            "roofline": 0.5, "message": "",
            "budget": [{"name": "min_speedup", "limit": 1.5, "verdict": "missed" if factor > 1 else "met"}],
            "skipped": {"compile": "no compiler", **{vs: NOT_INSTALLED for vs in case["vs"] if vs[:4] == "else"}},
            "samples": {"ours": ours, "eager": eager}, "clock": "thread_time_ns",
            "source": "// add, for cpu\\n", "against": against}

def fitness(options):
    return {"fit": "NOISY" not in os.environ, "message": "equal kernels differ by 9 %"}

def explain_unknown(name):
    return None if name in ("eagerly", "mlcomp") else f"there is no system {name!r}"

def gate(cases, options, tell):
    tell(cases[0]["id"])
    kernel = {"name": "add", "arch": "sm_90a", "registers": 30, "stack": 0, "spilled": 0, "shared": 256,
              "disassembled": True, "complaints": []}
    wrong = [case["id"] + " for sm_90a: spills" for case in cases if case["op"] == "spills"]
    return {"verdict": "fail" if wrong else "pass", "detail": "\\n".join(wrong), "cases": len(cases),
            "kernels": [{"case": case["id"], **kernel, "complaints": wrong} for case in cases]}

def fuzz(seed, index, options, tell):
    tell("torch.compile")
    row = {"index": index, "seed": seed, "line": f"def f(x0): return x0 + {index}",
           "arguments": "x0: f32[3] normal", "verdict": "pass", "kind": "",
           "detail": "", "why": "", "first_bad_stage": None, "first_bad_pass": None}
    if options.get("lost") and index == 1:
        return row | {"verdict": "fail", "first_bad_stage": "cpp", "first_bad_pass": "render#12"}
    if index in (1, 5, 9):
        os.makedirs(options["dump"], exist_ok=True)
        ctypes.string_at(0)
    if index == 7 and "INTERRUPTED" in os.environ: os.kill(os.getppid(), 2)
    if index == 2: return row | {"verdict": "unsupported", "detail": "aten.fancy(x, 3) is not supported"}
    if index == 3: return row | {"verdict": "fail", "kind": "value", "detail": "element [0] is 2", "repro": "there",
                                 "first_bad_stage": "tile", "first_bad_pass": "schedule#7"}
    return row

def eager(seed, index, options, tell):
    tell("eager")
    if index == 5: ctypes.string_at(0)
    return {"index": index, "seed": seed, "line": f"def f(x0): return x0 + {index}", "arguments": "x0: f32[3] normal"}

def reduce(seed, index, options, tell):
    tell("reduced so far: " + options["outcomes"])
    if index == 1 and len(options["outcomes"]) < 2: ctypes.string_at(0)
    return {"line": "def f(x0): return x0", "arguments": options["outcomes"], "regression": "there.toml"}

def opinfo(name, dtype, options, tell):
    tell("torch.compile")
    return {"name": name, "dtype": dtype, "verdict": "pass"}

def opinfo_entries():
    return [["add", "f32"], ["add", "f32.grad"]]

def onnx(name, dtype, options, tell):
    return opinfo(name, dtype, options, tell)

def onnx_entries():
    return opinfo_entries()

def selftest(options):
    return {"rows": [{"target": "cpu", "case": "fine", "stage": stage, "mutation": "flip", "how": "",
                      "caught": stage != "loop"} for stage in STAGES]}
"""

PERF = "perf = { dims = [{ N = 64 }] }"


def case(name: str, extra: str = "", dims: str = "dims.N = [4, 5]") -> str:
    return f'[[case]]\nname = "{name}"\nexpr = "x + 1"\nargs.x = {{ shape = ["N"] }}\n{dims}\n{extra}\n'


def shape_file(box: pytest.Pytester, *cases: str, name: str = "mine.toml") -> Path:
    path = box.path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("format = 1\n" + "\n".join(cases))
    return path


def mlcomp(box: pytest.Pytester, *words: str, workers: int | None = 0, bare: bool = False) -> pytest.RunResult:
    """Run the plugin on what `words` say; its reports have a place, unless it is `bare`."""
    parallel = [] if workers is None else ["-n", str(workers)]
    # Hypothesis is left out because importing it takes longer than all the rest of such a run, pytest-randomly, where
    # it is installed, because the order is looked at.
    named = [] if "--mlcomp-report" in words or bare else ["--mlcomp-report", "reports"]
    runner = [] if "--mlcomp-runner" in words else ["--mlcomp-runner", "fake"]
    plugins = ["-p", "conformance.plugin", "-p", "no:hypothesispytest", "-p", "no:randomly"]
    arguments = [*plugins, "--mlcomp", *runner, *named, *parallel, *words]
    # xdist hands on the outer run's sys.path
    return box.runpytest_subprocess(*arguments) if workers else in_process(box, *arguments)


def in_process(box: pytest.Pytester, *words: str) -> pytest.RunResult:
    """Run pytest inside this process, and remember what it imports but for the modules of the box."""
    imported = _Imported()
    result = box.runpytest_inprocess(*words, plugins=[imported])
    for name, module in imported.modules.items():
        if not (getattr(module, "__file__", None) or "").startswith(str(box.path)):
            _imported.setdefault(name, module)
    keep_imports()
    return result


# pytester forgets what a run imports, at the end of the run and of its test. But torch and others keep what their
# modules registered: imported again, torch._dynamo fails, and classes exist twice.
_imported: dict[str, ModuleType] = {}


def keep_imports() -> None:
    """Import again, without executing them, the modules that runs inside this process have imported."""
    for name, module in _imported.items():
        sys.modules.setdefault(name, module)


class _Imported:
    """A plugin that notes the modules that there are at the end of a run."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}

    def pytest_unconfigure(self) -> None:
        self.modules = dict(sys.modules)


def report(box: pytest.Pytester, name: str = "run.json") -> Any:
    (path,) = box.path.glob(f"reports/*/{name}")
    return json.loads(path.read_text()) if name.endswith(".json") else path.read_text()


def verdicts(box: pytest.Pytester) -> dict[str, str]:
    return {row["id"]: row["verdict"] for row in report(box)["cases"]}
