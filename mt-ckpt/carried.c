/* carried.c: what a directory has beside the text model that is trained: vision towers and projectors of a wrapper, a
 * class for images too; layers of multi-token prediction; whatever else the model's class does not use. These tensors
 * are in no store. load records where each is, and their checksums; every checkpoint and export gets the same bytes in
 * a file of its own, model-carried.safetensors, and a checkpoint the record, too. The file comes from
 *
 *     a checkpoint beside the new directory that has it     a checkpoint links it, an export copies it
 *     the checkpoint that was loaded                        it is copied
 *     the directory that the record names, the source       it is put together from the files there
 *
 * whichever is the first that has the recorded bytes. A checkpoint does not link the file of the newest one: of any two
 * that follow one another each has a file of its own, and a bad block does not take both.
 *
 * Weights in FP8 become bf16, since exports have no quantization_config.
 *
 * A source whose bytes are not those of load any more is refused (66). The record is a kept file of the run. It also
 * has what stood before the names of the text model, since files are written under the names that were read. A run of
 * a text model of which nothing is carried has none. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt.h"
#include "model/hfjson.h"
#include "model/names.h"
#include "mt/run.h"
#include "say.h"

static int no_memory(void) { return mt_fail(MT_EX_NOMEM, "no memory for the tensors that are carried"); }
static int damaged(void) { return mt_fail(MT_EX_DATA, "the run's record of what it carries is damaged"); }

/* ---- the record */

/* Bytes of an element of the new file */
static uint32_t elem_of(const struct st_entry *e) { return e->scale ? 2 : e->tensor->elem; }

/* As safetensors orders them, so that each is aligned: large elements first */
static int by_elem(const void *a, const void *b)
{
	const struct st_entry *x = *(const struct st_entry *const *)a, *y = *(const struct st_entry *const *)b;
	return elem_of(x) == elem_of(y) ? strcmp(x->tensor->name, y->tensor->name) : elem_of(x) > elem_of(y) ? -1 : 1;
}

static json_t *tensor_json(const struct st_entry *e, int *rc)
{
	const struct st_tensor *t = e->tensor;
	json_t *o = json_object(), *shape = json_array();
	for (uint32_t d = 0; d < t->ndim; d++) json_add(rc, shape, json_integer((json_int_t)t->shape[d]));
	json_put(rc, o, "name", json_string(t->name));
	json_put(rc, o, "dtype", json_string(e->scale ? "BF16" : t->dtype_name));
	json_put(rc, o, "shape", shape);
	json_put(rc, o, "file", json_string(e->file->path));
	json_put(rc, o, "begin", json_integer((json_int_t)t->begin));
	json_put(rc, o, "bytes", json_integer((json_int_t)(t->end - t->begin) * (e->scale ? 2 : 1)));
	json_put(rc, o, "fp8", json_boolean(e->scale));
	return o;
}

/* All that the text model did not use, but for constants that its class computes, and copies */
static json_t *tensors_json(const struct source *s, int *rc)
{
	const struct model *m = &s->model[ARRAY_W];
	const struct st_entry **list = calloc(m->n + 1, sizeof *list);
	json_t *all = json_array();
	size_t n = 0;
	if (!list) *rc = no_memory();
	for (size_t i = 0; list && i < m->n; i++)
		if (!m->entries[i].used && !tensor_is_constant(m->entries[i].tensor->name) &&
			!mtp_is_copy(&s->geo, m->entries[i].tensor->name))
			list[n++] = &m->entries[i];
	if (n) qsort(list, n, sizeof *list, by_elem);
	for (size_t i = 0; i < n; i++) json_add(rc, all, tensor_json(list[i], rc));
	free(list);
	return all;
}

/* Find the scales of what is carried and FP8; a checkpoint has none of it. */
static int match_fp8(const struct source *s)
{
	const struct model *m = &s->model[ARRAY_W];
	int rc = 0;
	for (size_t i = 0; i < m->n && rc == 0 && !s->full; i++)
		if (!m->entries[i].used && fp8_has_scales(m, &m->entries[i])) rc = fp8_match(m, &m->entries[i]);
	return rc;
}

