/* runjson.c: run.json, what a checkpoint knows beside its arrays: where the run stood, what may change a bit of what
 * follows, and a checksum of every chunk of every file, its own content included.
 *
 * Numbers of 64 bits that are not counts (hashes) are strings of 16 hexadecimal digits. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt.h"

#define NAME "run.json"
#define FORMAT "mt checkpoint"
#define FORMAT_VERSION 1

static json_t *hex(uint64_t x)
{
	char buf[17];

	snprintf(buf, sizeof buf, "%016" PRIx64, x);
	return json_string(buf);
}

static json_t *hex_id(const uint8_t id[16])
{
	char buf[33];

	for (int i = 0; i < 16; i++) snprintf(buf + 2 * i, 3, "%02x", id[i]);
	return json_string(buf);
}

/* Of everything in it but the checksum itself, independent of white space and order. */
int run_json_checksum(json_t *root, uint64_t *sum)
{
	char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));

	if (!text) return mt_fail(MT_EX_NOMEM, "no memory for the checksum of " NAME);
	*sum = XXH3_64bits(text, strlen(text));
	free(text);
	return 0;
}

/* ------------------------------------------------------------------------------------------------ out */

static json_t *integer(uint64_t x) { return json_integer((json_int_t)x); }

static json_t *position_json(const struct mt_position *p, int *rc)
{
	json_t *o = json_object();

	json_put(rc, o, "records", integer(p->records));
	json_put(rc, o, "offset", integer(p->offset));
	json_put(rc, o, "hash", hex(p->hash));
	json_put(rc, o, "hash_cut", hex(p->hash_cut));
	json_put(rc, o, "carry", p->carry == MT_NO_TARGET ? json_null() : integer(p->carry));
	json_put(rc, o, "seq", integer(p->seq));
	json_put(rc, o, "batch", integer(p->batch));
	json_put(rc, o, "pack", integer(p->pack));
	json_put(rc, o, "tokens", integer(p->tokens));
	return o;
}

static json_t *record_json(const struct run_json *j, int *rc)
{
	const struct mt_record *r = &j->record;
	json_t *o = json_object();

	json_put(rc, o, "chunk_tokens", integer(r->chunk_tokens));
	json_put(rc, o, "head_tokens", integer(r->head_tokens));
	json_put(rc, o, "pass_rows", integer(r->pass_rows));
	json_put_text(rc, o, "device", r->device, sizeof r->device);
	json_put_text(rc, o, "gemm", r->gemm, sizeof r->gemm);
	json_put_text(rc, o, "attention", r->attention, sizeof r->attention);
	json_put_text(rc, o, "machine", r->machine, sizeof r->machine);
	json_put(rc, o, "choices", j->choices ? json_incref(j->choices) : json_null());
	return o;
}

static json_t *unlogged_json(const struct mt_figures figures[2], int *rc)
{
	json_t *all = json_array();

	for (int i = 0; i < 2; i++) {
		const struct mt_figures *f = &figures[i];
		if (!f->step) continue;
		json_t *o = json_object();
		json_put(rc, o, "step", integer(f->step));
		json_put(rc, o, "loss", json_number(f->loss));
		json_put(rc, o, "grad_norm", json_number(f->norm));
		json_put(rc, o, "lr", json_number(f->lr));
		json_put(rc, o, "tokens", integer(f->tokens));
		json_put(rc, o, "skipped", json_boolean(f->skipped));
		json_add(rc, all, o);
	}
	return all;
}

static json_t *files_json(const struct out_dir *dir, int *rc)
{
	json_t *files = json_object();

	for (uint32_t i = 0; i < dir->n_files && *rc == 0; i++) {
		const struct out_file *f = &dir->files[i];
		json_t *sums = json_array(), *o = json_object();
		for (uint64_t c = 0; c < f->n_sums; c++) json_add(rc, sums, hex(f->sums[c]));
		json_put(rc, o, "bytes", integer(f->bytes));
		json_put(rc, o, "xxh3", sums);
		json_put(rc, files, f->name, o);
	}
	return files;
}

