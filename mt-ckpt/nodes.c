/* nodes.c: serve on several nodes. Each node's mt-ckpt writes its part of a checkpoint into a separate directory, and
 * node 0's moves the files from there into its own directory, so all must see one directory. A file that node 0 makes
 * there under a random name shows that; mt-link carries the number. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>
#include "ckpt.h"
#include "cli/cli.h"
#include "mt/control.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"

#define TOKEN ".mt-nodes-"
#define LOOK_S 5.0 /* a shared file system may show a new file late */

/* ---- one directory */

static _Atomic uint64_t *token_of(struct mt_run *run, uint32_t node) { return &mt_control(run)->nodes.token[node]; }

static void say_token(struct mt_run *run, uint64_t token)
{
	if (atomic_exchange_explicit(token_of(run, mt_node(run)), token, memory_order_acq_rel) != token) mt_wake(run);
}

static void token_name(char name[40], uint64_t token)
{
	snprintf(name, 40, TOKEN "%016llx", (unsigned long long)token);
}

/* Delete files of processes that died: nobody has locked them. */
static void clean_tokens(int dirfd)
{
	for (struct dir_walk w = dir_walk(dirfd); dir_next(&w);) {
		const char *digits = w.name + strlen(TOKEN);
		if (strncmp(w.name, TOKEN, strlen(TOKEN)) || strlen(digits) != 16) continue;
		int fd = openat(dirfd, w.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd, w.name, 0);
		if (fd >= 0) close(fd);
	}
}