/* What stands before the text model's names in the files, by those of the second tensor */
static json_t *prefix_json(const struct source *s)
{
	const struct mt_tensor *t = &s->as_read.tensors[1];
	const char *name = s->found[ARRAY_W][1]->tensor->name, *rest = strchr(t->name, '.') + 1;
	return json_stringn(name, strlen(name) - strlen(rest));
}

static json_t *record_json(const struct source *s, bool drop, int *rc)
{
	const struct model *m = &s->model[ARRAY_W];
	bool no_head = s->geo.flags & MT_TIED && !*s->geo.wrapper;
	const struct st_entry *head = no_head ? NULL : model_head(m, head_tensor_name(&s->geo));
	char *path = realpath(s->path, NULL);
	json_t *root = json_object();
	json_t *source = json_string(path ? path : s->path);
	if (!source && *rc == 0)
		*rc = mt_fail(MT_EX_DATA, "%s: its path is not UTF-8, as the record of what is carried must be: rename it",
			shown(s->path));
	json_put(rc, root, "source", source);
	json_put(rc, root, "prefix", prefix_json(s));
	json_put(rc, root, "head", head ? json_string(head->tensor->name) : json_null());
	json_put(rc, root, "tensors", tensors_json(s, rc));
	json_put(rc, root, "dropped", json_boolean(drop));
	free(path);
	return root;
}

/* ---- the new file's header */

static int make_header(struct carried *c)
{
	json_t *root = json_object(), *list = json_object_get(c->record, "tensors");
	int rc = 0;
	json_put(&rc, root, "__metadata__", json_pack("{s:s}", "format", "pt"));
	for (uint32_t i = 0; i < c->n && rc == 0; i++) {
		const struct carried_tensor *t = &c->v[i];
		const json_t *in = json_array_get(list, i);
		json_t *o = json_object();
		json_put(&rc, o, "dtype", json_incref(json_object_get(in, "dtype")));
		json_put(&rc, o, "shape", json_incref(json_object_get(in, "shape")));
		json_put(&rc, o, "data_offsets", json_pack("[I, I]", (json_int_t)t->at, (json_int_t)(t->at + t->bytes)));
		json_put(&rc, root, t->name, o);
	}
	c->header = shard_header(root, rc, &c->header_bytes);
	return c->header ? 0 : rc < 0 ? rc : no_memory();
}

/* Take c->record apart. */
static int parse(struct carried *c)
{
	json_t *list = json_object_get(c->record, "tensors"), *o;
	size_t i;
	uint64_t at = 0;
	c->source = json_string_value(json_object_get(c->record, "source"));
	c->prefix = json_string_value(json_object_get(c->record, "prefix"));
	c->head = json_string_value(json_object_get(c->record, "head"));
	c->checkpoint = json_string_value(json_object_get(c->record, "checkpoint"));
	c->dropped = json_is_true(json_object_get(c->record, "dropped"));
	if (!c->source || !c->prefix || !json_is_array(list)) return damaged();
	if (c->head && (strlen(c->head) <= strlen("weight") || strlen(c->head) >= MT_TENSOR_NAME)) return damaged();
	c->v = calloc(json_array_size(list) + 1, sizeof *c->v);
	c->other = (struct shard_other){.file = CARRIED_FILE, .names = calloc(json_array_size(list) + 1, sizeof(char *))};
	if (!c->v || !c->other.names) return no_memory();
	json_array_foreach(list, i, o)
	{
		struct carried_tensor *t = &c->v[c->n];
		*t = (struct carried_tensor){json_string_value(json_object_get(o, "name")),
			json_string_value(json_object_get(o, "file")), (uint64_t)json_integer_value(json_object_get(o, "begin")),
			(uint64_t)json_integer_value(json_object_get(o, "bytes")), at, json_is_true(json_object_get(o, "fp8"))};
		if (!t->name || !t->file || !file_name_plain(t->file) || t->bytes > INT64_MAX - at) return damaged();
		c->other.names[c->n++] = t->name;
		at += t->bytes;
	}
	c->other.n = c->n;
	c->other.bytes = at;
	int rc = c->n ? make_header(c) : 0;
	c->bytes = c->header_bytes + at;
	c->entry = json_pack("{s:I}", "bytes", (json_int_t)c->bytes);
	json_t *sums = json_object_get(c->record, "xxh3");
	if (sums) json_put(&rc, c->entry, "xxh3", json_incref(sums));
	return c->entry ? rc : no_memory();
}

