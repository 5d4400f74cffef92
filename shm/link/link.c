/* mt-link: rings, decisions and weights of a run between nodes. MPI carries what is large, TCP what is small. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "link.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"

/* ---- options */

static double timeout_s = 60;
static const char *reason_file;
static struct mt_strings rings;

static const struct mt_opt options[] = {
	{"timeout", OPT_DOUBLE, &timeout_s, "S", "seconds of silence after which a node counts as dead"},
	{"reason", OPT_STR, &reason_file, "FILE",
		"at a signal: if FILE has a line CODE TEXT, the run ends on all nodes with this exit code and text"},
	MT_OPT_RING(rings),
	{0},
};

static const struct mt_program program = {
	.name = "mt-link",
	.usage = "mpirun -n NODES mt-link [RUN] [options]",
	.about =
		"Connects the nodes of a run that mt-store create --node made: carries batches, gradients, new weights and\n"
		"node 0's decisions between them. One a node, started by MPI. Runs until SIGTERM or SIGINT, or until the run\n"
		"is gone; then it ends on all nodes.",
	.opts = options,
};

/* ---- end */

/* A node that ends in the middle of a step has weights of two steps. A failed write leaves them as they are. */
static void leave_run(struct link *l, int ex)
{
	struct mt_committed c;
	mt_run_committed(l->run, &c);
	bool whole = mt_run_quiet(l->run);
	for (uint32_t u = 0; u < l->control->n_units; u++) whole &= mt_version(l->run, u) == c.step;
	if (((ex && ex != MT_EX_IO) || !whole) && mt_run_state(l->run) == MT_FILLED) mt_run_set_state(l->run, MT_DIRTY);
}

static void end_now(int sig)
{
	(void)sig;
	_exit(0);
}

/* Other nodes may be dead or stopped: MPI_Finalize, which waits for all, must not hold this one up. */
static void finalize(struct link *l)
{
	signal(SIGALRM, end_now);
	alarm(10);
	flows_close(l);
	MPI_Finalize();
	alarm(0);
}

static _Noreturn void leave(struct link *l, int ex)
{
	leave_run(l, ex);
	if (!ex) finalize(l); /* before what MPI may still read is unmapped */
	for (int i = 0; i < MT_STREAMS; i++) mt_run_close(l->proxy[i]);
	mt_run_close(l->step);
	mt_run_close(l->run);
	if (!ex) exit(0); /* MPICH parts from its launcher by atexit */
	_exit(ex);        /* without MPI's own end, which would wait for nodes that are gone */
}

/* Print the line first: our parent may kill us before we have parted from the others. They hear of it from node 0. */
void link_ended(struct link *l, int ex, const char *why)
{
	if (*why) mt_say("%s: the run ends on all nodes", why);
	char words[4 + 480];
	uint32_t code = (uint32_t)ex;
	size_t n = strlen(why) < sizeof words - 4 ? strlen(why) : sizeof words - 4;
	memcpy(words, &code, 4);
	memcpy(words + 4, why, n);
	for (uint32_t i = 0; i < l->nodes; i++) control_say(l, &l->peer[i], SAY_END, words, 4 + n);
	control_part(l, 3);
	leave(l, ex);
}

void link_end(struct link *l, int ex, const char *why, ...)
{
	char line[480];
	va_list ap;
	va_start(ap, why);
	vsnprintf(line, sizeof line, why, ap);
	va_end(ap);
	link_ended(l, ex, line);
}

void link_mpi(struct link *l, int rc, const char *what)
{
	char words[MPI_MAX_ERROR_STRING + 1] = "";
	int n = 0;
	if (rc == MPI_SUCCESS) return;
	MPI_Error_string(rc, words, &n);
	link_end(l, MT_EX_PEER, "node %u: %s: %s", l->node, what, words);
}

/* ---- start */

void link_refuse(struct link *l, int ex, const char *why, ...)
{
	char line[480];
	va_list ap;
	va_start(ap, why);
	vsnprintf(line, sizeof line, why, ap);
	va_end(ap);
	mt_run_close(l->step);
	mt_run_close(l->run);
	mt_die(ex, "%s", line);
}

/* What must be the same on all nodes */
struct same {
	uint64_t nodes, streams, units, params, piece_elems, step_tokens, top, dtype, grad, state, optim, step, t;
	uint64_t model, weights; /* hashes of the geometry, and of samples of w */
};

/* One block in 64: other weights differ nearly everywhere, and all of a large model's would take long to read */
static uint64_t hash_weights(const struct link *l)
{
	uint64_t hash = 0, width = mt_dtype_bytes(l->control->dtype), every = 64 * MT_BLOCK;
	for (uint32_t u = 0; u < l->control->n_units; u++) {
		const struct mt_unit *unit = mt_unit(l->run, u);
		for (uint64_t at = 0; at < unit->elems; at += every) {
			uint64_t n = unit->elems - at < MT_BLOCK ? unit->elems - at : MT_BLOCK;
			hash = XXH3_64bits_withSeed((char *)mt_at(l->run, unit->w) + at * width, n * width, hash);
		}
	}
	return hash;
}