static int make_token(struct shared *s)
{
	char name[40];
	clean_tokens(s->dirfd);
	if (getrandom(&s->token, sizeof s->token, 0) != sizeof s->token) return fail_errno("getrandom");
	s->token |= 1; /* it is not 0, and has room for one less */
	token_name(name, s->token);
	s->fd = openat(s->dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (s->fd < 0) return fail_errno(s->path);
	flock(s->fd, LOCK_EX | LOCK_NB);
	return fsync(s->fd) < 0 || fsync(s->dirfd) < 0 ? fail_errno(s->path) : 0;
}

/* 1: all have found the file */
static int found_by_all(const struct shared *s)
{
	int all = 1;
	for (uint32_t node = 1; node < mt_nodes(s->run); node++) {
		uint64_t says = *token_of(s->run, node);
		if (says == s->token - 1)
			return mt_fail(MT_EX_CONFIG,
				"%s: node %u does not see what node 0 writes there: --dir must be shared by "
				"all nodes",
				s->path, node);
		all &= says == s->token;
	}
	return all;
}

int shared_begin(struct shared *s, struct mt_run *run, const char *path, int dirfd)
{
	*s = (struct shared){.run = run, .path = path, .dirfd = dirfd, .fd = -1};
	int rc = mt_node(run) || mt_nodes(run) == 1 ? 0 : make_token(s);
	if (mt_node(run)) say_token(run, 0); /* a predecessor may have looked elsewhere */
	while (rc == 0 && s->token) {
		uint32_t seen = mt_event(run);
		say_token(run, s->token); /* again: an mt-link that starts forgets it */
		int all = found_by_all(s);
		if (all) return all < 0 ? all : 0;
		if ((rc = mt_stage_over(run)) == 0 && mt_stopping) rc = 1;
		if (rc == 0) mt_wait(run, seen, 100);
	}
	return rc;
}

int shared_look(struct shared *s)
{
	uint64_t token = *token_of(s->run, 0);
	char name[40];
	if (mt_nodes(s->run) == 1) return 0;
	if (!mt_node(s->run)) {
		say_token(s->run, s->token);
		return 0;
	}
	if (token != s->token) s->since = mt_now();
	s->token = token;
	if (!token || *token_of(s->run, mt_node(s->run)) == token || !mt_stage_alive(s->run, MT_LINK)) return 0;
	token_name(name, token);
	if (file_exists(s->dirfd, name)) say_token(s->run, token);
	else if (mt_now() - s->since > LOOK_S) {
		say_token(s->run, token - 1);
		return mt_fail(MT_EX_CONFIG,
			"%s: does not show what node 0 writes into its directory: --dir must be shared by "
			"all nodes",
			s->path);
	}
	return 0;
}

void shared_end(struct shared *s)
{
	char name[40];
	if (s->fd < 0) return;
	token_name(name, s->token);
	unlinkat(s->dirfd, name, 0);
	close(s->fd);
	say_token(s->run, 0);
}

/* ---- parts */

/* Has the node finished the step, as far as node 0 has heard? What it pins, node 0 has heard of before. */
static bool step_over(const struct mt_run *run, uint32_t node, uint64_t step)
{
	uint64_t done = atomic_load_explicit(&mt_control(run)->nodes.done[node], memory_order_acquire);
	for (uint32_t i = 0; i < 2; i++) {
		const struct mt_txn *t = mt_txn(run, i);
		if (t->kind == MT_TRAIN && t->step == step) return done >= mt_word_k(mt_txn_word(run, i));
	}
	return true; /* the transaction is another one's by now */
}

/* 1: the node's files of the step are durable; 0: not yet */
static int part_is_written(const struct mt_run *run, uint32_t node, uint64_t step)
{
	bool over = step_over(run, node, step);
	uint64_t word = atomic_load_explicit(&mt_control(run)->nodes.snap[node], memory_order_acquire);
	if (word == mt_snap_word(step, MT_SEALED)) return 1;
	if (word == mt_snap_word(step, MT_FAILED) || mt_snap_step(word) > step || (over && mt_snap_step(word) < step))
		return mt_fail(MT_EX_PEER, "node %u could not save its part", node);
	return 0;
}

int check_pinned(struct mt_run *run, uint64_t step)
{
	int rc = mt_stage_over(run);
	if (rc) return rc < 0 ? rc : mt_fail(MT_EX_NOINPUT, "the run was removed");
	return mt_snap(run) == mt_snap_word(step, MT_PINNED) ? 0 : mt_fail(MT_EX_PEER, "the snapshot was given up");
}

static int await_parts(struct mt_run *run, uint64_t step)
{
	for (;;) {
		uint32_t seen = mt_event(run), written = 1;
		int rc = check_pinned(run, step);
		if (rc < 0) return rc;
		for (uint32_t node = 1; node < mt_nodes(run); node++) {
			if ((rc = part_is_written(run, node, step)) < 0) return rc;
			written += (uint32_t)rc;
		}
		if (written == mt_nodes(run)) return 0;
		if (!mt_stage_alive(run, MT_LINK)) return mt_fail(MT_EX_PEER, "mt-link is gone");
		mt_wait_on(run, seen, 100, MT_ON_SNAP);
	}
}

static int take_part(int dirfd, const char *base, uint64_t step, uint32_t node, struct out_dir *to)
{
	char *name;
	int rc = part_name(base, node, &name), fd;
	if (rc < 0) return rc;
	fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	rc = fd < 0 ? fail_errno(name) : part_json_take(to, fd, step, node);
	if (rc == 0) dir_delete(dirfd, name, fd);
	if (fd >= 0) close(fd);
	free(name);
	return rc < 0 ? mt_fail_in(rc, "part of node %u", node) : 0;
}

int parts_collect(struct mt_run *run, int dirfd, const char *base, uint64_t step, struct out_dir *to)
{
	int rc = await_parts(run, step);
	return rc == 0 ? parts_take(run, dirfd, base, step, to) : rc;
}

int parts_take(struct mt_run *run, int dirfd, const char *base, uint64_t step, struct out_dir *to)
{
	int rc = 0;
	for (uint32_t node = 1; node < mt_nodes(run) && rc == 0; node++) rc = take_part(dirfd, base, step, node, to);
	out_sort(to);
	return rc;
}
