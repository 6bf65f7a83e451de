"""Lines of code and files, room by room: `make count`.

Of every Python file those lines count that hold code: none that is blank, a comment or a docstring, of an attribute
too. The rooms are the folders of the package, `kinoray` what lies beside them; the tests are without `tests/soak`.
"""

import ast
import io
import tokenize
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "platform" / "kinoray"
OTHERS = ("methods", "search_spaces", "cluster", "tests", "benchmarks")
SOAK = REPOSITORY / "tests" / "soak"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Count = tuple[int, int]
"""Lines of code, files."""
CEILING: dict[str, Count] = {"platform": (32_485, 327), "tests": (33_180, 292)}
"""What a room may hold at most. A change that adds more raises it by what it says, with its reason in the commit."""


def code_lines(text: str) -> int:
    """How many lines of a file hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    written = {line for t in tokens if t.type not in NO_CODE for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            written -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(written)


def count(folder: Path) -> Count:
    """Lines of code and files of a folder and all below it, without `tests/soak`."""
    return _of([path for path in folder.rglob("*.py") if SOAK not in path.parents])


def rooms() -> dict[str, Count]:
    """Those of the package by name, then `platform`, which is all of them, then the other folders."""
    folders = sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/**/*.py")})
    own = {"kinoray": _of(list(PACKAGE.glob("*.py")))} | {name: count(PACKAGE / name) for name in folders}
    return own | {name: count(REPOSITORY / name) for name in ("platform", *OTHERS)}


def _of(files: list[Path]) -> Count:
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in files), len(files)


def main() -> None:
    print(f"{'room':<16} {'lines':>7} {'files':>6}")
    for name, (lines, files) in rooms().items():
        print(f"{name:<16} {lines:>7,} {files:>6,}")


if __name__ == "__main__":
    main()
