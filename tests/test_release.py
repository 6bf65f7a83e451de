"""What is handed on besides the code: the site builds without a warning, and the sdist and wheel work elsewhere."""

import ast
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from pydoc import locate
from threading import Thread

import pytest
import yaml
from support.browser import rendered
from support.places import REPOSITORY

import kinoray

DOCS = REPOSITORY / "docs"


def test_every_public_name_is_in_the_api_page_and_none_else() -> None:
    told = re.findall(r"auto(?:function|class):: kinoray\.(\w+)$", (DOCS / "api.md").read_text(), re.M)
    assert sorted(told) == sorted(kinoray.__all__)


def test_every_page_is_in_the_sites_table_of_contents() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert set(text.split("{toctree}")[1].split("```")[0].split()[1:]) == pages
    assert {page.removesuffix(".md") for page in re.findall(r"\]\(([\w-]+\.md)\)", text)} == pages


def test_the_changelog_begins_with_the_version_of_the_package_and_its_citation_has_it() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.M)
    first = re.search(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(), re.M)
    assert first is not None and first[1] == version
    assert yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["version"] == version


def test_what_other_services_read_are_yaml_that_names_files_which_exist() -> None:
    (check,) = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "check.yml").read_text())["jobs"].values()
    (hooks,) = [repo["hooks"] for repo in yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]]
    words = [step["run"] for step in check["steps"] if "run" in step] + [hook["entry"] for hook in hooks]
    files = {word for line in words for word in line.split() if "/" in word and not word.startswith(".venv/")}
    assert len(files) == 3 and all((REPOSITORY / file).is_file() for file in files)


def test_exit_codes_of_the_page_are_those_of_the_code() -> None:
    table = (DOCS / "operations.md").read_text().split("## Exit codes")[1].split("\n## ")[0]
    told = {int(number) for line in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for number in line.split(",")}
    from kinoray import errors

    ends = {errors.FAILED, errors.WRONG, errors.SOME_FAILED, errors.NOT_REPEATED, errors.STOPPED}
    assert told == {0, *ends, 130, 143}
    assert (errors.INTERRUPTED, errors.TERMINATED) == (130, 143)


def test_variables_of_the_page_are_read_somewhere() -> None:
    table = (DOCS / "operations.md").read_text().split("## Variables")[1]
    told = set(re.findall(r"^\| `([A-Z_]+)` \|", table, re.M))
    files = [*(REPOSITORY / "platform").rglob("*.py"), *(REPOSITORY / "cluster").glob("*.py")]
    read = {
        node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert told and told - read <= {"HF_HOME"}, "huggingface_hub reads that one"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    pytest.importorskip("sphinx", reason="pip install 'kinoray[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-d", folder / "trees"]
    made = subprocess.run([*command, DOCS, folder / "html"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return folder / "html"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in ("kinoray.run", "kinoray.method.BaseMethod.loss", "kinoray.rule.Rule.with_term"):
        assert f'id="{name}"' in page


@pytest.mark.slow
def test_every_parameter_on_the_api_page_is_in_the_list_of_its_function_or_class(site: Path) -> None:
    from bs4 import BeautifulSoup  # furo needs it

    page = BeautifulSoup((site / "api.html").read_text(encoding="utf-8"), "html.parser")
    ids = {head["id"] for head in page.select("dt.sig[id]")}
    listed: dict[str, set[str]] = {}
    missing: dict[str, set[str]] = {}
    for head in page.select("dl.py > dt.sig"):
        name, kind = head["id"], head.parent["class"][1]
        asked = {parameter.select_one(".n").text for parameter in head.select(".sig-param:has(.n)")}
        heads = head.find_next_sibling("dd").select(":scope > .field-list > dt:-soup-contains('Parameters')")
        told = {word.text.lstrip("*") for field in heads for word in field.find_next_sibling("dd").select("strong")}
        if kind == "class":  # a dataclass documents its fields, or its base does
            bases = [f"{name.rpartition('.')[0]}.{base.__name__}" for base in locate(name).__mro__]
            told |= {word for word in asked for base in bases if f"{base}.{word}" in ids} | {"args", "kwargs"}
        listed[name], missing[name] = told, asked - told
    assert {name: words for name, words in missing.items() if words} == {}
    assert {"method", "stream", "settings", "watch"} <= listed["kinoray.run"]


@pytest.mark.slow
def test_the_sites_pages_show_in_a_browser(site: Path, tmp_path: Path) -> None:
    for name, told in (
        ("index", ("Continual video-language learning on", "kinoray reproduce bmu-table1", "Operations")),
        ("methods", ("FrameFusionMoE", "partly: of", "kinoray run bmu_moco")),
        ("operations", ("Exit codes", "KINORAY_RUNS")),
        ("api", ("momentum_weights", "Returns")),
        ("examples/1_quick_start", ("Quick start", "bmu_moco", "HM", "after", "street")),
        ("examples/4_sweep_and_figure", ("m_hat", "complete")),
        ("examples/6_search", ("a red square falls at the left by day", "day-red-left")),
    ):
        page = rendered((site / f"{name}.html").as_uri(), tmp_path / "profile")
        text = " ".join(re.sub(r"<[^>]+>", "", page).split())  # code has an element for each of its words
        assert [words for words in told if words not in text] == []


WIDTHS_PX = (390, 700, 1200)
MEASURE = """<body><script>
const opened = (page, width) => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; width: ${width}px; height: 900px`;
  frame.onload = () => done(frame);
  frame.src = page;
  document.body.append(frame);
});
const scrolls = element => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
const scrolled = element => element.tagName !== "ARTICLE" && (scrolls(element) || scrolled(element.parentElement));
(async () => {
  const told = [];
  for (const page of PAGES) for (const width of WIDTHS) {
    const frame = await opened(page, width), root = frame.contentDocument.documentElement;
    for (const element of root.querySelectorAll("article *"))
      if (element.getBoundingClientRect().right > root.clientWidth + 1 && !scrolled(element.parentElement)) {
        told.push(`${page} at ${width}: ${element.tagName} ${element.className}`);
        break;
      }
    frame.remove();
  }
  document.title = JSON.stringify(told);
})();
</script>"""
"""A page that opens others in frames of some widths: its title becomes a list of what juts out and does not scroll."""


@pytest.mark.slow
def test_nothing_in_the_sites_pages_is_wider_than_a_phones_a_tablets_or_a_laptops_window(
    site: Path, tmp_path: Path
) -> None:
    pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html"))
    (site / "wide.html").write_text("<article><p style='width: 800px'>")
    text = MEASURE.replace("PAGES", json.dumps([*pages, "wide.html"])).replace("WIDTHS", json.dumps(WIDTHS_PX))
    (site / "measure.html").write_text(text)
    with served(site) as address:
        title = re.search("<title>(.*)</title>", rendered(f"{address}/measure.html", tmp_path / "profile", 3_600_000))
    assert len(pages) > 30 and title is not None
    assert json.loads(html.unescape(title[1])) == ["wide.html at 390: P ", "wide.html at 700: P "]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder's files at an address of this machine: a page from a disk may not look into another."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.slow
def test_sdist_and_wheel_are_built_installed_and_tried_in_a_fresh_environment(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(REPOSITORY / "tests" / "release.py"), str(tmp_path / "dist")]
    made = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr
    assert sorted(path.suffix for path in (tmp_path / "dist").iterdir()) == [".gz", ".whl"]
    assert "base_moco" in made.stdout
