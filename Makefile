# SPDX-License-Identifier: Apache-2.0
# make build     target/release/gpuwhy; it needs only glibc 2.27 and libgcc_s, so it can be copied
# make demo      build gpuwhy, then trace and explain a job on a simulated GPU (root)
# make tutorial  find a leak, run out of memory and fix it, on a GPU if PyTorch sees one, else simulated (root)
# make test      every check: format, lints, docs, all tests, and a selection on Linux 6.1 (root, for eBPF)
# make kernels   a selection of the tests on Linux 6.1 and 6.12 in a virtual machine
# make fuzz      spoiled inputs for every reader of files that others wrote (FUZZ_SECONDS=60 FUZZ_TARGET=name)
# make score     how often gpuwhy explain is right, on jobs with a known problem (root, about 10 minutes)
# make bench     the cost of tracing compared with perf; the speed of reading PyTorch's files (root)
#
# On Debian and Ubuntu with Rust, missing packages are installed first. apt runs only if something is missing.
.PHONY: build demo tutorial test kernels fuzz bench score deps deps-test deps-bench clean

SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
CARGO ?= cargo
# Cargo runs each test program with this command unless make already runs as root.
RUNNER := $(if $(SUDO),$(foreach arch,X86_64 AARCH64,CARGO_TARGET_$(arch)_UNKNOWN_LINUX_GNU_RUNNER="$(SUDO) -E"))

build: deps
	$(CARGO) build --release --locked

demo: build
	$(SUDO) target/release/gpuwhy demo

# TUTORIAL=--sim or TUTORIAL=--gpu chooses the GPU. Run files go to target/leak-tutorial.
tutorial: build
	examples/leak-tutorial/run.sh --out target/leak-tutorial $(TUTORIAL)

# Tests also use the release profile, so that one build serves everything. Tests run as root, for eBPF. Cargo runs
# as the caller, so that the caller owns target/.
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

# Choose kernels with: make kernels KERNELS="6.12"
KERNELS ?= 6.1 6.12
kernels: deps-test
	python3 tests/kernels/run.py $(KERNELS)

# Seconds for each target (fuzz/README.md).
FUZZ_SECONDS ?= 60
fuzz: deps
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(CARGO) test --release --locked -p gpuwhy-fuzz --test targets -- --nocapture

# Options for score/run.py, such as another seed: make score SCORE="--seed 7 --only hog,quota"
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
