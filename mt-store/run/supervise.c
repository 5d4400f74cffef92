/* supervise.c: mt-run while a run is there. The script has checked everything, and has put this program in its place; a
 * copy of it goes on as "the script" here, which knows what comes when and what people read. It asks in words, and this
 * program starts, watches and ends processes, and hears the signals.
 *
 * A request is its number of words and these, each with a zero behind it.
 *
 *     create WORDS...             mt-store create, by the keeper
 *     fill IN OUT ERRORS WORDS    a program to its end; so are sample and export
 *     stage NAME WHEN WORDS...    a program that runs until the run ends; WHEN "late": once mt-link is connected
 *     await N                     until N mt-streams are there
 *     train AGAIN N WORDS...      mt-feed, the first N words, and mt-step, the others; AGAIN 1: also a second time
 *     follow                      until mt-link ends
 *     close CODE                  end mt-link, and what waits for it
 *     end [unsaved]               mt-store ends the run
 *     stop SIGNAL                 the stages end
 *
 * The answers are lines "CODE FAILED FED": the exit code, that of the first stage that failed (0: none), and mt-feed's.
 * Before them may come "signal NAME".
 *
 *     event                        what follows
 *     a signal                     the script hears of it; what the row of `rules` says for the task that is asked for
 *     a stage exits with 0         nothing
 *     a stage is killed            it is started again, with --restart; else it has failed with 69
 *     an mt-stream's device fails  the others do its work, if there are any, with --restart; else:
 *     a stage fails                the first failure is mt-run's; mt-step is killed, which ends the task
 *     mt-link ends on node 0       the same, with 69: another node has left the run
 *     mt-feed or mt-step ends      when both have ended, the task is done, or both start again (--restart)
 *     the keeper is killed         another one is started; before the run is made, mt-store create dies, too, and the
 *                                  script ends
 *     the script ends              so does this program, with its code or by the signal that it heard
 *     the script is killed         this program ends, which mt-store notices, as if it had been killed itself
 *     the launcher is gone         the run ends, at once or, if it ends already, in 10 s
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "supervise.h"

enum { TICK_MS = 100, MOST_STARTS = 100, AWAIT_TICKS = 600 };
static const double ONE_REQUEST_S = 1, VERDICT_S = 1, REASON_S = 2, PEERS_S = 3, ENDING_S = 10;

/* ---- what is asked for, and what signals mean then */

enum task { NONE, CREATE, FILL, AWAIT, TRAIN, SAMPLE, EXPORT, FOLLOW, CLOSE, END, STOP, TASKS };
enum action {
	NOTHING,
	ASK,        /* USR1 to the task's program; a second later, to one that is still there, KILL */
	DONE,       /* the task is over */
	CUT,        /* mt-link is killed, which ends the run */
	CUT_UNLESS, /* unless it is connected to node 0, which ends the run then */
	KILL,       /* the stages are killed: the run is gone, and one of them hangs */
};
/* A signal that comes a second after the first is a later one. On several nodes USR1 is for node 0, which can end the
 * run on all of them when they are connected: until then the start goes on. */
static const struct {
	enum action first, later, usr1_first, usr1_later;
} rules[TASKS] = {
	[FILL] = {ASK, ASK, NOTHING, NOTHING},
	[AWAIT] = {DONE, DONE, DONE, DONE},
	[TRAIN] = {ASK, ASK, ASK, ASK},
	[SAMPLE] = {ASK, ASK, ASK, ASK},
	[EXPORT] = {NOTHING, ASK, NOTHING, ASK},
	[FOLLOW] = {CUT_UNLESS, CUT, NOTHING, CUT},
	[END] = {NOTHING, ASK, NOTHING, ASK},
	[STOP] = {NOTHING, KILL, NOTHING, KILL},
};

struct stage {
	char name[24];
	char **words; /* NULL: none */
	pid_t pid;    /* 0: it does not run */
	int code;     /* with which it has ended */
	int starts;
	bool late, over; /* over: it is to end */
};
enum { FEED, STEP };

static struct {
	const char *run, *tmp;
	int node, nodes; /* nodes 0: the run is on one machine */
	bool restart, silent;
	pid_t script;
	struct keeper keeper;
	bool made;             /* the run, by the keeper */
	struct mt_run *memory; /* NULL: none */
	struct stage stages[MT_STREAMS + 4];
	int n;

