#!/usr/bin/env python3
"""Usage: one_definition_test.py WORKSPACE_FILE

Fails where two files define the same thing in the same namespace: a class, struct, union or enum of any file, or an
alias, a constant or a function with a body of headers. Functions may share a name, but with nothing else. Two classes
with one name are two definitions for the linker, which keeps the functions of one of them for both. What lies in an
anonymous namespace belongs to its file. It reads all of megatron/ and tools/ of the tree in which WORKSPACE_FILE
really lies.
"""

import collections
import os
import re
import sys

HEADERS = (".h", ".cuh")
SOURCES = (".cc", ".cu")

TYPE = "type"
ALIAS = "alias"
CONSTANT = "constant"
FUNCTION = "function"

# `name` has its namespaces; a specialization has its arguments and a function its parameters.
Definition = collections.namedtuple("Definition", "kind name line")

_CLASS_KEYS = ("class", "struct", "union", "enum")
_SPECIFIERS = {"constexpr", "const", "constinit", "inline", "static", "extern", "thread_local", "volatile", "typedef"}
_DECLARES_CONSTANT = {"constexpr", "const", "constinit"}
_WITH_ARGUMENTS = ("alignas", "__attribute__", "__align__", "__launch_bounds__")
_OPENING, _CLOSING = "([{", ")]}"

_TOKEN = re.compile(
    r"""
    (?P<nothing>\s+|//(?:\\\n|[^\n])*|/\*.*?\*/)
  | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)")
  | (?P<text>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
  | (?P<letter>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
  | (?P<directive>\#(?:\\\n|/\*.*?\*/|(?!//)[^\n])*)
  | (?P<number>\.?\d(?:'[\w]|[eEpP][+-]|[\w.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign>::|->|[=!<>+\-*/%&|^]=|&&|\|\||.)
    """,
    re.VERBOSE | re.DOTALL)


def tokens_of(text):
    """Yields pairs of a token and its line. A string is "", and of the preprocessor's lines only the conditions
    are left, as #if, #else and #endif."""
    line, at_start_of_line = 1, True
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match.group()
        if kind in ("raw", "text"):
            yield '""', line
        elif kind == "letter":
            yield "0", line
        elif kind == "directive":
            name = re.match(r"#\s*(\w*)", token).group(1)
            if at_start_of_line and name in ("if", "ifdef", "ifndef"):
                yield "#if", line
            elif at_start_of_line and name in ("else", "elif"):
                yield "#else", line
            elif at_start_of_line and name == "endif":
                yield "#endif", line
        elif kind != "nothing":
            yield token, line
        at_start_of_line = "\n" in token if kind == "nothing" else False
        line += token.count("\n")


def _is_word(token):
    return re.match(r"[A-Za-z_]", token) is not None


