# Tests and benchmarks of the cuda device: on an emulated GPU, on a GPU, or with neither.
UPDATE_OBJ = $(patsubst %.c,$(O)/%.o,$(wildcard mt-optim/update*.c))

GPU_GEMM = device/cuda/gemm.o device/cuda/gpu.o

ifdef CUDA_OBJ
$(O)/gpu/cuda-kernels: tests/probes/cuda-kernels.c $(CUDA_OBJ) $(GPU_GEMM:%=$(O)/mt-stream/%) $(OUR_LIBS)
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(CUDA_INCLUDE) $(LDFLAGS) -o $@ $(filter-out %.h %ops.c,$^) $(CUDART) -ldl -lrt \
	  $(LIBMT_LIBS)
$(O)/gpu/rates: $(UPDATE_OBJ)
$(O)/gpu/%: tests/gpu/%.c $(CUDA_OBJ) $(GPU_GEMM:%=$(O)/mt-stream/%) $(OUR_LIBS)
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(CUDA_INCLUDE) $(LDFLAGS) -o $@ \
	  $(filter-out %.h $(if $(filter products,$*),%/gemm.o),$^) $(CUDART) -ldl -lrt $(LIBMT_LIBS)
ifneq ($(CUDNN),)
PROBES += $(O)/gpu/cudnn-plans $(O)/gpu/described/libcuda.so.1
$(O)/gpu/cudnn-plans: tests/gpu/cudnn-plans.c $(CUDNN)
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(CUDA_INCLUDE) $(LDFLAGS) -o $@ $< $(CUDNN) $(CUDART) -lstdc++ -ldl -lrt -lpthread -lm
$(O)/gpu/described/libcuda.so.1: tests/gpu/emu/driver.c
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $<
endif
endif

# The same sources for a CPU that plays the GPU (tests/gpu/emu): the kernels one by one, and mt-stream as a whole. Not
# under sanitizers, which do not like threads that change their stacks.
ifneq ($(if $(findstring sanitize,$(LDFLAGS)),,$(shell command -v $(CXX))),)
PROBES += $(O)/probes/cuda-kernels $(O)/probes/cuda-races $(O)/probes/cuda-banks $(O)/probes/cuda-chaos \
  $(O)/emu/mt-stream $(O)/emu/mt-plan $(O)/emu/libcublasLt.so.13 $(O)/emu/rates $(O)/emu/large
endif
# sizes that small models go round and across
EMU = -DMT_EMU -DMOST_BLOCKS=24 -DBALANCE_BLOCKS=24 -Itests/gpu/emu -Ishm -Imt-stream
CUDA_DEVICE = device.o events.o memory.o execute.o
$(foreach d,emu emu/left-out,$(CUDA_DEVICE:%=$(O)/$d/device/cuda/%)): EMU += -DEVENTS=16 -DREGISTER_MOST=16384u
$(O)/emu/device/cuda/host.o $(O)/emu/left-out/device/cuda/host.o: EMU += -DBUFFER_BYTES=1000 -DTASK_BYTES=300
$(O)/emu/device/cuda/backend.o: EMU += -DROWS_BYTES=153600u -DHEADS_BYTES=102400u -DSHORTEST=8
$(O)/emu/device/cuda/backend-check.o: EMU += -DSHORT=96 -DSAMPLES=24 -DSAMPLE=4 -DSTAGE=10000
$(O)/emu/device/cuda/wgmma-check.o: EMU += -DLOOKS=5000
$(O)/emu/device/cuda/rows.o: EMU += -DNARROW_FIRST=1000
EMU_THREADS = $(O)/emu/emu.o $(O)/emu/wgmma.o
EMU_OBJ = $(CUDA_SRC:mt-stream/%.cu=$(O)/emu/%.o) $(EMU_THREADS) $(O)/emu/sdpa.o
$(O)/emu/%.o: mt-stream/%.cu
	@mkdir -p $(@D)
	$(QUIET)$(CCACHE) $(CXX) -std=c++17 -x c++ $(EMU) $(WARN) -Wno-unknown-pragmas -MMD -MP $(CFLAGS) -c -o $@ $<
$(O)/emu/%.o: tests/gpu/emu/%.cc
	@mkdir -p $(@D)
	$(QUIET)$(CCACHE) $(CXX) -std=c++17 $(EMU) $(WARN) -MMD -MP $(CFLAGS) -c -o $@ $<
$(O)/emu/%.o: mt-stream/%.c
	@mkdir -p $(@D)
	$(QUIET)$(CCACHE) $(CC) $(ALL_CFLAGS) $(EMU) -DHAVE_CUDA -c -o $@ $<