	enum task task;
	pid_t program; /* of the task */
	char **pair[2];
	pid_t pair_pid[2];
	int pair_status[2];
	bool cut_feed, again, stopping;
	int ticks, streams, code;
	int kept; /* the keeper's exit code */
	double until;

	int signal; /* the first one */
	double signalled, give_up;
	pid_t asked; /* the program that it was last passed on to, and when first */
	double asked_at;
	int failed; /* the exit code of the first failure */
	bool over, shim_gone;
	double step_dies;
	struct stage *verdict; /* has failed, perhaps because mt-link has ended the run, which is reported first */
	double verdict_until;
} s;

static double in(double seconds) { return mt_now() + seconds; }
static bool past(double when) { return when > 0 && mt_now() >= when; }

static void answer(int code)
{
	s.task = NONE;
	s.program = 0;
	dprintf(FD_ANSWERS, "%d %d 0\n", code, s.failed);
}

/* ---- the run's memory */

static bool is_connected(void)
{
	char does[64];
	if (!s.memory || !mt_stage_pid(s.memory, MT_LINK)) return false;
	mt_stage_describe(s.memory, MT_LINK, does, sizeof does);
	return !strcmp(does, "idle");
}

static bool updates(void)
{
	enum mt_phase at = mt_word_phase(mt_txn_word(s.memory, mt_txn_newest(s.memory)));
	return at == MT_APPLY || at == MT_SKIP;
}

static int streams_there(void)
{
	int n = 0;
	for (int slot = MT_STREAM; slot < MT_SLOTS; slot++) n += mt_stage_pid(s.memory, slot) != 0;
	return n;
}

/* ---- stages */

static struct stage *stage_named(const char *name)
{
	for (int i = 0; i < s.n; i++)
		if (!strcmp(s.stages[i].name, name)) return &s.stages[i];
	return NULL;
}

static struct stage *link_stage(void)
{
	struct stage *link = stage_named("mt-link");
	return link && link->pid ? link : NULL;
}

static void send(pid_t pid, int sig)
{
	if (pid) kill(pid, sig);
}

static void stage_start(struct stage *st)
{
	const struct streams streams = {.in_file = "", .out_file = ""};
	st->pid = child_start(st->words, &streams);
	st->starts++;
	if (s.over) send(st->pid, SIGUSR1); /* the run is gone, and it would wait for it */
}

static void stage_end(struct stage *st, int sig)
{
	if (!st) return;
	st->over = true;
	send(st->pid, sig);
}

/* mt-link ends: in order, or with a code and a text that it tells all nodes */
static void link_stop(int code, const char *text)
{
	char path[PATH_MAX];
	struct stage *link = link_stage();
	snprintf(path, sizeof path, "%s/reason", s.tmp);
	FILE *f = code ? fopen(path, "we") : NULL;
	if (f) {
		fprintf(f, "%d %s\n", code, text);
		fclose(f);
	}
	stage_end(link, is_connected() ? SIGUSR1 : SIGKILL);
}

/* mt-link sees that a stage other than mt-ckpt was killed, but not that one has exited */
static void tell_nodes(const struct stage *st)
{
	char text[64];
	int code = st->code;
	bool killed = code == MT_EX_PEER, saver = !strcmp(st->name, "mt-ckpt");
	if (!s.nodes || !strcmp(st->name, "mt-link") || (killed && !saver)) return;
	snprintf(text, sizeof text, "%s exited with %d", st->name, code);
	link_stop(code, killed ? "mt-ckpt was killed" : text);
	s.step_dies = in(REASON_S);
}

/* mt-store hears of it first, so that it does not report mt-step's death then, which would hide the reason. */
static void kill_step(void)
{
	keeper_tell(&s.keeper, "failed\n");
	send(s.pair_pid[STEP], SIGKILL);
	s.step_dies = 0;
}

static void fail(const struct stage *st)
{
	if (!s.failed) s.failed = st->code;
	tell_nodes(st);
	if (!s.step_dies || !link_stage()) kill_step();
}

static void stage_failed(struct stage *st)
{
	if (!s.nodes || !strcmp(st->name, "mt-link")) fail(st);
	else if (!s.verdict) s.verdict = st, s.verdict_until = in(VERDICT_S);
}

