/* model.c: one or several safetensors files as one model: open, look up by name, match with a run's tensors, read. */
#include <stdlib.h>
#include "hf.h"
#include "model/half.h"
#include "model/hfjson.h"

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct st_entry *)a)->tensor->name, ((const struct st_entry *)b)->tensor->name);
}

static int add_entries(struct model *m)
{
	size_t n = 0;
	for (uint32_t i = 0; i < m->files.n; i++) n += m->files.v[i].n;
	m->entries = calloc(n + 1, sizeof *m->entries);
	if (!m->entries) return mt_fail(MT_EX_NOMEM, "%s: no memory for its tensors", m->files.label);
	for (uint32_t i = 0; i < m->files.n; i++)
		for (size_t j = 0; j < m->files.v[i].n; j++)
			if (m->files.v[i].tensors[j].listed)
				m->entries[m->n++] = (struct st_entry){.file = &m->files.v[i], .tensor = &m->files.v[i].tensors[j]};
	if (m->n) qsort(m->entries, m->n, sizeof *m->entries, by_name);
	return 0;
}

int model_open(struct model *m, int dirfd, const char *set, const char *without)
{
	*m = (struct model){0};
	int rc = st_files_open(&m->files, dirfd, set, without);
	if (rc == 0) rc = add_entries(m);
	if (rc < 0) model_close(m);
	return rc;
}

int model_open_sets(struct model *m, int dirfd, const char *label, char (*names)[64], uint32_t n)
{
	char file[80];
	*m = (struct model){.files.label = strdup(label)};
	int rc = m->files.label ? 0 : mt_fail(MT_EX_NOMEM, "%s: no memory", label);
	for (uint32_t i = 0; i < n && rc == 0; i++) {
		snprintf(file, sizeof file, "%s.safetensors", names[i]);
		rc = st_add(&m->files, dirfd, file);
	}
	if (rc == 0) rc = add_entries(m);
	if (rc < 0) model_close(m);
	return rc;
}

void model_close(struct model *m)
{
	for (size_t i = 0; i < m->n; i++) free(m->entries[i].scale);
	free(m->entries);
	st_files_close(&m->files);
	*m = (struct model){0};
}

struct st_entry *model_find(const struct model *m, const char *name)
{
	struct st_tensor t = {.name = name};
	struct st_entry key = {.tensor = &t};
	return m->n ? bsearch(&key, m->entries, m->n, sizeof key, by_name) : NULL;
}

void model_base(struct model *m, const char *embed_name)
{
	m->base = embed_name;
	m->base_bytes = (size_t)(strchr(embed_name, '.') - embed_name) + 1;
	const char *leaf = embed_name + m->base_bytes;
	if (model_find(m, embed_name) || model_find(m, leaf)) return;
	for (size_t i = 0; i < m->n; i++) {
		const char *name = m->entries[i].tensor->name;
		int n = name_prefix(name, leaf);
		if (n < 0 || (m->prefix && n >= m->prefix_bytes)) continue;
		m->prefix = name;
		m->prefix_bytes = n;
	}
}

static struct st_entry *find_after(const struct model *m, const char *prefix, int bytes, const char *rest)
{
	char name[256];
	int n = snprintf(name, sizeof name, "%.*s%s", bytes, prefix, rest);
	return n < (int)sizeof name ? model_find(m, name) : NULL;
}

struct st_entry *model_head(const struct model *m, const char *head_name)
{
	struct st_entry *e = NULL;
	const char *prefix = m->prefix ? m->prefix : m->base;
	int bytes = m->prefix ? m->prefix_bytes : (int)m->base_bytes, at = 0, n;
	while (!e && (n = name_outer(prefix, bytes, &at)) >= 0) e = find_after(m, prefix, n, head_name);
	return e;
}

/* The tensor of that name. A file may have another prefix than `base`, or none; its LM head is in any module around. */
static struct st_entry *find_as(const struct model *m, const char *name)
{
	struct st_entry *e = m->prefix ? NULL : model_find(m, name);
	if (e || !m->base_bytes) return e;
	if (strncmp(name, m->base, m->base_bytes) != 0) return model_head(m, name);
	return m->prefix ? find_after(m, m->prefix, m->prefix_bytes, name + m->base_bytes)
					 : model_find(m, name + m->base_bytes);
}

