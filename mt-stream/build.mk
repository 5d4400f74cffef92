# mt-stream on the CPU: GEMM by oneDNN, or by OpenBLAS where it is not there.
ifeq ($(call have,dnnl.h),yes)
GEMM_CFLAGS = -DHAVE_DNNL
GEMM_LIBS   = -ldnnl -lgomp -ldl
else
GEMM_LIBS   = -lopenblas
endif
LIBS_mt-stream = $(GEMM_LIBS)

CPU_OPS = $(filter-out %/device.c %/chaos.c,$(wildcard mt-stream/cpu/*.c))
$(CPU_OPS:%.c=$(O)/%.o): FILE_CFLAGS = -O3 -fno-trapping-math
$(O)/mt-stream/cpu/gemm.o: FILE_CFLAGS = -O3 -fno-trapping-math $(GEMM_CFLAGS)
