"""`make mutants` finds in the source what it leaves out, and what it makes of it is still Python."""

from __future__ import annotations

import pytest

from mutants.apply import ROOT, changed
from mutants.catalogue import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.name} ({' '.join(mutant.databases)})")
def test_each_mutant_applies_to_the_source(mutant: Mutant) -> None:
    for path, text in changed(ROOT, mutant).items():
        assert text != path.read_text()
        compile(text, str(path), "exec")
    assert all((ROOT / test).exists() for test in mutant.tests)
