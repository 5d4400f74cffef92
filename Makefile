# mt: build, set-up, tests. `make demo` and `make test` need nothing but make and a package manager.

CC     ?= cc
CFLAGS ?= -O2 -g
B      ?= bin#                          where programs land
O      ?= build#                        where everything else lands
PREFIX ?= /usr/local
SHELL   = /bin/sh
.DEFAULT_GOAL = all

# -ffp-contract=off: a compiler must not fuse a multiply and an add on its own; where we want fma we write it
WARN   = -Wall -Wextra -Wshadow -Werror
ALL_CFLAGS = -std=gnu17 -D_GNU_SOURCE $(WARN) -ffp-contract=off -fno-math-errno -Ishm -MMD -MP -fPIC $(CFLAGS) $(FILE_CFLAGS)

# make V=1 shows the commands
QUIET  = $(if $(V),,@echo '  make $@'; )

hash := \#
have = $(shell printf '$(hash)include <$(1)>\n' | $(CC) -E -xc - >/dev/null 2>&1 && echo yes)

LIBMT_LIBS = -ljansson -lnuma -lxxhash -lpthread -lm
ifeq ($(call have,dnnl.h),yes)
GEMM_CFLAGS = -DHAVE_DNNL
GEMM_LIBS   = -ldnnl -lgomp -ldl
else
GEMM_LIBS   = -lopenblas
endif

LIB_SRC  = $(wildcard shm/*.c)
LIB_OBJ  = $(LIB_SRC:%.c=$(O)/%.o)
PROGRAMS = mt-store mt-ckpt mt-stream mt-optim mt-step mt-feed
SRC_mt-store  = $(wildcard mt-store/*.c)
SRC_mt-ckpt   = $(wildcard mt-ckpt/*.c)
SRC_mt-stream = $(wildcard mt-stream/*.c)
SRC_mt-optim  = $(wildcard mt-optim/*.c)
SRC_mt-step   = $(filter-out $(wildcard mt-step/feed*.c),$(wildcard mt-step/*.c))
SRC_mt-feed   = $(wildcard mt-step/feed*.c mt-step/record*.c)
LIBS_mt-stream = $(GEMM_LIBS)
PROBES := $(patsubst tests/probes/%.c,$(O)/probes/%,$(filter-out tests/probes/cuda-% tests/probes/so-%,$(wildcard tests/probes/*.c)))
PROBES += $(patsubst tests/probes/%.c,$(O)/probes/%.so,$(wildcard tests/probes/so-*.c))
BENCHES = $(patsubst tests/bench/%.c,$(O)/bench/%,$(wildcard tests/bench/*.c))
MAN     = $(wildcard */*.1)

