# mt-stream on the CPU: GEMM by oneDNN, or by OpenBLAS where it is not there. On arm64 OpenBLAS comes first: Debian's
# oneDNN has no fast sgemm there
ON_ARM64 := $(findstring aarch64,$(shell $(CC) -dumpmachine 2>/dev/null))
ifeq ($(if $(and $(ON_ARM64),$(call have,cblas.h)),,$(call have,dnnl.h)),yes)
GEMM_CFLAGS = -DHAVE_DNNL
GEMM_LIBS   = -ldnnl -lgomp -ldl
else
GEMM_LIBS   = -lopenblas
endif
LIBS_mt-stream = $(GEMM_LIBS)
LIBS_mt-sample = $(GEMM_LIBS)
LIBS_mt-plan   = $(GEMM_LIBS)

# (-g1: line numbers without variables; they take half of these files' time to compile)
CPU_OPS = $(filter-out %/device.c %/execute.c,$(wildcard mt-stream/device/cpu/*.c))
$(CPU_OPS:%.c=$(O)/%.o): FILE_CFLAGS = -O3 -g1 -fno-trapping-math
$(O)/mt-stream/device/cpu/gemm.o: FILE_CFLAGS = -O3 -fno-trapping-math $(GEMM_CFLAGS)
$(O)/mt-stream/device/cpu/gemm.o: $(O)/mt-stream/gemm-library
$(eval $(call kept,$(O)/mt-stream/gemm-library,$(GEMM_LIBS)))

# mt-plan: the planner, what the layers need, and the cpu's GEMM, which it measures
PLAN_ONLY = $(addprefix mt-stream/plan/,plan.c dry.c show.c)
SRC_mt-stream = $(filter-out mt-stream/sample/% $(PLAN_ONLY),$(wildcard $(addprefix mt-stream/,*.c */*.c */*/*.c)))
LAYERS = $(wildcard mt-stream/layers/*.c)
SRC_mt-plan = $(wildcard mt-stream/plan/*.c) mt-stream/schedule/split.c $(LAYERS) $(CPU_OPS)
# mt-sample: the layers and the cpu device of mt-stream, and mt-feed's records
SRC_mt-sample = $(wildcard mt-stream/sample/*.c) $(CPU_OPS) $(LAYERS) mt-stream/trace.c \
  mt-stream/device/cpu/device.c mt-stream/device/cpu/execute.c mt-step/record.c mt-step/feed/out.c
$(O)/mt-stream/sample/%.o: FILE_CFLAGS = -Imt-step

# what the chaos probes include: the schedule, and how it plans and waits
CHAOS_SRC = mt-stream/request.c \
  $(addprefix mt-stream/schedule/,arrive.c chunks.c offload.c windows.c schedule.c leave.c wait.c)
