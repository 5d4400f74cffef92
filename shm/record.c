/* record.c: the reproducibility record: who decides it, what must agree with it, and its table: what a device chose for
 * an operation where another choice would give other bits. mt/memory.h says how the list grows. */
#include <stddef.h>
#include <stdio.h>

#include "lib.h"
#include "mt/choices.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"

/* ---- the record */

const struct mt_record *mt_record(const struct mt_run *run)
{
	const struct mt_record *r = &run->control->record;
	/* acquire: the fields were written before `set` */
	return atomic_load_explicit(&r->set, memory_order_acquire) ? r : NULL;
}

static bool owner_lives(const struct mt_run *run, uint64_t owner)
{
	for (int i = 0; i < MT_SLOTS; i++)
		if (mt_stage_word(run, i) == owner) return mt_stage_alive(run, i);
	return false;
}

bool mt_record_claim(struct mt_run *run)
{
	_Atomic uint64_t *at = &run->control->record.owner;
	if (mt_node(run)) return false; /* node 0's stands, which mt-link enters here */
	uint64_t owner = atomic_load(at);
	return owner == run->slot_word ||
		((!owner || !owner_lives(run, owner)) && atomic_compare_exchange_strong(at, &owner, run->slot_word));
}

void mt_record_set(struct mt_run *run, const struct mt_record *from)
{
	struct mt_record *r = &run->control->record;
	memcpy(&r->chunk_tokens, &from->chunk_tokens,
		offsetof(struct mt_record, taken) - offsetof(struct mt_record, chunk_tokens));
	atomic_store_explicit(&r->set, 1, memory_order_release);
	mt_wake(run);
}

static int same(const char *what, const char *is, size_t room, const char *mine)
{
	if (!strncmp(is, mine, room)) return 0;
	return mt_fail(MT_EX_CONFIG,
		"the run was computed %s '%.*s', this is '%s': other bits; a checkpoint of it goes on here "
		"by mt-run --resume --new-record, or after mt-ckpt load --new-record",
		what, (int)room, is, mine);
}

int mt_record_agrees(const struct mt_run *run, const struct mt_record *mine)
{
	const struct mt_record *r = &run->control->record;
	int rc = same("on device", r->device, sizeof r->device, mine->device);
	if (rc || !r->machine[0]) return rc; /* of an older mt, which wrote the device alone */
	if ((rc = same("on", r->machine, sizeof r->machine, mine->machine)) ||
		(rc = same("with GEMM by", r->gemm, sizeof r->gemm, mine->gemm)))
		return rc;
	return same("with attention by", r->attention, sizeof r->attention, mine->attention);
}

/* ---- its table */

static struct mt_choice *table(const struct mt_run *run)
{
	return (struct mt_choice *)((char *)run->control + run->control->off_choices);
}

/* Where the link to e's successor stands; NULL: to the first */
static _Atomic uint32_t *link_of(const struct mt_run *run, const struct mt_choice *e)
{
	return e ? &table(run)[e - table(run)].next : &run->control->record.first;
}

const struct mt_choice *mt_choice_next(const struct mt_run *run, const struct mt_choice *e)
{
	/* acquire: the entry was filled before it was linked */
	uint32_t i = atomic_load_explicit(link_of(run, e), memory_order_acquire);
	return i && i <= MT_CHOICES ? &table(run)[i - 1] : NULL;
}

static bool is_for(const struct mt_choice *e, const char *key) { return !strncmp(e->key, key, sizeof e->key); }

/* Walk on from *last: *last becomes the last entry there is, or the one before the first that is for key (NULL: none
 * is), which becomes *e. 65: the list ends nowhere, or leads out of its table. */
static int walk(const struct mt_run *run, const char *key, const struct mt_choice **last, const struct mt_choice **e)
{
	uint32_t link = 0;
	for (int i = 0; i <= MT_CHOICES; i++) {
		/* acquire: the entry was filled before it was linked */
		link = atomic_load_explicit(link_of(run, *last), memory_order_acquire);
		*e = link && link <= MT_CHOICES ? &table(run)[link - 1] : NULL;
		if (!link || (*e && key && is_for(*e, key))) return 0;
		if (!*e) break;
		*last = *e;
	}
	return mt_fail(MT_EX_DATA, "run '%s': its table of choices is damaged (entry %u): load a checkpoint", run->name,
		link);
}

int choices_check(const struct mt_run *run)
{
	const struct mt_choice *last = NULL, *e;
	return walk(run, NULL, &last, &e);
}

/* The key, with the mt-stream's name before it if its choices stand apart */
static const char *key_apart(const struct mt_run *run, const char *key, char room[2 * MT_CHOICE_KEY])
{
	if (!run->apart) return key;
	snprintf(room, 2 * MT_CHOICE_KEY, "mt-stream %d: %s", run->apart - 1, key);
	return room;
}

static bool find(const struct mt_run *run, const char *key, void *value, size_t bytes)
{
	const struct mt_choice *last = NULL, *e;
	if (walk(run, key, &last, &e) || !e || e->bytes != bytes || bytes > sizeof e->value) return false;
	memcpy(value, e->value, bytes);
	return true;
}

bool mt_choice_find(const struct mt_run *run, const char *key, void *value, size_t bytes)
{
	char room[2 * MT_CHOICE_KEY];
	return find(run, key_apart(run, key, room), value, bytes);
}

/* An entry of this stage's own: the one it has not used, or a new one. 0: none is left */
static uint32_t entry_take(struct mt_run *run)
{
	struct mt_record *r = &run->control->record;
	if (run->spare) return run->spare;
	if (atomic_load(&r->taken) >= MT_CHOICES) return 0;
	uint32_t i = atomic_fetch_add(&r->taken, 1) + 1;
	return run->spare = i <= MT_CHOICES ? i : 0;
}

