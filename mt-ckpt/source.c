/* source.c: a directory to load or verify: a Hugging Face model or, if it has a run.json, a run's full state. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>
#include "ckpt.h"
#include "model/int8.h"
#include "model/hfjson.h"

/* Is the last component of a path a checkpoint's name? */
static bool is_step_path(const char *path)
{
	uint64_t step;
	const char *slash = strrchr(path, '/');
	return step_parse(slash ? slash + 1 : path, &step);
}

/* optim-m.safetensors, optim-m-00001-of-..., optim-m-node-... */
static bool has_moments(int dirfd)
{
	const char *set = st_sets[ARRAY_M];
	size_t n = strlen(set);
	bool has = false;
	for (struct dir_walk w = dir_walk(dirfd); dir_next(&w);)
		has |= !strncmp(w.name, set, n) && (w.name[n] == '.' || w.name[n] == '-');
	return has;
}

/* Refuse an interrupted copy of a checkpoint: a directory with the name or the optimizer files of a checkpoint, but
 * without run.json. Its weights may be incomplete. */
static int check_not_cut(const struct source *s)
{
	char *real = realpath(s->path, NULL);
	bool named = is_step_path(s->path) || (real && is_step_path(real));
	free(real);
	if (!named && !has_moments(s->dirfd)) return 0;
	return mt_fail(MT_EX_DATA,
		"%s: no whole checkpoint: run.json is missing (mt-ckpt load --weights takes its weights "
		"alone)",
		shown(s->path));
}

int source_open(struct source *s, const char *dir, bool weights)
{
	int rc;
	*s = (struct source){.path = dir, .dirfd = -1};
	if ((rc = dir_open(dir, &s->dirfd)) < 0) {
		s->dirfd = -1;
		return rc;
	}
	s->full = !weights && file_exists(s->dirfd, RUN_JSON);
	if (!s->full) return weights ? 0 : check_not_cut(s);
	return run_json_read(s->dirfd, &s->json, &s->root, &s->files);
}

int source_config(struct source *s, double mtp)
{
	int rc = s->full ? files_verify(s->dirfd, s->files, "config.json", NULL) : 0;
	if (rc == 0) rc = mt_config_read_mtp(s->path, mtp, &s->geo, NULL);
	if (rc == 0) rc = mt_layout_make(&s->layout, &s->geo, MT_FP32, MT_NONE, MT_FP32, MT_ADAMW);
	if (rc == 0 && mt_layout_freeze(&s->layout, s->json.train, s->json.freeze) < 0)
		rc = mt_fail(MT_EX_DATA, RUN_JSON ": --train or --freeze is not for this model");
	return rc;
}

/* The file of what a checkpoint carries, if its record is known: it is not opened */
static const char *apart(const struct source *s) { return s->carried.record ? CARRIED_FILE : NULL; }

/* Every file that is read must have checksums in run.json. */
static int check_listed(const struct source *s, const struct model *m)
{
	for (uint32_t i = 0; i < m->files.n; i++)
		if (!json_object_get(s->files, m->files.v[i].name))
			return mt_fail(MT_EX_DATA, RUN_JSON ": has no checksums of %s", m->files.v[i].name);
	return 0;
}

static int match_array(struct source *s, enum array a, const struct mt_tensor *table, uint32_t n, enum st_dtype dtype)
{
	s->found[a] = calloc((size_t)n + 1, sizeof *s->found[a]);
	if (!s->found[a]) return mt_fail(MT_EX_NOMEM, "no memory for a table of tensors");
	int rc = model_match(&s->model[a], table, n, dtype, s->found[a]);
	return rc == 0 && s->full ? check_listed(s, &s->model[a]) : rc;
}

/* Try all forms: as_read is of the one that fits best. */
static int find_form(struct source *s)
{
	double best = HUGE_VAL;
	uint32_t form = 0;
	int rc = 0;
	for (uint32_t i = 0; i < mt_forms(&s->geo) && best > 0 && rc == 0; i++) {
		if ((rc = mt_layout_files(&s->as_read, &s->geo, i)) < 0) return rc;
		double misfit = model_misfit(&s->model[ARRAY_W], s->as_read.tensors, s->as_read.n_tensors);
		mt_layout_release(&s->as_read);
		if (misfit < best) best = misfit, form = i;
	}
	return mt_layout_files(&s->as_read, &s->geo, form);
}

