/* mirror.c: node 0 decides; the other nodes' records of transactions, their reproducibility record and its choices are
 * copies, in the order in which node 0's came about. Back come what a step needs of all: which mt-streams live, and
 * that a node has finished a step. */
#include "link.h"
#include "mt/choices.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"

/* What stands before a txn's word: from `step` on to its losses, which no other node reads */
enum {
	FROM = offsetof(struct mt_txn, step),
	OUTCOME = offsetof(struct mt_txn, t),
	END = offsetof(struct mt_txn, losses)
};

struct txn_copy {
	uint32_t record, reserved;
	uint64_t word;
	uint8_t fields[END - FROM];
};

struct choice_copy {
	char key[MT_CHOICE_KEY];
	uint32_t bytes, reserved;
	uint8_t value[MT_CHOICE_VALUE];
};

/* ---- node 0 */

/* The record and its word as they stood together */
static void copy_txn(struct link *l, uint32_t record, struct txn_copy *c)
{
	const struct mt_txn *t = mt_txn(l->run, record);
	c->record = record;
	c->reserved = 0;
	do {
		c->word = mt_txn_word(l->run, record);
		memcpy(c->fields, (const char *)t + FROM, sizeof c->fields);
		atomic_thread_fence(memory_order_acquire);
	} while (mt_txn_word(l->run, record) != c->word);
}

static bool knows(const struct link *l, const struct peer *p, uint32_t record)
{
	return p->knows[record] && mt_txn_word(l->run, record) == p->sent_word[record];
}

static bool tell_txn(struct link *l, struct peer *p, const struct txn_copy *c)
{
	if (p->knows[c->record] && c->word == p->sent_word[c->record]) return false;
	control_say(l, p, SAY_TXN, c, sizeof *c);
	p->sent_word[c->record] = c->word;
	return p->knows[c->record] = true;
}

/* Both records as they stood at one moment: else the newer one could be opened between two looks, and come before the
 * commit of the older one, which must have left accumulate by then. So the older one comes first, too. */
static bool tell_txns(struct link *l, struct peer *p)
{
	struct txn_copy c[2];
	if (knows(l, p, 0) && knows(l, p, 1)) return false;
	do {
		copy_txn(l, 0, &c[0]);
		copy_txn(l, 1, &c[1]);
	} while (mt_txn_word(l->run, 0) != c[0].word);
	uint32_t older = mt_word_k(c[0].word) > mt_word_k(c[1].word);
	bool moved = tell_txn(l, p, &c[older]);
	return tell_txn(l, p, &c[!older]) || moved;
}

static bool tell_record(struct link *l, struct peer *p)
{
	const struct mt_record *r = mt_record(l->run);
	if (p->sent_record || !r) return false;
	control_say(l, p, SAY_RECORD, r, sizeof *r);
	return p->sent_record = true;
}

static void say_choice(struct link *l, struct peer *p, const struct mt_choice *e)
{
	struct choice_copy c = {.bytes = e->bytes};
	memcpy(c.key, e->key, sizeof c.key);
	memcpy(c.value, e->value, sizeof c.value);
	control_say(l, p, SAY_CHOICE, &c, sizeof c);
}

/* all: how many entries the table has; usually the peer knows them all */
static bool tell_choices(struct link *l, struct peer *p, uint32_t all)
{
	uint32_t n = 0;
	if (p->choices >= all) return false;
	for (const struct mt_choice *e = NULL; (e = mt_choice_next(l->run, e));) {
		if (n++ < p->choices || e->bytes > MT_CHOICE_VALUE) continue;
		say_choice(l, p, e);
	}
	bool more = n > p->choices;
	if (more) p->choices = n;
	return more;
}

/* A slot of the mt-streams of another node, as long as they live */
static void take_streams(struct link *l, uint32_t node, uint32_t living)
{
	for (uint32_t i = 0; i < l->streams; i++) {
		uint32_t stream = node * l->streams + i;
		struct mt_run **proxy = &l->proxy[stream];
		if (living >> i & 1 && !*proxy) {
			mt_must(mt_run_open(proxy, mt_control(l->run)->name, MT_RUN_CONTROL));
			mt_must(mt_stage_claim(*proxy, MT_STREAM + (int)stream, NULL));
		} else if (!(living >> i & 1) && *proxy) {
			mt_run_close(*proxy);
			*proxy = NULL;
		}
	}
}

/* ---- other nodes */

