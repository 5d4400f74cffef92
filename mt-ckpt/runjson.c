/* runjson.c: run.json, what a checkpoint holds beside its arrays: the position of the run, the reproducibility record
 * (device, GEMM, attention and the choices that decide bits), and a checksum of each chunk of each file and of run.json
 * itself.
 *
 * Numbers of 64 bits that are not counts (hashes) are strings of 16 hexadecimal digits. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include "ckpt.h"
#include "cli/cli.h"
#include "mt/tier.h"
#include "mt/version.h"

#define FORMAT "mt checkpoint"
/* has multi-token prediction; 4: tensors that are not trained; 3: tiles; 2: codes of int8; 1: all others */
#define FORMAT_VERSION 5
#define NO_STATE "is neither bf16, fp32 nor int8"

/* Of run.json without the checksum itself; independent of white space and order. */
int run_json_checksum(json_t *root, uint64_t *sum)
{
	char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
	if (!text) return mt_fail(MT_EX_NOMEM, "no memory for the checksum of " RUN_JSON);
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
	/* COUNT_OR_NULL: null is MT_NO_TARGET; SEVERAL: a count of 2 or more, else it is not there; PAIR: two numbers;
	 * PATTERNS: a text, which is not there if it is empty */
	enum { COUNT, COUNT_OR_NULL, SEVERAL, HASH, HEX, NUMBER, NUMBER_OR_NONE, PAIR, BOOL, TEXT, PATTERNS, WORD } type;
	uint32_t at, size;             /* size: 4 or 8 of a number, of a TEXT its room */
	uint64_t max;                  /* of a count, and of the number that a WORD stands for */
	const char *(*word)(uint32_t); /* "?": no word stands for this number */
	const char *wrong;             /* what is said of all other words */
};

#define FIELD(type, field) .at = offsetof(struct type, field), .size = sizeof((struct type){0}.field)
#define KEYS(array) array, sizeof array / sizeof *array

static const struct key run_keys[] = {
	{"dtype", WORD, FIELD(run_json, dtype), MT_FP32, mt_dtype_name, "is neither bf16 nor fp32"},
	{"state", WORD, FIELD(run_json, state), MT_INT8, mt_dtype_name, NO_STATE},
	{"nodes", SEVERAL, FIELD(run_json, nodes), MT_NODES},
	{"optim", WORD, FIELD(run_json, optim), MT_SGD, mt_optim_name, "is neither adamw, lion nor sgd"},
	{"train", PATTERNS, FIELD(run_json, train)},
	{"freeze", PATTERNS, FIELD(run_json, freeze)},
	{"run_id", HEX, FIELD(run_json, run_id)},
	{"step", COUNT, FIELD(run_json, step), STEP_MAX},
	{"t", COUNT, FIELD(run_json, t), STEP_MAX},
};

static const struct key position_keys[] = {
	{"records", COUNT, FIELD(mt_position, records), COUNT_MAX},
	{"offset", COUNT, FIELD(mt_position, offset), COUNT_MAX},
	{"hash", HASH, FIELD(mt_position, hash)},
	{"hash_cut", HASH, FIELD(mt_position, hash_cut)},
	{"carry", COUNT_OR_NULL, FIELD(mt_position, carry), UINT32_MAX},
	{"seq", COUNT, FIELD(mt_position, seq), INT32_MAX},
	{"batch", COUNT, FIELD(mt_position, batch), INT32_MAX},
	{"pack", COUNT, FIELD(mt_position, pack), INT32_MAX},
	{"tokens", COUNT, FIELD(mt_position, tokens), COUNT_MAX},
	{"processed", COUNT, FIELD(mt_position, processed), COUNT_MAX},
};

static const struct key record_keys[] = {
	{"chunk_tokens", COUNT, FIELD(mt_record, chunk_tokens), UINT32_MAX},
	{"head_tokens", COUNT, FIELD(mt_record, head_tokens), UINT32_MAX},
	{"pass_rows", COUNT, FIELD(mt_record, pass_rows), UINT32_MAX},
	{"device", TEXT, FIELD(mt_record, device)},
	{"gemm", TEXT, FIELD(mt_record, gemm)},
	{"attention", TEXT, FIELD(mt_record, attention)},
	{"machine", TEXT, FIELD(mt_record, machine)},
};