# ---- cuda: where nvcc, cuBLASLt's header and the static CUDA runtime are found, the cuda device is built in, as machine
# code for these targets and as PTX of the newest; programs start and run without CUDA all the same. `make NVCC=`: never.
# What the toolkit itself lacks is looked for in Python's wheels (nvidia/cu13).
CUDA_TARGETS ?= 80 86 89 90 100 120
PYTHON_LIB = $(eval PYTHON_LIB := $(shell python3 -c 'import os, sys; print(*(p for p in sys.path if os.path.isdir(p) and "-packages" in p or os.path.isdir(p + "/nvidia")))' 2>/dev/null))$(PYTHON_LIB)
WHEELS = $(wildcard $(PYTHON_LIB:%=%/nvidia/cu13))
first_of = $(firstword $(wildcard $(1)))
NVCC ?= $(or $(call first_of,$(CUDA_HOME)/bin/nvcc),$(shell command -v nvcc),$(call first_of,/usr/local/cuda/bin/nvcc $(WHEELS:%=%/bin/nvcc)))
CUDA   = $(patsubst %/bin/nvcc,%,$(NVCC))
CUDART := $(if $(CUDA),$(or $(call first_of,$(CUDA)/lib64/libcudart_static.a $(CUDA)/lib/libcudart_static.a $(CUDA)/targets/*/lib/libcudart_static.a),$(call first_of,$(WHEELS:%=%/lib/libcudart_static.a))))
CUBLAS_H := $(if $(CUDA),$(or $(call first_of,$(CUDA)/include/cublasLt.h),$(call first_of,$(WHEELS:%=%/include/cublasLt.h))))
# a wheel's headers after the toolkit's own
CUDA_INCLUDE = -isystem $(CUDA)/include $(if $(filter $(CUDA)/%,$(CUBLAS_H)),,-isystem $(CUBLAS_H:%/cublasLt.h=%))
# cuDNN's attention, where the headers of cudnn-frontend and of cuDNN are found: CUDNN_FRONTEND=DIR, what `make deps` or
# `make gpu-deps` fetched, Python's packages; the library is opened at run time. `make CUDNN_FRONTEND=`: never.
HEADERS = $(CURDIR)/build/deps/cudnn/include $(CURDIR)/build/gpu-deps/cudnn/include
CUDNN_FRONTEND ?= $(patsubst %/cudnn_frontend.h,%,$(firstword $(wildcard $(HEADERS:%=%/cudnn_frontend.h)) $(wildcard $(PYTHON_LIB:%=%/include/cudnn_frontend.h))))
CUDNN_H = $(patsubst %/cudnn.h,%,$(firstword $(wildcard $(CUDA)/include/cudnn.h /usr/include/cudnn.h $(HEADERS:%=%/cudnn.h)) $(wildcard $(PYTHON_LIB:%=%/nvidia/cudnn/include/cudnn.h))))
ADAMW_OBJ = $(patsubst %.c,$(O)/%.o,$(wildcard mt-optim/adamw*.c))
CUDA_C   = mt-stream/device-cuda.c mt-stream/cuda-gemm.c mt-stream/cuda-host.c mt-stream/cuda-engine.c mt-stream/cuda-trial.c
CUDA_SRC = $(wildcard mt-stream/cuda-*.cu)
ifneq ($(and $(NVCC),$(CUDART),$(CUBLAS_H),$(if $(findstring sanitize,$(LDFLAGS)),,yes)),)
CUDA_OBJ = $(CUDA_SRC:%.cu=$(O)/%.o)
CUDA_NEWEST = $(lastword $(CUDA_TARGETS))
LIBS_mt-stream += $(CUDART) -ldl -lrt
$(B)/mt-stream: $(CUDA_OBJ)
$(CUDA_C:%.c=$(O)/%.o): FILE_CFLAGS = $(CUDA_INCLUDE) $(if $(CUDNN),-DHAVE_CUDNN)
$(O)/mt-stream/stream.o: FILE_CFLAGS = -DHAVE_CUDA
CUDNN := $(if $(and $(CUDNN_FRONTEND),$(CUDNN_H),$(shell command -v $(CXX))),$(O)/mt-stream/cuda-cudnn.o)
ifneq ($(CUDNN),)
$(B)/mt-stream: $(CUDNN)
$(O)/mt-stream/device-cuda.o: $(CUDNN)
LIBS_mt-stream += -lstdc++
PROBES += $(O)/gpu/cudnn-plans $(O)/gpu/described/libcuda.so.1
$(O)/gpu/cudnn-plans: tests/gpu/cudnn-plans.c $(CUDNN)
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(CUDA_INCLUDE) $(LDFLAGS) -o $@ $< $(CUDNN) $(CUDART) -lstdc++ -ldl -lrt -lpthread -lm
$(O)/gpu/described/libcuda.so.1: tests/gpu/driver.c
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $<
else
$(if $(filter 0,$(MAKELEVEL)),$(if $(filter deps test demo clean,$(MAKECMDGOALS)),,$(info no headers of cudnn-frontend (make deps): the cuda device is built without cuDNN)))
endif
$(O)/mt-stream/cuda-cudnn.o: mt-stream/cuda-cudnn.cc
	@mkdir -p $(@D)
	$(QUIET)$(CXX) -std=c++17 -O1 -fPIC $(WARN) -MMD -MP -isystem $(CUDNN_FRONTEND) -isystem $(CUDNN_H) $(CUDA_INCLUDE) -c -o $@ $<
$(O)/%.o: %.cu
	@mkdir -p $(@D)
	$(QUIET)$(NVCC) -std=c++17 -O3 --threads 2 $(foreach t,$(CUDA_TARGETS),-gencode arch=compute_$(t),code=sm_$(t)) \
	  -gencode arch=compute_$(CUDA_NEWEST),code=compute_$(CUDA_NEWEST) -MMD -MP -Xcompiler -Wall,-Wextra,-fPIC,-fno-exceptions,-fno-threadsafe-statics \
	  -c -o $@ $<
$(O)/gpu/cuda-kernels: tests/probes/cuda-kernels.c $(CUDA_OBJ) $(O)/mt-stream/cuda-gemm.o $(O)/libmt.a
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(CUDA_INCLUDE) $(LDFLAGS) -o $@ $(filter-out %.h %ops.c,$^) $(CUDART) -ldl -lrt $(LIBMT_LIBS)
$(O)/gpu/rates: $(ADAMW_OBJ)
$(O)/gpu/%: tests/gpu/%.c $(CUDA_OBJ) $(O)/mt-stream/cuda-gemm.o $(O)/libmt.a
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(CUDA_INCLUDE) $(LDFLAGS) -o $@ $(filter-out %.h,$^) $(CUDART) -ldl -lrt $(LIBMT_LIBS)
else
SRC_mt-stream := $(filter-out $(CUDA_C),$(SRC_mt-stream))
CUDA_LACKS = $(if $(NVCC),$(if $(CUDART),,libcudart_static.a) $(if $(CUBLAS_H),,cublasLt.h),nvcc)
$(if $(filter 0,$(MAKELEVEL)),$(info no $(strip $(CUDA_LACKS)) found: mt-stream is built without its cuda device))
endif
# The same sources for a CPU that plays the GPU (tests/gpu/emu.h): the kernels one by one, and mt-stream as a whole. Not
# under sanitizers, which do not like threads that change their stacks.
ifneq ($(if $(findstring sanitize,$(LDFLAGS)),,$(shell command -v $(CXX))),)
PROBES += $(O)/probes/cuda-kernels $(O)/probes/cuda-chaos $(O)/emu/mt-stream $(O)/emu/libcublasLt.so.13 $(O)/emu/rates $(O)/emu/large
endif
EMU_OBJ = $(CUDA_SRC:mt-stream/%.cu=$(O)/emu/%.o) $(O)/emu/emu.o $(O)/emu/emu-sdpa.o
$(O)/emu/%.o: mt-stream/%.cu
	@mkdir -p $(@D)
	$(QUIET)$(CXX) -std=c++17 -x c++ -DMT_EMU $(WARN) -Wno-unknown-pragmas -MMD -MP $(CFLAGS) -c -o $@ $<
$(O)/emu/%.o: tests/gpu/%.cc
	@mkdir -p $(@D)
	$(QUIET)$(CXX) -std=c++17 -DMT_EMU $(WARN) -MMD -MP $(CFLAGS) -c -o $@ $<
$(O)/emu/%.o: mt-stream/%.c
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -DMT_EMU -DHAVE_CUDA -c -o $@ $<
$(O)/probes/cuda-kernels: tests/probes/cuda-kernels.c $(EMU_OBJ)
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -DMT_EMU $(LDFLAGS) -o $@ $< $(EMU_OBJ) -lstdc++ -lm
$(O)/emu/mt-stream: $(EMU_OBJ) $(patsubst mt-stream/%.c,$(O)/emu/%.o,$(CUDA_C) mt-stream/stream.c) \
  $(patsubst %.c,$(O)/%.o,$(filter-out $(CUDA_C) mt-stream/stream.c,$(SRC_mt-stream))) $(O)/libmt.a
	$(QUIET)$(CC) $(CFLAGS) $(LDFLAGS) $(EMU_LD) -o $@ $^ $(GEMM_LIBS) $(LIBMT_LIBS) -lstdc++ -ldl
$(O)/emu/rates $(O)/emu/large: $(O)/emu/%: tests/gpu/%.c $(EMU_OBJ) $(O)/emu/cuda-gemm.o $(ADAMW_OBJ) $(O)/libmt.a
	$(QUIET)$(CC) $(ALL_CFLAGS) -DMT_EMU $(LDFLAGS) $(EMU_LD) -o $@ $(filter-out %.h,$^) $(LIBMT_LIBS) -lstdc++ -ldl
$(O)/emu/left-out/%.o: mt-stream/%.c tests/probes/left-out.h
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -DMT_EMU -include tests/probes/left-out.h -c -o $@ $<
$(O)/probes/cuda-chaos: tests/probes/stream-chaos.c tests/probes/stream-world.h $(EMU_OBJ) \
  $(O)/emu/left-out/device-cuda.o $(O)/emu/left-out/cuda-host.o \
  $(patsubst mt-stream/%.c,$(O)/emu/%.o,$(filter-out %/device-cuda.c %/cuda-host.c,$(CUDA_C))) \
  $(filter-out %/schedule.o %/plan.o %/serve.o %/stream.o,$(patsubst %.c,$(O)/%.o,$(filter-out $(CUDA_C),$(SRC_mt-stream)))) $(O)/libmt.a
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -DMT_EMU $(LDFLAGS) $(EMU_LD) -o $@ $< $(filter %.o %.a,$^) $(GEMM_LIBS) $(LIBMT_LIBS) -lstdc++ -ldl
# their cuBLASLt, which finds the emulator's functions in the program that opens it
EMU_LD = -rdynamic -Wl,--disable-new-dtags,-rpath,'$$ORIGIN:$$ORIGIN/../emu'
$(O)/emu/libcublasLt.so.13: tests/gpu/cublaslt.c
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -shared -o $@ $<
# On a bare GPU machine (nvcc, gcc, make, python3): is it right, how fast is it. `make gpu-deps` before, elsewhere, unpacks
# the -dev packages that such a machine lacks into build/gpu-deps, which has to travel along.
GPU_DEPS = $(CURDIR)/build/gpu-deps/usr
GPU_MAKE = $(if $(wildcard $(GPU_DEPS)),CC="$(CC) -isystem $(GPU_DEPS)/include" \
  LDFLAGS="-L$(wildcard $(GPU_DEPS)/lib/*-linux-gnu) -Wl$(comma)--disable-new-dtags$(comma)-rpath$(comma)$(wildcard $(GPU_DEPS)/lib/*-linux-gnu)")
comma = ,
GPU_ENV = MT="$(abspath $(B))" BUILD="$(abspath $(O))"
# where there is nvcc, but cuDNN's attention cannot be built in for want of headers; tried once
cudnn-headers:
ifneq ($(and $(NVCC),$(if $(CUDNN),,yes),$(if $(wildcard build/deps/cudnn),,yes)),)
	@mkdir -p build/deps/cudnn; tests/gpu/headers build/deps/cudnn $(if $(CUDNN_H),,cudnn) || \
	  echo 'make deps: no headers of cudnn-frontend: the cuda device is built without cuDNN' >&2
endif
# where there is nvcc without cuobjdump, which reads machine code for tests/gpu/sass: from PyPI; tried once
SASS_WHEELS = nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
sass-tools:
ifneq ($(and $(NVCC),$(if $(wildcard $(CUDA)/bin/cuobjdump build/deps/sass),,yes),$(if $(shell command -v cuobjdump),,yes)),)
	@mkdir -p build/deps/sass; python3 -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: \
	  --target build/deps/sass $(SASS_WHEELS) >/dev/null 2>&1 || echo 'make deps: no cuobjdump: the machine code of kernels is not tested' >&2
endif
.PHONY: gpu-deps gpu-have gpu-build gpu-check gpu-bench gpu-first
gpu-deps:
	@tests/gpu/deps build/gpu-deps
# what the build will use, by name: a line `NAME PATH`, or `NAME -` where it is missing
header_of = $(firstword $(shell printf '$(hash)include <$(1)>\n' | $(CC) -isystem $(GPU_DEPS)/include -E -xc - 2>/dev/null | sed -n 's,^$(hash) 1 "\(.*/$(1)\)".*,\1,p'))
gpu-have:
	@:$(foreach h,jansson.h numa.h xxhash.h,$(info $(h) $(or $(call header_of,$(h)),-)))
	@:$(info dnnl.h|cblas.h $(or $(call header_of,dnnl.h),$(call header_of,cblas.h),-))
	@:$(info cc $(or $(shell command -v $(firstword $(CC))),-))$(info c++ $(or $(shell command -v $(firstword $(CXX))),-))
	@:$(info nvcc $(or $(wildcard $(NVCC)),-))$(info libcudart_static.a $(or $(CUDART),-))$(info cublasLt.h $(or $(CUBLAS_H),-))
	@:$(info cudnn.h $(or $(addsuffix /cudnn.h,$(CUDNN_H)),-))$(info cudnn_frontend.h $(or $(addsuffix /cudnn_frontend.h,$(CUDNN_FRONTEND)),-))
# machine code for the GPU that is there; where none is, for all. A compiler that nobody has tried may warn.
GPU_TARGETS = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | grep -x '[0-9]*' | sort -un)
gpu-build:
	@$(MAKE) --no-print-directory -j "$$(nproc)" $(if $(GPU_TARGETS),CUDA_TARGETS="$(GPU_TARGETS)") WARN="$(filter-out -Werror,$(WARN))" all $(O)/probes/stream-drive $(O)/probes/ckpt-dump $(O)/gpu/cuda-kernels $(O)/gpu/rates $(O)/gpu/large $(O)/bench/adam $(GPU_MAKE)
# the scripts' --budget includes the build
GPU_BEGAN := $(if $(filter gpu-%,$(MAKECMDGOALS)),$(shell date +%s))
gpu-check: gpu-build
	@$(GPU_ENV) GPU_BEGAN=$(GPU_BEGAN) tests/gpu/check $(GPU_ARGS)
gpu-bench: gpu-build
	@$(GPU_ENV) GPU_BEGAN=$(GPU_BEGAN) tests/gpu/bench $(GPU_ARGS)
gpu-first:
	@$(GPU_ENV) tests/gpu/first $(GPU_ARGS)
# ---- end of cuda

.PHONY: all lib clean
all: $(PROGRAMS:%=$(B)/%) lib

define program
$(B)/$(1): $$(SRC_$(1):%.c=$(O)/%.o) $(O)/libmt.a
	@mkdir -p $(B)
	$$(QUIET)$$(CC) $$(CFLAGS) $$(LDFLAGS) -o $$@ $$^ $$(LIBS_$(1)) $$(LIBMT_LIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program,$(p))))

