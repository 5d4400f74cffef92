/* shards.c: writes one array of all tensors as one safetensors file, or as several with an index. */
#include <endian.h>
#include <stdlib.h>
#include "ckpt.h"

const struct st_set st_sets[ARRAYS] = {
	[ARRAY_W] = {"model", ST_F32},
	[ARRAY_LO] = {"optim-lo", ST_I16},
	[ARRAY_M] = {"optim-m", ST_F32}, /* or bf16 */
	[ARRAY_V] = {"optim-v", ST_F32},
};

static int no_memory(void) { return mt_fail(MT_EX_NOMEM, "no memory for the tables of a checkpoint"); }

static void file_name(const struct shards *s, uint32_t shard, char buf[96])
{
	if (s->n_shards == 1) snprintf(buf, 96, "%s.safetensors", s->set);
	else snprintf(buf, 96, "%s-%05u-of-%05u.safetensors", s->set, shard + 1, s->n_shards);
}

int shards_begin(struct shards *s, struct out_dir *dir, enum array a, enum st_dtype dtype,
	const struct mt_tensor *table, uint32_t n, uint64_t limit)
{
	uint64_t bytes = 0;

	*s = (struct shards){.dir = dir, .set = st_sets[a].name, .table = table, .n = n};
	s->dtype = dtype == ST_F32 ? "F32" : dtype == ST_BF16 ? "BF16" : "I16";
	s->elem = dtype == ST_F32 ? 4 : 2;
	s->first = calloc((size_t)n + 1, sizeof *s->first);
	if (!s->first) return no_memory();
	for (uint32_t i = 0; i < n; i++) {
		uint64_t size = table[i].n * s->elem;
		if (i == 0 || bytes + size > limit) { /* a tensor larger than the limit has a shard to itself */
			s->first[s->n_shards++] = i;
			bytes = 0;
		}
		bytes += size;
		s->total += size;
	}
	s->first[s->n_shards] = n;
	return 0;
}

static json_t *entry(const struct shards *s, const struct mt_tensor *t, uint64_t begin, int *rc)
{
	json_t *o = json_object();

	json_put(rc, o, "dtype", json_string(s->dtype));
	json_t *shape = json_array();
	uint64_t dims[3];
	mt_tensor_dims(t, dims);
	for (uint32_t d = 0; d < t->ndim; d++) json_add(rc, shape, json_integer((json_int_t)dims[d]));
	json_put(rc, o, "shape", shape);
	json_put(rc, o, "data_offsets", json_pack("[I, I]", (json_int_t)begin, (json_int_t)(begin + t->n * s->elem)));
	return o;
}

/* Open a shard and write its header. */
static int open_shard(struct shards *s, uint32_t shard)
{
	json_t *root = json_object();
	uint64_t at = 0;
	char name[96], *text;
	int rc = 0;

	json_put(&rc, root, "__metadata__", json_pack("{s:s}", "format", "pt"));
	for (uint32_t i = s->first[shard]; i < s->first[shard + 1]; i++) {
		json_put(&rc, root, s->table[i].name, entry(s, &s->table[i], at, &rc));
		at += s->table[i].n * s->elem;
	}
	text = rc == 0 ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	if (!text) return rc < 0 ? rc : no_memory();
	size_t n = strlen(text), padded = (n + 7) & ~(size_t)7;
	uint64_t le = htole64(padded);
	file_name(s, shard, name);
	if ((rc = out_open(s->dir, name, 8 + padded + at, &s->out)) == 0) {
		s->open = true;
		if ((rc = out_write(&s->out, &le, 8)) == 0 && (rc = out_write(&s->out, text, n)) == 0)
			rc = out_write(&s->out, "       ", padded - n);
	} else out_drop(&s->out);
	free(text);
	return rc;
}

static uint32_t shard_of(const struct shards *s, uint32_t tensor)
{
	uint32_t shard = 0;

	while (s->first[shard + 1] <= tensor) shard++;
	return shard;
}

int shards_write(struct shards *s, const void *data, uint64_t bytes)
{
	const uint8_t *p = data;
	int rc;

	while (bytes) {
		if (s->left == 0) {
			if (!s->open && (rc = open_shard(s, shard_of(s, s->next))) < 0) return rc;
			s->left = s->table[s->next].n * s->elem;
		}
		uint64_t n = bytes < s->left ? bytes : s->left;
		if ((rc = out_write(&s->out, p, n)) < 0) return rc;
		p += n;
		bytes -= n;
		s->left -= n;
		if (s->left) continue;
		s->next++;
		if (s->next == s->n || s->first[shard_of(s, s->next)] == s->next) {
			if ((rc = out_close(&s->out)) < 0) return rc;
			s->open = false;
		}
	}
	return 0;
}

int shards_end(struct shards *s)
{
	json_t *root, *map;
	char name[96], *text;
	int rc = 0;

	if (s->next != s->n || s->open) return mt_fail(MT_EX_BUG, "%s: %u of %u tensors written", s->set, s->next, s->n);
	if (s->n_shards > 1) {
		root = json_object();
		map = json_object();
		for (uint32_t shard = 0; shard < s->n_shards; shard++) {
			file_name(s, shard, name);
			for (uint32_t i = s->first[shard]; i < s->first[shard + 1]; i++)
				json_put(&rc, map, s->table[i].name, json_string(name));
		}
		json_put(&rc, root, "metadata", json_pack("{s:I}", "total_size", (json_int_t)s->total));
		json_put(&rc, root, "weight_map", map);
		text = rc == 0 ? json_dumps(root, JSON_INDENT(2)) : NULL;
		json_decref(root);
		snprintf(name, sizeof name, "%s.safetensors.index.json", s->set);
		if (rc == 0) rc = text ? out_text(s->dir, name, text, strlen(text)) : no_memory();
		free(text);
	}
	shards_drop(s);
	return rc;
}

void shards_drop(struct shards *s)
{
	if (s->open) out_drop(&s->out);
	s->open = false;
	free(s->first);
	s->first = NULL;
}
