/* config.h: what the files that read config.json share. Not for others. */
#ifndef MT_CONFIG_H
#define MT_CONFIG_H

#include <jansson.h>
#include <math.h>
#include <stddef.h>

#include "lib.h"
#include "names.h"

/* clang-format off */

/* ---- keys */

/* rc and mt_errmsg() are of the first error. After it every getter returns the default. */
struct reader {
	const json_t *root;  /* of the text model's keys */
	const json_t *outer; /* the file's root; of a wrapper, root is its text_config */
	int rc;
};

#define REFUSE(r, ex, ...) ((r)->rc ? (void)0 : (void)((r)->rc = mt_fail((ex), __VA_ARGS__)))

static inline bool is_given(const json_t *v) { return v && !json_is_null(v); }

/* Python reads NaN, Infinity and numbers beyond 64 bits; mt refuses them in the keys that it uses. */
bool key_is_odd(struct reader *, const char *key, const json_t *v);
uint32_t key_u32(struct reader *, const char *key, uint32_t missing, uint32_t lo, uint32_t hi);
/* obj's number at key; NaN when it is missing or null */
double key_number(struct reader *, const json_t *obj, const char *key);
/* Of the root, a number that is not negative, which may be missing or null */
float key_coefficient(struct reader *, const char *key, float missing);
bool key_bool(struct reader *, const json_t *obj, const char *key, bool missing);
/* NULL when it is missing or null */
const char *key_string(struct reader *, const json_t *obj, const char *key);
/* NULL when it is missing, null or empty */
const json_t *key_object(struct reader *, const char *key);
/* Which layers a list has, by their numbers: in (layers). False, and in may be as it was: there is no such list */
bool key_layers(struct reader *, const char *key, uint32_t layers, bool *in);

/* ---- rope */

/* Keys of rope_scaling and rope_parameters: modeling_rope_utils.py, ROPE_INIT_FUNCTIONS and the _compute_* functions */
enum rope_key {
	R_FACTOR, R_LOW, R_HIGH, R_ORIGINAL, R_ATTENTION, R_FAST, R_SLOW, R_MSCALE, R_MSCALE_ALL, R_ALPHA, R_BETA, R_KEYS
};

enum { MAX_PAIRS = 256 };

struct rope {
	const struct rope_kind *kind;
	double v[R_KEYS]; /* NaN: not given */
	bool truncate;
	bool unclear;           /* transformers 4 and 5 have different ones */
	double theta, partial;  /* partial: NaN: not given */
	const char *theta_key, *partial_key; /* names of both in the file */
	uint32_t n_short;       /* longrope: entries of short_factor */
	float short_factor[MAX_PAIRS];
};

enum rope_of { ROPE_FULL, ROPE_LOCAL, ROPE_NONE }; /* which of a model's ropes a kind of layers has */

/* ---- families */

/* What is being read: the geometry, and what all kinds of layers have in common */
struct model {
	const struct family *family;
	struct mt_geometry geo;
	struct mt_layer base;
	/* what layers with full attention have instead, if not 0 */
	uint32_t full_head_dim, full_kv_heads, full_k_is_v;
	struct rope rope[ROPE_NONE];
	uint32_t rotary_dim; /* elements of a head that turn, where a key says so instead of their part; 0: none does */
	uint32_t longest_row;    /* for which the ropes' frequencies hold, and an indexer chooses all tokens; 0: any */
	enum rope_of rope_of[MT_KINDS];
	/* These have the numbers of their part alone: */
	struct mt_layer mixer;   /* gated DeltaNet, Mamba or a convolution, of layers that have it instead of attention */
	struct mt_layer experts; /* the MLP of layers with experts */
	bool sparse[1024];       /* does this layer have them? */
	bool mixed, mixes[1024]; /* the family's own keys say which layers have `mixer` */
	bool no_rope;            /* a key says that no layer has rope */
	uint32_t first, later, last; /* mt_layer.parts of the first layer; of all others; of the last */
	uint32_t kv_shared;      /* so many last layers read other layers' k and v; */
	bool kv_shared_wide;     /* their MLP is twice as wide */
	uint32_t ffn[1024];      /* where layers differ; 0: base's */
	float sparsity[1024];
	char halves[1025];       /* all that each layer of one half has: M (Mamba), * (attention), E (experts) or - */
};