static int take_record(const char *name, const void *data, size_t bytes, void *arg)
{
	struct carried *c = arg;
	json_error_t error;
	if (!strcmp(name, CARRIED_RECORD)) c->record = hfjson_load(data, bytes, &error);
	return 0;
}

int carried_open(struct carried *c, const struct mt_run *run)
{
	const struct mt_geometry *geo = mt_geometry(run);
	*c = (struct carried){0};
	int rc = mt_files_each(run, take_record, c);
	if (rc > 0 && !*geo->wrapper && !geo->carried) rc = 0; /* writer_end warns */
	if (rc) return rc < 0 ? rc : mt_fail(MT_EX_NOTYOURS, "%s", mt_errmsg());
	return c->record ? parse(c) : 0; /* a run with random weights carries nothing */
}

void carried_close(struct carried *c)
{
	json_decref(c->record);
	json_decref(c->entry);
	free(c->v);
	free(c->other.names);
	free(c->header);
	*c = (struct carried){0};
}

/* ---- bytes */

static const struct carried_tensor *tensor_at(const struct carried *c, uint64_t at)
{
	uint32_t low = 0, high = c->n;
	while (high - low > 1) { /* c->v[low].at <= at */
		uint32_t mid = low + (high - low) / 2;
		if (c->v[mid].at <= at) low = mid;
		else high = mid;
	}
	return &c->v[low];
}

/* Of a tensor in FP8 the bytes from `at` on, at most *got, which becomes how many; both are even */
static int gather_fp8(const struct model *m, const struct carried_tensor *t, uint64_t at, void *buf, uint64_t *got)
{
	enum { MOST = 4096 };
	uint8_t codes[2 * MOST];
	uint32_t bits[MOST];
	uint64_t n = *got / 2 < MOST ? *got / 2 : MOST;
	int rc = model_read(model_find(m, t->name), at / 2, n, codes, bits);
	if (rc == 0) convert_round(buf, bits, n);
	*got = 2 * n;
	return rc;
}

/* The bytes from `at` on of the file as put together from the source, at most *got of them, which becomes how many */
static int gather(void *arg, uint64_t at, uint64_t *got, void *buf)
{
	const struct carried *c = arg;
	uint64_t size, n = *got;
	int fd;
	if (at < c->header_bytes) {
		*got = n < c->header_bytes - at ? n : c->header_bytes - at;
		memcpy(buf, c->header + at, *got);
		return 0;
	}
	at -= c->header_bytes;
	const struct carried_tensor *t = tensor_at(c, at);
	*got = n < t->at + t->bytes - at ? n : t->at + t->bytes - at;
	if (t->fp8) return gather_fp8(c->model, t, at - t->at, buf, got);
	int rc = file_open_regular(c->from, t->file, &fd, &size);
	if (rc < 0) return rc;
	rc = file_read(fd, t->file, buf, *got, t->begin + (at - t->at));
	close(fd);
	return rc;
}

/* The file from a checkpoint's directory, or put together from the source: compared with the recorded bytes and, unless
 * dir is NULL, copied */
static int pass(struct carried *c, int checkpoint, struct out_dir *dir)
{
	struct chunks all = {.from = checkpoint, .read = checkpoint < 0 ? gather : NULL, .arg = c, .to = dir};
	return chunks_pass(&all, chunks_add(&all, CARRIED_FILE, c->entry));
}

/* The checksums of the file as put together from the source */
static int add_sums(struct carried *c)
{
	uint64_t n = (c->bytes + IO_BYTES - 1) / IO_BYTES;
	struct chunks all = {.read = gather, .arg = c, .sums = calloc(n, sizeof *all.sums)};
	json_t *list = json_array();
	int rc = chunks_pass(&all, all.sums ? chunks_add(&all, CARRIED_FILE, c->entry) : no_memory());
	for (uint64_t i = 0; i < n && rc == 0; i++) json_add(&rc, list, json_hash(all.sums[i]));
	json_put(&rc, c->record, "xxh3", list);
	free(all.sums);
	return rc;
}

