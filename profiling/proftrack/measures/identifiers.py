"""The function that a kernel's name names, and the words of that function.

    void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...> > >(Params)
         namespace  function      its first template argument                       parameters

A namespace tells who wrote a kernel, arguments and parameters tell what it is used with. Only the function's own name
tells what it does. Names are untrusted text: every function here takes time that is linear in its argument, and gives
what it understood of a name that is cut short.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_BRACKET = re.compile(r"[<>(){}\[\]]")
_TOKEN = re.compile(r"(?P<name>[\w$]+)|(?P<scope>::)|(?P<group>[<({\[])")
_OPERATOR_SIGNS = re.compile(r"\(\)|[^\w\s(]+")
_QUALIFIERS = frozenset({"const", "volatile", "noexcept"})
_ANONYMOUS = ("(anonymous", "<unnamed>")
_SEPARATOR = re.compile(r"[,<({\[]")
_NOT_A_TYPE = re.compile(r"[-\d(&]|true\b|false\b")


class Part(NamedTuple):
    """One component of a qualified name, between two `::`."""

    name: str
    arguments: str = ""
    """The text between the angle brackets behind it."""


def words_of(name: str) -> str:
    """The words of an identifier in lower case with a space between them: `splitKReduce_2` gives "split k reduce 2".

    A word ends at an underscore, at a digit, or where the case changes.
    """
    return " ".join(_WORD.findall(name)).lower()


def parts_of(name: str) -> list[Part]:
    """The components of a kernel's qualified name, the function's own last; [] of an empty name.

    Return type, parameters, anonymous namespaces and suffixes are left out. `name` may be mangled (Itanium's scheme:
    CUDA, HIP and SYCL on Linux). A name that is no C++ name is one part.
    """
    name = name.strip().removeprefix("typeinfo name for ")
    if name.startswith("_ZTS"):  # SYCL names a kernel by the type of its function object
        name = "_Z" + name[4:]
    if name.startswith("_Z"):
        name = _unmangled(name) or name
    elif not any(mark in name for mark in ("(", "<", "::", "void ")):
        return [Part(name)] if name else []
    return _parts(name)


def types_in(arguments: str) -> Iterator[str]:
    """The template arguments that are types or functions, in order: no numbers, truth values or enumerators."""
    start = at = 0
    while at < len(arguments):
        found = _SEPARATOR.search(arguments, at)
        if found is None:
            break
        if found[0] != ",":
            at = _after_group(arguments, found.start())
            continue
        if not _NOT_A_TYPE.match(arguments[start : found.start()].strip() or "0"):
            yield arguments[start : found.start()].strip()
        start = at = found.end()
    if not _NOT_A_TYPE.match(arguments[start:].strip() or "0"):
        yield arguments[start:].strip()


def _parts(text: str) -> list[Part]:
    """The last qualified name before the parameters: what stands before it is its type."""
    path: list[Part] = []
    joined = ended = False  # the last token was `::`; the parameters have been passed
    at = 0
    while token := _TOKEN.search(text, at):
        at = token.end()
        if token["scope"]:
            joined = True
        elif word := token["name"]:
            if word == "operator" and (signs := _OPERATOR_SIGNS.match(text, at)):
                at = signs.end()
            if joined and path:
                path.append(Part(word))
            elif not ended and word not in _QUALIFIERS and text[token.start() - 1 : token.start()] != ">":
                path = [Part(word)]
            joined = False
        else:
            start, at = token.start(), _after_group(text, token.start())
            if text.startswith(_ANONYMOUS, start):
                path = path if joined else []  # otherwise what stood before it was the type
            elif text[start] == "<" and path and not joined and not path[-1].arguments and not ended:
                path[-1] = Part(path[-1].name, text[start + 1 : at - 1])
            elif text[start] == "(" and path and not joined:
                ended = True
    return path


def _after_group(text: str, at: int) -> int:
    """Where the bracket at `at` is closed; the text's end if it is not.

    Angle brackets within others are no brackets: `enable_if<((8)>(0)), void>`.
    """
    stack: list[str] = []
    for found in _BRACKET.finditer(text, at):
        sign = found[0]
        if sign == "<":
            if not stack or stack[-1] == "<":
                stack.append(sign)
        elif sign in "({[":
            stack.append(sign)
        elif sign == ">":
            if stack[-1] == "<" and text[found.start() - 1] != "-":
                stack.pop()
        else:
            while stack and stack.pop() == "<":
                pass
        if not stack:
            return found.end()
    return len(text)


_MANGLED = re.compile(
    r"(?P<length>\d+)"
    r"|L(?P<literal>[a-z]n?[\w.]{0,40}?E)"  # Lb1E, Li256E
    r"|(?P<open>[NIJFXL]|D[Tt]|U[lt])"
    r"|(?P<close>E\d*_?)"
    r"|(?P<skipped>DF\d+[b_x]?|D[a-z]|S[a-z]|S[0-9A-Z]*_|T[0-9]*_|.)",
    re.DOTALL,
)


def _unmangled(name: str) -> str:
    """A mangled name's identifiers with `::` and `<...>` around them, without its parameters.

    Substitutions (S_) are left out: they repeat a namespace.
    """
    out: list[str] = []
    context: list[str] = []
    at = 2
    while at < len(name) and (token := _MANGLED.match(name, at)):
        at = token.end()
        inside = context[-1] if context else ""
        if token["length"]:
            end = at + int(token["length"][:5])
            word, at = name[at:end], end
            out.append("::" if inside == "N" else "," if inside else "")
            out.append("(anonymous namespace)" if word.startswith("_GLOBAL_") else word)
        elif opened := token["open"]:
            if opened in ("I", "J"):
                out.append("<")
            elif opened == "N" and inside in ("I", "J"):
                out.append(",")
            context.append(opened)
        elif token["close"] and context and context.pop() in ("I", "J"):
            out.append(">")
        if not context and (out or token["close"]) and not name.startswith("I", at):
            break
    return "".join(out)
