/* run.c: a run is three regions under one name: made together, opened together, removed together. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "lib.h"
#include "mt/control.h"
#include "mt/create.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "os.h"
#include "say.h"

/* ---- create */

static uint64_t control_layout(struct mt_control *c, const struct mt_layout *l)
{
	uint64_t at = round_up(sizeof *c, 4096);
	c->off_units = at;
	at += l->n_units * sizeof(struct mt_unit);
	c->off_tensors = at;
	at = round_up(at + l->n_tensors * sizeof(struct mt_tensor), 4096);
	c->off_choices = at;
	at = round_up(at + MT_CHOICES * sizeof(struct mt_choice), 4096);
	c->off_journal = at;
	at = round_up(at + MT_PARTITIONS * sizeof(struct mt_partition), 4096);
	c->tier.off_dirs = c->tier.dirs ? at : 0;
	at += (uint64_t)c->tier.dirs * 2 * MT_TIER_PATH;
	c->off_config = at;
	return at + c->config_bytes + 1;
}

/* 1 MiB of fp32 a piece, or less if the largest unit is smaller: a piece stays in the cache from its producer to its
 * consumer. Models with units of 512 such pieces use up to 4 MiB: a GPU copies 1 MiB faster than the host can launch
 * and publish a copy, and the rings are small beside such a model. */
static uint64_t piece_elems(const struct mt_layout *l)
{
	const uint64_t piece = PIECE_ELEMS;
	uint64_t most = MT_BLOCK;
	for (uint32_t u = 0; u < l->n_units; u++)
		if (l->units[u].elems > most) most = l->units[u].elems;
	most = round_up(most, MT_BLOCK);
	if (most < piece) return most;
	return most / 512 < piece ? piece : most / 512 < 2 * piece ? 2 * piece : 4 * piece;
}

/* Bytes of all regions of node 0 but the store, which no other node's are more than; 0: no memory to say */
static uint64_t need_beside(const struct mt_layout *l, size_t config_bytes, uint64_t step_tokens, uint64_t top,
	uint32_t nodes, uint32_t streams)
{
	struct mt_control *c = aligned_alloc(64, round_up(sizeof *c, 64));
	if (!c) return 0;
	memset(c, 0, sizeof *c);
	c->dtype = l->dtype;
	c->grad = l->grad;
	c->step_tokens = step_tokens;
	c->top = top;
	c->config_bytes = config_bytes;
	c->piece_elems = piece_elems(l);
	c->nodes.nodes = nodes;
	c->nodes.streams = streams;
	/* mt-link's: the gradients of node 0's mt-streams, and all the other nodes' sums of squares */
	uint64_t link = nodes == 1
		? 0
		: streams * round_up(ring_like_grad(c), mt_page()) + (nodes - 1) * round_up(ring_like_batch(c), mt_page());
	uint64_t control = control_layout(c, l), rings = rings_lay(c, NULL);
	free(c);
	return round_up(control, mt_page()) + round_up(rings, mt_page()) + link;
}

uint64_t mt_node_need(const struct mt_layout *l, size_t config_bytes, uint64_t step_tokens, uint64_t top,
	uint32_t nodes, uint32_t streams)
{
	uint64_t store = mt_node_store(l, nodes);
	uint64_t beside = need_beside(l, config_bytes, step_tokens, top, nodes,
		streams ? streams : mt_default_streams(nodes));
	return beside && store ? beside + round_up(store, mt_page()) : 0;
}

static int foreign_file(const char *run);

/* Its control region is there, or somebody else has put a file under one of its names */
static int check_exists(const char *run)
{
	struct stat st;
	if (region_owner(region_name(run, REGION_CONTROL, NULL).text, &st) == REGION_OURS)
		return mt_fail(MT_EX_EXISTS, "run '%s' exists already: mt-store rm %s removes it", run, run);
	return foreign_file(run);
}

/* The layout of a run with this control region, or with other choices */
static int layout_of(struct mt_layout *l, const struct mt_control *c, enum mt_dtype grad, enum mt_dtype state)
{
	int rc = mt_layout_make(l, &c->geo, c->dtype, grad, state, c->optim);
	return rc ? rc : mt_layout_freeze(l, c->train, c->freeze);
}

/* What the run of this control region takes with other choices: mt_small's need, and region_remedy */
static uint64_t other_need(void *arg, enum mt_dtype grad, enum mt_dtype state, uint32_t rows)
{
	const struct mt_control *c = arg;
	struct mt_layout l;
	(void)rows;
	if (layout_of(&l, c, grad, state)) return UINT64_MAX;
	uint64_t bytes = mt_node_need(&l, c->config_bytes, c->step_tokens, c->top, c->nodes.nodes, c->nodes.streams);
	mt_layout_release(&l);
	return bytes ? bytes : UINT64_MAX;
}