int run_json_write(struct out_dir *dir, const struct run_json *r)
{
	json_t *root = json_object();
	uint64_t sum = 0;
	char *text = NULL;
	int rc = 0;

	json_put(&rc, root, "format", json_string(FORMAT));
	json_put(&rc, root, "version", json_integer(FORMAT_VERSION));
	json_put(&rc, root, "mt_version", json_string(MT_VERSION));
	json_put(&rc, root, "dtype", json_string(r->dtype == MT_BF16 ? "bf16" : "fp32"));
	json_put(&rc, root, "run_id", hex_id(r->run_id));
	json_put(&rc, root, "step", integer(r->step));
	json_put(&rc, root, "t", integer(r->t));
	json_put(&rc, root, "position", position_json(&r->position, &rc));
	json_put(&rc, root, "record", r->has_record ? record_json(r, &rc) : json_null());
	json_put(&rc, root, "hyperparameters", r->hyper ? json_incref(r->hyper) : json_null());
	if (r->unlogged[0].step) json_put(&rc, root, "unlogged", unlogged_json(r->unlogged, &rc));
	json_put(&rc, root, "chunk_bytes", json_integer(IO_BYTES));
	json_put(&rc, root, "files", files_json(dir, &rc));
	if (rc == 0) rc = run_json_checksum(root, &sum);
	json_put(&rc, root, "checksum", hex(sum));
	if (rc == 0 && !(text = json_text(root, 1))) rc = mt_fail(MT_EX_NOMEM, "no memory for " NAME);
	json_decref(root);
	if (rc < 0) return mt_fail_in(rc, NAME);
	rc = out_text(dir, NAME, text, strlen(text));
	free(text);
	return rc;
}

/* ------------------------------------------------------------------------------------------------ in */

/* Counts grow with every step and are written as signed 64 bits: one that is read has room to grow. Steps are counted
 * in 24 bits (the journal's). */
#define COUNT_MOST ((uint64_t)1 << 62)
#define STEP_MOST ((1u << 24) - 1)

struct reader {
	int rc;
}; /* the first mistake stands, with its message */

static void refuse(struct reader *r, const char *key, const char *what)
{
	if (r->rc == 0) r->rc = mt_fail(MT_EX_DATA, NAME ": %s %s", key, what);
}

static uint64_t get_count(struct reader *r, const json_t *obj, const char *key, uint64_t most)
{
	const json_t *v = json_object_get(obj, key);

	if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > most) {
		refuse(r, key, "is not a number in range");
		return 0;
	}
	return (uint64_t)json_integer_value(v);
}

static uint64_t get_hex(struct reader *r, const json_t *v, const char *key)
{
	const char *s = json_string_value(v);

	if (!s || strlen(s) != 16 || strspn(s, "0123456789abcdef") != 16) {
		refuse(r, key, "is not 16 hexadecimal digits");
		return 0;
	}
	return strtoull(s, NULL, 16);
}

static void get_words(struct reader *r, const json_t *obj, const char *key, char *out, size_t room)
{
	const char *s = json_string_value(json_object_get(obj, key));

	if (!s || strlen(s) >= room) refuse(r, key, "is not a short text");
	else memcpy(out, s, strlen(s) + 1);
}

static void get_position(struct reader *r, const json_t *v, struct mt_position *p)
{
	if (!json_is_object(v)) return refuse(r, "position", "is missing");
	p->records = get_count(r, v, "records", COUNT_MOST);
	p->offset = get_count(r, v, "offset", COUNT_MOST);
	p->hash = get_hex(r, json_object_get(v, "hash"), "hash");
	p->hash_cut = get_hex(r, json_object_get(v, "hash_cut"), "hash_cut");
	p->carry = json_is_null(json_object_get(v, "carry")) ? MT_NO_TARGET
														 : (uint32_t)get_count(r, v, "carry", UINT32_MAX);
	p->seq = (uint32_t)get_count(r, v, "seq", INT32_MAX);
	p->batch = (uint32_t)get_count(r, v, "batch", INT32_MAX);
	p->pack = (uint32_t)get_count(r, v, "pack", INT32_MAX);
	p->tokens = get_count(r, v, "tokens", COUNT_MOST);
}

