/* runjson.c: run.json, what a checkpoint knows beside its arrays: where the run stood, what may change a bit of what
 * follows, and a checksum of every chunk of every file, its own content included.
 *
 * Numbers of 64 bits that are not counts (hashes) are strings of 16 hexadecimal digits. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>
#include "ckpt.h"

#define NAME   "run.json"
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

	for (int i = 0; i < 16; i++)
		snprintf(buf + 2 * i, 3, "%02x", id[i]);
	return json_string(buf);
}

/* Of everything in it but the checksum itself, independent of white space and order. */
uint64_t run_json_checksum(json_t *root)
{
	char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
	uint64_t sum = text ? XXH3_64bits(text, strlen(text)) : 0;

	free(text);
	return sum;
}

/* ------------------------------------------------------------------------------------------------ out */

static json_t *position_json(const struct mt_position *p)
{
	json_t *carry = p->carry == MT_NO_TARGET ? json_null() : json_integer(p->carry);

	return json_pack("{s:I, s:I, s:o, s:o, s:o, s:i, s:i, s:i, s:I}", "records", (json_int_t)p->records, "offset",
			 (json_int_t)p->offset, "hash", hex(p->hash), "hash_cut", hex(p->hash_cut), "carry", carry,
			 "seq", (int)p->seq, "batch", (int)p->batch, "pack", (int)p->pack, "tokens", (json_int_t)p->tokens);
}

/* Text of the run's memory as it may be: a NUL is behind it, whatever it holds */
static json_t *words(const char *text, size_t room)
{
	return json_stringn(text, strnlen(text, room));
}

static json_t *record_json(const struct run_json *j)
{
	const struct mt_record *r = &j->record;

	return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:O?}", "chunk_tokens", (json_int_t)r->chunk_tokens,
			 "head_tokens", (json_int_t)r->head_tokens, "pass_rows", (json_int_t)r->pass_rows,
			 "device", words(r->device, sizeof r->device), "gemm", words(r->gemm, sizeof r->gemm),
			 "attention", words(r->attention, sizeof r->attention),
			 "machine", words(r->machine, sizeof r->machine), "choices", j->choices);
}

static json_t *files_json(const struct out_dir *dir)
{
	json_t *files = json_object();

	for (uint32_t i = 0; i < dir->n_files; i++) {
		const struct out_file *f = &dir->files[i];
		json_t *sums = json_array();
		for (uint64_t c = 0; c < f->n_sums; c++)
			json_array_append_new(sums, hex(f->sums[c]));
		json_object_set_new(files, f->name, json_pack("{s:I, s:o}", "bytes", (json_int_t)f->bytes, "xxh3", sums));
	}
	return files;
}

int run_json_write(struct out_dir *dir, const struct run_json *r)
{
	json_t *root = json_pack("{s:s, s:i, s:s, s:s, s:o, s:I, s:I, s:o, s:o?, s:O?, s:i, s:o}",
		"format", FORMAT, "version", FORMAT_VERSION, "mt_version", MT_VERSION,
		"dtype", r->dtype == MT_BF16 ? "bf16" : "fp32", "run_id", hex_id(r->run_id),
		"step", (json_int_t)r->step, "t", (json_int_t)r->t, "position", position_json(&r->position),
		"record", r->has_record ? record_json(r) : NULL, "hyperparameters", r->hyper,
		"chunk_bytes", (int)IO_BYTES, "files", files_json(dir));

	if (!root)
		return mt_fail(MT_EX_DATA, "%s: the run's record is not text that JSON can hold", NAME);
	json_object_set_new(root, "checksum", hex(run_json_checksum(root)));
	char *text = json_text(root, 1);
	json_decref(root);
	int rc = text ? out_text(dir, NAME, text, strlen(text)) : mt_fail(MT_EX_NOMEM, "no memory for " NAME);
	free(text);
	return rc;
}

/* ------------------------------------------------------------------------------------------------ in */

struct reader { int rc; };              /* the first mistake stands, with its message */

