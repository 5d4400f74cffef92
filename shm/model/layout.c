/* layout.c: geometry -> units, tensors, and the offset of each array of a unit in the store region. */
#include <errno.h>
#include <stdlib.h>

#include "lib.h"

#define BIG_ALIGN (2u << 20)    /* big arrays start on a huge page */
#define BIG (64u << 20)         /* from this size on, the alignment costs less than 3% */
#define SMALL_ALIGN 4096u       /* for smaller arrays: small models would consist mostly of gaps otherwise */
#define UNIT_ELEMS (1ull << 33) /* maximum: the optimizer's journal has 27 bits for a group of MT_GROUP */

/* ------------------------------------------------------------------------------------------------ tensors */

struct size {
	uint64_t rows, cols; /* (rows, cols), or (rows) if cols is 0 */
};

/* Tensors of a block and of the other units, in the order of their roles; names are transformers'. `slab`: starts at a
 * multiple of MT_GROUP; without it, a tensor follows the one before without a gap, so that both are one matrix. */
static const struct entry {
	enum mt_role_tensor role;
	uint32_t needs; /* a geometry flag; 0: always there */
	bool slab;
	const char *name; /* inside its block; the whole name for units 0 and L + 1 */
} block_tensors[] = {
	{MT_T_NORM1, 0, true, "input_layernorm.weight"},
	{MT_T_Q, 0, true, "self_attn.q_proj.weight"},
	{MT_T_K, 0, false, "self_attn.k_proj.weight"},
	{MT_T_V, 0, false, "self_attn.v_proj.weight"},
	{MT_T_QB, MT_QKV_BIAS, true, "self_attn.q_proj.bias"},
	{MT_T_KB, MT_QKV_BIAS, false, "self_attn.k_proj.bias"},
	{MT_T_VB, MT_QKV_BIAS, false, "self_attn.v_proj.bias"},
	{MT_T_QNORM, MT_QK_NORM, true, "self_attn.q_norm.weight"},
	{MT_T_KNORM, MT_QK_NORM, true, "self_attn.k_norm.weight"},
	{MT_T_O, 0, true, "self_attn.o_proj.weight"},
	{MT_T_OB, MT_O_BIAS, true, "self_attn.o_proj.bias"},
	{MT_T_NORM2, 0, true, "post_attention_layernorm.weight"},
	{MT_T_GATE, 0, true, "mlp.gate_proj.weight"},
	{MT_T_UP, 0, false, "mlp.up_proj.weight"},
	{MT_T_GATEB, MT_MLP_BIAS, true, "mlp.gate_proj.bias"},
	{MT_T_UPB, MT_MLP_BIAS, false, "mlp.up_proj.bias"},
	{MT_T_DOWN, 0, true, "mlp.down_proj.weight"},
	{MT_T_DOWNB, MT_MLP_BIAS, true, "mlp.down_proj.bias"},
};
static const struct entry first_tensors[] = {{MT_T_EMBED, 0, true, "model.embed_tokens.weight"}};
static const struct entry last_tensors[] = {
	{MT_T_FNORM, 0, true, "model.norm.weight"}, {MT_T_HEAD, 0, true, "lm_head.weight"}, /* left out when tied */
};
enum { BLOCK_TENSORS = sizeof block_tensors / sizeof *block_tensors };

static struct size shape_of(const struct mt_geometry *geo, enum mt_role_tensor role)
{
	uint64_t q = (uint64_t)geo->heads * geo->head_dim, kv = (uint64_t)geo->kv_heads * geo->head_dim;
	switch (role) {
	case MT_T_EMBED:
	case MT_T_HEAD: return (struct size){geo->vocab, geo->hidden};
	case MT_T_NORM1:
	case MT_T_NORM2:
	case MT_T_FNORM:
	case MT_T_OB:
	case MT_T_DOWNB: return (struct size){geo->hidden, 0};
	case MT_T_Q: return (struct size){q, geo->hidden};
	case MT_T_K:
	case MT_T_V: return (struct size){kv, geo->hidden};
	case MT_T_QB: return (struct size){q, 0};
	case MT_T_KB:
	case MT_T_VB: return (struct size){kv, 0};
	case MT_T_QNORM:
	case MT_T_KNORM: return (struct size){geo->head_dim, 0};
	case MT_T_O: return (struct size){geo->hidden, q};
	case MT_T_GATE:
	case MT_T_UP: return (struct size){geo->ffn, geo->hidden};
	case MT_T_GATEB:
	case MT_T_UPB: return (struct size){geo->ffn, 0};
	case MT_T_DOWN: return (struct size){geo->hidden, geo->ffn};
	}
	return (struct size){0, 0};
}

