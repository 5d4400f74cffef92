/* os.h: the clock, the cores and the memory of this machine. Not public. */
#ifndef MT_OS_H
#define MT_OS_H

#include <stdint.h>

double mt_now(void); /* seconds, monotonic */
void mt_nap(int ms); /* ms < 1000; a signal ends it */
int mt_cores(void);  /* usable cores: affinity and cgroup quota */
/* Bytes that may still be allocated; UINT64_MAX: unknown, or no limit. /proc/meminfo's MemAvailable; what this
 * process's cgroup and those above it have left, where pages of files do not count as used (cgroup.c); the lesser */
uint64_t mt_machine_available(void);
uint64_t mt_cgroup_available(void);
uint64_t mt_mem_available(void);
uint64_t mt_mem_total(void);          /* MemTotal, likewise */
uint64_t mt_node_available(int node); /* what a NUMA node can give: free, or reclaimed from files; likewise */

/* Cores by the cgroup's quota, rounded up; UINT64_MAX: no limit. cgroup.c */
uint64_t mt_cgroup_cores(void);

#endif
