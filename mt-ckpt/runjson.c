/* runjson.c: run.json, what a checkpoint holds beside its arrays: the position of the run, the reproducibility record
 * (device, GEMM, attention and the choices that decide bits), and a checksum of each chunk of each file and of run.json
 * itself.
 *
 * Numbers of 64 bits that are not counts (hashes) are strings of 16 hexadecimal digits. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt.h"
#include "cli/cli.h"
#include "mt/tier.h"
#include "mt/version.h"
#include "say.h"

#define NAME "run.json"
#define FORMAT "mt checkpoint"
#define FORMAT_VERSION 3 /* has tiles; 2: has codes of int8; 1: all others, in which int8 state is in fp32 */

/* Of run.json without the checksum itself; independent of white space and order. */
int run_json_checksum(json_t *root, uint64_t *sum)
{
	char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
	if (!text) return mt_fail(MT_EX_NOMEM, "no memory for the checksum of " NAME);
	*sum = XXH3_64bits(text, strlen(text));
	free(text);
	return 0;
}

/* ---- keys */

/* Counts grow with every step and are written as signed 64 bits: a count that is read must be able to grow. Steps are
 * counted in 24 bits, as in the optimizer's journal. */
#define COUNT_MAX ((uint64_t)1 << 62)
#define STEP_MAX ((1u << 24) - 1)

struct key { /* of an object of run.json, and the struct's field that it is written from and read into */
	const char *name;
	enum { COUNT, COUNT_OR_NULL, COUNT_OR_NONE, HASH, NUMBER, NUMBER_OR_NONE, BOOL, TEXT, TEXT_OR_NONE } type;
	uint32_t at, size; /* 4 or 8, of a TEXT its room */
	uint64_t max;      /* of a count */
};

#define FIELD(type, field) offsetof(struct type, field), sizeof((struct type){0}.field)
#define KEYS(array) array, sizeof array / sizeof *array

static const struct key position_keys[] = {
	{"records", COUNT, FIELD(mt_position, records), COUNT_MAX},
	{"offset", COUNT, FIELD(mt_position, offset), COUNT_MAX},
	{"hash", HASH, FIELD(mt_position, hash), 0},
	{"hash_cut", HASH, FIELD(mt_position, hash_cut), 0},
	{"carry", COUNT_OR_NULL, FIELD(mt_position, carry), UINT32_MAX}, /* null: MT_NO_TARGET */
	{"seq", COUNT, FIELD(mt_position, seq), INT32_MAX},
	{"batch", COUNT, FIELD(mt_position, batch), INT32_MAX},
	{"pack", COUNT, FIELD(mt_position, pack), INT32_MAX},
	{"tokens", COUNT, FIELD(mt_position, tokens), COUNT_MAX},
	/* versions of mt before this key wrote none */
	{"processed", COUNT_OR_NONE, FIELD(mt_position, processed), COUNT_MAX},
};

static const struct key record_keys[] = {
	{"chunk_tokens", COUNT, FIELD(mt_record, chunk_tokens), UINT32_MAX},
	{"head_tokens", COUNT, FIELD(mt_record, head_tokens), UINT32_MAX},
	{"pass_rows", COUNT, FIELD(mt_record, pass_rows), UINT32_MAX}, {"device", TEXT, FIELD(mt_record, device), 0},
	{"gemm", TEXT, FIELD(mt_record, gemm), 0}, {"attention", TEXT, FIELD(mt_record, attention), 0},
	{"machine", TEXT_OR_NONE, FIELD(mt_record, machine), 0}, /* versions of mt before this key wrote none */
};

static const struct key unlogged_keys[] = {
	{"step", COUNT, FIELD(mt_figures, step), STEP_MAX},
#define KEY(x, field, kind, from, key, ...) {key, kind, FIELD(mt_figures, field), COUNT_MAX},
	MT_FIGURES(KEY, ) /* "processed": versions of mt before this key wrote none; models have the terms of their loss */
};

