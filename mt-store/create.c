/* create.c: config.json -> a run's three regions, allocated in full, without weights. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib.h"
#include "mt/control.h"
#include "mt/create.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/tier.h"
#include "store.h"

/* "0/4": node and nodes. NULL: the run is on one machine */
static int parse_node(const char *word, struct mt_create *out)
{
	char *end;
	const char *slash = word ? strchr(word, '/') : NULL;
	if (!word) return 0;
	unsigned long node = strtoul(word, &end, 10), nodes = 0;
	bool ok = slash && end == slash && isdigit((unsigned char)word[0]) && isdigit((unsigned char)slash[1]);
	if (ok) nodes = strtoul(slash + 1, &end, 10);
	if (!ok || *end || !nodes || node >= UINT32_MAX || nodes > UINT32_MAX)
		return mt_fail(MT_EX_USAGE, "--node: '%s' is not R/N, as in 0/2 for the first of two nodes", word);
	out->node = (uint32_t)node;
	out->nodes = (uint32_t)nodes;
	return 0;
}

/* NULL: libmt's default for a node */
static int parse_streams(const char *word, struct mt_create *out)
{
	char *end;
	if (!word) return 0;
	unsigned long streams = strtoul(word, &end, 10);
	if (!isdigit((unsigned char)word[0]) || *end || !streams || streams > MT_STREAMS)
		return mt_fail(MT_EX_USAGE, "--streams: '%s' is not a number from 1 to %d", word, MT_STREAMS);
	out->streams = (uint32_t)streams;
	return 0;
}

/* What mt-link reads on this node: gradients of its mt-streams, sums of squares of mt-optim; in node 0, the sums of
 * squares that it brings from the others */
static int make_rings(const char *name)
{
	struct mt_run *run;
	int rc = mt_run_open(&run, name, MT_RUN_RINGS);
	if (rc) return rc;
	int streams = (int)mt_node_streams(run), first = streams * (int)mt_node(run);
	char ring[32], batch[32];
	for (int i = first; i < first + streams && rc == 0; i++) {
		snprintf(ring, sizeof ring, "link.%d", i);
		rc = mt_ring_make(run, ring, "grad.0");
	}
	/* sums are few: blocks of a batch's size hold those of a large unit */
	snprintf(batch, sizeof batch, "batch.%d", first);
	if (rc == 0 && mt_node(run)) rc = mt_ring_make(run, "squares", batch);
	for (uint32_t node = 1; node < mt_nodes(run) && !mt_node(run) && rc == 0; node++) {
		snprintf(ring, sizeof ring, "squares.%u", node);
		rc = mt_ring_make(run, ring, batch);
	}
	mt_run_close(run);
	return rc;
}

/* NODES: numbers and ranges with commas between, as numactl takes them */
static bool is_node_list(const char *s)
{
	for (;;) {
		size_t digits = strspn(s, "0123456789");
		if (digits == 0 || digits > 5) return false;
		s += digits;
		if (*s == 0) return true;
		if (*s != ',' && *s != '-') return false;
		s++;
	}
}

/* Only the form: whether a node is there, libmt says when it places memory on it. */
static int check_policy(const char *policy)
{
	const char *nodes = strchr(policy, ':');
	size_t word = nodes ? (size_t)(nodes - policy) : strlen(policy);
	bool listed = nodes && is_node_list(nodes + 1), ok = false;
	if (word == 7 && strncmp(policy, "default", word) == 0) ok = !nodes;
	else if (word == 10 && strncmp(policy, "interleave", word) == 0) ok = !nodes || listed;
	else if (word == 4 && strncmp(policy, "bind", word) == 0) ok = listed;
	else if (word == 9 && strncmp(policy, "preferred", word) == 0) ok = listed && !strpbrk(nodes, ",-");
	return ok
		? 0
		: mt_fail(MT_EX_USAGE, "--numa: '%s' is not default, interleave[:NODES], bind:NODES or preferred:NODE", policy);
}

/* Bytes of a store from which pages of 4 KiB are worth a message */
#define LARGE_STORE (1ull << 30)

static void say_pages(struct mt_run *run)
{
	double huge = store_on_huge_pages(run);
	bool gpu = !access("/dev/nvidiactl", F_OK);
	char remount[4096] = "";
	if (store_bytes(run) < LARGE_STORE || huge < 0 || huge >= 0.5) return;
	if (region_is_mount()) snprintf(remount, sizeof remount, "mount -o remount,huge=advise %s; or ", region_dir());
	mt_say("note: the store lies on pages of 4 KiB: %supdating it takes longer; before create: "
		   "%smount -t tmpfs -o huge=advise,size=%lluG mt DIR and MT_SHM_DIR=DIR",
		gpu ? "registering it with a GPU and " : "", remount, (unsigned long long)(mt_run_bytes(run) >> 30) + 1);
}

/* What a wrapper's directory has beside its text model, and what both take on disk */
static void say_carried(const char *name, const struct mt_control *c)
{
	uint64_t carried = c->geo.carried_bytes, moments = mt_state_arrays(c->optim) * mt_state_bytes(c->state, c->params);
	bool wrapped = *c->geo.wrapper;
	char checkpoint[64] = "an export has";
	if (c->state != MT_NONE) /* w and lo, or fp32 w */
		snprintf(checkpoint, sizeof checkpoint, "a checkpoint has %llu bytes, an export",
			(unsigned long long)(4 * c->params + moments + carried));
	mt_say("run '%s': %s%s%s%u tensor%s of %llu bytes are carried untrained; with them %s %llu", name,
		wrapped ? "of " : "", c->geo.wrapper, wrapped ? " the text model is trained; " : "", c->geo.carried,
		mt_s(c->geo.carried), (unsigned long long)carried, checkpoint,
		(unsigned long long)(mt_dtype_bytes(c->dtype) * c->params + carried));
}

