/* os.h: the clock, the cores and the memory of this machine; files that must be this user's. Not public. */
#ifndef MT_OS_H
#define MT_OS_H

#include <stdbool.h>
#include <stdint.h>

double mt_now(void);    /* seconds, monotonic */
void mt_nap(int ms);    /* ms < 1000; a signal ends it */
uint64_t mt_page(void); /* bytes of a page of memory: 4096, on some arm64 kernels 65536 */
int mt_cores(void);     /* usable cores: affinity and cgroup quota */
/* NUMA nodes that have memory and no cores, as a GPU's memory on a GH200 or GB200: a run's memory is never there unless
 * --numa names them. false: there are none */
#define MT_NUMA_NODES 1024
bool mt_numa_coreless(bool set[MT_NUMA_NODES]);
/* Bytes that may still be allocated; UINT64_MAX: unknown, or no limit. /proc/meminfo's MemAvailable, without that of
 * nodes without cores; what this process's cgroup and those above it have left, where pages of files do not count as
 * used (cgroup.c); the lesser */
uint64_t mt_machine_available(void);
uint64_t mt_cgroup_available(void);
uint64_t mt_mem_available(void);
uint64_t mt_mem_total(void);          /* MemTotal, likewise */
uint64_t mt_node_available(int node); /* what a NUMA node can give: free, or reclaimed from files; likewise */

/* Open a plain file of this user's; O_CREAT makes it. Where others may write, they may have put a link or a FIFO: a
 * link is not followed, and a FIFO is not waited for. The descriptor, or minus an exit code with its message, in which
 * errno counts only for -MT_EX_IO: MT_EX_EXISTS: it is no plain file; MT_EX_NOTYOURS: it is another user's */
int mt_open_own(const char *path, int flags);
int mt_try_open_own(const char *path, int flags); /* without a message */

/* Cores by the cgroup's quota, rounded up; UINT64_MAX: no limit. cgroup.c */
uint64_t mt_cgroup_cores(void);

/* In a loop that looks again and again: some 40 cycles. (arm64's yield takes none on servers.) */
static inline void cpu_relax(void)
{
#if defined __x86_64__
	__builtin_ia32_pause();
#elif defined __aarch64__
	__asm__ volatile("isb");
#endif
}

#endif