/* The same of one in MXFP4 */
static struct st_entry *find_mxfp4(const struct model *m, const char *name)
{
	char other[2 * MT_TENSOR_NAME];
	snprintf(other, sizeof other, "%s_blocks", name);
	return find_as(m, other);
}

static bool weight_dtype(enum st_dtype d) { return d == ST_F32 || d == ST_BF16 || d == ST_F16; }

static void shape_text(char *buf, size_t n, const uint64_t *shape, uint32_t ndim)
{
	size_t at = (size_t)snprintf(buf, n, "(");
	for (uint32_t d = 0; d < ndim && at < n; d++)
		at += (size_t)snprintf(buf + at, n - at, d ? ", %llu" : "%llu", (unsigned long long)shape[d]);
	if (at < n) snprintf(buf + at, n - at, ")");
}

static bool dtype_fits(enum st_dtype has, const struct mt_tensor *want, enum st_dtype dtype)
{
	if (dtype == ST_OTHER) return weight_dtype(has) || has == ST_F8;
	if (dtype == ST_U8 && want->exact) return has == ST_F32;
	return has == dtype || (dtype == ST_BF16 && want->exact && has == ST_F32);
}

static bool shape_fits(const struct st_tensor *t, const struct mt_tensor *want, uint64_t needed[4])
{
	mt_tensor_dims(want, needed);
	return t->ndim == want->ndim && memcmp(t->shape, needed, want->ndim * sizeof *needed) == 0;
}

static int match(const struct model *m, struct st_entry *e, const struct mt_tensor *want, enum st_dtype dtype)
{
	const struct st_tensor *t = e->tensor;
	if (is_mxfp4(e)) return mxfp4_match(m, e, want);
	if (!dtype_fits(t->dtype, want, dtype))
		return mt_fail(MT_EX_DATA, "%s: tensor '%s': dtype %s is not one that can be loaded here", e->file->name,
			shown(t->name), t->dtype_name);
	uint64_t needed[4];
	if (!shape_fits(t, want, needed)) {
		char has[220], needs[64];
		shape_text(has, sizeof has, t->shape, t->ndim);
		shape_text(needs, sizeof needs, needed, want->ndim);
		return mt_fail(MT_EX_DATA, "%s: tensor '%s': shape %s where config.json says %s", e->file->name, shown(t->name),
			has, needs);
	}
	if (want->transposed && needed[2] > TRANSPOSED_COLS)
		return mt_fail(MT_EX_DATA, "%s: tensor '%s': rows of more than %u elements", e->file->name, want->name,
			TRANSPOSED_COLS);
	return t->dtype == ST_F8 ? fp8_match(m, e) : 0;
}

/* The file may have other names for the same tensors: show two that the model does not have */
static int missing(const struct model *m, const char *name)
{
	bool no_head = !strcmp(name, "lm_head.weight") || !strcmp(name, "embed_out.weight");
	char has[400] = "";
	size_t at = 0, n = 0;
	for (int used = 0; used < 2; used++)
		for (size_t i = 0; i < m->n && n < 2; i++)
			if (m->entries[i].used == used)
				at += (size_t)snprintf(has + at, sizeof has - at, "%s'%s'", n++ ? " and " : "; it has ",
					shown(m->entries[i].tensor->name));
	return mt_fail(MT_EX_DATA, "%s: tensor '%s': is missing%s%s", m->files.label, name,
		no_head ? "; mt trains the LM head too, which a base model does not have: AutoModelForCausalLM"
				  ".from_pretrained(DIR).save_pretrained(NEW) adds a random one"
				: "",
		has);
}

double model_misfit(const struct model *m, const struct mt_tensor *table, uint32_t n)
{
	double all = 0, experts = 0, other = 0, shapes = 0;
	uint64_t needed[4];
	for (uint32_t i = 0; i < n; i++) {
		bool expert = table[i].role >= MT_T_XGATE && table[i].role <= MT_T_XDOWNB;
		const struct st_entry *e = find_as(m, table[i].name);
		bool there = e || find_mxfp4(m, table[i].name) || (i == 0 && m->head);
		all += expert;
		if (!there) *(expert ? &experts : &other) += 1;
		if (e && !shape_fits(e->tensor, &table[i], needed)) shapes += 1;
	}
	return other + (experts > 0 ? experts / all : 0) + shapes / n / 1e3;
}

