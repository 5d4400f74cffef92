/* resize.c: convert --resize-vocab: a model's directory with more or fewer rows of tokens, as transformers'
 * resize_token_embeddings makes it. Embeddings, LM head and its bias, the table of the blocks' own inputs, and what
 * layers of multi-token prediction have of these get the rows; all other bytes stay as they are.
 *
 * A new row is the mean of all old ones. transformers draws it from a normal distribution around that mean, with 1e-9
 * times the covariance of the old rows, or takes the mean where that covariance is not positive definite in fp32. */
#include <stdlib.h>

#include "ckpt.h"
#include "model/bf16.h"
#include "model/half.h"
#include "model/hfjson.h"
#include "mt/run.h"

struct new_file {
	const struct source *s;
	const struct st_file *from;
	uint64_t vocab;  /* new rows */
	struct resized { /* its tensors, in the old order */
		const struct st_tensor *t;
		uint64_t at, bytes, row; /* in the new data; of a row */
		void *mean;              /* a row in the tensor's dtype; NULL: the tensor stays as it is */
	} * v;
	char *header;
	uint64_t header_bytes, data_bytes;
};

static int no_memory(void) { return mt_fail(MT_EX_NOMEM, "no memory for the rows of a vocabulary"); }

static bool has_rows_of_tokens(const struct source *s, const struct st_entry *e)
{
	const struct st_tensor *t = e->tensor;
	for (uint32_t i = 0; i < s->as_read.n_tensors; i++) {
		uint32_t role = s->as_read.tensors[i].role;
		if (s->found[ARRAY_W][i] == e)
			return role == MT_T_EMBED || role == MT_T_HEAD || role == MT_T_HEADB || role == MT_T_PLE_TABLE;
	}
	if (e == model_head(&s->model[ARRAY_W], head_tensor_name(&s->geo))) return true; /* a tied one */
	return t->ndim == 2 && t->shape[0] == s->geo.vocab &&
		(ends_with(t->name, ".embed_tokens.weight") || ends_with(t->name, ".shared_head.head.weight"));
}

static int take_mean(const struct st_entry *e, struct resized *r)
{
	const struct st_tensor *t = e->tensor;
	uint64_t cols = r->row / t->elem;
	double *sum = calloc(cols, sizeof *sum);
	uint32_t *bits = malloc(cols * 4);
	r->mean = malloc(r->row);
	int rc = sum && bits && r->mean ? 0 : no_memory();
	for (uint64_t i = 0; i < t->shape[0] && rc == 0; i++) {
		rc = model_read(e, i * cols, cols, r->mean, bits);
		for (uint64_t c = 0; c < cols && rc == 0; c++) sum[c] += (double)mt_float(bits[c]);
	}
	for (uint64_t c = 0; c < cols && rc == 0; c++) {
		float f = (float)(sum[c] / (double)t->shape[0]);
		if (t->dtype == ST_F32) ((float *)r->mean)[c] = f;
		else ((uint16_t *)r->mean)[c] = t->dtype == ST_BF16 ? bf16_round(mt_bits(f)) : half_round(f);
	}
	free(sum);
	free(bits);
	return rc;
}

static int by_begin(const void *a, const void *b)
{
	uint64_t x = ((const struct resized *)a)->t->begin, y = ((const struct resized *)b)->t->begin;
	return x < y ? -1 : x > y;
}

/* Give the next tensor its place in the new file, and write that into the old one's header. */
static int place(struct new_file *f, struct resized *r)
{
	const struct st_entry *e = model_find(&f->s->model[ARRAY_W], r->t->name);
	json_t *o = json_object_get(f->from->header, r->t->name);
	int rc = 0;
	r->at = f->data_bytes;
	r->bytes = r->t->end - r->t->begin;
	if (e && e->tensor == r->t && has_rows_of_tokens(f->s, e)) {
		if (r->t->dtype != ST_F32 && r->t->dtype != ST_BF16 && r->t->dtype != ST_F16)
			return mt_fail(MT_EX_CONFIG, "%s: tensor '%s': dtype %s: load the model, and convert an export",
				f->from->name, shown(r->t->name), r->t->dtype_name);
		r->row = r->bytes / r->t->shape[0];
		r->bytes = f->vocab * r->row;
		rc = take_mean(e, r);
		json_array_set_new(json_object_get(o, "shape"), 0, json_integer((json_int_t)f->vocab));
	}
	f->data_bytes += r->bytes;
	json_put(&rc, o, "data_offsets", json_pack("[I, I]", (json_int_t)r->at, (json_int_t)f->data_bytes));
	return rc;
}

