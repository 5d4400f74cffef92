/* beside.c: the tensor files beside the config.json of a model that may carry some along. Which tensors are the text
 * model's is decided by what is there: the name that ends in embed_tokens.weight says what stands before the names of
 * all; the LM head is in a module around it. Whether the two are tied, config.json often does not say right: if both
 * are there and differ, they are not. */
#include <endian.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"
#include "hfjson.h"

#define HEADER_BYTES 100000000u /* safetensors' own limit */
#define INDEX "model.safetensors.index.json"
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

struct found { /* a tensor; fd -1: none */
	int fd;
	uint64_t begin, bytes;
	const char *name;
	const json_t *entry;
};

/* Read a file, or of safetensors the header, as JSON; *data: where what follows begins. NULL: it cannot be read */
static json_t *read_json(int fd, bool header, uint64_t *data)
{
	struct stat st;
	uint64_t bytes = 0;
	json_error_t error;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) return NULL;
	if (!header) bytes = (uint64_t)st.st_size;
	else if (pread(fd, &bytes, 8, 0) != 8) return NULL;
	else bytes = le64toh(bytes);
	*data = header ? 8 + bytes : 0;
	if (bytes > HEADER_BYTES || *data > (uint64_t)st.st_size) return NULL;
	char *text = malloc(bytes + 1);
	bool read = text && pread(fd, text, bytes, header ? 8 : 0) == (ssize_t)bytes;
	json_t *root = read ? hfjson_load(text, bytes, &error) : NULL;
	free(text);
	return root;
}

static int open_file(int dirfd, const char *name)
{
	return strchr(name, '/') ? -1 : openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

struct files {
	int dirfd;
	json_t *index; /* weight_map; NULL: one file */
	struct {
		const char *name;
		int fd;
		json_t *header;
		uint64_t data, bytes; /* where it begins; of all that follows */
	} * file;
	size_t n;
};

static bool add_file(struct files *f, const char *name)
{
	uint64_t data = 0;
	void *more = realloc(f->file, (f->n + 1) * sizeof *f->file);
	if (!more) return false;
	f->file = more;
	int fd = open_file(f->dirfd, name);
	json_t *header = fd >= 0 ? read_json(fd, true, &data) : NULL;
	if (!header) {
		if (fd >= 0) close(fd);
		return false;
	}
	f->file[f->n].name = name;
	f->file[f->n].fd = fd;
	f->file[f->n].header = header;
	f->file[f->n].bytes = (uint64_t)lseek(fd, 0, SEEK_END) - data;
	f->file[f->n++].data = data;
	return true;
}

static bool open_all(struct files *f, json_t *root)
{
	const char *key;
	json_t *v;
	f->index = json_object_get(root, "weight_map");
	if (!root) return add_file(f, "model.safetensors");
	json_object_foreach(f->index, key, v)
	{
		const char *name = json_string_value(v);
		size_t i = 0;
		while (name && i < f->n && strcmp(f->file[i].name, name) != 0) i++;
		if (!name || (i == f->n && !add_file(f, name))) return false;
	}
	return f->n;
}

/* The next tensor that is of the model: at is 0 at first. False: there are no more */
static bool next(const struct files *f, size_t *file, void **at, struct found *t)
{
	for (; *file < f->n; ++*file, *at = NULL) {
		json_t *header = f->file[*file].header;
		*at = *at ? json_object_iter_next(header, *at) : json_object_iter(header);
		for (; *at; *at = json_object_iter_next(header, *at)) {
			*t = (struct found){.fd = f->file[*file].fd, .name = json_object_iter_key(*at)};
			const char *listed = json_string_value(json_object_get(f->index, t->name));
			if (f->index && (!listed || strcmp(listed, f->file[*file].name) != 0)) continue;
			if (strcmp(t->name, "__metadata__") == 0) continue;
			t->entry = json_object_iter_value(*at);
			const json_t *off = json_object_get(t->entry, "data_offsets");
			uint64_t begin = (uint64_t)json_integer_value(json_array_get(off, 0));
			uint64_t end = (uint64_t)json_integer_value(json_array_get(off, 1));
			if (begin > end || end > f->file[*file].bytes) continue; /* mt-ckpt refuses the file */
			t->bytes = end - begin;
			t->begin = f->file[*file].data + begin;
			return true;
		}
	}
	return false;
}

/* The tensor of that name: what stands before it, and the rest */
static struct found find(const struct files *f, const char *prefix, int bytes, const char *rest)
{
	char name[256];
	struct found t = {.fd = -1};
	size_t file = 0;
	void *at = NULL;
	snprintf(name, sizeof name, "%.*s%s", bytes, prefix, rest);
	while (next(f, &file, &at, &t))
		if (strcmp(t.name, name) == 0) return t;
	return (struct found){.fd = -1};
}

static bool same(const struct found *a, const struct found *b)
{
	char *x = malloc(COMPARED), *y = malloc(COMPARED);
	bool equal = x && y && a->bytes == b->bytes &&
		json_equal(json_object_get(a->entry, "dtype"), json_object_get(b->entry, "dtype"));
	for (uint64_t at = 0, n; equal && at < a->bytes; at += n) {
		n = a->bytes - at < COMPARED ? a->bytes - at : COMPARED;
		equal = pread(a->fd, x, n, (off_t)(a->begin + at)) == (ssize_t)n &&
			pread(b->fd, y, n, (off_t)(b->begin + at)) == (ssize_t)n && memcmp(x, y, n) == 0;
	}
	free(x);
	free(y);
	return equal;
}

static void judge(const struct files *f, struct mt_geometry *geo)
{
	struct found t, embed = {.fd = -1}, head = {.fd = -1};
	int bytes = -1, at = 0, n;
	size_t file = 0;
	void *in = NULL;
	while (next(f, &file, &in, &t)) {
		n = name_prefix(t.name, "embed_tokens.weight");
		if (n < 0 || (bytes >= 0 && n >= bytes)) continue;
		bytes = n;
		embed = t;
	}
	if (embed.fd < 0) return;
	while (head.fd < 0 && (n = name_outer(embed.name, bytes, &at)) >= 0)
		head = find(f, embed.name, n, head_tensor_name(geo));
	if (head.fd >= 0 && geo->flags & MT_TIED && !same(&embed, &head)) geo->flags &= ~(uint32_t)MT_TIED;
	file = 0;
	in = NULL;
	while (next(f, &file, &in, &t)) {
		bool inside = strncmp(t.name, embed.name, (size_t)bytes) == 0;
		if (inside && !name_is_beyond(geo, t.name + bytes)) continue;
		if (head.fd >= 0 && strcmp(t.name, head.name) == 0) continue;
		geo->carried++;
		geo->carried_bytes += t.bytes;
	}
}

void read_beside(int dirfd, struct mt_geometry *geo)
{
	struct files f = {.dirfd = dirfd};
	uint64_t data;
	/* as mt-ckpt does: an index counts only without the whole file */
	int fd = faccessat(dirfd, "model.safetensors", F_OK, 0) < 0 ? open_file(dirfd, INDEX) : -1;
	json_t *root = fd >= 0 ? read_json(fd, false, &data) : NULL;
	if (fd >= 0) close(fd);
	if ((fd < 0 || root) && open_all(&f, root)) judge(&f, geo);
	for (size_t i = 0; i < f.n; i++) {
		json_decref(f.file[i].header);
		close(f.file[i].fd);
	}
	free(f.file);
	json_decref(root);
}
