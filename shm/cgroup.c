/* cgroup.c: what this process's cgroup, and those above it, still allow: memory and cores. v2 has one tree; v1 has one
 * for each controller. A missing file means: no limit. In a container without a cgroup namespace, /proc/self/cgroup has
 * the host's path, but the container sees only its own group, as the root. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "os.h"

/* The file of a cgroup's directory, or NULL */
static FILE *open_in(const char *dir, const char *name)
{
	char path[1400];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return fopen(path, "re");
}

/* A file that holds one number ("max" or anything else: UINT64_MAX) */
static uint64_t number_in(const char *dir, const char *name)
{
	FILE *f = open_in(dir, name);
	unsigned long long v;
	if (!f) return UINT64_MAX;
	int n = fscanf(f, "%llu", &v);
	fclose(f);
	return n == 1 ? v : UINT64_MAX;
}

/* Pages of files: the kernel takes them back before it runs out of the group's memory. Not those of shared memory */
static uint64_t file_pages(const char *dir, bool v2)
{
	FILE *f = open_in(dir, "memory.stat");
	char line[128], name[64];
	unsigned long long v;
	uint64_t sum = 0;
	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%63s %llu", name, &v) != 2) continue;
		const char *of_all = v2 ? name : strncmp(name, "total_", 6) ? "" : name + 6; /* v1: with the groups below */
		if (!strcmp(of_all, "inactive_file") || !strcmp(of_all, "active_file")) sum += v;
	}
	if (f) fclose(f);
	return sum;
}

/* Limits from here on are none: v1 writes 2^63 less a page where there is no limit */
#define UNLIMITED ((uint64_t)1 << 62)

static uint64_t memory_left(const char *dir, bool v2)
{
	uint64_t max = number_in(dir, v2 ? "memory.max" : "memory.limit_in_bytes"),
			 high = v2 ? number_in(dir, "memory.high") : UINT64_MAX, /* above it, the group is slowed down */
		used = number_in(dir, v2 ? "memory.current" : "memory.usage_in_bytes");
	if (high < max) max = high;
	if (max >= UNLIMITED || used == UINT64_MAX) return UINT64_MAX;
	uint64_t files = file_pages(dir, v2);
	used -= files < used ? files : used;
	return max > used ? max - used : 0;
}

/* Rounded up */
static uint64_t cores_of_quota(const char *dir, bool v2)
{
	FILE *f = open_in(dir, v2 ? "cpu.max" : "cpu.cfs_quota_us");
	double quota = 0, period = 0;
	if (!f) return UINT64_MAX;
	if (fscanf(f, v2 ? "%lf %lf" : "%lf", &quota, &period) < 1) quota = 0; /* "max"; v1: -1 */
	fclose(f);
	if (!v2) period = (double)number_in(dir, "cpu.cfs_period_us");
	if (quota <= 0 || period <= 0) return UINT64_MAX;
	uint64_t cores = (uint64_t)(quota / period);
	return cores + ((double)cores * period < quota);
}

/* Is it in the list of names with commas between them? */
static bool listed(const char *list, const char *name)
{
	size_t n = strlen(name);
	for (const char *p = list; (p = strstr(p, name)); p += n)
		if ((p == list || p[-1] == ',') && (p[n] == ',' || !p[n])) return true;
	return false;
}

/* The least of what a controller's groups allow */
static uint64_t least_of(const char *controller, uint64_t (*look)(const char *dir, bool v2))
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char line[1024], dir[1200]; /* lines are number:controllers:path; v2's is 0::path */
	uint64_t least = UINT64_MAX;
	while (f && fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = 0;
		char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
		if (!path) continue;
		names++;
		*path++ = 0;
		if (*names && !listed(names, controller)) continue;
		for (;;) {
			snprintf(dir, sizeof dir, "/sys/fs/cgroup%s%s%s", *names ? "/" : "", *names ? controller : "", path);
			uint64_t allowed = look(dir, !*names);
			if (allowed < least) least = allowed;
			char *cut = strrchr(path, '/');
			if (!cut || !path[1]) break;
			cut[cut == path ? 1 : 0] = 0;
		}
	}
	if (f) fclose(f);
	return least;
}

uint64_t mt_cgroup_available(void) { return least_of("memory", memory_left); }
uint64_t mt_cgroup_cores(void) { return least_of("cpu", cores_of_quota); }
