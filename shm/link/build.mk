# mt-link, where MPI is found (Debian: openmpi-bin, libopenmpi-dev)
MPICC := $(shell command -v mpicc)
ifneq ($(MPICC),)
PROGRAMS    += mt-link
SRC_mt-link  = $(wildcard shm/link/*.c)
LIBS_mt-link := $(shell $(MPICC) -showme:link 2>/dev/null || $(MPICC) -link_info)
# system headers: what MPI's warn of is not ours
FILE_CFLAGS_MPI := $(patsubst -I%,-isystem%,$(shell $(MPICC) -showme:compile 2>/dev/null))
$(SRC_mt-link:%.c=$(O)/%.o): FILE_CFLAGS = $(FILE_CFLAGS_MPI)
endif
