/* safetensors.c: reads and checks the header of a safetensors file, which may be damaged or hostile.
 *
 *     | N: u64 little-endian | header: N bytes of JSON | data |
 *
 * The header maps each tensor's name to its dtype, shape and data_offsets [begin, end), counted from the data's start.
 * Together the tensors must cover the data exactly: no overlap, no gap, nothing after the last one.
 *
 * Several files are one set, by an index that says which tensor is in which. */
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "hffiles.h"
#include "hfjson.h"
#include "mt/error.h"
#include "say.h"

static const struct {
	const char *name;
	uint32_t bytes;
	enum st_dtype dtype;
} dtypes[] = {
	{"F32", 4, ST_F32},
	{"BF16", 2, ST_BF16},
	{"F16", 2, ST_F16},
	{"I16", 2, ST_I16},
	{"F64", 8, ST_OTHER},
	{"I64", 8, ST_OTHER},
	{"U64", 8, ST_OTHER},
	{"I32", 4, ST_OTHER},
	{"U32", 4, ST_OTHER},
	{"U16", 2, ST_OTHER},
	{"I8", 1, ST_OTHER},
	{"U8", 1, ST_U8},
	{"BOOL", 1, ST_OTHER},
	{"F8_E4M3", 1, ST_F8},
	{"F8_E5M2", 1, ST_OTHER},
	{"F8_E8M0", 1, ST_E8M0},
	{"C64", 8, ST_OTHER},
};

static int bad(const struct st_file *f, const char *tensor, const char *what)
{
	return mt_fail(MT_EX_DATA, "%s: tensor '%s': %s", f->name, shown(tensor), what);
}

/* A JSON integer that is not negative */
static bool whole(const json_t *v, uint64_t *out)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
	*out = (uint64_t)json_integer_value(v);
	return true;
}

static int read_dtype(const struct st_file *f, struct st_tensor *t, const json_t *v, uint32_t *bytes)
{
	const char *name = json_string_value(v);
	if (!name) return bad(f, t->name, "no dtype");
	for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
		if (!strcmp(name, dtypes[i].name)) {
			t->dtype = dtypes[i].dtype;
			t->dtype_name = dtypes[i].name;
			*bytes = t->elem = dtypes[i].bytes;
			return 0;
		}
	return mt_fail(MT_EX_DATA, "%s: tensor '%s': unknown dtype '%s'", f->name, shown(t->name), shown(name));
}

/* *need: bytes that shape and dtype require */
static int read_shape(const struct st_file *f, struct st_tensor *t, const json_t *v, uint32_t bytes, uint64_t *need)
{
	if (!json_is_array(v)) return bad(f, t->name, "no shape");
	if (json_array_size(v) > ST_DIMS) return bad(f, t->name, "more than 8 dimensions");
	t->ndim = (uint32_t)json_array_size(v);
	*need = bytes;
	for (uint32_t d = 0; d < t->ndim; d++) {
		if (!whole(json_array_get(v, d), &t->shape[d])) return bad(f, t->name, "shape is not made of whole numbers");
		if (__builtin_mul_overflow(*need, t->shape[d], need)) return bad(f, t->name, "shape overflows");
	}
	return 0;
}