static struct same describe(const struct link *l)
{
	const struct mt_control *c = l->control;
	struct mt_committed at;
	mt_run_committed(l->run, &at);
	return (struct same){l->nodes, l->streams, c->n_units, c->params, c->piece_elems, c->step_tokens, c->top, c->dtype,
		c->grad, c->state, c->optim, at.step, at.t, XXH3_64bits(&c->geo, sizeof c->geo), hash_weights(l)};
}

static void check_same(struct link *l)
{
	struct same mine = describe(l), all[MT_NODES];
	link_mpi(l, MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, MPI_COMM_WORLD),
		"comparing runs");
	for (uint32_t node = 1; node < l->nodes; node++) {
		if (all[node].streams != all[0].streams)
			link_refuse(l, MT_EX_CONFIG,
				"the runs of node 0 and node %u differ: mt-store create --streams %llu and %llu", node,
				(unsigned long long)all[0].streams, (unsigned long long)all[node].streams);
		if (memcmp(&all[node], &all[0], sizeof mine))
			link_refuse(l, MT_EX_CONFIG,
				"the runs of node 0 and node %u differ: model, types, optimizer, --step-tokens, --top, step or weights",
				node);
	}
}

/* MPI_Init returns when the mt-links of all nodes have begun it. If one stays away, each that waits says so. */
struct slow {
	const struct link *l;
	pid_t tid;
	atomic_bool over;
};

static bool calls(pid_t tid, long number)
{
	char path[64];
	long now = -1;
	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
	FILE *f = fopen(path, "r");
	bool read = f && fscanf(f, "%ld", &now) == 1;
	if (f) fclose(f);
	return read && now == number;
}

static void *report_slow(void *arg)
{
	struct slow *s = arg;
	double until = mt_now() + LINK_SLOW_S;
	while (!atomic_load(&s->over) && mt_now() < until) (void)poll(NULL, 0, 50);
	if (atomic_load(&s->over)) return NULL;
	if (calls(s->tid, SYS_sched_setaffinity))
		mt_say("node %u: MPI_Init waits for a core that another process keeps busy", s->l->node);
	else mt_say("node %u: MPI_Init waits for the mt-link of another node, which has not come so far", s->l->node);
	return NULL;
}

