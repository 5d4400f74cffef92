/* ckpt-dump: prints the content of a run for comparison, or changes it.
 *
 *     ckpt-dump RUN                   step, t, position, reproducibility record, a hash of every array of every unit
 *     ckpt-dump RUN grads FILE        gradients as fp32 safetensors with Hugging Face's names (tied: the sum of both)
 *     ckpt-dump RUN poke TENSOR I BITS  element I of a weight gets this fp32 pattern (hexadecimal)
 *     ckpt-dump RUN scribble SEED STEP  fill the run with a pseudo-random state at STEP; no stage may be there
 *     ckpt-dump RUN advance SEED STEP   the same state by a committed step, as a stage that is there sees it
 *     ckpt-dump RUN state N           set the run's state (enum mt_state)
 *     ckpt-dump RUN open PHASE        open the next step in this phase (enum mt_phase), without any stage
 */
#include <endian.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <xxhash.h>
#include "ckpt-common.h"
#include "cli/cli.h"
#include "mt/choices.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "mt/wait.h"

static void print_array(struct mt_run *run, uint32_t u, const char *name, uint64_t off, uint64_t bytes)
{
	if (off) printf("unit %u %s %016" PRIx64 "\n", u, name, XXH3_64bits(mt_at(run, off), bytes));
}

static void print_run(struct mt_run *run)
{
	const struct mt_control *c = mt_control(run);
	const struct mt_record *r = &c->record;
	struct mt_committed now;
	mt_run_committed(run, &now);
	mt_must(mt_tier_map(run, false));
	const struct mt_position *p = &now.position;
	printf("state %d\nstep %" PRIu64 " t %" PRIu64 "\n", (int)mt_run_state(run), now.step, now.t);
	printf("position %" PRIu64 " %" PRIu64 " %016" PRIx64 " %016" PRIx64 " %u %u %u %u %" PRIu64 "\n", p->records,
		p->offset, p->hash, p->hash_cut, p->carry, p->seq, p->batch, p->pack, p->tokens);
	printf("record %u %u %u %u '%s' '%s' '%s' '%s'\n", r->set, r->chunk_tokens, r->head_tokens, r->pass_rows, r->device,
		r->gemm, r->attention, r->machine);
	for (const struct mt_choice *e = NULL; (e = mt_choice_next(run, e));)
		printf("choice '%s' %u %016" PRIx64 "\n", e->key, e->bytes, XXH3_64bits(e->value, e->bytes));
	for (uint32_t u = 0; u < c->n_units; u++) {
		const struct mt_unit *unit = mt_unit(run, u);
		uint64_t w = c->dtype == MT_BF16 ? 2 : 4;
		printf("unit %u version %" PRIu64 " pin %" PRIu64 "\n", u, mt_version(run, u), unit->pin);
		print_array(run, u, "w", unit->w, unit->elems * w);
		if (mt_trained(unit)) print_array(run, u, "lo", unit->lo, unit->elems * 2);
		print_array(run, u, "m", unit->m, mt_moment_bytes(c->state, unit->elems));
		print_array(run, u, "v", unit->v, mt_moment_bytes(c->state, unit->elems));
	}
}

static float grad_at(struct mt_run *run, const struct mt_unit *unit, uint64_t i)
{
	bool bf16 = mt_control(run)->grad == MT_BF16;
	float sum = 0;
	for (int end = 0; end < 2 && unit->g[end]; end++)
		sum += bf16 ? mt_float((uint32_t)((uint16_t *)mt_at(run, unit->g[end]))[i] << 16)
					: ((float *)mt_at(run, unit->g[end]))[i];
	return sum;
}

static void write_grads(struct mt_run *run, const char *path)
{
	uint32_t tensors = mt_control(run)->n_tensors;
	json_t *root = json_object();
	uint64_t at = 0;
	if (mt_control(run)->grad == MT_NONE) mt_die(MT_EX_USAGE, "a run with --grad none has no gradients");
	for (uint32_t i = 0; i < tensors; i++) {
		const struct mt_tensor *t = mt_tensor(run, i);
		json_t *shape = json_array();
		uint64_t dims[4];
		mt_tensor_dims(t, dims);
		for (uint32_t d = 0; d < t->ndim; d++) json_array_append_new(shape, json_integer((json_int_t)dims[d]));
		json_object_set_new(root, t->name,
			json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets", (json_int_t)at,
				(json_int_t)(at + t->n * 4)));
		at += t->n * 4;
	}
	char *text = json_dumps(root, JSON_COMPACT);
	uint64_t n = htole64(strlen(text));
	FILE *f = fopen(path, "w");
	if (!f || fwrite(&n, 8, 1, f) != 1 || fputs(text, f) < 0) mt_die(MT_EX_IO, "%s: cannot be written", path);
	for (uint32_t i = 0; i < tensors; i++) {
		const struct mt_tensor *t = mt_tensor(run, i);
		for (uint64_t e = 0, from, follow; e < t->n; e++) {
			mt_tensor_piece(mt_geometry(run), t, e, &from, &follow);
			float g = grad_at(run, mt_unit(run, t->unit), t->off + from);
			fwrite(&g, 4, 1, f);
		}
	}
	if (fclose(f)) mt_die(MT_EX_IO, "%s: cannot be written", path);
	free(text);
	json_decref(root);
}