static int read_tensor(const struct st_file *f, struct st_tensor *t, const json_t *v, uint64_t data,
	uint64_t data_bytes)
{
	const json_t *off = json_object_get(v, "data_offsets");
	uint64_t begin, end, need = 0;
	uint32_t bytes = 0;
	int rc;
	if (!json_is_object(v)) return bad(f, t->name, "its entry is not an object");
	if ((rc = read_dtype(f, t, json_object_get(v, "dtype"), &bytes)) < 0 ||
		(rc = read_shape(f, t, json_object_get(v, "shape"), bytes, &need)) < 0)
		return rc;
	if (json_array_size(off) != 2 || !whole(json_array_get(off, 0), &begin) || !whole(json_array_get(off, 1), &end))
		return bad(f, t->name, "data_offsets are not two whole numbers");
	if (begin > end) return bad(f, t->name, "data_offsets end before they begin");
	if (end > data_bytes) return bad(f, t->name, "offsets past end of file");
	if (end - begin != need)
		return mt_fail(MT_EX_DATA, "%s: tensor '%s': %llu byte%s for a shape that needs %llu", f->name, shown(t->name),
			(unsigned long long)(end - begin), mt_s(end - begin), (unsigned long long)need);
	t->begin = data + begin;
	t->end = data + end;
	t->listed = true;
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct st_tensor *x = a, *y = b;
	if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
	return x->end == y->end ? 0 : x->end < y->end ? -1 : 1;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

/* Every byte of the data belongs to exactly one tensor. */
static int check_cover(struct st_file *f, uint64_t data, uint64_t size)
{
	uint64_t at = data;
	if (f->n) qsort(f->tensors, f->n, sizeof *f->tensors, by_place);
	for (size_t i = 0; i < f->n; i++) {
		const struct st_tensor *t = &f->tensors[i];
		if (t->begin < at)
			return mt_fail(MT_EX_DATA, "%s: tensor '%s': overlaps tensor '%s'", f->name, shown(t->name),
				shown(f->tensors[i - 1].name));
		if (t->begin > at)
			return mt_fail(MT_EX_DATA, "%s: tensor '%s': %llu byte%s before it belong%s to no tensor", f->name,
				shown(t->name), (unsigned long long)(t->begin - at), mt_s(t->begin - at),
				t->begin - at == 1 ? "s" : "");
		at = t->end;
	}
	if (at != size)
		return mt_fail(MT_EX_DATA, "%s: %llu byte%s at its end belong%s to no tensor", f->name,
			(unsigned long long)(size - at), mt_s(size - at), size - at == 1 ? "s" : "");
	if (f->n) qsort(f->tensors, f->n, sizeof *f->tensors, by_name);
	return 0;
}

static int check_metadata(const struct st_file *f, json_t *meta)
{
	const char *key;
	json_t *v;
	if (!json_is_object(meta)) return mt_fail(MT_EX_DATA, "%s: __metadata__ is not an object", f->name);
	json_object_foreach(meta, key, v) if (!json_is_string(v)) return mt_fail(MT_EX_DATA,
		"%s: __metadata__: '%s' is not a string", f->name, shown(key));
	return 0;
}

int st_header(struct st_file *f, const char *text, uint64_t n, uint64_t size)
{
	json_error_t err;
	int rc = 0;
	if (n == 0 || text[0] != '{') return mt_fail(MT_EX_DATA, "%s: header does not begin with '{'", f->name);
	if (!(f->header = hfjson_load(text, n, &err)))
		return mt_fail(json_error_code(&err) == json_error_out_of_memory ? MT_EX_NOMEM : MT_EX_DATA, "%s: header: %s",
			f->name, shown(err.text));

	const char *key;
	json_t *v;
	f->tensors = calloc(json_object_size(f->header) + 1, sizeof *f->tensors);
	if (!f->tensors) return mt_fail(MT_EX_NOMEM, "%s: no memory for its tensors", f->name);
	json_object_foreach(f->header, key, v)
	{
		if (!strcmp(key, "__metadata__")) rc = check_metadata(f, v);
		else {
			f->tensors[f->n].name = key;
			rc = read_tensor(f, &f->tensors[f->n++], v, 8 + n, size - 8 - n);
		}
		if (rc < 0) return rc;
	}
	return check_cover(f, 8 + n, size);
}

static int read_header(struct st_file *f, uint64_t size)
{
	uint64_t n;
	char *text;
	int rc;
	char start[64];
	uint64_t some = size < sizeof start ? size : sizeof start;
	if ((rc = file_read(f->fd, f->name, start, some, 0)) < 0) return rc;
	if (hf_is_lfs_pointer(start, some)) return mt_fail(MT_EX_DATA, "%s: " HF_LFS_POINTER, f->name);
	if (size < 8)
		return mt_fail(MT_EX_DATA, "%s: %llu byte%s too few for a safetensors file", f->name, (unsigned long long)size,
			size == 1 ? " is" : "s are");
	memcpy(&n, start, 8);
	n = le64toh(n);
	if (n > JSON_LIMIT)
		return mt_fail(MT_EX_DATA, "%s: header length %llu is too large", f->name, (unsigned long long)n);
	if (n > size - 8)
		return mt_fail(MT_EX_DATA, "%s: header of %llu bytes goes past end of file", f->name, (unsigned long long)n);
	if (!(text = malloc(n + 1)))
		return mt_fail(MT_EX_NOMEM, "%s: no memory for a header of %llu bytes", f->name, (unsigned long long)n);
	rc = file_read(f->fd, f->name, text, n, 8);
	if (rc == 0) rc = st_header(f, text, n, size);
	free(text);
	return rc;
}

static int st_open(struct st_file *f, int dirfd, const char *name)
{
	uint64_t size;
	int rc;
	*f = (struct st_file){.fd = -1};
	if ((rc = file_open_regular(dirfd, name, &f->fd, &size)) < 0) {
		f->fd = -1;
		return rc;
	}
	f->name = strdup(shown(name));
	f->path = strdup(name);
	rc = f->name && f->path ? read_header(f, size) : mt_fail(MT_EX_NOMEM, "%s: no memory", shown(name));
	if (rc < 0) st_close(f);
	return rc;
}

void st_close(struct st_file *f)
{
	if (f->fd >= 0) close(f->fd);
	json_decref(f->header);
	free(f->tensors);
	free(f->name);
	free(f->path);
	*f = (struct st_file){.fd = -1};
}

struct st_tensor *st_find(const struct st_file *f, const char *name)
{
	struct st_tensor key = {.name = name};
	return f->n ? bsearch(&key, f->tensors, f->n, sizeof key, by_name) : NULL;
}

/* ---- one or several files */

int st_add(struct st_files *m, int dirfd, const char *name)
{
	struct st_file *files = realloc(m->v, (m->n + 1) * sizeof *files);
	if (!files) return mt_fail(MT_EX_NOMEM, "%s: no memory", shown(name));
	m->v = files;
	int rc = st_open(&files[m->n], dirfd, name);
	if (rc == 0) m->n++;
	return rc;
}

/* Open each file of the weight_map once, and mark the tensors that the map lists for it. */
int st_shards(struct st_files *m, int dirfd, const json_t *index, const char *without)
{
	json_t *map = json_object_get(index, "weight_map"), *v;
	json_t *seen = json_object(); /* file name -> its number */
	const char *key;
	int rc = 0;
	if (!json_is_object(map)) rc = mt_fail(MT_EX_DATA, "%s: no weight_map", m->label);
	else json_object_foreach(map, key, v)
		{
			const char *name = json_string_value(v);
			if (!name || !file_name_plain(name)) {
				rc = mt_fail(MT_EX_DATA, "%s: tensor '%s': '%s' is not a file of this directory", m->label, shown(key),
					name ? shown(name) : "?");
				break;
			}
			if (without && !strcmp(name, without)) continue;
			json_t *number = json_object_get(seen, name);
			if (!number) {
				if ((rc = st_add(m, dirfd, name)) < 0) break;
				struct st_file *f = &m->v[m->n - 1];
				for (size_t j = 0; j < f->n; j++) f->tensors[j].listed = false;
				if (json_object_set_new(seen, name, json_integer(m->n - 1)) < 0) {
					rc = mt_fail(MT_EX_NOMEM, "no memory for JSON");
					break;
				}
				number = json_object_get(seen, name);
			}
			struct st_tensor *t = st_find(&m->v[json_integer_value(number)], key);
			if (!t) {
				rc = mt_fail(MT_EX_DATA, "%s: tensor '%s': is not in %s", m->label, shown(key), shown(name));
				break;
			}
			t->listed = true;
		}
	json_decref(seen);
	return rc;
}

static void file_names(const char *set, char file[64], char index[64])
{
	snprintf(file, 64, "%s.safetensors", set);
	snprintf(index, 64, "%s.safetensors.index.json", set);
}

bool st_exists(int dirfd, const char *set)
{
	char file[64], index[64];
	file_names(set, file, index);
	return file_exists(dirfd, file) || file_exists(dirfd, index);
}

/* Add to the message what the directory has in place of the weights */
static int missing_weights(int dirfd)
{
	char path[40];
	snprintf(path, sizeof path, "/proc/self/fd/%d", dirfd);
	return mt_fail(MT_EX_NOINPUT, "%s%s", mt_errmsg(), hf_other_format(path));
}

int st_files_open(struct st_files *m, int dirfd, const char *set, const char *without)
{
	char file[64], index[64];
	json_t *root = NULL;
	int rc = 0;
	file_names(set, file, index);
	bool sharded = !file_exists(dirfd, file) && file_exists(dirfd, index);
	*m = (struct st_files){.label = strdup(sharded ? index : file)};
	if (!m->label) return mt_fail(MT_EX_NOMEM, "%s: no memory", file);
	if (!sharded) rc = st_add(m, dirfd, file);
	else if ((rc = file_read_json(dirfd, index, &root)) == 0) rc = st_shards(m, dirfd, root, without);
	json_decref(root);
	return rc == -MT_EX_NOINPUT && !sharded ? missing_weights(dirfd) : rc;
}

void st_files_close(struct st_files *m)
{
	for (uint32_t i = 0; i < m->n; i++) st_close(&m->v[i]);
	free(m->v);
	free(m->label);
	*m = (struct st_files){0};
}
