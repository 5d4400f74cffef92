/* os.h: the clock, the cores and the memory of this machine. Not public. */
#ifndef MT_OS_H
#define MT_OS_H

#include <stdint.h>

double mt_now(void);                  /* seconds, monotonic */
void mt_nap(int ms);                  /* ms < 1000; a signal ends it */
int mt_cores(void);                   /* usable cores: affinity and cgroup quota */
uint64_t mt_mem_available(void);      /* /proc/meminfo's MemAvailable in bytes; UINT64_MAX where it says nothing */
uint64_t mt_mem_total(void);          /* MemTotal, likewise */
uint64_t mt_node_available(int node); /* what a NUMA node can give: free, or reclaimed from files; likewise */

#endif
