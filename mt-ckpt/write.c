/* write.c: writes a run's arrays into a directory, and the small files beside them. Threads take chunks of files, in
 * the order in which the units whose tensors they hold are updated next. */
#include <stdlib.h>
#include "ckpt.h"
#include "cli/cli.h"
#include "mt/control.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/tier.h"

/* ---- chunks */

static uint32_t unit_at(const struct shards *set, uint32_t shard, uint64_t at)
{
	return set->table[shards_tensor(set, shard, at)].unit;
}

/* The next chunks: those of one file */
static void add_chunks(struct writer *w, enum array a, uint32_t shard)
{
	const struct shards *set = &w->set[a];
	const struct shard *s = &set->shard[shard];
	for (uint64_t at = 0; at < s->bytes; at += IO_BYTES) {
		uint64_t end = s->bytes - at < IO_BYTES ? s->bytes : at + IO_BYTES,
				 from = at > s->header_bytes ? at : s->header_bytes;
		struct chunk c = {.array = a, .shard = shard, .number = (uint32_t)(at / IO_BYTES), .first = 1};
		if (end > s->header_bytes) {
			c.first = unit_at(set, shard, from - s->header_bytes);
			c.last = unit_at(set, shard, end - 1 - s->header_bytes);
		}
		c.turn = mt_turn_of_unit(mt_geometry(w->run), c.last);
		for (uint32_t u = c.first; u <= c.last; u++) w->left[u]++;
		w->chunks[w->n_chunks++] = c;
	}
}

/* So that the first units are whole first, and that threads write to different files where they can */
static int by_turn(const void *x, const void *y)
{
	const struct chunk *a = x, *b = y;
	if (a->turn != b->turn) return a->turn < b->turn ? -1 : 1;
	if (a->first != b->first) return a->first < b->first ? -1 : 1;
	if (a->shard != b->shard) return a->shard < b->shard ? -1 : 1;
	if (a->number != b->number) return a->number < b->number ? -1 : 1;
	return a->array < b->array ? -1 : a->array > b->array;
}

static int make_chunks(struct writer *w)
{
	size_t n = 0;
	for (int a = 0; a < ARRAYS; a++)
		for (uint32_t i = 0; i < w->set[a].n_shards; i++) n += (w->set[a].shard[i].bytes + IO_BYTES - 1) / IO_BYTES;
	w->chunks = calloc(n + 1, sizeof *w->chunks);
	w->left = calloc(mt_control(w->run)->n_units + 1, sizeof *w->left);
	if (!w->chunks || !w->left) return mt_fail(MT_EX_NOMEM, "no memory for the tables of a checkpoint");
	for (enum array a = 0; a < ARRAYS; a++)
		for (uint32_t i = 0; i < w->set[a].n_shards; i++) add_chunks(w, a, i);
	qsort(w->chunks, w->n_chunks, sizeof *w->chunks, by_turn);
	return 0;
}

/* Keep only those tensors of the table of lo, m or v that are written here */
static uint32_t leave_out(const struct writer *w, enum array a, struct mt_tensor *table, uint32_t n)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct mt_unit *unit = mt_unit(w->run, table[i].unit);
		bool here = w->what == WRITE_ALL || !mt_on_tier(w->run, a == ARRAY_LO ? unit->lo : unit->m);
		if (here && mt_trained(unit)) table[kept++] = table[i];
	}
	return kept;
}

static int begin_weights(struct writer *w, enum st_dtype dtype, uint64_t limit)
{
	const struct mt_control *c = mt_control(w->run);
	uint64_t router = c->router_dtype != MT_BF16;
	uint64_t fp32 = 1ull << MT_T_CORRECTION | 1ull << MT_T_DT_BIAS | router << MT_T_ROUTER;
	int rc = mt_layout_files(&w->files, mt_geometry(w->run), (uint32_t)c->form);
	uint32_t n = w->files.n_tensors;
	if (rc == 0 && w->carried.record) rc = carried_table(&w->carried, &w->files, &w->table, &n);
	if (rc == 0)
		rc = shards_begin(&w->set[ARRAY_W], w->dir, st_sets[ARRAY_W], dtype, fp32,
			w->table ? w->table : w->files.tensors, n, limit);
	if (rc == 0 && w->carried.n) shards_add(&w->set[ARRAY_W], &w->carried.other);
	return rc;
}

/* The files of lo, m or v */
static int begin_state(struct writer *w, enum array a, uint64_t limit)
{
	const struct mt_control *c = mt_control(w->run);
	const struct mt_layout all = {.n_units = c->n_units,
		.n_tensors = c->n_tensors,
		.units = (struct mt_unit *)mt_unit(w->run, 0),
		.tensors = (struct mt_tensor *)mt_tensor(w->run, 0)};
	uint32_t node = mt_node(w->run), nodes = mt_nodes(w->run);
	enum st_dtype dtype = array_dtype(a, c->state);
	struct parts *l = &w->parts[a];
	parts_set(w->set_name[a], a, node, nodes);
	int rc = parts_list(l, &all, node, node + 1, nodes, dtype);
	if (rc < 0) return rc;
	l->n = leave_out(w, a, l->v, l->n);
	return shards_begin(&w->set[a], w->dir, w->set_name[a], dtype, l->each ? UINT64_MAX : 0, l->v, l->n,
		nodes > 1 ? UINT64_MAX : limit);
}

