/* kept.c: files that a run keeps: all that a model's directory has beside weights and config.json, such as its
 * tokenizer, chat templates and generation config, so that exports are whole when that directory is gone.
 *
 * What is not kept is listed, not what is: a tokenizer or processor may consist of files of any name. Kept are regular
 * files of the directory, and of directories in it, but not of those that hold weights: they are other models. Links to
 * directories are not followed. Links to files are, within the directory and in Hugging Face's cache, which consists of
 * them; any other link may lead to a file that its reader would not give to others. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt.h"
#include "say.h"
#include "model/hfjson.h"
#include "mt/run.h"

#define FILE_BYTES (128ull << 20) /* of one; the largest tokenizers have 35 MB */
#define ALL_BYTES (512ull << 20)
enum { ALL_FILES = 1024 };

static bool begins(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

static bool is_weights(const char *name)
{
	static const char *const formats[] = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5",
		".msgpack", ".onnx", ".onnx_data", ".npz", ".npy", ".pkl", ".tflite", ".ot", ".mlmodel", ".pdparams", ".nemo",
		".distcp", ".index.json"};
	bool is = false;
	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) is |= ends_with(name, formats[i]);
	return is;
}

/* What mt and trainers write about a run; adapters, which transformers would load
 * on top; model cards and pictures; data */
static bool is_other(const char *name)
{
	static const char *const names[] = {RUN_JSON, "part.json", "trainer_state.json", "all_results.json",
		"train_results.json", "eval_results.json", "adapter_config.json"};
	static const char *const begin[] = {".", "README", "events.out.tfevents", "optim-", "training_args."};
	static const char *const end[] = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".pdf", ".mp4", ".log",
		".jsonl", ".rec", ".parquet", ".arrow", ".csv", ".tar", ".gz", ".zip", ".zst", ".pyc", ".lock", ".tmp"};
	bool is = false;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) is |= !strcmp(name, names[i]);
	for (size_t i = 0; i < sizeof begin / sizeof *begin; i++) is |= begins(name, begin[i]);
	for (size_t i = 0; i < sizeof end / sizeof *end; i++) is |= ends_with(name, end[i]);
	return is;
}

bool kept_name_valid(const char *name)
{
	char first[256];
	const char *slash = strchr(name, '/');
	if (!slash) return file_name_plain(name);
	if (slash - name >= (ptrdiff_t)sizeof first) return false;
	snprintf(first, sizeof first, "%.*s", (int)(slash - name), name);
	return first[0] != '.' && file_name_plain(first) && file_name_plain(slash + 1);
}

/* ---- reading */

static int leave_out(struct kept *k, const char *name, const char *why)
{
	if (k->left_out++ == 0) snprintf(k->why, sizeof k->why, "%s %s", shown(name), why);
	return 0;
}

/* One line: a directory may hold thousands of files that have nothing to do with the model */
static void warn_left_out(const struct kept *k)
{
	if (!k->left_out || k->quiet) return;
	if (k->left_out == 1) mt_say("warning: %s: it is not kept, and exports are without it", k->why);
	else mt_say("warning: %s: it and %u more are not kept, and exports are without them", k->why, k->left_out - 1);
}

int kept_add(struct kept *k, const char *name, char *data, size_t bytes)
{
	struct mt_file *files = realloc(k->file, (k->n + 1) * sizeof *files);
	if (files) k->file = files;
	void **all = files ? realloc(k->data, (k->n + 1) * sizeof *all) : NULL;
	if (all) k->data = all;
	if (!all) {
		free(data);
		return mt_fail(MT_EX_NOMEM, "no memory for the files to keep");
	}
	k->file[k->n] = (struct mt_file){.bytes = bytes};
	memcpy(k->file[k->n].name, name, strlen(name) + 1);
	k->data[k->n++] = data;
	k->bytes += bytes;
	return 0;
}

static bool path_of(int fd, char path[4096])
{
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, 4095);
	path[n < 0 ? 0 : n] = 0;
	return n > 0;
}

/* Is it a link to a file that is neither in the model's directory nor, from a directory of Hugging Face's cache, a blob
 * of the same model: models--ORG--NAME/snapshots/REVISION/FILE -> ../../blobs/HASH */
