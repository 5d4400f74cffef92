# Where nvcc, cuBLASLt's header and the static CUDA runtime are found, the cuda device is built in; programs start and
# run without CUDA all the same. `make NVCC=`: never. What the toolkit itself lacks is looked for in Python's wheels
# (nvidia/cu13; `make nvcc` fetches them). CUDA_TARGETS="80 90": machine code for these compute capabilities, and PTX
# of the newest; by default for the GPUs that are here, or else 9.0. `make cuda-all` (CUDA_TARGETS=all): for all; 8.0's
# runs on 8.6 and 8.9, too.
GPUS_HERE = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | \
  grep -xE '[89][0-9]|1[0-9][0-9]' | sort -un)
CUDA_TARGETS ?=
override CUDA_TARGETS := $(patsubst all,80 90 100 120,$(or $(strip $(CUDA_TARGETS)),$(GPUS_HERE),90))
.PHONY: cuda-all nvcc
cuda-all:
	@$(MAKE) --no-print-directory all CUDA_TARGETS=all
# for a machine without the toolkit: what the build needs of it, as Python's wheels (0.9 GB) in build/deps/nvcc
NVCC_WHEELS = $(foreach p,cublas cuda-cccl cuda-crt cuda-nvcc cuda-nvrtc cuda-runtime nvvm,'nvidia-$(p)==13.0.*')
nvcc:
	@python3 -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --upgrade \
	  --target build/deps/nvcc $(NVCC_WHEELS)
PYTHON_LIB = $(eval PYTHON_LIB := $(shell python3 -c 'import os, sys; print(*(p for p in sys.path if os.path.isdir(p) \
  and "-packages" in p or os.path.isdir(p + "/nvidia")))' 2>/dev/null))$(PYTHON_LIB)
WHEELS = $(wildcard $(patsubst %,%/nvidia/cu13,$(CURDIR)/build/deps/nvcc $(PYTHON_LIB)))
first_of = $(firstword $(wildcard $(1)))
NVCC ?= $(or $(call first_of,$(CUDA_HOME)/bin/nvcc),$(shell command -v nvcc),$(call first_of,/usr/local/cuda/bin/nvcc \
  $(WHEELS:%=%/bin/nvcc)))