static const char *const orders[] = {[MT_FORWARD_ORDER] = "forward", [MT_BACKWARD_ORDER] = "backward"};

/* ---- write */

json_t *json_hex(const uint8_t *bytes, size_t n)
{
	char text[2 * MT_CHOICE_VALUE + 1] = "";
	for (size_t i = 0; i < n && i < MT_CHOICE_VALUE; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	return json_string(text);
}

static json_t *integer(uint64_t x) { return json_integer((json_int_t)x); }

json_t *json_hash(uint64_t x)
{
	char buf[17];
	snprintf(buf, sizeof buf, "%016" PRIx64, x);
	return json_string(buf);
}

static json_t *keys_json(const struct key *key, size_t n, const void *from, int *rc)
{
	json_t *o = json_object();
	for (const struct key *k = key; k < key + n; k++) {
		const void *field = (const char *)from + k->at;
		if (k->type == TEXT || k->type == TEXT_OR_NONE) json_put_text(rc, o, k->name, field, k->size);
		else if (k->type == NUMBER_OR_NONE && isnan(*(const double *)field)) continue;
		else if (k->type == NUMBER || k->type == NUMBER_OR_NONE)
			json_put(rc, o, k->name, json_number(*(const double *)field));
		else {
			uint64_t x = k->size == 4 ? *(const uint32_t *)field : *(const uint64_t *)field;
			bool null = k->type == COUNT_OR_NULL && x == MT_NO_TARGET;
			json_put(rc, o, k->name,
				null                  ? json_null()
					: k->type == HASH ? json_hash(x)
					: k->type == BOOL ? json_boolean(x)
									  : integer(x));
		}
	}
	return o;
}

static json_t *hyper_json(const struct mt_hyper *h, int *rc)
{
	if (!h->step) return json_null();
	json_t *out = json_object();

	json_put(rc, out, "lr", json_number(h->lr));
	json_put(rc, out, "betas", json_pack("[o, o]", json_number(h->beta1), json_number(h->beta2)));
	json_put(rc, out, "eps", json_number(h->eps));
	json_put(rc, out, "weight_decay", json_number(h->decay));
	json_put(rc, out, "clip", json_number(h->clip));
	json_put(rc, out, "micros", json_integer(h->micros));
	json_put(rc, out, "targets", json_integer((json_int_t)h->targets));
	return out;
}

static json_t *unlogged_json(const struct mt_figures figures[2], int *rc)
{
	json_t *all = json_array();
	for (int i = 0; i < 2; i++)
		if (figures[i].step) json_add(rc, all, keys_json(KEYS(unlogged_keys), &figures[i], rc));
	return all;
}

static json_t *files_json(const struct out_dir *dir, int *rc)
{
	json_t *files = json_object();
	for (uint32_t i = 0; i < dir->n_files && *rc == 0; i++) {
		const struct out_file *f = dir->files[i];
		json_t *sums = json_array(), *o = json_object();
		for (uint64_t c = 0; c < f->n_sums; c++) json_add(rc, sums, json_hash(f->sums[c]));
		json_put(rc, o, "bytes", integer(f->bytes));
		json_put(rc, o, "xxh3", sums);
		json_put(rc, files, f->name, o);
	}
	return files;
}

static json_t *tier_json(const struct run_tier *t, int *rc)
{
	json_t *o = json_object();
	json_put(rc, o, "tile_elems", integer(t->tile_elems));
	json_put(rc, o, "first", json_integer(t->first));
	json_put(rc, o, "order", json_string(orders[t->order]));
	json_put(rc, o, "run_id", json_hex(t->run, sizeof t->run));
	json_put(rc, o, "files", json_incref(t->files));
	return o;
}

int run_json_write(struct out_dir *dir, const struct run_json *r)
{
	json_t *root = json_object(), *record = json_null();
	uint64_t sum = 0;
	char *text = NULL;
	int rc = 0;
	if (r->has_record) {
		record = keys_json(KEYS(record_keys), &r->record, &rc);
		json_put(&rc, record, "choices", r->choices ? json_incref(r->choices) : json_null());
	}
	json_put(&rc, root, "format", json_string(FORMAT));
	json_put(&rc, root, "version", json_integer(r->tier.files ? FORMAT_VERSION : r->state == MT_INT8 ? 2 : 1));
	json_put(&rc, root, "mt_version", json_string(MT_VERSION));
	json_put(&rc, root, "dtype", json_string(mt_dtype_name(r->dtype)));
	json_put(&rc, root, "state", json_string(mt_dtype_name(r->state)));
	if (r->nodes > 1) json_put(&rc, root, "nodes", json_integer(r->nodes));
	json_put(&rc, root, "optim", json_string(mt_optim_name(r->optim)));
	json_put(&rc, root, "run_id", json_hex(r->run_id, sizeof r->run_id));
	json_put(&rc, root, "step", integer(r->step));
	json_put(&rc, root, "t", integer(r->t));
	json_put(&rc, root, "position", keys_json(KEYS(position_keys), &r->position, &rc));
	json_put(&rc, root, "record", record);
	json_put(&rc, root, "hyperparameters", hyper_json(&r->hyper, &rc));
	if (r->unlogged[0].step) json_put(&rc, root, "unlogged", unlogged_json(r->unlogged, &rc));
	json_put(&rc, root, "chunk_bytes", json_integer(IO_BYTES));
	json_put(&rc, root, "files", files_json(dir, &rc));
	if (r->tier.files) json_put(&rc, root, "tier", tier_json(&r->tier, &rc));
	if (rc == 0) rc = run_json_checksum(root, &sum);
	json_put(&rc, root, "checksum", json_hash(sum));
	if (rc == 0 && !(text = json_text(root, 1))) rc = mt_fail(MT_EX_NOMEM, "no memory for " NAME);
	json_decref(root);
	if (rc < 0) return mt_fail_in(rc, NAME);
	rc = out_text(dir, NAME, text, strlen(text));
	free(text);
	return rc;
}

/* ---- read */

struct reader {
	int rc; /* of the first error, whose message stays */
};

static void refuse(struct reader *r, const char *key, const char *what)
{
	if (r->rc == 0) r->rc = mt_fail(MT_EX_DATA, NAME ": %s %s", key, what);
}

static uint64_t get_count(struct reader *r, const json_t *obj, const char *key, uint64_t max)
{
	const json_t *v = json_object_get(obj, key);
	if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > max) {
		refuse(r, key, "is not a number in range");
		return 0;
	}
	return (uint64_t)json_integer_value(v);
}