static int init_mpi(const struct link *l)
{
	struct slow s = {.l = l, .tid = gettid()};
	pthread_t thread;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool watched = !pthread_create(&thread, NULL, report_slow, &s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	int rc = MPI_Init(NULL, NULL);
	atomic_store(&s.over, true);
	if (watched) pthread_join(thread, NULL);
	return rc;
}

static void start_mpi(struct link *l)
{
	int rank, size;
	/* else, between processes of one machine, Open MPI reads from the other's memory, and crashes when it has died */
	setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
	setenv("OMPI_MCA_smsc", "^cma,knem,xpmem", 0); /* the same from version 5 on */
	/* else hwloc binds this thread to each core in turn, and waits where another process keeps one busy. (Without
	 * /sys hwloc finds nothing otherwise.) */
	if (!access("/sys/devices/system/cpu", F_OK)) setenv("HWLOC_COMPONENTS", "-x86", 0);
	else setenv("HWLOC_HIDE_ERRORS", "2", 0); /* it says on stderr that it looks elsewhere */
	if (init_mpi(l)) link_refuse(l, MT_EX_PEER, "MPI does not start");
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if ((uint32_t)size != l->nodes || (uint32_t)rank != l->node)
		link_refuse(l, MT_EX_CONFIG, "this run is node %u of %u, MPI started this process as number %d of %d", l->node,
			l->nodes, rank, size);
}

static void start(struct link *l, const char *name)
{
	int rc = mt_run_attach(&l->run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS, -1, &mt_stopping);
	if (rc < 0 && mt_stopping) exit(0);
	mt_must(rc);
	l->control = mt_control(l->run);
	l->node = mt_node(l->run);
	l->nodes = mt_nodes(l->run);
	l->timeout = timeout_s;
	for (int i = 0; i < MT_NODES; i++) l->peer[i].fd = -1;
	if (l->nodes < 2) mt_die(MT_EX_CONFIG, "run '%s' is on one machine: mt-store create --node R/N", name);
	l->streams = mt_node_streams(l->run);
	mt_must(mt_stage_claim(l->run, MT_LINK, NULL));
	for (int i = 0; i < rings.n; i++) mt_must(mt_ring_map(l->run, rings.v[i]));
	if (l->node) {
		mt_must(mt_run_open(&l->step, name, MT_RUN_CONTROL));
		mt_must(mt_stage_claim(l->step, MT_STEP, NULL));
	}
	saves_open(l);
	start_mpi(l);
	mt_signals(false); /* MPI may have set some */
	check_same(l);
	control_connect(l);
	flows_open(l);
}

/* ---- watch */

/* Stages of this node whose death ends the run */
static bool matters(const struct link *l, int slot)
{
	if (slot == MT_STEP) return !l->node;
	return slot == MT_OPTIM || (slot >= MT_STREAM && link_node_of(l, (uint32_t)(slot - MT_STREAM)) == l->node);
}

static void watch(struct link *l)
{
	const double every = 0.05;
	double now = mt_now();
	if (now - l->looked < every) return;
	l->looked = now;
	if (mt_run_state(l->run) == MT_GONE) link_end(l, 0, "node %u: its run was removed", l->node);
	if (mt_run_dirty(l->run)) link_end(l, MT_EX_DATA, "node %u: %s", l->node, mt_errmsg());
	if (mt_stage_check(l->run)) link_end(l, MT_EX_BUSY, "node %u: %s", l->node, mt_errmsg());
	if (mt_run_check(l->run)) link_end(l, MT_EX_DATA, "node %u: %s", l->node, mt_errmsg());
	for (int slot = 0; slot < MT_SLOTS; slot++)
		if (matters(l, slot) && mt_stage_dead(l->run, slot))
			link_end(l, MT_EX_PEER, "node %u: %s (pid %d) has died", l->node, mt_stage_name(slot),
				mt_stage_pid(l->run, slot));
}

/* ---- run */

/* Is much carried? Then a payload takes no longer than a sleep. By what was in the last few milliseconds */
static bool fast(void)
{
	const double much = 1.5e9; /* bytes a second */
	const double window = 5e-3;
	static double from;
	static uint64_t bytes;
	static bool last;
	double now = mt_now();
	if (now - from >= window) {
		uint64_t carried = flows_bytes();
		last = (double)(carried - bytes) >= much * (now - from);
		bytes = carried;
		from = now;
	}
	return last;
}

/* Nothing was there at this look. At a high rate, look on for a moment: a sleep would last longer than what comes next
 * takes. The moment is longer while payloads are on their way, since MPI moves them only while somebody looks. Who
 * fills and empties the rings may need this core. At a low rate a sleep costs less, since more is there after it. true:
 * something moved */
static bool look_on(struct link *l)
{
	const double moment = 200e-6, payloads = 1e-3;
	if (!fast()) return false;
	double until = mt_now() + (flows_under_way() ? payloads : moment);
	while (mt_now() < until) {
		if (flows_round(l)) return true;
		sched_yield();
	}
	return false;
}

/* MPI wakes nobody, and moves payloads only while somebody looks; but each look costs other processes on this core more
 * than it costs mt-link. So sleeps last a quarter of the time in which nothing has moved: little comes much later
 * for them. They stay short while something is under way; long ones end when this node's stages publish something. */
static void rest(struct link *l, uint32_t seen, double quiet)
{
	const double shortest = 100e-6, under_way = 300e-6;
	const int longest = 2; /* ms */
	double nap = quiet / 4;
	if (fast() || nap < shortest) nap = shortest;
	else if (nap > under_way && (flows_under_way() || weights_move())) nap = under_way;
	if (nap < 1e-3) nanosleep(&(struct timespec){.tv_nsec = (long)(nap * 1e9)}, NULL);
	else mt_wait(l->run, seen, nap < 1e-3 * longest ? 1 : longest);
}

/* The process that stops mt-link may know of a failure that mt-link does not see: a stage that has exited */
static void end_for_reason(struct link *l)
{
	char text[400];
	int code = 0;
	FILE *f = reason_file ? fopen(reason_file, "r") : NULL;
	if (!f) return;
	bool read = fscanf(f, "%d %399[^\n]", &code, text) == 2;
	fclose(f);
	if (read && code > 0 && code < 128) link_end(l, code, "node %u: %s", l->node, text);
}

int main(int argc, char **argv)
{
	static struct link link;
	struct link *l = &link;
	const char *run = NULL;
	mt_cli(&program, argc, argv, &run, 1);
	mt_signals(false);
	start(l, mt_cli_run(run));
	mt_stage_activity(l->run, MT_ACT_IDLE, 0);
	double moved_at = mt_now();
	while (!mt_stopping) {
		uint32_t seen = mt_event(l->run);
		bool moved = control_round(l);
		moved |= mirror_round(l);
		moved |= flows_round(l);
		moved |= weights_round(l);
		watch(l);
		if (moved || look_on(l)) moved_at = mt_now();
		else rest(l, seen, mt_now() - moved_at);
	}
	(void)mirror_round(l);  /* the other nodes hear that the last step is done before they hear of the end */
	(void)control_round(l); /* another node may have ended the run, and so we were stopped */
	l->looked = 0;
	watch(l); /* or a stage may have died */
	end_for_reason(l);
	link_end(l, 0, "%s", "");
}
