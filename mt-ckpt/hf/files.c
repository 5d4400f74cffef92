/* files.c: reads files that may be damaged or hostile, and helpers for names, JSON and directories. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "hf.h"
#include "model/hfjson.h"

const char *shown(const char *text)
{
	static _Thread_local char ring[4][160];
	static _Thread_local unsigned turn;
	char *out = ring[turn++ % 4];
	size_t i = 0;

	for (; text[i] && i < sizeof ring[0] - 4; i++) {
		unsigned char c = (unsigned char)text[i];
		out[i] = c < 32 || c == 127 ? '?' : (char)c;
	}
	strcpy(out + i, text[i] ? "..." : "");
	return out;
}

int fail_errno(const char *what)
{
	int e = errno;
	int ex = e == ENOENT || e == ENOTDIR ? MT_EX_NOINPUT
		: e == EACCES || e == EPERM      ? MT_EX_NOTYOURS
		: e == ENOMEM                    ? MT_EX_NOMEM
										 : MT_EX_IO;
	return mt_fail(ex, "%s: %s", shown(what), strerror(e));
}

int file_open(int dirfd, const char *name, int *fd, uint64_t *size)
{
	struct stat st;
	/* Links are followed: Hugging Face's cache consists of them. */
	*fd = openat(dirfd, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	if (*fd < 0) return errno == ENXIO ? mt_fail(MT_EX_DATA, "%s: not a regular file", shown(name)) : fail_errno(name);
	if (fstat(*fd, &st) < 0) {
		int rc = fail_errno(name);
		close(*fd);
		return rc;
	}
	if (!S_ISREG(st.st_mode)) {
		close(*fd);
		return mt_fail(MT_EX_DATA, "%s: %s, not a regular file", shown(name),
			S_ISDIR(st.st_mode)        ? "a directory"
				: S_ISFIFO(st.st_mode) ? "a FIFO"
									   : "a device or socket");
	}
	*size = (uint64_t)st.st_size;
	return 0;
}

/* A region that was truncated has no memory at p: a store faults, and mt_watch_faults reports that. */
static void touch(uint8_t *p, uint64_t n)
{
	for (uint64_t i = 0; i < n; i += 4096) *(volatile uint8_t *)(p + i) = 0;
}

int file_read(int fd, const char *name, void *buf, uint64_t n, uint64_t off)
{
	uint8_t *p = buf;
	while (n) {
		ssize_t got = pread(fd, p, n < IO_BYTES ? n : IO_BYTES, (off_t)off);
		if (got < 0 && errno == EINTR) continue;
		if (got < 0 && errno == EFAULT) touch(p, n);
		if (got < 0) return fail_errno(name);
		if (got == 0) return mt_fail(MT_EX_DATA, "%s: ends early, at byte %llu", shown(name), (unsigned long long)off);
		p += got;
		n -= (uint64_t)got;
		off += (uint64_t)got;
	}
	return 0;
}

int file_read_all(int dirfd, const char *name, uint64_t limit, char **data, size_t *n)
{
	uint64_t size;
	int fd, rc = file_open(dirfd, name, &fd, &size);
	if (rc < 0) return rc;
	if (size > limit)
		rc = mt_fail(MT_EX_DATA, "%s: %llu bytes, more than the %llu that such a file may have", shown(name),
			(unsigned long long)size, (unsigned long long)limit);
	else if (!(*data = malloc(size + 1)))
		rc = mt_fail(MT_EX_NOMEM, "%s: no memory for %llu bytes", shown(name), (unsigned long long)size);
	else if ((rc = file_read(fd, name, *data, size, 0)) < 0) free(*data);
	close(fd);
	if (rc < 0) return rc;
	(*data)[size] = 0;
	*n = size;
	return 0;
}

int file_read_json(int dirfd, const char *name, json_t **root)
{
	char *text;
	size_t n;
	json_error_t err;
	int rc = file_read_all(dirfd, name, JSON_LIMIT, &text, &n);
	if (rc < 0) return rc;
	*root = hfjson_parse(text, n, &err);
	bool pointer = hf_is_lfs_pointer(text, n);
	free(text);
	if (pointer) return mt_fail(MT_EX_DATA, "%s: " HF_LFS_POINTER, shown(name));
	if (!*root && json_error_code(&err) == json_error_out_of_memory)
		return mt_fail(MT_EX_NOMEM, "%s: no memory for its JSON", shown(name));
	if (!*root) return mt_fail(MT_EX_DATA, "%s: line %d: %s", shown(name), err.line, shown(err.text));
	if (!json_is_object(*root)) {
		json_decref(*root);
		*root = NULL;
		return mt_fail(MT_EX_DATA, "%s: not a JSON object", shown(name));
	}
	return 0;
}

char *json_text(const json_t *root, size_t indent)
{
	size_t style = indent ? JSON_INDENT(indent) : JSON_COMPACT;
	for (size_t digits = 15; digits < 17; digits++) {
		char *text = json_dumps(root, style | JSON_REAL_PRECISION(digits));
		json_error_t err;
		json_t *again = text ? hfjson_load(text, strlen(text), &err) : NULL;
		bool same = again && json_equal(again, (json_t *)root);
		json_decref(again);
		if (same) return text;
		free(text);
	}
	return json_dumps(root, style | JSON_REAL_PRECISION(17));
}

static int no_memory(void) { return mt_fail(MT_EX_NOMEM, "no memory for JSON"); }

/* jansson returned NULL for this text: it is not UTF-8, or there is no memory. */
static int why_not_text(const char *text, size_t n)
{
	json_t *any = json_stringn_nocheck(text, n);
	json_decref(any);
	return any ? mt_fail(MT_EX_DATA, "'%s' is not valid UTF-8", shown(text)) : no_memory();
}

void json_put(int *rc, json_t *object, const char *key, json_t *value)
{
	if (*rc < 0) json_decref(value);
	else if (json_object_set_new(object, key, value) < 0) {
		json_t *same = json_string(key);
		*rc = same ? no_memory() : why_not_text(key, strlen(key));
		json_decref(same);
	}
}

void json_put_text(int *rc, json_t *object, const char *key, const char *text, size_t room)
{
	char words[256] = "";
	size_t n = strnlen(text, room < sizeof words ? room : sizeof words - 1);
	json_t *value;
	memcpy(words, text, n);
	value = json_stringn(words, n);
	if (*rc == 0 && !value) *rc = why_not_text(words, n);
	json_put(rc, object, key, value);
}

void json_add(int *rc, json_t *array, json_t *value)
{
	if (*rc < 0) json_decref(value);
	else if (json_array_append_new(array, value) < 0) *rc = no_memory();
}

json_t *json_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

bool file_name_plain(const char *name)
{
	return name[0] && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..") && strlen(name) < 256;
}

bool file_exists(int dirfd, const char *name)
{
	struct stat st;
	return fstatat(dirfd, name, &st, 0) == 0;
}

DIR *dir_list(int dirfd)
{
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d && fd >= 0) close(fd);
	return d;
}

int dir_open(const char *path, int *fd)
{
	*fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*fd >= 0) return 0;
	if (errno == ENOTDIR && file_exists(AT_FDCWD, path)) return mt_fail(MT_EX_DATA, "%s: not a directory", shown(path));
	return fail_errno(path);
}