# programs that were linked with another ABI's library must not start with this one
SONAME := libmt.so.$(shell sed -n 's/^\#define MT_ABI *\([0-9]*\).*/\1/p' shm/mt.h)
lib: $(O)/libmt.a $(O)/libmt.so
$(O)/libmt.a: $(LIB_OBJ)
	@rm -f $@
	$(QUIET)$(AR) rcs $@ $^
$(O)/libmt.so: $(LIB_OBJ)
	$(QUIET)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) -o $@ $^ $(LIBMT_LIBS)
$(O)/mt-stream/cpu-%.o: FILE_CFLAGS = -O3 -fno-trapping-math
$(O)/mt-stream/cpu-gemm.o: FILE_CFLAGS = -O3 -fno-trapping-math $(GEMM_CFLAGS)
$(O)/%.o: %.c
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -c -o $@ $<

# probes and benches see the internals of the program they look into
$(O)/probes/ops $(O)/bench/ops: EXTRA = $(patsubst %.c,$(O)/%.o,$(wildcard mt-stream/cpu-*.c))
$(O)/probes/ops $(O)/bench/ops: $(patsubst %.c,$(O)/%.o,$(wildcard mt-stream/cpu-*.c))
$(O)/bench/adam: EXTRA = $(ADAMW_OBJ)
$(O)/bench/adam: $(ADAMW_OBJ)
$(O)/bench/gather: EXTRA = $(O)/mt-optim/sum.o
$(O)/bench/gather: $(O)/mt-optim/sum.o
without_main = $(patsubst %.c,$(O)/%.o,$(filter-out $(CUDA_C),$(shell grep -L '^int main' $(1) /dev/null | grep -v null)))
# (a pattern rule without a recipe adds no prerequisites: each probe gets a rule of its own)
define probed
$(patsubst tests/probes/%.c,$(O)/probes/%,$(wildcard tests/probes/$(1)-*.c)): EXTRA = $(call without_main,$(SRC_mt-$(1)))
$(patsubst tests/probes/%.c,$(O)/probes/%,$(wildcard tests/probes/$(1)-*.c)): $(call without_main,$(SRC_mt-$(1)))
endef
$(foreach p,step stream optim ckpt,$(eval $(call probed,$(p))))
# ... and stream-chaos has schedule and plan within itself, and plays what is around them
$(O)/probes/stream-chaos: EXTRA := $(filter-out %/schedule.o %/plan.o %/serve.o,$(call without_main,$(SRC_mt-stream)))
$(O)/probes/stream-chaos: mt-stream/schedule.c mt-stream/plan.c
$(O)/probes/%: tests/probes/%.c $(O)/libmt.a
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $< $(EXTRA) $(O)/libmt.a $(GEMM_LIBS) $(LIBMT_LIBS)
$(O)/bench/%: tests/bench/%.c $(O)/libmt.a
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -O3 $(LDFLAGS) -o $@ $< $(EXTRA) $(O)/libmt.a $(GEMM_LIBS) $(LIBMT_LIBS)
# ... and what is preloaded into programs, for faults
$(O)/probes/so-%.so: tests/probes/so-%.c
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -shared -o $@ $< -ldl -lpthread
# ... and a library that makes calls of a program fail; sanitizers have their own malloc
ifeq ($(findstring sanitize,$(LDFLAGS)),)
PROBES += $(O)/fault/preload.so
$(O)/fault/preload.so: tests/fault/preload.c
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -shared -o $@ $< -ldl
endif
.PHONY: probes
probes: $(PROBES)

