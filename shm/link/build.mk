# mt-link, where MPI is found (Debian: openmpi-bin, libopenmpi-dev)
MPICC := $(shell command -v mpicc)
ifneq ($(MPICC),)
PROGRAMS    += mt-link
SRC_mt-link  = $(wildcard shm/link/*.c)
# the compiler that Open MPI and MPICH would call, and its options
MPI_WORDS := $(shell $(MPICC) -show)
LIBS_mt-link := $(filter -L% -l% -Wl$(comma)% -pthread,$(MPI_WORDS))
# system headers: what MPI's warn of is not ours
FILE_CFLAGS_MPI := $(patsubst -I%,-isystem%,$(filter -I% -D% -pthread,$(MPI_WORDS)))
$(SRC_mt-link:%.c=$(O)/%.o): FILE_CFLAGS = $(FILE_CFLAGS_MPI)
endif