/* An mt-stream whose GPU is broken, lost or short of memory would fail again */
static bool given_up(const struct stage *st)
{
	int others = 0;
	if (!s.restart || strncmp(st->name, "mt-stream", 9) || (st->code != MT_EX_IO && st->code != MT_EX_NOMEM))
		return false;
	for (int i = 0; i < s.n; i++) others += s.stages[i].pid && !strncmp(s.stages[i].name, "mt-stream", 9);
	if (others) mt_say("%s has failed (exit code %d) and is given up; the others go on", st->name, st->code);
	return others > 0;
}

static void stage_ended(struct stage *st, int code)
{
	bool link = !strcmp(st->name, "mt-link"), killed = code >= 128;
	st->pid = 0;
	st->code = killed ? MT_EX_PEER : code;
	if (killed && !s.over && !st->over) mt_say("%s was killed by signal %d", st->name, code - 128);
	if (code == 0 || s.over || st->over) {
		if (!link || s.node || st->over || s.over || s.failed) return;
		mt_say("another node has left the run");
		st->code = MT_EX_PEER;
		fail(st);
	} else if (killed && s.restart && st->starts < MOST_STARTS) stage_start(st);
	else if (!given_up(st)) stage_failed(st);
}

/* ---- signals, and the end of the launcher */

/* The program that a signal is passed on to */
static pid_t worker(void)
{
	if (s.task == TRAIN) return s.pair_pid[s.pair_pid[STEP] ? STEP : FEED];
	return s.task == END && s.memory ? mt_stage_pid(s.memory, MT_STORE) : s.program;
}

/* mt-store judges signals by itself: it may have a state to save */
static void ask(pid_t pid)
{
	bool again = pid == s.asked && s.task != END && mt_now() - s.asked_at > ONE_REQUEST_S;
	if (pid != s.asked) s.asked_at = mt_now();
	s.asked = pid;
	send(pid, again ? SIGKILL : SIGUSR1);
}

static void act(enum action a)
{
	switch (a) {
	case NOTHING: break;
	case ASK: ask(worker()); break;
	case DONE: answer(1); break;
	case CUT_UNLESS:
		if (is_connected()) break;
		/* fall through */
	case CUT: stage_end(link_stage(), SIGKILL); break;
	case KILL:
		for (int i = 0; i < s.n; i++) send(s.stages[i].pid, SIGKILL);
		break;
	}
}

static void asked_to_end(int sig)
{
	bool later = s.signal && mt_now() - s.signalled > ONE_REQUEST_S;
	if (!s.signal) {
		s.signal = sig;
		s.signalled = mt_now();
		dprintf(FD_ANSWERS, "signal %s\n", sigabbrev_np(sig));
	}
	if (s.nodes && s.signal == SIGUSR1) act(later ? rules[s.task].usr1_later : rules[s.task].usr1_first);
	else act(later ? rules[s.task].later : rules[s.task].first);
}

static void end_all(void)
{
	if (!s.failed) s.failed = MT_EX_PEER;
	asked_to_end(SIGTERM);
	stage_end(link_stage(), SIGKILL);
	send(s.pair_pid[STEP], SIGKILL);
	s.give_up = 0;
}

/* The process between the launcher and this one sends the numbers of signals (node.c). */
static void hear_shim(void)
{
	char sig;
	ssize_t n = read(FD_SHIM, &sig, 1);
	if (n > 0) asked_to_end(sig);
	if (n) return;
	s.shim_gone = true;
	s.give_up = s.signal ? in(ENDING_S) : mt_now();
	if (!s.signal) mt_say("the launcher, or what it started here, was killed: the run ends on all nodes");
}

/* ---- training */

static void train_start(void)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC)) mt_die(MT_EX_NOMEM, "a pipe: %s", strerror(errno));
	const struct streams feed = {.in = FD_STDIN, .out = ends[1], .without_locks = true};
	const struct streams step = {.in = ends[0], .out = STDOUT_FILENO, .out_file = s.silent ? "" : NULL};
	s.pair_pid[FEED] = child_start(s.pair[FEED], &feed);
	s.pair_pid[STEP] = child_start(s.pair[STEP], &step);
	close(ends[0]);
	close(ends[1]);
	s.cut_feed = false;
}

static void pair_ended(int i, int status)
{
	s.pair_pid[i] = 0;
	s.pair_status[i] = child_code(status);
	if (i == STEP && s.pair_status[i] && s.pair_pid[FEED]) { /* nobody reads what it writes */
		s.cut_feed = true;
		send(s.pair_pid[FEED], SIGALRM);
	}
}