#define OF_MODEL(field) offsetof(struct model, geo.field)
#define OF_KIND(field) offsetof(struct model, base.field)

enum { SIZES = 8 };
enum { DERIVED = 0 }; /* kv_heads: as heads; head_dim: hidden / heads */

/* Names that a family has instead of size_keys'. "": the family has no such key, its size is always the default */
enum size_name { S_LAYERS, S_HIDDEN, S_FFN, S_POSITIONS = 4, S_HEADS, S_KV_HEADS, S_HEAD_DIM };

struct flag_key {
	const char *name;
	uint32_t flags; /* that true sets */
	bool missing;   /* the class's default */
};

/* A number that the model multiplies by or caps with: `at` in struct model becomes it, or what `as` says */
struct number_key {
	const char *name;
	size_t at;
	enum { AS_IS, RECIPROCAL, RECIPROCAL_ROOT } as;
	double missing; /* the class's default; NAN: the field stays as it is, as it does for null */
};

/* In place of a default: the class has none, and the key must be there */
#define REQUIRED UINT32_MAX

/* MLPs that are mixtures of experts: keys, defaults, and what their routers compute */
struct experts {
	const char *key;               /* of the number of experts; NULL: the family has none */
	uint32_t experts, per_token;   /* defaults, or REQUIRED */
	const char *ffn_key;           /* an expert's inner size; NULL: intermediate_size */
	uint32_t ffn;
	const char *shared_key;        /* NULL: no shared expert */
	uint32_t shared;
	bool shared_counts;            /* shared_key is a number of experts, not an inner size */
	const char *alias;             /* of key (attribute_map); NULL: none */
	const char *per_token_key, *per_token_alias; /* NULL: num_experts_per_tok, none */
	enum mt_score score;
	uint32_t flags;                /* expert_flags; */
	const char *renormalise_key;   /* and MT_RENORMALISE by this key, */
	bool renormalise;              /* whose default is this */
	const char *floor_key;
	float floor, eps;              /* weight_floor, weight_eps */
	const char *scale_key;         /* NULL: 1 */
	float scale;                   /* its default; 0: 1 */
	uint32_t groups, groups_used;  /* defaults of n_group and topk_group; 0: no such keys; 1 */
	float aux;                     /* default of router_aux_loss_coef; 0: the loss never has that term */
	/* which layers are dense: those of mlp_only_layers and decoder_sparse_step; the first first_k_dense_replace; those
	 * of mlp_layer_types, or if it is missing the first ones; those beside moe_layer_start_index ..
	 * moe_layer_end_index, and by moe_layer_interval; the first num_dense_layers; those that are not in moe_layers, by
	 * default all but each interleave_moe_layer_step-th */
	enum { DENSE_NEVER, DENSE_LISTED, DENSE_FIRST, DENSE_TYPES, DENSE_RANGE, DENSE_NUMBER, DENSE_BY_STEP } dense;
	uint32_t first;                /* the default of first_k_dense_replace or num_dense_layers */
	bool by_read;                  /* some models of the family have no experts: `read` calls read_experts */
};

/* Defaults of LlamaConfig, MistralConfig, ... (configuration_*.py of transformers 4.57 and 5), and what
 * LlamaForCausalLM, ... (modeling_*.py) compute. What a row leaves out is 0 or NULL, which means what llama does. */
