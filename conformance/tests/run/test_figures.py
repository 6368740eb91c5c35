"""The figures that the pages on the suite and on shape files name are those of the code."""

from pathlib import Path

import pytest

import conformance
from conformance.bench import benchmark, duel
from conformance.fuzz import asked, generate
from conformance.judge import device, gate, ladder, oracle
from conformance.report import replies
from conformance.run import runner
from conformance.shapes import expand, schema, toml_values

ROOT = Path(conformance.__file__).parents[1]
WORDS = {0.5: "half", 3: "three", 5: "five"}
SUITE, SHAPES = "conformance/README.md", "shapes/README.md"
NAMED = {
    SUITE: (
        f"λ = {oracle.LAMBDA:g} standard deviations",
        f"with {duel.CONFIDENCE:.0%} confidence".replace("%", " %"),
        f"more than {benchmark.MIN_EFFECT['full'] * 100:g} % above or below 1",
        f"({benchmark.MIN_EFFECT['quick'] * 100:g} % with `--mlcomp-bench quick`)",
        f"CUDA graphs of {device.COPIES} calls",
        f"below {WORDS[replies.CLIFF]} of eager's speed",
        f"more than {WORDS[replies.COMPILE_CLIFF]} times as long",
        f"runs {WORDS[ladder.RUNS]} times on the same buffers",
        f"{generate.LEAST} to {generate.MOST_CALLS} calls of torch",
        f"{asked.BATCH} per item",
        f"else {runner.CHECK_SECONDS:g}, for a benchmark {runner.BENCH_SECONDS:g}, "
        f"for a random program {runner.FUZZ_SECONDS:g}",
        "for {}, {} and {};".format(*gate.ARCHITECTURES),
    ),
    SHAPES: (f"at most {schema.VALUES_LIMIT:,} sizes", f"(at most {expand.NIGHTLY_LIMIT:,} rows)"),
}


@pytest.mark.parametrize(("page", "said"), [(page, said) for page, every in NAMED.items() for said in every])
def test_a_figure_is_the_codes(page: str, said: str) -> None:
    assert said in " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_every_budget_is_named() -> None:
    text = (ROOT / SHAPES).read_text(encoding="utf-8")
    assert not [word for word in toml_values.BUDGETS if word not in text]
