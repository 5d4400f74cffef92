# mt: build, set-up, tests. `make demo` and `make test` need nothing but make and a package manager.

CC     ?= cc
CFLAGS ?= -O2 -g
B      ?= bin#                          where programs land
O      ?= build#                        where everything else lands
PREFIX ?= /usr/local
SHELL   = /bin/sh

# -ffp-contract=off: a compiler must not fuse a multiply and an add on its own; where we want fma we write it
WARN   = -Wall -Wextra -Wshadow -Werror
ALL_CFLAGS = -std=gnu17 -D_GNU_SOURCE $(WARN) -ffp-contract=off -fno-math-errno -Ishm -MMD -MP -fPIC $(CFLAGS)

have = $(shell printf '\#include <$(1)>\n' | $(CC) -E -xc - >/dev/null 2>&1 && echo yes)

LIBMT_LIBS = -ljansson -lnuma -lxxhash -lpthread -lm
ifeq ($(call have,dnnl.h),yes)
GEMM_CFLAGS = -DHAVE_DNNL
GEMM_LIBS   = -ldnnl -lgomp
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
PROBES  = $(patsubst tests/probes/%.c,$(O)/probes/%,$(wildcard tests/probes/*.c))
BENCHES = $(patsubst tests/bench/%.c,$(O)/bench/%,$(wildcard tests/bench/*.c))
MAN     = $(wildcard */*.1)

.PHONY: all lib clean
all: $(PROGRAMS:%=$(B)/%) lib

define program
$(B)/$(1): $$(SRC_$(1):%.c=$(O)/%.o) $(O)/libmt.a
	@mkdir -p $(B)
	$$(CC) $$(CFLAGS) $$(LDFLAGS) -o $$@ $$^ $$(LIBS_$(1)) $$(LIBMT_LIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program,$(p))))

lib: $(O)/libmt.a $(O)/libmt.so $(O)/mt.pc
$(O)/libmt.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^
$(O)/libmt.so: $(LIB_OBJ)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libmt.so.0 -o $@ $^ $(LIBMT_LIBS)
$(O)/mt.pc: shm/mt.h Makefile
	@mkdir -p $(O)
	@printf '%s\n' 'prefix=$(PREFIX)' 'Name: mt' 'Description: memory-centric LLM training: rings, store and transactions' \
	  "Version: $$(sed -n 's/^#define MT_VERSION "\(.*\)"/\1/p' shm/mt.h)" 'Libs: -L$${prefix}/lib -lmt' \
	  'Libs.private: $(LIBMT_LIBS)' 'Cflags: -I$${prefix}/include' >$@

$(O)/mt-stream/cpu-%.o: CFLAGS += -O3 -fno-trapping-math
$(O)/mt-stream/cpu-gemm.o: CFLAGS += $(GEMM_CFLAGS)
$(O)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c -o $@ $<

# probes and benches see the internals of the program they look into
$(O)/probes/ops $(O)/bench/ops: EXTRA = $(patsubst %.c,$(O)/%.o,$(wildcard mt-stream/cpu-*.c))
$(O)/probes/ops $(O)/bench/ops: $(patsubst %.c,$(O)/%.o,$(wildcard mt-stream/cpu-*.c))
$(O)/probes/step-%: EXTRA = $(patsubst %.c,$(O)/%.o,$(filter-out mt-step/step.c,$(SRC_mt-step)))
$(O)/probes/step-%: $(patsubst %.c,$(O)/%.o,$(filter-out mt-step/step.c,$(SRC_mt-step)))
$(O)/probes/stream-%: EXTRA = $(patsubst %.c,$(O)/%.o,$(filter-out mt-stream/stream.c,$(SRC_mt-stream)))
$(O)/probes/stream-%: $(patsubst %.c,$(O)/%.o,$(filter-out mt-stream/stream.c,$(SRC_mt-stream)))
$(O)/probes/optim-%: EXTRA = $(patsubst %.c,$(O)/%.o,$(filter-out mt-optim/optim.c,$(SRC_mt-optim)))
$(O)/probes/optim-%: $(patsubst %.c,$(O)/%.o,$(filter-out mt-optim/optim.c,$(SRC_mt-optim)))
$(O)/probes/ckpt-%: EXTRA = $(patsubst %.c,$(O)/%.o,$(filter-out mt-ckpt/ckpt.c,$(SRC_mt-ckpt)))
$(O)/probes/ckpt-%: $(patsubst %.c,$(O)/%.o,$(filter-out mt-ckpt/ckpt.c,$(SRC_mt-ckpt)))
$(O)/probes/%: tests/probes/%.c $(O)/libmt.a
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $< $(EXTRA) $(O)/libmt.a $(GEMM_LIBS) $(LIBMT_LIBS)
$(O)/bench/%: tests/bench/%.c $(O)/libmt.a
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -O3 $(LDFLAGS) -o $@ $< $(EXTRA) $(O)/libmt.a $(GEMM_LIBS) $(LIBMT_LIBS)
.PHONY: probes
probes: $(PROBES)

clean:
	rm -rf build $(PROGRAMS:%=bin/%)

-include $(shell [ -d $(O) ] && find $(O) -name '*.d')
