"""What a batch is asked for: its key, its name, and the parameters that all of its runs share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from proftrack.capture import dtype
from proftrack.experiment import Experiment
from proftrack.frontends.batch.key import key_of, surroundings
from proftrack.record import Record
from proftrack.rundir.batch import Group, Kind
from proftrack.store import keys


def new_group(
    kind: Kind, first: Experiment, differing: Collection[str], *, name: str, asked: Mapping[str, str], points: str = ""
) -> Group:
    """The group of a batch that is about to be measured.

    `first` is the experiment of its first part, `differing` are the parameters that its parts do not share, `asked` the
    parent run's params beside those that they share, `points` what is asked for under the key.
    """
    facts = surroundings(first)
    git = facts.git
    return Group(
        kind=kind,
        key=key_of(first, differing, facts),
        points=points,
        experiment=first.name,
        name=name,
        params={"experiment": first.name, **as_params(shared(first, differing)), **asked},
        tags={
            keys.DEVICE_TAG: facts.device.name if facts.device else "",
            **({keys.COMMIT_TAG: git.commit, keys.DIRTY_TAG: str(git.dirty).lower()} if git else {}),
        },
    )


def shared(first: Experiment, differing: Collection[str]) -> dict[str, Any]:
    """The parameters that all parts share, with their values."""
    return {key: value for key, value in first.params.items() if key not in differing}


def resolve(group: Group, parameters: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """The parameters that all parts share, `auto` replaced by what it became in one; the parent run gets them too."""
    became = record.run.params if record.run is not None else {}
    chosen = {key: became.get(key, value) for key, value in parameters.items()}
    group.params |= as_params(chosen)
    return chosen


def as_params(parameters: Mapping[str, Any]) -> dict[str, str]:
    """As params of a run, without what is still to be chosen: MLflow never changes one that was logged."""
    return {key: str(value) for key, value in parameters.items() if (key, value) != (dtype.PARAM, dtype.AUTO)}