static uint64_t get_hash(struct reader *r, const json_t *v, const char *key)
{
	const char *s = json_string_value(v);
	uint8_t bytes[8];
	if (!mt_parse_hex(s, bytes, sizeof bytes)) return strtoull(s, NULL, 16);
	refuse(r, key, "is not 16 hexadecimal digits");
	return 0;
}

static bool get_bool(struct reader *r, const json_t *v, const char *key)
{
	if (!json_is_boolean(v)) refuse(r, key, "is not true or false");
	return json_is_true(v);
}

static void get_text(struct reader *r, const json_t *v, const struct key *k, char *out)
{
	if (k->type == TEXT_OR_NONE && !v) return;
	if (!json_is_string(v) || json_string_length(v) >= k->size) refuse(r, k->name, "is not a short text");
	else strcpy(out, json_string_value(v));
}

static void get_keys(struct reader *r, const json_t *obj, const struct key *key, size_t n, void *into)
{
	for (const struct key *k = key; k < key + n; k++) {
		void *field = (char *)into + k->at;
		const json_t *v = json_object_get(obj, k->name);
		if (k->type == TEXT || k->type == TEXT_OR_NONE) get_text(r, v, k, field);
		else if (k->type == NUMBER || k->type == NUMBER_OR_NONE) {
			bool missing = !v && k->type == NUMBER_OR_NONE;
			if (!missing && !json_is_number(v) && !json_is_null(v)) refuse(r, k->name, "is not a number");
			*(double *)field = json_is_number(v) ? json_number_value(v) : NAN;
		} else {
			uint64_t x = k->type == HASH                      ? get_hash(r, v, k->name)
				: k->type == BOOL                             ? get_bool(r, v, k->name)
				: k->type == COUNT_OR_NULL && json_is_null(v) ? MT_NO_TARGET
				: k->type == COUNT_OR_NONE && !v              ? 0
															  : get_count(r, obj, k->name, k->max);
			if (k->size == 4) *(uint32_t *)field = (uint32_t)x;
			else *(uint64_t *)field = x;
		}
	}
}

