/* files.c: helpers for JSON and directories. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "hf.h"
#include "model/hfjson.h"

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

struct dir_walk dir_walk(int dirfd)
{
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dir_walk w = {.d = fd < 0 ? NULL : fdopendir(fd)};
	if (!w.d && fd >= 0) close(fd);
	return w;
}

bool dir_next(struct dir_walk *w)
{
	struct dirent *e;
	do e = w->d ? readdir(w->d) : NULL;
	while (e && (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")));
	if (!e && w->d) closedir(w->d);
	w->name = e ? e->d_name : NULL;
	return e;
}

int dir_open(const char *path, int *fd)
{
	*fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*fd >= 0) return 0;
	if (errno == ENOTDIR && file_exists(AT_FDCWD, path)) return mt_fail(MT_EX_DATA, "%s: not a directory", shown(path));
	return fail_errno(path);
}