static void refuse(struct reader *r, const char *key, const char *what)
{
	if (r->rc == 0)
		r->rc = mt_fail(MT_EX_DATA, NAME ": %s %s", key, what);
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

	if (!s || strlen(s) >= room)
		refuse(r, key, "is not a short text");
	else
		memcpy(out, s, strlen(s) + 1);
}

static void get_position(struct reader *r, const json_t *v, struct mt_position *p)
{
	if (!json_is_object(v))
		return refuse(r, "position", "is missing");
	p->records = get_count(r, v, "records", INT64_MAX);
	p->offset = get_count(r, v, "offset", INT64_MAX);
	p->hash = get_hex(r, json_object_get(v, "hash"), "hash");
	p->hash_cut = get_hex(r, json_object_get(v, "hash_cut"), "hash_cut");
	p->carry = json_is_null(json_object_get(v, "carry")) ? MT_NO_TARGET : (uint32_t)get_count(r, v, "carry", UINT32_MAX);
	p->seq = (uint32_t)get_count(r, v, "seq", INT32_MAX);
	p->batch = (uint32_t)get_count(r, v, "batch", INT32_MAX);
	p->pack = (uint32_t)get_count(r, v, "pack", INT32_MAX);
	p->tokens = get_count(r, v, "tokens", INT64_MAX);
}

/* Keys and values that the run record's table can hold */
static void get_choices(struct reader *r, const json_t *v, struct run_json *out)
{
	const char *key;
	json_t *value;

	if (!v || json_is_null(v))
		return;
	if (!json_is_object(v) || json_object_size(v) > MT_CHOICES)
		return refuse(r, "choices", "is not an object of at most 1024 entries");
	json_object_foreach((json_t *)v, key, value) {
		const char *s = json_string_value(value);

		if (!*key || strlen(key) >= MT_CHOICE_KEY || !s || strlen(s) > 2 * MT_CHOICE_VALUE || strlen(s) % 2 ||
		    strspn(s, "0123456789abcdef") != strlen(s))
			return refuse(r, "choices", "has an entry that is not short hexadecimal bytes");
	}
	out->choices = (json_t *)v;
}

static void get_record(struct reader *r, const json_t *v, struct run_json *out)
{
	if (!v || json_is_null(v))
		return;
	if (!json_is_object(v))
		return refuse(r, "record", "is not an object");
	out->has_record = true;
	out->record.chunk_tokens = (uint32_t)get_count(r, v, "chunk_tokens", UINT32_MAX);
	out->record.head_tokens = (uint32_t)get_count(r, v, "head_tokens", UINT32_MAX);
	out->record.pass_rows = (uint32_t)get_count(r, v, "pass_rows", UINT32_MAX);
	get_words(r, v, "device", out->record.device, sizeof out->record.device);
	get_words(r, v, "gemm", out->record.gemm, sizeof out->record.gemm);
	get_words(r, v, "attention", out->record.attention, sizeof out->record.attention);
	if (json_object_get(v, "machine"))      /* an earlier mt wrote none, and chose nothing */
		get_words(r, v, "machine", out->record.machine, sizeof out->record.machine);
	get_choices(r, json_object_get(v, "choices"), out);
}

static void get_files(struct reader *r, const json_t *files)
{
	const char *name;
	json_t *f;

	if (!json_object_size(files))
		return refuse(r, "files", "is missing");
	json_object_foreach((json_t *)files, name, f) {
		uint64_t bytes = get_count(r, f, "bytes", INT64_MAX);
		const json_t *sums = json_object_get(f, "xxh3");
		if (!file_name_plain(name))
			refuse(r, "files", "names a file outside the directory");
		if (!json_is_array(sums) || json_array_size(sums) != bytes / IO_BYTES + (bytes % IO_BYTES != 0))
			refuse(r, "files", "has not one checksum for every chunk");
		for (size_t c = 0; c < json_array_size(sums); c++)
			get_hex(r, json_array_get(sums, c), "xxh3");
	}
}

static void get_dtype(struct reader *r, const json_t *root, struct run_json *out)
{
	const char *s = json_string_value(json_object_get(root, "dtype"));

	out->dtype = s && !strcmp(s, "bf16") ? MT_BF16 : MT_FP32;
	if (!s || (strcmp(s, "bf16") && strcmp(s, "fp32")))
		refuse(r, "dtype", "is neither bf16 nor fp32");
}

