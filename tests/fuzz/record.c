/* Reading of records by mt-step and mt-feed, and packing into rows */
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "pack.h"

enum { SEQ = 8, TAUGHT = 3 };

/* Each answer has a target, and a pair is in one row, one side beside the other. */
static void check_documents(const struct packer *p, const uint32_t *targets)
{
	for (uint32_t i = 0; i < p->n_in_row; i++) {
		const struct mt_document *d = &p->in_row[i], *next = d + 1;
		bool last = i + 1 == p->n_in_row;
		uint32_t end = last ? SEQ : next->begin, n = 0;
		if (d->begin >= end || !isfinite(d->ref)) abort();
		for (uint32_t t = d->begin; t < end; t++) n += targets[t] != MT_NO_TARGET;
		bool pair = !last && d->side + next->side == MT_CHOSEN + MT_REJECTED && d->side && next->side;
		if (d->side && !n) abort();
		if (!p->loss) continue;
		enum mt_objective_kind loss = p->loss->kind;
		enum mt_loss_unit unit = mt_losses[loss].unit;
		if (unit == MT_PAIRS && i % 2 == 0 && !pair) abort();
		bool alone = i == 0 || !pair;
		if (unit != MT_TARGETS ? !d->side : d->side && (loss != MT_NLL || d->side != MT_CHOSEN || !alone)) abort();
	}
}

/* Of each target, a distribution over ids of the vocabulary that ascend */
static void check_teacher(const uint32_t *teacher, uint32_t t)
{
	const uint32_t *ids = teacher + t * MT_TEACHER_WORDS(TAUGHT);
	float p[TAUGHT + 1];
	double sum = 0;
	memcpy(p, ids + TAUGHT, sizeof p);
	for (int i = 0; i <= TAUGHT; i++) {
		if (i < TAUGHT && (ids[i] >= 1000 || (i && ids[i] <= ids[i - 1]))) abort();
		sum += (double)p[i];
	}
	if (!(fabs(sum - 1) < 1e-3)) abort();
}

/* mt-score --join copies records as they are read */
static uint64_t copied;
static void copy(const uint32_t *words, size_t n)
{
	if (n != 1 + (size_t)(words[0] & ~RECORD_GROUP)) abort();
	for (size_t i = 0; i < n; i++) copied += words[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes in = {data, size};
	uint32_t row[3 * SEQ], x = take_u32(&in), how = (1 + x % 3) | x / 3 % 3 << 8;
	struct record_reader r;
	struct packer p;
	int fd = memfd_create("records", 0);
	if (fd < 0 || (in.n && write(fd, in.p, in.n) != (ssize_t)in.n) || lseek(fd, 0, SEEK_SET)) abort();
	if (record_open(&r, fd, "x")) abort();
	if (x / 9 / MT_LOSS_KINDS / 2 % 2) r.whole = copy;
	if (packer_open(&p, &r, how, SEQ, &(struct vocabulary){.size = 1000, .top = TAUGHT}) == 0) {
		struct place places[SEQ] = {0}, last = {0};
		float weights[SEQ], old[SEQ];
		struct mt_document documents[SEQ];
		struct objective loss = {.kind = x / 9 % MT_LOSS_KINDS, .option[MT_TEMPERATURE] = 1, .option[MT_REST] = 1};
		uint32_t teacher[SEQ * MT_TEACHER_WORDS(TAUGHT)];
		p.places = places;
		p.weights = weights;
		p.old = old;
		p.teacher = teacher;
		p.in_row = documents;
		if (x / 9 / MT_LOSS_KINDS % 2) p.loss = &loss;
		while (packer_row(&p, row, row + SEQ, row + 2 * SEQ) > 0) {
			check_documents(&p, row + SEQ);
			for (uint32_t t = 0; t < SEQ; t++) {
				if (row[t] >= 1000 || (row[SEQ + t] >= 1000 && row[SEQ + t] != MT_NO_TARGET) || row[2 * SEQ + t] > t)
					abort();
				if (p.loss && loss.kind == MT_KD && row[SEQ + t] != MT_NO_TARGET) check_teacher(teacher, t);
				if (!isfinite(weights[t]) || !isfinite(old[t]) || (!p.weighted && weights[t] != 1)) abort();
				struct place now = places[t];
				if (!now.record) continue;
				if (!t && now.document > 1) abort(); /* a group is never in two rows */
				if (now.record == last.record ? now.document < last.document : now.document > 1) abort();
				last = now;
			}
		}
		packer_close(&p);
	}
	record_close(&r);
	close(fd);
	return 0;
}
