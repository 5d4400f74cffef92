/* shm-batch: blocks of batches with an objective, valid and spoilt; prints what the checks say of each */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "batch.h"
#include "mt/documents.h"
#include "mt/error.h"
#include "mt/memory.h"

enum { ROWS = 2, SEQ = 6, N = ROWS * SEQ, VOCAB = 50, NONE = (int)MT_NO_TARGET };

static struct { /* as a block lies in a ring */
	uint32_t tokens[N], targets[N], starts[N];
	float weights[N], old[N];
	struct mt_objective objective;
	struct mt_document documents[4];
} block;
static struct mt_msg m;

/* Each row has two documents of three tokens: a pair. */
static void make(uint32_t kind)
{
	memset(&block, 0, sizeof block);
	for (uint32_t i = 0; i < N; i++) {
		block.tokens[i] = i;
		block.targets[i] = i % 3 == 2 ? MT_NO_TARGET : i + 1;
		block.starts[i] = i % SEQ / 3 * 3;
		block.weights[i] = 1;
		block.old[i] = -1;
	}
	block.objective = (struct mt_objective){.kind = kind, .scale = 0.5, .beta = 0.1};
	for (uint32_t i = 0; i < 4; i++)
		block.documents[i] = (struct mt_document){3 * i,
			mt_losses[kind].unit == MT_TARGETS ? MT_SIDE_NONE : MT_CHOSEN + i % 2, -2};
	m = (struct mt_msg){.kind = MT_MSG_BATCH,
		.batch = {.rows = ROWS,
			.seq = SEQ,
			.weights = 1,
			.documents = sizeof block.documents / sizeof(struct mt_document)}};
}

/* With a teacher: a row of two tokens, of which one is a target */
enum { TOP = 2 };
static struct {
	uint32_t tokens[2], targets[2], starts[2];
	float weights[2], old[2];
	struct {
		uint32_t ids[TOP];
		float p[TOP + 1];
	} teacher[2];
	struct mt_objective objective;
	struct mt_document document;
} taught;

static void make_taught(void)
{
	memset(&taught, 0, sizeof taught);
	taught.targets[1] = MT_NO_TARGET;
	taught.teacher[0].ids[0] = 7;
	taught.teacher[0].ids[1] = 9;
	for (int i = 0; i <= TOP; i++) taught.teacher[0].p[i] = 1.0f / (TOP + 1);
	taught.objective = (struct mt_objective){.kind = MT_KD, .scale = 1, .temperature = 1};
	m = (struct mt_msg){.batch = {.rows = 1, .seq = 2, .weights = 1, .documents = 1, .top = TOP}};
}

static void say_of(const char *what, const void *of, size_t room)
{
	int rc = batch_fits(&m, room);
	if (!rc) rc = batch_check(&m, of, VOCAB);
	printf("%s: %s\n", what, rc ? mt_errmsg() : "valid");
}

static void say(const char *what) { say_of(what, &block, MT_BATCH_ROOM + N * MT_BATCH_TOKEN); }

#define TAUGHT(change) \
	do { \
		make_taught(); \
		change; \
		say_of(#change, &taught, MT_BATCH_ROOM + 2 * (MT_BATCH_TOKEN + 4 * MT_TEACHER_WORDS(TOP))); \
	} while (0)

#define SPOILT(kind, change) \
	do { \
		make(kind); \
		change; \
		say(#change); \
	} while (0)

int main(void)
{
	struct mt_document *d = block.documents;
	make(MT_PG);
	say("pg");
	for (uint32_t kind = MT_DPO; kind < MT_KD; kind++) {
		make(kind);
		if (batch_bytes(&m) != sizeof block) return 1;
		d[2].side = MT_REJECTED; /* in either order */
		d[3].side = MT_CHOSEN;
		say(mt_losses[kind].unit == MT_PAIRS ? "a pair" : "answers");
	}
	SPOILT(MT_DPO, m.batch.documents = 0);
	SPOILT(MT_DPO, m.batch.documents = 3);
	SPOILT(MT_DPO, m.batch.documents = 2);
	SPOILT(MT_DPO, m.batch.documents = N + 1);
	SPOILT(MT_DPO, m.batch.weights = 0);
	SPOILT(MT_DPO, block.objective.kind = MT_NLL);
	SPOILT(MT_DPO, block.objective.kind = MT_LOSS_KINDS);
	SPOILT(MT_DPO, block.objective.beta = NAN);
	SPOILT(MT_DPO, block.old[7] = INFINITY);
	SPOILT(MT_DPO, d[1].side = MT_CHOSEN);
	SPOILT(MT_DPO, d[1].side = 3);
	SPOILT(MT_PG, d[1].side = MT_CHOSEN);
	SPOILT(MT_KTO, d[1].side = MT_SIDE_NONE);
	SPOILT(MT_KTO, block.targets[9] = block.targets[10] = MT_NO_TARGET; m.batch.documents = 3);
	SPOILT(MT_KTO, block.targets[3] = block.targets[4] = MT_NO_TARGET);
	SPOILT(MT_DPO, d[1].ref = -INFINITY);
	SPOILT(MT_DPO, d[3].begin = N);
	SPOILT(MT_DPO, d[3].begin = UINT32_MAX);
	SPOILT(MT_DPO, d[2].begin = 3);
	SPOILT(MT_DPO, d[2].begin = 7);
	SPOILT(MT_DPO, d[1].begin = 6; d[2].begin = 9; m.batch.documents = 2);
	SPOILT(MT_DPO, block.targets[3] = block.targets[4] = MT_NO_TARGET);
	SPOILT(MT_PG, d[0].begin = 3; d[1].begin = 6; m.batch.documents = 2);
	SPOILT(MT_PG, block.targets[3] = block.targets[4] = MT_NO_TARGET);
	SPOILT(MT_PG, block.objective.kind = MT_KD);
	TAUGHT(if (batch_bytes(&m) != sizeof taught) return 1);
	TAUGHT(taught.objective.kind = MT_PG);
	TAUGHT(taught.teacher[0].ids[1] = 7);
	TAUGHT(taught.teacher[0].ids[1] = VOCAB);
	TAUGHT(taught.teacher[0].p[2] = NAN);
	TAUGHT(taught.teacher[0].p[0] = -0.5f);
	TAUGHT(taught.objective.temperature = NAN);
	TAUGHT(m.batch.top = 1 << 30);
	return 0;
}