static void take_txn(struct link *l, const struct txn_copy *c)
{
	if (c->record > 1) link_end(l, MT_EX_BUG, "node %u: no such record of a transaction", l->node);
	struct mt_txn *t = mt_txn(l->run, c->record);
	uint64_t is = mt_txn_word(l->run, c->record), attempt = ~(uint64_t)0xff;
	/* of an attempt that stands here, only the outcome is new, and the request to save it */
	size_t from = (is & attempt) == (c->word & attempt) ? OUTCOME : FROM;
	memcpy(&t->save, c->fields + offsetof(struct mt_txn, save) - FROM, sizeof t->save);
	memcpy((char *)t + from, c->fields + from - FROM, END - from);
	if (!mt_txn_cas(l->step, c->record, is, c->word))
		link_end(l, MT_EX_BUG, "node %u: another process changed a transaction", l->node);
}

static void take_record(struct link *l, const struct mt_record *r)
{
	const struct mt_record *mine = mt_record(l->run);
	if (!mine) mt_record_set(l->run, r);
	else if (mt_record_agrees(l->run, r) || mine->chunk_tokens != r->chunk_tokens ||
		mine->head_tokens != r->head_tokens || mine->pass_rows != r->pass_rows)
		link_end(l, MT_EX_CONFIG, "node %u: its reproducibility record differs from node 0's", l->node);
}

/* In node 0: a proposal; its node takes the entry that stands, as all do */
static void take_choice(struct link *l, struct choice_copy *c)
{
	uint8_t value[MT_CHOICE_VALUE];
	c->key[sizeof c->key - 1] = 0;
	if (c->bytes > sizeof value) link_end(l, MT_EX_BUG, "node %u: a choice of %u bytes", l->node, c->bytes);
	memcpy(value, c->value, c->bytes);
	mt_must(mt_choice_enter(l->run, c->key, value, c->bytes));
	if (l->node && memcmp(value, c->value, c->bytes))
		link_end(l, MT_EX_CONFIG, "node %u: its choice for %s differs from node 0's", l->node, c->key);
}

static bool tell_node0(struct link *l)
{
	uint32_t streams = 0, before = l->told_done;
	struct mt_choice proposed;
	uint32_t done = (uint32_t)atomic_load_explicit(&l->control->nodes.done[l->node], memory_order_acquire);
	saves_round(l); /* node 0 hears of a step's snapshot before it hears that the step is done here */
	for (uint32_t i = 0; i < l->streams; i++)
		streams |= (uint32_t)mt_stage_alive(l->run, MT_STREAM + (int)(l->node * l->streams + i)) << i;
	while (mt_choice_proposed(l->run, &proposed)) say_choice(l, &l->peer[0], &proposed);
	if (streams != l->told_streams) control_say(l, &l->peer[0], SAY_STREAMS, &streams, sizeof streams);
	if (done != l->told_done) control_say(l, &l->peer[0], SAY_DONE, &done, sizeof done);
	l->told_done = done;
	l->told_streams = streams;
	return done != before;
}

/* ---- both */

bool mirror_round(struct link *l)
{
	bool moved = false;
	if (l->node) return tell_node0(l);
	moved = saves_round(l);
	uint32_t choices = 0;
	for (const struct mt_choice *e = NULL; (e = mt_choice_next(l->run, e));) choices++;
	for (uint32_t node = 1; node < l->nodes; node++) {
		struct peer *p = &l->peer[node];
		moved |= tell_record(l, p);
		moved |= tell_choices(l, p, choices);
		moved |= tell_txns(l, p);
	}
	return moved;
}

/* The sender and the length of each kind of message */
static bool expected(const struct link *l, enum control what, size_t bytes)
{
	bool from_0 = l->node != 0;
	switch (what) {
	case SAY_TXN: return from_0 && bytes == sizeof(struct txn_copy);
	case SAY_RECORD: return from_0 && bytes == sizeof(struct mt_record);
	case SAY_CHOICE: return bytes == sizeof(struct choice_copy);
	case SAY_DONE:
	case SAY_STREAMS: return !from_0 && bytes == sizeof(uint32_t);
	case SAY_SNAP:
	case SAY_TOKEN: return bytes == sizeof(uint64_t);
	default: return false;
	}
}

void mirror_hear(struct link *l, struct peer *p, enum control what, const void *data, size_t bytes)
{
	union {
		struct txn_copy txn;
		struct mt_record record;
		struct choice_copy choice;
		uint32_t number;
		uint64_t word;
	} said;
	if (!expected(l, what, bytes)) link_end(l, MT_EX_BUG, "node %u said something unknown", p->node);
	memcpy(&said, data, bytes);
	switch (what) {
	case SAY_TXN: take_txn(l, &said.txn); break;
	case SAY_RECORD: take_record(l, &said.record); break;
	case SAY_CHOICE: take_choice(l, &said.choice); break;
	case SAY_SNAP:
	case SAY_TOKEN: saves_hear(l, p, what, said.word); break;
	case SAY_STREAMS: take_streams(l, p->node, said.number); break;
	case SAY_DONE:
		atomic_store_explicit(&l->control->nodes.done[p->node], said.number, memory_order_release);
		mt_wake(l->run);
		break;
	default: break;
	}
}
