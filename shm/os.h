/* os.h: the clock, the cores and the memory of this machine. Not public. */
#ifndef MT_OS_H
#define MT_OS_H

#include <stdint.h>

double mt_now(void); /* seconds, monotonic */
void mt_nap(int ms); /* ms < 1000; a signal ends it */
int mt_cores(void);  /* usable cores: affinity and cgroup quota */
/* Bytes that may still be allocated: /proc/meminfo's MemAvailable, or what the cgroup has left, if that is less.
 * UINT64_MAX where nothing says it */
uint64_t mt_mem_available(void);
uint64_t mt_mem_total(void);          /* MemTotal; UINT64_MAX as above */
uint64_t mt_node_available(int node); /* what a NUMA node can give: free, or reclaimed from files; likewise */

/* cgroup.c: bytes that this process's cgroup and those above it still allow, without what is reclaimed from files; and
 * cores, by quota. UINT64_MAX: no limit */
uint64_t mt_cgroup_available(void);
uint64_t mt_cgroup_cores(void);

#endif