$(O)/probes/cuda-kernels: tests/probes/cuda-kernels.c $(EMU_OBJ)
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(EMU) $(LDFLAGS) -o $@ $< $(EMU_OBJ) -lstdc++ -lm
# Kernels that report their accesses (emu/watch.h): all to emu/races.cc, some to emu/banks.cc
EMU_KERNELS = $(CUDA_SRC:mt-stream/%.cu=%.o)
BANKS = $(addprefix device/cuda/,attention.o attention-mma.o grouped-mma.o grouped-wgmma.o)
$(O)/emu/watched/%.o: mt-stream/%.cu
	@mkdir -p $(@D)
	$(QUIET)$(CCACHE) $(CXX) -std=c++17 -x c++ $(EMU) $(WARN) -Wno-unknown-pragmas -MMD -MP $(CFLAGS) -O1 -g \
	  -fsanitize=thread -c -o $@ $<
$(O)/probes/cuda-races: tests/probes/cuda-kernels.c $(EMU_KERNELS:%=$(O)/emu/watched/%) $(EMU_THREADS) \
  $(O)/emu/races.o
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(EMU) $(LDFLAGS) -no-pie -o $@ $(filter-out %.h %ops.c,$^) -lstdc++ -lm
$(O)/probes/cuda-banks: $(BANKS:%=$(O)/emu/watched/%) $(O)/emu/banks.o $(filter-out $(BANKS:%=$(O)/emu/%),$(EMU_OBJ))
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lstdc++ -lm
$(O)/emu/mt-stream: $(EMU_OBJ) $(patsubst mt-stream/%.c,$(O)/emu/%.o,$(CUDA_C) mt-stream/stream.c) \
  $(patsubst %.c,$(O)/%.o,$(filter-out $(CUDA_C) mt-stream/stream.c,$(SRC_mt-stream))) $(OUR_LIBS)
	$(QUIET)$(CC) $(CFLAGS) $(LDFLAGS) $(EMU_LD) -o $@ $^ $(GEMM_LIBS) $(LIBMT_LIBS) -lstdc++ -ldl
$(O)/emu/mt-plan: $(EMU_OBJ) $(O)/emu/device/cuda/gpu.o $(O)/emu/plan/plan.o \
  $(patsubst %.c,$(O)/%.o,$(filter-out %/gpu.c %/plan.c,$(SRC_mt-plan))) $(OUR_LIBS)
	$(QUIET)$(CC) $(CFLAGS) $(LDFLAGS) $(EMU_LD) -o $@ $^ $(GEMM_LIBS) $(LIBMT_LIBS) -lstdc++ -ldl
$(O)/emu/rates $(O)/emu/large: $(O)/emu/%: tests/gpu/%.c $(EMU_OBJ) $(GPU_GEMM:%=$(O)/emu/%) $(UPDATE_OBJ) $(OUR_LIBS)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(EMU) $(LDFLAGS) $(EMU_LD) -o $@ $(filter-out %.h,$^) $(LIBMT_LIBS) -lstdc++ -ldl
$(O)/emu/left-out/%.o: mt-stream/%.c tests/probes/left-out.h
	@mkdir -p $(@D)
	$(QUIET)$(CCACHE) $(CC) $(ALL_CFLAGS) $(EMU) -include tests/probes/left-out.h -c -o $@ $<
$(O)/probes/cuda-chaos: tests/probes/stream-chaos.c tests/probes/stream-world.h $(EMU_OBJ) \
  $(CUDA_DEVICE:%=$(O)/emu/left-out/device/cuda/%) $(O)/emu/left-out/device/cuda/host.o \
  $(patsubst mt-stream/%.c,$(O)/emu/%.o,$(filter-out $(addprefix mt-stream/device/cuda/,host.c \
  $(CUDA_DEVICE:.o=.c)),$(CUDA_C))) \
  $(filter-out $(CHAOS_SRC:%.c=$(O)/%.o) %/serve.o %/stream.o,$(patsubst %.c,$(O)/%.o, \
  $(filter-out $(CUDA_C),$(SRC_mt-stream)))) $(OUR_LIBS)
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) $(EMU) $(LDFLAGS) $(EMU_LD) -o $@ $< $(filter %.o %.a,$^) $(GEMM_LIBS) $(LIBMT_LIBS) \
	  -lstdc++ -ldl
# their cuBLASLt, which finds the emulator's functions in the program that opens it
EMU_LD = -rdynamic -Wl,--disable-new-dtags,-rpath,'$$ORIGIN:$$ORIGIN/../emu'
$(O)/emu/libcublasLt.so.13: tests/gpu/emu/cublaslt.c
	@mkdir -p $(@D)
	$(QUIET)$(CC) $(ALL_CFLAGS) -shared -o $@ $<

