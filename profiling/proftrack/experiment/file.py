"""Find an experiment's YAML file and read its keys and values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from proftrack.errors import UsageError
from proftrack.files import no_such_file
from proftrack.text import meant
from proftrack.untrusted import MAX_LEVELS

_SUFFIXES = (".yaml", ".yml")


def find(reference: str) -> Path:
    """The file that `reference` names: a path, or a bare name under experiments/.

    Raises UsageError that lists the available names.
    """
    if not reference.strip():
        raise UsageError("the experiment's name is empty", "give a YAML file or a name under experiments/")
    given = Path(reference.strip()).expanduser()
    bare = len(given.parts) == 1
    for candidate in _candidates(given, bare):
        if candidate.is_file():
            return candidate
    raise UsageError(*_not_found(reference, given, bare))


def _not_found(reference: str, given: Path, bare: bool) -> tuple[str, str]:
    """Why `reference` names no experiment, and what to write instead."""
    if given.is_dir():
        examples = sorted(str(path) for path in given.glob("*") if path.suffix in _SUFFIXES) or ["my_model.yaml"]
        return f"{reference}: a folder, not an experiment", f"name a YAML file, such as {examples[0]}"
    if given.is_file():
        is_trace = given.suffix in (".json", ".gz")
        return f"{reference}: not a YAML file", (
            f"to analyze a trace, run proftrack analyze {reference}"
            if is_trace
            else "an experiment is a .yaml file that names its workload"
        )
    names = [path.stem for path in catalog()]
    available = f"known: {', '.join(names)}" if names else "there is no experiments/ folder with YAML files here"
    is_yaml = given.suffix in _SUFFIXES
    if not bare:
        return no_such_file(given) if is_yaml else f"no experiment {reference!r}", available
    what = f"{reference}: no such file, here or" if is_yaml else f"no experiment {reference!r}"
    return f"{what} under experiments/", f"{available}{meant(given.stem, names)}"


def catalog() -> list[Path]:
    """The experiments that a bare name can mean, sorted by name. Those in ./experiments/ hide the project's."""
    by_name: dict[str, Path] = {}
    for folder in reversed(_folders()):
        by_name |= {path.stem: path for path in folder.glob("*") if path.suffix in _SUFFIXES}
    return [by_name[name] for name in sorted(by_name)]


def _folders() -> list[Path]:
    """The folders where bare names are looked up; the project's own is next to the source root `profiling/`."""
    return [Path("experiments"), Path(__file__).resolve().parents[3] / "experiments"]


def _candidates(given: Path, bare: bool) -> list[Path]:
    named = given.suffix in _SUFFIXES
    files = [given] if named else [given.with_name(given.name + suffix) for suffix in _SUFFIXES]
    here = files if named or not bare else []
    return here + ([folder / file for folder in _folders() for file in files] if bare else [])


def read(path: Path) -> dict[Any, Any]:
    """The document's keys and values. Raises UsageError with file and line if it is not a YAML mapping."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})", "save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{path}{line}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if document is None:
        raise UsageError(f"{path}: empty", "an experiment needs at least `workload: file.py:build`")
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise UsageError(f"{path}: holds a {kind}, not keys and values", "write lines like `workload: file.py:build`")
    return document


def scalar(text: str) -> Any:
    """One value from the command line, read as in the file except that 010 is ten and 1:30 is text.

    Text that is not valid YAML is returned unchanged.
    """
    try:
        return yaml.load(text, Loader=_CommandLineLoader)
    except (yaml.YAMLError, ValueError):
        return text


class _Loader(yaml.SafeLoader):
    """The safe loader, which also rejects duplicate keys: one of the values would be lost silently."""

    level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if not self.check_event(yaml.SequenceStartEvent, yaml.MappingStartEvent):
            return super().compose_node(parent, index)
        if self.level >= MAX_LEVELS:
            why = f"nested deeper than {MAX_LEVELS} levels"
            raise yaml.composer.ComposerError(None, None, why, self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        self.level += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.level -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    problem = f"key {key.value!r} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_FIRST_CHARACTERS = list("-+0123456789")
# PyYAML implements YAML 1.1, where 1e-3 is text. Anyone who writes it means the number.
_Loader.add_implicit_resolver(_FLOAT, re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), _FIRST_CHARACTERS)


class _CommandLineLoader(_Loader):
    """Numbers as a person types them: YAML 1.1 reads 010 as octal (8), 08 as text and 1:30 in base 60 (90)."""

    def construct_typed_int(self, node: yaml.ScalarNode) -> int | str:
        if ":" in node.value:
            return str(node.value)
        digits = node.value.replace("_", "")
        return int(digits, 0 if digits.lstrip("+-")[:2] in ("0x", "0b") else 10)

    def construct_typed_float(self, node: yaml.ScalarNode) -> float | str:
        return str(node.value) if ":" in node.value else self.construct_yaml_float(node)


_CommandLineLoader.add_implicit_resolver(_INT, re.compile(r"^[-+]?[0-9]+$"), _FIRST_CHARACTERS)
_CommandLineLoader.add_constructor(_INT, _CommandLineLoader.construct_typed_int)
_CommandLineLoader.add_constructor(_FLOAT, _CommandLineLoader.construct_typed_float)
