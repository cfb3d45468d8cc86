# The two commands: `make demo` and `make test`. Everything else is a part of them.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 600
# Fastest from nothing; `cmake --preset full` alone builds file by file, with line tables.
CONFIGURE := cmake --preset full -DNEAP_UNITY=ON -DCMAKE_BUILD_TYPE=Release
.PHONY: help setup build build-demo core test test-slow test-core test-asan test-tsan demo package bench fuzz site format lint clean

help:
	@echo "make demo       set up, build, and run SFT, reward model and PPO under a memory ceiling (CPU)"
	@echo "make test       set up, build, and run every test that needs no GPU"
	@echo "make core       build everything below bridge/: no torch, no CUDA toolkit, no Python"
	@echo "make test-slow  set up, build, and run the trainings that take minutes"
	@echo "make test-core, test-asan, test-tsan, bench, fuzz, package, site, format, lint, clean"

setup:
	@scripts/setup >/dev/null

build: setup
	@root=$$(scripts/setup) && export NEAP_TORCH_ROOT=$$root && \
	  $(CONFIGURE) $(CMAKE_ARGS) >build-configure.log 2>&1 || { cat build-configure.log; exit 1; }
	@rm -f build-configure.log
	@cmake --build --preset full -j$(JOBS)

core:
	@scripts/setup --core
	@cmake --preset core >/dev/null
	@cmake --build --preset core -j$(JOBS)

test: build
	@scripts/run-tests full

# Trainings that take minutes each; `make test` leaves them out.
test-slow: build
	@scripts/run-tests slow

test-core: core
	@scripts/run-tests core

test-asan test-tsan:
	@scripts/setup --core
	@cmake --preset $(@:test-%=%) >/dev/null
	@cmake --build --preset $(@:test-%=%) -j$(JOBS)
	@scripts/run-tests $(@:test-%=%)

# The program and the trainer; tests and MPI are left as the build folder has them, off in a new one.
build-demo:
	@root=$$(scripts/setup --demo) && export NEAP_TORCH_ROOT=$$root && \
	  { [ -e build/full/build.ninja ] || $(CONFIGURE) -DNEAP_TESTS=OFF -DNEAP_MPI=OFF $(CMAKE_ARGS); } >build-configure.log 2>&1 || \
	  { cat build-configure.log; exit 1; }
	@rm -f build-configure.log
	@cmake --build --preset full -j$(JOBS) --target neap

demo: build-demo
	@scripts/demo

package: build
	@scripts/package

bench:
	@scripts/setup --core
	@command -v pkg-config >/dev/null; cmake --preset bench >/dev/null
	@cmake --build --preset bench -j$(JOBS)

fuzz:
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz -j$(JOBS) --target neap_fuzzers
	@scripts/fuzz --seconds $(FUZZ_SECONDS)

# The docs as a web site in build/site; SITE=--serve shows it.
site:
	@scripts/site $(SITE)

format:
	@git ls-files '*.h' '*.cpp' '*.c' | xargs clang-format -i

lint:
	@scripts/lint

clean:
	rm -rf build dist