static void say_smaller(void *arg, uint64_t have, char *buf, size_t n)
{
	const struct mt_control *c = arg;
	struct mt_small s = {.grad = c->grad,
		.state = c->state,
		.none = c->nodes.nodes == 1,
		.binary = true,
		.have = have,
		.need = other_need,
		.arg = arg};
	mt_remedies(&s, buf, n);
}

static int create_regions(const struct mt_create *opt, struct mt_control *c, const struct mt_layout *l,
	struct map map[3], int *maker)
{
	static const uint8_t none[16];
	uint8_t id[16];
	memcpy(id, opt->id, sizeof id);
	c->piece_elems = piece_elems(l);
	uint64_t control = control_layout(c, l), rings = rings_lay(c, NULL);
	if (!memcmp(id, none, sizeof id) && getrandom(id, sizeof id, 0) != sizeof id)
		return mt_fail(MT_EX_IO, "getrandom: %s", strerror(errno));
	struct range *parts;
	uint32_t n;
	int rc = nodes_ranges(l, c->nodes.node, c->nodes.nodes, &parts, &n);
	if (rc) return rc;
	rc = region_room(control + rings + ranges_bytes(parts, n), c->tier.tiles ? NULL : say_smaller, c);
	const uint64_t size[] = {control, rings, l->store_bytes};
	for (int r = 0; r < 3 && !rc; r++) {
		bool store = r == REGION_STORE;
		rc = region_create(region_name(opt->name, (enum region)r, NULL).text, (enum region)r, size[r],
			store ? parts : NULL, n, id, store ? opt->numa : NULL, &map[r], r == REGION_CONTROL ? maker : NULL,
			opt->stop);
		/* what exists of another maker stays: only what this call made is taken back */
		for (int made = 0; rc && made < r; made++) region_unlink(region_name(opt->name, (enum region)made, NULL).text);
	}
	free(parts);
	return rc;
}

static void fill_control(struct mt_control *c, const struct mt_create *opt, const struct mt_control *plan,
	const struct mt_layout *l)
{
	struct mt_header h = c->h;
	*c = *plan;
	c->h = h;
	uint8_t *base = (uint8_t *)c;
	memcpy(base + c->off_units, l->units, l->n_units * sizeof(struct mt_unit));
	memcpy(base + c->off_tensors, l->tensors, l->n_tensors * sizeof(struct mt_tensor));
	memcpy(base + c->off_config, opt->config_text, opt->config_bytes);
}

/* lo, m and v of the first units may take this of memory: what leaves a tenth of the RAM free, if the others are on the
 * tier, as the layout is placed now */
static uint64_t tier_memory(const struct mt_create *opt, const struct mt_layout *l)
{
	uint64_t have = mt_mem_available(), spare = mt_mem_total() / 10, free_shm = region_free();
	uint64_t need = mt_node_need(l, opt->config_bytes, opt->step_tokens, opt->top, 1, opt->streams);
	uint64_t unit_0 = mt_layout_state_bytes(l, 0); /* which is in memory in any case */
	if (free_shm < have) have = free_shm;
	return need && have > need + spare ? have - need - spare + unit_0 : 0;
}

static int add_tier(const struct mt_create *opt, struct mt_layout *l, struct mt_tier *t)
{
	if (!opt->tiers) return 0;
	if (opt->nodes > 1) return mt_fail(MT_EX_CONFIG, "--tier: on one machine alone");
	if (l->state == MT_NONE) return mt_fail(MT_EX_CONFIG, "--tier: --state none has no lo, m and v");
	if (opt->tiers > MT_TIER_DIRS) return mt_fail(MT_EX_USAGE, "--tier: at most %d directories", MT_TIER_DIRS);
	uint64_t elems = opt->tile_elems ? opt->tile_elems : MT_TILE_ELEMS, memory = opt->tier_memory;
	uint32_t slots = opt->slots ? opt->slots : MT_TIER_SLOTS * opt->tiers;
	enum mt_pass_order order = l->grad == MT_NONE ? MT_BACKWARD_ORDER : opt->order;
	int rc = mt_layout_tier(l, 1, elems, slots, order);
	if (rc) return rc;
	if (memory == UINT64_MAX) memory = tier_memory(opt, l);
	rc = mt_layout_tier(l, mt_layout_tier_first(l, memory), elems, slots, order);
	const struct mt_layout_tier *p = &l->tier;
	*t = (struct mt_tier){.tiles = p->tiles,
		.slots = p->slots,
		.dirs = opt->tiers,
		.order = p->order,
		.first = p->first,
		.tile_elems = p->tile_elems,
		.off_slots = p->off_slots,
		.slot_bytes = p->slot_bytes,
		.bytes = p->bytes,
		.params = p->params};
	return rc;
}