int writer_begin(struct writer *w, struct mt_run *run, struct out_dir *dir, enum mt_dtype dtype, enum write_what what,
	uint64_t limit, uint64_t threads)
{
	bool bf16 = mt_control(run)->dtype == MT_BF16, full = what != WRITE_MODEL;
	int rc = 0;
	*w = (struct writer){.run = run, .dir = dir, .dtype = dtype, .what = what, .opening = PTHREAD_MUTEX_INITIALIZER};
	w->has[ARRAY_W] = !full || !mt_node(run);
	w->has[ARRAY_LO] = full && bf16;
	w->has[ARRAY_M] = full;
	w->has[ARRAY_V] = full && mt_state_arrays(mt_control(run)->optim) == 2;
	dir->no_sums = !full;
	if (w->has[ARRAY_W]) rc = carried_open(&w->carried, run);
	if (rc == 0 && w->has[ARRAY_W]) rc = begin_weights(w, array_dtype(ARRAY_W, dtype), limit);
	for (enum array a = ARRAY_LO; a < ARRAYS && rc == 0; a++)
		if (w->has[a]) rc = begin_state(w, a, limit);
	if (rc == 0) rc = make_chunks(w);
	if (rc == 0) rc = work_begin(&w->work, threads);
	if (rc < 0) writer_drop(w);
	return rc;
}

/* ---- one piece */

/* n elements of the file's tensor, from `from` on, of the array that begins with the tensor's first element in the run:
 * there, or of matrices that are transposed in the file, in `out` */
static const void *in_order(const struct writer *w, const struct mt_tensor *t, uint64_t from, uint64_t n,
	const void *array, uint64_t elem, void *out)
{
	uint64_t rows = t->shape[0], cols = t->shape[1], base, end = from + n, at, some; /* of the file */
	if (!t->transposed) {
		mt_tensor_piece(mt_geometry(w->run), t, from, &at, &some);
		return (const uint8_t *)array + at * elem;
	}
	for (uint64_t i = from; i < end; i = at) { /* an expert */
		uint64_t first = i / (rows * cols) * rows * cols;
		at = first + rows * cols < end ? first + rows * cols : end;
		mt_tensor_piece(mt_geometry(w->run), t, first, &base, &some);
		for (uint64_t c = 0; c < cols; c++)
			for (uint64_t r = (i - first + cols - 1 - c) / cols; first + r * cols + c < at; r++) {
				uint64_t to = first + r * cols + c - from, of = base + c * rows + r;
				if (elem == 2) ((uint16_t *)out)[to] = ((const uint16_t *)array)[of];
				else ((uint32_t *)out)[to] = ((const uint32_t *)array)[of];
			}
	}
	return out;
}

/* n weights of the file's tensor, in the file's dtype: in the run, or converted in buf */
static const void *weights(const struct writer *w, const struct mt_tensor *t, uint64_t from, uint64_t n,
	enum mt_dtype dtype, uint8_t *buf)
{
	const struct mt_unit *unit = mt_unit(w->run, t->unit);
	bool bf16 = mt_control(w->run)->dtype == MT_BF16;
	uint64_t elem = bf16 ? 2 : 4;
	const uint8_t *array = (const uint8_t *)mt_at(w->run, unit->w) + t->off * elem;
	uint8_t *low = buf + BLOCK_BYTES + BLOCK_BYTES / 2;
	const void *own = in_order(w, t, from, n, array, elem, buf + BLOCK_BYTES);
	if (mt_control(w->run)->dtype == dtype) return own;
	if (!bf16) convert_round((uint16_t *)buf, own, n);
	else if (mt_trained(unit) || t->exact)
		convert_join((uint32_t *)buf, own,
			in_order(w, t, from, n, (const int16_t *)mt_at(w->run, unit->lo) + t->off, 2, low), n);
	else convert_join((uint32_t *)buf, own, memset(low, 0, n * 2), n);
	return buf;
}