# On a bare GPU machine (nvcc, gcc, make, python3): is it right, how fast is it. `make gpu-deps` before, elsewhere,
# packs the -dev packages that such a machine lacks into build/gpu-deps.tar.gz, which has to travel along. (The Makefile
# unpacks it before it looks for headers.)
GPU_DEPS = $(CURDIR)/build/gpu-deps/usr
GPU_MAKE = $(if $(wildcard $(GPU_DEPS)),CC="$(CC) -isystem $(GPU_DEPS)/include" \
  LDFLAGS="-L$(wildcard $(GPU_DEPS)/lib/*-linux-gnu) -Wl$(comma)--disable-new-dtags$(comma)-rpath$(comma)$(wildcard \
  $(GPU_DEPS)/lib/*-linux-gnu)")
GPU_ENV = MT="$(abspath $(B))" BUILD="$(abspath $(O))"
# where there is nvcc without cuobjdump, which reads machine code for tests/gpu/sass: from PyPI; tried once
SASS_WHEELS = nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
sass-tools:
ifneq ($(and $(NVCC),$(if $(wildcard $(CUDA)/bin/cuobjdump build/deps/sass),,yes),$(if $(shell command -v \
  cuobjdump),,yes)),)
	@mkdir -p build/deps/sass; python3 -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: \
	  --target build/deps/sass $(SASS_WHEELS) >/dev/null 2>&1 || echo \
	  'make deps: no cuobjdump: the machine code of kernels is not tested' >&2
endif
.PHONY: gpu-deps gpu-have gpu-build gpu-check gpu-bench gpu-zero3 gpu-first
gpu-deps:
	@tests/gpu/deps build/gpu-deps.tar.gz
# what the build will use, by name: a line `NAME PATH`, or `NAME -` where it is missing
header_of = $(firstword $(shell printf '$(hash)include <$(1)>\n' | $(CC) -isystem $(GPU_DEPS)/include -E -xc - \
  2>/dev/null | sed -n 's,^$(hash) 1 "\(.*/$(1)\)".*,\1,p'))
gpu-have:
	@:$(foreach h,jansson.h numa.h xxhash.h,$(info $(h) $(or $(call header_of,$(h)),-)))
	@:$(info dnnl.h|cblas.h $(or $(call header_of,dnnl.h),$(call header_of,cblas.h),-))
	@:$(info cc $(or $(shell command -v $(firstword $(CC))),-))
	@:$(info c++ $(or $(shell command -v $(firstword $(CXX))),-))
	@:$(info nvcc $(or $(wildcard $(NVCC)),-))$(info libcudart_static.a $(or $(CUDART),-))
	@:$(info cublasLt.h $(or $(CUBLAS_H),-))
	@:$(info cudnn.h $(or $(addsuffix /cudnn.h,$(CUDNN_H)),-))
	@:$(info cudnn_frontend.h $(or $(addsuffix /cudnn_frontend.h,$(CUDNN_FRONTEND)),-))
# EMULATED=yes: the emulator in the place of the GPU. What is there stays as it was built, with or without nvcc: other
# processes may use it.
GPU_PROGRAMS = $(O)/gpu/cuda-kernels $(O)/gpu/rates $(O)/gpu/large $(O)/gpu/kernels $(O)/gpu/products
EMU_PROGRAMS = $(O)/emu/mt-stream $(O)/emu/libcublasLt.so.13 $(O)/emu/rates $(O)/emu/large $(O)/probes/cuda-kernels
gpu-build:
	@$(MAKE) --no-print-directory -j "$$(nproc)" all $(O)/probes/stream-drive $(O)/probes/ckpt-dump $(O)/bench/adam \
	  $(if $(EMULATED),$(EMU_PROGRAMS),$(GPU_PROGRAMS)) $(GPU_MAKE)
# the scripts' --budget includes the build
GPU_BEGAN := $(if $(filter gpu-%,$(MAKECMDGOALS)),$(shell date +%s))
gpu-check: gpu-build
	@$(GPU_ENV) GPU_BEGAN=$(GPU_BEGAN) tests/gpu/check $(GPU_ARGS)
gpu-bench: gpu-build
	@$(GPU_ENV) GPU_BEGAN=$(GPU_BEGAN) tests/gpu/bench $(GPU_ARGS)
gpu-zero3: gpu-build
	@$(GPU_ENV) tests/gpu/zero3 $(GPU_ARGS)
gpu-first:
	@$(GPU_ENV) tests/gpu/first $(GPU_ARGS)
