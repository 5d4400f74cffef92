/* The ring under adversarial schedules: with threads (also under the thread sanitizer), and with processes that are
 * killed at random moments and replaced. usage: shm-ring threads|kills|bench [SEED [COUNT]] */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "child.h"
#include "shm-common.h"

struct side {
	struct mt_run *run;
	uint64_t seed, count;
	const char *ring;
};

static uint32_t expect_word(uint64_t k, size_t i) { return (uint32_t)(k * 2654435761u + i * 40503u); }

static void fill_block(uint32_t *block, uint64_t k, size_t n)
{
	for (size_t i = 0; i < n; i += 61) block[i] = expect_word(k, i);
}

static void publish(struct mt_ring *r, uint64_t k)
{
	struct mt_msg m = {.k = (uint32_t)k, .step = k, .kind = MT_MSG_GRAD, .grad = {.n = mt_ring_block(r) / 4}};
	mt_ring_push(r, &m);
}

/* Reserves up to `most` blocks for message k and later ones, and writes them, last one first. Returns how many. */
static uint64_t fill_ahead(struct mt_ring *r, uint64_t k, uint64_t most, uint64_t *seed)
{
	uint32_t *block[16];
	uint64_t n = 0;
	while (n < most && (block[n] = mt_ring_reserve_ahead(r, n))) n++;
	for (uint64_t i = n; i--;) {
		fill_block(block[i], k + i, mt_ring_block(r) / 4);
		stumble(seed);
	}
	return n;
}

static void check_one(const struct mt_msg *m, const uint32_t *block, uint64_t k, size_t n)
{
	CHECK(m->step == k && m->k == (uint32_t)k, "message %llu where %llu was due", (unsigned long long)m->step,
		(unsigned long long)k);
	for (size_t i = 0; i < n; i += 61)
		CHECK(block[i] == expect_word(k, i), "message %llu: word %zu of its block is another's", (unsigned long long)k,
			i);
}

static void *producer(void *arg)
{
	struct side *s = arg;
	struct mt_ring *r;
	mt_must(mt_ring_open(s->run, s->ring, &r));
	for (uint64_t k = 0, most; k < s->count;) {
		uint32_t seen = mt_event(s->run);
		most = 1 + splitmix_next(&s->seed) % 16;
		most = most < s->count - k ? most : s->count - k;
		uint64_t n = fill_ahead(r, k, most, &s->seed);
		if (!n) mt_wait(s->run, seen, 1000);
		while (n--) {
			publish(r, k++);
			stumble(&s->seed);
		}
	}
	mt_ring_close(r);
	return NULL;
}

/* Reads ahead of the head as mt-optim does, then finishes in order. */
static void *consumer(void *arg)
{
	struct side *s = arg;
	struct mt_ring *r;
	mt_must(mt_ring_open(s->run, s->ring, &r));
	for (uint64_t k = 0; k < s->count;) {
		struct mt_msg m;
		const void *block;
		uint32_t seen = mt_event(s->run);
		uint64_t ahead = splitmix_next(&s->seed) % 3;
		if (mt_ring_peek(r, ahead, &m, &block)) check_one(&m, block, k + ahead, mt_ring_block(r) / 4);
		if (!mt_ring_peek(r, 0, &m, &block)) {
			mt_wait(s->run, seen, 1000);
			continue;
		}
		stumble(&s->seed);
		check_one(&m, block, k++, mt_ring_block(r) / 4);
		mt_ring_pop(r);
	}
	mt_ring_close(r);
	return NULL;
}

static void as_threads(uint64_t seed, uint64_t count)
{
	struct mt_run *run = tiny_run("ring");
	pthread_t t[4];
	struct side s[4] = {
		{run, seed | 1, count, "grad.0"},
		{run, seed + 77, count, "grad.0"},
		{run, seed + 5, count, "grad.3"},
		{run, seed + 9, count, "grad.3"},
	};
	for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, i % 2 ? consumer : producer, &s[i]);
	for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
	mt_run_close(run);
}

/* ---- kills */

struct shared {
	_Atomic uint64_t produced, consumed;
}; /* each side's own memory, which survives its death */

static void producer_process(struct shared *sh, uint64_t count)
{
	struct mt_run *run;
	struct mt_ring *r;
	mt_must(mt_run_open(&run, run_name, MT_RUN_RINGS));
	mt_must(mt_ring_open(run, "grad.0", &r));
	uint64_t seed = (uint64_t)getpid() << 20 | 1;
	for (;;) {
		uint64_t k = atomic_load(&sh->produced);
		if (k >= count) break;
		uint32_t seen = mt_event(run);
		uint64_t most = 1 + splitmix_next(&seed) % 8;
		uint64_t n = fill_ahead(r, k, most < count - k ? most : count - k, &seed);
		if (!n) mt_wait(run, seen, 50);
		while (n--) {
			publish(r, k);
			atomic_store(&sh->produced, ++k); /* killed before this: the message goes out twice */
		}
	}
	_exit(0);
}

static void consumer_process(struct shared *sh, uint64_t count)
{
	struct mt_run *run;
	struct mt_ring *r;
	mt_must(mt_run_open(&run, run_name, MT_RUN_RINGS));
	mt_must(mt_ring_open(run, "grad.0", &r));
	for (;;) {
		uint64_t k = atomic_load(&sh->consumed);
		if (k >= count) break;
		struct mt_msg m;
		const void *block;
		uint32_t seen = mt_event(run);
		if (!mt_ring_peek(r, 0, &m, &block)) {
			mt_wait(run, seen, 50);
			continue;
		}
		/* a message may come again (its producer or consumer died between publishing and noting it), never late,
		 * never garbled, and none is left out */
		CHECK(m.step <= k, "message %llu came while %llu was due: one is lost", (unsigned long long)m.step,
			(unsigned long long)k);
		check_one(&m, block, m.step, mt_ring_block(r) / 4);
		if (m.step == k) atomic_store(&sh->consumed, k + 1);
		mt_ring_pop(r);
	}
	_exit(0);
}

