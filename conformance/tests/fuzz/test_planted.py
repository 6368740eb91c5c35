"""Planted miscompiles: each still has its place in the compiler, and random programs find one of them."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from conformance.tests.fuzz import planted
from conformance.tests.fuzz.planted import ROOT, Plant

SEED = random.SystemRandom().randrange(2**31)
PLANTS = {plant.name: plant for plant in planted.plants()}
# Those that one of the first few programs shows.
SOON = ("clamp has two lower bounds", "a permutation is the inverse", "every reduction begins at zero")


def test_there_are_forty_of_passes_and_twenty_of_schedules() -> None:
    every = list(planted.plants())
    assert len(PLANTS) == len(every), "two have one name"
    assert [sum(plant.of == of for plant in every) for of in ("pass", "schedule", "relation")] == [40, 20, 1]


@pytest.mark.parametrize("name", PLANTS)
def test_a_miscompile_has_its_place_and_is_python(name: str, tmp_path: Path) -> None:
    plant = PLANTS[name]
    copy = tmp_path / plant.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / "compiler" / plant.file).read_text(encoding="utf-8"), encoding="utf-8")
    plant.into(tmp_path)
    ast.parse(copy.read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="Write there what the line is now"):
        Plant(plant.of, name, plant.file, "what is not there", "").into(tmp_path)


def test_one_is_found_and_reduced() -> None:
    plant = PLANTS[random.Random(SEED).choice(SOON)]
    row = planted.hunt(plant, planted.MOST_PROGRAMS, SEED)
    assert row is not None and planted.ops(row) <= planted.MOST_OPS, (SEED, planted.said(plant, row))