/* Keys and values that the run record's table can hold */
static void get_choices(struct reader *r, const json_t *v, struct run_json *out)
{
	const char *key;
	json_t *value;

	if (!v || json_is_null(v)) return;
	if (!json_is_object(v) || json_object_size(v) > MT_CHOICES)
		return refuse(r, "choices", "is not an object of at most 1024 entries");
	json_object_foreach((json_t *)v, key, value)
	{
		const char *s = json_string_value(value);

		if (!*key || strlen(key) >= MT_CHOICE_KEY || !s || strlen(s) > 2 * MT_CHOICE_VALUE || strlen(s) % 2 ||
			strspn(s, "0123456789abcdef") != strlen(s))
			return refuse(r, "choices", "has an entry that is not short hexadecimal bytes");
	}
	out->choices = (json_t *)v;
}

static void get_record(struct reader *r, const json_t *v, struct run_json *out)
{
	if (!v || json_is_null(v)) return;
	if (!json_is_object(v)) return refuse(r, "record", "is not an object");
	out->has_record = true;
	out->record.chunk_tokens = (uint32_t)get_count(r, v, "chunk_tokens", UINT32_MAX);
	out->record.head_tokens = (uint32_t)get_count(r, v, "head_tokens", UINT32_MAX);
	out->record.pass_rows = (uint32_t)get_count(r, v, "pass_rows", UINT32_MAX);
	get_words(r, v, "device", out->record.device, sizeof out->record.device);
	get_words(r, v, "gemm", out->record.gemm, sizeof out->record.gemm);
	get_words(r, v, "attention", out->record.attention, sizeof out->record.attention);
	if (json_object_get(v, "machine")) /* an earlier mt wrote none, and chose nothing */
		get_words(r, v, "machine", out->record.machine, sizeof out->record.machine);
	get_choices(r, json_object_get(v, "choices"), out);
}

static double get_figure(struct reader *r, const json_t *obj, const char *key)
{
	const json_t *v = json_object_get(obj, key);

	if (!json_is_number(v) && !json_is_null(v)) refuse(r, "unlogged", "has a value that is not a number");
	return json_is_number(v) ? json_number_value(v) : NAN;
}

static void get_unlogged(struct reader *r, const json_t *v, struct run_json *out)
{
	size_t n = json_array_size(v);

	if (!v) return;
	if (!json_is_array(v) || n > 2) return refuse(r, "unlogged", "is not a list of at most two steps");
	for (size_t i = 0; i < n; i++) {
		const json_t *o = json_array_get(v, i);
		const json_t *skipped = json_object_get(o, "skipped");
		if (!json_is_boolean(skipped)) return refuse(r, "unlogged", "has no boolean 'skipped'");
		out->unlogged[i] = (struct mt_figures){.step = get_count(r, o, "step", out->step),
			.loss = get_figure(r, o, "loss"),
			.norm = get_figure(r, o, "grad_norm"),
			.lr = get_figure(r, o, "lr"),
			.tokens = get_count(r, o, "tokens", COUNT_MOST),
			.skipped = json_is_true(skipped)};
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
		if (!file_name_plain(name)) refuse(r, "files", "names a file outside the directory");
		if (!json_is_array(sums) || json_array_size(sums) != bytes / IO_BYTES + (bytes % IO_BYTES != 0))
			refuse(r, "files", "has not one checksum for every chunk");
		for (size_t c = 0; c < json_array_size(sums); c++) get_hex(r, json_array_get(sums, c), "xxh3");
	}
}

static void get_dtype(struct reader *r, const json_t *root, struct run_json *out)
{
	const char *s = json_string_value(json_object_get(root, "dtype"));

	out->dtype = s && !strcmp(s, "bf16") ? MT_BF16 : MT_FP32;
	if (!s || (strcmp(s, "bf16") && strcmp(s, "fp32"))) refuse(r, "dtype", "is neither bf16 nor fp32");
}