/* Both have ended. They start again if one was killed, and nothing was trained on a cut input. */
static void train_turn(void)
{
	int rc = s.pair_status[STEP], fed = s.pair_status[FEED];
	bool again = false;
	if (s.pair_pid[FEED] || s.pair_pid[STEP]) return;
	if (s.cut_feed && (fed == 128 + SIGALRM || s.signal)) fed = 0;
	if (fed > 128) {
		mt_say("mt-feed was killed by signal %d", fed - 128);
		fed = MT_EX_PEER;
		if (rc == MT_EX_DATA) rc = MT_EX_PEER, again = true;
	}
	if (rc > 128 && !s.signal && !s.failed) {
		mt_say("mt-step was killed by signal %d", rc - 128);
		rc = MT_EX_PEER;
		again = true;
	}
	if (again && s.again && !s.signal && !s.failed) {
		train_start();
		return;
	}
	s.pair_status[STEP] = rc;
	s.pair_status[FEED] = fed;
	if (s.nodes && rc && !s.signal && !s.failed) {
		if (!s.until) s.until = in(VERDICT_S);
		if (!past(s.until)) return;
	}
	s.task = NONE;
	dprintf(FD_ANSWERS, "%d %d %d\n", rc, s.failed, fed);
}

/* ---- tasks that wait for others */

/* Node 0: until the mt-streams of all nodes are there, so that they share the first step; for 60 s after mt-link is
 * connected */
static void await_turn(void)
{
	int here = s.memory ? streams_there() : s.streams;
	if (s.signal || s.failed) answer(1);
	else if (here >= s.streams) answer(0);
	else if ((s.ticks += is_connected()) >= AWAIT_TICKS) {
		mt_say("of %d mt-streams of all nodes, %d came in 60 s", s.streams, here);
		answer(MT_EX_PEER);
	}
}

static void follow_turn(void)
{
	if (!link_stage()) answer(stage_named("mt-link") ? stage_named("mt-link")->code : MT_EX_PEER);
}

/* Node 0: the others end when mt-link does. An update that has begun is finished on all nodes. */
static void close_turn(void)
{
	char text[64];
	struct stage *link = s.node ? NULL : link_stage();
	if (link && !s.stopping) {
		bool in_order = s.code == 0 || (s.signal && s.code != MT_EX_IO); /* the last save may have failed */
		if (in_order && !s.failed && ((s.signal == SIGUSR1 && !is_connected()) || (s.memory && updates()))) return;
		if (!in_order && s.code == MT_EX_PEER && !past(s.until)) return; /* a stage was killed, which mt-link tells */
		snprintf(text, sizeof text, s.code == MT_EX_PEER ? "a stage was killed" : "mt-run ends with exit code %d",
			s.code);
		link_stop(in_order ? 0 : s.code, text);
		s.stopping = true;
	}
	if (link) return;
	if (s.code) stage_end(stage_named("mt-optim"), SIGKILL); /* an update that waits for other nodes would never end */
	answer(0);
}

static void stop_turn(void)
{
	for (int i = 0; i < s.n; i++)
		if (s.stages[i].pid) return;
	answer(0);
}

/* What is due now */
static void turn(void)
{
	for (int i = 0; i < s.n; i++) {
		struct stage *st = &s.stages[i];
		if (!st->late || s.over || st->over || !is_connected()) continue;
		st->late = false;
		stage_start(st);
	}
	if (s.verdict && (s.failed || past(s.verdict_until))) {
		fail(s.verdict);
		s.verdict = NULL;
	}
	if (s.step_dies && (past(s.step_dies) || !link_stage())) kill_step();
	if (past(s.give_up)) end_all();
	switch (s.task) {
	case AWAIT: await_turn(); break;
	case TRAIN: train_turn(); break;
	case FOLLOW: follow_turn(); break;
	case CLOSE: close_turn(); break;
	case STOP: stop_turn(); break;
	default: break;
	}
}

/* ---- requests */

static char **copied(char **words, int n)
{
	char **copy = calloc((size_t)n + 1, sizeof *copy);
	for (int i = 0; copy && i < n; i++) copy[i] = strdup(words[i]);
	if (!copy) mt_die(MT_EX_NOMEM, "a request: %s", strerror(errno));
	return copy;
}

