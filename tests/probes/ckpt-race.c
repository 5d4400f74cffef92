/* ckpt-race: save and export while a run changes at any of their system calls, chosen by a seed, in one thread. So it
 * tests reproducibly what copies beside real stages meet only now and then.
 *
 *     ckpt-race RUN SCRATCH DIR SEED N    N copies of RUN into DIR; SCRATCH is a run of the same model
 *
 * Before each system call of a copy, the run may take any number of the small actions that make up steps, evaluations
 * and fillings. A copy that succeeds must hold exactly one state. A copy that ends with 75 must leave nothing. Prints
 * how many succeeded and how many ended with 75. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "ckpt.h"
#include "ckpt-common.h"
#include "cli/cli.h"
#include "mt/txn.h"

enum { STATES = 1 << 16 };

static struct mt_run *run, *scratch;
static uint64_t randomness;
static bool armed;
static uint64_t left, seldom; /* actions left in this copy; actions happen at one of `seldom` system calls */
static struct {
	uint64_t id, step;
	uint32_t k, unit;
	enum { IDLE, FILL, WORK } what;
} now;
static uint64_t step_of[STATES]; /* the step of a state, by its number, which is its seed */

static uint64_t pick(uint64_t n) { return splitmix_next(&randomness) % n; }

static void begin(enum mt_kind kind)
{
	struct mt_txn *t = mt_txn(run, ++now.k);
	t->kind = kind;
	t->step = now.step + (kind == MT_TRAIN);
	t->t = t->step;
	t->micros = 0;
	t->position = some_position(now.id + (kind == MT_TRAIN));
	atomic_store(&t->word, mt_word(now.k, mt_attempt_next(run), MT_ACCUMULATE));
	now.what = WORK;
}

static void overwrite_next(uint64_t id)
{
	scribble(run, now.unit, id);
	now.unit++;
}

static void work(void)
{
	struct mt_txn *t = mt_txn(run, now.k);
	enum mt_phase phase = mt_word_phase(t->word), next = phase;
	if (phase == MT_ACCUMULATE) next = t->kind == MT_EVAL ? MT_DONE : MT_APPLY;
	else if (phase == MT_APPLY && now.unit < mt_control(run)->n_units) {
		overwrite_next(now.id + 1);
		mt_publish(run, now.unit - 1, t->step);
	} else if (phase == MT_APPLY) {
		next = MT_DONE;
		step_of[++now.id] = now.step = t->step;
		now.unit = 0;
	} else if (phase == MT_DONE) next = MT_LOGGED;
	else now.what = IDLE;
	if (next != phase) atomic_store(&t->word, mt_word(now.k, mt_word_attempt(t->word), next));
}

static void fill(void)
{
	if (now.unit < mt_control(run)->n_units) {
		overwrite_next(now.id + 1);
		return;
	}
	struct mt_position position = some_position(++now.id);
	step_of[now.id] = now.step; /* to the same step: only the number of fillings differs */
	mt_run_reset(run, now.step, now.step, &position);
	mt_fill_end(run, MT_FILLED);
	now.unit = now.k = 0;
	now.what = IDLE;
}

static void act(void)
{
	uint64_t what = pick(6);
	if (now.what == WORK) work();
	else if (now.what == FILL) fill();
	else if (what == 0) {
		mt_fill_begin(run);
		now.what = FILL;
	} else begin(what == 1 ? MT_EVAL : MT_TRAIN);
}

static void stumble(void)
{
	if (!armed || pick(seldom)) return;
	for (uint64_t n = 1 + pick(8); n && left; n--, left--) act();
}

/* ---- the system calls */

int openat(int fd, const char *name, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	stumble();
	return (int)syscall(SYS_openat, fd, name, flags, mode);
}
int mkdirat(int fd, const char *name, mode_t mode)
{
	stumble();
	return (int)syscall(SYS_mkdirat, fd, name, mode);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
	stumble();
	return syscall(SYS_pwrite64, fd, data, n, at);
}
int fsync(int fd)
{
	stumble();
	return (int)syscall(SYS_fsync, fd);
}

/* ---- one copy */

static bool same_bytes(const struct st_entry *e, const void *here, uint64_t n)
{
	void *data = malloc(n);
	bool same;
	mt_must(file_read(e->file->fd, e->file->name, data, n, e->tensor->begin));
	same = !memcmp(data, here, n);
	free(data);
	return same;
}

static bool same_array(const struct source *s, enum array a, uint64_t off, uint32_t i, const struct mt_tensor *t,
	uint32_t elem)
{
	return same_bytes(s->found[a][i], (uint8_t *)mt_at(scratch, off) + t->off * elem, t->n * elem);
}