/* Keys and values must fit into the record's table of choices. */
static void get_choices(struct reader *r, const json_t *v, struct run_json *out)
{
	const char *key;
	json_t *value;
	if (!v || json_is_null(v)) return;
	if (!json_is_object(v) || json_object_size(v) > MT_CHOICES)
		return refuse(r, "choices", "is not an object of at most 1024 entries");
	json_object_foreach((json_t *)v, key, value)
	{
		uint8_t bytes[MT_CHOICE_VALUE];
		size_t n = json_string_length(value) / 2;
		if (!*key || strlen(key) >= MT_CHOICE_KEY || n > sizeof bytes ||
			mt_parse_hex(json_string_value(value), bytes, n))
			return refuse(r, "choices", "has an entry that is not short hexadecimal bytes");
	}
	out->choices = (json_t *)v;
}

static void get_record(struct reader *r, const json_t *v, struct run_json *out)
{
	if (!v || json_is_null(v)) return;
	if (!json_is_object(v)) return refuse(r, "record", "is not an object");
	out->has_record = true;
	get_keys(r, v, KEYS(record_keys), &out->record);
	get_choices(r, json_object_get(v, "choices"), out);
}

/* A number that is missing or null is 0: nothing but a later checkpoint and a message come of them */
static void get_hyper(struct reader *r, json_t *v, struct run_json *out)
{
	const json_t *betas = json_object_get(v, "betas");
	if (!v || json_is_null(v)) return;
	if (!json_is_object(v)) return refuse(r, "hyperparameters", "is not an object");
	out->hyper = (struct mt_hyper){.step = out->step,
		.lr = json_number_value(json_object_get(v, "lr")),
		.beta1 = json_number_value(json_array_get(betas, 0)),
		.beta2 = json_number_value(json_array_get(betas, 1)),
		.eps = json_number_value(json_object_get(v, "eps")),
		.decay = json_number_value(json_object_get(v, "weight_decay")),
		.clip = json_number_value(json_object_get(v, "clip")),
		.targets = (uint64_t)json_integer_value(json_object_get(v, "targets")),
		.micros = (uint32_t)json_integer_value(json_object_get(v, "micros"))};
}

static void get_unlogged(struct reader *r, const json_t *v, struct run_json *out)
{
	size_t n = json_array_size(v);
	if (!v) return;
	if (!json_is_array(v) || n > 2) return refuse(r, "unlogged", "is not a list of at most two steps");
	for (size_t i = 0; i < n; i++) {
		get_keys(r, json_array_get(v, i), KEYS(unlogged_keys), &out->unlogged[i]);
		if (out->unlogged[i].step > out->step) refuse(r, "unlogged", "has a step after the checkpoint's");
	}
}

static void get_files(struct reader *r, const json_t *files)
{
	const char *name;
	json_t *f;
	if (!json_object_size(files)) return refuse(r, "files", "is missing");
	json_object_foreach((json_t *)files, name, f)
	{
		uint64_t bytes = get_count(r, f, "bytes", INT64_MAX);
		const json_t *sums = json_object_get(f, "xxh3");
		if (!kept_name_valid(name)) refuse(r, "files", "names a file outside the directory");
		if (!json_is_array(sums) || json_array_size(sums) != bytes / IO_BYTES + (bytes % IO_BYTES != 0))
			refuse(r, "files", "has not one checksum for every chunk");
		for (size_t c = 0; c < json_array_size(sums); c++) get_hash(r, json_array_get(sums, c), "xxh3");
	}
}