struct family {
	const char *name, *architecture;
	const char *shares;            /* the family whose classes transformers 5 has for it; NULL: it has its own */
	struct {
		const char *name, *key;
	} alias[5];                    /* names that files may have for keys: transformers' attribute_map */
	uint32_t size[SIZES];          /* defaults, in the order of size_keys */
	const char *size_name[SIZES];  /* NULL: size_keys' */
	bool heads_divide_hidden;      /* LlamaConfig requires it even if head_dim is given */
	bool heads_fill_hidden;        /* o_proj is square */
	bool tied;                     /* tie_word_embeddings, if the key is missing */
	bool inner;                    /* only the text_config of wrappers has this model_type */
	bool mrope;                    /* its rope has three positions, equal in texts: rope_type mrope is plain */
	uint32_t flags;                /* that every model of the family has; */
	struct flag_key flag_key[4];   /* and those that keys set */
	struct number_key number[6];
	const char *act_key, *act;     /* of the MLP's function, and its default; NULL: hidden_act, silu */
	bool ungated;                  /* the MLP has no gate */
	bool only_act;                 /* no released model has another function: a file that has one is refused */
	enum mt_names names;
	const char *eps_key;           /* NULL: rms_norm_eps; "": no key, it is always `eps` */
	double eps, init_range;        /* 0: NORM_EPS_DEFAULT, INIT_RANGE_DEFAULT */
	uint32_t pad;                  /* 1 + default of pad_token_id; 0: none */
	bool no_pad;                   /* the embedding has no padding_idx, whatever pad_token_id is */
	const char *refused[2];        /* keys that must not be true */
	struct experts experts;
	void (*read)(struct reader *, struct model *); /* what no table says; NULL: nothing */
	const char *dropout_key[3];    /* keys of dropouts that no other family has, or that are */
	double dropout;                /* this if they are missing */
	bool dropout_released;         /* released files ask for dropout: MT_DROPOUT, not an error */
	/* rope */
	double theta, partial;         /* 0: ROPE_THETA_DEFAULT; the key partial_rotary_factor is not read */
	const char *theta_key, *partial_key; /* names of rope_theta and partial_rotary_factor in the file's root; NULL:
	                                * the same names */
	double local_theta;            /* not 0: layers with and without window have each their rope */
	const char *local_theta_key;   /* in the file's root; NULL: none */
	const char *rope;              /* rope_parameters of a file that has neither these nor rope_scaling; NULL: plain */
	uint32_t original;             /* default of original_max_position_embeddings in the file's root; 0: no such key */
	bool neighbours;               /* of MLA: always, else by the key rope_interleave */
	uint32_t latent[4];            /* MLA: defaults of q_lora_rank, kv_lora_rank, qk_nope_head_dim, v_head_dim; the
	                                * size head_dim is its qk_rope_head_dim; 0: softmax attention */
	bool any_head_dim;             /* its class does not read head_dim */
	bool alpha;                    /* rope_type dynamic has a fixed alpha */
	bool backwards;                /* pairs turn the other way */
	bool longrope;                 /* older names of rope_type longrope are "su" and "yarn", and no others are used */
	bool type_only;                /* its class in transformers 4 wants `type` in rope_scaling, and refuses rope_type */
	bool temperature;              /* llama_4_scaling_beta */
	/* layers */
	enum { WINDOW_NEVER, WINDOW_ALL, WINDOW_QWEN, WINDOW_FROM, WINDOW_PATTERN, WINDOW_NOPE } window;
	uint32_t tokens;               /* of the window, if the key is missing; 0: WINDOW_DEFAULT */
	uint32_t from;                 /* WINDOW_FROM: default of max_window_layers */
	bool window_missing_none;      /* without the key there is no window */
	bool window_null_none;         /* with null there is no window; WINDOW_PATTERN only, the others always allow it */
	uint32_t pattern;              /* WINDOW_PATTERN: each such layer is full; */
	bool first_full;               /* the first one, too, and each such one after it */
	const char *pattern_key;       /* unless this key says another; NULL: no key does */
	bool types_win;                /* whatever pattern_key says beside layer_types */
	bool last_full;                /* whatever layer_types says of the last layer */
	bool delta;                    /* linear_attention of layer_types is gated DeltaNet; without this key, all but each
	                                * full_attention_interval-th layer have it */
	bool conv;                     /* conv of layer_types is a short convolution; without this key, all layers beside
	                                * full_attn_idxs have it */
	bool mamba;                    /* linear_attention or mamba of layer_types is Mamba 2; without this key, all layers
	                                * have it */
	bool beside;                   /* all layers are hybrid: Mamba 2 beside attention */
	bool spans;                    /* chunked_attention of layer_types is attention inside spans of
	                                * attention_chunk_size tokens; without this key, all layers with rope have it */
	bool short_inputs;             /* tokens may be beyond the table of the blocks' own inputs */
	bool per_layer;                /* layers that per_layer_config lists have other sizes */
	enum { NOPE_NEVER, NOPE_FULL, NOPE_BESIDE_WINDOWS, NOPE_LIST } nope; /* layers without rope: full ones, which are
	                                * all in a model without windows; the same if the model has a window; those of
	                                * no_rope_layers, by default each fourth */
};