/* IN OUT ERRORS WORDS. mt-store does not end the run while an export goes on. */
static void run_program(char **w)
{
	struct streams streams = {.in_file = w[0], .out_file = w[1], .err_file = strcmp(w[2], "-") ? w[2] : NULL};
	if (s.task == EXPORT) streams.keep = s.keeper.owner[1];
	s.program = child_start(w + 3, &streams);
	if (s.signal && s.task == SAMPLE) send(s.program, SIGKILL);
}

static void add_stage(char **w, int n)
{
	if (s.n == sizeof s.stages / sizeof *s.stages) mt_die(MT_EX_BUG, "too many stages");
	struct stage *st = &s.stages[s.n++];
	*st = (struct stage){.words = copied(w + 2, n - 2), .late = !strcmp(w[1], "late")};
	snprintf(st->name, sizeof st->name, "%s", w[0]);
	if (!st->late) stage_start(st);
	dprintf(FD_ANSWERS, "0 %d 0\n", s.failed);
}

static void train(char **w, int n)
{
	int split = atoi(w[1]);
	s.again = atoi(w[0]) && s.restart;
	s.pair[FEED] = copied(w + 2, split);
	s.pair[STEP] = copied(w + 2 + split, n - 2 - split);
	s.until = 0;
	if (s.signal || s.failed) s.pair_status[FEED] = s.pair_status[STEP] = 0;
	else train_start();
	s.task = TRAIN;
}

static void stop(const char *sig)
{
	s.over = true;
	for (int i = 0; i < s.n; i++) send(s.stages[i].pid, strcmp(sig, "KILL") ? SIGUSR1 : SIGKILL);
	s.task = STOP;
}

/* n words, behind which w has NULL */
static void serve_request(char **w, int n)
{
	static const struct {
		const char *name;
		enum task task; /* for those that turn() ends */
		int words;      /* at least, with the name */
	} requests[] = {{"create", CREATE, 2}, {"fill", FILL, 5}, {"stage", NONE, 4}, {"await", AWAIT, 2},
		{"train", TRAIN, 5}, {"sample", SAMPLE, 5}, {"export", EXPORT, 5}, {"follow", FOLLOW, 1}, {"close", CLOSE, 2},
		{"end", END, 1}, {"stop", STOP, 2}};
	size_t i = 0;
	while (i < sizeof requests / sizeof *requests && strcmp(requests[i].name, w[0])) i++;
	if (i == sizeof requests / sizeof *requests || n < requests[i].words) mt_die(MT_EX_BUG, "a request: '%s'", w[0]);
	s.task = requests[i].task;
	s.stopping = false;
	s.ticks = 0;
	s.until = in(PEERS_S);
	switch (s.task) {
	case CREATE: keeper_start(&s.keeper, w + 1); break;
	case AWAIT: s.streams = atoi(w[1]); break;
	case TRAIN: train(w + 1, n - 1); break;
	case CLOSE: s.code = atoi(w[1]); break;
	case STOP: stop(w[1]); break;
	case END:
		if (n > 1) keeper_tell(&s.keeper, "unsaved\n");
		keeper_end(&s.keeper);
		if (!s.keeper.pid) answer(s.kept);
		break;
	case NONE: add_stage(w + 1, n - 1); break;
	case FILL:
	case SAMPLE:
	case EXPORT: run_program(w + 1); break;
	default: break;
	}
}

/* Whole requests from the script: the number of words, and each word, with a zero behind it */
static void read_requests(void)
{
	static char *text;
	static size_t used, room;
	if (room - used < 65536 && !(text = realloc(text, room += 1 << 17)))
		mt_die(MT_EX_NOMEM, "a request: %s", strerror(errno));
	ssize_t got = read(FD_REQUESTS, text + used, room - used);
	if (got <= 0) return;
	used += (size_t)got;
	char *at = text, *end = memchr(text, 0, used);
	int n = end ? atoi(text) : 0;
	char **words = n > 0 ? calloc((size_t)n + 1, sizeof *words) : NULL;
	int found = 0;
	while (words && found < n && end) {
		at = end + 1;
		if ((end = memchr(at, 0, used - (size_t)(at - text)))) words[found++] = at;
	}
	if (words && found == n) {
		serve_request(words, n);
		used = 0; /* the script waits for the answer before it asks again */
	}
	free(words);
}

/* ---- processes that end */

static void created(void)
{
	int code = keeper_created(&s.keeper);
	s.made = code == 0;
	if (s.made && mt_run_open(&s.memory, s.run, MT_RUN_CONTROL | MT_RUN_READONLY)) s.memory = NULL;
	answer(code);
}

