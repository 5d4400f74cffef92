SRC_mt-tier = $(wildcard shm/tier/*.c)
$(SRC_mt-tier:%.c=$(O)/%.o): FILE_CFLAGS = -O3 $(XXH_DISPATCH)
