"""WML, the plain text that Wesnoth describes its units in: macros are written out, tags become a tree."""

import re
from dataclasses import dataclass, field

MAX_DEPTH = 12
"""Of macros within macros."""
MAX_CHARACTERS = 1 << 20
"""Of one file with its macros written out: the largest of the game is a tenth of that."""
MAX_RUN = 100
"""Numbers that one range or one repeat stands for."""

DEFINITION = re.compile(r"^[ \t]*#define +(\w+)([^\n]*)\n(.*?)#enddef", re.MULTILINE | re.DOTALL)
TOKEN = re.compile(r'\[(/?)\+?(\w+)\]|([\w,]+)[ \t]*=[ \t]*(?:_[ \t]*)?(?:"((?:[^"]|"")*)"|([^\n]*))')


@dataclass
class Tag:
    """`[name]`, its values and the tags within it, in order."""

    name: str
    values: dict[str, str] = field(default_factory=dict)
    tags: list["Tag"] = field(default_factory=list)

    def named(self, name: str) -> list["Tag"]:
        """Its tags of a name."""
        return [tag for tag in self.tags if tag.name == name]


def parse(text: str, macros: str = "") -> Tag:
    """A text as a tag without a name. macros: a text with definitions that it may use, beside its own.

    A macro that is not defined is empty. What does not look like WML is passed over.
    """
    known = {m[1]: (m[2].split(), m[3]) for m in DEFINITION.finditer(f"{macros}\n{text}")}
    plain = _without_comments(DEFINITION.sub("", text))
    root = Tag("")
    opened = [root]
    for match in TOKEN.finditer(_written_out(plain, known, MAX_DEPTH)[:MAX_CHARACTERS]):
        closes, name, keyword, quoted, bare = match.groups()
        if keyword:
            opened[-1].values[keyword] = quoted if quoted is not None else bare.strip()
        elif not closes:
            opened[-1].tags.append(Tag(name))
            opened.append(opened[-1].tags[-1])
        elif len(opened) > 1:
            opened.pop()
    return root


def spread(text: str) -> list[str]:
    """What a list in brackets stands for: "1~3,2" is 1, 2, 3, 2; "75*2" is 75, 75; zeros in front stay."""
    values: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        value, _, times = part.partition("*")
        first, _, last = value.partition("~")
        run = [value]
        if first.isdecimal() and last.isdecimal():
            step = 1 if int(last) >= int(first) else -1
            run = [str(n).zfill(len(first)) for n in range(int(first), int(last) + step, step)[:MAX_RUN]]
        values += [value for value in run for _ in range(min(int(times), MAX_RUN) if times.isdecimal() else 1)]
    return values


def _without_comments(text: str) -> str:
    return re.sub(r"(?m)^[ \t]*#.*$", "", text)


def _written_out(text: str, known: dict[str, tuple[list[str], str]], depth: int) -> str:
    """The text with each `{MACRO ARGUMENT ...}` replaced by what it is defined as."""
    written: list[str] = []
    at = length = 0
    while at < len(text) and length < MAX_CHARACTERS:
        start = text.find("{", at)
        if start < 0:
            written.append(text[at:])
            break
        written.append(text[at:start])
        end = _closing(text, start)
        written.append(_macro(text[start + 1 : end], known, depth))
        length += len(written[-1]) + len(written[-2])
        at = end + 1
    return "".join(written)


def _macro(call: str, known: dict[str, tuple[list[str], str]], depth: int) -> str:
    name, *arguments = _words(call) or [""]
    if name not in known or depth == 0:
        return ""
    parameters, body = known[name]
    body = _without_comments(re.sub(r"(?ms)^[ \t]*#arg.*?#endarg", "", body))
    for parameter, argument in zip(parameters, arguments, strict=False):
        body = body.replace(f"{{{parameter}}}", argument)
    return _written_out(body, known, depth - 1)


def _closing(text: str, start: int) -> int:
    """Where the brace opened at `start` closes; the text's end where it never does."""
    depth = 0
    for match in re.finditer(r"[{}]", text[start:]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return start + match.start()
    return len(text)


def _words(call: str) -> list[str]:
    """A macro's name and arguments: words, "quoted", (in parentheses) or {macros}; quotes and parentheses go."""
    words, at = [], 0
    while match := re.compile(r'\s*(?:"([^"]*)"|(\()|(\{)|([^\s"({]+))').match(call, at):
        if match[2] or match[3]:
            pairs = "()" if match[2] else "{}"
            depth, end = 0, match.end() - 1
            for end in range(match.end() - 1, len(call)):
                depth += {pairs[0]: 1, pairs[1]: -1}.get(call[end], 0)
                if depth == 0:
                    break
            words.append(call[match.end() : end] if match[2] else call[match.end() - 1 : end + 1])
            at = end + 1
        else:
            words.append(match[1] if match[1] is not None else match[4])
            at = match.end()
    return words
