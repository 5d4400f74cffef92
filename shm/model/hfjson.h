/* hfjson.h: JSON as Python writes it, as in Hugging Face's files: with integers of any size, NaN, Infinity and
 * -Infinity. jansson knows none of these, so such a number is a marked text in the tree, and a number again when it is
 * printed. */
#ifndef MT_HFJSON_H
#define MT_HFJSON_H

#include <jansson.h>
#include <stdbool.h>

struct mt_geometry;

/* As json_loadb, and refuses duplicate keys: the error has the key and both values. Without memory it fails with
 * json_error_out_of_memory; jansson's own reader skips what it has no memory for. */
json_t *hfjson_load(const char *text, size_t bytes, json_error_t *);
/* The same for JSON that Python wrote */
json_t *hfjson_parse(const char *text, size_t bytes, json_error_t *);
/* The text of a number that neither json_int_t nor a finite double can hold; NULL: v is anything else. */
const char *hfjson_odd_number(const json_t *v);
/* Turn the marked texts in json_dumps's output into numbers again, in place. */
void hfjson_unmark(char *text);

/* beside.c: of a tensor's name that ends in `leaf`, the bytes before it; -1: it does not, or is of multi-token
 * prediction (mtp.) */
int name_prefix(const char *name, const char *leaf);
/* The next module around the text model that may have the LM head, from outside: of prefix "a.b." "", "a.", "a.b.".
 * at: 0 at first; returns the bytes of prefix, -1 after the last one */
int name_outer(const char *prefix, int bytes, int *at);

/* Is a tensor, whose name stands behind what is before the text model's, of a layer beyond num_hidden_layers? Released
 * files have layers of multi-token prediction there. */
bool name_is_beyond(const struct mt_geometry *, const char *name);

/* families.c: the class that AutoModelForCausalLM makes for a model_type; NULL: mt does not have it */
const char *family_class(const char *model_type);
/* rope.c: what config.json's root has instead of the key rope_theta or partial_rotary_factor, if this model_type's
 * class has another name for it; else the key itself */
const char *rope_root_key(const char *model_type, const char *key);
/* Has it rope_parameters for each type of layer? */
bool rope_is_by_type(const char *model_type);
/* Where transformers 4 then has the theta of layers with a window; NULL: it is that of the others */
const char *rope_local_theta_key(const char *model_type);
/* The name of a rope_type today; it may have had another in this family. */
const char *rope_type_name(const char *model_type, const char *name);
/* Does transformers 4 want `type` in rope_scaling, and refuse rope_type? */
bool rope_has_type_only(const char *model_type);
/* experts.c: the key of the number of experts; NULL: the family has none */
const char *experts_key(const char *model_type);

/* config.c: behind "no such file": what a directory has in place of a model that mt reads, and what to do, or "" */
const char *hf_other_format(const char *dir);
/* Is this the beginning of the text that a clone without git-lfs has in place of a file? */
bool hf_is_lfs_pointer(const char *text, size_t bytes);
#define HF_LFS_POINTER "is a git-lfs pointer, not the file itself: git lfs pull, in its directory, gets it"

/* layout.c: the name that this family's files have for the weights of the LM head, which a tied model does not have */
const char *head_tensor_name(const struct mt_geometry *);

#endif