/* The files of the tier, when the control region stands */
static int make_tier(const struct mt_create *opt, struct mt_control *c, const struct mt_layout *l)
{
	struct mt_run run = {.control = c, .state_bytes = l->store_bytes};
	int rc = opt->tiers ? tier_create(&run, opt->tier) : 0;
	for (int r = 0; rc && r < 3; r++) region_unlink(region_name(opt->name, (enum region)r, NULL).text);
	return rc;
}

int mt_run_create(const struct mt_create *opt, const struct mt_geometry *geo)
{
	struct mt_layout l;
	struct map map[3] = {0};
	enum mt_optim optim = opt->optim ? opt->optim : MT_ADAMW;
	int maker = -1, rc = region_name_check(opt->name);
	if (!rc) rc = check_exists(opt->name);
	if (!rc && (opt->step_tokens < 2 || opt->step_tokens > (uint64_t)1 << 32))
		rc = mt_fail(MT_EX_USAGE, "--step-tokens: wants 2 to 4G");
	uint32_t nodes = opt->nodes ? opt->nodes : 1, streams = opt->streams ? opt->streams : mt_default_streams(nodes);
	if (!rc && opt->state == MT_NONE && opt->grad != MT_NONE)
		rc = mt_fail(MT_EX_USAGE,
			"--state none: a run of weights alone has no gradients: --grad none, or leave it out");
	if (!rc && opt->state == MT_NONE && nodes > 1)
		rc = mt_fail(MT_EX_USAGE, "--state none: not on several nodes: create a run without --node on each");
	if (!rc) rc = nodes_check(opt->node, nodes, streams, opt->grad);
	if (!rc && opt->numa && strlen(opt->numa) >= 64) rc = mt_fail(MT_EX_USAGE, "--numa: too long");
	if (rc || (rc = mt_layout_make(&l, geo, opt->dtype, opt->grad, opt->state, optim))) return rc;
	struct mt_control *plan = aligned_alloc(64, round_up(sizeof *plan, 64));
	if (!plan) rc = mt_fail(MT_EX_NOMEM, "no memory for a plan of the control region");
	if (plan) memset(plan, 0, sizeof *plan);
	if (!rc) rc = mt_layout_freeze(&l, opt->train, opt->freeze);
	if (!rc && !(rc = add_tier(opt, &l, &plan->tier))) {
		snprintf(plan->name, sizeof plan->name, "%s", opt->name);
		snprintf(plan->numa, sizeof plan->numa, "%s", opt->numa ? opt->numa : "default");
		snprintf(plan->train, sizeof plan->train, "%s", opt->train ? opt->train : "");
		snprintf(plan->freeze, sizeof plan->freeze, "%s", opt->freeze ? opt->freeze : "");
		plan->uid = geteuid();
		plan->dtype = opt->dtype;
		plan->grad = opt->grad;
		plan->state = opt->state ? opt->state : MT_FP32;
		plan->optim = optim;
		plan->n_units = l.n_units;
		plan->n_tensors = l.n_tensors;
		plan->partitions = MT_PARTITIONS;
		plan->group = MT_GROUP;
		plan->step_tokens = opt->step_tokens;
		plan->top = opt->top;
		plan->config_bytes = opt->config_bytes;
		plan->params = l.params;
		plan->nodes.node = opt->node;
		plan->nodes.nodes = nodes;
		plan->nodes.streams = streams;
		plan->geo = *geo;
		rc = create_regions(opt, plan, &l, map, &maker);
	}
	if (!rc) {
		fill_control(map[REGION_CONTROL].p, opt, plan, &l);
		rc = make_tier(opt, map[REGION_CONTROL].p, &l);
	}
	if (!rc) {
		rings_lay(plan, map[REGION_RINGS].p);
		region_publish(&map[REGION_STORE]);
		region_publish(&map[REGION_RINGS]);
		region_publish(&map[REGION_CONTROL]); /* last: who sees a whole control region finds the others */
	}
	region_made(maker);
	for (int r = 0; r < 3; r++) region_unmap(&map[r]);
	free(plan);
	mt_layout_release(&l);
	return rc;
}

/* ---- open */

static bool inside(uint64_t size, uint64_t off, uint64_t n, uint64_t each)
{
	return off % 64 == 0 && off <= size && n <= (size - off) / each;
}

/* The control region's tables lie inside of it, and its types are types. */
static bool tables_fit(const struct mt_control *c, uint64_t size)
{
	return inside(size, c->off_units, c->n_units, sizeof(struct mt_unit)) &&
		inside(size, c->off_tensors, c->n_tensors, sizeof(struct mt_tensor)) &&
		inside(size, c->off_choices, MT_CHOICES, sizeof(struct mt_choice)) &&
		inside(size, c->off_journal, MT_PARTITIONS, sizeof(struct mt_partition)) &&
		inside(size, c->off_config, c->config_bytes, 1) && c->partitions == MT_PARTITIONS && c->group == MT_GROUP &&
		(c->dtype == MT_BF16 || c->dtype == MT_FP32) && c->grad >= MT_BF16 && c->grad <= MT_NONE &&
		c->state >= MT_BF16 && c->state <= MT_INT8 && (c->state != MT_NONE || c->grad == MT_NONE) &&
		(!c->tier.tiles || (inside(size, c->tier.off_dirs, c->tier.dirs, 2 * MT_TIER_PATH) && tier_valid(c))) &&
		c->optim >= MT_ADAMW && c->optim <= MT_SGD && c->nodes.node < c->nodes.nodes && c->nodes.nodes <= MT_NODES &&
		c->nodes.streams && c->nodes.streams <= MT_STREAMS / c->nodes.nodes && !c->train[MT_PATTERNS - 1] &&
		!c->freeze[MT_PATTERNS - 1];
}