/* ---- load */

static bool is_mtp(const struct carried *c, const struct mt_geometry *geo, const char *name)
{
	size_t n = strlen(c->prefix);
	return !strncmp(name, "mtp.", 4) || strstr(name, ".mtp.") ||
		(!strncmp(name, c->prefix, n) && name_is_beyond(geo, name + n));
}

/* One line that names them */
static void say(const struct carried *c, const struct mt_geometry *geo)
{
	char list[1000] = "", more[40] = "";
	uint32_t mtp = 0, named = 0;
	for (size_t at = 0; named < c->n && at < sizeof list - 200; named++)
		at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", shown(c->v[named].name));
	if (named < c->n) snprintf(more, sizeof more, " and %u more", c->n - named);
	for (uint32_t i = 0; i < c->n; i++) mtp += is_mtp(c, geo, c->v[i].name);
	if (c->n)
		mt_say("%u tensor%s of %llu bytes are %s%s: %s%s", c->n, mt_s(c->n), (unsigned long long)c->other.bytes,
			c->dropped ? "left out, which the model does not train" : "carried untrained, as they are in ",
			c->dropped ? "" : c->source, list, more);
	if (mtp && !c->dropped)
		mt_say("warning: %u of them are of multi-token prediction: the more the model is trained, the less they "
			   "fit it; --mtp X trains those of some families along",
			mtp);
}

/* The files' name of one of the text model's tensors. False: it is too long */
static bool name_in_files(const struct carried *c, const struct mt_tensor *t, char name[MT_TENSOR_NAME])
{
	const char *rest = strncmp(t->name, "mtp.", 4) ? strchr(t->name, '.') : NULL;
	int n;
	if (t->role == MT_T_HEAD && c->head) n = snprintf(name, MT_TENSOR_NAME, "%s", c->head);
	else if (t->role == MT_T_HEADB && c->head)
		n = snprintf(name, MT_TENSOR_NAME, "%.*sbias", (int)(strlen(c->head) - strlen("weight")), c->head);
	else if (t->role == MT_T_HEAD || t->role == MT_T_HEADB || !rest) n = snprintf(name, MT_TENSOR_NAME, "%s", t->name);
	else n = snprintf(name, MT_TENSOR_NAME, "%s%s", c->prefix, rest + 1);
	return n < MT_TENSOR_NAME;
}

/* All names of the text model must fit into the table of tensors, and what is carried must have others. */
static int check_names(const struct carried *c, const struct source *s)
{
	const struct model *m = &s->model[ARRAY_W];
	char name[MT_TENSOR_NAME];
	for (uint32_t i = 0; i < s->as_read.n_tensors; i++) {
		if (!name_in_files(c, &s->as_read.tensors[i], name))
			return mt_fail(MT_EX_DATA, "%s: names of more than %d bytes", m->files.label, MT_TENSOR_NAME - 1);
		const struct st_entry *e = model_find(m, name);
		if (e && !e->used)
			return mt_fail(MT_EX_DATA, "%s: tensor '%s': the text model has it twice, here and in another form",
				e->file->name, name);
	}
	return 0;
}

static int take_source(struct carried *c, const struct source *s, bool drop)
{
	int rc = match_fp8(s);
	*c = (struct carried){.record = record_json(s, drop, &rc), .model = &s->model[ARRAY_W], .from = s->dirfd};
	if (rc == 0) rc = parse(c);
	return rc == 0 ? check_names(c, s) : rc;
}

int carried_say(const struct source *s, bool drop)
{
	struct carried c;
	int rc = take_source(&c, s, drop);
	if (rc == 0) say(&c, &s->geo);
	carried_close(&c);
	return rc;
}

/* Nothing of it is carried. */
static int drop_all(struct carried *c)
{
	int rc = 0;
	json_put(&rc, c->record, "tensors", json_array());
	json_put(&rc, c->record, "dropped", json_true());
	json_object_del(c->record, "xxh3");
	c->n = 0;
	return rc;
}

