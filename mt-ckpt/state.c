/* state.c: what a run holds beside its arrays, and whether they can be read. */
#include <stdlib.h>
#include "ckpt.h"

int state_tensors(struct mt_run *run, struct mt_tensor **out)
{
	const struct mt_control *c = mt_control(run);
	uint32_t n = c->n_tensors, next = 0;
	struct mt_tensor *t = malloc(n * sizeof *t);
	uint64_t product;

	if (!t)
		return mt_fail(MT_EX_NOMEM, "no memory for a table of tensors");
	for (uint32_t i = 0; i < n; i++)
		t[i] = *mt_tensor(run, i);
	for (uint32_t u = 0; u < c->n_units; u++) {
		const struct mt_unit *unit = mt_unit(run, u);
		bool ok = unit->first_tensor == next && unit->tensors <= n - next;
		for (uint32_t i = next; ok && i < next + unit->tensors; i++)
			ok = t[i].unit == u && memchr(t[i].name, 0, sizeof t[i].name) && t[i].ndim >= 1 && t[i].ndim <= 2 &&
			     !__builtin_mul_overflow(t[i].shape[0], t[i].shape[1], &product) && product == t[i].n &&
			     t[i].off <= unit->elems && t[i].n && t[i].n <= unit->elems - t[i].off;
		if (!ok) {
			free(t);
			return mt_fail(MT_EX_DATA, "run '%s': its table of tensors is damaged", c->name);
		}
		next += unit->tensors;
	}
	*out = t;
	return 0;
}

int state_weights(struct mt_run *run, const char *name)
{
	switch (mt_run_state(run)) {
	case MT_FILLED:
		return mt_run_check(run);
	case MT_FILLING:
		return mt_fail(MT_EX_BUSY, "run '%s' is being filled", name);
	case MT_DIRTY:
		return mt_fail(MT_EX_DATA, "run '%s': its store is dirty (an update was cut short): load a checkpoint", name);
	case MT_GONE:
		return mt_fail(MT_EX_NOINPUT, "no such run: '%s'", name);
	default:
		return mt_fail(MT_EX_DATA, "run '%s' has no weights: mt-store init or mt-ckpt load", name);
	}
}

json_t *state_hyper(struct mt_run *run, uint64_t step)
{
	for (uint32_t i = 0; i < 2; i++) {
		const struct mt_txn *t = mt_txn(run, i);
		uint64_t word = mt_txn_word(run, i);
		if (mt_word_phase(word) < MT_APPLY || t->kind != MT_TRAIN || t->step != step || t->micros == 0)
			continue;
		json_t *h = json_pack("{s:f, s:[f, f], s:f, s:f, s:f, s:I, s:I}", "lr", t->lr, "betas", t->beta1, t->beta2,
				      "eps", t->eps, "weight_decay", t->decay, "clip", t->clip, "micros", (json_int_t)t->micros,
				      "targets", (json_int_t)t->targets);
		atomic_thread_fence(memory_order_acquire);      /* the fields were read before the word is read again */
		uint64_t now = mt_txn_word(run, i);
		if (mt_word_k(now) == mt_word_k(word))
			return h;
		json_decref(h);
	}
	return NULL;
}

/* What the record's table holds by now; what a stage enters meanwhile, no step before this one was computed with. */
static json_t *state_choices(struct mt_run *run)
{
	const struct mt_choice *e = NULL;
	json_t *all = json_object();
	char text[2 * MT_CHOICE_VALUE + 1];

	for (int i = 0; i < MT_CHOICES && (e = mt_choice_next(run, e)); i++) {
		char key[MT_CHOICE_KEY + 1] = "";

		memcpy(key, e->key, sizeof e->key);
		text[0] = 0;
		for (uint32_t b = 0; b < e->bytes && b < MT_CHOICE_VALUE; b++)
			snprintf(text + 2 * b, 3, "%02x", e->value[b]);
		json_object_set_new(all, key, json_string(text));
	}
	return all;
}

struct run_json state_now(struct mt_run *run)
{
	struct mt_control *c = mt_control(run);
	struct mt_committed now;
	struct run_json out = { .dtype = (enum mt_dtype)c->dtype };

	mt_run_committed(run, &now);
	out.step = now.step;
	out.t = now.t;
	out.position = now.position;
	/* acquire: the record's fields stand before `set` says so */
	out.has_record = atomic_load_explicit(&c->record.set, memory_order_acquire);
	if (out.has_record) {
		memcpy(&out.record, &c->record, sizeof out.record);
		out.choices = state_choices(run);
	}
	memcpy(out.run_id, c->h.run_id, sizeof out.run_id);
	out.hyper = state_hyper(run, now.step);
	return out;
}
