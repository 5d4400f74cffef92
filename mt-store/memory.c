/* memory.c: stat --memory: how much memory a new run may take here, as create checks it before it allocates. */
#include <inttypes.h>
#include <stdio.h>

#include "lib.h"
#include "os.h"
#include "store.h"

static void print_json(const char *key, uint64_t bytes)
{
	if (bytes == UINT64_MAX) printf("\"%s\": null", key);
	else printf("\"%s\": %" PRIu64, key, bytes);
}

static void print_line(const char *name, uint64_t bytes)
{
	if (bytes == UINT64_MAX) printf("%s: not known\n", name);
	else printf("%s: %.2f GiB\n", name, (double)bytes / 0x1p30);
}

void memory_print(bool json)
{
	uint64_t machine = mt_machine_available(), group = mt_cgroup_available(), in_shm = region_free();
	uint64_t have = group < machine ? group : machine;
	if (json) {
		printf("{");
		print_json("memory_available", have);
		printf(", ");
		print_json("shm_free", in_shm);
		printf("}\n");
		return;
	}
	print_line(group < machine ? "memory available in this cgroup" : "memory available", have);
	print_line("shared memory free", in_shm);
}
