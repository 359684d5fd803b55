# SPDX-License-Identifier: Apache-2.0
# make demo    build gpuwhy and see it work on a simulated GPU
# make tutorial  a leak found, run into and fixed, step by step: on a GPU if there is one, else on the simulated one
# make test    every check: format, lints, docs, tests (root: they load eBPF programs)
# make build   target/release/gpuwhy, which needs only glibc 2.27 and libgcc_s and can be copied
# make kernels  the tests that matter there, on Linux 6.1 and 6.12 in a virtual machine; `make test` does 6.1
# make fuzz    spoiled inputs for everything that reads what strangers wrote (FUZZ_SECONDS=60 FUZZ_TARGET=name)
# make score   how often gpuwhy explain is right, on jobs with a known trouble (root, about 10 minutes)
# make bench   what tracing costs, beside perf; how fast PyTorch's files are read, beside Python
#
# On a bare Debian or Ubuntu machine with Rust, what else is needed is installed first; nothing is asked of
# apt when it is already there.
.PHONY: build demo tutorial test kernels fuzz bench score deps deps-test deps-bench clean

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
CARGO ?= cargo
# Cargo runs each test program through this, where it is not root already.
RUNNER := $(if $(SUDO),$(foreach arch,X86_64 AARCH64,CARGO_TARGET_$(arch)_UNKNOWN_LINUX_GNU_RUNNER="$(SUDO) -E"))

build: deps
	$(CARGO) build --release --locked

demo: build
	$(SUDO) target/release/gpuwhy demo

# TUTORIAL=--sim or --gpu chooses; run files go to target/leak-tutorial.
tutorial: build
	examples/leak-tutorial/run.sh --out target/leak-tutorial $(TUTORIAL)

# One build serves everything: tests run in the release profile, too. The tests need root for eBPF; cargo
# itself stays the caller's, so that target/ does.
test: deps-test
	$(CARGO) fmt --check
	$(CARGO) clippy --release --locked --all-targets -- -D warnings
	python3 -m unittest discover -s bench
	python3 -m unittest discover -s tests/kernels
	python3 -m unittest discover -s scripts
	python3 scripts/dependencies.py $(CARGO)
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked --no-deps --quiet
	$(CARGO) build --release --locked
	$(RUNNER) sh scripts/test.sh $(CARGO)
	python3 tests/kernels/run.py 6.1

# Others: make kernels KERNELS="6.12"
KERNELS ?= 6.1 6.12
kernels: deps-test
	python3 tests/kernels/run.py $(KERNELS)

# How long each target is tried, in seconds (fuzz/README.md).
FUZZ_SECONDS ?= 60
fuzz: deps
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) test --release --locked -p gpuwhy-fuzz --test targets -- --nocapture

# Another seed gives other variations: make score SCORE="--seed 7 --only hog,quota"
score: build
	$(CARGO) build --release --locked -p simgpu --example install
	python3 -m unittest discover -s score
	$(SUDO) python3 score/run.py $(SCORE)

bench: build deps-bench
	$(SUDO) python3 bench/run.py
	$(SUDO) python3 bench/host.py
	$(CARGO) build --release --locked -p simgpu --example install
	$(SUDO) python3 bench/explain.py
	$(SUDO) python3 bench/mcp.py
	python3 bench/profile_snapshot.py
	python3 bench/profile_trace.py

deps:
	@sh scripts/deps.sh build

deps-test:
	@sh scripts/deps.sh test

deps-bench:
	@sh scripts/deps.sh bench

clean:
	$(CARGO) clean
