# Probes, benchmarks, fuzzers, sanitizers, demo.
PROBES += $(patsubst tests/probes/%.c,$(O)/probes/%,$(filter-out tests/probes/cuda-% tests/probes/so-%,$(wildcard \
  tests/probes/*.c)))
PROBES += $(patsubst tests/probes/%.c,$(O)/probes/%.so,$(wildcard tests/probes/so-*.c))
# `make bench` runs them; they are built with the probes, so that they do not fall behind the code
# (ping is a program of MPI)
BENCHES = $(patsubst tests/bench/%.c,$(O)/bench/%,$(filter-out $(if $(MPICC),,%/ping.c),$(wildcard tests/bench/*.c)))
PROBES += $(BENCHES)

# probes and benches see the internals of the program they look into
$(O)/probes/ops $(O)/bench/ops: EXTRA = $(CPU_OPS:%.c=$(O)/%.o)
$(O)/probes/ops $(O)/bench/ops: $(CPU_OPS:%.c=$(O)/%.o)
$(O)/bench/adam: EXTRA = $(UPDATE_OBJ)
$(O)/bench/adam: $(UPDATE_OBJ)
$(O)/bench/accumulate: EXTRA = $(O)/mt-optim/sum.o
$(O)/bench/accumulate: $(O)/mt-optim/sum.o
without_main = $(patsubst %.c,$(O)/%.o,$(filter-out $(CUDA_C),$(shell grep -L '^int main' $(1) /dev/null | grep -v \
  null)))
# (a pattern rule without a recipe adds no prerequisites: each probe gets its own rule)
define probed
$(patsubst tests/probes/%.c,$(O)/probes/%,$(wildcard tests/probes/$(1)-*.c)): EXTRA = $(call \
  without_main,$(SRC_mt-$(1)))
$(patsubst tests/probes/%.c,$(O)/probes/%,$(wildcard tests/probes/$(1)-*.c)): $(call without_main,$(SRC_mt-$(1)))
endef
$(foreach p,step stream optim ckpt,$(eval $(call probed,$(p))))
# ... and optim-journal plays mt-tier whenever a tile is counted
$(O)/probes/optim-journal: EXTRA += -Wl,--wrap=mt_tier_count
# ... and stream-chaos includes CHAOS_SRC, and plays what is around it
$(O)/probes/stream-chaos: EXTRA := $(filter-out $(CHAOS_SRC:%.c=$(O)/%.o) %/serve.o,$(call \
  without_main,$(SRC_mt-stream)))
$(O)/probes/stream-chaos: $(CHAOS_SRC)
$(O)/probes/%: tests/probes/%.c $(OUR_LIBS)
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $< $(EXTRA) $(OUR_LIBS) $(GEMM_LIBS) $(LIBMT_LIBS)
$(O)/bench/ping: FILE_CFLAGS = $(FILE_CFLAGS_MPI)
$(O)/bench/ping: EXTRA = $(LIBS_mt-link)
$(O)/bench/%: tests/bench/%.c $(OUR_LIBS)
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -O3 $(LDFLAGS) -o $@ $< $(EXTRA) $(OUR_LIBS) $(GEMM_LIBS) $(LIBMT_LIBS)
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
# ... and the examples: what a user compiles, by mt.h and libmt alone
EXAMPLES = $(patsubst tests/examples/%.c,$(O)/examples/%,$(wildcard tests/examples/*.c))
$(O)/examples/%: INCLUDE = -Ishm
$(O)/examples/%: tests/examples/%.c $(O)/libmt.a
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $< $(O)/libmt.a $(LIBMT_LIBS)
.PHONY: probes
probes: $(PROBES) $(EXAMPLES)


# the schedule on the chaos device, by as many seeds as are wanted, on one core
SEEDS ?= 100000
FROM  ?= 1
.PHONY: chaos
chaos: $(O)/probes/stream-chaos
	@$(O)/probes/stream-chaos seeds "chaos-$$$$" tests/golden $(FROM) $(SEEDS)

# ---- fuzzing: tests/fuzz/TARGET.c with the files that it looks into, by clang's libFuzzer under AddressSanitizer;
# where there is none, a driver that varies the corpus. `make fuzz`: every target for SECONDS; TARGET=x: that one.
FUZZ_TARGETS = $(patsubst tests/fuzz/corpus/%,%,$(wildcard tests/fuzz/corpus/*))
FUZZ_CC := $(shell printf 'int LLVMFuzzerTestOneInput(void){return 0;}' | clang -fsanitize=fuzzer,address -x c - -o \
  /dev/null 2>/dev/null && echo clang)
FUZZ = $(O)/fuzz
FUZZ_SAN = $(if $(FUZZ_CC),-fsanitize=address -fsanitize=fuzzer-no-link)
FUZZ_SRC_safetensors = $(filter-out %/main.c,$(SRC_mt-ckpt))
FUZZ_SRC_runjson = $(FUZZ_SRC_safetensors)
FUZZ_SRC_index = $(FUZZ_SRC_safetensors)
FUZZ_SRC_wrapper = $(FUZZ_SRC_safetensors)
FUZZ_SRC_quantized = $(FUZZ_SRC_safetensors)
FUZZ_SRC_record = mt-step/record.c mt-step/pack.c mt-step/loss.c
SECONDS ?= 10
TARGET ?= $(FUZZ_TARGETS)
.PHONY: fuzz fuzzers
fuzzers: $(FUZZ_TARGETS:%=$(FUZZ)/%)
fuzz: fuzzers
	@BUILD="$(abspath $(O))" tests/fuzz/run $(SECONDS) $(TARGET)
$(FUZZ)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(QUIET)$(CCACHE) $(or $(FUZZ_CC),$(CC)) -std=gnu17 -D_GNU_SOURCE -Ishm -Imt-ckpt -Imt-step -Imt-stream \
	  -Imt-optim -g -O1 $(FUZZ_SAN) -MMD -MP -c -o $@ $<
define fuzzer
$(FUZZ)/$(1): $(patsubst %.c,$(FUZZ)/obj/%.o,tests/fuzz/$(1).c $(if $(FUZZ_CC),,tests/fuzz/main.c) $(FUZZ_SRC_$(1)) \
  $(CLI_SRC) $(LIB_SRC))
	$$(QUIET)$(if $(FUZZ_CC),$(FUZZ_CC) -fsanitize=fuzzer$$(comma)address,$(CC)) -o $$@ $$^ $$(LIBMT_LIBS)
endef
$(foreach t,$(FUZZ_TARGETS),$(eval $(call fuzzer,$(t))))

# ---- sanitizers: the same suites over programs built for them, in build/asan and build/ubsan; tsan: the protocols
# and pools that run as threads, and the schedule on the cpu device's
SAN_ENV = ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:exitcode=99 \
  UBSAN_OPTIONS=halt_on_error=1:exitcode=98:print_stacktrace=1
SAN_OF_asan = address
SAN_OF_ubsan = undefined -fno-sanitize-recover=all
.PHONY: asan ubsan tsan
asan ubsan: deps
	@$(MAKE) --no-print-directory all probes B=build/$@/bin O=build/$@ \
	  CFLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=$(SAN_OF_$@)" LDFLAGS="-fsanitize=$(firstword $(SAN_OF_$@))"
	@cp -r $(SCRIPTS:%=bin/%) bin/run build/$@/bin/
	@$(SAN_ENV) $(MAKE) --no-print-directory suites B=build/$@/bin O=build/$@
tsan: deps
	@$(MAKE) --no-print-directory all probes B=build/tsan/bin O=build/tsan CFLAGS="-O1 -g -fsanitize=thread" \
	  LDFLAGS="-fsanitize=thread"
	@TSAN_OPTIONS=halt_on_error=1:exitcode=97 MT="$(abspath build/tsan/bin)" BUILD="$(abspath build/tsan)" tests/run \
	  tests/01-protocol.bats
	@TSAN_OPTIONS=halt_on_error=1:exitcode=97 build/tsan/probes/stream-chaos seeds "tsan-$$$$" tests/golden 1 64

# ---- warnings: each gcc-N and clang-N that is installed builds each source once, kernels as for the emulator, into
# build/warnings/COMPILER
COMPILERS ?= $(shell printf '%s\n' $(notdir $(wildcard /usr/bin/gcc-[0-9]* /usr/bin/clang-[0-9]*)) | \
  grep -xE '(gcc|clang)-[0-9]+')
.PHONY: warnings sources $(COMPILERS:%=warnings-%)
sources: all $(EMU_OBJ) $(CUDA_C:mt-stream/%.c=$(O)/emu/%.o) $(filter-out $(O)/emu/% $(O)/gpu/% \
  $(O)/probes/cuda-%,$(PROBES))
warnings: $(COMPILERS:%=warnings-%)
$(COMPILERS:%=warnings-%): warnings-%:
	@mkdir -p build
	@$(MAKE) --no-print-directory -k $(JOBS) O=build/warnings/$* B=build/warnings/$*/bin WERROR=1 NVCC= \
	  CC=$* CXX=$(subst clang,clang++,$(subst gcc,g++,$*)) sources >build/warnings.$*.log 2>&1 || \
	  { cat build/warnings.$*.log; echo "$*: warnings or errors"; exit 1; }
	@echo "$*: no warning"

# ---- demo: a byte-level llama of 0.9 M parameters learns the King James Bible on the CPU
DEMO = build/demo
# what it runs; without CUDA, which it does not use, if mt-stream was not built with it before
DEMO_RUNS = $(addprefix $(B)/mt-,run store ckpt stream optim step feed sample)
.PHONY: demo
demo: demo-deps
	@$(MAKE) --no-print-directory $(JOBS) $(DEMO_RUNS) $(shell grep -qs cuda $(O)/mt-stream/devices || echo NVCC=)
	@rm -rf $(DEMO)
	@$(B)/mt-run --demo $(DEMO)

.PHONY: bench
bench: deps
	@$(MAKE) --no-print-directory all $(BENCHES) $(O)/probes/shm-ring
	@MT="$(abspath $(B))" BUILD="$(abspath $(O))" tests/bench/run
# the tables of results in README.md and tests/bench/results/README.md
.PHONY: figures
figures:
	@tests/bench/figures

# ---- the protocols between nodes and of files on drives, as models that Spin searches, and orders on arm64 by herd7
# (tests/model/README.md)
.PHONY: model-check
model-check:
	@tests/model/run
	@tests/model/litmus/run

# ---- a real model and real conversations, from PyPI: losses and norms beside PyTorch's (tests/real/README.md)
.PHONY: real-test
real-test: all
	@tests/venv $(or $(VENV),build/venv)
	@MT="$(abspath $(B))" tests/real/run build/real

# ---- arm64: a cross build, run in emulation (tests/arm64/run); nothing is installed
.PHONY: arm64-test
arm64-test:
	@BUILD="$(abspath $(O))" tests/arm64/run

# ---- NUMA: virtual machines with several nodes (tests/numa/README.md)
NODES ?= 2+1 4
.PHONY: numa-test
$(O)/numa/placement: INCLUDE = -Ishm
$(O)/numa/placement: tests/numa/placement.c $(O)/libmt.a
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $< $(O)/libmt.a $(LIBMT_LIBS)
numa-test: all $(O)/numa/placement
	@MT="$(abspath $(B))" BUILD="$(abspath $(O))" tests/numa/run $(NODES)
