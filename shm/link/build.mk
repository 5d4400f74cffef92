# mt-link, where MPI is found (Debian: openmpi-bin, libopenmpi-dev)
MPICC := $(shell command -v mpicc)
# the compiler that Open MPI's or MPICH's mpicc would call, and its options. (Open MPI 5 wants a HOME for that.)
MPI_WORDS := $(if $(MPICC),$(shell HOME=$${HOME-/} $(MPICC) -show 2>/dev/null))
ifeq ($(MPI_WORDS),)
MPICC :=
else
PROGRAMS    += mt-link
SRC_mt-link  = $(wildcard shm/link/*.c)
LIBS_mt-link := $(filter -L% -l% -Wl$(comma)% -pthread,$(MPI_WORDS))
# system headers: what MPI's warn of is not ours
FILE_CFLAGS_MPI := $(patsubst -I%,-isystem%,$(filter -I% -D% -pthread,$(MPI_WORDS)))
$(SRC_mt-link:%.c=$(O)/%.o): FILE_CFLAGS = $(FILE_CFLAGS_MPI)
endif