/* Write the chunk's next bytes of a tensor, which begin at its byte `from` in the file, at most `bytes`. */
static int write_piece(struct writer *w, enum array a, uint32_t tensor, struct out_chunk *out, uint64_t from,
	uint64_t bytes, void *buf)
{
	const struct mt_tensor *t = &w->set[a].table[tensor];
	const struct mt_unit *unit = mt_unit(w->run, t->unit);
	const uint64_t off[ARRAYS] = {unit->w, unit->lo, unit->m, unit->v};
	const uint8_t *array = mt_at(w->run, off[a]);
	uint64_t elem = shards_elem(&w->set[a], tensor), at, n;
	const void *data;
	mt_tensor_piece(mt_geometry(w->run), t, from / elem, &at, &n);
	at += t->off;
	if (t->transposed) n = BLOCK_BYTES / 4;
	if (n > bytes / elem) n = bytes / elem;
	if (a == ARRAY_W) {
		enum mt_dtype dtype = elem == 4 ? MT_FP32 : MT_BF16;
		data = weights(w, t, from / elem, n, dtype, buf);
		nonfinite_count(&w->seen, tensor, t->name, dtype, data, n);
	} else
		data = array + (w->parts[a].each == 2 && t->exact ? mt_scales_at(unit->elems) : 0) +
			at * elem; /* scales follow the codes */
	return out_write(out, data, n * elem);
}

/* ---- one chunk */

static int write_chunk(struct writer *w, const struct chunk *c, struct out_chunk *out, void *buf)
{
	const struct shards *set = &w->set[c->array];
	const struct shard *s = &set->shard[c->shard];
	int rc = 0;
	while (out->at < out->end && rc == 0) {
		if (w->awaited && !w->dir->cached && w->awaited(w->arg)) w->dir->cached = true;
		/* blocks end at multiples of their size in the file: pages of it are written at once */
		uint64_t room = BLOCK_BYTES - out->at % BLOCK_BYTES, at = out->at;
		if (room > out->end - at) room = out->end - at;
		if (at < s->header_bytes) {
			rc = out_write(out, s->header + at, room < s->header_bytes - at ? room : s->header_bytes - at);
			continue;
		}
		uint32_t tensor = shards_tensor(set, c->shard, at - s->header_bytes);
		uint64_t from = at - s->header_bytes - set->begin[tensor];
		uint64_t rest = set->table[tensor].n * shards_elem(set, tensor) - from;
		rc = write_piece(w, c->array, tensor, out, from, room < rest ? room : rest, buf);
	}
	return rc;
}

/* One of the chunk's parts of a unit is written */
static int count_unit(struct writer *w, uint32_t unit)
{
	return atomic_fetch_sub(&w->left[unit], 1) == 1 && w->copied ? w->copied(w->arg, unit) : 0;
}

static int copy_chunk(struct writer *w, const struct chunk *c, void *buf)
{
	struct shards *set = &w->set[c->array];
	struct out_chunk out;
	int rc;
	if (w->stoppable && mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
	mt_stage_activity(w->run, MT_ACT_SAVE, c->last);
	pthread_mutex_lock(&w->opening);
	rc = shards_open(set, c->shard);
	pthread_mutex_unlock(&w->opening);
	if (rc == 0) rc = out_chunk_begin(&out, set->shard[c->shard].file, c->number, (uint8_t *)buf + WORK_BYTES, false);
	if (rc == 0) rc = out_chunk_end(&out, write_chunk(w, c, &out, buf));
	for (uint32_t u = c->first; u <= c->last && rc == 0; u++) rc = count_unit(w, u);
	return rc;
}

/* ---- all */

static int chunk_task(void *arg, int64_t task, void *buf)
{
	struct writer *w = arg;
	return copy_chunk(w, &w->chunks[task], buf);
}

int writer_units(struct writer *w)
{
	int rc = 0;
	for (uint32_t u = 0; u < mt_control(w->run)->n_units && rc == 0; u++) /* units without tensors */
		if (w->left[u] == 0 && w->copied) rc = w->copied(w->arg, u);
	if (rc == 0) rc = work_run(&w->work, w->n_chunks, chunk_task, w);
	out_sort(w->dir); /* threads made them in any order */
	return rc;
}

int writer_end(struct writer *w)
{
	size_t bytes;
	const char *loaded = mt_config_text(w->run, &bytes);
	char *config = NULL;
	int rc = 0;
	for (int a = 0; a < ARRAYS && rc == 0; a++) rc = shards_index(&w->set[a]);
	if (rc == 0) rc = config_export(mt_geometry(w->run), loaded, bytes, w->dtype, w->carried.dropped, &config);
	if (rc == 0) rc = out_text(w->dir, "config.json", config, strlen(config));
	if (rc == 0 && w->carried.n) rc = carried_write(&w->carried, w->dir, w->what != WRITE_MODEL);
	if (rc == 0) rc = mt_files_each(w->run, kept_write, w->dir);
	/* The kept files' region may have been replaced by another user's file: that must not prevent a save. */
	if (rc == 1) {
		mt_say("warning: written without the tokenizer's files: %s", mt_errmsg());
		rc = 0;
	}
	free(config);
	return rc;
}

void writer_drop(struct writer *w)
{
	for (int a = 0; a < ARRAYS; a++) {
		shards_drop(&w->set[a]);
		free(w->parts[a].v);
		w->parts[a] = (struct parts){0};
	}
	carried_close(&w->carried);
	mt_layout_release(&w->files);
	free(w->table);
	free(w->chunks);
	free(w->left);
	w->table = NULL;
	w->chunks = NULL;
	w->left = NULL;
	work_end(&w->work);
}
