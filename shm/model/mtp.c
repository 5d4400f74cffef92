/* mtp.c: the block of multi-token prediction, of which released files have one: the last layer of a geometry that has
 * mtp. Qwen's files have it in the module mtp, DeepSeek's and GLM's as the layer after the last one. */
#include <stdio.h>

#include "config.h"
#include "hffiles.h"
#include "lib.h"
#include "mt/error.h"
#include "names.h"

enum { AS_LAYER = 1, AS_MODULE = 2 }; /* mt_layer.mtp */

static const struct {
	const char *family;
	uint32_t names;
} families[] = {{"deepseek_v3", AS_LAYER}, {"glm4_moe", AS_LAYER}, {"qwen3_5_text", AS_MODULE},
	{"qwen3_5_moe_text", AS_MODULE}, {"qwen3_next", AS_MODULE}};

int geometry_mtp(struct mt_geometry *g, double weight)
{
	uint32_t is = 0, i = g->layers;
	char list[128] = "";
	for (size_t f = 0, at = 0; f < sizeof families / sizeof *families; f++) {
		if (!strcmp(g->family, families[f].family)) is = families[f].names;
		at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", families[f].family);
	}
	if (!(weight > 0 && weight < 1e6)) return mt_fail(MT_EX_USAGE, "--mtp %g is not a weight above 0", weight);
	if (!is)
		return mt_fail(MT_EX_CONFIG, "--mtp: multi-token prediction of %s is not trained, only that of %s", g->family,
			list);
	if (g->aux_coef != 0 || g->z_coef != 0)
		return mt_fail(MT_EX_CONFIG, "--mtp does not go with an auxiliary loss or a z-loss of routers");
	g->mtp = (float)weight;
	if (i && mt_layer_of(g, i - 1)->mtp) return 0;
	while (i && mt_layer_of(g, i - 1)->mixer == MT_DELTA) i--;
	if (!i || g->n_kinds == MT_KINDS || g->layers == sizeof g->kind_of)
		return mt_fail(MT_EX_CONFIG, "--mtp: no layer has attention, or there are too many");
	g->kind[g->n_kinds] = *mt_layer_of(g, i - 1);
	g->kind[g->n_kinds].mtp = is;
	g->kind_of[g->layers++] = (uint8_t)g->n_kinds++;
	return 0;
}

bool mtp_is_copy(const struct mt_geometry *g, const char *name)
{
	return g->mtp != 0 && strstr(name, "layers.") &&
		(ends_with(name, ".embed_tokens.weight") || ends_with(name, ".shared_head.head.weight"));
}

bool mtp_prefix(const struct mt_geometry *g, uint32_t layer, char *prefix, size_t n)
{
	bool own = mt_layer_of(g, layer)->mtp == AS_MODULE;
	if (own) snprintf(prefix, n, "mtp.layers.0.");
	return own;
}

bool mtp_name(const struct mt_geometry *g, uint32_t role, char name[MT_TENSOR_NAME])
{
	static const struct {
		uint32_t role;
		const char *leaf, *own; /* in its layer; in its module */
	} names[] = {{MT_T_MTP_NORM, "enorm", "mtp.pre_fc_norm_embedding"},
		{MT_T_MTP_HNORM, "hnorm", "mtp.pre_fc_norm_hidden"}, {MT_T_MTP_PROJ, "eh_proj", "mtp.fc"},
		{MT_T_FNORM, "shared_head.norm", "mtp.norm"}};
	for (size_t i = 0; g->mtp != 0 && i < sizeof names / sizeof *names; i++) {
		if (names[i].role != role) continue;
		if (mt_layer_of(g, g->layers - 1)->mtp == AS_MODULE) snprintf(name, MT_TENSOR_NAME, "%s.weight", names[i].own);
		else snprintf(name, MT_TENSOR_NAME, "model.layers.%u.%s.weight", g->layers - 1, names[i].leaf);
		return true;
	}
	return false;
}