/* The one check of what the control region says of the model: units and tensors are those that its geometry gives. All
 * who have opened the run trust the tables. What changes in a unit begins at `applied`. */
static int check_layout(struct mt_run *run)
{
	const struct mt_control *c = run->control;
	struct mt_layout l = {0};
	bool ok = tables_fit(c, run->control_map.size);
	int rc = ok ? layout_of(&l, c, c->grad, c->state) : 0;
	if (rc == -MT_EX_NOMEM) return rc;
	const struct mt_tier *t = &c->tier;
	if (ok && !rc && t->tiles) rc = mt_layout_tier(&l, t->first, t->tile_elems, t->slots, (enum mt_pass_order)t->order);
	ok = ok && !rc && l.tier.tiles == t->tiles && l.tier.off_slots == t->off_slots &&
		l.tier.slot_bytes == t->slot_bytes;
	ok = ok && l.n_units == c->n_units && l.n_tensors == c->n_tensors && l.params == c->params &&
		!memcmp(l.tensors, mt_tensor(run, 0), l.n_tensors * sizeof *l.tensors);
	for (uint32_t u = 0; ok && u < l.n_units; u++)
		ok = !memcmp(&l.units[u], mt_unit(run, u), offsetof(struct mt_unit, applied));
	run->state_bytes = l.store_bytes;
	run->tier_bytes = l.tier.end - l.store_bytes;
	run->memory = ok ? nodes_memory(&l, c->nodes.node, c->nodes.nodes) : 0;
	mt_layout_release(&l);
	return ok ? 0 : mt_fail(MT_EX_DATA, "run '%s': its control region is damaged", run->name);
}

/* On a disk a region outlives the machine's end, with pages of different ages if it ended badly. A run is of this boot
 * when all of its regions are, those that this process does not map as well. */
static bool of_other_boot(const struct mt_run *run)
{
	const struct map *maps[] = {&run->control_map, &run->rings_map, &run->store_map};
	for (int r = 0; r < 3; r++) {
		struct region_name name = region_name(run->name, (enum region)r, NULL);
		struct mt_header h;
		if (maps[r]->p ? region_other_boot(maps[r]->p) : !region_peek(name.text, &h) && region_other_boot(&h))
			return true;
	}
	return false;
}

int mt_run_open(struct mt_run **out, const char *name, int flags)
{
	int rc = region_name_check(name);
	if (rc) return rc;
	struct mt_run *run = calloc(1, sizeof *run);
	if (!run) return mt_fail(MT_EX_NOMEM, "no memory for a run's handle");
	snprintf(run->name, sizeof run->name, "%s", name);
	run->flags = flags;
	run->slot = -1;
	bool ro = flags & MT_RUN_READONLY;
	rc = region_open_keep(region_name(name, REGION_CONTROL, NULL).text, REGION_CONTROL, ro, NULL, &run->control_map,
		&run->fd);
	if (rc == -MT_EX_NOINPUT) rc = mt_fail(MT_EX_NOINPUT, "no such run: '%s'", name);
	if (!rc && run->control_map.size < sizeof(struct mt_control)) rc = mt_fail(MT_EX_DATA, "run '%s' is damaged", name);
	if (!rc) {
		run->control = run->control_map.p;
		rc = check_layout(run);
	}
	const uint8_t *id = rc ? NULL : run->control->h.run_id;
	if (!rc && flags & MT_RUN_RINGS) {
		rc = region_open(region_name(name, REGION_RINGS, NULL).text, REGION_RINGS, ro, id, &run->rings_map);
		run->rings = run->rings_map.p;
	}
	if (!rc && flags & MT_RUN_WEIGHTS) {
		rc = region_open(region_name(name, REGION_STORE, NULL).text, REGION_STORE, ro, id, &run->store_map);
		if (!rc && run->store_map.size < run->state_bytes)
			rc = mt_fail(MT_EX_DATA, "run '%s': its store is smaller than its units", name);
	}
	if (rc) {
		mt_run_close(run);
		return rc;
	}
	run->other_boot = of_other_boot(run);
	*out = run;
	return 0;
}

