"""record.json as it is read back: the sets of words in it are closed."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from run_folders import make_record

from proftrack import record as records
from proftrack.errors import ProftrackError
from proftrack.measures.quality import FLAGS
from proftrack.record.figures import FlagCode, IdleCause, KernelKind, Limit
from proftrack.record.verdict import GPU_REGIMES, HostRegime, Regime
from proftrack.verdict.evidence import CAUSE_TEXT, LIMIT_TEXT


def test_a_saved_record_is_the_same_record(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.save(make_record(), path)
    assert records.load(path) == make_record()


@pytest.mark.parametrize(
    ("known", "other", "place"),
    [
        ('"regime": "overhead-bound"', '"regime": "moon-bound"', "$.verdict.regime"),
        ('"confidence": "high"', '"confidence": "total"', "$.verdict.confidence"),
        ('"code": "uneven_steps"', '"code": "odd_steps"', "$.quality[0].code"),
        ('"limit": "arithmetic"', '"limit": "magic"', "$.kernels[0].limit"),
    ],
)
def test_an_unknown_word_is_refused_with_its_place(tmp_path: Path, known: str, other: str, place: str) -> None:
    path = tmp_path / "record.json"
    text = records.dump(make_record()).decode()
    assert known in text
    path.write_text(text.replace(known, other))
    with pytest.raises(ProftrackError) as caught:
        records.load(path)
    word = other.rpartition(": ")[2].strip('"')
    assert f"this proftrack does not know (Invalid enum value '{word}' - at `{place}`)" in str(caught.value)
    assert caught.value.remedy == "read it with the proftrack that wrote it, or a newer one"


def test_each_word_has_its_sentence() -> None:
    assert set(FLAGS) == set(get_args(FlagCode))
    assert set(LIMIT_TEXT) == set(get_args(Limit))
    assert set(CAUSE_TEXT) == set(get_args(IdleCause))
    assert (*get_args(HostRegime), *GPU_REGIMES, "inconclusive") == get_args(Regime)
    assert len(set(get_args(KernelKind))) == len(get_args(KernelKind))