static void with_kills(uint64_t seed, uint64_t count)
{
	struct mt_run *run = tiny_run("ringk");
	struct shared *sh = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	void (*const side[2])(struct shared *, uint64_t) = {producer_process, consumer_process};
	pid_t pid[2] = {0, 0};
	bool done[2] = {false, false};
	int kills = 0;
	while (!done[0] || !done[1]) {
		for (int i = 0; i < 2; i++) {
			if (done[i] || pid[i]) continue;
			pid[i] = fork_child();
			if (!pid[i]) side[i](sh, count);
		}
		usleep((useconds_t)(splitmix_next(&seed) % 3000));
		int victim = (int)(splitmix_next(&seed) % 2);
		if (pid[victim] && kills < 400) {
			kill(pid[victim], SIGKILL);
			kills++;
		}
		for (int i = 0; i < 2; i++) {
			int status;
			if (!pid[i] || waitpid(pid[i], &status, WNOHANG) <= 0) continue;
			pid[i] = 0;
			if (WIFEXITED(status)) {
				CHECK(WEXITSTATUS(status) == 0, "a side failed");
				done[i] = true;
			}
		}
	}
	printf("%d kills\n", kills);
	mt_run_close(run);
}

enum { AT_ONCE = 32 }; /* as many pieces as mt-stream has under way */

/* Up to `most` messages at once, as mt-stream and mt-optim do. Returns how many */
static uint64_t send_some(struct mt_ring *r, uint64_t most)
{
	uint64_t n = 0;
	struct mt_msg m = {.kind = MT_MSG_SAVE};
	for (; n < most && mt_ring_reserve_ahead(r, n); n++) mt_ring_put(r, n, &m);
	if (n) mt_ring_publish(r, n);
	return n;
}

static uint64_t take_some(struct mt_ring *r, uint64_t most)
{
	uint64_t n = 0;
	struct mt_msg m;
	while (n < most && mt_ring_peek(r, n, &m, NULL)) n++;
	mt_ring_pop_many(r, n);
	return n;
}

/* A process on the last core that this one may use, which itself goes to the first: beside each other on one core, they
 * would take turns, and no message would move from one core's cache to another's */
static pid_t fork_apart(void)
{
	static cpu_set_t all;
	cpu_set_t one;
	int first = 0, last = CPU_SETSIZE - 1;
	if (!CPU_COUNT(&all)) CHECK(!sched_getaffinity(0, sizeof all, &all), "sched_getaffinity");
	while (!CPU_ISSET(first, &all)) first++;
	while (!CPU_ISSET(last, &all)) last--;
	pid_t pid = fork_child();
	CPU_ZERO(&one);
	CPU_SET(pid ? first : last, &one);
	CHECK(!sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");
	return pid;
}

/* Messages a second through a ring, from one process to another */
static double bench_ring(uint64_t count, uint64_t at_once)
{
	struct mt_run *run;
	struct mt_ring *r;
	double t = mt_now();
	pid_t pid = fork_apart();
	mt_must(mt_run_open(&run, run_name, MT_RUN_RINGS));
	mt_must(mt_ring_open(run, "save", &r));
	for (uint64_t k = 0; k < count;) {
		uint32_t seen = mt_event(run);
		uint64_t most = count - k < at_once ? count - k : at_once, n = pid ? send_some(r, most) : take_some(r, most);
		if (!n) mt_wait(run, seen, 1000);
		k += n;
	}
	if (!pid) _exit(0);
	waitpid(pid, NULL, 0);
	mt_ring_close(r);
	mt_run_close(run);
	return (double)count / (mt_now() - t);
}

/* The same through a pipe: a write and a read of at_once messages; at_once divides count */
static double bench_pipe(uint64_t count, uint64_t at_once)
{
	struct mt_msg m[AT_ONCE] = {{.kind = MT_MSG_SAVE}};
	size_t bytes = at_once * sizeof *m;
	int fd[2];
	CHECK(!pipe(fd), "pipe");
	double t = mt_now();
	pid_t pid = fork_apart();
	for (uint64_t k = 0; k < count; k += at_once) {
		size_t done = 0;
		while (done < bytes) {
			char *at = (char *)m + done;
			ssize_t n = pid ? write(fd[1], at, bytes - done) : read(fd[0], at, bytes - done);
			CHECK(n > 0, "pipe");
			done += (size_t)n;
		}
	}
	if (!pid) _exit(0);
	waitpid(pid, NULL, 0);
	close(fd[0]);
	close(fd[1]);
	return (double)count / (mt_now() - t);
}

/* Messages of 64 bytes a second, one process to another, one by one and in batches */
static void bench(uint64_t count)
{
	struct mt_run *run = tiny_run("ringb");
	count = (count + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
	printf("{\"ring\": %.0f, \"pipe\": %.0f, ", bench_ring(count, 1), bench_pipe(count, 1));
	printf("\"ring_batches\": %.0f, \"pipe_batches\": %.0f}\n", bench_ring(count, AT_ONCE), bench_pipe(count, AT_ONCE));
	mt_run_close(run);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "threads";
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, count = argc > 3 ? strtoull(argv[3], NULL, 10) : 3000;
	if (!strcmp(what, "threads")) as_threads(seed * 2654435761u + 1, count);
	else if (!strcmp(what, "kills")) with_kills(seed * 2654435761u + 1, count);
	else bench(count);
	return 0;
}