static void get_id(struct reader *r, const json_t *root, struct run_json *out)
{
	const char *s = json_string_value(json_object_get(root, "run_id"));
	unsigned byte;

	if (!s || strlen(s) != 32 || strspn(s, "0123456789abcdef") != 32)
		return refuse(r, "run_id", "is not 32 hexadecimal digits");
	for (int i = 0; i < 16 && sscanf(s + 2 * i, "%2x", &byte) == 1; i++)
		out->run_id[i] = (uint8_t)byte;
}

static int check_form(json_t *root)
{
	const char *format = json_string_value(json_object_get(root, "format"));
	struct reader r = { 0 };

	if (!format || strcmp(format, FORMAT))
		return mt_fail(MT_EX_DATA, NAME ": not an mt checkpoint");
	if (json_integer_value(json_object_get(root, "version")) != FORMAT_VERSION)
		return mt_fail(MT_EX_DATA, NAME ": a version of the format that this mt does not know");
	uint64_t said = get_hex(&r, json_object_get(root, "checksum"), "checksum");
	if (r.rc < 0)
		return r.rc;
	json_object_del(root, "checksum");
	if (run_json_checksum(root) != said)
		return mt_fail(MT_EX_DATA, NAME ": is damaged: its own checksum is wrong");
	if (get_count(&r, root, "chunk_bytes", UINT32_MAX) != IO_BYTES)
		refuse(&r, "chunk_bytes", "is not 16 MiB");
	return r.rc;
}

int run_json_parse(json_t *root, struct run_json *out, json_t **files)
{
	struct reader r = { .rc = check_form(root) };

	*out = (struct run_json){ 0 };
	if (r.rc < 0)
		return r.rc;
	*files = json_object_get(root, "files");
	get_dtype(&r, root, out);
	get_id(&r, root, out);
	out->step = get_count(&r, root, "step", INT64_MAX);
	out->t = get_count(&r, root, "t", out->step);
	get_position(&r, json_object_get(root, "position"), &out->position);
	get_record(&r, json_object_get(root, "record"), out);
	get_files(&r, *files);
	return r.rc;
}

int run_json_read(int dirfd, struct run_json *out, json_t **root, json_t **files)
{
	int rc;

	*out = (struct run_json){ 0 };
	*root = NULL;
	rc = file_read_json(dirfd, NAME, root);
	if (rc == 0)
		rc = run_json_parse(*root, out, files);
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

	if (rc < 0)
		return rc == -MT_EX_NOINPUT ? mt_fail(MT_EX_DATA, "%s: is missing", shown(name)) : rc;
	if (size != want)
		rc = mt_fail(MT_EX_DATA, "%s: has %" PRIu64 " bytes where " NAME " says %" PRIu64, shown(name), size, want);
	for (size_t c = 0; rc == 0 && c < json_array_size(sums); c++) {
		uint64_t at = c * (uint64_t)IO_BYTES, n = size - at < IO_BYTES ? size - at : IO_BYTES;
		rc = file_read(fd, name, buf, n, at);
		if (rc == 0 && XXH3_64bits(buf, n) != strtoull(json_string_value(json_array_get(sums, c)), NULL, 16))
			rc = mt_fail(MT_EX_DATA, "%s: chunk %zu (bytes %" PRIu64 " to %" PRIu64 ") is damaged", shown(name), c,
				     at, at + n - 1);
	}
	close(fd);
	return rc;
}

int run_json_verify(int dirfd, json_t *files, const char *only)
{
	void *buf = malloc(IO_BYTES);
	const char *name;
	json_t *f;
	int rc = buf ? 0 : mt_fail(MT_EX_NOMEM, "no memory to verify checksums");

	if (only && !json_object_get(files, only))
		rc = mt_fail(MT_EX_DATA, NAME ": has no checksums of %s", only);
	json_object_foreach(files, name, f)
		if (rc == 0 && (!only || !strcmp(name, only)))
			rc = verify_file(dirfd, name, f, buf);
	free(buf);
	return rc;
}