static const struct key hyper_keys[] = {
	{"lr", NUMBER, FIELD(mt_hyper, lr)},
	{"betas", PAIR, .at = offsetof(struct mt_hyper, beta1), .size = 2 * sizeof(double)},
	{"eps", NUMBER, FIELD(mt_hyper, eps)},
	{"weight_decay", NUMBER, FIELD(mt_hyper, decay)},
	{"clip", NUMBER, FIELD(mt_hyper, clip)},
	{"micros", COUNT, FIELD(mt_hyper, micros), UINT32_MAX},
	{"targets", COUNT, FIELD(mt_hyper, targets), COUNT_MAX},
};

static const struct key unlogged_keys[] = {
	{"step", COUNT, FIELD(mt_figures, step), STEP_MAX},
#define KEY(x, field, kind, from, key, ...) {key, kind, FIELD(mt_figures, field), COUNT_MAX},
	MT_FIGURES(KEY, ) /* models have the terms of their loss */
};

static const char *order_name(uint32_t order) { return order == MT_BACKWARD_ORDER ? "backward" : "forward"; }

static const struct key tier_keys[] = {
	{"tile_elems", COUNT, FIELD(run_tier, tile_elems), MT_TILE_MOST},
	{"first", COUNT, FIELD(run_tier, first), UINT32_MAX},
	{"order", WORD, FIELD(run_tier, order), MT_BACKWARD_ORDER, order_name, "is neither forward nor backward"},
	{"run_id", HEX, FIELD(run_tier, run)},
};

/* ---- write */