void mt_run_close(struct mt_run *run)
{
	if (!run) return;
	if (run->slot >= 0) mt_stage_release(run);
	tier_unmap(run);
	region_unmap(&run->store_map);
	region_unmap(&run->rings_map);
	region_unmap(&run->control_map);
	if (run->fd >= 0) close(run->fd);
	free(run);
}

enum { SAY_S = 2, ABSENT_S = 10 }; /* a run that is not there may be about to be made; a mistyped name is not */
enum { MAKER_S = 1 };              /* seconds within which a creator that has opened a run's file has locked it */

enum look {
	READY,
	BUSY,     /* somebody makes or fills it */
	EMPTY,    /* it has no weights */
	ABSENT,   /* it does not exist */
	ABANDONED /* it is half made, and its maker is dead */
};

/* READY, or why not; or the error of a store that waiting does not mend */
static int look_filled(const struct mt_run *run)
{
	enum mt_state state = mt_run_state(run);
	if (state == MT_FILLING && mt_stage_alive(run, MT_FILL)) return BUSY;
	int rc = run_state_error(run, state == MT_FILLING ? MT_EMPTY : state);
	return rc == -MT_EX_PEER ? EMPTY : rc;
}

/* One look: an enum look, or an error that waiting does not mend. */
static int look(struct mt_run **out, const char *name, int flags, bool filled)
{
	int rc = mt_run_open(out, name, flags);
	if (rc == -MT_EX_NOINPUT) return ABSENT;
	if (rc == -MT_EX_ABI) {
		enum region_making m = region_making(region_name(name, REGION_CONTROL, NULL).text);
		if (m == REGION_MAKING) return BUSY;
		/* whole by now: it became so after it was opened, or a region beside it is the one that is half made */
		return m == REGION_ABANDONED ? ABANDONED : rc;
	}
	if (rc || !filled) return rc;
	rc = look_filled(*out);
	if (rc == READY && (rc = mt_run_check(*out)) == 0) return READY;
	if (rc < 0 && mt_run_state(*out) == MT_FILLING) rc = BUSY; /* somebody has begun to fill it meanwhile */
	bool gone = mt_run_state(*out) == MT_GONE;
	mt_run_close(*out);
	*out = NULL;
	return gone ? ABSENT : rc;
}

/* A mistyped name, or a command that is still missing: a process that waits reports each of them once. */
static void say_wait(enum look what, const char *name, int *reported)
{
	if (*reported == (int)what) return;
	*reported = (int)what;
	if (what == ABSENT) mt_say_waits_for_run(name);
	else if (what == EMPTY) mt_say("waits for run '%s': it has no weights: mt-store init or mt-ckpt load", name);
	else mt_say("waits for run '%s': it is being created or filled", name);
}

static int await(struct mt_run **out, const char *name, int flags, double wait_s, const volatile int *stop, bool filled)
{
	double start = mt_now(), began = start, abandoned = 0, absent_s = wait_s < 0 ? ABSENT_S : wait_s;
	double maker_s = absent_s < MAKER_S ? absent_s : MAKER_S;
	int reported = READY;
	for (;;) {
		double now = mt_now();
		int rc = look(out, name, flags, filled);
		if (rc == -MT_EX_ABI && !abandoned) rc = ABANDONED; /* looked at while it was becoming whole: look again */
		if (rc <= READY) return rc;
		/* one that is half made is an error soon, which says so */
		if (rc != ABANDONED && now - began >= SAY_S) say_wait((enum look)rc, name, &reported);
		if (stop && *stop) return mt_fail(MT_EX_BUSY, "stopped while waiting for run '%s'", name);
		if (rc == BUSY) start = now;
		if (rc != ABANDONED) abandoned = 0;
		else if (!abandoned) abandoned = now;
		else if (now - abandoned >= maker_s)
			return mt_fail(MT_EX_ABI, "run '%s' is half made, and whoever made it is dead: mt-store rm %s", name, name);
		if (rc == ABSENT && now - start >= absent_s) return mt_fail(MT_EX_NOINPUT, "no such run: '%s'", name);
		if (rc == EMPTY && wait_s >= 0 && now - start >= wait_s) return -MT_EX_PEER;
		mt_nap(20);
	}
}

int mt_run_await(struct mt_run **out, const char *name, int flags, double wait_s, const volatile int *stop)
{
	return await(out, name, flags, wait_s, stop, false);
}

int mt_run_attach(struct mt_run **out, const char *name, int flags, double wait_s, const volatile int *stop)
{
	int rc = await(out, name, flags, wait_s, stop, true);
	if (rc) return rc;
	(*out)->attached = true;
	(*out)->wait_s = wait_s;
	(*out)->stop = stop;
	return 0;
}