static void get_id(struct reader *r, const json_t *root, struct run_json *out)
{
	const char *s = json_string_value(json_object_get(root, "run_id"));
	unsigned byte;

	if (!s || strlen(s) != 32 || strspn(s, "0123456789abcdef") != 32)
		return refuse(r, "run_id", "is not 32 hexadecimal digits");
	for (int i = 0; i < 16 && sscanf(s + 2 * i, "%2x", &byte) == 1; i++) out->run_id[i] = (uint8_t)byte;
}

static int check_form(json_t *root)
{
	const char *format = json_string_value(json_object_get(root, "format"));
	struct reader r = {0};

	if (!format || strcmp(format, FORMAT)) return mt_fail(MT_EX_DATA, NAME ": not an mt checkpoint");
	if (json_integer_value(json_object_get(root, "version")) != FORMAT_VERSION)
		return mt_fail(MT_EX_DATA, NAME ": a version of the format that this mt does not know");
	uint64_t said = get_hex(&r, json_object_get(root, "checksum"), "checksum");
	if (r.rc < 0) return r.rc;
	json_object_del(root, "checksum");
	uint64_t sum;
	int rc = run_json_checksum(root, &sum);
	if (rc < 0) return rc;
	if (sum != said) return mt_fail(MT_EX_DATA, NAME ": is damaged: its own checksum is wrong");
	if (get_count(&r, root, "chunk_bytes", UINT32_MAX) != IO_BYTES) refuse(&r, "chunk_bytes", "is not 16 MiB");
	return r.rc;
}

int run_json_parse(json_t *root, struct run_json *out, json_t **files)
{
	struct reader r = {.rc = check_form(root)};

	*out = (struct run_json){0};
	if (r.rc < 0) return r.rc;
	*files = json_object_get(root, "files");
	get_dtype(&r, root, out);
	get_id(&r, root, out);
	out->step = get_count(&r, root, "step", STEP_MOST);
	out->t = get_count(&r, root, "t", out->step);
	get_position(&r, json_object_get(root, "position"), &out->position);
	get_record(&r, json_object_get(root, "record"), out);
	get_unlogged(&r, json_object_get(root, "unlogged"), out);
	get_files(&r, *files);
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

static int verify_file(int dirfd, const char *name, const json_t *f, void *buf)
{
	const json_t *sums = json_object_get(f, "xxh3");
	uint64_t want = (uint64_t)json_integer_value(json_object_get(f, "bytes")), size;
	int fd, rc = file_open(dirfd, name, &fd, &size);

	if (rc < 0) return rc == -MT_EX_NOINPUT ? mt_fail(MT_EX_DATA, "%s: is missing", shown(name)) : rc;
	if (size != want)
		rc = mt_fail(MT_EX_DATA, "%s: has %" PRIu64 " bytes where " NAME " says %" PRIu64, shown(name), size, want);
	for (size_t c = 0; rc == 0 && c < json_array_size(sums); c++) {
		uint64_t at = c * (uint64_t)IO_BYTES, n = size - at < IO_BYTES ? size - at : IO_BYTES;
		rc = file_read(fd, name, buf, n, at);
		if (rc == 0 && XXH3_64bits(buf, n) != strtoull(json_string_value(json_array_get(sums, c)), NULL, 16))
			rc = mt_fail(MT_EX_DATA, "%s: chunk %zu (bytes %" PRIu64 " to %" PRIu64 ") is damaged", shown(name), c, at,
				at + n - 1);
	}
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
			return mt_fail(MT_EX_IO, "%s: has %lld bytes, but %lld were written", shown(name), (long long)st.st_size,
				(long long)want);
	}
	return 0;
}

int run_json_verify(int dirfd, json_t *files, const char *only)
{
	void *buf = malloc(IO_BYTES);
	const char *name;
	json_t *f;
	int rc = buf ? 0 : mt_fail(MT_EX_NOMEM, "no memory to verify checksums");

	if (only && !json_object_get(files, only)) rc = mt_fail(MT_EX_DATA, NAME ": has no checksums of %s", only);
	json_object_foreach(files, name, f) if (rc == 0 && (!only || !strcmp(name, only)))
		rc = verify_file(dirfd, name, f, buf);
	free(buf);
	return rc;
}