int model_check_experts(const struct model *m, const struct mt_tensor *table, uint32_t n, struct st_entry *const *found)
{
	static const char layers[] = "layers.";
	uint32_t last = 0;
	const char *name = NULL;
	for (uint32_t i = 0; i < n; i++) {
		if (table[i].unit > last) last = table[i].unit; /* the one after the layers */
		if (table[i].role >= MT_T_XGATE && table[i].role <= MT_T_XDOWNB) name = found[i]->tensor->name;
	}
	const char *at = name ? strstr(name, layers) : NULL;
	for (size_t i = 0; at && i < m->n; i++) {
		const struct st_entry *e = &m->entries[i];
		size_t lead = (size_t)(at - name) + strlen(layers);
		char *end;
		if (e->used || strncmp(e->tensor->name, name, lead) != 0 || !strstr(e->tensor->name + lead, ".experts."))
			continue;
		if (strtoul(e->tensor->name + lead, &end, 10) + 1 >= last || *end != '.') continue;
		return mt_fail(MT_EX_DATA, "%s: tensor '%s': the model's experts are complete without it", e->file->name,
			shown(e->tensor->name));
	}
	return 0;
}

int model_match(struct model *m, const struct mt_tensor *table, uint32_t n, enum st_dtype dtype,
	struct st_entry **found)
{
	int rc = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (!*table[i].name) continue;
		found[i] = find_as(m, table[i].name);
		if (!found[i] && i == 0 && m->head) found[i] = find_as(m, m->head);
		if (!found[i] && dtype == ST_OTHER) found[i] = find_mxfp4(m, table[i].name);
		if (found[i]) found[i]->used = true;
	}
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = found[i] ? match(m, found[i], &table[i], dtype) : *table[i].name ? missing(m, table[i].name) : 0;
	return rc == 0 && dtype == ST_OTHER ? quantized_check(m) : rc;
}

int model_match_tied(struct model *m, const char *embed_name, const char *head_name)
{
	struct st_entry *embed = find_as(m, embed_name), *head = find_as(m, head_name);
	static const uint64_t step = IO_BYTES / 4;
	int rc = 0;
	if (!head || !embed) return 0;
	head->used = true;
	const struct st_tensor *a = embed->tensor, *b = head->tensor;
	if (b->dtype == ST_F8 && (rc = fp8_match(m, head)) < 0) return rc;
	if ((!weight_dtype(b->dtype) && b->dtype != ST_F8) || b->ndim != 2 || a->shape[0] != b->shape[0] ||
		a->shape[1] != b->shape[1])
		return mt_fail(MT_EX_DATA, "%s: tensor '%s': not of its embeddings' shape, but config.json ties them",
			head->file->name, head_name);
	uint64_t n = a->shape[0] * a->shape[1];
	uint32_t *x = malloc(IO_BYTES), *y = malloc(IO_BYTES);
	void *raw = malloc(IO_BYTES);
	if (!x || !y || !raw) rc = mt_fail(MT_EX_NOMEM, "no memory to compare %s", head_name);
	for (uint64_t at = 0; rc == 0 && at < n; at += step) {
		uint64_t len = n - at < step ? n - at : step;
		if ((rc = model_read(embed, at, len, raw, x)) == 0 && (rc = model_read(head, at, len, raw, y)) == 0 &&
			memcmp(x, y, len * 4))
			rc = mt_fail(MT_EX_DATA, "%s: tensor '%s': differs from its embeddings, but config.json ties them",
				head->file->name, head_name);
	}
	free(x);
	free(y);
	free(raw);
	return rc;
}

int st_read(const struct st_entry *e, uint64_t from, uint64_t n, void *data)
{
	const struct st_tensor *t = e->tensor;
	return file_read(e->file->fd, e->file->name, data, n * t->elem, t->begin + from * t->elem);
}

int model_read(const struct st_entry *e, uint64_t from, uint64_t n, void *raw, uint32_t *bits)
{
	enum st_dtype dtype = e->tensor->dtype;
	const uint16_t *half = raw;
	int rc = st_read(e, from, n, dtype == ST_F32 ? (void *)bits : raw);
	if (rc < 0) return rc;
	if (dtype == ST_BF16)
		for (uint64_t i = 0; i < n; i++) bits[i] = (uint32_t)half[i] << 16;
	else if (dtype == ST_F16)
		for (uint64_t i = 0; i < n; i++) bits[i] = half_bits(half[i]);
	else if (dtype == ST_F8) fp8_decode(e, from, n, raw, bits);
	return 0;
}