CUDA   = $(patsubst %/bin/nvcc,%,$(NVCC))
CUDART := $(if $(CUDA),$(or $(call first_of,$(CUDA)/lib64/libcudart_static.a $(CUDA)/lib/libcudart_static.a \
  $(CUDA)/targets/*/lib/libcudart_static.a),$(call first_of,$(WHEELS:%=%/lib/libcudart_static.a))))
CUBLAS_H := $(if $(CUDA),$(or $(call first_of,$(CUDA)/include/cublasLt.h),$(call \
  first_of,$(WHEELS:%=%/include/cublasLt.h))))
# a wheel's headers after the toolkit's own
CUDA_INCLUDE = -isystem $(CUDA)/include $(if $(filter $(CUDA)/%,$(CUBLAS_H)),,-isystem $(CUBLAS_H:%/cublasLt.h=%))
# cuDNN's attention, where the headers of cudnn-frontend and of cuDNN are found: CUDNN_FRONTEND=DIR, what `make deps` or
# `make gpu-deps` fetched, Python's packages; the library is opened at run time. `make CUDNN_FRONTEND=`: never.
HEADERS = $(CURDIR)/build/deps/cudnn/include $(CURDIR)/build/gpu-deps/cudnn/include
CUDNN_FRONTEND ?= $(patsubst %/cudnn_frontend.h,%,$(firstword $(wildcard $(HEADERS:%=%/cudnn_frontend.h)) $(wildcard \
  $(PYTHON_LIB:%=%/include/cudnn_frontend.h))))
CUDNN_H ?= $(patsubst %/cudnn.h,%,$(firstword $(wildcard $(CUDA)/include/cudnn.h /usr/include/cudnn.h \
  $(HEADERS:%=%/cudnn.h)) $(wildcard $(PYTHON_LIB:%=%/nvidia/cudnn/include/cudnn.h))))
CUDA_C   = $(wildcard mt-stream/device/cuda/*.c)
CUDA_SRC = $(wildcard mt-stream/device/cuda/*.cu)
ifneq ($(and $(NVCC),$(CUDART),$(CUBLAS_H),$(if $(findstring sanitize,$(LDFLAGS)),,yes)),)
CUDA_OBJ = $(CUDA_SRC:%.cu=$(O)/%.o)
CUDA_NEWEST = $(lastword $(CUDA_TARGETS))
LIBS_mt-stream += $(CUDART) -ldl -lrt
$(B)/mt-stream: $(CUDA_OBJ)
$(CUDA_OBJ): $(O)/mt-stream/device/cuda-targets
$(eval $(call kept,$(O)/mt-stream/device/cuda-targets,$(CUDA_TARGETS)))
# its instructions are those of 9.0 alone; other GPUs do without
$(O)/mt-stream/device/cuda/grouped-wgmma.o: override CUDA_TARGETS = 90a
$(CUDA_C:%.c=$(O)/%.o): FILE_CFLAGS = $(CUDA_INCLUDE) $(if $(CUDNN),-DHAVE_CUDNN)
$(O)/mt-stream/stream.o $(O)/mt-stream/plan/plan.o: FILE_CFLAGS = -DHAVE_CUDA
SRC_mt-plan += mt-stream/device/cuda/gpu.c
LIBS_mt-plan += $(CUDART) -ldl -lrt
CUDNN := $(if $(and $(CUDNN_FRONTEND),$(CUDNN_H),$(shell command -v $(CXX))),$(O)/mt-stream/device/cuda/cudnn.o)
ifneq ($(CUDNN),)
$(B)/mt-stream: $(CUDNN)
$(O)/mt-stream/device/cuda/device.o: $(CUDNN)
LIBS_mt-stream += -lstdc++
else
$(if $(filter 0,$(MAKELEVEL)),$(if $(filter deps test demo clean,$(MAKECMDGOALS)),,$(info no headers of cudnn-frontend \
  (make deps): the cuda device is built without cuDNN)))
endif
$(O)/mt-stream/device/cuda/cudnn.o: mt-stream/device/cuda/cudnn.cc
	@mkdir -p $(@D)
	$(QUIET)$(CCACHE) $(CXX) -std=c++17 -O1 -fPIC $(WARN) -MMD -MP -isystem $(CUDNN_FRONTEND) \
	  -isystem $(CUDNN_H) $(CUDA_INCLUDE) -c -o $@ $<
# CCACHE_DEPEND: ccache compares the file and its headers. By default it compares the output of nvcc -E, which is for
# one target: it would take an old object where only code for the host or for other targets has changed
$(O)/%.o: %.cu
	@mkdir -p $(@D)
	$(QUIET)CCACHE_DEPEND=1 $(CCACHE) $(NVCC) -std=c++17 -O3 -Ishm -Imt-stream --threads 2 \
	  $(foreach t,$(CUDA_TARGETS),-gencode arch=compute_$(t),code=sm_$(t)) \
	  -gencode arch=compute_$(CUDA_NEWEST),code=compute_$(CUDA_NEWEST) -MMD -MP -Xcompiler \
	  -Wall,-Wextra,-fPIC,-fno-exceptions,-fno-threadsafe-statics \
	  -c -o $@ $<
else
SRC_mt-stream := $(filter-out $(CUDA_C),$(SRC_mt-stream))
CUDA_LACKS = $(if $(NVCC),$(if $(CUDART),,libcudart_static.a) $(if $(CUBLAS_H),,cublasLt.h),nvcc)
$(if $(filter 0,$(MAKELEVEL)),$(info no $(strip $(CUDA_LACKS)) found: mt-stream is built without its cuda device))
endif

# `make` after the toolkit was installed or removed must not link old objects
$(O)/mt-stream/stream.o $(O)/mt-stream/plan/plan.o: $(O)/mt-stream/devices
$(eval $(call kept,$(O)/mt-stream/devices,cpu chaos $(if $(CUDA_OBJ),cuda)))

# where there is nvcc, but cuDNN's attention cannot be built in for want of headers; tried once
cudnn-headers:
ifneq ($(and $(NVCC),$(if $(CUDNN),,yes),$(if $(wildcard build/deps/cudnn),,yes)),)
	@mkdir -p build/deps/cudnn; tests/gpu/headers build/deps/cudnn $(if $(CUDNN_H),,cudnn) || \
	  echo 'make deps: no headers of cudnn-frontend: the cuda device is built without cuDNN' >&2
endif