static int open_weights(struct source *s, enum st_dtype dtype)
{
	struct model *m = &s->model[ARRAY_W];
	int rc = model_open(m, s->dirfd, st_sets[ARRAY_W], apart(s));
	if (rc < 0) return rc;
	model_base(m, s->layout.tensors[0].name);
	if (s->geo.flags & MT_TIED) m->head = head_tensor_name(&s->geo);
	if (!s->full && (rc = quantized_config(m, s->dirfd)) < 0) return rc;
	if ((rc = find_form(s)) < 0 || (rc = match_array(s, ARRAY_W, s->as_read.tensors, s->as_read.n_tensors, dtype)) < 0)
		return rc;
	return model_check_experts(m, s->as_read.tensors, s->as_read.n_tensors, s->found[ARRAY_W]);
}

/* A file of each node that has a part */
static int open_nodes(struct source *s, enum array a)
{
	char names[MT_NODES][SET_NAME], label[SET_NAME];
	uint32_t n = 0, nodes = s->json.nodes;
	bool has[MT_NODES] = {0};
	for (uint32_t i = 0; i < s->parts[a].n; i++) has[s->parts[a].v[i].expert] |= *s->parts[a].v[i].name;
	for (uint32_t node = 0; node < nodes; node++)
		if (has[node]) parts_set(names[n++], a, node, nodes);
	snprintf(label, sizeof label, "%s-node-*", st_sets[a]);
	return model_open_sets(&s->model[a], s->dirfd, label, names, n);
}

static int open_state(struct source *s, enum array a)
{
	struct parts *l = &s->parts[a];
	uint32_t nodes = s->json.nodes > 1 ? s->json.nodes : 1;
	enum st_dtype dtype = array_dtype(a, s->json.state);
	int rc = parts_list(l, &s->layout, 0, nodes, nodes, dtype);
	if (rc < 0) return rc;
	tiles_leave_out(s, a, l);
	rc = nodes > 1 ? open_nodes(s, a) : model_open(&s->model[a], s->dirfd, st_sets[a], NULL);
	return rc < 0 ? rc : match_array(s, a, l->v, l->n, dtype);
}

int source_models(struct source *s)
{
	bool bf16 = s->json.dtype == MT_BF16;
	int rc = open_weights(s, s->full ? array_dtype(ARRAY_W, s->json.dtype) : ST_OTHER);
	if (rc == 0 && s->geo.flags & MT_TIED)
		rc = model_match_tied(&s->model[ARRAY_W], s->as_read.tensors[0].name, head_tensor_name(&s->geo));
	if (rc == 0) rc = tiles_open(s);
	enum array last = mt_state_arrays(s->json.optim) == 2 ? ARRAY_V : ARRAY_M;
	for (enum array a = bf16 ? ARRAY_LO : ARRAY_M; rc == 0 && s->full && a <= last; a++) rc = open_state(s, a);
	return rc;
}

static int read_state(enum array a, const struct st_entry *e, uint64_t from, uint64_t n, void *raw, void *out)
{
	return a == ARRAY_LO ? st_read(e, from, n, out) : model_read(e, from, n, raw, out);
}

/* A scale is a power of two (model/int8.h), or 0. */
static int check_scales(const char *file, const char *tensor, uint64_t from, const float *scales, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t bits = mt_bits(scales[i]);
		if (bits && (bits & 0x007fffff || bits < INT8_LEAST || bits > INT8_MOST))
			return mt_fail(MT_EX_DATA, "%s: tensor '%s': element %llu is not a scale, a power of two", file,
				shown(tensor), (unsigned long long)(from + i));
	}
	return 0;
}