int carried_note(struct kept *k, struct source *s, bool drop)
{
	struct carried c = s->carried;
	bool had = c.record;
	char *text = NULL;
	int rc = 0;
	s->carried = (struct carried){0};
	if (!had && (rc = take_source(&c, s, drop)) == 0 && c.n && !drop) rc = add_sums(&c);
	c.dropped |= drop;
	if (rc == 0) say(&c, &s->geo);
	if (rc == 0 && drop) rc = drop_all(&c);
	if (rc == 0 && (had || c.n || drop || *s->geo.wrapper)) {
		if (!(text = json_dumps(c.record, JSON_COMPACT))) rc = no_memory();
		if (rc == 0) rc = kept_add(k, CARRIED_RECORD, text, strlen(text));
	}
	carried_close(&c);
	return rc;
}

/* ---- write */

int carried_table(const struct carried *c, const struct mt_layout *files, struct mt_tensor **table, uint32_t *n)
{
	uint32_t all = files->n_tensors;
	struct mt_tensor *v = calloc(all + 2, sizeof *v);
	bool tied = files->geo.flags & MT_TIED;
	if (!v) return no_memory();
	*table = v;
	for (uint32_t i = 0; i < all; i++) {
		const struct mt_tensor *t = &files->tensors[i];
		*v = *t;
		if (!name_in_files(c, t, v->name)) return damaged();
		v++;
		if (i || !tied || !c->head) continue;
		*v = *t; /* the files had a head equal to the embeddings, and get one */
		snprintf(v->name, sizeof v->name, "%s", c->head);
		v++;
	}
	*n = (uint32_t)(v - *table);
	return 0;
}

/* The directory of a checkpoint, if it has this file, and *st of that; else -1 */
static int open_same(const struct carried *c, int parent, const char *name, struct stat *st)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	json_t *root = NULL;
	if (fd < 0) return -1;
	bool read = file_exists(fd, RUN_JSON) && file_read_json(fd, RUN_JSON, &root) == 0;
	bool same = read && json_equal(json_object_get(json_object_get(root, "files"), CARRIED_FILE), c->entry);
	json_decref(root);
	if (same && fstatat(fd, CARRIED_FILE, st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st->st_mode)) return fd;
	close(fd);
	return -1;
}

/* Open the source's model, if something of it is FP8, as it was at load. */
static int open_fp8(const struct carried *c, int source, struct model *m)
{
	int rc = 0;
	for (uint32_t i = 0; i < c->n && rc == 0; i++) {
		if (!c->v[i].fp8) continue;
		if (!m->files.label &&
			((rc = model_open(m, source, st_sets[ARRAY_W], NULL)) < 0 || (rc = quantized_config(m, source)) < 0))
			break;
		struct st_entry *e = model_find(m, c->v[i].name);
		bool same = e && fp8_has_scales(m, e) && (e->tensor->end - e->tensor->begin) * 2 == c->v[i].bytes;
		rc = same ? fp8_match(m, e) : mt_fail(MT_EX_DATA, "its tensors have changed since they were loaded");
	}
	return rc;
}

/* dir: NULL: it is only checked */
static int from_source(const struct carried *c, struct out_dir *dir)
{
	struct model model = {0};
	struct carried with = *c;
	int rc = dir_open(c->source, &with.from);
	if (rc == 0) {
		rc = open_fp8(c, with.from, &model);
		with.model = &model;
		if (rc == 0) rc = pass(&with, -1, dir);
		model_close(&model);
		close(with.from);
		if (rc != -MT_EX_DATA && rc != -MT_EX_NOINPUT) return rc;
		mt_fail_in(rc, "%s", shown(c->source));
	}
	return mt_fail(MT_EX_NOINPUT, "tensors that are carried untrained cannot be read from where they were loaded: %s",
		mt_errmsg());
}

struct search { /* for a file with the recorded bytes */
	const struct carried *c;
	struct out_dir *dir; /* where it shall be; NULL: it is only checked */
	char bad[300];       /* the first checkpoint of which it is damaged, and how; empty: none */
};

/* Take the file from the checkpoint `name`; 1: it has none, or a damaged one. newest: link it, unless it is this file,
 * which is the first one that is looked at; NULL: copy it */