# ---- set-up: what is missing, through the package manager; says nothing when all is there
DEB_NEED  = gcc libc6-dev bats libjansson-dev libnuma-dev libxxhash-dev python3
DEB_LIKE  = shellcheck bible-kjv man-db procps gawk python3-venv
.PHONY: deps cudnn-headers sass-tools
deps: cudnn-headers sass-tools
	@missing=; for p in $(DEB_NEED); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	for p in $(DEB_LIKE); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	dpkg -s libdnnl-dev >/dev/null 2>&1 || dpkg -s libopenblas-dev >/dev/null 2>&1 || missing="$$missing gemm"; \
	[ -z "$$missing" ] && exit 0; \
	command -v apt-get >/dev/null || { echo "make deps: install by hand:$$missing (gemm: oneDNN or OpenBLAS)" >&2; exit 1; }; \
	sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; export DEBIAN_FRONTEND=noninteractive; \
	echo "make deps: installing$$missing"; \
	$$sudo apt-get update -qq && \
	$$sudo apt-get install -y -qq --no-install-recommends $$(echo "$$missing" | sed 's/ gemm//') >/dev/null && \
	case "$$missing" in *gemm*) $$sudo apt-get install -y -qq --no-install-recommends libdnnl-dev >/dev/null 2>&1 || \
	  $$sudo apt-get install -y -qq --no-install-recommends libopenblas-dev >/dev/null;; esac