static void poke(struct mt_run *run, const char *name, uint64_t i, uint32_t bits)
{
	for (uint32_t k = 0; k < mt_control(run)->n_tensors; k++) {
		const struct mt_tensor *t = mt_tensor(run, k);
		const struct mt_unit *unit = mt_unit(run, t->unit);
		if (strcmp(t->name, name) || i >= t->n) continue;
		if (mt_control(run)->dtype == MT_BF16) {
			((uint16_t *)mt_at(run, unit->w))[t->off + i] = mt_hi(bits);
			((int16_t *)mt_at(run, unit->lo))[t->off + i] = mt_lo(bits);
		} else ((uint32_t *)mt_at(run, unit->w))[t->off + i] = bits;
		return;
	}
	mt_die(MT_EX_NOINPUT, "no tensor '%s' with such an element", name);
}

static void scribble_run(struct mt_run *run, uint64_t seed, uint64_t step)
{
	struct mt_control *c = mt_control(run);
	struct mt_position position = some_position(seed);
	mt_fill_begin(run);
	mt_must(mt_tier_map(run, true));
	for (uint32_t u = 0; u < c->n_units; u++) scribble(run, u, seed);
	mt_must(mt_tier_seal(run, step ? step - 1 : 0));
	mt_run_reset(run, step, step ? step - 1 : 0, &position);
	c->record.chunk_tokens = 512;
	c->record.head_tokens = 64;
	snprintf(c->record.device, sizeof c->record.device, "cpu");
	snprintf(c->record.gemm, sizeof c->record.gemm, "some gemm");
	snprintf(c->record.attention, sizeof c->record.attention, "some attention");
	snprintf(c->record.machine, sizeof c->record.machine, "some machine");
	for (int i = 0; i < 3; i++) {
		uint8_t value[MT_CHOICE_VALUE];
		char key[MT_CHOICE_KEY];
		memset(value, 7 * i + (int)seed, sizeof value);
		if (snprintf(key, sizeof key, "operation %0*d", 12 + 90 * i / 2, i) >= (int)sizeof key) abort();
		mt_must(mt_choice_enter(run, key, value, 10 + 55 * (size_t)i));
	}
	atomic_store(&c->record.set, 1);
	mt_fill_end(run, MT_FILLED);
}

static void advance_run(struct mt_run *run, uint64_t seed, uint64_t step)
{
	uint32_t k = mt_txn_newest(run) + 1;
	struct mt_txn *t = mt_txn(run, k);
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++) {
		scribble(run, u, seed);
		atomic_store(&mt_unit(run, u)->version, step);
	}
	t->kind = MT_TRAIN;
	t->step = step;
	t->t = step ? step - 1 : 0;
	t->position = some_position(seed);
	atomic_store(&t->word, mt_word(k, mt_attempt_next(run), MT_LOGGED));
	mt_wake(run);
}

static void open_step(struct mt_run *run, enum mt_phase phase)
{
	uint32_t k = mt_txn_newest(run) + 1;
	struct mt_txn *t = mt_txn(run, k);
	t->kind = MT_TRAIN;
	t->step = mt_run_step(run) + 1;
	atomic_store(&t->word, mt_word(k, mt_attempt_next(run), phase));
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[2] : "";
	struct mt_run *run;
	if (argc < 2)
		mt_die(MT_EX_USAGE,
			"usage: ckpt-dump RUN [grads FILE | poke TENSOR I BITS | scribble SEED STEP | advance SEED STEP | "
			"state N | open PHASE]");
	/* without its rings: mt_run_reset would clear them, and a saver may be using them */
	mt_must(mt_run_open(&run, argv[1], MT_RUN_WEIGHTS));
	if (argc == 2) print_run(run);
	else if (!strcmp(what, "grads") && argc == 4) write_grads(run, argv[3]);
	else if (!strcmp(what, "poke") && argc == 6)
		poke(run, argv[3], strtoull(argv[4], NULL, 10), (uint32_t)strtoul(argv[5], NULL, 16));
	else if (!strcmp(what, "scribble") && argc == 5)
		scribble_run(run, strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
	else if (!strcmp(what, "advance") && argc == 5)
		advance_run(run, strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
	else if (!strcmp(what, "state") && argc == 4) mt_run_set_state(run, (enum mt_state)atoi(argv[3]));
	else if (!strcmp(what, "open") && argc == 4) open_step(run, (enum mt_phase)atoi(argv[3]));
	else mt_die(MT_EX_USAGE, "unknown command '%s'", what);
	mt_run_close(run);
	return 0;
}
