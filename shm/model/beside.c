/* beside.c: the tensor files beside the config.json of a model that may carry some along. Which tensors are the text
 * model's is decided by what is there: the name that ends in embed_tokens.weight says what stands before the names of
 * all; the LM head is in a module around it. Whether the two are tied, config.json often does not say right: if both
 * are there and differ, they are not. */
#include <stdlib.h>

#include "config.h"
#include "hffiles.h"
#include "hfjson.h"

enum { COMPARED = 1 << 20 }; /* bytes of a read */

int name_prefix(const char *name, const char *leaf)
{
	size_t n = strlen(name), m = strlen(leaf);
	if (n < m || strcmp(name + n - m, leaf) != 0 || strncmp(name, "mtp.", 4) == 0) return -1;
	return n == m || name[n - m - 1] == '.' ? (int)(n - m) : -1;
}

int name_outer(const char *prefix, int bytes, int *at)
{
	int n = *at;
	if (n > bytes) return -1;
	const char *dot = memchr(prefix + n, '.', (size_t)(bytes - n));
	*at = dot ? (int)(dot - prefix) + 1 : bytes + 1;
	return n;
}

bool name_is_beyond(const struct mt_geometry *geo, const char *name)
{
	return strncmp(name, "layers.", 7) == 0 && strtoul(name + 7, NULL, 10) >= geo->layers;
}

struct found { /* NULL: none */
	const struct st_file *file;
	const struct st_tensor *tensor;
};

/* The tensor of that name: what stands before it, and the rest */
static struct found find(const struct st_files *f, const char *prefix, int bytes, const char *rest)
{
	char name[256];
	snprintf(name, sizeof name, "%.*s%s", bytes, prefix, rest);
	for (uint32_t i = 0; i < f->n; i++) {
		const struct st_tensor *t = st_find(&f->v[i], name);
		if (t && t->listed) return (struct found){&f->v[i], t};
	}
	return (struct found){0};
}

static bool same(struct found a, struct found b)
{
	uint64_t bytes = a.tensor->end - a.tensor->begin;
	char *x = malloc(COMPARED), *y = malloc(COMPARED);
	bool equal = x && y && b.tensor->end - b.tensor->begin == bytes &&
		strcmp(a.tensor->dtype_name, b.tensor->dtype_name) == 0;
	for (uint64_t at = 0, n; equal && at < bytes; at += n) {
		n = bytes - at < COMPARED ? bytes - at : COMPARED;
		equal = file_read(a.file->fd, a.file->name, x, n, a.tensor->begin + at) == 0 &&
			file_read(b.file->fd, b.file->name, y, n, b.tensor->begin + at) == 0 && memcmp(x, y, n) == 0;
	}
	free(x);
	free(y);
	return equal;
}

/* The embeddings, and the bytes before their name; of several, those with the fewest */
static struct found find_embed(const struct st_files *f, int *bytes)
{
	struct found embed = {0};
	for (uint32_t i = 0; i < f->n; i++)
		for (size_t j = 0; j < f->v[i].n; j++) {
			const struct st_tensor *t = &f->v[i].tensors[j];
			int n = name_prefix(t->name, "embed_tokens.weight");
			if (n < 0 || !t->listed || (embed.tensor && n >= *bytes)) continue;
			*bytes = n;
			embed = (struct found){&f->v[i], t};
		}
	return embed;
}

static void judge(const struct st_files *f, struct mt_geometry *geo)
{
	int bytes = 0, at = 0, n;
	struct found embed = find_embed(f, &bytes), head = {0};
	if (!embed.tensor) return;
	while (!head.tensor && (n = name_outer(embed.tensor->name, bytes, &at)) >= 0)
		head = find(f, embed.tensor->name, n, head_tensor_name(geo));
	if (head.tensor && geo->flags & MT_TIED && !same(embed, head)) geo->flags &= ~(uint32_t)MT_TIED;
	for (uint32_t i = 0; i < f->n; i++)
		for (size_t j = 0; j < f->v[i].n; j++) {
			const struct st_tensor *t = &f->v[i].tensors[j];
			bool inside = strncmp(t->name, embed.tensor->name, (size_t)bytes) == 0;
			if (!t->listed || t == head.tensor || (inside && !name_is_beyond(geo, t->name + bytes))) continue;
			geo->carried++;
			geo->carried_bytes += t->end - t->begin;
		}
}

void read_beside(int dirfd, struct mt_geometry *geo)
{
	struct st_files files;
	if (st_files_open(&files, dirfd, "model") == 0) judge(&files, geo);
	st_files_close(&files);
}