# ---- tests. `make test`: set up, build, run all. `make check`: build, run what is not tagged slow. SUITE="70 stream": these
# suites alone, whole. TIMES=1: the slowest tests at the end. VENV=: without Python's packages.
# The build runs in a make of its own, after deps, so that it finds what deps installed.
suite_of = $(or $(wildcard tests/$(1)-*.bats tests/[0-9]*-$(1).bats),$(error no suite '$(1)' in tests/))
SUITES ?= $(if $(SUITE),$(foreach s,$(SUITE),$(call suite_of,$(s))),$(sort $(wildcard tests/*.bats)))
VENV ?= build/venv
.PHONY: test check suites venv
test: deps
	@$(MAKE) --no-print-directory all probes fuzzers
	@$(if $(VENV),tests/venv $(VENV) || echo 'make test: tests that need torch or transformers are skipped' >&2)
	@$(MAKE) --no-print-directory suites
check: all probes fuzzers
	@$(MAKE) --no-print-directory suites TAGS='$(if $(SUITE),,!slow)'
suites:
	@MT="$(abspath $(B))" BUILD="$(abspath $(O))" TAGS='$(TAGS)' tests/run $(SUITES)
venv:
	@tests/venv $(or $(VENV),build/venv)

# the schedule on the chaos device, by as many seeds as are wanted, on one core
SEEDS ?= 100000
FROM  ?= 1
.PHONY: chaos
chaos: $(O)/probes/stream-chaos
	@$(O)/probes/stream-chaos seeds "chaos-$$$$" tests/golden $(FROM) $(SEEDS)

# ---- fuzzing: tests/fuzz/TARGET.c with the files that it looks into, by clang's libFuzzer under AddressSanitizer; where there
# is none, a driver that varies the corpus. `make fuzz`: every target for SECONDS; TARGET=x: that one.
FUZZ_TARGETS = $(patsubst tests/fuzz/corpus/%,%,$(wildcard tests/fuzz/corpus/*))
FUZZ_CC := $(shell printf 'int LLVMFuzzerTestOneInput(void){return 0;}' | clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null && echo clang)
FUZZ = $(O)/fuzz
FUZZ_SAN = $(if $(FUZZ_CC),-fsanitize=address -fsanitize=fuzzer-no-link)
FUZZ_SRC_safetensors = $(filter-out %/main.c,$(SRC_mt-ckpt))
FUZZ_SRC_runjson = $(FUZZ_SRC_safetensors)
FUZZ_SRC_index = $(FUZZ_SRC_safetensors)
FUZZ_SRC_record = mt-step/record.c mt-step/pack.c
FUZZ_SRC_batch = mt-stream/batch.c
FUZZ_SRC_piece = mt-optim/units.c
SECONDS ?= 10
TARGET ?= $(FUZZ_TARGETS)
.PHONY: fuzz fuzzers
fuzzers: $(FUZZ_TARGETS:%=$(FUZZ)/%)
fuzz: fuzzers
	@BUILD="$(abspath $(O))" tests/fuzz/run $(SECONDS) $(TARGET)
$(FUZZ)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(QUIET)$(or $(FUZZ_CC),$(CC)) -std=gnu17 -D_GNU_SOURCE -Ishm -Imt-ckpt -Imt-step -Imt-stream -Imt-optim -g -O1 $(FUZZ_SAN) -MMD -MP -c -o $@ $<
define fuzzer
$(FUZZ)/$(1): $(patsubst %.c,$(FUZZ)/obj/%.o,tests/fuzz/$(1).c $(if $(FUZZ_CC),,tests/fuzz/main.c) $(FUZZ_SRC_$(1)) $(LIB_SRC))
	$$(QUIET)$(if $(FUZZ_CC),$(FUZZ_CC) -fsanitize=fuzzer$$(comma)address,$(CC)) -o $$@ $$^ $$(LIBMT_LIBS)
endef
$(foreach t,$(FUZZ_TARGETS),$(eval $(call fuzzer,$(t))))

# ---- sanitizers: the same suites over programs built for them, in build/asan and build/ubsan; tsan: the protocols
# and pools that run as threads, and the schedule on the cpu device's
SAN_ENV = ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:exitcode=99 UBSAN_OPTIONS=halt_on_error=1:exitcode=98:print_stacktrace=1
.PHONY: asan ubsan tsan
asan ubsan: deps
	@$(MAKE) --no-print-directory all probes B=build/$@/bin O=build/$@ \
	  CFLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=$(if $(filter asan,$@),address,undefined -fno-sanitize-recover=all)" \
	  LDFLAGS="-fsanitize=$(if $(filter asan,$@),address,undefined)"
	@cp bin/mt-run bin/mt-tokens build/$@/bin/
	@$(SAN_ENV) $(MAKE) --no-print-directory suites B=build/$@/bin O=build/$@
tsan: deps
	@$(MAKE) --no-print-directory all probes B=build/tsan/bin O=build/tsan CFLAGS="-O1 -g -fsanitize=thread" LDFLAGS="-fsanitize=thread"
	@TSAN_OPTIONS=halt_on_error=1:exitcode=97 MT="$(abspath build/tsan/bin)" BUILD="$(abspath build/tsan)" tests/run tests/01-protocol.bats
	@TSAN_OPTIONS=halt_on_error=1:exitcode=97 build/tsan/probes/stream-chaos seeds "tsan-$$$$" tests/golden 1 64

# ---- demo: a byte-level llama of 4.9 M parameters learns the King James Bible on the CPU
DEMO = build/demo
.PHONY: demo
demo: deps
	@$(MAKE) --no-print-directory all
	@tests/demo $(DEMO)

.PHONY: bench
bench: deps
	@$(MAKE) --no-print-directory all $(BENCHES)
	@MT="$(abspath $(B))" BUILD="$(abspath $(O))" tests/bench/run

# PREFIX is where the files will be used, DESTDIR where they are put for now. mt.pc is made here, for this PREFIX.
.PHONY: install
VERSION = $(shell sed -n 's/^\#define MT_VERSION "\(.*\)"/\1/p' shm/mt.h)
D = $(DESTDIR)$(PREFIX)
install: all lib
	install -d $(D)/bin $(D)/lib/pkgconfig $(D)/include $(D)/share/man/man1 $(D)/share/doc/mt
	install $(PROGRAMS:%=$(B)/%) bin/mt-run bin/mt-tokens $(D)/bin
	install -m 644 $(O)/libmt.a $(D)/lib
	install $(O)/libmt.so $(D)/lib/$(SONAME)
	ln -sf $(SONAME) $(D)/lib/libmt.so
	printf '%s\n' 'prefix=$(PREFIX)' 'Name: mt' 'Description: memory-centric LLM training: rings, store and transactions' \
	  'Version: $(VERSION)' 'Libs: -L$${prefix}/lib -lmt' 'Libs.private: $(LIBMT_LIBS)' 'Cflags: -I$${prefix}/include' \
	  >$(D)/lib/pkgconfig/mt.pc
	chmod 644 $(D)/lib/pkgconfig/mt.pc
	install -m 644 shm/mt.h $(D)/include
	install -m 644 $(MAN) $(D)/share/man/man1
	install -m 644 shm/README.md $(D)/share/doc/mt/abi.md

clean:
	rm -rf build $(PROGRAMS:%=bin/%)

-include $(shell [ -d $(O) ] && find $(O) -name '*.d')
