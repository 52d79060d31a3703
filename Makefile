# Each target does its own set-up in .venv; the second time that takes no time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HOSTS := .venv-hosts
VISION := .venv-vision
RELEASE := .venv-release
SITE := import sysconfig; path = sysconfig.get_path("purelib")
# The tests start some two hundred processes, and each would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test pytest test-gpu test-hosts test-vision docs lint format bench-cpu bench-gpu bench-memory bench-harness tables wheels clean

demo: $(READY)  ## compare Adan with four others on three real workloads, and write a report
	rm -rf demo
	$(BIN)/adan-bench compare digits-vit digits-resnet pycode-gpt2 \
		--optimizers adan,adamw,muon,lamb,sgd-momentum --seeds 3 --jobs 2 --out demo

test: $(READY)  ## lint, types, all tests but torchvision's, DeepSpeed's, torchao's and torchtitan's
	@$(MAKE) --no-print-directory --jobs=2 lint pytest  # mypy has use for one core only

pytest: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore tests/vision

test-gpu: $(READY)  ## what runs natively on a GPU: all tests of the optimizer, and the harness's of captured steps
	$(BIN)/python -m pytest -n 8 tests/adan
	$(BIN)/python -m pytest -n 8 tests/adan_bench/test_graph_cuda.py  # torch's own tests, above, freeze the flags of cuDNN

test-hosts: $(READY)  ## the examples that need DeepSpeed, torchao or torchtitan
	@test -x $(HOSTS)/bin/python || $(BIN)/python -m venv $(HOSTS)
	$(BIN)/python -c '$(SITE); print(f"import site; site.addsitedir({path!r})")' \
		> "$$($(HOSTS)/bin/python -c '$(SITE); print(path)')/base.pth"
	$(HOSTS)/bin/python -m pip install --quiet --upgrade --constraint requirements.txt setuptools  # DeepSpeed builds with it
	DS_BUILD_OPS=0 $(HOSTS)/bin/python -m pip install --quiet --no-build-isolation \
		--constraint requirements.txt --requirement requirements-hosts.txt
	$(HOSTS)/bin/python -m pip install --quiet --no-deps --requirement requirements-torchtitan.txt
	$(HOSTS)/bin/python -m pytest -rs tests/examples -k 'deepspeed or torchao or torchtitan'

test-vision: $(READY)  ## what needs torchvision
	@test -x $(VISION)/bin/python || $(BIN)/python -m venv $(VISION)
	$(BIN)/python -c '$(SITE); print(f"import site; site.addsitedir({path!r})")' \
		> "$$($(VISION)/bin/python -c '$(SITE); print(path)')/base.pth"
	$(VISION)/bin/python -m pip install --quiet --no-deps --requirement requirements-vision.txt
	$(VISION)/bin/python tests/vision/cuda_stubs.py $(VISION)/stubs
	LD_LIBRARY_PATH="$(CURDIR)/$(VISION)/stubs$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}" $(VISION)/bin/python -m pytest tests/vision

docs: $(READY)  ## the documentation site, into docs/_build; any warning or dead link is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build
	@echo "docs/_build/index.html: $$(ls docs/_build/*.html | wc -l) pages, no warnings"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-cpu: $(READY)  ## time a step on this CPU beside AdamW's, into results/bench-cpu.json
	$(BIN)/python benchmarks/cpu.py

bench-gpu: $(READY)  ## the same on a GPU, into results/bench-gpu.json
	$(BIN)/python benchmarks/gpu.py

bench-memory: $(READY)  ## the memory of a whole training step on a GPU, into results/memory-gpu.json
	$(BIN)/python benchmarks/memory.py

bench-harness: $(READY)  ## steps per second of adan-bench on a GPU, into results/bench-harness.json; needs ADAN_DATA
	$(BIN)/python benchmarks/harness.py

tables: $(READY)  ## write the tables and figures of README.md and docs/ from the records under results/
	$(BIN)/python benchmarks/readme.py

wheels:  ## the sdist and wheels for Linux on x86-64 and arm64 and for any platform, into dist/
	@test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --requirement requirements-release.txt
	$(RELEASE)/bin/python tools/wheels.py

$(READY): requirements.txt pyproject.toml setup.py src/adan/engines/cpu.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "adan needs Python 3.10 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(READY)

clean:
	rm -rf $(VENV) $(HOSTS) $(VISION) $(RELEASE) build demo dist docs/_build src/*.egg-info