/* Link entry i to the list's end, unless the key gets there first. *e: the entry that stands */
static int entry_link(struct mt_run *run, uint32_t i, const char *key, const struct mt_choice **e)
{
	const struct mt_choice *last = NULL;
	for (;;) {
		uint32_t none = 0;
		int rc = walk(run, key, &last, e);
		if (rc || *e) return rc;
		/* release: a reader that sees the link sees the entry */
		if (atomic_compare_exchange_strong_explicit(link_of(run, last), &none, i, memory_order_acq_rel,
				memory_order_acquire)) {
			run->spare = 0;
			*e = &table(run)[i - 1];
			return 0;
		}
	}
}

/* ---- several nodes */

static void propose(struct mt_run *run, uint32_t i)
{
	_Atomic uint32_t *newest = &run->control->nodes.proposed;
	uint32_t before = atomic_load(newest);
	do atomic_store(&table(run)[i - 1].next, before);
	while (!atomic_compare_exchange_weak(newest, &before, i));
	mt_wake(run);
}

/* Entry i is this stage's, filled. Wait until node 0's choice for its key stands here, and the entry is ours again. */
static int await_node0(struct mt_run *run, uint32_t i, const char *key, const struct mt_choice **e)
{
	propose(run, i);
	for (;;) {
		uint32_t seen = mt_event(run);
		const struct mt_choice *last = NULL;
		int rc = walk(run, key, &last, e);
		if (rc || (*e && atomic_load(&table(run)[i - 1].next) == MT_CHOICE_TAKEN)) return rc;
		if ((rc = mt_stage_over(run)) != 0) return rc < 0 ? rc : mt_fail(MT_EX_PEER, "run '%s' was removed", run->name);
		mt_wait(run, seen, 100);
	}
}

bool mt_choice_proposed(struct mt_run *run, struct mt_choice *out)
{
	_Atomic uint32_t *newest = &run->control->nodes.proposed;
	uint32_t i = atomic_load(newest);
	struct mt_choice *e;
	do {
		if (!i || i > MT_CHOICES) return false;
		e = &table(run)[i - 1];
	} while (!atomic_compare_exchange_weak(newest, &i, atomic_load(&e->next)));
	memcpy(out->key, e->key, sizeof out->key);
	memcpy(out->value, e->value, sizeof out->value);
	out->bytes = e->bytes;
	atomic_store(&e->next, MT_CHOICE_TAKEN);
	mt_wake(run);
	return true;
}

/* ---- enter */

static void entry_fill(struct mt_run *run, uint32_t i, const char *key, const void *value, size_t bytes)
{
	struct mt_choice *mine = &table(run)[i - 1];
	memset(mine, 0, sizeof *mine);
	memcpy(mine->key, key, strlen(key));
	memcpy(mine->value, value, bytes);
	mine->bytes = (uint32_t)bytes;
}

int mt_choice_enter(struct mt_run *run, const char *key, void *value, size_t bytes)
{
	bool ask = mt_node(run) && run->slot != MT_LINK && mt_run_state(run) != MT_FILLING; /* a load brings its own */
	char room[2 * MT_CHOICE_KEY];
	key = key_apart(run, key, room);
	if (strlen(key) >= MT_CHOICE_KEY || bytes > MT_CHOICE_VALUE)
		return mt_fail(MT_EX_BUG, "choice '%s' of %zu bytes is too long", key, bytes);
	const struct mt_choice *last = NULL, *e;
	int rc = walk(run, key, &last, &e);
	if (rc) return rc;
	uint32_t i = e ? 0 : entry_take(run);
	if (!e && !i)
		return mt_fail(MT_EX_NOMEM,
			"the reproducibility record is full: %d operations of different shapes were computed; keep --micro "
			"and --seq as they were",
			MT_CHOICES);
	if (!e) {
		entry_fill(run, i, key, value, bytes);
		if ((rc = ask ? await_node0(run, i, key, &e) : entry_link(run, i, key, &e))) return rc;
	}
	if (e->bytes != bytes)
		return mt_fail(MT_EX_DATA, "reproducibility record: '%s' has %u bytes, not %zu", key, e->bytes, bytes);
	memcpy(value, e->value, bytes);
	return 0;
}

/* ---- mt-streams that differ */

#define SHARES "shares of the mt-streams"

bool mt_shares(const struct mt_run *run, char text[MT_CHOICE_VALUE])
{
	return find(run, SHARES, text, MT_CHOICE_VALUE) && !text[MT_CHOICE_VALUE - 1];
}

/* What stands for the key is to be `mine` */
static int text_enter(struct mt_run *run, const char *key, const char *what, const char *mine)
{
	char stands[MT_CHOICE_VALUE] = "";
	snprintf(stands, sizeof stands, "%s", mine);
	int rc = mt_choice_enter(run, key, stands, sizeof stands);
	return rc ? rc : same(what, stands, sizeof stands, mine);
}

int mt_shares_enter(struct mt_run *run, const char *text)
{
	char stands[MT_CHOICE_VALUE] = "none";
	if (!mt_shares(run, stands) && mt_record(run) && mt_run_step(run))
		return same("with shares", stands, sizeof stands, text);
	return text_enter(run, SHARES, "with shares", text);
}

int mt_machine_enter(struct mt_run *run, int i, const char *machine)
{
	char what[32];
	run->apart = i + 1;
	snprintf(what, sizeof what, "by mt-stream %d on", i);
	return text_enter(run, "machine", what, machine);
}