/* Bytes of the new file from `at` on, at most *got of them, which becomes how many */
static int read_new(void *arg, uint64_t at, uint64_t *got, void *buf)
{
	const struct new_file *f = arg;
	const struct resized *r = f->v;
	if (at < f->header_bytes) {
		if (*got > f->header_bytes - at) *got = f->header_bytes - at;
		memcpy(buf, f->header + at, *got);
		return 0;
	}
	at -= f->header_bytes;
	while (at >= r->at + r->bytes) r++;
	at -= r->at;
	uint64_t old = r->t->end - r->t->begin, end = at < old && old < r->bytes ? old : r->bytes;
	if (*got > end - at) *got = end - at;
	if (at < old) return file_read(f->from->fd, f->from->name, buf, *got, r->t->begin + at);
	for (uint64_t i = 0; i < *got; i++) ((uint8_t *)buf)[i] = ((uint8_t *)r->mean)[(at + i) % r->row];
	return 0;
}

static int write_file(struct new_file *f, struct out_dir *dir)
{
	struct chunks all = {.read = read_new, .arg = f, .to = dir};
	json_t *entry = NULL;
	int rc = (f->v = calloc(f->from->n + 1, sizeof *f->v)) ? 0 : no_memory();
	for (size_t i = 0; i < f->from->n && rc == 0; i++) f->v[i].t = &f->from->tensors[i];
	if (rc == 0) qsort(f->v, f->from->n, sizeof *f->v, by_begin);
	for (size_t i = 0; i < f->from->n && rc == 0; i++) rc = place(f, &f->v[i]);
	if (rc == 0) {
		f->header = shard_header(json_incref(f->from->header), 0, &f->header_bytes);
		entry = json_pack("{s:I}", "bytes", (json_int_t)(f->header_bytes + f->data_bytes));
		all.sums = calloc((f->header_bytes + f->data_bytes) / IO_BYTES + 1, sizeof *all.sums);
		rc = f->header && entry && all.sums ? chunks_add(&all, f->from->path, entry) : no_memory();
	}
	rc = chunks_pass(&all, rc);
	for (size_t i = 0; f->v && i < f->from->n; i++) free(f->v[i].mean);
	free(all.sums);
	free(f->v);
	free(f->header);
	json_decref(entry);
	return rc;
}

static void put_vocab(int *rc, json_t *o, const struct mt_geometry *g)
{
	json_put(rc, o, "vocab_size", json_integer(g->vocab));
	if (g->ple_dim) json_put(rc, o, "vocab_size_per_layer_input", json_integer(g->vocab));
	/* the embeddings' padding_idx becomes None */
	if (json_integer_value(json_object_get(o, "pad_token_id")) >= g->vocab)
		json_put(rc, o, "pad_token_id", json_null());
}

/* config.json, and the index, which may say how many bytes the tensors have */
static int write_texts(const struct source *s, const struct mt_geometry *geo, uint64_t bytes, struct out_dir *dir)
{
	const char *index = s->model[ARRAY_W].files.label;
	json_t *root, *in;
	int rc = file_read_json(s->dirfd, "config.json", &root);
	if (rc < 0) return rc;
	if ((in = json_object_get(root, "text_config"))) put_vocab(&rc, in, geo);
	if (!in || json_object_get(root, "vocab_size")) put_vocab(&rc, root, geo);
	rc = out_json(dir, "config.json", root, 2, rc);
	if (rc < 0 || !ends_with(index, ".json") || (rc = file_read_json(s->dirfd, index, &root)) < 0) return rc;
	if ((in = json_object_get(root, "metadata"))) json_put(&rc, in, "total_size", json_integer((json_int_t)bytes));
	return out_json(dir, index, root, 2, rc);
}

static int write_all(const struct source *s, const struct mt_geometry *geo, struct out_dir *dir)
{
	const struct st_files *files = &s->model[ARRAY_W].files;
	struct kept kept = {.n = 0};
	uint64_t bytes = 0;
	int rc = 0;
	dir->no_sums = true;
	for (uint32_t i = 0; i < files->n && rc == 0; i++) {
		struct new_file f = {.s = s, .from = &files->v[i], .vocab = geo->vocab};
		rc = write_file(&f, dir);
		bytes += f.data_bytes;
	}
	if (rc == 0) rc = write_texts(s, geo, bytes, dir);
	if (rc == 0) rc = kept_read(&kept, s);
	for (uint32_t i = 0; i < kept.n && rc == 0; i++)
		rc = kept_write(kept.file[i].name, kept.data[i], kept.file[i].bytes, dir);
	kept_release(&kept);
	return rc;
}

int ckpt_resize(const char *from, const char *path, uint64_t vocab, bool replace)
{
	struct source s;
	struct out_dir dir;
	int rc = source_open(&s, from, true);
	if (rc == 0 && (rc = source_config(&s, 0)) == 0) rc = source_models(&s);
	struct mt_geometry geo = s.geo;
	geo.vocab = (uint32_t)vocab;
	if (geo.ple_dim) geo.ple_vocab = geo.vocab;
	if (rc == 0 && (rc = out_begin(&dir, path, replace)) == 0)
		rc = verify_and_rename(&dir, write_all(&s, &geo, &dir), &geo, false);
	source_close(&s);
	return rc;
}