def _end_of(tokens, start, opening, closing):
    """The place behind the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(tokens)):
        if tokens[i] == opening:
            depth += 1
        elif tokens[i] == closing:
            depth -= 1
            if depth == 0:
                return i + 1
    return len(tokens)


def _end_of_angles(tokens, start):
    depth, i = 0, start
    while i < len(tokens):
        if tokens[i] == "(":
            i = _end_of(tokens, i, "(", ")")
            continue
        depth += (tokens[i] == "<") - (tokens[i] == ">")
        i += 1
        if depth == 0:
            break
    return i


def _without_attributes(tokens):
    kept, i = [], 0
    while i < len(tokens):
        if tokens[i:i + 2] == ["[", "["]:
            i = _end_of(tokens, i, "[", "]")
        elif tokens[i] in _WITH_ARGUMENTS and tokens[i + 1:i + 2] == ["("]:
            i = _end_of(tokens, i + 1, "(", ")")
        else:
            kept.append(tokens[i])
            i += 1
    return kept


def _without_prefixes(tokens):
    """A declaration without `template <...>` and without the calls of macros that stand in front of it."""
    while tokens:
        if tokens[0] == "template" and tokens[1:2] == ["<"]:
            tokens = tokens[_end_of_angles(tokens, 1):]
        elif tokens[1:2] == ["("] and tokens[0].isupper():
            rest = tokens[_end_of(tokens, 1, "(", ")"):]
            if not rest or not _is_word(rest[0]):
                return tokens
            tokens = rest
        else:
            return tokens
    return tokens


def _first_at_depth_0(tokens, wanted):
    """The place of the first token among `wanted` that is in no brackets, or None."""
    depth = 0
    for i, token in enumerate(tokens):
        if depth == 0 and token in wanted and not (i > 0 and tokens[i - 1] == "operator"):
            return i
        depth += (token in _OPENING) - (token in _CLOSING)
    return None


def _type_name(tokens):
    """The name of the class that a head defines: `struct Name : Base`. None for what is no class with a name."""
    i = 0
    while i < len(tokens) and tokens[i] in _SPECIFIERS:
        i += 1
    if i == len(tokens) or tokens[i] not in _CLASS_KEYS:
        return None
    i += 1
    if tokens[i - 1] == "enum" and tokens[i:i + 1] in (["class"], ["struct"]):
        i += 1
    # Macros with arguments stand in front of the name.
    while tokens[i + 1:i + 2] == ["("]:
        i = _end_of(tokens, i + 1, "(", ")")
    tokens = tokens[i:]
    colon = _first_at_depth_0(tokens, (":",))
    if colon is not None:
        tokens = tokens[:colon]
    if "(" in tokens:
        return None  # a function that returns a class
    if tokens[-1:] == ["final"] and len(tokens) > 1:
        tokens = tokens[:-1]
    if not tokens:
        return None
    if "<" in tokens:
        start = tokens.index("<") - 1
    else:
        start = len(tokens) - 1
    while start >= 2 and tokens[start - 1] == "::":
        start -= 2
    return "".join(tokens[start:])


def _constants(tokens):
    """The names that `constexpr int kFew = 1, kMany = 9` gives values to."""
    first = _first_at_depth_0(tokens, ("=", "{", "["))
    head = tokens[:first] if first is not None else []
    if "(" in head or "operator" in head or not _DECLARES_CONSTANT.intersection(head) or not _is_word(head[-1]):
        return []
    if len(head) > 1 and head[-2] == "::":
        return []  # a member's definition
    names, depth = [head[-1]], 0
    for i, token in enumerate(tokens[first:], first):
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0 and token == "," and tokens[i + 2:i + 3] == ["="] and _is_word(tokens[i + 1]):
            names.append(tokens[i + 1])
    return names


def _parameter_type(tokens):
    """A parameter without its name and its default value."""
    value = _first_at_depth_0(tokens, ("=",))
    if value is not None:
        tokens = tokens[:value]
    named = (len(tokens) > 1 and _is_word(tokens[-1]) and
             (_is_word(tokens[-2]) and tokens[-2] not in ("const", "unsigned", "signed", "struct", "typename") or
              tokens[-2] in ("*", "&", "&&", ">")))
    return " ".join(tokens[:-1] if named else tokens)


def _signature(tokens):
    """`Name(types of the parameters)` of a function's head, or None for a member or what is no function."""
    start = _first_at_depth_0(tokens, ("(",))
    if start is None or start == 0 or not _is_word(tokens[start - 1]) or tokens[start - 2:start - 1] == ["::"]:
        return None
    if start < 2 or tokens[start - 2] == "~" or "operator" in tokens[:start]:
        return None
    inside = tokens[start + 1:_end_of(tokens, start, "(", ")") - 1]
    parameters, depth, parameter = [], 0, []
    for token in inside:
        depth += (token in _OPENING or token == "<") - (token in _CLOSING or token == ">")
        if token == "," and depth == 0:
            parameters.append(_parameter_type(parameter))
            parameter = []
        else:
            parameter.append(token)
    if parameter:
        parameters.append(_parameter_type(parameter))
    return "%s(%s)" % (tokens[start - 1], ", ".join(parameters))


