# mt: build, set-up, tests. `make demo` and `make test` need nothing but make and a package manager.
# Rules of one folder are in its build.mk: bin, mt-stream, mt-stream/device/cuda, tests, tests/gpu.

CC     ?= cc
CFLAGS ?= -O2 -g
B      ?= bin#                          where programs land
O      ?= build#                        where everything else lands
# as make was first told: files that say what an object was built from must name it alike
override O := $(patsubst $(CURDIR)/%,%,$(O))
override B := $(patsubst $(CURDIR)/%,%,$(B))
PREFIX ?= /usr/local
SHELL   = /bin/sh
.DEFAULT_GOAL = all

# -ffp-contract=off: a compiler must not fuse a multiply and an add on its own; where we want fma we write it
# make WERROR=1, for those who work on mt: warnings are errors. A user's compiler may be one that nobody has tried
WARN   = -Wall -Wextra -Wshadow $(if $(WERROR),-Werror)
ALL_CFLAGS = -std=gnu17 -D_GNU_SOURCE $(WARN) -ffp-contract=off -fno-math-errno $(INCLUDE) -MMD -MP -fPIC $(CFLAGS) \
  $(FILE_CFLAGS)

# a program's files see its folder and libmt; tests see every program's
INCLUDE = -Ishm $(if $(filter tests/%,$<),-Imt-ckpt -Imt-step -Imt-stream -Imt-optim,-I$(firstword $(subst /, ,$<)))

# Compile through ccache, where it is installed and can write its cache; `make CCACHE=`: never. (CC may be a link to
# ccache: ccache looks for the compiler behind it.)
CCACHE := $(shell d=$$(ccache -k cache_dir 2>/dev/null) && mkdir -p "$$d" 2>/dev/null && [ -w "$$d" ] && echo ccache)

# make V=1 shows the commands
QUIET  = $(if $(V),,@echo '  make $@'; )

hash := \#
comma := ,
have = $(shell printf '$(hash)include <$(1)>\n' | $(CC) -E -xc - >/dev/null 2>&1 && echo yes)

# A file that holds these words and changes only with them: what depends on it is built again when they change
define kept
$(1): FORCE
	@mkdir -p $$(@D); echo '$(2)' | cmp -s - $$@ || echo '$(2)' >$$@
endef

LIBMT_LIBS = -ljansson -lnuma -lxxhash -lpthread -lm

