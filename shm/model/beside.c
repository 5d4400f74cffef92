/* beside.c: the tensor files beside a config.json: how much of them is not trained, and is carried along. Which tensors
 * are the text model's is decided by what is there: the name of the embeddings says what stands before the names of
 * all; the LM head is in a module around it. Whether the two are tied, a wrapper's config.json often does not say
 * right: if both are there and differ, they are not. */
#include <stdlib.h>

#include "config.h"
#include "hffiles.h"
#include "hfjson.h"
#include "mt/error.h"
#include "mt/layout.h"
#include "names.h"

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
static struct found find_embed(const struct st_files *f, const char *leaf, int *bytes)
{
	struct found embed = {0};
	for (uint32_t i = 0; i < f->n; i++)
		for (size_t j = 0; j < f->v[i].n; j++) {
			const struct st_tensor *t = &f->v[i].tensors[j];
			int n = name_prefix(t->name, leaf);
			if (n < 0 || !t->listed || (embed.tensor && n >= *bytes)) continue;
			*bytes = n;
			embed = (struct found){&f->v[i], t};
		}
	return embed;
}

static struct found find_head(const struct st_files *f, const struct mt_geometry *geo, const char *embed, int bytes)
{
	struct found head = {0};
	for (int at = 0, n; !head.tensor && (n = name_outer(embed, bytes, &at)) >= 0;)
		head = find(f, embed, n, head_tensor_name(geo));
	return head;
}

bool tensor_is_constant(const char *name)
{
	static const char *const ends[] = {"rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias", ".attn.bias",
		".attn.masked_bias"};
	bool is = false;
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) is |= ends_with(name, ends[i]);
	return is;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

struct names { /* of a layout's tensors without what stands before the base class's: sorted */
	const char **v;
	size_t n;
};

static bool has(const struct names *names, const char *name)
{
	return bsearch(&name, names->v, names->n, sizeof *names->v, by_text) != NULL;
}

/* Is it a weight of the names, or of a quantized one codes, scales or a scale of inputs? */
static bool is_of(const struct names *names, const char *name)
{
	static const char *const ends[][2] = {{"", ""}, {"_scale_inv", ""}, {"_scale", ""}, {"_blocks", ""},
		{"_scales", ""}, {"_input_scale", ""}, {"_activation_scale", ""}, {".scale", ".weight"},
		{".qscale_weight", ".weight"}, {".input_scale", ".weight"}, {".activation_scale", ".weight"}};
	char weight[MT_TENSOR_NAME];
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		if (!ends_with(name, ends[i][0])) continue;
		int n = (int)(strlen(name) - strlen(ends[i][0]));
		if (snprintf(weight, sizeof weight, "%.*s%s", n, name, ends[i][1]) < (int)sizeof weight && has(names, weight))
			return true;
	}
	return false;
}

/* Mark the tensors that the layout trains, whose names begin with the same bytes as the embeddings'; returns how many
 * others there are in its layers, which another form may train. */
static size_t mark(const struct st_files *f, const struct mt_layout *l, const char *embed, int bytes)
{
	struct names names = {.v = calloc(l->n_tensors, sizeof *names.v)};
	size_t left = 0;
	for (uint32_t i = 0; names.v && i < l->n_tensors; i++)
		if (l->tensors[i].role != MT_T_HEAD && l->tensors[i].role != MT_T_HEADB)
			names.v[names.n++] = strchr(l->tensors[i].name, '.') + 1;
	if (names.n) qsort(names.v, names.n, sizeof *names.v, by_text);
	for (uint32_t i = 0; i < f->n; i++)
		for (size_t j = 0; j < f->v[i].n && names.n; j++) {
			struct st_tensor *t = &f->v[i].tensors[j];
			if (!t->listed || t->trained) continue;
			t->trained = l->geo.mtp != 0 && !strncmp(t->name, "mtp.", 4) && is_of(&names, t->name + 4);
			if (t->trained || strncmp(t->name, embed, (size_t)bytes) != 0) continue;
			t->trained = is_of(&names, t->name + bytes);
			left += !t->trained && !name_is_beyond(&l->geo, t->name + bytes);
		}
	free(names.v);
	return left;
}

/* A tensor of the LM head: its weights, their scales, its bias */
static bool is_head(const char *name, const struct st_tensor *head)
{
	static const char weight[] = "weight";
	size_t n = head ? strlen(head->name) - strlen(weight) : 0;
	return head && strncmp(name, head->name, n) == 0 &&
		(strncmp(name + n, weight, strlen(weight)) == 0 || strcmp(name + n, "bias") == 0);
}

static int judge(const struct st_files *f, struct mt_geometry *geo)
{
	bool mtp = geo->mtp == 0;
	struct found embed = {0}, head = {0};
	size_t left = 1;
	int bytes = 0;
	for (uint32_t form = 0; form < mt_forms(geo) && left; form++) {
		struct mt_layout l;
		if (mt_layout_files(&l, geo, form) < 0) return 0;
		if (!embed.tensor && (embed = find_embed(f, strchr(l.tensors[0].name, '.') + 1, &bytes)).tensor)
			head = find_head(f, geo, embed.tensor->name, bytes);
		if (embed.tensor) left = mark(f, &l, embed.tensor->name, bytes);
		mt_layout_release(&l);
	}
	if (!embed.tensor) return 0;
	if (*geo->wrapper && head.tensor && geo->flags & MT_TIED && !same(embed, head)) geo->flags &= ~(uint32_t)MT_TIED;
	for (uint32_t i = 0; i < f->n; i++)
		for (size_t j = 0; j < f->v[i].n; j++) {
			const struct st_tensor *t = &f->v[i].tensors[j];
			mtp |= t->trained && (!strcmp(t->name, "mtp.fc.weight") || ends_with(t->name, ".eh_proj.weight"));
			if (!t->listed || t->trained || is_head(t->name, head.tensor) || tensor_is_constant(t->name) ||
				mtp_is_copy(geo, t->name))
				continue;
			geo->carried++;
			geo->carried_bytes += t->end - t->begin;
		}
	return mtp ? 0 : mt_fail(MT_EX_CONFIG, "--mtp: the model's files have no multi-token prediction");
}

int read_beside(int dirfd, struct mt_geometry *geo)
{
	struct st_files files;
	int rc = st_files_open(&files, dirfd, "model", NULL) == 0 ? judge(&files, geo) : 0;
	st_files_close(&files);
	return rc;
}
