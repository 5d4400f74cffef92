/* ping.c: what mt-link is compared with: a plain MPI program that sends the same messages, a header of 64 bytes and a
 * payload, from process 1 to process 0, with as many on their way, from and to as many blocks. Prints a line of JSON.
 * usage: mpirun -n 2 ping spin|sleep MiB [BYTES OF A PAYLOAD (default 1 MiB) [ON THEIR WAY (8) [GB/s]]]
 * spin: waits inside MPI. sleep: looks, and sleeps 100 us when nothing was there. Process R is on the R-th core.
 */
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "common.h"

enum { HEADER = 64, MOST = 64, WARM = 64 << 20 };

static struct {
	MPI_Request request[2];
	char header[HEADER];
	char *block;
} slots[MOST];

static void pin(int nth)
{
	cpu_set_t all, one;
	CPU_ZERO(&one);
	sched_getaffinity(0, sizeof all, &all);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && !nth--) CPU_SET(cpu, &one);
	if (CPU_COUNT(&one)) sched_setaffinity(0, sizeof one, &one);
}

static void begin(int rank, int i, int bytes)
{
	if (rank) {
		MPI_Isend(slots[i].header, HEADER, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &slots[i].request[0]);
		MPI_Isend(slots[i].block, bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &slots[i].request[1]);
	} else {
		MPI_Irecv(slots[i].header, HEADER, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &slots[i].request[0]);
		MPI_Irecv(slots[i].block, bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &slots[i].request[1]);
	}
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); }

int main(int argc, char **argv)
{
	int rank;
	setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0); /* as mt-link */
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc < 3) return 64;
	int sleeps = !strcmp(argv[1], "sleep"), bytes = argc > 3 ? atoi(argv[3]) : 1 << 20;
	int n = argc > 4 ? atoi(argv[4]) : 8;
	double rate = argc > 5 ? atof(argv[5]) * 1e9 : 0;
	long long warm = WARM / bytes, all = warm + (atoll(argv[2]) << 20) / bytes, begun = 0, done = 0;
	if (bytes < 1 || n < 1 || n > MOST) return 64;
	pin(rank);
	char *blocks = mmap(NULL, (size_t)n * (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (blocks == MAP_FAILED) return 71;
	memset(blocks, 1, (size_t)n * (size_t)bytes);
	for (int i = 0; i < n; i++) slots[i].block = blocks + (size_t)i * (size_t)bytes;
	MPI_Barrier(MPI_COMM_WORLD);
	double began = MPI_Wtime(), from = began, cpu = 0;
	while (done < all) {
		int moved = 0, whole = 1;
		for (; begun < all && begun < done + n; begun++, moved = 1) {
			if (rank && rate > 0 && MPI_Wtime() < began + (double)(begun * bytes) / rate) break;
			begin(rank, (int)(begun % n), bytes);
		}
		while (done < begun && whole) {
			MPI_Request *r = slots[done % n].request;
			if (sleeps) MPI_Testall(2, r, &whole, MPI_STATUSES_IGNORE);
			else MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
			if (!whole) break;
			moved = 1;
			if (++done == warm) from = MPI_Wtime(), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
			if (!sleeps) break; /* the next one into its place */
		}
		if (sleeps && !moved) nap();
	}
	double used = now(CLOCK_PROCESS_CPUTIME_ID) - cpu, sum = 0, seconds = MPI_Wtime() - from,
		   counted = (double)((all - warm) * bytes);
	MPI_Reduce(&used, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	if (!rank)
		printf("{\"gb_per_s\":%.4f,\"cpu_s_per_gb\":%.5f,\"cpu_share\":%.5f}\n", counted * 1e-9 / seconds,
			sum / counted * 1e9, sum / seconds);
	MPI_Finalize();
	return 0;
}