static bool same_moments(const struct source *s, enum array a, uint64_t off, uint32_t i, const struct mt_tensor *t)
{
	const uint8_t *codes = mt_at(scratch, off);
	if (s->json.state != MT_INT8) return same_array(s, a, off, i, t, 4);
	const struct mt_unit *unit = mt_unit(scratch, t->unit);
	uint32_t part = parts_find(&s->parts[a], t->unit, 0); /* the whole unit: codes, then scales */
	return same_bytes(s->found[a][part], codes, unit->elems) &&
		same_bytes(s->found[a][part + 1], int8_scales(codes, unit->elems), unit->elems / MT_GROUP * 4);
}

static bool is_state(const struct source *s, uint64_t id)
{
	const struct mt_control *c = mt_control(scratch);
	for (uint32_t u = 0; u < c->n_units; u++) {
		const struct mt_unit *unit = mt_unit(scratch, u);
		scribble(scratch, u, id);
		for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors; i++) {
			const struct mt_tensor *t = mt_tensor(scratch, i);
			if (!same_array(s, ARRAY_W, unit->w, i, t, c->dtype == MT_BF16 ? 2 : 4) ||
				(s->full &&
					((c->dtype == MT_BF16 && !same_array(s, ARRAY_LO, unit->lo, i, t, 2)) ||
						!same_moments(s, ARRAY_M, unit->m, i, t) || !same_moments(s, ARRAY_V, unit->v, i, t))))
				return false;
		}
	}
	return true;
}

/* first, last: the states that the run was in meanwhile */
static void check(const char *dir, bool full, uint64_t first, uint64_t last)
{
	struct source s;
	uint64_t id = last;
	mt_must(source_open(&s, dir, !full));
	mt_must(source_config(&s, 0));
	mt_must(source_models(&s));
	if (full) {
		id = s.json.position.records - 1;
		if (id < first || id > last || s.json.step != step_of[id])
			mt_die(MT_EX_BUG, "%s: step %" PRIu64 " and state %" PRIu64 " do not belong together", dir, s.json.step,
				id);
	} else
		while (id > first && !is_state(&s, id)) id--;
	if (!is_state(&s, id)) mt_die(MT_EX_BUG, "%s: a mixture of states", dir);
	source_close(&s);
}

static void reset(uint64_t id)
{
	struct mt_position position = some_position(id);
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++) scribble(run, u, id);
	mt_fill_begin(run);
	mt_run_reset(run, 1 + pick(3), 1, &position);
	mt_fill_end(run, MT_FILLED);
	memset(&now, 0, sizeof now);
	now.id = id;
	step_of[id] = now.step = mt_run_step(run);
}

int main(int argc, char **argv)
{
	int saved = 0, busy = 0, here;
	if (argc != 6) mt_die(MT_EX_USAGE, "usage: ckpt-race RUN SCRATCH DIR SEED N");
	work_threads = 1;
	mt_must(mt_run_open(&run, argv[1], MT_RUN_RINGS | MT_RUN_WEIGHTS));
	mt_must(mt_run_open(&scratch, argv[2], MT_RUN_WEIGHTS));
	if (chdir(argv[3]) < 0 || (here = open(".", O_RDONLY | O_DIRECTORY)) < 0)
		mt_die(MT_EX_NOINPUT, "%s: no such directory", argv[3]);
	randomness = strtoull(argv[4], NULL, 10);
	for (int i = 0; i < atoi(argv[5]); i++) {
		bool full = pick(2);
		char path[20];
		reset(now.id + 1 < STATES / 2 ? now.id + 1 : 1);
		for (uint64_t n = pick(2) ? 0 : pick(20); n; n--) act();
		uint64_t first = now.id;
		snprintf(path, sizeof path, "%d", i);
		left = pick(16);
		seldom = 1 + pick(12);
		armed = true;
		int rc = full ? ckpt_save(argv[1], path, false, SHARD_BYTES)
					  : ckpt_export(argv[1], path, MT_NONE, SHARD_BYTES, false);
		armed = false;
		if (rc == 0) check(path, full, first, now.id);
		else if (rc != -MT_EX_BUSY || file_exists(AT_FDCWD, path))
			mt_die(MT_EX_BUG, "%s: copy %d ended with %d: %s", path, i, -rc, mt_errmsg());
		saved += rc == 0;
		busy += rc != 0;
		mt_must(rc == 0 ? dir_remove(here, path) : 0);
	}
	printf("%d whole, %d busy\n", saved, busy);
	mt_run_close(scratch);
	mt_run_close(run);
	return 0;
}