LIB_SRC  = $(wildcard shm/*.c shm/model/*.c)
CLI_SRC  = $(wildcard shm/cli/*.c)
OUR_LIBS = $(O)/libcli.a $(O)/libmt.a
PROGRAMS = mt-run mt-store mt-ckpt mt-stream mt-optim mt-step mt-feed mt-score mt-sample mt-plan mt-tier \
  $(if $(HAVE_CURSES),mt-top)
# mt-top wants ncurses with wide characters
HAVE_CURSES := $(shell printf '$(hash)include <curses.h>\nint main(void) { return !initscr; }' | \
  $(CC) -D_GNU_SOURCE -xc - -lncursesw -o /dev/null 2>/dev/null && echo yes)
$(if $(HAVE_CURSES),,$(if $(filter 0,$(MAKELEVEL)),$(if $(filter deps demo-deps test demo clean,$(MAKECMDGOALS)),,\
  $(info no ncursesw found (libncurses-dev): mt-top is not built))))
SRC_mt-store  = $(wildcard mt-store/*.c)
SRC_mt-ckpt   = $(wildcard mt-ckpt/*.c mt-ckpt/hf/*.c)
SRC_mt-optim  = $(wildcard mt-optim/*.c)
# loops over every weight: -O3 vectorises them. XXH3 by AVX2 and AVX-512, where libxxhash was built with its dispatcher
XXH_DISPATCH := $(shell printf '$(hash)include <xxh_x86dispatch.h>\nint main(void) { return !XXH3_64bits("", 0); }' | \
  $(CC) -o /dev/null -xc - -lxxhash 2>/dev/null && echo -DXXH_DISPATCH)
$(SRC_mt-ckpt:%.c=$(O)/%.o): FILE_CFLAGS = -O3 $(XXH_DISPATCH)
# (as in mt-stream/device/cpu, variables in debug info would take half of the time to compile)
$(patsubst %.c,$(O)/%.o,$(wildcard mt-optim/update-*.c)): FILE_CFLAGS = -g1
SRC_mt-run    = $(wildcard mt-store/run/*.c)
SRC_mt-step   = $(wildcard mt-step/*.c)
SRC_mt-score  = $(wildcard mt-step/score/*.c) $(filter-out mt-step/step.c,$(SRC_mt-step))
SRC_mt-feed   = $(wildcard mt-step/feed/*.c) mt-step/record.c mt-step/loss.c
SRC_mt-top    = $(wildcard mt-store/top/*.c) $(addprefix mt-store/,look.c process.c text.c words.c)
LIBS_mt-top   = -lncursesw

# on a machine with a GPU, what `make gpu-deps` has packed elsewhere
$(if $(filter gpu-%,$(MAKECMDGOALS)),$(shell tests/gpu/deps --unpack build/gpu-deps.tar.gz))

include mt-stream/build.mk mt-stream/device/cuda/build.mk shm/link/build.mk shm/tier/build.mk

.PHONY: all lib clean FORCE
all: $(PROGRAMS:%=$(B)/%) lib

define program
$(B)/$(1): $$(SRC_$(1):%.c=$(O)/%.o) $(OUR_LIBS)
	@mkdir -p $(B)
	$$(QUIET)$$(CC) $$(CFLAGS) $$(LDFLAGS) -o $$@ $$^ $$(LIBS_$(1)) $$(LIBMT_LIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program,$(p))))

# programs that were linked with another ABI's library must not start with this one
SONAME := libmt.so.$(shell sed -n 's/^\#define MT_ABI *\([0-9]*\).*/\1/p' shm/mt/version.h)
lib: $(O)/libmt.a $(O)/libmt.so
$(O)/libmt.a: $(LIB_SRC:%.c=$(O)/%.o)
$(O)/libcli.a: $(CLI_SRC:%.c=$(O)/%.o)
$(OUR_LIBS):
	@rm -f $@
	$(QUIET)$(AR) rcs $@ $^
$(O)/libmt.so: $(LIB_SRC:%.c=$(O)/%.o) shm/libmt.map
	$(QUIET)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=shm/libmt.map -o $@ \
	  $(filter %.o,$^) $(LIBMT_LIBS)
$(O)/%.o: %.c
	@mkdir -p $(@D)
	$(QUIET)$(CCACHE) $(CC) $(ALL_CFLAGS) -c -o $@ $<

include tests/gpu/build.mk tests/build.mk

# ---- set-up: what is missing, through the package manager; says nothing when all is there
DEB_BUILD = gcc libc6-dev libjansson-dev libnuma-dev libxxhash-dev libncurses-dev
DEB_DEMO  = bible-kjv gnuplot-nox
DEB_TEST  = bats python3 shellcheck man-db procps gawk tmux mandoc python3-venv zstd openmpi-bin \
  libopenmpi-dev g++ strace spin pkg-config iproute2 systemd jq e2fsprogs
DEB_SOME  = clang-format-14#             with those that are missing, if this release has it
VERSIONS_DEMO = gcc clang oneDNN jansson xxHash gnuplot
VERSIONS_TEST = $(VERSIONS_DEMO) 'Open MPI' Python bats-core
.PHONY: deps demo-deps cudnn-headers sass-tools
deps: packages = $(DEB_BUILD) $(DEB_DEMO) $(DEB_TEST)
deps: some = $(DEB_SOME)
deps: versions = $(VERSIONS_TEST)
demo-deps: packages = $(DEB_BUILD) $(DEB_DEMO)
demo-deps: versions = $(VERSIONS_DEMO)
deps: cudnn-headers sass-tools
deps demo-deps:
	@missing=; for p in $(packages); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	dpkg -s libdnnl-dev >/dev/null 2>&1 || dpkg -s libopenblas-dev >/dev/null 2>&1 || missing="$$missing gemm"; \
	[ -z "$$missing" ] && exit 0; \
	command -v apt-get >/dev/null || { echo "make $@: install by hand:$$missing (gemm: oneDNN or OpenBLAS)" >&2; \
	  exit 1; }; \
	sudo=; [ "$$(id -u)" = 0 ] || sudo=$$(command -v sudo) || { \
	  echo "make $@: needs root or sudo, to install:$$missing" >&2; exit 1; }; \
	export DEBIAN_FRONTEND=noninteractive; \
	echo "make $@: installing$$missing"; \
	$$sudo apt-get update -qq || exit; plain=$$(echo "$$missing" | sed 's/ gemm//'); \
	for p in $(some); do apt-cache show $$p >/dev/null 2>&1 && plain="$$plain $$p"; done; \
	install() { $$sudo apt-get install -y -qq --no-install-recommends "$$@" >/dev/null; }; \
	gemm='libdnnl-dev libopenblas-dev'; [ "$$(uname -m)" != aarch64 ] || gemm='libopenblas-dev libdnnl-dev'; \
	case "$$missing" in *gemm*) install $$plain $${gemm% *} 2>/dev/null || install $$plain $${gemm#* };; \
	  *) install $$plain;; esac
	@CC="$(CC)" tests/versions $(versions)