static void get_dtype(struct reader *r, const json_t *root, struct run_json *out)
{
	const char *s = json_string_value(json_object_get(root, "dtype"));
	out->dtype = s ? mt_dtype_named(s) : 0;
	if (out->dtype != MT_BF16 && out->dtype != MT_FP32) refuse(r, "dtype", "is neither bf16 nor fp32");
	const json_t *state = json_object_get(root, "state");
	s = state ? json_string_value(state) : "fp32"; /* older checkpoints do not have it */
	out->state = s ? mt_dtype_named(s) : 0;
	if (!out->state || out->state == MT_NONE) refuse(r, "state", "is neither bf16, fp32 nor int8");
	out->codes = out->state == MT_INT8 && json_integer_value(json_object_get(root, "version")) > 1;
	const json_t *optim = json_object_get(root, "optim");
	s = optim ? json_string_value(optim) : "adamw"; /* older checkpoints do not have it */
	out->optim = s ? mt_optim_named(s) : (enum mt_optim)0;
	if (!out->optim) refuse(r, "optim", "is neither adamw, lion nor sgd");
}

static void get_nodes(struct reader *r, const json_t *root, struct run_json *out)
{
	if (!json_object_get(root, "nodes")) return;
	out->nodes = (uint32_t)get_count(r, root, "nodes", MT_NODES);
	if (out->nodes < 2) refuse(r, "nodes", "is not a number in range");
}

/* Which tiles there must be is found when the model is known (tiles.c). */
static void get_tier(struct reader *r, const json_t *v, struct run_json *out)
{
	struct run_tier *t = &out->tier;
	const char *order = json_string_value(json_object_get(v, "order")), *name;
	const char *id = json_string_value(json_object_get(v, "run_id"));
	json_t *sum;
	if (!v) return;
	t->tile_elems = get_count(r, v, "tile_elems", MT_TILE_MOST);
	t->first = (uint32_t)get_count(r, v, "first", UINT32_MAX);
	t->order = order && !strcmp(order, orders[MT_BACKWARD_ORDER]) ? MT_BACKWARD_ORDER : MT_FORWARD_ORDER;
	if (!order || strcmp(order, orders[t->order])) refuse(r, "order", "is neither forward nor backward");
	if (mt_parse_hex(id, t->run, sizeof t->run)) refuse(r, "tier", "has no run_id of 32 hexadecimal digits");
	t->files = json_object_get(v, "files");
	if (!json_object_size(t->files) || !t->tile_elems || t->tile_elems % MT_TILE_ALIGN)
		return refuse(r, "tier", "has no tiles");
	json_object_foreach(t->files, name, sum) get_hash(r, sum, name);
}

static int check_form(json_t *root)
{
	const char *format = json_string_value(json_object_get(root, "format"));
	struct reader r = {0};
	json_int_t version;
	uint64_t sum, stored;
	int rc;
	if (!format || strcmp(format, FORMAT)) return mt_fail(MT_EX_DATA, NAME ": not an mt checkpoint");
	version = json_integer_value(json_object_get(root, "version"));
	if (version < 1 || version > FORMAT_VERSION)
		return mt_fail(MT_EX_DATA, NAME ": a version of the format that this mt does not know");
	stored = get_hash(&r, json_object_get(root, "checksum"), "checksum");
	if (r.rc < 0) return r.rc;
	json_object_del(root, "checksum");
	if ((rc = run_json_checksum(root, &sum)) < 0) return rc;
	if (sum != stored) return mt_fail(MT_EX_DATA, NAME ": is damaged: its own checksum is wrong");
	if (get_count(&r, root, "chunk_bytes", UINT32_MAX) != IO_BYTES) refuse(&r, "chunk_bytes", "is not 16 MiB");
	return r.rc;
}

