/* hffiles.c: reads Hugging Face's files, which may be damaged or hostile. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "hffiles.h"
#include "hfjson.h"
#include "mt/error.h"

bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);
	return n >= k && !strcmp(s + n - k, end);
}

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
	int ex = e == ENOENT || e == ENOTDIR            ? MT_EX_NOINPUT
		: e == EACCES || e == EPERM                 ? MT_EX_NOTYOURS
		: e == ENOMEM || e == EMFILE || e == ENFILE ? MT_EX_NOMEM /* says nothing of the file */
													: MT_EX_IO;
	return mt_fail(ex, "%s: %s", shown(what), strerror(e));
}

int file_open_regular(int dirfd, const char *name, int *fd, uint64_t *size)
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
	int fd, rc = file_open_regular(dirfd, name, &fd, &size);
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

bool file_name_plain(const char *name)
{
	return name[0] && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..") && strlen(name) < 256;
}

bool file_exists(int dirfd, const char *name)
{
	struct stat st;
	return fstatat(dirfd, name, &st, 0) == 0;
}