static bool leads_out(int model, int dirfd, const char *file)
{
	char dir[4096], path[4096];
	struct stat st;
	uint64_t size;
	int fd;
	if (fstatat(dirfd, file, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISLNK(st.st_mode)) return false;
	if (file_open_regular(dirfd, file, &fd, &size) < 0) return false; /* and so it is when it is read */
	bool known = path_of(model, dir) && path_of(fd, path);
	size_t n = strlen(dir);
	close(fd);
	if (known && !strncmp(path, dir, n) && path[n] == '/') return false;
	char *revision = known ? strrchr(dir, '/') : NULL;
	if (revision) *revision = 0;
	char *snapshots = revision ? strrchr(dir, '/') : NULL;
	if (!snapshots || strcmp(snapshots, "/snapshots")) return true;
	n = (size_t)(snapshots - dir);
	return strncmp(path, dir, n) || strncmp(path + n, "/blobs/", 7) || strchr(path + n + 7, '/');
}

/* name: as the run and its exports call the file; model: the directory that is read */
static int keep(struct kept *k, int model, int dirfd, const char *file, const char *name)
{
	struct stat st;
	char *data;
	size_t n;
	int rc;
	if (strlen(name) >= sizeof k->file->name) return leave_out(k, name, "has a name of more than 63 bytes");
	if (fstatat(dirfd, file, &st, 0) == 0 && S_ISREG(st.st_mode)) {
		if ((uint64_t)st.st_size > FILE_BYTES) return leave_out(k, name, "has more than 128 MiB");
		if ((uint64_t)st.st_size > ALL_BYTES - k->bytes) return leave_out(k, name, "is beyond 512 MiB of kept files");
	}
	if (k->n == ALL_FILES) return leave_out(k, name, "is beyond 1024 kept files");
	if (leads_out(model, dirfd, file)) return leave_out(k, name, "is a link that leads out of the directory");
	rc = file_read_all(dirfd, file, FILE_BYTES, &data, &n);
	size_t in = strlen(name) - strlen(file);
	if (rc < 0) return in ? mt_fail_in(rc, "%.*s", (int)in - 1, name) : rc;
	if (hf_is_lfs_pointer(data, n)) {
		free(data);
		return mt_fail(MT_EX_DATA, "%s: " HF_LFS_POINTER, shown(name));
	}
	return kept_add(k, name, data, n);
}

static int keep_all(struct kept *k, const struct source *s, int fd, const char *in);

static int keep_directory(struct kept *k, const struct source *s, const char *dir)
{
	char in[300];
	int fd = openat(s->dirfd, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc = 0;
	if (fd < 0) return 0;
	snprintf(in, sizeof in, "%s/", dir);
	rc = keep_all(k, s, fd, in);
	close(fd);
	return rc;
}

/* Files of the model's directory, in: "", and of directories in it, in: "DIR/", that hold no weights */
static int keep_all(struct kept *k, const struct source *s, int fd, const char *in)
{
	struct dirent **list;
	int n = scandirat(fd, ".", &list, NULL, alphasort), rc = n < 0 && !*in ? fail_errno(s->path) : 0;
	bool model = false;
	for (int i = 0; i < n && *in; i++) model |= is_weights(list[i]->d_name);
	for (int i = 0; i < n && rc == 0 && !model; i++) {
		struct stat st = {0};
		const char *file = list[i]->d_name;
		char name[600];
		snprintf(name, sizeof name, "%s%s", in, file);
		if (is_weights(file) || is_other(file) || !strcmp(name, "config.json")) continue; /* which is written anew */
		bool known = fstatat(fd, file, &st, 0) == 0;
		if (*in && !S_ISREG(st.st_mode)) continue;
		if (known && S_ISDIR(st.st_mode)) rc = keep_directory(k, s, file);
		else if (!s->full || json_object_get(s->files, name)) rc = keep(k, s->dirfd, fd, file, name);
	}
	for (int i = 0; i < n; i++) free(list[i]);
	if (n >= 0) free(list);
	return rc;
}

int kept_read(struct kept *k, const struct source *s)
{
	int rc = keep_all(k, s, s->dirfd, "");
	if (rc == 0) warn_left_out(k);
	return rc;
}

/* ---- generation_config.json */

#define GENERATION "generation_config.json"

/* A kept file as JSON; NULL: it is not there, or no JSON. *at: its number */
static json_t *kept_json(const struct kept *k, const char *name, uint32_t *at)
{
	json_error_t error;
	for (*at = 0; *at < k->n; ++*at)
		if (!strcmp(k->file[*at].name, name)) return hfjson_parse(k->data[*at], k->file[*at].bytes, &error);
	return NULL;
}

static bool is_special(const json_t *token) { return json_is_true(json_object_get(token, "special")); }

/* The text of a token that marks something and is no text itself; false: it is another one, or not known */
static bool special_text(const struct kept *k, uint32_t id, char text[64])
{
	char key[16];
	uint32_t at;
	size_t i;
	snprintf(key, sizeof key, "%u", id);
	json_t *root = kept_json(k, "tokenizer_config.json", &at), *found = NULL, *token;
	json_t *more = NULL;
	token = json_object_get(json_object_get(root, "added_tokens_decoder"), key);
	if (is_special(token)) found = token;
	if (!found) more = kept_json(k, "tokenizer.json", &at);
	json_array_foreach(json_object_get(more, "added_tokens"), i,
		token) if (is_special(token) && json_integer_value(json_object_get(token, "id")) == id) found = token;
	const char *content = json_string_value(json_object_get(found, "content"));
	if (content) snprintf(text, 64, "%s", shown(content));
	json_decref(root);
	json_decref(more);
	return content;
}

/* What transformers makes of config.json where there is no generation_config.json */
static json_t *generation_of(const struct source *s, int *rc)
{
	static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
	json_t *config, *made = json_object();
	if ((*rc = file_read_json(s->dirfd, "config.json", &config)) < 0) return made;
	json_put(rc, made, "_from_model_config", json_true());
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		json_t *id = json_object_get(config, keys[i]);
		if (!id) id = json_object_get(json_object_get(config, "text_config"), keys[i]);
		if (id && !json_is_null(id)) json_put(rc, made, keys[i], json_incref(id));
	}
	json_decref(config);
	return made;
}

static bool has_id(const json_t *ids, uint32_t id)
{
	bool has = json_is_integer(ids) && json_integer_value(ids) == id;
	for (size_t i = 0; i < json_array_size(ids); i++) has |= json_integer_value(json_array_get(ids, i)) == id;
	return has;
}

static int put_text(struct kept *k, uint32_t at, char *text)
{
	if (!text) return mt_fail(MT_EX_NOMEM, "no memory for " GENERATION);
	hfjson_unmark(text);
	if (at == k->n) return kept_add(k, GENERATION, text, strlen(text));
	free(k->data[at]);
	k->data[at] = text;
	k->bytes += strlen(text) - k->file[at].bytes;
	k->file[at].bytes = strlen(text);
	return 0;
}

int kept_turn_end(struct kept *k, const struct source *s, const char *list)
{
	char text[64];
	uint32_t at, id = 0;
	bool special = false;
	for (char *end; list && !special && *list; list = *end ? end + 1 : end) {
		id = (uint32_t)strtoul(list, &end, 10);
		special = special_text(k, id, text);
	}
	if (!special) return 0;
	int rc = 0;
	json_t *root = kept_json(k, GENERATION, &at), *ids;
	bool there = at < k->n;
	if (!there) root = generation_of(s, &rc);
	ids = json_object_get(root, "eos_token_id");
	if (rc == 0 && (there ? json_is_object(root) : ids != NULL) && !has_id(ids, id)) {
		json_t *all = json_is_array(ids) ? json_incref(ids) : json_array();
		if (json_is_integer(ids)) json_add(&rc, all, json_incref(ids));
		json_add(&rc, all, json_integer(id));
		json_put(&rc, root, "eos_token_id", all);
		if (rc == 0) rc = put_text(k, at, json_text(root, 2));
		if (rc == 0)
			mt_say("answers end in '%s', token %u, which %s lacks as eos_token_id, and generation would not stop: "
				   "exports have it there",
				text, id, there ? GENERATION : "config.json");
	}
	json_decref(root);
	return rc;
}

void kept_release(struct kept *k)
{
	for (uint32_t i = 0; i < k->n; i++) free(k->data[i]);
	free(k->file);
	free(k->data);
	*k = (struct kept){0};
}

/* ---- writing */

int kept_directory(struct out_dir *dir, const char *name)
{
	const char *slash = strchr(name, '/');
	char in[256];
	if (!slash) return 0;
	snprintf(in, sizeof in, "%.*s", (int)(slash - name), name);
	return mkdirat(dir->fd, in, 0777) < 0 && errno != EEXIST ? fail_errno(in) : 0;
}

int kept_write(const char *name, const void *data, size_t bytes, void *arg)
{
	struct out_dir *dir = arg;
	if (!strcmp(name, CARRIED_RECORD) && dir->no_sums) return 0; /* an export */
	if (!kept_name_valid(name)) return mt_fail(MT_EX_DATA, "kept file '%s' is not a valid file name", shown(name));
	int rc = kept_directory(dir, name);
	return rc < 0 ? rc : out_text(dir, name, data, bytes);
}