int run_wait_filled(struct mt_run *run)
{
	double start = mt_now();
	for (;;) {
		uint32_t seen = mt_event(run);
		int rc = look_filled(run);
		if (rc <= READY) return rc;
		if (rc == EMPTY && !run->attached) return 0; /* it did not ask for weights */
		if (run->stop && *run->stop) return mt_fail(MT_EX_BUSY, "stopped while waiting for run '%s'", run->name);
		double now = mt_now();
		if (rc == BUSY) start = now;
		else if (run->wait_s >= 0 && now - start >= run->wait_s) return -MT_EX_PEER;
		mt_wait(run, seen, 100);
	}
}

/* ---- remove, list */

/* Call fn for every file that has a name of this user's runs in the region directory: its run's name, the rest of its
 * name, and whether it is a regular file of this user's: anybody may have put others there, which are left alone. */
typedef int file_fn(const char *run, const char *rest, const char *file, const struct stat *, bool ours, void *arg);

static int each_file(file_fn *fn, void *arg)
{
	char prefix[32], run[MT_RUN_NAME + 1];
	int n = snprintf(prefix, sizeof prefix, "mt.%u.", (unsigned)geteuid()), rc = 0;
	DIR *d = opendir(region_dir());
	if (!d) return mt_fail(MT_EX_IO, "%s: %s", region_dir(), strerror(errno));
	for (struct dirent *e; !rc && (e = readdir(d));) {
		struct stat st;
		if (strncmp(e->d_name, prefix, (size_t)n)) continue;
		const char *name = e->d_name + n, *dot = strchr(name, '.');
		if (!dot || dot - name > MT_RUN_NAME) continue;
		snprintf(run, sizeof run, "%.*s", (int)(dot - name), name);
		if (region_name_check(run) || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue;
		rc = fn(run, dot + 1, e->d_name, &st, st.st_uid == geteuid() && S_ISREG(st.st_mode), arg);
	}
	closedir(d);
	return rc;
}

static int refuse_foreign(const char *run, const char *rest, const char *file, const struct stat *st, bool ours,
	void *arg)
{
	(void)rest;
	return ours || strcmp(run, arg) ? 0 : region_not_ours(file, st);
}

/* 77 or 65 naming a file that has a name of this run and is not this user's region */
static int foreign_file(const char *run) { return each_file(refuse_foreign, (char *)run); }

struct total {
	const char *run;
	bool holes; /* its store has some */
	int files;
	uint64_t bytes;
};

static int add_size(const char *run, const char *rest, const char *file, const struct stat *st, bool ours, void *arg)
{
	(void)rest, (void)file;
	struct total *t = arg;
	if (!ours || strcmp(run, t->run)) return 0;
	t->files++;
	t->bytes += t->holes ? (uint64_t)st->st_blocks * 512 : (uint64_t)st->st_size;
	return 0;
}

/* A removal first says that the run is gone, then looks for its regions: it finds this one, or is seen here */
int region_join(struct mt_run *run, const char *name, struct map *map)
{
	region_publish(map);
	region_unmap(map);
	if (mt_run_state(run) != MT_GONE) return 0;
	(void)region_unlink(name);
	return mt_fail(MT_EX_NOINPUT, "run '%s' was removed", run->name);
}

struct removal {
	const char *run;
	bool all; /* also the control region */
	int removed;
	int err;
};

static int remove_one(const char *run, const char *rest, const char *file, const struct stat *st, bool ours, void *arg)
{
	(void)st;
	struct removal *r = arg;
	if (strcmp(run, r->run) || !ours || (!r->all && !strcmp(rest, "control"))) return 0;
	int rc = region_unlink(file);
	if (rc) r->err = -rc;
	else r->removed++;
	return 0;
}

/* 0 when it is certain that no stage uses the slot; 75 */
static int check_left(const struct mt_run *run, int slot)
{
	(void)stage_outlives(run, slot);
	switch (mt_stage_life(run, slot)) {
	case MT_DEAD: return 0;
	case MT_NOBODY:
		return stage_in_passing(run, slot)
			? mt_fail(MT_EX_BUSY, "run '%s': %s is just starting or ending; wait, or --force", run->name,
				  mt_stage_name(slot))
			: 0;
	case MT_ALIVE:
		return mt_fail(MT_EX_BUSY, "run '%s': %s (pid %d%s) is alive; stop it, or --force", run->name,
			mt_stage_name(slot), mt_stage_pid(run, slot), stage_where(run, slot));
	default: return stage_unknown(run, slot, "end it, or --force");
	}
}

/* As mt_run_open, but waits up to 2 s for a run under construction, because a killed creator holds its lock until the
 * kernel has unmapped the run. 75: it is still under construction */
static int open_made(struct mt_run **run, const char *name)
{
	enum { TRIES = 100, EACH_MS = 20 };
	struct region_name control = region_name(name, REGION_CONTROL, NULL);
	for (int i = 0;; i++) {
		int rc = mt_run_open(run, name, MT_RUN_CONTROL);
		if (rc != -MT_EX_ABI || region_making(control.text) != REGION_MAKING) return rc;
		if (i == TRIES) return mt_fail(MT_EX_BUSY, "run '%s' is being created; wait, or --force", name);
		mt_nap(EACH_MS);
	}
}

/* The files on drives of a run that is half made, which cannot be opened. Its directories were named one by one. */
static void remove_half_tier(const char *name)
{
	struct map map = {0};
	if (!region_map_half(region_name(name, REGION_CONTROL, NULL).text, sizeof(struct mt_control), &map)) return;
	struct mt_control *c = map.p;
	struct mt_run run = {.control = c};
	uint32_t named = 0;
	bool fit = c->tier.dirs <= MT_TIER_DIRS && inside(map.size, c->tier.off_dirs, c->tier.dirs, 2 * MT_TIER_PATH);
	while (fit && named < c->tier.dirs && *mt_tier_dir(&run, named)) named++;
	c->tier.dirs = named;
	if (fit && tier_valid(c)) tier_remove(&run);
	region_unmap(&map);
}

int mt_run_remove(const char *name, bool force)
{
	struct mt_run *run = NULL;
	int rc = region_name_check(name);
	if (rc) return rc;
	rc = force ? mt_run_open(&run, name, MT_RUN_CONTROL) : open_made(&run, name);
	if (rc == -MT_EX_BUSY) return rc;
	/* What is half made, damaged or of another ABI has no stages of ours. Any other error leaves unknown whether it
	 * has. */
	if (rc == -MT_EX_NOTYOURS || (!force && (rc == -MT_EX_IO || rc == -MT_EX_NOMEM))) return rc;
	if (!rc) {
		for (int s = 0; s < MT_SLOTS && !force && !rc; s++) rc = check_left(run, s);
		if (rc) {
			mt_run_close(run);
			return rc;
		}
		mt_run_set_state(run, MT_GONE);
		tier_remove(run);
		mt_run_close(run);
	} else remove_half_tier(name);
	struct removal r = {.run = name};
	/* Also half-made runs and other ABI versions: by name alone. The control region is the last: if this process is
	 * killed, it still says that the run is gone. */
	rc = each_file(remove_one, &r);
	r.all = true;
	if (!rc) rc = each_file(remove_one, &r);
	if (!rc && r.err) rc = mt_fail(MT_EX_IO, "removing run '%s': %s", name, strerror(r.err));
	if (!rc && !r.removed) rc = foreign_file(name);
	if (!rc && !r.removed) rc = mt_fail(MT_EX_NOINPUT, "no such run: '%s'", name);
	return rc;
}

/* A run that is whole, of this id and empty: nobody but its killed creator knows of it */
static int remove_unborn(const char *name, const uint8_t id[16])
{
	struct mt_run *run;
	int rc = mt_run_open(&run, name, MT_RUN_CONTROL | MT_RUN_READONLY);
	if (rc) return rc;
	const struct mt_header *h = &mt_control(run)->h;
	bool unborn = !memcmp(h->run_id, id, 16) && mt_run_state(run) == MT_EMPTY;
	mt_run_close(run);
	return unborn ? mt_run_remove(name, false) : -MT_EX_NOINPUT;
}

int run_remove_half(const char *name, const uint8_t id[16], double wait_s, uint64_t *bytes)
{
	struct removal r = {.run = name};
	struct total t = {.run = name, .holes = true};
	double until = mt_now() + wait_s;
	int maker, rc = region_name_check(name);
	*bytes = 0;
	if (!rc) rc = each_file(add_size, &t);
	if (rc || !t.files) return rc;
	while ((rc = region_seize(region_name(name, REGION_CONTROL, NULL).text, &maker)) == -MT_EX_BUSY && mt_now() < until)
		mt_nap(20);
	if (rc == -MT_EX_BUSY) return mt_fail(MT_EX_BUSY, "run '%s' is being created", name);
	if (rc == -MT_EX_NOINPUT && id && !remove_unborn(name, id)) *bytes = t.bytes;
	if (rc) return rc == -MT_EX_NOINPUT ? 0 : rc;
	t.bytes = 0;
	remove_half_tier(name);
	if (!(rc = each_file(add_size, &t)) && !(rc = each_file(remove_one, &r))) {
		r.all = true; /* the control region is the last: its lock keeps others away */
		rc = each_file(remove_one, &r);
	}
	region_made(maker);
	if (!rc && r.err) rc = mt_fail(MT_EX_IO, "removing what is half made of run '%s': %s", name, strerror(r.err));
	if (!rc) *bytes = t.bytes;
	return rc;
}

struct listing {
	char (*names)[MT_RUN_NAME + 1];
	size_t n, room;
};

static int collect(const char *run, const char *rest, const char *file, const struct stat *st, bool ours, void *arg)
{
	(void)rest, (void)file, (void)st;
	struct listing *l = arg;
	if (!ours) return 0;
	for (size_t i = 0; i < l->n; i++)
		if (!strcmp(l->names[i], run)) return 0;
	if (l->n == l->room) {
		size_t room = l->room ? 2 * l->room : 16;
		void *p = realloc(l->names, room * sizeof *l->names);
		if (!p) return mt_fail(MT_EX_NOMEM, "no memory for a list of runs");
		l->names = p;
		l->room = room;
	}
	snprintf(l->names[l->n++], sizeof *l->names, "%s", run);
	return 0;
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

int mt_run_list(int (*fn)(const char *name, void *arg), void *arg)
{
	struct listing l = {0};
	int rc = each_file(collect, &l);
	if (l.n) qsort(l.names, l.n, sizeof *l.names, by_name);
	for (size_t i = 0; i < l.n && !rc; i++) rc = fn(l.names[i], arg);
	free(l.names);
	return rc;
}

/* ---- parts */

static uint8_t *control_at(const struct mt_run *run, uint64_t off) { return (uint8_t *)run->control + off; }

struct mt_control *mt_control(const struct mt_run *run) { return run->control; }
const struct mt_geometry *mt_geometry(const struct mt_run *run) { return &run->control->geo; }

struct mt_unit *mt_unit(const struct mt_run *run, uint32_t unit)
{
	return (struct mt_unit *)control_at(run, run->control->off_units) + unit;
}

struct mt_tensor *mt_tensor(const struct mt_run *run, uint32_t i)
{
	return (struct mt_tensor *)control_at(run, run->control->off_tensors) + i;
}

struct mt_partition *mt_partitions(const struct mt_run *run)
{
	return (struct mt_partition *)control_at(run, run->control->off_journal);
}

uint64_t mt_run_trained(const struct mt_run *run)
{
	uint64_t n = run->control->params;
	for (uint32_t i = 0; i < run->control->n_tensors; i++) n -= mt_tensor(run, i)->frozen ? mt_tensor(run, i)->n : 0;
	return n;
}

const char *mt_config_text(const struct mt_run *run, size_t *bytes)
{
	*bytes = run->control->config_bytes;
	return (const char *)control_at(run, run->control->off_config);
}

void *mt_at(const struct mt_run *run, uint64_t off)
{
	if (mt_on_tier(run, off)) return (uint8_t *)run->tier_map.p + (off - run->state_bytes);
	return (uint8_t *)run->store_map.p + off;
}

uint64_t mt_run_bytes(const struct mt_run *run)
{
	struct total t = {.run = run->name, .holes = mt_nodes(run) > 1};
	each_file(add_size, &t);
	return t.bytes;
}

enum mt_state mt_run_state(const struct mt_run *run)
{
	enum mt_state s = (enum mt_state)atomic_load_explicit(&run->control->h.state, memory_order_acquire);
	return s == MT_FILLED && run->other_boot ? MT_DIRTY : s;
}

void mt_run_set_state(struct mt_run *run, enum mt_state s)
{
	_Atomic uint32_t *state = &run->control->h.state;
	uint32_t was = atomic_load_explicit(state, memory_order_relaxed);
	/* release: what was filled stands before anyone reads that it is. A run that was removed meanwhile stays gone */
	while (was != MT_GONE &&
		!atomic_compare_exchange_weak_explicit(state, &was, (uint32_t)s, memory_order_release, memory_order_relaxed))
		continue;
	mt_wake(run);
}

/* A ring of one's own is a region that mt_run_reset does not have mapped */
static int clear_ring(const char *run, const char *rest, const char *file, const struct stat *st, bool ours, void *arg)
{
	struct mt_run *r = arg;
	struct map map = {0};
	(void)st;
	if (!ours || strcmp(run, r->name) || strncmp(rest, "ring.", 5)) return 0;
	/* one that is damaged, or of a run that had this name before, is refused when it is opened */
	if (region_open(file, REGION_RING, false, r->control->h.run_id, &map)) return 0;
	rings_clear(map.p, map.size);
	region_boot_id(((struct mt_header *)map.p)->boot_id);
	region_unmap(&map);
	return 0;
}

void run_renew(struct mt_run *run)
{
	each_file(clear_ring, run);
	if (!run->other_boot) return;
	struct region_name files = region_name(run->name, REGION_FILES, NULL);
	struct mt_header h;
	if (!region_peek(files.text, &h) && region_other_boot(&h)) region_unlink(files.text);
	/* the holder of a slot ended with its boot */
	for (int i = 0; i < MT_SLOTS; i++)
		if (i != run->slot) memset(&run->control->slots[i], 0, sizeof run->control->slots[i]);
	struct map *maps[] = {&run->store_map, &run->rings_map, &run->control_map};
	for (int i = 0; i < 3; i++)
		if (maps[i]->p) region_boot_id(((struct mt_header *)maps[i]->p)->boot_id);
	run->other_boot = false;
}