json_t *json_hex(const uint8_t *bytes, size_t n)
{
	char text[2 * MT_CHOICE_VALUE + 1] = "";
	for (size_t i = 0; i < n && i < MT_CHOICE_VALUE; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	return json_string(text);
}

json_t *json_hash(uint64_t x)
{
	char buf[17];
	snprintf(buf, sizeof buf, "%016" PRIx64, x);
	return json_string(buf);
}

static void put_key(int *rc, json_t *o, const struct key *k, const void *field)
{
	double real[2] = {0};
	uint64_t x = 0;
	memcpy(&x, field, k->size < sizeof x ? k->size : sizeof x);
	memcpy(real, field, k->size < sizeof real ? k->size : sizeof real);
	if ((k->type == SEVERAL && x < 2) || (k->type == NUMBER_OR_NONE && isnan(*real))) return;
	if (k->type == PATTERNS && !*(const char *)field) return;
	if (k->type == TEXT || k->type == PATTERNS) json_put_text(rc, o, k->name, field, k->size);
	else
		json_put(rc, o, k->name,
			k->type == HASH       ? json_hash(x)
				: k->type == HEX  ? json_hex(field, k->size)
				: k->type == BOOL ? json_boolean(x)
				: k->type == WORD ? json_string(k->word((uint32_t)x))
				: k->type == PAIR ? json_pack("[o, o]", json_number(real[0]), json_number(real[1]))
				: k->type == NUMBER || k->type == NUMBER_OR_NONE ? json_number(*real)
				: k->type == COUNT_OR_NULL && x == MT_NO_TARGET  ? json_null()
																 : json_integer((json_int_t)x));
}

static json_t *put_keys(int *rc, json_t *o, const struct key *key, size_t n, const void *from)
{
	for (size_t i = 0; i < n; i++) put_key(rc, o, &key[i], (const char *)from + key[i].at);
	return o;
}

static json_t *files_json(const struct out_dir *dir, int *rc)
{
	json_t *files = json_object();
	for (uint32_t i = 0; i < dir->n_files && *rc == 0; i++) {
		const struct out_file *f = dir->files[i];
		json_t *sums = json_array(), *o = json_object();
		for (uint64_t c = 0; c < f->n_sums; c++) json_add(rc, sums, json_hash(f->sums[c]));
		json_put(rc, o, "bytes", json_integer((json_int_t)f->bytes));
		json_put(rc, o, "xxh3", sums);
		json_put(rc, files, f->name, o);
	}
	return files;
}

int run_json_write(struct out_dir *dir, const struct run_json *r)
{
	json_t *root = json_object(), *record = json_null(), *hyper = json_null(), *unlogged = json_array(), *tier;
	uint64_t sum = 0;
	int version = r->state == MT_INT8 ? 2 : 1, rc = 0;
	if (r->tier.files) version = 3;
	if (*r->train || *r->freeze) version = 4;
	if (r->mtp) version = FORMAT_VERSION;
	if (r->has_record) {
		record = put_keys(&rc, json_object(), KEYS(record_keys), &r->record);
		json_put(&rc, record, "choices", r->choices ? json_incref(r->choices) : json_null());
	}
	if (r->hyper.step) hyper = put_keys(&rc, json_object(), KEYS(hyper_keys), &r->hyper);
	for (int i = 0; i < 2 && r->unlogged[i].step; i++)
		json_add(&rc, unlogged, put_keys(&rc, json_object(), KEYS(unlogged_keys), &r->unlogged[i]));
	json_put(&rc, root, "format", json_string(FORMAT));
	json_put(&rc, root, "version", json_integer(version));
	json_put(&rc, root, "mt_version", json_string(MT_VERSION));
	put_keys(&rc, root, KEYS(run_keys), r);
	json_put(&rc, root, "position", put_keys(&rc, json_object(), KEYS(position_keys), &r->position));
	json_put(&rc, root, "record", record);
	json_put(&rc, root, "hyperparameters", hyper);
	if (json_array_size(unlogged)) json_put(&rc, root, "unlogged", json_incref(unlogged));
	json_put(&rc, root, "chunk_bytes", json_integer(IO_BYTES));
	json_put(&rc, root, "files", files_json(dir, &rc));
	if (r->tier.files) {
		tier = put_keys(&rc, json_object(), KEYS(tier_keys), &r->tier);
		json_put(&rc, tier, "files", json_incref(r->tier.files));
		json_put(&rc, root, "tier", tier);
	}
	if (rc == 0) rc = run_json_checksum(root, &sum);
	json_put(&rc, root, "checksum", json_hash(sum));
	json_decref(unlogged);
	return out_json(dir, RUN_JSON, root, 1, rc);
}

/* ---- read */

struct reader {
	int rc; /* of the first error, whose message stays */
};

static void refuse(struct reader *r, const char *key, const char *what)
{
	if (r->rc == 0) r->rc = mt_fail(MT_EX_DATA, RUN_JSON ": %s %s", key, what);
}

static uint64_t get_count(struct reader *r, const json_t *v, const char *key, uint64_t max)
{
	uint64_t x = (uint64_t)json_integer_value(v);
	if (json_is_integer(v) && json_integer_value(v) >= 0 && x <= max) return x;
	refuse(r, key, "is not a number in range");
	return 0;
}

static uint64_t get_hash(struct reader *r, const json_t *v, const char *key)
{
	const char *s = json_string_value(v);
	uint8_t bytes[8];
	if (!mt_parse_hex(s, bytes, sizeof bytes)) return strtoull(s, NULL, 16);
	refuse(r, key, "is not 16 hexadecimal digits");
	return 0;
}

uint64_t json_hash_at(const json_t *list, size_t i)
{
	const char *text = json_string_value(json_array_get(list, i));
	return text ? strtoull(text, NULL, 16) : 0;
}

static double get_number(struct reader *r, const json_t *v, const struct key *k)
{
	if (!json_is_number(v) && !json_is_null(v) && (v || k->type != NUMBER_OR_NONE))
		refuse(r, k->name, "is not a number");
	return json_is_number(v) ? json_number_value(v) : NAN;
}

static uint64_t get_word(struct reader *r, const json_t *v, const struct key *k)
{
	const char *s = json_string_value(v);
	for (uint32_t x = 0; s && *s != '?' && x <= k->max; x++)
		if (!strcmp(s, k->word(x))) return x;
	refuse(r, k->name, k->wrong);
	return 0;
}

static uint64_t get_integer(struct reader *r, const json_t *v, const struct key *k)
{
	if (k->type == HASH) return get_hash(r, v, k->name);
	if (k->type == WORD) return get_word(r, v, k);
	if (k->type == BOOL && !json_is_boolean(v)) refuse(r, k->name, "is not true or false");
	if (k->type == BOOL) return json_is_true(v);
	if (k->type == COUNT_OR_NULL && json_is_null(v)) return MT_NO_TARGET;
	if (k->type == SEVERAL && !v) return 0;
	if (k->type == SEVERAL && json_integer_value(v) < 2) refuse(r, k->name, "is not a number in range");
	return get_count(r, v, k->name, k->max);
}

static void get_key(struct reader *r, const json_t *obj, const struct key *k, void *field)
{
	const json_t *v = json_object_get(obj, k->name);
	const char *s = json_string_value(v);
	double real[2] = {0};
	uint64_t x;
	switch (k->type) {
	case PATTERNS:
		if (!v) return;
		/* fallthrough */
	case TEXT:
		if (s && json_string_length(v) < k->size) strcpy(field, s);
		else refuse(r, k->name, "is not a short text");
		return;
	case HEX:
		if (mt_parse_hex(s, field, k->size)) refuse(r, k->name, "is not 32 hexadecimal digits");
		return;
	case NUMBER:
	case NUMBER_OR_NONE:
	case PAIR:
		for (size_t i = 0; i < k->size / sizeof *real; i++)
			real[i] = get_number(r, k->type == PAIR ? json_array_get(v, i) : v, k);
		memcpy(field, real, k->size);
		return;
	default: x = get_integer(r, v, k); memcpy(field, &x, k->size);
	}
}

static void get_keys(struct reader *r, const json_t *obj, const struct key *key, size_t n, void *into)
{
	for (size_t i = 0; i < n; i++) get_key(r, obj, &key[i], (char *)into + key[i].at);
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
	out->has_record = true;
	get_keys(r, v, KEYS(record_keys), &out->record);
	get_choices(r, json_object_get(v, "choices"), out);
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
		uint64_t bytes = get_count(r, json_object_get(f, "bytes"), "bytes", INT64_MAX);
		const json_t *sums = json_object_get(f, "xxh3");
		if (!kept_name_valid(name)) refuse(r, "files", "names a file outside the directory");
		if (!json_is_array(sums) || json_array_size(sums) != bytes / IO_BYTES + (bytes % IO_BYTES != 0))
			refuse(r, "files", "has not one checksum for every chunk");
		for (size_t c = 0; c < json_array_size(sums); c++) get_hash(r, json_array_get(sums, c), "xxh3");
	}
}