/* A class for images and more too. Its text model is one of the families, and it alone is trained */
struct wrapper {
	const char *name, *architecture;
	const char *text;              /* model_type of text_config, if that has none */
	bool any;                      /* text_config may have other families' */
	bool at_root;                  /* older files have no text_config, and its keys in the root */
	bool tied;                     /* tie_word_embeddings, if the root does not have it */
	bool text_ties;                /* true in text_config ties too, */
	bool text_ties_missing;        /* if the root does not have it, */
	bool text_alone;               /* or only that counts */
	const char *text_keys;         /* those that text_config has if they are missing, as JSON; NULL: none */
};

#define PARALLEL_ONE_NORM (MT_PARALLEL | MT_ONE_NORM)

const struct family *family_find(const char *model_type); /* NULL: none */
const char *family_untrained(const char *model_type); /* why mt does not train a class that it knows; NULL: not known */
/* Whose class this is: LLaMAForCausalLM, LlamaModel and LlamaForSequenceClassification are llama's. NULL: nobody's */
const struct family *family_of_class(const char *architecture);
const struct wrapper *wrapper_find(const char *model_type); /* NULL: none */
bool wrapper_is_class(const struct wrapper *, const char *architecture);

/* ---- files */

/* beside.c: what the files beside a wrapper's config.json, in an open directory, say of the model: whether it is tied,
 * and what it carries. Files that cannot be read change nothing: who loads them reports that. */
int read_beside(int dirfd, struct mt_geometry *); /* 0, or 78: it lacks multi-token prediction */
void read_ropes(struct reader *, const struct family *, struct model *);  /* rope.c */
/* Give the kind its frequencies, for its head_dim */
void rope_fill(struct reader *, const struct family *, struct model *, enum rope_of, struct mt_layer *);
/* layers.c: each layer's kind */
void read_layers(struct reader *, const struct family *, struct model *);
void check_heads(struct reader *, const struct mt_layer *);
/* What rows of families.c have in `read`: config.c */
typedef void read_function(struct reader *, struct model *);
read_function read_falcon, read_gemma, read_gemma_1, read_gemma4, read_gemma4_unified, read_olmo, read_gpt2;
read_function read_bigcode, read_opt, read_afmoe, read_delta, read_conv, read_lfm2, read_kimi, read_granite_hybrid;
read_function read_mamba_1, read_falcon_mamba, read_jamba;
read_function read_nemotron_h, read_falcon_h1, read_internlm3, read_gptj, read_gpt_neo, read_biogpt;
read_function read_youtu, read_minicpm3, read_granite_swa, read_indexed, read_mpt, read_bamba;
read_function read_mamba2, read_bloom, read_openai, read_neox_japanese, read_xglm, read_ctrl;
read_function read_olmo_hybrid, read_lara, read_gemma3n, read_apertus, read_nanochat;
/* experts.c. read_experts: m->experts and m->sparse */
read_function read_experts, read_minimax, read_gpt_oss, read_lfm2_experts, read_deepseek_v2, read_llama4;
read_function read_hunyuan_experts, read_flint;

/* clang-format on */

#endif