static int from_checkpoint(struct search *f, int parent, const char *name, struct stat *newest)
{
	struct carried c = *f->c;
	struct stat st;
	int fd = open_same(&c, parent, name, &st), rc = 1;
	if (fd < 0) return 1;
	if (newest && !newest->st_ino) *newest = st;
	if (newest && st.st_ino == newest->st_ino && st.st_dev == newest->st_dev) rc = 1;
	else if (pass(&c, fd, NULL) < 0) {
		if (!*f->bad) snprintf(f->bad, sizeof f->bad, "%s: %s", shown(name), mt_errmsg());
	} else if (newest) rc = out_link(f->dir, fd, CARRIED_FILE, c.entry);
	else rc = f->dir ? pass(&c, fd, f->dir) : 0;
	close(fd);
	return rc;
}

/* The same of the checkpoints in `parent`, the newest first */
static int from_beside(struct search *f, int parent, bool link)
{
	struct stat newest = {0};
	uint64_t *steps;
	size_t n = steps_in(parent, &steps);
	char name[STEP_NAME];
	int rc = 1;
	for (size_t i = 0; i < n && rc == 1; i++) {
		step_name(name, steps[i]);
		rc = from_checkpoint(f, parent, name, link ? &newest : NULL);
	}
	free(steps);
	return rc;
}

/* The same of the checkpoint that was loaded, and of those beside it */
static int from_loaded(struct search *f)
{
	char *base;
	int parent = -1, rc = out_split(f->c->checkpoint, &parent, &base) < 0 ? 1 : from_checkpoint(f, parent, base, NULL);
	if (rc == 1 && parent >= 0) rc = from_beside(f, parent, false);
	if (parent >= 0) close(parent);
	free(base);
	return rc;
}

int carried_write(const struct carried *c, struct out_dir *dir, bool link)
{
	/* mt-ckpt serve may be deleting the checkpoints that are listed, and the newest may have come after the list */
	enum { TIMES = 2 };
	struct search f = {.c = c, .dir = dir};
	int rc = 1;
	for (int i = 0; i < TIMES && rc == 1; i++) {
		if (link) rc = from_beside(&f, dir->parent, true);
		if (rc == 1) rc = from_beside(&f, dir->parent, false);
	}
	if (rc == 1 && c->checkpoint) rc = from_loaded(&f);
	if (rc == 1) rc = from_source(c, dir);
	if (*f.bad && rc == 0) mt_say("warning: %s: its tensors are taken from elsewhere", f.bad);
	return *f.bad && rc < 0 ? mt_fail(-rc, "%s; %s", mt_errmsg(), f.bad) : rc;
}

/* ---- a checkpoint that is loaded */

/* The checkpoint's file is damaged: is the same elsewhere? Else the first error stays. */
static int look_elsewhere(const struct carried *c, int rc)
{
	struct search f = {.c = c};
	char why[512];
	snprintf(why, sizeof why, "%s", mt_errmsg());
	int found = c->checkpoint ? from_loaded(&f) : 1;
	if (found == 1) found = from_source(c, NULL);
	if (found < 0) return mt_fail(-rc, "%s", why);
	mt_say("warning: %s: %s: its tensors are taken from elsewhere", c->checkpoint, why);
	return 0;
}

int carried_find(struct source *s, bool drop)
{
	struct carried *c = &s->carried;
	int rc;
	if (!s->full || !json_object_get(s->files, CARRIED_RECORD)) return 0;
	if ((rc = files_verify(s->dirfd, s->files, CARRIED_RECORD, NULL)) < 0 ||
		(rc = file_read_json(s->dirfd, CARRIED_RECORD, &c->record)) < 0)
		return rc;
	char *path = realpath(s->path, NULL);
	if (path) json_put(&rc, c->record, "checkpoint", json_string(path));
	free(path);
	if (rc == 0) rc = parse(c);
	if (rc < 0 || !c->n) return rc;
	if (!json_equal(json_object_get(s->files, CARRIED_FILE), c->entry)) return damaged();
	if (!drop && (rc = files_verify(s->dirfd, s->files, CARRIED_FILE, NULL)) < 0) rc = look_elsewhere(c, rc);
	return rc;
}