int source_codes(const struct source *s, enum array a, uint32_t unit, uint64_t at, uint64_t n, uint8_t *codes,
	float *scales)
{
	const struct parts *l = &s->parts[a];
	int rc = 0;
	if (tiles_have(s, a, unit)) {
		char name[24];
		snprintf(name, sizeof name, "unit.%u.%c.scale", unit, a == ARRAY_M ? 'm' : 'v');
		rc = tiles_read(s, a, false, unit, at, n, codes);
		if (rc == 0) rc = tiles_read(s, a, true, unit, at, n, scales);
		return rc == 0 ? check_scales("tiles", name, at / MT_GROUP, scales, n / MT_GROUP) : rc;
	}
	for (uint32_t i = parts_find(l, unit, at); n && rc == 0; i += l->each) {
		uint64_t in = at - l->v[i].off, some = n < l->v[i].n - in ? n : l->v[i].n - in, groups = some / MT_GROUP;
		const struct st_entry *scale = s->found[a][i + 1];
		if ((rc = st_read(s->found[a][i], in, some, codes)) < 0 ||
			(rc = st_read(scale, in / MT_GROUP, groups, scales)) < 0)
			break;
		rc = check_scales(scale->file->name, scale->tensor->name, in / MT_GROUP, scales, groups);
		codes += some;
		scales += groups;
		at += some;
		n -= some;
	}
	return rc;
}

/* The same, of any elements, as fp32 */
static int decode(const struct source *s, enum array a, uint32_t unit, uint64_t at, uint64_t n, void *raw, float *out)
{
	uint64_t before = at % MT_GROUP, groups = (before + n + MT_GROUP - 1) / MT_GROUP;
	uint8_t *codes = raw;
	float *scale = (float *)(codes + BLOCK_BYTES / 2);
	int rc = source_codes(s, a, unit, at - before, groups * MT_GROUP, codes, scale);
	for (uint64_t i = before; i < before + n && rc == 0; i++) {
		uint8_t code = codes[int8_at(i)];
		out[i - before] = a == ARRAY_M ? int8_m(code, scale[i / MT_GROUP]) : int8_v(code, scale[i / MT_GROUP]);
	}
	return rc;
}

int source_state(const struct source *s, enum array a, uint32_t index, uint64_t from, uint64_t at, uint64_t n,
	void *raw, void *out)
{
	uint64_t size = a == ARRAY_LO ? 2 : 4;
	uint32_t unit = s->layout.tensors[index].unit;
	int rc = 0;
	if (tiles_have(s, a, unit) && !(s->json.state == MT_INT8 && a != ARRAY_LO)) {
		bool bf16 = a != ARRAY_LO && s->json.state == MT_BF16;
		rc = tiles_read(s, a, false, unit, at, n, bf16 ? raw : out);
		for (uint64_t i = 0; i < n && bf16 && rc == 0; i++)
			((uint32_t *)out)[i] = (uint32_t)((const uint16_t *)raw)[i] << 16;
		return rc;
	}
	if (!s->parts[a].each) return read_state(a, s->found[a][index], from, n, raw, out);
	if (s->parts[a].each == 2) return decode(s, a, unit, at, n, raw, out);
	for (uint32_t i = parts_find(&s->parts[a], unit, at); n && rc == 0; i++) {
		const struct mt_tensor *part = &s->parts[a].v[i];
		uint64_t in = at - part->off, some = n < part->n - in ? n : part->n - in;
		rc = read_state(a, s->found[a][i], in, some, raw, out);
		out = (char *)out + some * size;
		at += some;
		n -= some;
	}
	return rc;
}

int source_checksums(struct source *s) { return s->full ? files_verify(s->dirfd, s->files, NULL, apart(s)) : 0; }

void source_close(struct source *s)
{
	for (int a = 0; a < ARRAYS; a++) {
		free(s->found[a]);
		free(s->parts[a].v);
		model_close(&s->model[a]);
	}
	free(s->tiles);
	carried_close(&s->carried);
	mt_layout_release(&s->layout);
	mt_layout_release(&s->as_read);
	json_decref(s->root);
	if (s->dirfd >= 0) close(s->dirfd);
	*s = (struct source){.dirfd = -1};
}
