# The front door: short names for what the CMake presets and the scripts do. Nothing is configured here. Missing Debian
# packages are installed by scripts/deps.sh when run as root; otherwise it prints the command and stops with status 2.
#
# SPDX-License-Identifier: MIT

PREFIX  = /usr/local
DESTDIR =
JOBS    =
CUDA    =
PROMPT  = Repeat: river stone candle garden
export PROMPT JOBS DESTDIR
CUDA_FLAG = $(if $(CUDA),-DESPALIER_CUDA=ON)

.DEFAULT_GOAL := help
.PHONY: help demo build test check asan tsan format install clean

help:
	@echo 'make demo      build the program and let the bundled model answer PROMPT="..."'
	@echo 'make test      build everything and run all tests'
	@echo 'make build     build the library and the program into build/release'
	@echo 'make check     static checks: layers, banned functions, symbols, headers, format, size, analyzers'
	@echo 'make asan      tests under AddressSanitizer and UBSan'
	@echo 'make tsan      the threaded tests under ThreadSanitizer'
	@echo 'make format    clang-format over the tree'
	@echo 'make install   into PREFIX=$(PREFIX), below DESTDIR when given'
	@echo 'make clean     remove build/'
	@echo 'Variables: PROMPT, JOBS (parallel compilers), CUDA=1 (with the CUDA backend; needs nvcc), PREFIX, DESTDIR. The whole pipeline: .ci/run'

demo:
	@scripts/deps.sh run
	@scripts/build.sh release $(CUDA_FLAG)
	@scripts/demo.sh

build:
	@scripts/deps.sh run
	@scripts/build.sh release $(CUDA_FLAG)
	@echo 'built: build/release'

test:
	@scripts/deps.sh run test
	@scripts/build.sh release --tests
	@scripts/test.sh build/release

asan:
	@scripts/deps.sh run test
	@scripts/build.sh asan --tests
	@scripts/test.sh build/asan

tsan:
	@scripts/deps.sh run test
	@scripts/build.sh tsan --tests
	@scripts/test.sh build/tsan --threads

check:
	@scripts/deps.sh run test check
	@scripts/build.sh release --tests
	@scripts/check.sh

format:
	@scripts/deps.sh check
	@scripts/checks/format.sh --fix

install:
	@scripts/deps.sh run
	@scripts/build.sh release $(CUDA_FLAG)
	@cmake --install build/release --prefix '$(PREFIX)' >build/logs/install.log || { cat build/logs/install.log; exit 1; }
	@echo 'installed below $(DESTDIR)$(PREFIX) (list: build/logs/install.log)'

clean:
	@rm -rf build
