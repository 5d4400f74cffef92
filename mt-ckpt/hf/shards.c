/* shards.c: one array of all tensors as one safetensors file, or as several with an index: which bytes are where. */
#include <endian.h>
#include <stdlib.h>
#include "out.h"

const char *const st_sets[ARRAYS] = {"model", "optim-lo", "optim-m", "optim-v"};

enum st_dtype array_dtype(enum array a, uint32_t type)
{
	return a == ARRAY_LO ? ST_I16 : type == MT_BF16 ? ST_BF16 : type == MT_INT8 ? ST_U8 : ST_F32;
}

static int no_memory(void) { return mt_fail(MT_EX_NOMEM, "no memory for the tables of a checkpoint"); }

static void file_name(const struct shards *s, uint32_t shard, char buf[96])
{
	if (s->n_shards == 1 && !s->other) snprintf(buf, 96, "%s.safetensors", s->set);
	else snprintf(buf, 96, "%s-%05u-of-%05u.safetensors", s->set, shard + 1, s->n_shards);
}

static bool is_fp32(const struct shards *s, uint32_t tensor)
{
	const struct mt_tensor *t = &s->table[tensor];
	return s->dtype == ST_F32 || (t->exact && s->exact_roles >> t->role & 1);
}

uint64_t shards_elem(const struct shards *s, uint32_t tensor)
{
	return is_fp32(s, tensor) ? 4 : s->dtype == ST_U8 ? 1 : 2;
}

static json_t *entry(const struct shards *s, uint32_t tensor, int *rc)
{
	const struct mt_tensor *t = &s->table[tensor];
	json_t *o = json_object();
	json_put(rc, o, "dtype",
		json_string(is_fp32(s, tensor) ? "F32"
				: s->dtype == ST_BF16  ? "BF16"
				: s->dtype == ST_U8    ? "U8"
									   : "I16"));
	json_t *shape = json_array();
	uint64_t dims[4];
	mt_tensor_dims(t, dims);
	for (uint32_t d = 0; d < t->ndim; d++) json_add(rc, shape, json_integer((json_int_t)dims[d]));
	json_put(rc, o, "shape", shape);
	json_put(rc, o, "data_offsets",
		json_pack("[I, I]", (json_int_t)s->begin[tensor],
			(json_int_t)(s->begin[tensor] + t->n * shards_elem(s, tensor))));
	return o;
}

char *shard_header(json_t *root, int rc, uint64_t *bytes)
{
	char *text = rc == 0 ? json_dumps(root, JSON_COMPACT) : NULL, *header = NULL;
	size_t n = text ? strlen(text) : 0, padded = (n + 7) & ~(size_t)7;
	uint64_t le = htole64(padded);
	json_decref(root);
	*bytes = 8 + padded;
	if (text && (header = malloc(*bytes))) {
		memcpy(header, &le, 8);
		memcpy(header + 8, text, n);
		memset(header + 8 + n, ' ', padded - n);
	}
	free(text);
	return header;
}

static int make_header(const struct shards *s, struct shard *shard)
{
	json_t *root = json_object();
	int rc = 0;
	json_put(&rc, root, "__metadata__", json_pack("{s:s}", "format", "pt"));
	for (uint32_t i = shard->first; i < shard->end; i++) json_put(&rc, root, s->table[i].name, entry(s, i, &rc));
	shard->header = shard_header(root, rc, &shard->header_bytes);
	return shard->header ? 0 : rc < 0 ? rc : no_memory();
}

/* Divide the tensors among shards, in the table's order. */
static void divide(struct shards *s, uint64_t limit)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < s->n; i++) {
		uint64_t size = s->table[i].n * shards_elem(s, i);
		if (i == 0 || bytes + size > limit) { /* a tensor larger than the limit has a shard to itself */
			s->shard[s->n_shards++].first = i;
			bytes = 0;
		}
		s->begin[i] = bytes;
		bytes += size;
		s->total += size;
		s->shard[s->n_shards - 1].end = i + 1;
		s->shard[s->n_shards - 1].bytes = bytes;
	}
}

int shards_begin(struct shards *s, struct out_dir *dir, const char *set, enum st_dtype dtype, uint64_t exact_roles,
	const struct mt_tensor *table, uint32_t n, uint64_t limit)
{
	int rc = 0;
	*s = (struct shards){.dir = dir, .set = set, .dtype = dtype, .exact_roles = exact_roles, .table = table, .n = n};
	s->begin = calloc((size_t)n + 1, sizeof *s->begin);
	s->shard = calloc((size_t)n + 1, sizeof *s->shard);
	if (!s->begin || !s->shard) return no_memory();
	divide(s, limit);
	for (uint32_t i = 0; i < s->n_shards && rc == 0; i++) {
		if ((rc = make_header(s, &s->shard[i])) == 0) s->shard[i].bytes += s->shard[i].header_bytes;
	}
	return rc;
}

void shards_add(struct shards *s, const struct shard_other *other) { s->other = other; }

int shards_open(struct shards *s, uint32_t shard)
{
	char name[96];
	if (s->shard[shard].file) return 0;
	file_name(s, shard, name);
	int rc = out_create(s->dir, name, s->shard[shard].bytes, &s->shard[shard].file);
	if (rc == 0) out_direct(s->shard[shard].file);
	return rc;
}

uint32_t shards_tensor(const struct shards *s, uint32_t shard, uint64_t at)
{
	uint32_t low = s->shard[shard].first, high = s->shard[shard].end;
	while (high - low > 1) { /* s->begin[low] <= at */
		uint32_t mid = low + (high - low) / 2;
		if (s->begin[mid] <= at) low = mid;
		else high = mid;
	}
	return low;
}

int shards_index(const struct shards *s)
{
	json_t *root, *map;
	char name[96];
	int rc = 0;
	if (s->n_shards < 2 && !s->other) return 0;
	root = json_object();
	map = json_object();
	for (uint32_t shard = 0; shard < s->n_shards; shard++) {
		file_name(s, shard, name);
		for (uint32_t i = s->shard[shard].first; i < s->shard[shard].end; i++)
			json_put(&rc, map, s->table[i].name, json_string(name));
	}
	for (uint32_t i = 0; s->other && i < s->other->n; i++)
		json_put(&rc, map, s->other->names[i], json_string(s->other->file));
	json_put(&rc, root, "metadata",
		json_pack("{s:I}", "total_size", (json_int_t)(s->total + (s->other ? s->other->bytes : 0))));
	json_put(&rc, root, "weight_map", map);
	snprintf(name, sizeof name, "%s.safetensors.index.json", s->set);
	return out_json(s->dir, name, root, 2, rc);
}

void shards_drop(struct shards *s)
{
	for (uint32_t i = 0; i < s->n_shards; i++) free(s->shard[i].header);
	free(s->begin);
	free(s->shard);
	*s = (struct shards){0};
}