/* "run 'x': llama, 4877568 parameters in bf16, ..." once it stands. A look that fails does not unmake it. */
static void say_summary(const char *name)
{
	struct mt_run *run;
	if (mt_run_open(&run, name, MT_RUN_WEIGHTS | MT_RUN_READONLY)) {
		mt_say("run '%s' was created, but its summary failed: %s", name, mt_errmsg());
		return;
	}
	const struct mt_control *c = mt_control(run);
	uint64_t state = store_bytes(run), all = mt_run_bytes(run), trained = mt_run_trained(run);
	char some[64] = "";
	if (trained < c->params) snprintf(some, sizeof some, " %llu of them trained,", (unsigned long long)trained);
	if (c->geo.carried) say_carried(name, c);
	mt_say(
		"run '%s': %s, %llu parameters,%s %s, gradients %s%s%s: %llu bytes of state, %.2f a parameter; %llu bytes in "
		"all",
		name, c->geo.family, (unsigned long long)c->params, some, mt_dtype_name(c->dtype), mt_dtype_name(c->grad),
		optim_words(c->optim), moments_words(c->state), (unsigned long long)state, (double)state / (double)c->params,
		(unsigned long long)all);
	say_pages(run);
	mt_run_close(run);
}

/* "DIR,DIR": directories of the tier. They stay in `text`, which is cut */
static int parse_tier(const struct store_options *o, char *text, const char *dirs[MT_TIER_DIRS], struct mt_create *out)
{
	if (!o->tier) return 0;
	for (char *save, *dir = strtok_r(text, ",", &save); dir; dir = strtok_r(NULL, ",", &save)) {
		if (out->tiers == MT_TIER_DIRS) return mt_fail(MT_EX_USAGE, "--tier: at most %d directories", MT_TIER_DIRS);
		dirs[out->tiers++] = dir;
	}
	if (!out->tiers) return mt_fail(MT_EX_USAGE, "--tier: wants a directory");
	out->tier = dirs;
	out->tier_memory = UINT64_MAX;
	out->tile_elems = o->tile;
	out->slots = (uint32_t)o->tier_slots;
	if (o->tier_slots > 4096) return mt_fail(MT_EX_USAGE, "--tier-slots: wants 2 to 4096");
	if (o->tier_memory && mt_parse_size(o->tier_memory, &out->tier_memory))
		return mt_fail(MT_EX_USAGE, "--tier-memory: '%s' is not a number of bytes", o->tier_memory);
	return 0;
}

enum { DYING_S = 2 }; /* a creator that was killed counts as alive until the kernel has unmapped its run */

static int clear_half(const char *run)
{
	uint64_t bytes;
	int rc = run_remove_half(run, NULL, DYING_S, &bytes);
	if (bytes)
		mt_say("run '%s': a mt-store create that was killed had made %llu bytes of it, which are removed", run,
			(unsigned long long)bytes);
	return rc == -MT_EX_BUSY ? mt_fail(MT_EX_EXISTS, "run '%s' is being created by another mt-store", run) : rc;
}

int store_create(const char *run, const struct store_options *o)
{
	const char *dirs[MT_TIER_DIRS];
	struct mt_create create = {.name = run,
		.dtype = mt_dtype_named(o->dtype),
		.state = mt_dtype_named(o->state),
		.optim = mt_optim_named(o->optim),
		.step_tokens = o->step_tokens,
		.top = o->top,
		.numa = o->numa,
		.train = o->train,
		.freeze = o->freeze,
		.stop = &mt_stopping};
	struct mt_geometry geo;
	char *text = NULL;
	create.grad = o->grad ? mt_dtype_named(o->grad) : create.state == MT_NONE ? MT_NONE : MT_FP32;
	/* a pass of the tier then goes as the backward pass does */
	if (!strcmp(o->update, "early")) create.order = MT_BACKWARD_ORDER;
	int rc = parse_node(o->node, &create);
	if (rc == 0) rc = parse_streams(o->streams, &create);
	if (rc == 0) rc = check_policy(o->numa);
	char *given = o->tier ? strdup(o->tier) : NULL;
	if (rc == 0 && o->tier && !given) rc = mt_fail(MT_EX_NOMEM, "no memory for --tier");
	if (rc == 0) rc = parse_tier(o, given, dirs, &create);
	if (rc == 0 && o->id && mt_parse_hex(o->id, create.id, sizeof create.id))
		rc = mt_fail(MT_EX_USAGE, "--id: '%s' is not 32 hexadecimal digits", o->id);
	if (rc == 0) rc = mt_config_read_mtp(o->config, o->mtp, &geo, &text);
	if (rc) {
		free(given);
		return rc;
	}
	create.config_text = text;
	create.config_bytes = strlen(text);
	mt_signals(true);
	if ((rc = clear_half(run)) == 0) rc = mt_run_create(&create, &geo);
	free(text);
	free(given);
	if (mt_stopping) {
		if (!rc) mt_run_remove(run, true);
		mt_die_of_signal(mt_stopping);
	}
	if (rc) return rc;
	if (create.nodes > 1 && (rc = make_rings(run))) {
		mt_run_remove(run, true);
		return rc;
	}
	mt_say_dropout(&geo);
	if (outlives_memory())
		mt_say("warning: MT_SHM_DIR is not a tmpfs or hugetlbfs: slower, and after a power cut "
			   "the run must be loaded anew");
	if (logout_removes())
		mt_say(
			"warning: logging out will delete this run: systemd's RemoveIPC is on; 'loginctl enable-linger' keeps it");
	if (!o->quiet) say_summary(run);
	return 0;
}