int run_json_parse(json_t *root, struct run_json *out, json_t **files)
{
	struct reader r = {.rc = check_form(root)};
	const json_t *position = json_object_get(root, "position");
	const char *id = json_string_value(json_object_get(root, "run_id"));
	*out = (struct run_json){0};
	if (r.rc < 0) return r.rc;
	*files = json_object_get(root, "files");
	get_dtype(&r, root, out);
	get_nodes(&r, root, out);
	if (mt_parse_hex(id, out->run_id, sizeof out->run_id)) refuse(&r, "run_id", "is not 32 hexadecimal digits");
	out->step = get_count(&r, root, "step", STEP_MAX);
	out->t = get_count(&r, root, "t", out->step);
	if (json_is_object(position)) get_keys(&r, position, KEYS(position_keys), &out->position);
	else refuse(&r, "position", "is missing");
	get_record(&r, json_object_get(root, "record"), out);
	get_hyper(&r, json_object_get(root, "hyperparameters"), out);
	get_unlogged(&r, json_object_get(root, "unlogged"), out);
	get_files(&r, *files);
	get_tier(&r, json_object_get(root, "tier"), out);
	return r.rc;
}

int run_json_read(int dirfd, struct run_json *out, json_t **root, json_t **files)
{
	int rc;
	*out = (struct run_json){0};
	*root = NULL;
	rc = file_read_json(dirfd, NAME, root);
	if (rc == 0) rc = run_json_parse(*root, out, files);
	if (rc < 0) {
		json_decref(*root);
		*root = NULL;
	}
	return rc;
}

/* ---- a node's part */

#define PART "part.json" /* beside another node's files, until node 0 has taken them: their checksums */

int part_json_write(struct out_dir *dir, uint64_t step, uint32_t node)
{
	json_t *root = json_object();
	char *text = NULL;
	int rc = 0;
	json_put(&rc, root, "step", integer(step));
	json_put(&rc, root, "node", json_integer(node));
	json_put(&rc, root, "files", files_json(dir, &rc));
	if (rc == 0 && !(text = json_text(root, 1))) rc = mt_fail(MT_EX_NOMEM, "no memory for " PART);
	json_decref(root);
	if (rc == 0) rc = out_text(dir, PART, text, strlen(text));
	free(text);
	return rc;
}

static int take_file(struct out_dir *to, int from, const char *name, const json_t *entry)
{
	const json_t *list = json_object_get(entry, "xxh3");
	size_t n = json_array_size(list);
	uint64_t *sums = calloc(n + 1, sizeof *sums);
	if (!sums) return mt_fail(MT_EX_NOMEM, "no memory for checksums");
	for (size_t i = 0; i < n; i++) sums[i] = strtoull(json_string_value(json_array_get(list, i)), NULL, 16);
	int rc = out_take(to, from, name, (uint64_t)json_integer_value(json_object_get(entry, "bytes")), sums, n);
	free(sums);
	return rc;
}

int part_json_take(struct out_dir *to, int from, uint64_t step, uint32_t node)
{
	struct reader r = {0};
	json_t *root = NULL, *entry;
	const char *name;
	int rc = file_read_json(from, PART, &root);
	if (rc < 0) return rc;
	const json_t *files = json_object_get(root, "files");
	if (json_object_size(files)) get_files(&r, files); /* a node may own nothing */
	if (get_count(&r, root, "step", STEP_MAX) != step || get_count(&r, root, "node", MT_NODES) != node)
		refuse(&r, "step", "or node is not the one that is saved");
	rc = r.rc;
	json_object_foreach((json_t *)files, name, entry) if (rc == 0) rc = take_file(to, from, name, entry);
	json_decref(root);
	return rc;
}

/* ---- verify */

struct listed { /* a chunk of a file */
	const char *name;
	const json_t *entry;
	size_t chunk;
};

struct verification {
	int dirfd;
	struct listed *chunks;
	int64_t n;
};