class _Reader:
    """Reads the declarations of namespaces, and none of those in classes and functions."""

    def __init__(self, text):
        self.found = []
        self._scopes = []  # the names of the namespaces around, or None for an anonymous one
        self._head = []  # the declaration that is being read
        self._line = 1
        self._depth = 0  # of braces that open no namespace
        self._brackets = 0  # of ( and [
        self._is_whole = False  # whether a declaration ends where its braces do
        self._before_branches = []  # the state at the conditions around, where each branch starts
        self._read(text)

    def _read(self, text):
        for token, line in tokens_of(text):
            if token == "#if":
                self._before_branches.append(self._state())
            elif token == "#else":
                if self._before_branches:
                    self._scopes, self._head, self._depth, self._brackets, self._is_whole = self._before_branches.pop()
                    self._before_branches.append(self._state())
            elif token == "#endif":
                if self._before_branches:
                    self._before_branches.pop()
            else:
                self._take(token, line)

    def _state(self):
        return list(self._scopes), list(self._head), self._depth, self._brackets, self._is_whole

    def _take(self, token, line):
        if self._depth > 0:
            self._depth += (token == "{") - (token == "}")
            if self._depth == 0:
                if self._is_whole:
                    self._head = []
                else:
                    self._head.append("}")
            return
        if not self._head:
            self._line = line
        if token == ";" and self._brackets == 0:
            self._end()
        elif token == "{" and self._brackets == 0:
            self._open()
        elif token == "}" and self._brackets == 0:
            if self._scopes:
                self._scopes.pop()
            self._head = []
        else:
            self._brackets += (token in "([") - (token in ")]")
            self._head.append(token)

    def _declaration(self):
        return _without_prefixes(_without_attributes(self._head))

    def _open(self):
        head = self._declaration()
        if head[:1] == ["inline"] and head[1:2] == ["namespace"]:
            head = head[1:]
        if head[:1] == ["namespace"]:
            names = [token for token in head[1:] if token not in ("::", "inline")]
            self._scopes.append("::".join(names) if names else None)
            self._head = []
            return
        if head == ["extern", '""']:
            self._scopes.append("")
            self._head = []
            return
        # Not the value of a variable behind its class, nor a constructor's body behind its members.
        is_first = _first_at_depth_0(self._head, ("{",)) is None
        name = _type_name(head) if is_first else None
        if name is not None:
            self._add(TYPE, name)
        is_value = name is None and _first_at_depth_0(head, ("=",)) is not None
        is_member = _first_at_depth_0(head, (":",)) is not None and (_is_word(head[-1]) or head[-1] == ">")
        # A class, a variable's value and a constructor's member may be followed by more.
        self._is_whole = name is None and not is_value and not is_member and "(" in head
        signature = _signature(head) if self._is_whole and is_first and "template" not in self._head else None
        if signature is not None:
            self._add(FUNCTION, signature)
        self._head.append("{")
        self._depth = 1

    def _end(self):
        head = self._declaration()
        if head[:1] == ["using"] and head[2:3] == ["="]:
            self._add(ALIAS, head[1])
        elif head[:1] == ["typedef"] and len(head) > 2 and "(" not in head and head[1] not in _CLASS_KEYS:
            self._add(ALIAS, head[-1])
        elif head and not any(key in head[:3] for key in _CLASS_KEYS):
            for name in _constants(head):
                self._add(CONSTANT, name)
        self._head = []

    def _add(self, kind, name):
        if None in self._scopes:
            return
        self.found.append(Definition(kind, "::".join([scope for scope in self._scopes if scope] + [name]), self._line))


def definitions(text):
    """The definitions in namespaces, but for anonymous ones, in the text of a file. All branches of the
    preprocessor's conditions are read, each from where they begin."""
    return _Reader(text).found


def clashes(files):
    """Lines about what several files define, given a dictionary of paths and texts."""
    places = collections.defaultdict(dict)
    for path, text in sorted(files.items()):
        for definition in definitions(text):
            if definition.kind == TYPE or path.endswith(HEADERS):
                places[definition.name].setdefault(path, definition)
    # A function has its bare name too, which no other thing may have.
    for name, found in list(places.items()):
        bare = name.partition("(")[0]
        if bare != name and bare in places:
            for path, definition in found.items():
                places[bare].setdefault(path, definition)
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield "%s is defined by %s" % (
                name, " and ".join("%s:%d (%s)" % (path, d.line, d.kind) for path, d in sorted(found.items())))


def files_of(root):
    files = {}
    for room in ("megatron", "tools"):
        for folder, folders, names in os.walk(os.path.join(root, room)):
            folders[:] = [name for name in folders if not name.startswith("bazel-")]
            for name in names:
                if name.endswith(HEADERS + SOURCES):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        files[os.path.relpath(path, root)] = file.read()
    return files


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = os.path.dirname(os.path.realpath(sys.argv[1]))
    files = files_of(root)
    if not files:
        sys.exit("no source found under %s: is this the source tree?" % root)
    found = list(clashes(files))
    if found:
        print("\n".join(found))
        sys.exit("Give one of the two another name, or both one header; what one .cc file alone needs belongs in an "
                 "anonymous namespace.")
    print("%d files, none of which defines again what another does" % len(files))


if __name__ == "__main__":
    main()
