/* os.c: the clock, the cores and the memory of this machine; files that must be this user's. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "mt/error.h"
#include "os.h"

double mt_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void mt_nap(int ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); }

uint64_t mt_page(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

int mt_cores(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
	uint64_t quota = mt_cgroup_cores();
	if (quota < (uint64_t)n) n = (int)quota;
	return n < 1 ? 1 : n;
}

static uint64_t meminfo(const char *path, const char *form)
{
	FILE *f = fopen(path, "re");
	char line[128];
	unsigned long long kb;
	uint64_t have = UINT64_MAX;
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, form, &kb) == 1) have = kb * 1024;
	if (f) fclose(f);
	return have;
}

/* ---- NUMA nodes */

static const char *sysfs(void)
{
	const char *dir = getenv("MT_SYSFS_DIR"); /* for tests */
	return dir && *dir ? dir : "/sys";
}

/* Sets in `set` the nodes of a list, "0-1,4" */
static void read_nodes(const char *name, bool set[MT_NUMA_NODES])
{
	char path[4096];
	unsigned long from, to;
	memset(set, 0, MT_NUMA_NODES * sizeof *set);
	snprintf(path, sizeof path, "%s/devices/system/node/%s", sysfs(), name);
	FILE *f = fopen(path, "re");
	while (f && fscanf(f, "%lu", &from) == 1) {
		to = from;
		int c = fgetc(f);
		if (c == '-') {
			if (fscanf(f, "%lu", &to) != 1) break;
			c = fgetc(f);
		}
		for (; from <= to && from < MT_NUMA_NODES; from++) set[from] = true;
		if (c != ',') break;
	}
	if (f) fclose(f);
}

bool mt_numa_coreless(bool set[MT_NUMA_NODES])
{
	bool cores[MT_NUMA_NODES], any = false, other = false;
	read_nodes("has_memory", set);
	read_nodes("has_cpu", cores);
	for (int node = 0; node < MT_NUMA_NODES; node++) {
		other |= set[node] && cores[node];
		set[node] &= !cores[node];
		any |= set[node];
	}
	if (any && other) return true;
	memset(set, 0, MT_NUMA_NODES * sizeof *set); /* nothing is known of cores, or no node has both */
	return false;
}

static uint64_t node_value(int node, const char *name)
{
	char path[4096], form[64];
	snprintf(path, sizeof path, "%s/devices/system/node/node%d/meminfo", sysfs(), node);
	snprintf(form, sizeof form, "Node %%*d %s: %%llu kB", name);
	return meminfo(path, form);
}

/* Without what nodes without cores have of it */
static uint64_t of_cores(uint64_t all, uint64_t (*of_node)(int node))
{
	bool coreless[MT_NUMA_NODES];
	if (all == UINT64_MAX || !mt_numa_coreless(coreless)) return all;
	for (int node = 0; node < MT_NUMA_NODES; node++) {
		uint64_t bytes = coreless[node] ? of_node(node) : 0;
		if (bytes != UINT64_MAX) all -= bytes < all ? bytes : all;
	}
	return all;
}

static uint64_t node_total(int node) { return node_value(node, "MemTotal"); }

uint64_t mt_machine_available(void)
{
	return of_cores(meminfo("/proc/meminfo", "MemAvailable: %llu kB"), mt_node_available);
}

uint64_t mt_mem_available(void)
{
	uint64_t machine = mt_machine_available(), group = mt_cgroup_available();
	return group < machine ? group : machine;
}

uint64_t mt_mem_total(void) { return of_cores(meminfo("/proc/meminfo", "MemTotal: %llu kB"), node_total); }

uint64_t mt_node_available(int node)
{
	static const char *const parts[] = {"MemFree", "Active(file)", "Inactive(file)", "SReclaimable"};
	uint64_t sum = 0;
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		uint64_t part = node_value(node, parts[i]);
		if (part == UINT64_MAX) return UINT64_MAX;
		sum += part;
	}
	return sum;
}

int mt_open_own(const char *path, int flags)
{
	int fd = mt_try_open_own(path, flags);
	if (fd == -MT_EX_EXISTS) mt_fail(MT_EX_EXISTS, "%s is a link or not a plain file", path);
	if (fd == -MT_EX_NOTYOURS) mt_fail(MT_EX_NOTYOURS, "%s belongs to another user", path);
	if (fd == -MT_EX_IO) mt_fail(MT_EX_IO, "%s: %s", path, strerror(errno));
	return fd;
}

int mt_try_open_own(const char *path, int flags)
{
	struct stat st;
	int rc = 0, fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
	if (fd < 0) return errno == ELOOP || errno == ENXIO || errno == EISDIR ? -MT_EX_EXISTS : -MT_EX_IO;
	if (fstat(fd, &st)) rc = -MT_EX_IO;
	else if (!S_ISREG(st.st_mode)) rc = -MT_EX_EXISTS;
	else if (st.st_uid != geteuid()) rc = -MT_EX_NOTYOURS;
	if (!rc) return fd;
	close(fd);
	return rc;
}