/* Append a unit's tensors to the tables. */
static int add_unit(struct mt_layout *l, uint32_t unit, const struct entry *entry, size_t n, const char *prefix)
{
	struct mt_unit *u = &l->units[unit];
	u->first_tensor = l->n_tensors;
	uint64_t at = 0;
	for (size_t i = 0; i < n; i++) {
		if (entry[i].needs && !(l->geo.flags & entry[i].needs)) continue;
		if (entry[i].role == MT_T_HEAD && l->geo.flags & MT_TIED) continue;
		struct size size = shape_of(&l->geo, entry[i].role);
		struct mt_tensor *t = &l->tensors[l->n_tensors++];
		if (entry[i].slab) at = round_up(at, MT_GROUP);
		snprintf(t->name, sizeof t->name, "%s%s", prefix, entry[i].name);
		t->role = entry[i].role;
		t->unit = unit;
		t->ndim = size.cols ? 2 : 1;
		t->decay = t->ndim >= 2;
		t->shape[0] = size.rows;
		t->shape[1] = size.cols ? size.cols : 1;
		t->off = at;
		if (__builtin_mul_overflow(t->shape[0], t->shape[1], &t->n) || t->n == 0 || t->n > UNIT_ELEMS)
			return mt_fail(MT_EX_CONFIG, "tensor '%s' of %llu x %llu is out of range", t->name,
				(unsigned long long)t->shape[0], (unsigned long long)t->shape[1]);
		at += t->n; /* both at most 2^33 times a few */
		u->params += t->n;
	}
	u->tensors = l->n_tensors - u->first_tensor;
	u->elems = round_up(at, MT_GROUP);
	if (u->elems > UNIT_ELEMS)
		return mt_fail(MT_EX_CONFIG, "unit %u of %llu elements is larger than 2^33", unit,
			(unsigned long long)u->elems);
	l->params += u->params; /* at most 1026 units of 2^33 */
	return 0;
}

/* ------------------------------------------------------------------------------------------------ arrays */

static uint64_t place(uint64_t *at, uint64_t bytes)
{
	uint64_t off = round_up(*at, bytes >= BIG ? BIG_ALIGN : SMALL_ALIGN);
	*at = off + bytes;
	return off;
}

/* Arrays of a unit, in the order w | lo | m | v | g (of tied embeddings: embed gradient, head gradient). At most 1026
 * units of 20 x 2^33 bytes. */
static void place_unit(struct mt_layout *l, uint32_t unit, uint64_t *at)
{
	struct mt_unit *u = &l->units[unit];
	bool bf16 = l->dtype == MT_BF16;
	u->w = place(at, u->elems * (bf16 ? 2 : 4));
	u->lo = bf16 ? place(at, u->elems * 2) : 0;
	u->m = place(at, u->elems * 4);
	u->v = place(at, u->elems * 4);
	if (l->grad == MT_NONE) return;
	uint64_t bytes = u->elems * (l->grad == MT_BF16 ? 2 : 4);
	u->g[0] = place(at, bytes);
	if (unit == 0 && l->geo.flags & MT_TIED) u->g[1] = place(at, bytes);
}

static int fill(struct mt_layout *l)
{
	uint32_t layers = l->geo.layers;
	int rc = add_unit(l, 0, first_tensors, 1, "");
	for (uint32_t i = 0; i < layers && rc == 0; i++) {
		char prefix[40];
		snprintf(prefix, sizeof prefix, "model.layers.%u.", i);
		rc = add_unit(l, i + 1, block_tensors, BLOCK_TENSORS, prefix);
	}
	if (rc == 0) rc = add_unit(l, layers + 1, last_tensors, sizeof last_tensors / sizeof *last_tensors, "");
	if (rc) return rc;
	uint64_t at = round_up(sizeof(struct mt_header), SMALL_ALIGN);
	for (uint32_t unit = 0; unit < l->n_units; unit++) place_unit(l, unit, &at);
	l->store_bytes = round_up(at, SMALL_ALIGN);
	return 0;
}

int mt_layout_make(struct mt_layout *l, const struct mt_geometry *geo, enum mt_dtype dtype, enum mt_dtype grad)
{
	memset(l, 0, sizeof *l);
	if (geo->layers < 1 || geo->layers > 1024) return mt_fail(MT_EX_CONFIG, "%u layers are out of range", geo->layers);
	l->geo = *geo;
	l->dtype = dtype;
	l->grad = grad;
	l->n_units = geo->layers + 2;
	/* aligned_alloc: struct mt_unit has cache lines of its own */
	size_t unit_bytes = sizeof *l->units * l->n_units;
	l->units = aligned_alloc(_Alignof(struct mt_unit), unit_bytes);
	l->tensors = calloc((size_t)geo->layers * BLOCK_TENSORS + 3, sizeof *l->tensors);
	if (!l->units || !l->tensors) {
		mt_layout_release(l);
		return mt_fail(MT_EX_NOMEM, "no memory for the unit and tensor tables");
	}
	memset(l->units, 0, unit_bytes);
	int rc = fill(l);
	if (rc) mt_layout_release(l);
	return rc;
}

void mt_layout_release(struct mt_layout *l)
{
	free(l->units);
	free(l->tensors);
	memset(l, 0, sizeof *l);
}