# ---- tests. `make test`: set up, build, run all but what is tagged nightly (NIGHTLY=1: that too, and all seeds).
# `make check`: build, run what is tagged neither slow nor nightly. tests/titles lists the tests and their depths.
# SUITE="70 stream": these suites alone, whole. TIMES=FILE: what took longest. VENV=: without Python's packages.
# A second make builds, after deps, so that it finds what deps installed.
suite_of = $(or $(wildcard tests/$(1)-*.bats tests/[0-9]*-$(1).bats),$(error no suite '$(1)' in tests/))
SUITES ?= $(if $(SUITE),$(foreach s,$(SUITE),$(call suite_of,$(s))),$(sort $(wildcard tests/*.bats)))
VENV ?= build/venv
.PHONY: test check suites venv
# as many jobs as there are cores, unless make was given a number
JOBS = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))
test: deps
	@$(MAKE) --no-print-directory $(JOBS) all probes fuzzers
	@$(if $(VENV),tests/venv $(VENV) || echo 'make test: tests that need torch or transformers are skipped' >&2)
	@$(MAKE) --no-print-directory suites TAGS='$(if $(SUITE)$(NIGHTLY),,!nightly)'
check: all probes fuzzers
	@$(MAKE) --no-print-directory suites TAGS='$(if $(SUITE),,!nightly,!slow)'
suites:
	@MT="$(abspath $(B))" BUILD="$(abspath $(O))" TAGS='$(TAGS)' tests/run $(SUITES)
venv:
	@tests/venv $(or $(VENV),build/venv)

# ---- form: .clang-format over all C, CUDA and C++ files
FORMATTED = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cc')
.PHONY: format
format:
	@clang-format -i $(FORMATTED)

# ---- shm/ABI.md: the offsets of all shared fields, which a test compares with the programs
.PHONY: abi-page
abi-page: $(B)/mt-store
	@{ sed '/^```/q' shm/ABI.md && $(B)/mt-store stat --abi && echo '```'; } >$(O)/ABI.md && mv $(O)/ABI.md shm/ABI.md

include bin/build.mk

clean:
	rm -rf build $(PROGRAMS:%=bin/%)

# A source that an older build knows and that has moved since: its object is made from the new one
%.c: ;
%.cc: ;
%.cu: ;
%.d: ;
# (not those of other builds)
-include $(shell [ -d $(O) ] && \
	find $(O) $(foreach d,deb arm64 distros warnings,-path $(O)/$(d) -prune -o) -type f -name '*.d' -print)