/* XXH3 of n bytes at `at`, block by block, so that they are hashed in the cache */
static int hash_file(int fd, const char *name, uint64_t at, uint64_t n, void *buf, uint64_t *sum)
{
	XXH3_state_t *hash = XXH3_createState();
	int rc = hash ? 0 : mt_fail(MT_EX_NOMEM, "no memory to verify checksums");
	if (hash) XXH3_64bits_reset(hash);
	for (uint64_t len; n && rc == 0; n -= len, at += len) {
		len = n < BLOCK_BYTES ? n : BLOCK_BYTES;
		rc = file_read(fd, name, buf, len, at);
		if (rc == 0) XXH3_64bits_update(hash, buf, len);
	}
	if (hash) *sum = XXH3_64bits_digest(hash);
	XXH3_freeState(hash);
	return rc;
}

static int verify_chunk(void *arg, int64_t task, void *buf)
{
	const struct verification *v = arg;
	const struct listed *l = &v->chunks[task];
	const json_t *sums = json_object_get(l->entry, "xxh3");
	uint64_t want = (uint64_t)json_integer_value(json_object_get(l->entry, "bytes")), size, sum = 0;
	int fd, rc = file_open_regular(v->dirfd, l->name, &fd, &size);
	if (rc < 0) return rc == -MT_EX_NOINPUT ? mt_fail(MT_EX_DATA, "%s: is missing", shown(l->name)) : rc;
	if (size != want)
		rc = mt_fail(MT_EX_DATA, "%s: has %" PRIu64 " bytes where " NAME " says %" PRIu64, shown(l->name), size, want);
	uint64_t at = l->chunk * (uint64_t)IO_BYTES, n = rc < 0 ? 0 : size - at < IO_BYTES ? size - at : IO_BYTES;
	if (n && (rc = hash_file(fd, l->name, at, n, buf, &sum)) == 0 &&
		sum != strtoull(json_string_value(json_array_get(sums, l->chunk)), NULL, 16))
		rc = mt_fail(MT_EX_DATA, "%s: chunk %zu (bytes %" PRIu64 " to %" PRIu64 ") is damaged", shown(l->name),
			l->chunk, at, at + n - 1);
	close(fd);
	return rc;
}

int run_json_lengths(int dirfd, json_t *files)
{
	const char *name;
	json_t *f;
	json_object_foreach(files, name, f)
	{
		json_int_t want = json_integer_value(json_object_get(f, "bytes"));
		struct stat st;
		if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return fail_errno(name);
		if (!S_ISREG(st.st_mode) || st.st_size != want)
			return mt_fail(MT_EX_IO, "%s: has %lld byte%s, but %lld were written", shown(name), (long long)st.st_size,
				mt_s((uint64_t)st.st_size), (long long)want);
	}
	return 0;
}

/* The chunks of a file; an empty one has one, so that its length is checked */
static int list_file(struct verification *v, const char *name, const json_t *entry)
{
	size_t n = json_array_size(json_object_get(entry, "xxh3"));
	struct listed *more = realloc(v->chunks, ((size_t)v->n + n + 1) * sizeof *more);
	if (!more) return mt_fail(MT_EX_NOMEM, "no memory to verify checksums");
	v->chunks = more;
	for (size_t c = 0; c < n || c == 0; c++) v->chunks[v->n++] = (struct listed){name, entry, c};
	return 0;
}

int run_json_verify(int dirfd, json_t *files, const char *only, const char *without)
{
	struct verification v = {.dirfd = dirfd};
	struct work work = {0};
	const char *name;
	json_t *f;
	int rc = 0;
	if (only && !json_object_get(files, only)) rc = mt_fail(MT_EX_DATA, NAME ": has no checksums of %s", only);
	json_object_foreach(files, name, f) if (rc == 0 && (!only || !strcmp(name, only)) &&
		(!without || strcmp(name, without) != 0)) rc = list_file(&v, name, f);
	if (rc == 0) rc = work_begin(&work, v.n < WORK_THREADS ? (uint64_t)v.n : WORK_THREADS);
	if (rc == 0) rc = work_run(&work, v.n, verify_chunk, &v);
	work_end(&work);
	free(v.chunks);
	return rc;
}