static void keeper_ended(int status)
{
	static struct stage store = {.name = "mt-store"};
	int code = child_code(status);
	s.keeper.pid = 0;
	if (s.task == CREATE) created();
	else if (WIFSIGNALED(status) && s.made) keeper_start(&s.keeper, NULL);
	else {
		s.kept = store.code = code;
		if (s.task == END) answer(code);
		else if (code) stage_failed(&store);
	}
}

/* The script has ended the run, or there was none; or it was killed, and mt-store does it. */
_Noreturn static void script_ended(int status)
{
	int code = child_code(status);
	if (WIFSIGNALED(status)) {
		mt_say("its script was killed by signal %d", WTERMSIG(status));
		_exit(MT_EX_PEER);
	}
	if (s.made && !s.keeper.over) _exit(code); /* it has not ended the run */
	close(STDERR_FILENO); /* on several nodes a process passes on what comes there, until nobody writes any more */
	while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {}
	if (s.signal == SIGUSR1) exit(code < 128 ? code : 0); /* mt-step, which heard it too, may have died of it */
	if (s.signal) {
		sigset_t all;
		sigfillset(&all);
		sigprocmask(SIG_UNBLOCK, &all, NULL);
		mt_die_of_signal(s.signal);
	}
	exit(code);
}

static void ended(pid_t pid, int status)
{
	if (pid == s.script) script_ended(status);
	if (pid == s.keeper.pid) keeper_ended(status);
	else if (pid == s.program) answer(child_code(status));
	for (int i = 0; i < 2; i++)
		if (pid == s.pair_pid[i]) pair_ended(i, status);
	for (int i = 0; i < s.n; i++)
		if (pid == s.stages[i].pid) stage_ended(&s.stages[i], child_code(status));
}

/* ---- all of it */

/* HUP, INT and TERM are heard unless they were ignored when mt-run began; USR1 on several nodes. */
static int hear_signals(void)
{
	static const int sigs[] = {SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
	sigset_t set;
	struct sigaction was;
	sigemptyset(&set);
	for (int i = 0; i < 4 + (s.nodes > 0); i++) {
		sigaction(sigs[i], NULL, &was);
		if (was.sa_handler != SIG_IGN) sigaddset(&set, sigs[i]);
	}
	signal(SIGPIPE, SIG_IGN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0) mt_die(MT_EX_NOMEM, "signalfd: %s", strerror(errno));
	return fd;
}

static void read_signals(int fd)
{
	struct signalfd_siginfo info;
	while (read(fd, &info, sizeof info) == sizeof info)
		if (info.ssi_signo != SIGCHLD) asked_to_end((int)info.ssi_signo);
}

/* RUN ID DIR TMP SCRIPT NODE NODES RESTART SILENT; NODES 0: one machine */
void supervise(int argc, char **argv)
{
	static char name[32];
	static const int own[] = {FD_REQUESTS, FD_ANSWERS, FD_STDIN, FD_SHIM};
	if (argc != 10) mt_die(MT_EX_USAGE, "supervise: for the script alone");
	s.run = argv[1];
	s.tmp = argv[4];
	s.script = atoi(argv[5]);
	s.node = atoi(argv[6]);
	s.nodes = atoi(argv[7]);
	s.restart = atoi(argv[8]);
	s.silent = atoi(argv[9]);
	if (s.node) {
		snprintf(name, sizeof name, "mt-run: node %d", s.node);
		mt_program_name = name; /* of all that is said */
	}
	s.keeper = (struct keeper){.run = s.run, .id = argv[2], .dir = argv[3], .owner = {-1, -1}, .report = -1};
	for (int i = 0; i < 3 + (s.nodes > 0); i++) fcntl(own[i], F_SETFD, FD_CLOEXEC);
	int signals = hear_signals(), status;
	for (;;) {
		struct pollfd fds[] = {{.fd = signals, .events = POLLIN}, {.fd = FD_REQUESTS, .events = POLLIN},
			{.fd = s.keeper.report, .events = POLLIN},
			{.fd = s.nodes && !s.shim_gone ? FD_SHIM : -1, .events = POLLIN}};
		poll(fds, 4, TICK_MS);
		read_signals(signals);
		if (fds[3].revents) hear_shim();
		if (fds[2].revents && s.task == CREATE) created();
		for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) ended(pid, status);
		if (fds[1].revents) read_requests();
		turn();
	}
}