/* Which tiles there must be is found when the model is known (tiles.c). */
static void get_tier(struct reader *r, const json_t *v, struct run_json *out)
{
	struct run_tier *t = &out->tier;
	const char *name;
	json_t *sum;
	if (!v) return;
	get_keys(r, v, KEYS(tier_keys), t);
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
	if (!format || strcmp(format, FORMAT)) return mt_fail(MT_EX_DATA, RUN_JSON ": not an mt checkpoint");
	version = json_integer_value(json_object_get(root, "version"));
	if (version < 1 || version > FORMAT_VERSION)
		return mt_fail(MT_EX_DATA, RUN_JSON ": a version of the format that this mt does not know");
	stored = get_hash(&r, json_object_get(root, "checksum"), "checksum");
	if (r.rc < 0) return r.rc;
	json_object_del(root, "checksum");
	if ((rc = run_json_checksum(root, &sum)) < 0) return rc;
	if (sum != stored) return mt_fail(MT_EX_DATA, RUN_JSON ": is damaged: its own checksum is wrong");
	if (get_count(&r, json_object_get(root, "chunk_bytes"), "chunk_bytes", UINT32_MAX) != IO_BYTES)
		refuse(&r, "chunk_bytes", "is not 16 MiB");
	return r.rc;
}

int run_json_parse(json_t *root, struct run_json *out, json_t **files)
{
	struct reader r = {.rc = check_form(root)};
	const json_t *hyper = json_object_get(root, "hyperparameters");
	*out = (struct run_json){0};
	if (r.rc < 0) return r.rc;
	*files = json_object_get(root, "files");
	get_keys(&r, root, KEYS(run_keys), out);
	if (out->state == MT_NONE) refuse(&r, "state", NO_STATE);
	if (out->t > out->step) refuse(&r, "t", "is not a number in range");
	get_keys(&r, json_object_get(root, "position"), KEYS(position_keys), &out->position);
	get_record(&r, json_object_get(root, "record"), out);
	if (hyper && !json_is_null(hyper)) {
		get_keys(&r, hyper, KEYS(hyper_keys), &out->hyper);
		out->hyper.step = out->step;
	}
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
	rc = file_read_json(dirfd, RUN_JSON, root);
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
	int rc = 0;
	json_put(&rc, root, "step", json_integer((json_int_t)step));
	json_put(&rc, root, "node", json_integer(node));
	json_put(&rc, root, "files", files_json(dir, &rc));
	return out_json(dir, PART, root, 1, rc);
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
	if (get_count(&r, json_object_get(root, "step"), "step", STEP_MAX) != step ||
		get_count(&r, json_object_get(root, "node"), "node", MT_NODES) != node)
		refuse(&r, "step", "or node is not the one that is saved");
	rc = r.rc;
	json_object_foreach((json_t *)files, name, entry) if (rc == 0) rc = out_move(to, from, name, entry);
	json_decref(root);
	return rc;
}
